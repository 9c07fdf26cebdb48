# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The prevalence as a candidate of a study: by hand, from its samples to the first sentence of the verdict."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cfl_flare.core.errors import ConfigError
from cfl_flare.engine.site import check_dp
from cfl_flare.engine.study.prevalence import Prevalence, average_labels, fits, get_bias, invert_link
from cfl_flare.models import MLP
from cfl_flare.results.comparison import AtHospital
from cfl_flare.results.decision import decide
from cfl_flare.results.study import Entrant
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Binary, Classification, Multilabel, Regression, Survival
from tests.helpers.play import host_people, play_rounds


def test_one_prediction_for_everyone_is_the_mean_label():
    several = np.array([[1, 0], [1, 1], [0, 0], [0, 0]])
    assert average_labels(np.array([0, 2, 2, 2]), Classification(), 4).tolist() == [0.25, 0, 0.75, 0]
    assert average_labels(np.array([0, 1, 1, 1]), Binary(), 1).tolist() == [0.75]
    assert average_labels(several, Multilabel(), 2).tolist() == [0.5, 0.25]
    assert average_labels(np.array([1.0, 4.0]), Regression(), 1).tolist() == [2.5]


def test_outputs_predict_the_mean_label():
    shares = torch.from_numpy(invert_link(np.array([0.25, 0.75, 0.0]), Classification())).softmax(0)
    np.testing.assert_allclose(shares, [0.25, 0.75, 0], atol=1e-5)
    assert invert_link(np.array([0.75]), Binary())[0] == pytest.approx(np.log(3))
    task = Regression(mean=2.0, deviation=4.0)
    assert task.unscale(torch.from_numpy(invert_link(np.array([5.0]), task))).tolist() == [5.0]


def test_hospitals_count_by_their_samples():
    first, last = play_rounds(Prevalence(), 1)
    labels = np.concatenate([person.train.y for person in host_people()])
    shares = np.bincount(labels) / len(labels)
    np.testing.assert_allclose(get_bias(first.after.bank["global"]), shares, atol=1e-6)
    tested = host_people()[0].test.y
    loss = last.answers[host_people()[0].name].metrics["served_loss"]
    assert loss == pytest.approx(-np.log(shares[tested]).mean(), rel=1e-5)


def test_dp_refuses_a_mean_without_noise():
    training = TrainSettings(dp="epsilon=3")
    with pytest.raises(ConfigError, match="dp does not go with method prevalence"):
        check_dp(Prevalence(), training, Classification(), MLP([4], 2, hidden=[]))


def test_a_network_without_a_last_bias_has_no_such_candidate():
    network = MLP([4], 1, hidden=[])
    assert fits(network, Binary()) and fits(network, None) and not fits(network, Survival())
    network.head = torch.nn.Linear(4, 1, bias=False)
    assert not fits(network, Binary())


def test_a_verdict_begins_with_a_model_that_is_no_better():
    def measure(value: float) -> dict[str, AtHospital]:
        draws = value + 0.02 * np.random.default_rng(0).normal(size=100)
        return {f"h{i}": AtHospital(10 + i, 50, 1, value, draws) for i in range(12)}

    names = ("local", "fedavg", "prevalence")
    entrants = [Entrant(name, name) for name in names]
    measured = {name: measure(loss) for name, loss in zip(names, (0.9, 0.7, 0.6), strict=True)}
    verdict = decide(measured, measured, entrants, 4, "loss", "min")
    assert verdict.chosen.name == "fedavg"  # never the prevalence itself
    assert verdict.sentences()[0].startswith("Use none of these models yet: fedavg is not clearly better than the same")
    few = {name: dict(list(hospitals.items())[:2]) for name, hospitals in measured.items()}
    few["fedavg"] = {name: replace(at, value=value) for (name, at), value in zip(few["fedavg"].items(), (0.1, 0.5))}
    assert not decide(few, few, entrants, 4, "loss", "min").sentences()[0].startswith("Use none")  # by 0.3, unclear
    better = {**measured, "fedavg": measure(0.5)}
    sentences = decide(better, better, entrants, 4, "loss", "min").sentences()
    assert sentences[0].startswith("Do not cluster") and any("by the prevalence alone: loss" in s for s in sentences)
