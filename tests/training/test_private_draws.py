# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Attacks on the draws of private training: one patient's presence must move no other patient's gradient."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cfl_flare.training.dp_learner import DPLearner
from cfl_flare.training.privacy import (
    GRID,
    TEST,
    TRAIN,
    Account,
    Books,
    DPSettings,
    NoisePlan,
    Queries,
    RoundAccount,
    Spend,
    SystemRandomness,
    add_noise,
)
from cfl_flare.training.private_draws import SampleDraws
from cfl_flare.training.runtime import Batches, Runtime, Split
from cfl_flare.training.settings import TrainSettings

CLIP = 0.01
RNG = np.random.default_rng(7)
IMAGES = RNG.uniform(-1, 1, (12, 1, 6, 6)).astype(np.float32)
LABELS = np.arange(12) % 2


class TwofoldDropout(nn.Module):
    """Dropout between two layers, as a module and as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(36, 8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.body(x.flatten(1))))
        return self.head(nn.functional.dropout(hidden, 0.3, self.training))


class OneLayer(nn.Module):
    """One layer, which draws nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(36, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1))


class Sometimes(OneLayer):
    """A network that draws only for large batches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(x)
        return outputs + torch.randn(1) if len(x) > 1 else outputs


class ConstantGenerator:
    """A generator that says the same numbers again: the attacker knows all other patients' draws."""

    def random(self, size: int) -> np.ndarray:
        return np.full(size, 0.25)

    def standard_normal(self, size: int) -> np.ndarray:
        return np.zeros(size)


def make_private_learner(make: Callable[[], nn.Module], split: Split, batch_size: int = 4, **more: object) -> DPLearner:
    """A participant in its only round, of one step in which everybody takes part."""
    spend = Spend("training", TRAIN, 1.0, 1.0, 1)
    run = TrainSettings(lr=1.0, momentum=0.0, batch_size=batch_size, local_steps=1, dp={"epsilon": 1.0}, **more)
    dp = DPSettings(epsilon=1.0, max_grad_norm=CLIP)
    account = Account("p", dp, NoisePlan(spend, spend, spend, 1), {TRAIN: 10, TEST: 10}, Queries(), Books())
    runtime = Runtime(make, run, 0)
    return DPLearner(
        runtime, "p", split, split, {}, account=RoundAccount(account, 0), randomness=lambda purpose: ConstantGenerator()
    )


def clipped_sum(
    make: Callable[[], nn.Module], keep: list[int], patient: np.ndarray | None = None, **more: object
) -> np.ndarray:
    """The sum of the clipped gradients of these samples, in units of the clipping norm."""
    split = Split.of(IMAGES[keep], LABELS[keep], patient=None if patient is None else patient[keep])
    learner = make_private_learner(make, split, **more)
    runtime = learner._runtime
    runtime.resident.load(runtime.untrained(0))
    runtime.resident.module.train()
    batches = learner._batches(np.random.default_rng(0), 1)
    with runtime.drawing_from(np.random.default_rng(1)):
        total = learner._sum_clipped_gradients(learner._drawn(batches, "train"), 0, None)
    return total.numpy() / CLIP


def moved_by(without: int, make: Callable[[], nn.Module], patient: np.ndarray | None = None, **more: object) -> float:
    """How far the sum moves when one patient, here numbered as its samples, leaves."""
    numbers = np.arange(len(IMAGES)) if patient is None else patient
    everybody = list(range(len(IMAGES)))
    others = [row for row in everybody if numbers[row] != without]
    difference = clipped_sum(make, everybody, patient, **more) - clipped_sum(make, others, patient, **more)
    return float(np.linalg.norm(difference))


@pytest.mark.parametrize("without", [0, 5, 11])
def test_dropout_of_others_stays(without: int) -> None:
    assert moved_by(without, TwofoldDropout) <= 1 + 1e-5


@pytest.mark.parametrize("without", [0, 5, 11])
def test_augmentation_of_others_stays(without: int) -> None:
    transforms = ["RandomHorizontalFlip", "RandomVerticalFlip", "RandomRotation:degrees=180"]
    assert moved_by(without, OneLayer, augment=transforms) <= 1 + 1e-5


@pytest.mark.parametrize("make", [OneLayer, TwofoldDropout])
@pytest.mark.parametrize("without", [0, 1, 2])
def test_rows_of_others_stay(without: int, make: Callable[[], nn.Module]) -> None:
    """Each patient has four samples, of which a step takes two."""
    patient = np.repeat([0, 1, 2], 4)
    assert moved_by(without, make, patient, batch_size=2) <= 1 + 1e-5


@pytest.mark.parametrize("make", [OneLayer, TwofoldDropout])
def test_each_sample_counts(make: Callable[[], nn.Module]) -> None:
    """The bound is not reached by doing nothing."""
    assert moved_by(3, make) > 0.5


def test_a_network_that_draws_sometimes_is_refused() -> None:
    with pytest.raises(Exception, match="draws random numbers in some batches and not in others"):
        clipped_sum(Sometimes, [0, 1, 2, 3])


def test_an_empty_batch_with_augment_is_none() -> None:
    learner = make_private_learner(OneLayer, Split.of(IMAGES, LABELS), augment=["RandomHorizontalFlip"])
    nobody = [torch.zeros(0, dtype=torch.int64)]
    batches = learner._drawn(nobody, "train")
    assert len(batches[0]) == 0
    augment = learner._runtime.augment
    assert len(Batches(learner._train, nobody, augment, [3])[0]) == 0


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=9), st.integers(0, 8))
def test_a_draw_depends_on_its_sample(kinds: list[int], leaves: int) -> None:
    """Equal samples are told apart by their number, so that the last of them may leave without moving another."""
    last = max(row for row, kind in enumerate(kinds) if kind == kinds[leaves % len(kinds)])
    stay = [row for row in range(len(kinds)) if row != last]
    x = np.array(kinds, np.float32)[:, None]
    whole = SampleDraws(b"secret", Split.of(x, np.zeros(len(x))))
    fewer = SampleDraws(b"secret", Split.of(x[stay], np.zeros(len(stay))))
    assert fewer.draw("rows", 2, range(len(stay))) == whole.draw("rows", 2, stay)
    everyone = whole.draw("rows", 2, range(len(x)))
    assert len({*everyone}) == len(everyone)
    assert everyone != whole.draw("rows", 3, range(len(x))) != whole.draw("augment", 3, range(len(x)))
    assert everyone != SampleDraws(b"another", Split.of(x, np.zeros(len(x)))).draw("rows", 2, range(len(x)))


# ---- The last bits of noise ----

SIZE = 3910


def impossible_in_float32(released: np.ndarray, gradient: np.ndarray, deviation: float) -> int:
    """How many coordinates no float32 noise explains, if noise is scaled and added in float32."""
    noise = (released - gradient) / np.float32(deviation)
    found = np.zeros(len(released), bool)
    candidate = np.nextafter(np.nextafter(noise, np.float32(-np.inf)), np.float32(-np.inf))
    for _ in range(5):
        found |= (candidate * np.float32(deviation) + gradient) == released
        candidate = np.nextafter(candidate, np.float32(np.inf))
    return int((~found).sum())


def impossible_on_grid(released: np.ndarray, deviation: float) -> int:
    """How many coordinates are no multiple of the grid; which gradient was there does not matter."""
    grid = 2.0 ** np.floor(np.log2(deviation * GRID))
    return int((released / grid != np.rint(released / grid)).sum())


def test_float32_noise_tells_the_gradient() -> None:
    """The attack works on noise as it was added before: a wrong gradient is told from the right one."""
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=SIZE).astype(np.float32) * np.float32(0.01)
    wrong = (gradient + rng.normal(size=SIZE) * 0.01).astype(np.float32)
    noise = rng.standard_normal(SIZE).astype(np.float32)
    released = noise * np.float32(1.7) + gradient
    assert impossible_in_float32(released, gradient, 1.7) == 0
    assert impossible_in_float32(released, wrong, 1.7) > 50


@pytest.mark.parametrize("deviation", [0.01, 1.0, 1.7, 300.0])
def test_noise_on_a_grid_tells_nothing(deviation: float) -> None:
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=SIZE) * 0.01
    released = add_noise(gradient, deviation, SystemRandomness())
    assert impossible_on_grid(released, deviation) == 0
    assert np.std(released - gradient) == pytest.approx(deviation, rel=0.05)  # four deviations of this estimate


def test_what_leaves_training_is_on_the_grid() -> None:
    """The optimizer sees multiples of the grid, divided by the expected size of a batch."""
    learner = make_private_learner(OneLayer, Split.of(IMAGES, LABELS))
    generator = np.random.default_rng(3)
    learner._randomness = lambda purpose: generator if "noise" in purpose else ConstantGenerator()
    learner.train(learner.initial(0))
    noisy = learner._runtime.resident.gradient.double().numpy() * 10  # 10 samples are said, at the rate 1
    grid = 2.0 ** np.floor(np.log2(CLIP * GRID))
    steps = noisy / grid
    assert np.abs(steps - np.rint(steps)).max() < 0.25  # float32 has 24 bits, and the grid 20 below the deviation
    assert np.abs(steps).max() > 1e5
