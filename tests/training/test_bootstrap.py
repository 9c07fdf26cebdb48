# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Draws of a test split: the same ones for every method, measured without predicting again."""

import time
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest
import torch

from cfl_flare.core.errors import AbortedError, ConfigError
from cfl_flare.training import bootstrap
from cfl_flare.training.bootstrap import DRAWS, draw_of, drawn_rows, key_of, replicates
from cfl_flare.training.draws import counted
from cfl_flare.training.learner import Learner
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Binary, Classification, LearningTask, build_task
from tests.tiny import coin, learner

OUTPUTS = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])  # predicted: 0, 1, 0
TARGETS = torch.tensor([0, 1, 1])
ROWS = [np.array(rows) for rows in ([0, 1, 2], [2, 2, 0], [1, 1, 1])]


def resampled(learner, model, times):
    """What a learner measures of a model, and its draws."""
    outputs = learner.tested(model)
    found = learner.measured(outputs)
    return found, learner.resampled(outputs, found, times)


def test_measures_of_draws_by_hand():
    found = replicates(Classification(), OUTPUTS, TARGETS, ("accuracy", "macro_f1", "loss"), ROWS)
    # Drawn 2, 2, 0: labels 1, 1, 0 and predictions 0, 0, 0; F1 of class 0 is 2 / (1 + 3), and of class 1 it is 0.
    assert found["accuracy"] == pytest.approx([2 / 3, 1 / 3, 1])
    assert found["macro_f1"] == pytest.approx([2 / 3, 1 / 4, 1])
    right, wrong = np.log(1 + np.exp(-2)), np.log(1 + np.exp(2))
    assert found["loss"] == pytest.approx([(2 * right + wrong) / 3, (right + 2 * wrong) / 3, right], rel=1e-6)


def test_a_measure_that_a_draw_does_not_define_is_none():
    found = replicates(Binary(), OUTPUTS[:, 1:], TARGETS, ("accuracy", "auroc"), ROWS)
    assert found["auroc"] == (0.75, 0.5, None)  # in the last one there are positive samples alone
    assert None not in found["accuracy"]


def test_what_is_not_finite_is_none():
    outputs = torch.tensor([[float("inf"), 0.0], [0.0, 2.0], [2.0, 0.0]])
    found = replicates(Classification(), outputs, TARGETS, ("loss",), ROWS)
    assert found["loss"][:2] == (None, None) and found["loss"][2] is not None


def rows_of(seed: int = 0, name: str = "p", key: str = "k", samples: int = 20) -> list[list[int]]:
    return [rows.tolist() for rows in drawn_rows(seed, name, key, samples, 50)]


def test_rows_depend_on_seed_participant_and_samples():
    assert rows_of() == rows_of()
    others = [rows_of(seed=1), rows_of(name="q"), rows_of(key="l")]
    assert all(other != rows_of() for other in others)
    flat = np.array(rows_of()).ravel()
    assert flat.min() == 0 and flat.max() == 19
    assert len({tuple(rows) for rows in rows_of()}) == 50


def test_a_split_s_key_is_of_its_samples_and_labels():
    x, y = torch.rand(4, 2, 3, 3), torch.tensor([0, 1, 1, 0])
    own = key_of(x, y)
    assert own == key_of(x.contiguous(memory_format=torch.channels_last), y.clone())
    assert own not in (key_of(x + 1, y), key_of(x, 1 - y), key_of(x.flip(0), y.flip(0)), key_of(x.view(4, 18), y))
    assert 0 <= draw_of(0, "p", own) < DRAWS
    assert len({draw_of(0, f"p{i}", own) for i in range(100)}) > 90


def test_the_same_rows_in_each_method_and_round():
    labels = [0, 0, 0, 1, 1]
    first, later = learner(labels), learner(labels, lr=0.5, steps=3)
    later = later.in_round(7).part("personal")
    (found, drawn), (_, again) = resampled(first, coin(1, 0), 50), resampled(later, coin(1, 0), 50)
    assert drawn == again
    assert found == first.evaluate(coin(1, 0)) and found.keys() == drawn.values.keys()
    assert all(len(values) == 50 for values in drawn.values.values())
    assert np.mean(drawn.values["accuracy"]) == pytest.approx(0.6, abs=0.1)
    # On the same rows, models that always say the opposite are right where the other is wrong.
    _, other = resampled(first, coin(0, 1), 50)
    assert other.draw == drawn.draw
    assert np.add(drawn.values["accuracy"], other.values["accuracy"]) == pytest.approx(np.ones(50))
    assert resampled(first, coin(1, 0), 0) == (found, None)


def test_nothing_is_predicted_again():
    one = learner([0, 0, 0, 1, 1])
    with patch.object(Learner, "_predict", autospec=True, side_effect=Learner._predict) as predict:
        resampled(one, coin(1, 0), 200)
    assert predict.call_count == 1


def test_an_aborted_job_stops_between_two_draws():
    with pytest.raises(AbortedError, match="drawn anew"):
        replicates(Classification(), OUTPUTS, TARGETS, ("loss",), ROWS, lambda: True)


def test_two_hundred_draws_of_a_thousand_samples_take_no_second():
    outputs, targets = torch.randn(1000, 10), torch.randint(0, 10, (1000,))
    names, begun = ("accuracy", "macro_f1", "loss"), time.process_time()
    replicates(Classification(), outputs, targets, names, drawn_rows(0, "p", "k", 1000, 200))
    assert time.process_time() - begun < 2  # about 0.1 where nothing else runs


@pytest.mark.parametrize("times", [1, 49, 2001, -50])
def test_too_few_draws_or_too_many(times):
    with pytest.raises(ConfigError, match=rf"training: bootstrap = {times} should be 0 or in 50\.\.2000"):
        TrainSettings(bootstrap=times)


def one_by_one(task: LearningTask, outputs: torch.Tensor, targets: torch.Tensor, names: list[str], rows) -> dict:
    """Each draw measured as if it were a test split."""
    found = [task.measured(outputs[chosen], targets[chosen], names) for chosen in rows]
    return {name: [measured.get(name, np.nan) for measured in found] for name in names}


def split_of(name: str, samples: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs with ties, and labels of rare classes."""
    width = {"classification": 4, "multilabel": 3}.get(name, 1)
    outputs = torch.from_numpy(rng.integers(-6, 7, (samples, width)) / 2).float()
    targets = {
        "classification": rng.choice(4, samples, p=[0.6, 0.3, 0.08, 0.02]),
        "multilabel": (rng.random((samples, 3)) < [0.5, 0.1, 0.02]).astype(int),
        "regression": rng.normal(size=samples),
        "survival": np.stack([rng.integers(1, 9, samples), rng.random(samples) < 0.3], axis=1),
    }
    return outputs, build_task(name).targets(targets.get(name, rng.random(samples) < 0.1))


@pytest.mark.parametrize("name", ["classification", "binary", "multilabel", "regression", "survival"])
@pytest.mark.parametrize("samples", [1, 2, 7, 60, 1500])  # of 1500, pairs of survival times take two blocks
def test_draws_at_once_are_what_each_is_alone(monkeypatch, name, samples):
    monkeypatch.setattr(bootstrap, "ENTRIES", 20 * samples)  # chunks of 20, 20 and 10 draws
    task, rng = build_task(name), np.random.default_rng(samples)
    outputs, targets = split_of(name, samples, rng)
    names, rows = [*dict.fromkeys((*task.always, *task.measures))], [*drawn_rows(0, "p", "k", samples, 50)]
    found, wanted = replicates(task, outputs, targets, names, rows), one_by_one(task, outputs, targets, names, rows)
    assert found.keys() == wanted.keys()
    for key, values in found.items():
        np.testing.assert_allclose(np.array(values, np.float64), wanted[key], rtol=1e-6, atol=1e-6, err_msg=key)
    assert all(counted(task, key, outputs, targets) for key in names if key not in ("loss", "r2"))


@dataclass(frozen=True)
class Doubled(Classification):
    def loss(self, *given, **more):
        return 2 * super().loss(*given, **more)


@dataclass(frozen=True)
class Measured(Binary):
    def measured(self, outputs, targets, requested=()):
        return {"loss": 7.0}


def test_what_a_user_s_task_measures_in_its_own_way_is_asked_draw_by_draw():
    plain, doubled = (
        replicates(task, OUTPUTS, TARGETS, ("loss", "accuracy"), ROWS) for task in (Classification(), Doubled())
    )
    assert doubled["loss"] == pytest.approx([2 * value for value in plain["loss"]])
    assert doubled["accuracy"] == plain["accuracy"]
    assert replicates(Measured(), OUTPUTS[:, 1:], TARGETS, ("loss", "auroc"), ROWS) == {
        "loss": (7.0,) * 3,
        "auroc": (None,) * 3,
    }


def test_only_the_measures_that_a_task_names_are_drawn():
    one = learner([0, 0, 0, 1, 1])
    drawn = one.resampled(one.tested(coin(1, 0)), ["loss"], 50)
    assert drawn.values.keys() == {"loss"}


def test_draws_that_take_long_say_so(monkeypatch, caplog):
    monkeypatch.setattr(bootstrap, "SECONDS", -1.0)
    caplog.set_level("INFO", "cfl_flare")
    replicates(Doubled(), OUTPUTS, TARGETS, ("loss",), ROWS)
    assert caplog.messages == [f"{i} draws of a test split are measured" for i in range(3)]
