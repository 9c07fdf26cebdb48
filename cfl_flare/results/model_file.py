# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a model from its file. What the file says is checked before anything is imported or built because of it."""

from __future__ import annotations

import copy
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.config import build, class_paths, require
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.params import Layout
from cfl_flare.core.text import plain, shown
from cfl_flare.models import MODELS as NETWORKS
from cfl_flare.models import NamedArrays
from cfl_flare.results.run_dir import MODELS
from cfl_flare.training.ensemble import Ensemble, InUnits

if TYPE_CHECKING:
    import torch

    from cfl_flare.training.tasks import LearningTask

NETWORK_PATHS = {f"{cls.__module__}.{cls.__qualname__}" for cls in NETWORKS.values()}
# The model of a run whose training scripts compute without a module.
ARRAYS = f"{NamedArrays.__module__}.{NamedArrays.__qualname__}"
# What a model predicts unless its file says something else.
CLASSES = "classification"
# In the metadata of a file: the model of the run that has all arrays which are not in the file itself.
BESIDE = "beside"
# The longest text of a model's arguments, so that they cannot list millions of layers.
MOST_ARGS = 20_000
# Before the names of arrays of one of several models.
PART = re.compile(r"^parts\.\d+\.")


def read_model(
    path: Path, model: torch.nn.Module | None = None, imported: bool = False
) -> torch.nn.Module:
    """A model from its file, ready to predict.

    Args:
        path: a file that `cfl_flare.results.served.save_served` wrote.
        model: a module of its class to load the weights into; needed if it is not one of cfl_flare's own.
        imported: whether it may also be one that this program has imported, of no installed package.

    Raises:
        PayloadError: the file is damaged, or holds the weights of another model than it names.
        ConfigError: it has layers that only participants have trained, or the model's class is not cfl_flare's and no
            module was given.
    """
    from torch import nn

    from cfl_flare.training.resident import ResidentModel

    arrays, meta = load_arrays(path)
    _check_trained(meta, path)
    if BESIDE in meta:
        arrays = {
            **load_arrays(model_path(path.parent.parent, str(meta[BESIDE])))[0],
            **arrays,
        }
    spec, ensemble = model_of(meta, path), meta.get("ensemble")
    parts, vote = (
        (1, "") if ensemble is None else _parts_of(ensemble, len(arrays), path)
    )
    if model is None and spec["class_path"] == ARRAYS:
        raise ConfigError(
            f"{path} has no PyTorch module, only arrays; read them with cfl_flare.load_arrays"
        )
    if model is None and not (is_ours(spec) or (imported and _is_imported(spec))):
        way_out = "import its module first, or build one and pass it as model= (a class of a package: always)"
        raise ConfigError(f"{path} holds a {plain(spec['class_path'], 100)}; {way_out}")
    _check_weights(
        layout_of(spec) if model is None else Layout.of(model), arrays, parts, path
    )
    if model is None:
        model = build(spec, nn.Module, "model")
    if ensemble is not None:
        link = (
            _task_in(meta, path).link if vote == "probabilities" else "softmax"
        )  # a sum is the same with any
        model = Ensemble([copy.deepcopy(model) for _ in range(parts)], vote, link)
    try:
        packed = Layout.of(model).pack(arrays)
    except PayloadError as error:
        raise PayloadError(
            error.code, f"{path}: {error}; name the file of a sound model"
        ) from error
    resident = ResidentModel(model)
    resident.load(packed)
    return _in_units(resident.module, meta, path).eval()


def _in_units(
    module: torch.nn.Module, meta: Mapping[str, Any], path: Path
) -> torch.nn.Module:
    """The module, with outputs in the unit of the labels if it learned scaled ones."""
    from cfl_flare.training.tasks import Regression

    spec = meta.get("task", CLASSES)
    if not isinstance(spec, dict) or spec.get("task") != Regression.name:
        return module
    task = _task_in(meta, path)
    assert isinstance(task, Regression)
    if task.mean is None or task.deviation is None:
        return module
    return InUnits(module, task.mean, task.deviation)


def model_path(folder: Path, slot: str) -> Path:
    """The file of one of a run's models; a `ConfigError` names those that the run has."""
    path = folder / MODELS / f"{slot}.safetensors"
    if not path.is_file():
        there = (
            ", ".join(sorted(p.stem for p in path.parent.glob("*.safetensors")))
            or "none"
        )
        raise ConfigError(f"{folder} has no model {slot!r}; it has: {there}")
    return path


def _check_trained(meta: Mapping[str, Any], path: Path) -> None:
    """Refuses a model with layers that nobody has trained, as each participant has trained its own."""
    untrained = meta.get("untrained")
    require(
        not untrained,
        f"{path} cannot predict: its {shown(untrained)} are untrained, as each participant has trained its own; name a "
        "participant, in a simulation's folder or with the state folder at its site (--participant NAME, or "
        "load_model(run, participant=NAME)); cfl_flare.load_arrays reads the file as it is",
    )


def model_of(meta: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The ``{"class_path", "args"}`` that a model's file names; nothing is imported."""
    spec: Any = meta.get("model")
    named = isinstance(spec, dict) and isinstance(spec.get("class_path"), str)
    if not named or not isinstance(spec.get("args") or {}, dict):
        raise PayloadError(
            "damaged_file",
            f"{path} does not say which model it holds; name one that cfl_flare wrote",
        )
    if len(json.dumps(spec)) > MOST_ARGS:
        raise PayloadError(
            "damaged_file",
            f"{path}: the arguments of its model are longer than {MOST_ARGS} characters",
        )
    return {"class_path": spec["class_path"], "args": dict(spec.get("args") or {})}


def _parts_of(ensemble: Any, arrays: int, path: Path) -> tuple[int, str]:
    """The number of models that a file says it holds, and how they vote."""
    parts, vote = (
        (ensemble.get("parts"), ensemble.get("vote"))
        if isinstance(ensemble, dict)
        else (None, None)
    )
    if type(parts) is not int or not 1 <= parts <= arrays or not isinstance(vote, str):
        raise PayloadError(
            "damaged_file",
            f"{path}: ensemble = {shown(ensemble)} does not fit its {arrays} arrays",
        )
    return parts, vote


def task_of(meta: Mapping[str, Any], path: Path) -> LearningTask:
    """What a file says that its model predicts, one of cfl_flare's own tasks; classes, if it says nothing.

    It is the task of a model that `read_model` has read, whose outputs are in the unit of the labels.

    Raises:
        PayloadError: it says something else than a task.
        ConfigError: it names a task of the user's, which is not imported because a file names it.
    """
    return _task_in(meta, path).in_units()


def _task_in(meta: Mapping[str, Any], path: Path) -> LearningTask:
    """The task as the model was trained for it."""
    from cfl_flare.training.tasks import build_task

    spec: Any = meta.get("task", CLASSES)
    if not isinstance(spec, (str, dict)) or len(json.dumps(spec)) > MOST_ARGS:
        raise PayloadError(
            "damaged_file",
            f"{path}: task = {shown(spec)} is none; name a file that cfl_flare wrote",
        )

    def refuse(task: str) -> None:
        reason = (
            f"{path} is of the task {plain(task, 100)}, which is not cfl_flare's own"
        )
        raise ConfigError(
            f"{reason}; read the weights with cfl_flare.load_arrays, and predict in Python"
        )

    return build_task(spec, refuse)


def is_ours(spec: Mapping[str, Any]) -> bool:
    """Whether a file names one of cfl_flare's networks; for no other is a module imported because a file names it."""
    return NETWORK_PATHS.issuperset(class_paths(spec))


def _is_imported(spec: Mapping[str, Any]) -> bool:
    """Whether this program has imported each class that a file names, and no package that is installed defines it.

    The file chooses the arguments, and many an installed class loads or downloads what these name. Of torch's, its
    layers may be arguments.
    """
    return all(
        path in NETWORK_PATHS or _is_users(*path.rpartition(".")[::2])
        for path in class_paths(spec)
    )


def _is_users(module: str, name: str) -> bool:
    """Whether the name is there, and the module that defines it, perhaps another one, lies in no folder of packages."""
    definer = str(
        getattr(vars(sys.modules.get(module, object)).get(name), "__module__", None)
    )
    file = getattr(sys.modules.get(definer), "__file__", None)
    if file is None or definer.startswith("torch.nn.modules."):
        return file is not None
    packaged = any(
        any(folder.glob("*.dist-info")) for folder in Path(file).resolve().parents
    )
    return not packaged and definer.partition(".")[0] not in sys.stdlib_module_names


def _check_weights(
    layout: Layout, arrays: Mapping[str, np.ndarray], parts: int, path: Path
) -> None:
    """Compares the model that a file names with the weights in it, before any memory is allocated for the model."""
    counters = {entry.name for entry in layout.entries if entry.kind == "counter"}
    constants = {constant.name for constant in layout.constants}
    arrays = {
        name: array
        for name, array in arrays.items()
        if PART.sub("", name) not in constants
    }
    for name, array in arrays.items():
        if array.dtype.kind != "f" and PART.sub("", name) not in counters:
            raise PayloadError(
                "dtype",
                f"{path}: {shown(name)} holds {array.dtype}, which are no weights; save floats",
            )
    wanted = parts * sum(map(math.prod, layout.shapes.values()))
    held = sum(array.size for array in arrays.values())
    if wanted != held:
        reason = f"{path}: the model that it names would have {wanted:,} weights, the file has {held:,}"
        raise PayloadError("shape", f"{reason}; name a whole file")


def layout_of(spec: Mapping[str, Any]) -> Layout:
    """The layout of one of cfl_flare's own networks, without memory for its weights."""
    import torch

    with torch.device("meta"):
        return Layout.of(build(spec, torch.nn.Module, "model"))
