# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Models that are given as arrays instead of a module: for training scripts that compute with NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cfl_flare.core.config import one_line, require
from cfl_flare.core.errors import ConfigError

# The name that FLARE's NumPy recipe gives to a model that is a single array.
NUMPY_KEY = "numpy_key"


def named_arrays(model: Any) -> dict[str, np.ndarray] | None:
    """The arrays by name, float32, if a model is given as arrays; None if it is a module or names one.

    Args:
        model: an array or nested lists, whose name is `NUMPY_KEY`, or a dictionary of them by name.

    Raises:
        ConfigError: something in it is no array of finite numbers.
    """
    if isinstance(model, (list, tuple, np.ndarray)):
        return {NUMPY_KEY: _array(model, "model")}
    if not isinstance(model, Mapping) or "class_path" in model:
        return None
    require(bool(model), "model = {} has no arrays; give those that the script should start from, by name")
    for name, value in model.items():
        where = f"model: {name!r}"
        require(isinstance(name, str) and bool(name), f"{where} should be a name: text that is not empty")
        require(
            not isinstance(value, (str, bool, int, float, Mapping)) and value is not None,
            f"{where} = {value!r} is no array. A model is what is averaged, such as {{'coef': np.zeros((1, 13))}}, "
            "with a single number as [0.0]; a module should be {'class_path': 'package.Class', 'args': {...}}. "
            "Hyperparameters belong in train_args: a script that receives them as its model has to be changed",
        )
    return {name: _array(value, f"model: {name!r}") for name, value in model.items()}


def _array(value: Any, where: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except Exception as error:  # rows of different lengths, or what another library makes of being asked
        raise ConfigError(f"{where} is no array of numbers ({one_line(error)})") from error
    require(array.dtype.kind in "fiub", f"{where} should be an array of numbers, not of {array.dtype}")
    require(array.size > 0, f"{where} has shape {array.shape}, without a single number; give it the model's shape")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    require(bool(np.isfinite(array).all()), f"{where} holds NaN or infinity, as float32")
    return array
