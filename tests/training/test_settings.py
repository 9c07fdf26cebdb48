# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfl_flare.core.config import from_dict
from cfl_flare.core.errors import ConfigError
from cfl_flare.training.runtime import Runtime
from cfl_flare.training.settings import TrainSettings, batch_bounds
from tests.tiny import Coin


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
