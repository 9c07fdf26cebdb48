# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A participant whose samples are protected by differential privacy: DP-SGD, noisy choices, losses and measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfl_flare.core.config import require
from cfl_flare.core.errors import AbortedError, ConfigError
from cfl_flare.core.params import Params
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import Step, Term
from cfl_flare.training.privacy import (
    TEST,
    TRAIN,
    DPSettings,
    Randomness,
    RoundAccount,
    add_noise,
)
from cfl_flare.training.private_draws import SampleDraws
from cfl_flare.training.runtime import Batches, Split
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import LearningTask

# The measures of which a sample changes the sum by at most one, once a loss is clipped.
MEASURES = ("accuracy", "loss")


def check_training(settings: TrainSettings, task: LearningTask) -> None:
    """Raises a ConfigError for settings that break the guarantee of differential privacy."""
    others = tuple(name for name in settings.measures if name not in MEASURES)
    for name, value, default, reason in (
        (
            "score_bins",
            settings.score_bins,
            0,
            "histograms are nearly the scores themselves",
        ),
        (
            "bootstrap",
            settings.bootstrap,
            0,
            "draws show how far single losses are spread",
        ),
        ("measures", others, (), "only accuracy and loss have a bound for one sample"),
        (
            "class_weights",
            settings.class_weights,
            None,
            "weights of classes depend on all samples",
        ),
        (
            "precision",
            settings.precision,
            "float32",
            "norms of gradients are not exact in it",
        ),
    ):
        require(
            value == default,
            f"training: dp does not go with {name} = {value!r}: {reason}; leave {name} out",
        )
    reason = f"dp does not go with task {task.name or type(task).__name__!r}, whose loss is no mean over samples"
    require(
        task.separable,
        f"training: {reason}; take classification, binary, multilabel or regression",
    )


def _refused(what: str) -> str:
    return f"training: dp: {what} have no mechanism here that protects single samples; take a method without"


def _refusing(what: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ConfigError(_refused(what))

    return refuse


class DPLearner(Learner):
    """A participant's view in one round, of which all that leaves its site is differentially private.

    What the methods of `Learner` return may leave. Those that have no mechanism are refused. Where the data says whose
    samples they are, a patient counts as one: its clipped gradient is of the mean over its samples, as are its losses.

    Attributes:
        samples: the noisy number of training patients.

    Args:
        account: enters what is spent, before the noise is drawn.
        randomness: of noise and Poisson samples by purpose; nobody else may be able to draw it at a real site.
    """

    def __init__(
        self,
        *args: Any,
        account: RoundAccount,
        randomness: Callable[[str], Randomness],
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self._account, self._randomness, self._plan = (
            account,
            randomness,
            account.account.plan,
        )
        self.samples = account.account.samples[TRAIN]
        self._choices: dict[tuple[int, ...], tuple[Sequence[Params], int]] = {}

    @property
    def _dp(self) -> DPSettings:
        return self._account.account.dp

    def train(
        self,
        start: Params,
        terms: Sequence[Term] = (),
        purpose: str = "train",
        epochs: int | None = None,
        frozen: str | Sequence[str] = (),
        inner_lr: float | None = None,
    ) -> Params:
        """One round of DP-SGD (Abadi et al. 2016, Alg. 1) of as many steps as were planned.

        The optimizer sees noisy gradients alone, and so do its momentum and the participant's private layers.
        """
        require(
            inner_lr is None and epochs is None,
            _refused("fine-tuning and the steps of MAML"),
        )
        require(
            not any(term.compares for term in terms),
            _refused("penalties that compare features"),
        )
        self._account.enter(self._plan.training, "training")
        return super().train(start, terms, purpose, frozen=frozen)

    def _batches(self, rng: np.random.Generator, steps: int) -> list[Tensor]:
        """Indices of Poisson samples: each patient is in each of them with the planned rate, whatever the others do.

        A patient with more samples than a batch takes part with so many of them, drawn anew each time.
        """
        random = self._randomness("poisson")
        training = self._plan.training
        batches = []
        for step in range(training.steps):
            drawn = random.random(self._train.patients) < training.sample_rate
            rows = self._choose_rows(drawn, step)
            batches.append(torch.from_numpy(rows).to(self._runtime.device))
        return batches

    def _choose_rows(self, drawn: np.ndarray, step: int) -> np.ndarray:
        """The rows of the patients that take part in a step.

        Args:
            drawn: ``(patients,)`` whether each patient takes part.
            step: the number of the step.

        Returns:
            Places of samples in the training split. Each patient has at most a batch of them.
        """
        patient = self._train.patient
        if patient is None:
            return np.flatnonzero(drawn)
        rows = np.flatnonzero(drawn[patient])
        numbers = np.array(self._draws.draw("rows", step, rows), np.int64)
        return at_most(
            self._runtime.settings.batch_size,
            rows[np.argsort(numbers, kind="stable")],
            patient,
        )

    def _drawn(self, indices: list[Tensor], purpose: str) -> Batches:
        """The batches of these samples. Each sample is transformed with draws of its own."""
        augment = self._runtime.augment
        if augment is None:
            return Batches(self._train, indices)
        seeds = [
            self._draws.draw(f"{purpose} augment", step, rows.tolist())
            for step, rows in enumerate(indices)
        ]
        return Batches(self._train, indices, augment, seeds)

    @cached_property
    def _draws(self) -> SampleDraws:
        """The draws of single samples in this round."""
        secret = self._randomness("draws of single samples").random(4).tobytes()
        return SampleDraws(secret, self._train)

    def _backward(
        self,
        data: Batches,
        number: int,
        terms: Sequence[Term],
        fixed: list[Tensor | None],
        seen: Sequence[Tensor],
    ) -> None:
        """Puts the noisy mean of clipped gradients into the resident model, then adds the gradient of the terms."""
        runtime = self._runtime
        training = self._plan.training
        if runtime.should_stop():
            raise AbortedError(f"aborted while {self.participant} was training")
        total = self._sum_clipped_gradients(data, number, fixed[0])
        deviation = training.noise_multiplier * self._dp.max_grad_norm
        noisy = add_noise(total.cpu().numpy(), deviation, self._noise("training"))
        # The expected size of a batch: the size that was drawn depends on each sample.
        mean = noisy / (training.sample_rate * self.samples)
        runtime.resident.gradient.copy_(torch.from_numpy(mean.astype(np.float32)))
        if terms:
            sum(term(Step(runtime.shared_parameters)) for term in terms).backward()  # type: ignore[union-attr]

    def _sum_clipped_gradients(
        self, data: Batches, number: int, beside: Tensor | None
    ) -> Tensor:
        """The sum of the clipped gradients of a batch's patients.

        Args:
            data: the batches of the round.
            number: which of them.
            beside: ``(n, outputs)`` of a frozen model, which are added to the trained one's; None for none.

        Returns:
            ``(layout.parameter_size,)`` float64.
        """
        runtime = self._runtime
        batch = data[number]
        total = torch.zeros(
            len(runtime.resident.gradient), dtype=torch.float64, device=runtime.device
        )
        for rows in self._split_batch(batch):

            def loss_of(rows: Tensor = rows) -> Tensor:
                outputs = runtime.resident.module(batch.x[rows]).float()
                if beside is not None:
                    outputs = outputs + beside[rows]
                return runtime.task.loss(
                    outputs, batch.y[rows], None, runtime.settings.label_smoothing
                )

            patient = None if batch.patient is None else batch.patient[rows.numpy()]
            # A network may write sums of samples into its buffers.
            with (
                runtime.resident.keeping_statistics(),
                self._own_draws(data.places(number)[rows], number),
            ):
                runtime.sample_gradients.add(
                    loss_of, self._dp.max_grad_norm, total, patient
                )
        return total

    def _split_batch(self, batch: Split) -> Iterator[Tensor]:
        """The rows of a batch in the pieces whose gradients are computed at once.

        A network with dropout draws one tensor for all samples of a piece, so that a piece is one patient's.
        """
        size = 1 if self._network_draws else self._runtime.settings.batch_size
        return pieces(batch, size)

    @cached_property
    def _network_draws(self) -> bool:
        """Whether the network draws random numbers in training, as dropout does."""
        resident = self._runtime.resident
        with torch.no_grad(), torch.random.fork_rng(), resident.keeping_statistics():
            before = _read_generators(self._runtime.device)
            resident.module(self._train.x[:1])
            return _read_generators(self._runtime.device) != before

    @contextmanager
    def _own_draws(self, rows: Tensor, step: int) -> Iterator[None]:
        """Inside it, a network that draws does so by the numbers of these samples, which are one patient's."""
        if not self._network_draws:
            before = _read_generators(self._runtime.device)
            yield
            changed = _read_generators(self._runtime.device) != before
            reason = (
                "dp: the network draws random numbers in some batches and not in others"
            )
            require(
                not changed,
                f"training: {reason}; take a network that always draws, or never",
            )
            return
        (seed,) = self._draws.draw("network", step, rows[:1].tolist())
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield

    def choice(
        self, models: Sequence[Params], samples: int | None = None, race: bool = False
    ) -> int:
        """The index of a model with a small loss, by the exponential mechanism: that of the least noisy sum of losses.

        It is of all samples, whatever ``samples`` and ``race`` say.

        A sample moves all sums of clipped losses the same way, each by at most ``max_loss``. So Gumbel noise of scale
        ``max_loss`` s / 2 makes the choice 2/s-bounded range, and its divergence at most that of a Gaussian mechanism
        with noise multiplier s (Dong, Durfee and Rogers 2020, Lemma 3.2).
        """
        key = (id(self._beside), *map(id, models))
        if key not in self._choices:
            spend = self._account.enter(self._plan.answer, "choice")
            uniform = self._noise("choice").random(len(models))
            gumbel = -np.log(-np.log(np.clip(uniform, 1e-300, 1 - 1e-16)))
            scale = self._dp.max_loss * spend.noise_multiplier / 2
            # The models are held with it: a new one could have the id of one that is gone.
            self._choices[key] = (
                models,
                int((self._loss_sums(models) - scale * gumbel).argmin()),
            )
        return self._choices[key][1]

    def losses(
        self, models: Sequence[Params], samples: int | None = None
    ) -> np.ndarray:
        """Mean losses of all models, ``(K,)`` float64: noisy sums of clipped ones over the noisy count."""
        spend = self._account.enter(self._plan.answer, "losses")
        sensitivity = self._dp.max_loss * len(models) ** 0.5
        noisy = add_noise(
            self._loss_sums(models),
            spend.noise_multiplier * sensitivity,
            self._noise("losses"),
        )
        return np.clip(noisy / self.samples, 0, self._dp.max_loss)

    @torch.no_grad()
    def _loss_sums(self, models: Sequence[Params]) -> np.ndarray:
        """Sums over the training patients of mean clipped losses, ``(K,)`` float64."""
        outputs, most = self._predict(models, self._train.x), self._dp.max_loss
        if self._beside is not None:
            outputs = outputs + self._predict([self._beside], self._train.x)
        losses = self._runtime.task.sample_losses(outputs, self._train.y).cpu().numpy()
        return np.asarray(
            self._train.by_patient(
                np.clip(np.nan_to_num(losses, nan=most), 0, most)
            ).sum(axis=1)
        )

    def measured(self, outputs: Tensor) -> dict[str, float]:
        """Accuracy, where the task has one, and loss on the test split: noisy sums over the noisy count."""
        task, test, most = self._runtime.task, self._test, self._dp.max_loss
        names = [name for name in MEASURES if name in task.always]
        spend, samples = (
            self._account.enter(self._plan.metrics, "metrics"),
            self._account.account.samples[TEST],
        )
        single = [(outputs[i : i + 1], test.y[i : i + 1]) for i in range(len(test))]
        sums = []
        for name in names:
            values = np.nan_to_num(
                [task.measure(name, *sample) or 0.0 for sample in single], nan=most
            )
            sums.append(
                test.by_patient(
                    np.clip(values / (most if name == "loss" else 1.0), 0, 1)
                ).sum()
            )
        deviation = spend.noise_multiplier * len(names) ** 0.5
        shares = np.clip(
            add_noise(np.array(sums), deviation, self._noise("metrics")) / samples, 0, 1
        ).tolist()
        return {
            name: share * (most if name == "loss" else 1.0)
            for name, share in zip(names, shares)
        }

    def _noise(self, what: str) -> Randomness:
        return self._randomness(f"noise of {what}")

    def adapt_model(self, start: Params, steps: int, lr: float) -> Params:
        require(not steps, _refused("steps of adaptation"))
        return start

    labels: Any = property(_refusing("the labels"))
    gradient = _refusing("the gradient of all samples")
    evaluate = _refusing("measures of further models")

    def resampled(self, *args: Any, **kwargs: Any) -> None:
        """None, as are histograms of scores and counts of classes: these have no mechanism."""

    score_counts = class_counts = resampled


def _read_generators(device: str) -> list[bytes]:
    """The states of torch's generators that a network on this device draws from."""
    states = [torch.get_rng_state()]
    if torch.device(device).type == "cuda":
        states.append(torch.cuda.get_rng_state(torch.device(device)))
    return [state.numpy().tobytes() for state in states]


def at_most(count: int, rows: np.ndarray, patient: np.ndarray) -> np.ndarray:
    """The rows in the order of their patients, of each the first ``count``.

    >>> at_most(2, np.array([3, 0, 2, 1]), np.array([0, 1, 0, 0]))
    array([3, 2, 0])
    """
    rows = rows[np.argsort(patient[rows], kind="stable")]
    number = patient[rows]
    place = np.arange(len(rows)) - np.searchsorted(number, number)
    return rows[place < count]


def pieces(batch: Split, size: int) -> Iterator[Tensor]:
    """The rows of a batch in pieces of about ``size``, none of which ends within a patient's rows."""
    number = np.arange(len(batch)) if batch.patient is None else batch.patient
    ends = [*np.flatnonzero(np.diff(number)) + 1, len(batch)] if len(batch) else []
    begin, last = 0, 0
    for end in ends:
        if end - begin > size and last > begin:
            yield torch.arange(begin, last)
            begin = last
        last = end
    if last > begin:
        yield torch.arange(begin, last)
