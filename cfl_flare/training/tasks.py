# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Learning tasks: the labels, the loss, and how predictions are measured.

To add one, derive from `LearningTask`, with a loss and measures, and name the class as the run's task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cfl_flare.core.config import build_named, name_of, require
from cfl_flare.core.errors import DataError
from cfl_flare.core.settings import check_settings, setting
from cfl_flare.data.classes import hint_at_codes
from cfl_flare.data.labels import FORMS, form_of
from cfl_flare.training.losses import compute_cox_loss, compute_soft_dice
from cfl_flare.training.measures import (
    LARGEST,
    OF_A_FINDING,
    OF_CLASSES,
    OF_FINDINGS,
    OF_MASKS,
    OF_NUMBERS,
    OF_TIMES,
    RANGES,
    Measure,
    select_compared,
)

# A deviation that is a smaller part of the numbers themselves is none, but rounding.
SMALLEST_DEVIATION = 1e-9


@dataclass(frozen=True)
class LearningTask(ABC):
    """A learning task. Its settings are the fields of its dataclass.

    Attributes:
        name: in settings.
        form: of the labels, one of `cfl_flare.data.labels.FORMS`.
        link: what makes predictions of a model's outputs, one of `cfl_flare.training.losses.LINKS`.
        classes: each sample, or each pixel, is of one class: classes can be weighted, and labels smoothed.
        scored: each output is a score of a class, which some samples are of and others are not.
        separable: the loss is a mean over samples, none of which changes another's part.
        nonnegative: no sample's loss is below 0. Races of models rely on it.
        relative: only comparisons of outputs count: the same number added to all outputs changes nothing.
        dtype: of the labels as the loss and the measures take them.
        always: what is measured in any run.
        measures: functions of predictions, targets and the task that compute measures other than the loss.
    """

    name: ClassVar[str] = ""
    form: ClassVar[str] = "class"
    link: ClassVar[str] = "softmax"
    classes: ClassVar[bool] = False
    scored: ClassVar[bool] = False
    separable: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = False
    relative: ClassVar[bool] = False
    dtype: ClassVar[type[np.generic]] = np.int64
    always: ClassVar[tuple[str, ...]] = ("loss",)
    measures: ClassVar[Mapping[str, Measure]] = {}

    def __post_init__(self) -> None:
        check_settings(self, f"task {self.name}")

    def targets(self, y: np.ndarray) -> Tensor:
        """Labels as the loss and the measures take them.

        Args:
            y: labels ``(n, ...)``.
        """
        return torch.from_numpy(np.ascontiguousarray(y, self.dtype))

    def outputs(self, y: np.ndarray) -> int:
        """The number of outputs of a model of these labels, for each sample or pixel.

        Args:
            y: labels ``(n, ...)``.
        """
        return 1

    def check(self, outputs: Tensor, y: np.ndarray, where: str) -> None:
        """Checks that labels and a model's outputs for one sample fit each other; a DataError says what to set.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
            y: labels ``(n, ...)``.
            where: begins the message of an error.
        """
        self.check_form(y, where)
        self._check_outputs(outputs, y, where)

    def check_form(self, y: np.ndarray, where: str) -> None:
        """Raises a DataError for labels of another form; it says which task takes them.

        Args:
            y: labels ``(n, ...)``.
            where: begins the message of an error.
        """
        form = form_of(y, where)
        if form != self.form:
            fitting = " or ".join(
                repr(task.name) for task in TASKS.values() if task.form == form
            )
            reason = f"its labels are {FORMS[form]}, and task {self.name!r} takes {FORMS[self.form]}"
            hint = hint_at_codes(y) if form == "number" and self.form == "class" else ""
            raise DataError(
                f"{where}: {reason}; {hint}set task to {fitting}, or name other labels"
            )

    def _check_outputs(self, outputs: Tensor, y: np.ndarray, where: str) -> None:
        if tuple(outputs.shape) != (1, 1):
            shape = f"the model's output for one has shape {tuple(outputs.shape)}; set the model's num_classes to 1"
            raise DataError(
                f"{where}: task {self.name!r} takes one output for each sample, and {shape}"
            )

    def ranges(self, requested: Iterable[str] = ()) -> dict[str, tuple[float, float]]:
        """The measures of a run, with the range of each. A server refuses values outside it.

        Args:
            requested: names of further measures.
        """
        return {
            name: RANGES.get(name, (-LARGEST, LARGEST))
            for name in (*self.always, *requested)
        }

    def key_metric(self, outputs: int | None) -> str:
        """The metric that judges a run that names none: the loss where there are two classes, else accuracy.

        Where one of two classes is rare, a model that always names the other one is nearly always right.

        Args:
            outputs: the number of outputs, if it is known.
        """
        two = self.form == "class" and (self.link == "sigmoid" or outputs == 2)
        return "loss" if two else "accuracy"

    @abstractmethod
    def loss(
        self,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> Tensor:
        """The mean loss of a batch, a scalar with gradient.

        Args:
            outputs: of the model, ``(n, classes, ...)``.
            targets: labels, as `targets` returns them.
            weights: of each class; None where all count the same, and always where there are no ``classes``.
            smoothing: share of the target that is spread evenly over all classes; 0 where there are none.
        """

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of each of several models, ``(K,)`` float64, of outputs ``(K, n, classes, ...)``.

        Args:
            outputs: ``(K, n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
        """
        return torch.stack(
            [self.loss(of_model, targets).double() for of_model in outputs]
        )

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each of several models on each sample, ``(K, n)`` float64.

        Args:
            outputs: ``(K, n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
        """
        if self.separable and TASKS.get(self.name) is type(
            self
        ):  # a user's loss may do what vmap cannot
            single = torch.vmap(
                lambda output, target: self.loss(output[None], target[None])
            )
            return torch.vmap(single, in_dims=(0, None))(outputs, targets).double()
        each = [
            self.losses(outputs[:, i : i + 1], targets[i : i + 1])
            for i in range(len(targets))
        ]
        return torch.stack(each, dim=1)

    def unscale(self, outputs: Tensor) -> Tensor:
        """Outputs in the unit of the labels; a model may have learned scaled labels.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
        """
        return outputs

    def in_units(self) -> LearningTask:
        """The task of a model whose outputs are in the unit of the labels, see `unscale`."""
        return self

    def measured(
        self, outputs: Tensor, targets: Tensor, requested: Iterable[str] = ()
    ) -> dict[str, float]:
        """The measures of a model's outputs ``(n, classes, ...)`` by name: those of `always`, and the requested ones.

        Those that these samples do not define, such as an AUROC of one class, are left out. Without samples, nothing is
        measured.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
            requested: names of further measures.
        """
        if not len(targets):
            return {}
        values = {
            name: self.measure(name, outputs, targets)
            for name in dict.fromkeys((*self.always, *requested))
        }
        return {name: value for name, value in values.items() if value is not None}

    def measure(self, name: str, outputs: Tensor, targets: Tensor) -> float | None:
        """One measure of a model on a test split; None where it is not defined there.

        Args:
            name: the name of a measure.
            outputs: outputs of a model ``(n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
        """
        if name == "loss":
            return float(self.loss(outputs, targets))
        measure = self.measures[name]
        return measure(
            select_compared(measure, self.unscale(outputs), self.link), targets, self
        )


@dataclass(frozen=True)
class Classification(LearningTask):
    """One of several classes for each sample, by cross-entropy: outputs ``(n, classes)``, labels 0, 1, ..."""

    name: ClassVar[str] = "classification"
    separable: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True
    classes: ClassVar[bool] = True
    scored: ClassVar[bool] = True
    always: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1", "loss")
    measures: ClassVar[Mapping[str, Measure]] = OF_CLASSES

    support: int = setting(
        10,
        help="test samples of a class, or with a finding, that supported_f1 asks for",
        ge=1,
    )

    def outputs(self, y: np.ndarray) -> int:
        """Count the outputs of a model of these labels.

        Args:
            y: labels ``(n, ...)``.
        """
        return max(2, int(y.max()) + 1)

    def _check_outputs(self, outputs: Tensor, y: np.ndarray, where: str) -> None:
        top = int(y.max())
        if outputs.dim() != 2:
            raise DataError(
                f"{where}: the model's output for one sample has shape {tuple(outputs.shape)}, and task "
                "'classification' takes (1, classes); bring outputs to (samples, classes) in forward(), or set task to "
                "'segmentation' for masks"
            )
        if outputs.shape[1] <= max(top, 1):
            reason = f"label {top} does not fit the model's output of shape {tuple(outputs.shape)}"
            way_out = f"set the model's num_classes to {max(2, top + 1)} or more, or bring the labels to its classes"
            if outputs.shape[1] == 1 and top == 1:
                way_out = "set the model's num_classes to 2, or task to 'binary' for a single output"
            raise DataError(f"{where}: {reason}; {way_out}")

    def loss(
        self,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> Tensor:
        """Cross-entropy.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
            weights: the weight of each class ``(classes,)``; None for equal weights.
            smoothing: the part of label smoothing, 0 to 1.
        """
        return F.cross_entropy(outputs, targets, weights, label_smoothing=smoothing)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the mean cross-entropy of each of several models.

        Args:
            outputs: ``(K, n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
        """
        return self.sample_losses(outputs, targets).mean(dim=1)

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the cross-entropy of each of several models on each sample.

        Args:
            outputs: ``(K, n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
        """
        losses = F.cross_entropy(
            outputs.flatten(0, 1), targets.repeat(len(outputs)), reduction="none"
        )
        return losses.view(len(outputs), -1).double()


@dataclass(frozen=True)
class Findings(LearningTask):
    """Findings that are there or not, each with an output, its logit."""

    separable: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True
    link: ClassVar[str] = "sigmoid"
    scored: ClassVar[bool] = True
    always: ClassVar[tuple[str, ...]] = ("accuracy", "auroc", "loss")

    threshold: float = setting(
        0.5, help="a finding is there from this probability on", gt=0, lt=1
    )
    support: int = setting(
        10,
        help="test samples of a class, or with a finding, that supported_f1 asks for",
        ge=1,
    )


@dataclass(frozen=True)
class Binary(Findings):
    """A finding that is there or not: one output; labels 0 and 1."""

    name: ClassVar[str] = "binary"
    classes: ClassVar[bool] = True
    measures: ClassVar[Mapping[str, Measure]] = OF_A_FINDING

    def _check_outputs(self, outputs: Tensor, y: np.ndarray, where: str) -> None:
        super()._check_outputs(outputs, y, where)
        if y.max() > 1:
            way_out = f"set task to 'classification' and the model's num_classes to {y.max() + 1}"
            raise DataError(
                f"{where}: label {y.max()} is neither 0 nor 1, which task 'binary' takes; {way_out}"
            )

    def loss(
        self,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> Tensor:
        """Binary cross-entropy.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
            weights: the weight of each class ``(classes,)``; None for equal weights.
            smoothing: the part of label smoothing, 0 to 1.
        """
        wanted = (targets * (1 - smoothing) + smoothing / 2).to(outputs.dtype)
        if weights is None:
            return F.binary_cross_entropy_with_logits(outputs[:, 0], wanted)
        of_samples = weights[targets]
        losses = F.binary_cross_entropy_with_logits(
            outputs[:, 0], wanted, of_samples, reduction="none"
        )
        return losses.sum() / of_samples.sum()


@dataclass(frozen=True)
class Multilabel(Findings):
    """Several findings, each there or not: outputs and labels ``(n, C)``, labels of 0 and 1."""

    name: ClassVar[str] = "multilabel"
    form: ClassVar[str] = "several"
    measures: ClassVar[Mapping[str, Measure]] = OF_FINDINGS

    def outputs(self, y: np.ndarray) -> int:
        """Count the outputs of a model of these labels.

        Args:
            y: labels ``(n, ...)``.
        """
        return y.shape[1]

    def _check_outputs(self, outputs: Tensor, y: np.ndarray, where: str) -> None:
        if tuple(outputs.shape) != (1, y.shape[1]):
            shape = f"and the model's output for one has shape {tuple(outputs.shape)}"
            way_out = f"set the model's num_classes to {y.shape[1]}"
            raise DataError(
                f"{where}: its samples have {y.shape[1]} labels each, {shape}; {way_out}"
            )

    def loss(
        self,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> Tensor:
        """Binary cross-entropy, the mean over findings.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
            weights: the weight of each class ``(classes,)``; None for equal weights.
            smoothing: the part of label smoothing, 0 to 1.
        """
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))


@dataclass(frozen=True)
class Regression(LearningTask):
    """A number for each sample, by squared error: one output.

    Models learn the outcome scaled, (y - mean) / deviation, so that the default learning rate suits outcomes of any
    unit. The loss is that of the scaled outcome. Predictions, metrics and exported models are in the outcome's unit.
    """

    name: ClassVar[str] = "regression"
    separable: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True
    form: ClassVar[str] = "number"
    link: ClassVar[str] = "identity"
    dtype: ClassVar[type[np.generic]] = np.float32
    always: ClassVar[tuple[str, ...]] = ("mae", "loss")
    measures: ClassVar[Mapping[str, Measure]] = OF_NUMBERS

    mean: float | None = setting(
        None, help="of the outcome; default in a simulation: of all training samples"
    )
    deviation: float | None = setting(
        None, help="of the outcome, its standard deviation; default as for mean", gt=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        both = (self.mean is None) == (self.deviation is None)
        require(
            both,
            "task regression: mean and deviation scale the outcome together; give both of them, or none",
        )

    @property
    def is_scaled(self) -> bool:
        """Whether mean and deviation of the outcome are known."""
        return self.deviation is not None

    def scaled_by(self, y: np.ndarray) -> Regression:
        """The task with the mean and deviation of some labels ``(n,)``, the deviation 1 if they are all equal.

        Args:
            y: labels ``(n, ...)``.
        """
        values = np.asarray(y, np.float64)
        deviation = float(values.std())
        if deviation <= SMALLEST_DEVIATION * float(np.abs(values).max()):
            deviation = 1.0
        return replace(self, mean=float(values.mean()), deviation=deviation)

    def unscale(self, outputs: Tensor) -> Tensor:
        """Compute outputs in the unit of the labels.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
        """
        if self.mean is None or self.deviation is None:
            return outputs
        return outputs * self.deviation + self.mean

    def in_units(self) -> Regression:
        return replace(self, mean=None, deviation=None)

    def check_form(self, y: np.ndarray, where: str) -> None:
        """Check that labels are numbers.

        Args:
            y: labels ``(n, ...)``.
            where: begins the message of an error.
        """
        if form_of(y, where) != "class":  # classes are numbers as well
            super().check_form(y, where)

    def loss(
        self,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> Tensor:
        """The loss of scaled numbers.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
            weights: the weight of each class ``(classes,)``; None for equal weights.
            smoothing: the part of label smoothing, 0 to 1.
        """
        if self.mean is not None and self.deviation is not None:
            targets = (targets - self.mean) / self.deviation
        return F.mse_loss(outputs[:, 0], targets)


@dataclass(frozen=True)
class Survival(LearningTask):
    """The risk of an event, by Cox: one output, the log of the relative hazard; labels ``(n, 2)``, time and event."""

    name: ClassVar[str] = "survival"
    form: ClassVar[str] = "time"
    link: ClassVar[str] = "exp"
    dtype: ClassVar[type[np.generic]] = np.float32
    relative: ClassVar[bool] = True
    always: ClassVar[tuple[str, ...]] = ("c_index", "loss")
    measures: ClassVar[Mapping[str, Measure]] = OF_TIMES

    ties: Literal["efron", "breslow"] = setting(
        "efron",
        help="how events at the same time are treated",
        choices=("efron", "breslow"),
    )

    def loss(
        self,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> Tensor:
        """Cox's partial likelihood.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
            weights: the weight of each class ``(classes,)``; None for equal weights.
            smoothing: the part of label smoothing, 0 to 1.
        """
        return compute_cox_loss(outputs[:, 0], targets[:, 0], targets[:, 1], self.ties)

    def measure(self, name: str, outputs: Tensor, targets: Tensor) -> float | None:
        """Measure the order of risks.

        Args:
            name: the name of a measure.
            outputs: outputs of a model ``(n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
        """
        return super().measure(name, outputs, targets) if targets[:, 1].any() else None


@dataclass(frozen=True)
class Segmentation(LearningTask):
    """The class of each pixel, 0 for the background: outputs ``(n, classes, h, w)``, labels ``(n, h, w)``."""

    name: ClassVar[str] = "segmentation"
    form: ClassVar[str] = "mask"
    classes: ClassVar[bool] = True
    always: ClassVar[tuple[str, ...]] = ("dice", "loss")
    measures: ClassVar[Mapping[str, Measure]] = OF_MASKS

    dice: float = setting(
        0.5,
        help="share of soft Dice in the loss; the rest is cross-entropy",
        ge=0,
        le=1,
    )

    def outputs(self, y: np.ndarray) -> int:
        """Count the outputs of a model of these labels.

        Args:
            y: labels ``(n, ...)``.
        """
        return int(y.max()) + 1

    def _check_outputs(self, outputs: Tensor, y: np.ndarray, where: str) -> None:
        if not (
            outputs.dim() == 4
            and outputs.shape[1] > y.max()
            and outputs.shape[2:] == y.shape[1:]
        ):
            raise DataError(
                f"{where}: masks of {y.shape[1]}x{y.shape[2]} with classes up to {y.max()} do not fit the model's "
                f"output of shape {tuple(outputs.shape)}, which should be (1, {y.max() + 1} or more, "
                f"{y.shape[1]}, {y.shape[2]}); set the model's num_classes, or take the network 'unet'"
            )

    def loss(
        self,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> Tensor:
        """Cross-entropy of the pixels, and soft Dice if it is set.

        Args:
            outputs: outputs of a model ``(n, classes, ...)``.
            targets: labels as the task has targets ``(n, ...)``.
            weights: the weight of each class ``(classes,)``; None for equal weights.
            smoothing: the part of label smoothing, 0 to 1.
        """
        entropy = F.cross_entropy(outputs, targets, weights, label_smoothing=smoothing)
        return (
            self.dice * (1 - compute_soft_dice(outputs, targets))
            + (1 - self.dice) * entropy
        )


TASKS: dict[str, type[LearningTask]] = {
    task.name: task
    for task in (Classification, Binary, Multilabel, Regression, Survival, Segmentation)
}


def build_task(
    spec: Mapping[str, Any] | str | LearningTask,
    authorize: Callable[[str], None] | None = None,
) -> LearningTask:
    """The task of a run: ``"classification"``, ``"survival:ties=breslow"``, ``{"task": name, ...}``, ``package.Class``.

    The site's component policy is asked by ``authorize``; see `cfl_flare.core.config.build`. A ConfigError for an
    unknown task or setting, or a value out of its range.

    Args:
        spec: the task's name, or its settings.
        authorize: asked for a class path before it is imported; it raises to refuse it.
    """
    if isinstance(spec, LearningTask):
        return spec
    return build_named(spec, "task", TASKS, LearningTask, authorize)  # type: ignore[type-abstract]


def find_task(form: str) -> str:
    """The name of the first task whose labels have this form.

    Args:
        form: the form of the labels.
    """
    return next(name for name, task in TASKS.items() if task.form == form)


def describe_task(task: Any) -> dict[str, Any]:
    """The dictionary from which `build_task` builds this task again; a ConfigError if it is no task.

    Args:
        task: the task.
    """
    wanted = "a task's name, 'package.Class', or a LearningTask"
    require(
        isinstance(task, LearningTask), f"training: task = {task!r} should be {wanted}"
    )
    return {"task": name_of(task, "task", TASKS), **asdict(task)}
