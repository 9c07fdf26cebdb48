# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""First-order MAML against numbers computed by hand, against finite differences, and against plain SGD."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfl_flare.core.params import Params
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import Pull
from cfl_flare.training.runtime import Runtime, Split
from cfl_flare.training.settings import TrainSettings
from tests.training.test_learner import gradient as slope
from tests.training.test_learner import images, make_cnn, scalar, scalar_learner, sgd


def maml(w: float, steps: int, lr: float, inner: float, momentum: float = 0.0) -> float:
    """Full-batch first-order MAML in plain numbers; the momentum is in the outer step alone."""
    kept = 0.0
    for _ in range(steps):
        kept = momentum * kept + slope(w - inner * slope(w))
        w -= lr * kept
    return w


def test_one_step_by_hand() -> None:
    # At 0 the slope is 1/4 (see the plain step), so w_hat = -0.1; the step then goes by the slope there.
    terms = [-1 / (1 + math.exp(-0.1)), 2 / (1 + math.exp(0.2)), 0.5 / (1 + math.exp(0.05))]
    learner = scalar_learner({}, lr=0.2, momentum=0.9, local_steps=1)
    trained = learner.train(scalar(learner, 0), inner_lr=0.4)
    assert trained.vector == pytest.approx([-0.2 * sum(terms) / 3], abs=1e-7)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_tau_steps_and_momentum_in_the_outer_one_alone(steps: int, momentum: float) -> None:
    learner = scalar_learner({}, lr=0.3, momentum=momentum, local_steps=steps)
    trained = learner.train(scalar(learner, 0.7), inner_lr=0.5)
    assert trained.vector == pytest.approx([maml(0.7, steps, 0.3, 0.5, momentum)], abs=1e-6)


def test_the_run_s_learning_rate_falls_and_the_inner_one_does_not() -> None:
    learner = scalar_learner({}, round_number=3, lr=0.4, momentum=0, local_steps=2, lr_decay=0.5)
    assert learner.lr == pytest.approx(0.05)
    assert learner.train(scalar(learner, 0.7), inner_lr=0.5).vector == pytest.approx([maml(0.7, 2, 0.05, 0.5)])


def test_momentum_is_kept_as_in_plain_training() -> None:
    memory: dict[str, Params] = {}
    learner = scalar_learner(memory, lr=0.2, momentum=0.9, local_steps=1, keep_momentum=True)
    learner.train(scalar(learner, 0), inner_lr=0.4)
    assert memory["momentum"].vector == pytest.approx([slope(-0.1)], abs=1e-6)


def test_penalties_are_a_part_of_both_losses() -> None:
    learner = scalar_learner({}, lr=0.2, momentum=0, local_steps=1)
    pull = Pull(3.0, np.array([1.0], np.float32), [slice(0, 1)])
    trained = learner.train(scalar(learner, 0), [pull], inner_lr=0.1)
    ahead = 0 - 0.1 * (slope(0) + 3 * (0 - 1))
    assert trained.vector == pytest.approx([-0.2 * (slope(ahead) + 3 * (ahead - 1))], abs=1e-6)


def test_without_an_inner_step_it_is_sgd_bit_for_bit() -> None:
    data = images(70)
    models = []
    for inner in (None, 0.0):
        work = Runtime(make_cnn, TrainSettings(lr=0.05, batch_size=16, local_steps=6), seed=4)
        learner = Learner(work, "p", data, data, {}, 2)
        models.append(learner.train(learner.initial(0), inner_lr=inner))
    np.testing.assert_array_equal(models[0].vector, models[1].vector)  # running statistics, too
    np.testing.assert_array_equal(models[0].counters, models[1].counters)
    assert models[1].counters.tolist() == [6] * len(models[1].counters)  # only D' were counted


class Smooth(nn.Module):
    """A small network without kinks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def loss(vector: np.ndarray, learner: Learner, x: Tensor, y: Tensor) -> float:
    """Cross-entropy at a model, in float64."""
    layout = learner.initial(0).layout
    module = Smooth().double()
    for entry, parameter in zip(layout.entries, module.parameters()):
        parameter.data = torch.from_numpy(vector[entry.slice].reshape(entry.shape).copy())
    return float(F.cross_entropy(module(x.double()), y).detach())


def slopes(vector: np.ndarray, learner: Learner, batch: tuple[Tensor, Tensor]) -> np.ndarray:
    """The gradient by central differences."""
    steps = 1e-5 * np.eye(len(vector))
    return np.array([(loss(vector + s, learner, *batch) - loss(vector - s, learner, *batch)) / 2e-5 for s in steps])


def test_a_step_is_the_first_order_formula_on_two_batches_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    data = Split.of(rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 3, 40))
    work = Runtime(Smooth, TrainSettings(lr=0.5, momentum=0, batch_size=10, local_steps=1), seed=0)
    learner = Learner(work, "p", data, data, {})
    drawn: list[Tensor] = []
    draw = Learner._batches

    def noting(self: Learner, *args: Any) -> list[Tensor]:
        drawn.extend(draw(self, *args))
        return drawn[-1:]

    monkeypatch.setattr(Learner, "_batches", noting)
    start = learner.initial(0)
    trained = learner.train(start, inner_lr=0.8)
    outer, inner = drawn  # D' are drawn as plain SGD draws, D after them
    assert set(outer.tolist()) != set(inner.tolist())
    w = start.vector.astype(np.float64)
    ahead = w - 0.8 * slopes(w, learner, (data.x[inner], data.y[inner]))
    expected = w - 0.5 * slopes(ahead, learner, (data.x[outer], data.y[outer]))
    np.testing.assert_allclose(trained.vector, expected, atol=2e-6)


def test_adapted_is_plain_gradient_descent_and_leaves_no_trace() -> None:
    memory: dict[str, Params] = {}
    learner = scalar_learner(memory, lr=0.2, momentum=0.9, weight_decay=0.5, local_steps=4, keep_momentum=True)
    start = scalar(learner, 0)
    assert learner.adapted(start, 3, 0.7).vector == pytest.approx([sgd(0, 3, 0.7)[0]], abs=1e-6)
    assert learner.adapted(start, 0, 0.7) is start
    assert memory == {}
    assert learner.trained is None
    assert start.vector == [0]


def test_adapting_moves_batchnorm_s_statistics_once_a_step() -> None:
    work = Runtime(make_cnn, TrainSettings(batch_size=8), seed=0)
    learner = Learner(work, "p", images(20), images(20), {})
    start = learner.initial(0)
    adapted = learner.adapted(start, 2, 0.1)
    assert (adapted.counters == 2).all()
    buffers = [e for e in start.layout.entries if e.kind == "buffer"]
    assert all(not np.array_equal(adapted.vector[e.slice], start.vector[e.slice]) for e in buffers)


def test_a_sum_s_own_part_is_adapted_beside_the_frozen_one() -> None:
    learner = scalar_learner({}, lr=0.2)
    beside = learner.beside(scalar(learner, 0.3))
    assert beside.adapted(scalar(learner, 0), 1, 0.5).vector == pytest.approx([-0.5 * slope(0.3)], abs=1e-6)
