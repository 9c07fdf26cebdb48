# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How long a participant tunes what it predicts with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError
from cfl_flare.methods import CAM, Ensemble, FedAvg, FedCUAU, Finetune, Local, Method, WeCFL, build_method
from cfl_flare.training.ensemble import Served
from tests.tiny import coin, learner

START = coin(0, 0)


def tuned(method: Method, *models: Any) -> list[list[float]]:
    served = models[0] if len(models) == 1 else Served(models)
    found = Served.of(method.finetuned(learner([1, 1, 0], lr=0.1), served))
    return [model.vector.tolist() for model in found.models]


def after(epochs: int, frozen: Any = None) -> list[float]:
    one = learner([1, 1, 0], lr=0.1)
    view = one if frozen is None else one.beside(frozen)
    return view.train(START, purpose="finetune", epochs=epochs).vector.tolist()


@pytest.mark.parametrize("epochs", [1, 3])
def test_so_many_passes(epochs: int) -> None:
    for method in (WeCFL(k=2, finetune=True, finetune_epochs=epochs), Finetune(finetune_epochs=epochs)):
        assert tuned(method, START) == [after(epochs)]
    together = Ensemble(parts=(FedAvg(), FedAvg()), finetune=True, finetune_epochs=epochs)
    assert tuned(together, START, START) == [after(epochs)] * 2
    cam = CAM(base=WeCFL(k=2), finetune=True, finetune_epochs=epochs)
    assert tuned(cam, START, START) == [after(epochs, START)] * 2
    assert after(1) != after(3)


def test_as_long_as_a_round_unless_given() -> None:
    assert tuned(FedAvg(finetune=True), START) == [after(1)]  # one step, which is one pass here
    assert FedCUAU().finetune_epochs == 5
    parts = (FedAvg(), FedAvg())
    assert tuned(Ensemble(parts=parts, finetune=True), START, START) == [after(1)] * 2


def test_a_combination_s_setting_is_the_whole_s() -> None:
    for name in ("fedavg+", "fesem-cam"):
        method = build_method({"method": name, "k": 2, "finetune": True, "finetune_epochs": 4})
        assert method.finetune_epochs == 4
    with pytest.raises(ConfigError, match="finetune_epochs = 4 does nothing without finetune = True"):
        build_method({"method": "fedavg+ifca", "k": 2, "finetune_epochs": 4})


def test_refusals() -> None:
    with pytest.raises(ConfigError, match=r"finetune_epochs = 0 should be in .1, 1000. or None"):
        FedAvg(finetune=True, finetune_epochs=0)
    with pytest.raises(ConfigError, match=r"finetune_epochs = 2\.5 should be int \| None, not float"):
        FedAvg(finetune=True, finetune_epochs=2.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="method local: finetune_epochs = 2 does nothing without finetune = True"):
        Local(finetune_epochs=2)
    assert np.isfinite(tuned(FedCUAU(finetune_epochs=2, finetune=True), START)).all()
