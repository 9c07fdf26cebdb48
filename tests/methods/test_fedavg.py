# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError
from cfl_flare.methods import Download, FedAvg, FedProx, Finetune, Local, build_method
from cfl_flare.training.ensemble import Served
from tests.tiny import coin, initial, learner, update

# One SGD step with learning rate 1 from (0, 0) on label 0: softmax is (1/2, 1/2), the gradient (-1/2, 1/2).
STEP = [0.5, -0.5]


def test_server_step_is_the_mean_weighted_by_samples():
    method = FedAvg()
    state = method.start(initial)
    updates = [update("a", 3, "global", 1, 0), update("b", 1, "global", 5, 4)]
    after = method.aggregate(state, updates, method.assign(state, updates))
    np.testing.assert_array_equal(after.bank["global"].vector, [2, 1])  # (3*1 + 1*5)/4, (3*0 + 1*4)/4
    assert after.round == 1
    assert after.assignment == {}


def test_uniform_weighting_counts_everyone_the_same():
    method = FedAvg(weighting="uniform")
    state = method.start(initial)
    after = method.aggregate(state, [update("a", 3, "global", 1, 0), update("b", 1, "global", 5, 4)], {})
    np.testing.assert_array_equal(after.bank["global"].vector, [3, 2])


def test_local_step_sends_the_difference_to_what_was_sent():
    method = FedAvg()
    sent = method.local_update(learner([0]), Download(("global",), (coin(0, 0),)))
    np.testing.assert_allclose(sent.diffs["global"].vector, STEP)
    assert (sent.participant, sent.samples, sent.cluster) == ("p", 1, None)


def test_fedprox_second_step_is_pulled_back_by_mu():
    """Step 1 starts at the anchor: no pull. At (1/2, -1/2) the gradient is (p0 - 1, p1), the pull mu * (1/2, -1/2)."""
    mu = 0.4
    sent = FedProx(mu=mu).local_update(learner([0], steps=2), Download(("global",), (coin(0, 0),)))
    p0 = 1 / (1 + np.exp(-1.0))
    expected = np.array([0.5 - ((p0 - 1) + mu * 0.5), -0.5 - ((1 - p0) + mu * -0.5)])
    np.testing.assert_allclose(sent.diffs["global"].vector, expected, rtol=1e-6)


def test_fedprox_without_mu_is_fedavg():
    download = Download(("global",), (coin(0, 0),))
    plain = FedAvg().local_update(learner([0, 1, 0], steps=3), download)
    prox = FedProx(mu=0.0).local_update(learner([0, 1, 0], steps=3), download)
    np.testing.assert_array_equal(plain.diffs["global"].vector, prox.diffs["global"].vector)


def test_finetune_serves_one_more_local_round_and_forgets_it():
    work = learner([0])
    served = Finetune().predictor(work, Download(("global",), (coin(0, 0),)))
    (model,) = Served.of(served).models
    np.testing.assert_allclose(model.vector, STEP)
    assert work.memory == {}


def test_local_keeps_its_model_and_sends_nothing():
    method, work = Local(), learner([0])
    start = work.initial(0)
    assert method.distribute(method.start(initial), "p").slots == ()
    sent = method.local_update(work, Download())
    assert sent.diffs == {}
    first = work.memory["model"]
    p0 = np.exp(start.vector[0]) / np.exp(start.vector).sum()
    np.testing.assert_allclose(first.vector, start.vector - [p0 - 1, 1 - p0], rtol=1e-6)
    again = method.serve(learner([0], memory=work.memory), Download())
    np.testing.assert_array_equal(again.vector, first.vector)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"method": "fedprox", "mu": -1.0}, "mu = -1.0 should be >= 0"),
        ({"method": "fedavg", "weighting": "size"}, "weighting = 'size' should be 'samples' or 'uniform'"),
        ({"method": "fedavgg"}, "method 'fedavgg' is unknown"),
        ({"method": "fedavg", "k": 3}, "unknown setting 'k'"),
    ],
)
def test_refusals(spec, message):
    with pytest.raises(ConfigError, match=message):
        build_method(spec)
