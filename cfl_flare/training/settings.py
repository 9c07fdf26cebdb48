# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of a participant's training in one round, and of the measures of its predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cfl_flare.core.config import as_spec, from_dict, parse_spec, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.settings import Bounds, check_settings, setting, settings_of
from cfl_flare.extensions import read_settings
from cfl_flare.training.privacy import DPSettings
from cfl_flare.training.transforms import check_augment

if TYPE_CHECKING:
    from cfl_flare.training.augment import Augment
    from cfl_flare.training.tasks import LearningTask

# Bins of a histogram of scores: fewer tell nothing, and more are the scores themselves.
SCORE_BINS = Bounds("0 or in 10..2000", lambda value: value == 0 or 10 <= value <= 2000)
# Draws of a test split: fewer do not carry percentiles of 2.5 and 97.5, and more say nothing new.
MOST_DRAWS = 2000
DRAWS = Bounds(
    f"0 or in 50..{MOST_DRAWS}", lambda value: value == 0 or 50 <= value <= MOST_DRAWS
)
SHADOW_MODELS = Bounds(
    "0 or an even number in 2..64",
    lambda value: value == 0 or (2 <= value <= 64 and value % 2 == 0),
)
ROUNDS = Bounds(
    "rounds > 0", lambda value: all(isinstance(r, int) and r > 0 for r in value)
)


@dataclass(frozen=True)
class TrainSettings:
    """Local training of one round. The defaults are the thesis's (sec. 3.5): 10 steps of SGD, batch 32, momentum 0.9.

    Models stay float32 with any ``precision``; ``bfloat16`` is meant for processors with instructions for it (AVX-512
    BF16, AMX, recent GPUs), and was slower on one without.

    Attributes:
        extensions: settings of extensions, by the extension's name: ``{"confidence": {"threshold": 0.8}}``
    """

    lr: float = setting(
        0.001,
        help="learning rate of round 0, or of the first round after lr_warmup",
        gt=0,
    )
    momentum: float | None = setting(
        None,
        help="SGD's momentum; default: 0.9 with sgd, and adam has none",
        ge=0,
        lt=1,
    )
    weight_decay: float = setting(
        0.0, help="L2 penalty; with adamw, decay apart from the gradient", ge=0
    )
    batch_size: int = setting(
        32, help="samples a step; a participant with fewer takes all it has", ge=1
    )
    local_steps: int | None = setting(
        None,
        help="steps a round; default: 10, unless local_epochs is given",
        ge=1,
        le=100_000,
    )
    local_epochs: int | None = setting(
        None, help="passes over the own data a round, instead of steps", ge=1, le=1000
    )
    keep_momentum: bool = setting(
        False,
        help="keep the momentum, or all of Adam's state, on the participant between rounds",
    )
    lr_decay: float = setting(
        1.0,
        help="factor on the learning rate after each round, or after each of lr_milestones",
        gt=0,
        le=1,
    )
    lr_milestones: tuple[int, ...] = setting(
        (), help="rounds from which on the factor holds once more", bounds=ROUNDS
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32",
        help="of the arithmetic in training steps",
        choices=("float32", "bfloat16"),
    )
    optimizer: Literal["sgd", "adam", "adamw"] = setting(
        "sgd", help="what makes the steps", choices=("sgd", "adam", "adamw")
    )
    beta1: float = setting(0.9, help="Adam's decay of the mean gradient", ge=0, lt=1)
    beta2: float = setting(
        0.999, help="Adam's decay of the mean squared gradient", ge=0, lt=1
    )
    adam_eps: float = setting(1e-8, help="what Adam adds to its denominator", gt=0)
    clip_grad: float | None = setting(
        None, help="a longer gradient is scaled down to this norm in each step", gt=0
    )
    lr_schedule: Literal["steps", "cosine"] = setting(
        "steps",
        help="over the rounds: steps, by lr_decay and lr_milestones, or cosine, half a wave from lr down to lr_end",
        choices=("steps", "cosine"),
    )
    lr_rounds: int | None = setting(
        None,
        help="rounds of the cosine, warm-up included; default: the run's. Later rounds have the last one's rate",
        ge=1,
    )
    lr_end: float = setting(
        0.0,
        help="the learning rate that the cosine would reach one round after its last",
        ge=0,
    )
    lr_warmup: int = setting(
        0, help="rounds in which the learning rate rises to lr, in equal steps", ge=0
    )
    class_weights: str | None = setting(
        None,
        help="balanced: in the loss of training, a class counts as n / (classes * n_c) by the participant's own labels",
        choices=("balanced",),
    )
    label_smoothing: float = setting(
        0.0,
        help="share of the target that training spreads evenly over all classes",
        ge=0,
        lt=1,
    )
    task: str | Mapping[str, Any] = setting(
        "classification",
        help="what models predict: classification, binary, multilabel, regression, survival or segmentation, or an own "
        "package.Class",
    )
    measures: tuple[str, ...] = setting(
        (), help="measures in addition to the task's usual ones: auroc, ece, ..."
    )
    score_bins: int = setting(
        0,
        help="bins of the histograms of test scores, such as 200, for pooled_auroc and pooled_macro_f1; 0: none",
        bounds=SCORE_BINS,
    )
    bootstrap: int = setting(
        0,
        help="for intervals: bootstrap resamples per test set when the final models are measured, such as 200",
        bounds=DRAWS,
    )
    membership: int = setting(
        0,
        help="shadow models by which participants attack their cluster's final model, such as 16; each takes as long "
        "as all rounds of training. Results say how much the model tells of whom it was trained on; 0: no attack",
        bounds=SHADOW_MODELS,
    )
    augment: tuple[str, ...] = setting(
        (),
        help="transforms of training images, torchvision.transforms.v2's: RandomCrop:size=28,padding=2, ...",
    )
    dp: str | Mapping[str, Any] | None = setting(
        None,
        help="differential privacy of each patient: epsilon=3,delta=1e-5, and on request max_grad_norm, "
        "noise_multiplier, max_loss",
    )
    extensions: Mapping[str, Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if self.extensions is not None:
            names = list(self.extensions)
            built = {name: asdict(self.read_extension(name)) for name in names}
            object.__setattr__(self, "extensions", built)
        if self.dp is not None:
            object.__setattr__(self, "dp", asdict(_dp_of(self.dp)))
        object.__setattr__(self, "lr_milestones", tuple(self.lr_milestones))
        if self.optimizer == "sgd" and self.momentum is None:
            object.__setattr__(self, "momentum", 0.9)
        if not isinstance(self.task, (str, Mapping)):
            from cfl_flare.training.tasks import (
                describe_task,
            )  # it needs torch, which takes a second

            object.__setattr__(self, "task", describe_task(self.task))
        object.__setattr__(self, "measures", tuple(self.measures))
        object.__setattr__(self, "augment", check_augment(self.augment))
        check_settings(self, "training")
        name = as_spec(self.task, "task").get("task")
        of_user = (
            isinstance(name, str) and "." in name
        )  # a class of the user's is imported at the sites alone
        if not of_user and (self.task != "classification" or self.measures):
            self.built_task()
        counts = (
            f"membership = {self.membership} sends counts to which dp adds no noise"
        )
        way_out = "leave it out, as epsilon and delta bound what any attack reaches"
        require(
            self.dp is None or not self.membership, f"training: {counts}; {way_out}"
        )
        either = f"local_steps = {self.local_steps} or local_epochs = {self.local_epochs}, not both"
        require(
            self.local_steps is None or self.local_epochs is None,
            f"training: give {either}",
        )
        if self.optimizer == "sgd":
            self._only("beta1", "beta2", "adam_eps", of="optimizer = 'adam' or 'adamw'")
        else:
            self._only(
                "momentum", of="optimizer = 'sgd', and Adam has beta1 in its place"
            )
        if self.lr_schedule == "cosine":
            self._only("lr_decay", "lr_milestones", of="lr_schedule = 'steps'")
            most = f"at most lr = {self.lr}"
            require(
                self.lr_end <= self.lr,
                f"training: lr_end = {self.lr_end} should be {most}; lower it",
            )
            rounds = self.lr_rounds
            left = f"leaves none of lr_rounds = {rounds} for the cosine"
            fits_in = rounds is None or self.lr_warmup < rounds
            require(fits_in, f"training: lr_warmup = {self.lr_warmup} {left}; lower it")
        else:
            self._only("lr_rounds", "lr_end", of="lr_schedule = 'cosine'")

    def read_extension(self, name: str) -> Any:
        """Read an extension's settings, with its defaults if the job gives it none.

        Args:
            name: of the extension.

        Returns:
            The extension's dataclass of settings.

        Raises:
            ConfigError: the extension is not installed, has no settings, or a setting is invalid.
        """
        given = self.extensions or {}
        return read_settings(name, given.get(name, {}), "training")

    def built_task(
        self, authorize: Callable[[str], None] | None = None
    ) -> LearningTask:
        """The run's task; see `cfl_flare.training.tasks.build_task`.

        Args:
            authorize: asked for a class path before it is imported; it raises to refuse
                it.
        """
        from cfl_flare.training.tasks import build_task

        task = build_task(self.task, authorize)
        title = repr(task.name or type(task).__name__)
        known = [*dict.fromkeys((*task.always, *task.measures))]
        for name in self.measures:
            there = f"is not one of task {title}; it has {', '.join(known)}"
            require(name in known, f"training: measures = {name!r} {there}")
        for what, value in (
            ("class_weights", self.class_weights),
            ("label_smoothing", self.label_smoothing),
        ):
            reason = (
                f"is for tasks with classes, and task {title} has none; leave it out"
            )
            require(task.classes or not value, f"training: {what} = {value!r} {reason}")
        wanted = (
            f"membership = {self.membership} is for tasks with a loss of each sample"
        )
        reason = f"and task {title} compares samples with each other"
        require(
            not (task.relative and self.membership),
            f"training: {wanted}, {reason}; leave it out",
        )
        wanted = f"score_bins = {self.score_bins} is for tasks that score classes"
        reason = (
            f"such as classification, binary and multilabel, and task {title} does not"
        )
        require(
            task.scored or not self.score_bins,
            f"training: {wanted}, {reason}; leave it out",
        )
        return task

    def built_augment(self, task: LearningTask) -> Augment | None:
        """The chain of transforms of the run's training images; None if there is none.

        Args:
            task: the run's task.
        """
        if not self.augment:
            return None
        from cfl_flare.training.augment import (
            Augment,
        )  # it needs torchvision, which takes seconds

        return Augment(self.augment, masks=task.form == "mask")

    def _only(
        self,
        *names: str,
        of: str,
    ) -> None:
        """Raises a ConfigError for a setting that another one makes meaningless."""
        for name, default in (
            (name, settings_of(type(self))[name].default) for name in names
        ):
            value = getattr(self, name)
            require(
                value == default,
                f"training: {name} = {value!r} belongs to {of}; leave one of the two out",
            )

    @property
    def privacy(self) -> DPSettings | None:
        """The run's differential privacy; None without."""
        return None if self.dp is None else _dp_of(self.dp)

    def over(
        self,
        rounds: int,
        evaluate_every: int = 1,
    ) -> TrainSettings:
        """The settings in a run of this length. A cosine and a budget without their own number of rounds take it.

        Args:
            rounds: the number of rounds of the run.
            evaluate_every: rounds between measurements.
        """
        settings = self
        privacy = self.privacy
        if privacy is not None:
            settings = replace(
                settings, dp=asdict(privacy.over(rounds, evaluate_every))
            )
        if self.lr_schedule == "cosine" and not self.lr_rounds:
            return replace(settings, lr_rounds=rounds)
        return settings

    def lr_at(self, round_number: int) -> float:
        """The learning rate of a round (rounds count from 0).

        Args:
            round_number: the round, from 0.

        >>> [round(TrainSettings(lr=0.8, lr_warmup=3).lr_at(r), 3) for r in range(5)]
        [0.2, 0.4, 0.6, 0.8, 0.8]
        """
        if round_number < self.lr_warmup:
            return (
                self._after_warmup(round_number)
                * (round_number + 1)
                / (self.lr_warmup + 1)
            )
        return self._after_warmup(round_number)

    def _after_warmup(self, round_number: int) -> float:
        if self.lr_schedule == "cosine":
            if self.lr_rounds is None:
                raise ConfigError(
                    "training: lr_schedule = 'cosine' needs lr_rounds, the number of its rounds; set it"
                )
            waves = max(0, min(round_number, self.lr_rounds - 1) - self.lr_warmup) / (
                self.lr_rounds - self.lr_warmup
            )
            return (
                self.lr_end
                + (self.lr - self.lr_end) * (1 + math.cos(math.pi * waves)) / 2
            )
        if self.lr_milestones:
            times = sum(r <= round_number for r in self.lr_milestones)
        else:
            times = round_number
        return self.lr * self.lr_decay**times

    def steps(self, samples: int) -> int:
        """Steps of one round for a participant with this number of training samples.

        Args:
            samples: the number of samples.
        """
        if self.local_epochs is None:
            return self.local_steps or 10
        return self.local_epochs * len(batch_bounds(samples, self.batch_size))


def _dp_of(value: str | Mapping[str, Any]) -> DPSettings:
    """Settings of differential privacy: a mapping, or ``"epsilon=3,delta=1e-5"``."""
    given = parse_spec(f"dp:{value}")[1] if isinstance(value, str) else value
    require(
        isinstance(given, Mapping),
        f"training: dp = {value!r} should be like 'epsilon=3,delta=1e-5'",
    )
    return from_dict(DPSettings, dict(given), "training: dp")


def batch_bounds(
    samples: int,
    batch_size: int,
) -> list[tuple[int, int]]:
    """The batches of one pass, as bounds into a permutation. A last batch of one sample alone is left out.

    (BatchNorm cannot be trained on one sample; the permutation of the next pass puts another one last.)

    Args:
        samples: the number of samples.
        batch_size: samples a batch.

    >>> batch_bounds(65, 32)
    [(0, 32), (32, 64)]
    """
    bounds = [(i, min(i + batch_size, samples)) for i in range(0, samples, batch_size)]
    if len(bounds) > 1 and batch_size > 1 and bounds[-1][1] - bounds[-1][0] == 1:
        return bounds[:-1]
    return bounds
