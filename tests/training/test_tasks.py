# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tasks and measures, against independent implementations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.training.ensemble import Ensemble, combine_outputs
from cfl_flare.training.losses import LINKS, predict_from
from cfl_flare.training.measures import auprc, auroc, calibration_error
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import (
    TASKS,
    Binary,
    Classification,
    LearningTask,
    Multilabel,
    Regression,
    Segmentation,
    Survival,
    build_task,
    compute_soft_dice,
    describe_task,
)

RNG = np.random.default_rng(0)


def sample_of(task: str, n: int = 12) -> tuple[Tensor, Tensor, np.ndarray]:
    """Outputs in float64, targets, and labels of a task, none of them degenerate."""
    rng = np.random.default_rng(len(task))
    shapes = {"classification": (n, 3), "multilabel": (n, 4), "segmentation": (n, 3, 4, 4)}
    outputs = torch.from_numpy(rng.normal(size=shapes.get(task, (n, 1))))
    y = {
        "classification": rng.integers(0, 3, n),
        "binary": np.arange(n) % 2,
        "multilabel": rng.integers(0, 2, (n, 4)).astype(np.uint8),
        "regression": rng.normal(size=n),
        "survival": np.stack([rng.integers(1, 6, n), np.arange(n) % 3 > 0], axis=1).astype(float),
        "segmentation": rng.integers(0, 3, (n, 4, 4)).astype(np.uint8),
    }[task]
    targets = TASKS[task]().targets(y)
    return outputs, targets.double() if targets.is_floating_point() else targets, y


@pytest.mark.parametrize("name", TASKS)
def test_gradients_of_every_loss_are_those_of_finite_differences(name):
    outputs, targets, _ = sample_of(name)
    task = build_task(name)
    assert torch.autograd.gradcheck(lambda x: task.loss(x, targets), outputs.requires_grad_(True))


@pytest.mark.parametrize("name", ["classification", "binary", "segmentation"])
def test_gradients_with_class_weights_and_smoothing(name):
    outputs, targets, _ = sample_of(name)
    weights = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)[: max(2, outputs.shape[1])]
    task = build_task(name)
    assert torch.autograd.gradcheck(lambda x: task.loss(x, targets, weights, 0.1), outputs.requires_grad_(True))


@pytest.mark.parametrize("name", TASKS)
def test_the_losses_of_several_models_are_those_of_each(name):
    outputs, targets, _ = sample_of(name)
    task = build_task(name)
    several = torch.stack([outputs, 2 * outputs, -outputs])
    assert task.losses(several, targets) == pytest.approx([float(task.loss(o, targets)) for o in several], rel=1e-12)


def test_losses_by_hand():
    one = torch.tensor([[0.0], [np.log(3.0)]])
    # Probabilities 1/2 and 3/4 of what is there and what is not: -log(1/2) and -log(1/4).
    assert float(Binary().loss(one, torch.tensor([1, 0]))) == pytest.approx((np.log(2) + np.log(4)) / 2)
    weighted = (1 * np.log(2) + 3 * np.log(4)) / 4
    assert float(Binary().loss(one, torch.tensor([1, 0]), torch.tensor([3.0, 1.0]))) == pytest.approx(weighted)
    assert float(Regression().loss(torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 2.0]))) == pytest.approx(2.0)
    two = torch.tensor([[0.0, np.log(3.0)]])
    assert float(Multilabel().loss(two, torch.tensor([[1, 1]]))) == pytest.approx((np.log(2) + np.log(4 / 3)) / 2)


def test_each_sample_has_a_loss_of_its_own():
    """Logits (2, 0) and (0, 1), both of class 0: log(1 + exp(-2)) and log(1 + exp(1))."""
    outputs = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    losses = Classification().sample_losses(outputs, torch.tensor([0, 0]))
    np.testing.assert_allclose(losses, [[np.log1p(np.exp(-2)), np.log1p(np.exp(1))]], rtol=1e-6)


def test_weights_of_two_classes_are_those_of_cross_entropy():
    """One logit z is as two classes with logits 0 and z."""
    z, y, weights = torch.tensor([[0.3], [-1.2], [2.0]]), torch.tensor([0, 1, 1]), torch.tensor([0.7, 1.9])
    pair = torch.cat([torch.zeros_like(z), z], dim=1)
    wanted = Classification().loss(pair, y, weights, 0.1)
    mine = Binary().loss(z, y, weights, 0.0)
    assert float(mine) == pytest.approx(float(Classification().loss(pair, y, weights)), rel=1e-6)
    assert float(Binary().loss(z, y, None, 0.1)) == pytest.approx(float(Classification().loss(pair, y, None, 0.1)))
    assert wanted > 0


def test_soft_dice_by_hand():
    """One image of two pixels; the class is certain of the first, which is of it, and half of the second, not of it."""
    outputs = torch.tensor([[[[0.0, 0.0]], [[50.0, 0.0]]]])
    assert float(compute_soft_dice(outputs, torch.tensor([[[1, 0]]]))) == pytest.approx((2 * 1 + 1) / (1.5 + 1 + 1))


def test_cox_by_hand_without_ties():
    risk = torch.tensor([[0.2], [-0.5], [1.0]])
    found = Survival().loss(risk, torch.tensor([[1.0, 1], [2.0, 0], [3.0, 1]]))
    everyone = np.log(np.exp(0.2) + np.exp(-0.5) + np.exp(1.0))
    assert float(found) == pytest.approx(((everyone - 0.2) + 0.0) / 2)


def test_cox_by_hand_with_a_tie():
    risk, labels = torch.tensor([[0.2], [-0.5], [1.0]]), torch.tensor([[1.0, 1], [1.0, 1], [3.0, 0]])
    h = np.exp([0.2, -0.5, 1.0])
    breslow = (2 * np.log(h.sum()) - 0.2 + 0.5) / 2
    efron = (np.log(h.sum()) + np.log(h.sum() - (h[0] + h[1]) / 2) - 0.2 + 0.5) / 2
    assert float(Survival(ties="breslow").loss(risk, labels)) == pytest.approx(breslow)
    assert float(Survival().loss(risk, labels)) == pytest.approx(efron)


def test_cox_without_events_has_no_gradient_and_no_loss_to_report():
    risk = torch.tensor([[1.0], [2.0]], requires_grad=True)
    labels = torch.tensor([[1.0, 0], [2.0, 0]])
    Survival().loss(risk, labels).backward()
    assert risk.grad.tolist() == [[0], [0]]
    assert Survival().measured(risk.detach(), labels) == {}


def test_cox_is_finite_for_extreme_risks():
    risk = torch.tensor([[-900.0], [900.0], [0.0], [850.0]], requires_grad=True)
    for ties in ("efron", "breslow"):
        loss = Survival(ties=ties).loss(risk, torch.tensor([[1.0, 1], [1.0, 1], [2.0, 1], [2.0, 1]]))
        (gradient,) = torch.autograd.grad(loss, risk)
        assert torch.isfinite(loss) and torch.isfinite(gradient).all()


def hazards(n: int, seed: int, ties: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Covariates, times and events of patients whose hazard is proportional."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    time = rng.exponential(np.exp(-x @ [0.8, -0.5, 0.0]))
    censored = rng.exponential(1.5, n)
    event = (time <= censored).astype(float)
    time = np.minimum(time, censored)
    return x, (np.ceil(time * 5) if ties else time), event


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_cox_is_that_of_an_independent_implementation(ties):
    """At lifelines's estimate the gradient vanishes, and the likelihoods agree; it has Efron's ties alone."""
    pandas, lifelines = pytest.importorskip("pandas"), pytest.importorskip("lifelines")
    x, time, event = hazards(400, 1, ties == "efron")
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "time": time, "event": event})
    fitted = lifelines.CoxPHFitter().fit(frame, "time", "event", fit_options={"precision": 1e-12})
    beta = torch.tensor(fitted.params_.to_numpy()[:, None], requires_grad=True)
    centred = torch.from_numpy(x - x.mean(axis=0))
    loss = Survival(ties=ties).loss(centred @ beta, torch.from_numpy(np.stack([time, event], axis=1)))
    assert float(-loss * event.sum()) == pytest.approx(fitted.log_likelihood_, rel=1e-9)
    (gradient,) = torch.autograd.grad(loss, beta)
    assert gradient.abs().max() < 1e-7


@pytest.mark.parametrize("seed", range(5))
def test_the_c_index_is_that_of_an_independent_implementation(seed):
    utils = pytest.importorskip("lifelines.utils")
    x, time, event = hazards(60, seed, ties=True)
    risk = np.round(x[:, 0], 1)
    found = Survival().measured(torch.from_numpy(risk[:, None]), torch.from_numpy(np.stack([time, event], axis=1)))
    assert found["c_index"] == pytest.approx(utils.concordance_index(time, -risk, event), abs=1e-12)


def test_measures_of_classes_are_scikit_learns():
    outputs, targets, y = sample_of("classification", 60)
    scores, found = predict_from(outputs, "softmax").numpy(), outputs.argmax(1).numpy()
    measured = Classification().measured(outputs, targets, ("auroc", "auprc", "balanced_accuracy", "brier", "ece"))
    hot = np.eye(3)[y]
    assert measured["auroc"] == pytest.approx(sk.roc_auc_score(y, scores, multi_class="ovr"), abs=1e-6)
    assert measured["auprc"] == pytest.approx(sk.average_precision_score(hot, scores), abs=1e-6)
    assert measured["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, found), abs=1e-6)
    assert measured["brier"] == pytest.approx(((scores - hot) ** 2).sum(axis=1).mean(), abs=1e-6)
    assert measured["accuracy"] == (y == found).mean() and 0 < measured["ece"] < 1


def test_measures_of_a_finding_are_scikit_learns():
    outputs, targets, y = sample_of("binary", 61)
    scores = predict_from(outputs, "sigmoid").numpy()[:, 0]
    task = Binary(threshold=0.4)
    found = (scores >= 0.4).astype(int)
    measured = task.measured(outputs, targets, task.measures)
    wanted = {
        "auroc": sk.roc_auc_score(y, scores),
        "auprc": sk.average_precision_score(y, scores),
        "accuracy": sk.accuracy_score(y, found),
        "balanced_accuracy": sk.balanced_accuracy_score(y, found),
        "macro_f1": sk.f1_score(y, found, average="macro"),
        "sensitivity": sk.recall_score(y, found),
        "specificity": sk.recall_score(y, found, pos_label=0),
        "brier": sk.brier_score_loss(y, scores),
    }
    assert {name: measured[name] for name in wanted} == pytest.approx(wanted, abs=1e-6)


def test_measures_of_findings_are_scikit_learns():
    outputs, targets, y = sample_of("multilabel", 50)
    scores = predict_from(outputs, "sigmoid").numpy()
    found = scores >= 0.5
    measured = Multilabel().measured(outputs, targets, Multilabel.measures)
    wanted = {
        "auroc": sk.roc_auc_score(y, scores),
        "auprc": sk.average_precision_score(y, scores),
        "accuracy": (y == found).mean(),
        "macro_f1": sk.f1_score(y, found, average="macro"),
        "sensitivity": sk.recall_score(y, found, average="macro"),
        "brier": ((scores - y) ** 2).mean(),
    }
    assert {name: measured[name] for name in wanted} == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_measures_of_scores_are_scikit_learns_with_ties(seed):
    """Few distinct scores, 0 and 1 among them, so that most samples are tied."""
    rng = np.random.default_rng(seed)
    y, scores = (rng.random(40) < 0.3).astype(int), rng.integers(0, 5, 40) / 4
    values = torch.from_numpy(scores[:, None]), torch.from_numpy(y), None
    assert auroc(*values) == pytest.approx(sk.roc_auc_score(y, scores), abs=1e-12)
    assert auprc(*values) == pytest.approx(sk.average_precision_score(y, scores), abs=1e-12)
    assert auroc(torch.full((40, 1), 0.5), *values[1:]) == 0.5
    assert auroc(torch.full((40, 1), torch.nan), *values[1:]) is None


def test_the_calibration_error_by_hand():
    """Of 15 bins: .01 and .05 are in the first, .97 in the last; the shares that are right are 1/2 and 1."""
    scores, labels = torch.tensor([[0.01], [0.05], [0.97]]), torch.tensor([0, 1, 1])
    assert calibration_error(scores, labels, None) == pytest.approx((abs(0.06 - 1) + 0.03) / 3)
    several = torch.tensor([[0.01, 0.99], [0.4, 0.6], [0.97, 0.03]])
    assert calibration_error(several, labels, None) == pytest.approx((0.99 + 0.4 + 0.97) / 3)


def test_measures_of_numbers_are_scikit_learns():
    outputs, targets, y = sample_of("regression", 30)
    measured = Regression().measured(outputs, targets, Regression.measures)
    assert measured["mae"] == pytest.approx(sk.mean_absolute_error(y, outputs[:, 0]), rel=1e-6)
    assert measured["rmse"] == pytest.approx(sk.root_mean_squared_error(y, outputs[:, 0]), rel=1e-6)
    assert measured["r2"] == pytest.approx(sk.r2_score(y, outputs[:, 0]), rel=1e-6)


def test_scaled_outcomes_are_measured_in_their_unit():
    """Mean 10 and deviation 4: outputs 0, 1 and -0.5 are 10, 14 and 8; the labels 12, 14 and 2 are 0.5, 1 and -2."""
    task = build_task("regression:mean=10,deviation=4")
    outputs = torch.tensor([[0.0], [1.0], [-0.5]])
    measured = task.measured(outputs, torch.tensor([12.0, 14.0, 2.0]), ("rmse",))
    assert measured["loss"] == pytest.approx((0.5**2 + 0 + 1.5**2) / 3)
    assert measured["mae"] == pytest.approx((2 + 0 + 6) / 3)
    assert measured["rmse"] == pytest.approx(((2**2 + 0 + 6**2) / 3) ** 0.5)
    assert task.in_units() == Regression()


def test_an_outcome_is_scaled_by_labels():
    """Of 1, 3 and 8, the mean is 4 and the variance (9 + 1 + 16) / 3. Equal labels have no deviation."""
    scaled = Regression().scaled_by(np.array([1.0, 3.0, 8.0]))
    assert (scaled.mean, scaled.deviation) == (4.0, pytest.approx((26 / 3) ** 0.5))
    assert Regression().scaled_by(np.array([5.0, 5.0])) == Regression(mean=5.0, deviation=1.0)
    with pytest.raises(ConfigError, match="mean and deviation scale the outcome together; give both"):
        Regression(mean=1.0)


def test_measures_of_masks_are_scikit_learns():
    outputs, targets, y = sample_of("segmentation")
    found = outputs.argmax(1).numpy()
    measured = Segmentation().measured(outputs, targets, Segmentation.measures)
    f1 = sk.f1_score(y.ravel(), found.ravel(), average=None)
    jaccard = sk.jaccard_score(y.ravel(), found.ravel(), average=None)
    assert measured["dice"] == pytest.approx(f1[1:].mean()) and measured["iou"] == pytest.approx(jaccard[1:].mean())
    assert measured["accuracy"] == (y == found).mean()


def test_a_measure_that_is_not_defined_is_left_out():
    """Of a test split with one class there is no AUROC, and of one without the class no sensitivity: not 0, not NaN."""
    outputs = torch.tensor([[0.2], [1.0]])
    none = Binary().measured(outputs, torch.tensor([0, 0]), Binary.measures)
    assert {"auroc", "auprc", "sensitivity", "balanced_accuracy"}.isdisjoint(none) and none["specificity"] == 0
    three = torch.eye(3)[:2]
    assert "auroc" not in Classification().measured(three, torch.tensor([1, 1]), ["auroc", "balanced_accuracy"])
    # The third class occurs nowhere, and is left out of the mean over classes.
    assert Classification().measured(three, torch.tensor([0, 1]), ["auroc"])["auroc"] == 1
    assert "r2" not in Regression().measured(outputs, torch.tensor([1.0, 1.0]), ["r2"])
    empty = Segmentation().measured(torch.tensor([[[[1.0]], [[0.0]]]]), torch.tensor([[[0]]]))
    assert "dice" not in empty
    assert Survival().measured(outputs, torch.tensor([[1.0, 0], [2.0, 1]])).keys() == {"loss"}


@pytest.mark.parametrize("name", TASKS)
def test_every_measure_is_within_the_range_that_a_server_allows(name):
    outputs, targets, _ = sample_of(name)
    few = {"support": 1} if "supported_f1" in TASKS[name].measures else {}
    task = build_task({"task": name, **few})
    measured = task.measured(outputs, targets, task.measures)
    ranges = task.ranges(task.measures)
    assert measured.keys() == ranges.keys()
    assert all(ranges[key][0] <= value <= ranges[key][1] for key, value in measured.items())


def test_votes_average_predictions_and_sums_add_outputs():
    for link in LINKS:
        outputs = torch.tensor([[[0.3, -1.0]], [[2.0, 0.5]]])
        together = combine_outputs(outputs, "probabilities", link)
        each = torch.stack([predict_from(part, link) for part in outputs]).mean(dim=0)
        assert predict_from(together, link).numpy() == pytest.approx(each.numpy(), rel=1e-5)
        assert torch.equal(combine_outputs(outputs, "logits", link), outputs[0] + outputs[1])
    maps = torch.tensor(RNG.normal(size=(2, 3, 4, 5, 5)))
    wanted = maps.softmax(dim=2).mean(dim=0)
    assert predict_from(combine_outputs(maps, "probabilities"), "softmax").numpy() == pytest.approx(wanted.numpy())
    with pytest.raises(ConfigError, match=r"link = 'tanh' should be one of"):
        Ensemble([], "logits", "tanh")


def test_what_does_not_fit_a_task_says_what_to_set():
    floats, classes = np.array([0.5, 2.0]), np.array([0, 2])
    with pytest.raises(DataError, match=r"a: its labels are numbers.* task 'classification'.*set task to 'regression'"):
        Classification().check(torch.zeros(1, 3), floats, "a")
    with pytest.raises(DataError, match=r"a: label 2 does not fit the model's output of shape.*num_classes to 3"):
        Classification().check(torch.zeros(1, 2), classes, "a")
    with pytest.raises(DataError, match=r"a: label 2 is neither 0 nor 1.*'classification' and the model's num_classes"):
        Binary().check(torch.zeros(1, 1), classes, "a")
    with pytest.raises(DataError, match=r"one output for each sample.*num_classes to 1"):
        Binary().check(torch.zeros(1, 2), np.array([0, 1]), "a")
    with pytest.raises(DataError, match=r"its samples have 2 labels each.*num_classes to 2"):
        Multilabel().check(torch.zeros(1, 3), np.eye(2, dtype=int), "a")
    with pytest.raises(DataError, match=r"masks of 4x4 with classes up to 2 do not fit.*'unet'"):
        Segmentation().check(torch.zeros(1, 3), np.full((2, 4, 4), 2, np.uint8), "a")
    Regression().check(torch.zeros(1, 1), classes, "a")  # whole numbers are numbers, too


def test_settings_of_a_task_are_checked_with_the_others():
    with pytest.raises(ConfigError, match=r"task 'clasification' is unknown; there are classification, binary"):
        TrainSettings(task="clasification")
    with pytest.raises(ConfigError, match=r"ties = 'exact' should be 'efron' or 'breslow'"):
        TrainSettings(task="survival:ties=exact")
    with pytest.raises(ConfigError, match=r"measures = 'auroc' is not one of task 'regression'; it has mae"):
        TrainSettings(task="regression", measures=("auroc",))
    with pytest.raises(ConfigError, match=r"class_weights = 'balanced' is for tasks with classes.*'survival'"):
        TrainSettings(task="survival", class_weights="balanced")
    with pytest.raises(ConfigError, match=r"should be a task's name, 'package.Class', or a LearningTask"):
        TrainSettings(task=3)
    given = TrainSettings(task=Survival(ties="breslow"))
    assert given.task == {"task": "survival", "ties": "breslow"} and given.built_task() == Survival(ties="breslow")


@dataclass(frozen=True)
class Poisson(LearningTask):
    """Counts, by their likelihood."""

    name: ClassVar[str] = "poisson"
    form: ClassVar[str] = "class"
    link: ClassVar[str] = "exp"

    offset: float = 0.0

    def loss(self, outputs, targets, weights=None, smoothing=0.0):
        rate = (outputs[:, 0] + self.offset).exp()
        return (rate - targets * (outputs[:, 0] + self.offset)).mean()


def test_a_task_of_ones_own_is_a_class_with_a_loss():
    path = f"{Poisson.__module__}.Poisson"
    settings = TrainSettings(task=Poisson(offset=1.0))
    assert settings.task == {"task": path, "offset": 1.0}
    task = settings.built_task()
    assert describe_task(task) == settings.task
    outputs, targets = torch.zeros(2, 1), torch.tensor([1, 2])
    assert task.measured(outputs, targets) == {"loss": pytest.approx(np.e - 1.5)}
    with pytest.raises(PermissionError, match=r"no"):

        def refuse(name: str) -> None:
            raise PermissionError(f"no {name}")

        settings.built_task(refuse)
    with pytest.raises(ConfigError, match=r"LearningTask"):
        TrainSettings(task="collections.OrderedDict").built_task()


def test_a_perfect_auroc_is_not_above_one():
    scores = torch.arange(13) / 13  # of 10 and 3, a sum in float32 is 1.0000001, which a server refuses
    outputs = torch.stack([1 - scores, scores], dim=1).log()
    assert Classification().measured(outputs, torch.tensor([0] * 10 + [1] * 3), ["auroc"])["auroc"] == 1


PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30)


def measure_predictions(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """The measures of a model that names these of eight classes."""
    return Classification().measured(torch.eye(8)[predictions], torch.from_numpy(labels))


@settings(deadline=None)
@given(PAIRS)
def test_measures_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = np.array(pairs).T
    measured = measure_predictions(labels, predictions)
    assert measured["accuracy"] == pytest.approx(accuracy_score(labels, predictions))
    expected = f1_score(labels, predictions, average="macro", zero_division=0)
    assert measured["macro_f1"] == pytest.approx(expected)


def test_macro_f1_counts_the_classes_that_occur_alone() -> None:
    assert measure_predictions(np.array([7, 7]), np.array([7, 7]))["macro_f1"] == 1
    # Class 2: precision 1, recall 1/2. Class 5 is predicted and never true: 0. Classes 0, 1, 3, 4 do not occur.
    assert measure_predictions(np.array([2, 2]), np.array([2, 5]))["macro_f1"] == pytest.approx((2 / 3 + 0) / 2)
