# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of local training; optimizers and first-order MAML: against torch's, by hand, by finite differences."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cfl_flare.core.config import from_dict
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Params
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import Pull
from cfl_flare.training.resident import Adam, ResidentModel, build_optimizer
from cfl_flare.training.runtime import Runtime, Split
from cfl_flare.training.settings import TrainSettings, batch_bounds
from tests.helpers.tiny import Coin
from tests.training.test_learner import (
    POINTS,
    DroppingMLP,
    Scalar,
    draw_image_split,
    gradient,
    make_cnn,
    rows,
    scalar,
    scalar_learner,
    sgd,
)
from tests.training.test_learner import gradient as slope

GRADIENTS = [[3.0, -0.02, 0.5, 0.0], [-1.0, -0.03, 0.5, 2.0], [0.4, 5.0, 0.5, 0.0], [0.1, -0.2, 0.5, 1e-3]] * 2


def resident() -> ResidentModel:
    torch.manual_seed(0)
    return ResidentModel(nn.Sequential(nn.Linear(1, 2), nn.Flatten()))


def step_model(model: ResidentModel, settings: TrainSettings, lrs: list[float]) -> list[float]:
    """Where the hand-set gradients lead."""
    optimizer = build_optimizer(settings, model)
    optimizer.recall({})
    for lr, values in zip(lrs, GRADIENTS):
        model.gradient.copy_(torch.tensor(values))
        optimizer.step(lr)
    return model.parameters.tolist()


@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.7), (0.0, 0.9)])
@pytest.mark.parametrize(("name", "theirs"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_is_torch_s(name: str, theirs: Any, betas: tuple[float, float], decay: float) -> None:
    lrs = [0.1, 0.1, 0.05, 0.2, 0.1, 0.01, 0.3, 0.1]
    model = resident()
    weights = nn.Parameter(model.parameters.detach().clone())
    reference = theirs([weights], lr=0.1, betas=betas, eps=1e-6, weight_decay=decay)
    for lr, values in zip(lrs, GRADIENTS):
        reference.param_groups[0]["lr"] = lr
        weights.grad = torch.tensor(values)
        reference.step()
    own = {"beta1": betas[0], "beta2": betas[1], "adam_eps": 1e-6, "weight_decay": decay}
    assert step_model(model, TrainSettings(optimizer=name, **own), lrs) == pytest.approx(weights.tolist(), abs=1e-6)


def test_the_first_step_of_adam_has_the_learning_rate_s_length() -> None:
    # At w = 0 the gradient is 1/4; m / (1 - beta1) = 1/4 and sqrt(v / (1 - beta2)) = 1/4.
    learner = scalar_learner({}, lr=0.2, optimizer="adam", local_steps=1)
    assert learner.train(scalar(learner, 0)).vector == pytest.approx([-0.2], abs=1e-6)


def test_decay_apart_from_the_gradient_and_in_it() -> None:
    # Apart: 2 (1 - 0.1 * 0.5) - 0.1. In it: the sign of gradient + decay is all that the first step sees.
    assert gradient(2.0) > 0
    for name, expected in (("adamw", 2 * 0.95 - 0.1), ("adam", 2 - 0.1)):
        learner = scalar_learner({}, lr=0.1, optimizer=name, weight_decay=0.5, local_steps=1)
        assert learner.train(scalar(learner, 2.0)).vector == pytest.approx([expected], abs=1e-6), name


def adam(w: float, steps: int, lr: float, m: float = 0.0, v: float = 0.0, done: int = 0) -> tuple[float, float, float]:
    """Full-batch Adam in plain numbers."""
    for t in range(done + 1, done + steps + 1):
        g = gradient(w)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w -= lr * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w, m, v


def test_adam_starts_afresh_in_each_round() -> None:
    memory: dict[str, Params] = {}
    work = Runtime(Scalar, TrainSettings(lr=0.1, optimizer="adam", local_steps=3), seed=0)
    for number in range(3):
        learner = Learner(work, "p", POINTS, POINTS, memory, number)
        assert learner.train(scalar(learner, 1.0)).vector == pytest.approx([adam(1.0, 3, 0.1)[0]], abs=1e-6)
    assert memory == {}


def test_adam_that_is_kept_goes_on_where_it_ended_bias_correction_included() -> None:
    work = Runtime(Scalar, TrainSettings(lr=0.1, optimizer="adam", local_steps=3, keep_momentum=True), seed=0)
    memories: dict[str, dict[str, Params]] = {"p": {}, "q": {}}
    kept = {"p": (0.0, 0.0), "q": (0.0, 0.0)}
    for number, start in enumerate((1.0, -2.0, 0.5)):
        for name in memories:  # the two take turns on one optimizer
            start += name == "q"
            learner = Learner(work, name, POINTS, POINTS, memories[name], number)
            expected, *kept[name] = adam(start, 3, 0.1, *kept[name], 3 * number)
            assert learner.train(scalar(learner, start)).vector == pytest.approx([expected], abs=1e-5)
            assert memories[name]["adam_steps"].vector.tolist() == [3 * (number + 1)]


def test_finetuning_leaves_kept_adam_alone() -> None:
    memory: dict[str, Params] = {}
    learner = scalar_learner(memory, lr=0.1, optimizer="adam", local_steps=3, keep_momentum=True)
    learner.train(scalar(learner, 1.0))
    kept = {name: params.vector.tolist() for name, params in memory.items()}
    learner.train(scalar(learner, -3.0), purpose="finetune")
    assert {name: params.vector.tolist() for name, params in memory.items()} == kept
    assert kept.keys() == {"adam_mean", "adam_square", "adam_steps"}


def test_another_optimizer_s_memory_is_no_state() -> None:
    memory: dict[str, Params] = {}
    first = scalar_learner(memory, lr=0.1, momentum=0.9, local_steps=3, keep_momentum=True)
    first.train(scalar(first, 1.0))
    learner = scalar_learner(memory, lr=0.1, optimizer="adam", local_steps=3, keep_momentum=True)
    assert learner.train(scalar(learner, 1.0)).vector == pytest.approx([adam(1.0, 3, 0.1)[0]], abs=1e-6)


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("part", ["backbone", "head", ["layers.3.bias", "layers.1.weight"]])
def test_a_part_that_was_held_starts_afresh_when_it_trains_again(part: Any, name: str) -> None:
    """It stays as it is; then its first step has the learning rate's length, and not that of a 9th step from zero."""
    settings = TrainSettings(lr=0.1, optimizer=name, batch_size=19, local_steps=4, weight_decay=0.1, keep_momentum=True)
    memory: dict[str, Params] = {}
    learner = Learner(Runtime(DroppingMLP, settings, 3), "a", rows(19), rows(5), memory)
    start = learner.train(learner.initial(0))
    held = learner.train(start, [Pull(0.5, start.part("all") + 1, start.layout.select("all"))], frozen=part)
    np.testing.assert_array_equal(held.part(part), start.part(part))
    assert not any(memory[what].part(part).any() for what in memory)
    assert sorted(set(memory["adam_steps"].part("all").tolist())) == [0, 8]
    one = TrainSettings(lr=0.1, optimizer=name, batch_size=19, local_steps=1, keep_momentum=True)
    again = Learner(Runtime(DroppingMLP, one, 3), "a", rows(19), rows(5), memory, 1)
    steps = np.abs(again.train(held).part(part) - held.part(part))
    assert steps.max() == pytest.approx(0.1, abs=1e-4)  # some gradients are as small as eps
    assert sorted(set(memory["adam_steps"].part("all").tolist())) == [1, 9]


def test_a_long_gradient_is_scaled_down_and_a_short_one_is_not() -> None:
    for clip, expected in ((0.1, -0.1), (0.25, -0.25), (9.0, -0.25)):  # the gradient at 0 is 1/4
        learner = scalar_learner({}, lr=1.0, momentum=0.0, clip_grad=clip, local_steps=1)
        assert learner.train(scalar(learner, 0)).vector == pytest.approx([expected], abs=1e-6)


def test_the_norm_is_that_of_all_parameters_and_decay_is_not_clipped() -> None:
    model, settings = resident(), TrainSettings(momentum=0.0, clip_grad=1.0, weight_decay=0.5)
    before = model.parameters.tolist()
    model.gradient.copy_(torch.tensor([3.0, 0.0, 4.0, 0.0]))
    build_optimizer(settings, model).step(0.1)
    expected = [w - 0.1 * (g + 0.5 * w) for w, g in zip(before, (0.6, 0.0, 0.8, 0.0))]
    assert model.parameters.tolist() == pytest.approx(expected, abs=1e-6)


def test_what_is_held_does_not_count_in_the_norm() -> None:
    model = resident()
    before = model.parameters.tolist()
    model.gradient.copy_(torch.tensor([30.0, 40.0, 3.0, 4.0]))
    build_optimizer(TrainSettings(momentum=0.0, clip_grad=1.0), model).step(0.1, [slice(0, 2)])
    moves = [w - b for w, b in zip(model.parameters.tolist(), before)]
    assert moves == pytest.approx([0.0, 0.0, -0.06, -0.08], abs=1e-6)


def test_the_clipped_gradient_is_what_momentum_and_adam_see() -> None:
    learner = scalar_learner({}, lr=1.0, momentum=0.5, clip_grad=0.1, local_steps=2)
    # The gradient at -0.1 is longer than 0.1, too: the second step is 0.5 * 0.1 + 0.1.
    assert gradient(-0.1) > 0.1
    assert learner.train(scalar(learner, 0)).vector == pytest.approx([-0.25], abs=1e-6)
    memory: dict[str, Params] = {}
    learner = scalar_learner(memory, lr=0.1, optimizer="adam", clip_grad=0.1, local_steps=1, keep_momentum=True)
    learner.train(scalar(learner, 0))
    assert memory["adam_mean"].vector == pytest.approx([0.01], abs=1e-8)


def test_maml_s_outer_step_is_the_optimizer_s() -> None:
    learner = scalar_learner({}, lr=0.2, optimizer="adam", local_steps=1)
    assert learner.train(scalar(learner, 0), inner_lr=0.4).vector == pytest.approx([-0.2], abs=1e-6)


def test_neighbours_with_the_same_count_are_one_slice() -> None:
    model = resident()
    optimizer = build_optimizer(TrainSettings(optimizer="adam"), model)
    assert isinstance(optimizer, Adam)
    memory: dict[str, Params] = {}
    optimizer.step(0.1)
    optimizer.keep(memory, [slice(1, 2)])
    optimizer.recall(memory)
    assert optimizer._counts == [(slice(0, 1), 1), (slice(1, 2), 0), (slice(2, 4), 1)]


# ---- First-order MAML ----


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
    data = draw_image_split(70)
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
    assert learner.adapt_model(start, 3, 0.7).vector == pytest.approx([sgd(0, 3, 0.7)[0]], abs=1e-6)
    assert learner.adapt_model(start, 0, 0.7) is start
    assert memory == {}
    assert learner.trained is None
    assert start.vector == [0]


def test_adapting_moves_batchnorm_s_statistics_once_a_step() -> None:
    work = Runtime(make_cnn, TrainSettings(batch_size=8), seed=0)
    learner = Learner(work, "p", draw_image_split(20), draw_image_split(20), {})
    start = learner.initial(0)
    adapted = learner.adapt_model(start, 2, 0.1)
    assert (adapted.counters == 2).all()
    buffers = [e for e in start.layout.entries if e.kind == "buffer"]
    assert all(not np.array_equal(adapted.vector[e.slice], start.vector[e.slice]) for e in buffers)


def test_a_sum_s_own_part_is_adapted_beside_the_frozen_one() -> None:
    learner = scalar_learner({}, lr=0.2)
    beside = learner.beside(scalar(learner, 0.3))
    assert beside.adapt_model(scalar(learner, 0), 1, 0.5).vector == pytest.approx([-0.5 * slope(0.3)], abs=1e-6)


# ---- Settings ----


def test_the_defaults_are_the_thesiss() -> None:
    settings = TrainSettings()
    assert (settings.lr, settings.momentum, settings.batch_size, settings.weight_decay) == (0.001, 0.9, 32, 0)
    assert settings.steps(200) == 10
    assert not settings.keep_momentum


def test_a_constant_learning_rate() -> None:
    assert [TrainSettings(lr=0.3).lr_at(r) for r in (0, 1, 99)] == [0.3, 0.3, 0.3]


def test_an_exponential_learning_rate() -> None:
    settings = TrainSettings(lr=0.01, lr_decay=0.5)
    assert [settings.lr_at(r) for r in range(4)] == pytest.approx([0.01, 0.005, 0.0025, 0.00125])
    # FedCUAU's schedule for FEMNIST: from 0.01 to 0.006 in 200 rounds.
    settings = TrainSettings(lr=0.01, lr_decay=0.6 ** (1 / 200))
    assert settings.lr_at(200) == pytest.approx(0.006)
    assert settings.lr_at(100) == pytest.approx(0.01 * math.sqrt(0.6))


def test_milestones() -> None:
    settings = TrainSettings(lr=0.1, lr_decay=0.1, lr_milestones=(250, 375))
    rates = [settings.lr_at(r) for r in (0, 249, 250, 374, 375, 499)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_milestones_from_a_job_file_are_a_list() -> None:
    settings = from_dict(TrainSettings, {"lr_milestones": [3, 5]}, "training")
    assert settings.lr_milestones == (3, 5)
    assert from_dict(TrainSettings, dataclasses.asdict(settings), "training") == settings


def test_a_cosine() -> None:
    settings = TrainSettings(lr=0.9, lr_schedule="cosine", lr_rounds=4, lr_end=0.1)
    # 0.1 + 0.8 (1 + cos(pi t / 4)) / 2; rounds after the last, such as that of a last fine-tuning, have its rate.
    last = 0.5 - 0.4 * math.sqrt(0.5)
    expected = [0.9, 0.5 + 0.4 * math.sqrt(0.5), 0.5, last, last, last]
    assert [settings.lr_at(r) for r in (0, 1, 2, 3, 4, 99)] == pytest.approx(expected)


def test_a_warm_up_before_each_schedule() -> None:
    cosine = TrainSettings(lr=0.8, lr_schedule="cosine", lr_rounds=5, lr_warmup=3)
    assert [cosine.lr_at(r) for r in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.4, 0.4])
    steps = TrainSettings(lr=0.8, lr_decay=0.5, lr_milestones=(1, 3), lr_warmup=1)
    assert [steps.lr_at(r) for r in range(5)] == pytest.approx([0.4, 0.4, 0.4, 0.2, 0.2])
    constant = TrainSettings(lr=0.3, lr_warmup=2)
    assert [constant.lr_at(r) for r in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.3])


def test_a_cosine_takes_the_run_s_rounds_unless_it_has_its_own() -> None:
    open_ended = TrainSettings(lr_schedule="cosine")
    with pytest.raises(ConfigError, match=r"lr_schedule = 'cosine' needs lr_rounds"):
        open_ended.lr_at(0)
    with pytest.raises(ConfigError, match=r"lr_schedule = 'cosine' needs lr_rounds"):  # before any participant trains
        Runtime(Coin, open_ended, seed=0)
    assert open_ended.over(7).lr_rounds == 7
    assert TrainSettings(lr_schedule="cosine", lr_rounds=5).over(7).lr_rounds == 5
    assert TrainSettings().over(7) == TrainSettings()
    with pytest.raises(ConfigError, match=r"lr_warmup = 7 leaves none of lr_rounds = 7"):
        TrainSettings(lr_schedule="cosine", lr_warmup=7).over(7)


def test_momentum_is_sgd_s() -> None:
    assert TrainSettings(momentum=0.0).momentum == 0.0
    adam = TrainSettings(optimizer="adam")
    assert adam.momentum is None
    for settings in (adam, TrainSettings()):
        assert from_dict(TrainSettings, dataclasses.asdict(settings), "training") == settings


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"optimizer": "adam", "momentum": 0.9}, "momentum = 0.9 belongs to optimizer = 'sgd', and Adam has beta1"),
        ({"optimizer": "adamw", "momentum": 0.0}, "momentum = 0.0 belongs to optimizer = 'sgd'"),
        ({"optimizer": "rmsprop"}, "optimizer = 'rmsprop' should be one of 'sgd', 'adam', 'adamw'"),
        ({"beta1": 0.8}, "beta1 = 0.8 belongs to optimizer = 'adam' or 'adamw'; leave one of the two out"),
        ({"adam_eps": 1e-3}, "adam_eps = 0.001 belongs to optimizer = 'adam' or 'adamw'"),
        ({"optimizer": "adam", "beta1": 1.0}, r"beta1 = 1.0 should be in \[0, 1\)"),
        ({"optimizer": "adam", "beta2": -0.1}, r"beta2 = -0.1 should be in \[0, 1\)"),
        ({"optimizer": "adam", "adam_eps": 0.0}, "adam_eps = 0.0 should be > 0"),
        ({"clip_grad": 0.0}, "clip_grad = 0.0 should be > 0 or None"),
        ({"lr_schedule": "linear"}, "lr_schedule = 'linear' should be 'steps' or 'cosine'"),
        ({"lr_schedule": "cosine", "lr_decay": 0.9}, "lr_decay = 0.9 belongs to lr_schedule = 'steps'"),
        ({"lr_schedule": "cosine", "lr_milestones": (3,)}, r"lr_milestones = \(3,\) belongs to lr_schedule = 'steps'"),
        ({"lr_schedule": "cosine", "lr": 0.1, "lr_end": 0.2}, "lr_end = 0.2 should be at most lr = 0.1"),
        ({"lr_schedule": "cosine", "lr_rounds": 3, "lr_warmup": 3}, "lr_warmup = 3 leaves none of lr_rounds = 3"),
        ({"lr_schedule": "cosine", "lr_rounds": 0}, "lr_rounds = 0 should be >= 1"),
        ({"lr_rounds": 9}, "lr_rounds = 9 belongs to lr_schedule = 'cosine'"),
        ({"lr_end": 0.1}, "lr_end = 0.1 belongs to lr_schedule = 'cosine'"),
        ({"lr_warmup": -1}, "lr_warmup = -1 should be >= 0"),
        ({"class_weights": "inverse"}, "class_weights = 'inverse' should be one of 'balanced' or None"),
        ({"label_smoothing": 1.0}, r"label_smoothing = 1.0 should be in \[0, 1\)"),
    ],
)
def test_refuses_what_does_not_go_together(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"training: {says}"):
        from_dict(TrainSettings, values, "training")


@pytest.mark.parametrize(
    ("settings", "samples", "steps"),
    [
        (TrainSettings(local_steps=3), 1000, 3),
        (TrainSettings(local_epochs=2, batch_size=10), 35, 8),
        (TrainSettings(local_epochs=2, batch_size=10), 31, 6),
        (TrainSettings(local_epochs=3, batch_size=10), 1, 3),
        (TrainSettings(local_epochs=3, batch_size=1), 4, 12),
    ],
)
def test_steps_of_a_round(settings: TrainSettings, samples: int, steps: int) -> None:
    assert settings.steps(samples) == steps


@pytest.mark.parametrize(
    "values",
    [
        {"lr": 0.0},
        {"lr": -1.0},
        {"lr": float("nan")},
        {"lr": "0.1"},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"weight_decay": -1e-9},
        {"batch_size": 0},
        {"batch_size": 2.0},
        {"batch_size": True},
        {"local_steps": 0},
        {"local_epochs": 0},
        {"local_steps": 5, "local_epochs": 1},
        {"keep_momentum": 1},
        {"lr_decay": 0.0},
        {"lr_decay": 1.5},
        {"lr_milestones": (0,)},
        {"lr_milestones": (3.5,)},
        {"precision": "float16"},
        {"learning_rate": 0.1},
    ],
)
def test_refuses(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        from_dict(TrainSettings, values, "training")


@pytest.mark.parametrize(
    ("samples", "size", "bounds"),
    [
        (1, 32, [(0, 1)]),
        (32, 32, [(0, 32)]),
        (33, 32, [(0, 32)]),
        (34, 32, [(0, 32), (32, 34)]),
        (3, 1, [(0, 1), (1, 2), (2, 3)]),
        (2, 1, [(0, 1), (1, 2)]),
        (5, 2, [(0, 2), (2, 4)]),
    ],
)
def test_batch_bounds_by_hand(samples: int, size: int, bounds: list[tuple[int, int]]) -> None:
    assert batch_bounds(samples, size) == bounds


@given(st.integers(1, 200), st.integers(1, 70))
def test_batches_cover_the_samples_but_for_one_left_alone(samples: int, size: int) -> None:
    bounds = batch_bounds(samples, size)
    covered = [i for start, end in bounds for i in range(start, end)]
    alone = size > 1 and samples > size and samples % size == 1
    assert covered == list(range(samples - alone))
    assert all(end - start <= size for start, end in bounds)
    assert size == 1 or samples == 1 or all(end - start > 1 for start, end in bounds)
