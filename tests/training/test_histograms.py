# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a participant counts of its scores: bins that keep apart what a trained and an untrained model tell apart."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout
from cfl_flare.models import Logistic
from cfl_flare.results.pooled import auroc_of_counts, macro_f1_of_counts
from cfl_flare.training.histograms import NARROW, REACH, log_odds, score_counts, score_shape
from cfl_flare.training.settings import TrainSettings

BINS = 200


def exact(outputs: torch.Tensor, labels: np.ndarray, link: str) -> float:
    """scikit-learn's AUROC, the mean over the classes that some samples have and others lack."""
    odds = log_odds(outputs, link).numpy()
    found = [roc_auc_score(y, s) for y, s in zip(labels.T, odds.T) if 0 < y.sum() < len(y)]
    return float(np.mean(found))


def pooled(outputs: torch.Tensor, targets: torch.Tensor, link: str, bins: int = BINS) -> float:
    """The same from the histograms of seven participants of different sizes."""
    bounds = np.cumsum([0, 1, 5, 40, 90, 200, 700])
    parts = [*pairwise(bounds), (bounds[-1], len(outputs))]
    counts = [score_counts(outputs[i:j], targets[i:j], link, bins) for i, j in parts]
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
    found = pooled(outputs, targets, "sigmoid")
    assert found == pytest.approx(exact(outputs, labels[:, None], "sigmoid"), abs=0.002)


@pytest.mark.parametrize("classes", [2, 5, 10, 100])
@pytest.mark.parametrize("scale", [0.05, 0.5, 3.0, 12.0])
def test_it_is_near_the_exact_one_of_a_softmax(classes: int, scale: float) -> None:
    """Of scale 12, many probabilities are 1 in float32; the log-odds still rank their samples."""
    rng = np.random.default_rng(classes)
    targets = rng.choice(classes, 3000, p=rng.dirichlet(np.ones(classes)))
    labels = np.eye(classes, dtype=np.int64)[targets]
    outputs = torch.tensor(scale * (rng.standard_normal((3000, classes)) + 1.5 * labels), dtype=torch.float32)
    found = pooled(outputs, torch.from_numpy(targets), "softmax")
    assert found == pytest.approx(exact(outputs, labels, "softmax"), abs=0.002)


def test_it_is_near_the_exact_one_of_several_findings() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random((3000, 14)) < rng.uniform(0.005, 0.6, 14)).astype(np.int64)
    labels[:, 3] = 0  # nobody has it: it is left out
    outputs = torch.tensor(3 * rng.standard_normal((3000, 14)) - 4 + 4 * labels, dtype=torch.float32)
    found = pooled(outputs, torch.from_numpy(labels), "sigmoid")
    assert found == pytest.approx(exact(outputs, labels, "sigmoid"), abs=0.002)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=40))
def test_where_bins_hold_equal_scores_alone_it_is_exact(pairs: list[tuple[int, bool]]) -> None:
    places, labels = np.array([place for place, _ in pairs]), np.array([int(is_of) for _, is_of in pairs])
    middles = NARROW * np.sinh((np.arange(10) + 0.5 - 5) / 5 * np.arcsinh(REACH / NARROW))
    outputs = torch.from_numpy(middles[places])[:, None]
    counts = score_counts(outputs, torch.from_numpy(labels), "sigmoid", 10)
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
    odds = log_odds(outputs, "softmax")
    shares = outputs.double().softmax(dim=1)
    torch.testing.assert_close(odds[:2], (shares / (1 - shares) * 2).log()[:2])
    assert odds[1].tolist() == pytest.approx([0, 0, 0])
    assert outputs.softmax(dim=1)[2:, 0].tolist() == [1, 1]
    assert odds[2:, 0].tolist() == pytest.approx([25, 50])


def test_infinite_scores_are_at_the_ends_and_what_is_no_number_is_not_counted() -> None:
    ends = score_counts(torch.tensor([[torch.inf], [-torch.inf]]), torch.tensor([1, 0]), "sigmoid", 10)
    assert ends is not None and (ends[0, 1, 9], ends[0, 0, 0]) == (1, 1)
    sure = score_counts(torch.tensor([[1e4, 0.0]]), torch.tensor([0]), "softmax", 10)
    assert sure is not None and (sure[0, 1, 9], sure[1, 0, 0]) == (1, 1)
    assert score_counts(torch.tensor([[torch.nan]]), torch.tensor([1]), "sigmoid", 10) is None


def test_the_shape_is_known_from_the_model() -> None:
    layout = Layout.of(Logistic((1, 2, 2), 7))
    assert score_shape(TrainSettings(score_bins=50), layout) == (7, 2, 50)
    assert score_shape(TrainSettings(), layout) is None
    with pytest.raises(ConfigError, match="score_bins = 50 needs a model that ends in a fully connected layer"):
        score_shape(TrainSettings(score_bins=50), Layout.of(nn.Conv2d(1, 2, 3)))


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
