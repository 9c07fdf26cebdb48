# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Draws of a test split, the same for every method, and histograms of scores."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn

from cfl_flare.core.errors import AbortedError, ConfigError
from cfl_flare.core.params import Layout
from cfl_flare.models import Logistic
from cfl_flare.results.pooled import auroc_of_counts, macro_f1_of_counts
from cfl_flare.training import bootstrap
from cfl_flare.training.bootstrap import (
    DRAWS,
    draw_resample,
    draw_rows,
    hash_split_arrays,
    measure_resamples,
    replicates,
)
from cfl_flare.training.histograms import NARROW, REACH, compute_log_odds, count_scores, read_score_shape
from cfl_flare.training.learner import Learner
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Binary, Classification, LearningTask, build_task
from tests.helpers.tiny import coin, make_coin_learner

# ---- Draws ----


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


def list_drawn_rows(seed: int = 0, name: str = "p", key: str = "k", samples: int = 20) -> list[list[int]]:
    return [rows.tolist() for rows in draw_rows(seed, name, key, samples, 50)]


def test_rows_depend_on_seed_participant_and_samples():
    assert list_drawn_rows() == list_drawn_rows()
    others = [list_drawn_rows(seed=1), list_drawn_rows(name="q"), list_drawn_rows(key="l")]
    assert all(other != list_drawn_rows() for other in others)
    flat = np.array(list_drawn_rows()).ravel()
    assert flat.min() == 0 and flat.max() == 19
    assert len({tuple(rows) for rows in list_drawn_rows()}) == 50


def test_a_split_s_key_is_of_its_samples_and_labels():
    x, y = torch.rand(4, 2, 3, 3), torch.tensor([0, 1, 1, 0])
    own = hash_split_arrays(x, y)
    assert own == hash_split_arrays(x.contiguous(memory_format=torch.channels_last), y.clone())
    assert own not in (
        hash_split_arrays(x + 1, y),
        hash_split_arrays(x, 1 - y),
        hash_split_arrays(x.flip(0), y.flip(0)),
        hash_split_arrays(x.view(4, 18), y),
    )
    assert 0 <= draw_resample(0, "p", own) < DRAWS
    assert len({draw_resample(0, f"p{i}", own) for i in range(100)}) > 90


def test_the_same_rows_in_each_method_and_round():
    labels = [0, 0, 0, 1, 1]
    first, later = make_coin_learner(labels), make_coin_learner(labels, lr=0.5, steps=3)
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
    one = make_coin_learner([0, 0, 0, 1, 1])
    with patch.object(Learner, "_predict", autospec=True, side_effect=Learner._predict) as predict:
        resampled(one, coin(1, 0), 200)
    assert predict.call_count == 1


def test_an_aborted_job_stops_between_two_draws():
    with pytest.raises(AbortedError, match="drawn anew"):
        replicates(Classification(), OUTPUTS, TARGETS, ("loss",), ROWS, lambda: True)


def test_two_hundred_draws_of_a_thousand_samples_take_no_second():
    outputs, targets = torch.randn(1000, 10), torch.randint(0, 10, (1000,))
    names, begun = ("accuracy", "macro_f1", "loss"), time.process_time()
    replicates(Classification(), outputs, targets, names, draw_rows(0, "p", "k", 1000, 200))
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
    names, rows = [*dict.fromkeys((*task.always, *task.measures))], [*draw_rows(0, "p", "k", samples, 50)]
    names = [name for name in names if name != "supported_f1"]  # which classes are supported, the split says
    found, wanted = replicates(task, outputs, targets, names, rows), one_by_one(task, outputs, targets, names, rows)
    assert found.keys() == wanted.keys()
    for key, values in found.items():
        np.testing.assert_allclose(np.array(values, np.float64), wanted[key], rtol=1e-6, atol=1e-6, err_msg=key)
    assert all(measure_resamples(task, key, outputs, targets) for key in names if key not in ("loss", "r2"))


@pytest.mark.parametrize(
    ("support", "expected", "on_draw"),
    [(3, 6 / 7, 2 / 3), (2, (6 / 7 + 1 / 2) / 2, 1 / 3), (1, (6 / 7 + 1 / 2 + 0) / 3, 2 / 9), (4, None, None)],
)
def test_classes_with_few_samples_are_not_in_a_macro_figure(support, expected, on_draw):
    """Labels 0 0 0 1 1 2, named 0 0 0 0 1 1: F1 of 6/7, 1/2 and 0, of three, two and one sample."""
    task = build_task(f"classification:support={support}")
    outputs, targets = torch.eye(3)[[0, 0, 0, 0, 1, 1]], torch.tensor([0, 0, 0, 1, 1, 2])
    assert task.measured(outputs, targets, ["supported_f1"]).get("supported_f1") == pytest.approx(expected)
    # A draw without a sample of class 1 that is rightly named: the classes of the split count.
    rows = [np.array([0, 1, 3, 3, 5, 5])]
    assert replicates(task, outputs, targets, ["supported_f1"], rows)["supported_f1"] == (pytest.approx(on_draw),)


@pytest.mark.parametrize("benign", [2, 10])
def test_a_finding_is_two_classes(benign):
    """Ten of a class: nine are rightly named. Of the other class all are, and nobody else is named it."""
    outputs = torch.tensor([5.0] * 9 + [-5.0] + [-5.0] * benign)[:, None]
    targets = torch.tensor([1] * 10 + [0] * benign)
    found = build_task("binary").measured(outputs, targets, ["supported_f1", "macro_f1"])
    two = (18 / 19 + 2 * benign / (2 * benign + 1)) / 2
    assert found["macro_f1"] == pytest.approx(two)
    assert found["supported_f1"] == pytest.approx(18 / 19 if benign < 10 else two)


@dataclass(frozen=True)
class DoubledLoss(Classification):
    def loss(self, *given, **more):
        return 2 * super().loss(*given, **more)


@dataclass(frozen=True)
class Measured(Binary):
    def measured(self, outputs, targets, requested=()):
        return {"loss": 7.0}


def test_what_a_user_s_task_measures_in_its_own_way_is_asked_draw_by_draw():
    plain, doubled = (
        replicates(task, OUTPUTS, TARGETS, ("loss", "accuracy"), ROWS) for task in (Classification(), DoubledLoss())
    )
    assert doubled["loss"] == pytest.approx([2 * value for value in plain["loss"]])
    assert doubled["accuracy"] == plain["accuracy"]
    assert replicates(Measured(), OUTPUTS[:, 1:], TARGETS, ("loss", "auroc"), ROWS) == {
        "loss": (7.0,) * 3,
        "auroc": (None,) * 3,
    }


def test_only_the_measures_that_a_task_names_are_drawn():
    one = make_coin_learner([0, 0, 0, 1, 1])
    drawn = one.resampled(one.tested(coin(1, 0)), ["loss"], 50)
    assert drawn.values.keys() == {"loss"}


def test_draws_that_take_long_say_so(monkeypatch, caplog):
    monkeypatch.setattr(bootstrap, "SECONDS", -1.0)
    caplog.set_level("INFO", "cfl_flare")
    replicates(DoubledLoss(), OUTPUTS, TARGETS, ("loss",), ROWS)
    assert caplog.messages == [f"{i} draws of a test split are measured" for i in range(3)]


# ---- Histograms ----


BINS = 200


def exact(outputs: torch.Tensor, labels: np.ndarray, link: str) -> float:
    """scikit-learn's AUROC, the mean over the classes that some samples have and others lack."""
    odds = compute_log_odds(outputs, link).numpy()
    found = [roc_auc_score(y, s) for y, s in zip(labels.T, odds.T) if 0 < y.sum() < len(y)]
    return float(np.mean(found))


def pool_auroc(outputs: torch.Tensor, targets: torch.Tensor, link: str, bins: int = BINS) -> float:
    """The same from the histograms of seven participants of different sizes."""
    bounds = np.cumsum([0, 1, 5, 40, 90, 200, 700])
    parts = [*pairwise(bounds), (bounds[-1], len(outputs))]
    counts = [count_scores(outputs[i:j], targets[i:j], link, bins) for i, j in parts]
    assert all(own is not None and own.dtype == np.int32 for own in counts)
    together = np.sum([own for own in counts if own is not None], axis=0)
    decided = outputs.sigmoid().numpy() >= 0.5 if link == "sigmoid" else outputs.argmax(1).numpy()
    labels = targets.numpy().reshape(decided.shape)
    assert macro_f1_of_counts(together) == pytest.approx(f1_score(labels, decided, average="macro", zero_division=0))
    found = auroc_of_counts(together[..., :-1])
    assert found is not None
    return found


# The spread of scores and their place: an untrained model's, a trained one's, one that is sure of itself, a rare class.
PLACES = [(0.05, 0.0), (0.3, 0.0), (1.0, -2.0), (3.0, -6.0), (4.0, 8.0), (8.0, 0.0), (8.0, -12.0)]


@pytest.mark.parametrize(("spread", "place"), PLACES)
@pytest.mark.parametrize("share", [0.5, 0.03])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_near_the_exact_one_of_one_output(spread: float, place: float, share: float, seed: int) -> None:
    rng = np.random.default_rng((seed, int(100 * spread)))
    labels = (rng.random(20_000) < share).astype(np.int64)
    scores = place + spread * (rng.standard_normal(20_000) + rng.uniform(0.3, 2.5) * labels)
    outputs, targets = torch.tensor(scores, dtype=torch.float32)[:, None], torch.from_numpy(labels)
    found = pool_auroc(outputs, targets, "sigmoid")
    assert found == pytest.approx(exact(outputs, labels[:, None], "sigmoid"), abs=0.002)


@pytest.mark.parametrize("classes", [2, 5, 10, 100])
@pytest.mark.parametrize("scale", [0.05, 0.5, 3.0, 12.0])
def test_it_is_near_the_exact_one_of_a_softmax(classes: int, scale: float) -> None:
    """Of scale 12, many probabilities are 1 in float32; the log-odds still rank their samples."""
    rng = np.random.default_rng(classes)
    targets = rng.choice(classes, 3000, p=rng.dirichlet(np.ones(classes)))
    labels = np.eye(classes, dtype=np.int64)[targets]
    outputs = torch.tensor(scale * (rng.standard_normal((3000, classes)) + 1.5 * labels), dtype=torch.float32)
    found = pool_auroc(outputs, torch.from_numpy(targets), "softmax")
    assert found == pytest.approx(exact(outputs, labels, "softmax"), abs=0.002)


def test_it_is_near_the_exact_one_of_several_findings() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random((3000, 14)) < rng.uniform(0.005, 0.6, 14)).astype(np.int64)
    labels[:, 3] = 0  # nobody has it: it is left out
    outputs = torch.tensor(3 * rng.standard_normal((3000, 14)) - 4 + 4 * labels, dtype=torch.float32)
    found = pool_auroc(outputs, torch.from_numpy(labels), "sigmoid")
    assert found == pytest.approx(exact(outputs, labels, "sigmoid"), abs=0.002)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=40))
def test_where_bins_hold_equal_scores_alone_it_is_exact(pairs: list[tuple[int, bool]]) -> None:
    places, labels = np.array([place for place, _ in pairs]), np.array([int(is_of) for _, is_of in pairs])
    middles = NARROW * np.sinh((np.arange(10) + 0.5 - 5) / 5 * np.arcsinh(REACH / NARROW))
    outputs = torch.from_numpy(middles[places])[:, None]
    counts = count_scores(outputs, torch.from_numpy(labels), "sigmoid", 10)
    assert counts is not None and counts.shape == (1, 2, 11)
    counts = counts[..., :-1]
    assert counts.sum() == len(pairs)
    np.testing.assert_array_equal(counts[0, 1], np.bincount(places, labels, minlength=10))
    found = auroc_of_counts(counts)
    if 0 < labels.sum() < len(labels):
        assert found == pytest.approx(roc_auc_score(labels, middles[places]))
    else:
        assert found is None


def test_log_odds_are_those_of_probabilities_and_go_on_where_these_are_rounded() -> None:
    outputs = torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 1.0], [25.0, 0.0, 0.0], [50.0, 0.0, 0.0]])
    odds = compute_log_odds(outputs, "softmax")
    shares = outputs.double().softmax(dim=1)
    torch.testing.assert_close(odds[:2], (shares / (1 - shares) * 2).log()[:2])
    assert odds[1].tolist() == pytest.approx([0, 0, 0])
    assert outputs.softmax(dim=1)[2:, 0].tolist() == [1, 1]
    assert odds[2:, 0].tolist() == pytest.approx([25, 50])


def test_infinite_scores_are_at_the_ends_and_what_is_no_number_is_not_counted() -> None:
    ends = count_scores(torch.tensor([[torch.inf], [-torch.inf]]), torch.tensor([1, 0]), "sigmoid", 10)
    assert ends is not None and (ends[0, 1, 9], ends[0, 0, 0]) == (1, 1)
    sure = count_scores(torch.tensor([[1e4, 0.0]]), torch.tensor([0]), "softmax", 10)
    assert sure is not None and (sure[0, 1, 9], sure[1, 0, 0]) == (1, 1)
    assert count_scores(torch.tensor([[torch.nan]]), torch.tensor([1]), "sigmoid", 10) is None


def test_the_shape_is_known_from_the_model() -> None:
    layout = Layout.of(Logistic((1, 2, 2), 7))
    assert read_score_shape(TrainSettings(score_bins=50), layout) == (7, 2, 50)
    assert read_score_shape(TrainSettings(), layout) is None
    with pytest.raises(ConfigError, match="score_bins = 50 needs a model that ends in a fully connected layer"):
        read_score_shape(TrainSettings(score_bins=50), Layout.of(nn.Conv2d(1, 2, 3)))


@pytest.mark.parametrize("task", ["regression", "survival", "segmentation"])
def test_tasks_without_scores_refuse_them(task: str) -> None:
    with pytest.raises(ConfigError, match=f"score_bins = 200 is for tasks that score classes.* task '{task}' does not"):
        TrainSettings(task=task, score_bins=200)


@pytest.mark.parametrize("task", ["classification", "binary", "multilabel"])
def test_tasks_with_scores_take_them(task: str) -> None:
    assert TrainSettings(task=task, score_bins=200).built_task().scored


@pytest.mark.parametrize("bins", [-1, 9, 2001])
def test_too_few_and_too_many_bins_are_refused(bins: int) -> None:
    with pytest.raises(ConfigError, match=f"score_bins = {bins} should be 0 or in 10..2000"):
        TrainSettings(score_bins=bins)
