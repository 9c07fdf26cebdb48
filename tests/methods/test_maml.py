# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError
from cfl_flare.methods import Download, FedAvg, PerFedAvg, build_method, describe_method
from cfl_flare.training.ensemble import Served
from tests.methods.test_invariants import loop
from tests.play import assert_same_models, play
from tests.tiny import coin, initial, learner, update

# From (0, 0) on label 0 a step of length 1 leads to (1/2, -1/2); there p0 is the logistic of 1.
P0 = 1 / (1 + np.exp(-1.0))
SENT = Download(("global",), (coin(0, 0),))


def test_local_step_goes_by_the_gradient_one_step_ahead():
    sent = PerFedAvg().local_update(learner([0], lr=1.0), SENT)  # eta is the run's learning rate
    np.testing.assert_allclose(sent.diffs["global"].vector, [1 - P0, P0 - 1], rtol=1e-6)
    ahead = 1 / (1 + np.exp(-3.0))  # at (3/2, -3/2): eta = 3
    sent = PerFedAvg(inner_lr=3.0).local_update(learner([0], lr=0.5), SENT)
    np.testing.assert_allclose(sent.diffs["global"].vector, [0.5 * (1 - ahead), 0.5 * (ahead - 1)], rtol=1e-6)


def test_server_step_is_fedavg_s():
    method = PerFedAvg()
    state = method.start(initial)
    updates = [update("a", 3, "global", 1, 0), update("b", 1, "global", 5, 4)]
    np.testing.assert_array_equal(method.aggregate(state, updates, {}).bank["global"].vector, [2, 1])


def test_serves_the_model_after_its_personal_steps_and_forgets_it():
    work = learner([0], lr=1.0)
    np.testing.assert_allclose(PerFedAvg().predictor(work, SENT).vector, [0.5, -0.5])
    twice = PerFedAvg(personal_steps=2).predictor(work, SENT).vector
    np.testing.assert_allclose(twice, [0.5 + (1 - P0), -0.5 + (P0 - 1)], rtol=1e-6)
    assert PerFedAvg(personal_steps=0).predictor(work, SENT) is SENT.models[0]
    assert work.memory == {}


def test_finetuning_starts_from_the_personal_model():
    (tuned,) = Served.of(PerFedAvg(finetune=True).predictor(learner([0], lr=1.0), SENT)).models
    np.testing.assert_allclose(tuned.vector, [0.5 + (1 - P0), -0.5 + (P0 - 1)], rtol=1e-6)


def test_without_inner_steps_it_is_fedavg_bit_for_bit():
    plain, meta = loop(FedAvg()), loop(PerFedAvg(inner_lr=0.0))
    assert_same_models(plain.state.bank, meta.state.bank)


def test_parts_side_by_side_each_serve_what_they_would_alone():
    both = build_method({"method": "ensemble", "parts": [{"method": "per-fedavg"}, {"method": "fedavg"}]})
    beside, alone = play(both, 2), play(PerFedAvg(), 2, streams="0.")
    assert_same_models(beside[-1].after.bank, alone[-1].after.bank, "0.")


def test_the_personal_model_is_better_at_home_than_the_common_one():
    rounds = [play(PerFedAvg(personal_steps=n), 5, lr=0.3, local_steps=5)[-1] for n in (0, 1, 5)]
    common, one, five = ([a.metrics["served_accuracy"] for a in r.answers.values()] for r in rounds)
    assert np.mean(common) < np.mean(one) < np.mean(five)


@pytest.mark.parametrize("settings", [{}, {"inner_lr": 0.1, "personal_steps": 3, "weighting": "uniform"}])
def test_it_survives_the_way_through_a_job_file(settings):
    method = PerFedAvg(**settings)
    assert build_method(describe_method(method)) == method
    assert method.label == "per-fedavg"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inner_lr": -0.1}, "inner_lr = -0.1 should be >= 0 or None"),
        ({"inner_lr": "fast"}, "inner_lr = 'fast' should be float"),
        ({"personal_steps": -1}, "personal_steps = -1 should be >= 0"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "per-fedavg", **settings})
