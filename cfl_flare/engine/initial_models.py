# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Models from which a run starts: untrained ones, a trained one in a file, or arrays instead of a module."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.config import one_line, require
from cfl_flare.core.errors import ConfigError, DataError, PayloadError
from cfl_flare.core.params import Layout, Params
from cfl_flare.data.files import read_npz
from cfl_flare.methods import Method
from cfl_flare.training.resident import build_untrained


def read_checkpoint(path: Path, layout: Layout) -> Params:
    """Reads a model of the job's layout; nothing is unpickled.

    Args:
        path: a safetensors file; arrays that ``np.savez`` wrote, or ``np.save`` for a model of one array; or what
            ``torch.save`` wrote: a ``state_dict``, or a dictionary that has it under ``model`` (as in FLARE's own
            checkpoints), ``state_dict`` or ``model_state_dict``.

    Raises:
        ConfigError: it does not exist, holds anything but arrays, or arrays of another model.
    """
    where = f"run: initial_ckpt = {str(path)!r}"
    require(
        path.is_file(),
        f"{where} is not a file here; name a safetensors file or one that torch.save or np.savez wrote",
    )
    try:
        arrays = _arrays(path, layout)
    except (ConfigError, PayloadError, DataError) as error:
        raise ConfigError(f"run: initial_ckpt: {error}") from error
    except (
        Exception
    ) as error:  # torch raises many kinds of errors for a file that it cannot read
        raise ConfigError(
            f"{where} cannot be read without unpickling ({one_line(error)}); save model.state_dict() alone, with "
            "torch.save or as safetensors, or arrays with np.savez"
        ) from error
    arrays, known = layout.untied(arrays), {e.name for e in layout.entries}
    strange, missing = sorted(arrays.keys() - known), sorted(known - arrays.keys())
    require(
        not strange and not missing,
        f"{where} is not of the job's model: "
        + "; ".join(
            [
                *(f"it has {n!r}" for n in strange[:1]),
                *(f"it lacks {n!r}" for n in missing[:1]),
            ]
        )
        + f"; the model has {len(known)} arrays, the file {len(arrays)}",
    )
    try:
        return layout.pack(arrays)
    except PayloadError as error:
        raise ConfigError(f"{where} is not of the job's model: {error}") from error


def _arrays(path: Path, layout: Layout) -> dict[str, np.ndarray]:
    """A file's arrays by name; a single one without a name is that of a model of one array."""
    if path.suffix == ".safetensors":
        return load_arrays(path)[0]
    if path.suffix == ".npz":
        return read_npz(path)
    if path.suffix == ".npy":
        names = [entry.name for entry in layout.entries]
        require(
            len(names) == 1,
            f"{path} is a single array, the model has {len(names)}; save them with np.savez",
        )
        return {
            names[0]: np.lib.format.open_memmap(path, mode="r")
        }  # refuses what is pickled, or larger than its file
    return _from_torch(path)


def _from_torch(path: Path) -> dict[str, np.ndarray]:
    content: Any = torch.load(path, map_location="cpu", weights_only=True)
    for key in (
        "model",
        "state_dict",
        "model_state_dict",
    ):  # of FLARE's persistor, Lightning, many training scripts
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise TypeError(f"it holds a {type(content).__name__}")
    odd = [
        name
        for name, value in content.items()
        if not isinstance(value, (torch.Tensor, np.ndarray))
    ]
    if odd:
        raise TypeError(f"{odd[0]!r} is a {type(content[odd[0]]).__name__}")
    return {
        str(name): (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        if isinstance(value, torch.Tensor)
        else value
        for name, value in content.items()
    }


def check_initial(
    method: Method, layout: Layout, given: str = "initial_ckpt", private: bool = False
) -> None:
    """Raises a ConfigError if a method cannot start from one given model: ``"initial_ckpt"``, or arrays, ``"model"``.

    It cannot if it begins with more than one model, or if its sites build their initial models, or parts of them
    that are ``private``, themselves.
    """
    way_out = (
        "or leave initial_ckpt out"
        if given == "initial_ckpt"
        else "or give a torch.nn.Module as the model"
    )
    seeds: set[int] = set()

    def build_untrained(index: int) -> Params:
        seeds.add(index)
        return Params(
            layout,
            np.zeros(layout.size, np.float32),
            np.zeros(layout.counter_size, np.int64),
        )

    method.start(build_untrained)
    require(
        len(seeds) <= 1,
        f"run: {given}: method {method.label} begins with {len(seeds)} different models, which one that is given would "
        f"make equal; choose a method that begins with one (fedavg, fesem, wecfl, cfl, fl-hc, ...), {way_out}",
    )
    require(
        not method.traits.starts_on_site,
        f"run: initial_ckpt: in method {method.label} each participant begins with a model that its site builds from "
        "the seed, and a checkpoint stays at the server; leave initial_ckpt out",
    )
    require(
        not private,
        "run: initial_ckpt: with private layers each participant begins with those that its site builds from the seed, "
        "and a checkpoint stays at the server; leave initial_ckpt or private out",
    )


def initial_models(
    method: Method,
    make_model: Callable[[], torch.nn.Module],
    layout: Layout,
    seed: int,
    path: Path | None,
) -> Callable[[int], Params]:
    """What travels of a run's initial models: of untrained ones, or of always the one in the file at ``path``.

    Raises:
        ConfigError: the method cannot start from one given model, or the file is not such a model's. When it is
            called: the model's constructor makes models equal that should differ.
    """
    if path is not None:
        check_initial(method, layout, private=layout != Layout.of(make_model()))
        given = read_checkpoint(path, layout)
        return lambda index: given
    indices: dict[bytes, int] = {}

    def drawn(index: int) -> Params:
        model = build_untrained(make_model, seed, index).take(layout)
        first = indices.setdefault(hashlib.sha256(model.vector.data).digest(), index)
        require(
            first == index,
            f"run: model: method {method.label} begins with several different models, and the model's constructor "
            "makes them all equal: it sets its parameters without drawing them; draw them there with torch's "
            "generator, or choose a method that begins with one model (fedavg, fesem, wecfl, cfl, fl-hc, ...)",
        )
        return model

    return drawn


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
    require(
        bool(model),
        "model = {} has no arrays; give those that the script should start from, by name",
    )
    for name, value in model.items():
        where = f"model: {name!r}"
        require(
            isinstance(name, str) and bool(name),
            f"{where} should be a name: text that is not empty",
        )
        require(
            not isinstance(value, (str, bool, int, float, Mapping))
            and value is not None,
            f"{where} = {value!r} is no array. A model is what is averaged, such as {{'coef': np.zeros((1, 13))}}, "
            "with a single number as [0.0]; a module should be {'class_path': 'package.Class', 'args': {...}}. "
            "Hyperparameters belong in train_args: a script that receives them as its model has to be changed",
        )
    return {name: _array(value, f"model: {name!r}") for name, value in model.items()}


def _array(value: Any, where: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except Exception as error:  # rows of different lengths, or what another library makes of being asked
        raise ConfigError(
            f"{where} is no array of numbers ({one_line(error)})"
        ) from error
    require(
        array.dtype.kind in "fiub",
        f"{where} should be an array of numbers, not of {array.dtype}",
    )
    require(
        array.size > 0,
        f"{where} has shape {array.shape}, without a single number; give it the model's shape",
    )
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    require(
        bool(np.isfinite(array).all()), f"{where} holds NaN or infinity, as float32"
    )
    return array
