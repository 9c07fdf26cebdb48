# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a model's file says of the model, checked before anything is imported or built because of it."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cfl_flare.core.config import build, class_paths
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.params import Layout
from cfl_flare.core.text import plain, shown
from cfl_flare.models import MODELS as NETWORKS
from cfl_flare.models import NamedArrays

if TYPE_CHECKING:
    from cfl_flare.training.tasks import LearningTask

NETWORK_PATHS = {f"{cls.__module__}.{cls.__qualname__}" for cls in NETWORKS.values()}
# The model of a run whose training scripts compute without a module.
ARRAYS = f"{NamedArrays.__module__}.{NamedArrays.__qualname__}"
# What a model predicts unless its file says something else.
CLASSES = "classification"
# The text of a model's arguments is at most this long, so that they cannot list millions of layers.
MOST_ARGS = 20_000


def model_of(meta: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The ``{"class_path", "args"}`` that a model's file names; nothing is imported.

    Raises:
        PayloadError: it names none, or its arguments are too long.
    """
    spec: Any = meta.get("model")
    fits = isinstance(spec, dict) and isinstance(spec.get("class_path"), str)
    if not fits or not isinstance(spec.get("args") or {}, dict):
        raise PayloadError("damaged_file", f"{path} does not say which model it holds; name one that cfl_flare wrote")
    if len(json.dumps(spec)) > MOST_ARGS:
        raise PayloadError("damaged_file", f"{path}: the arguments of its model are longer than {MOST_ARGS} characters")
    return {"class_path": spec["class_path"], "args": dict(spec.get("args") or {})}


def parts_of(ensemble: Any, arrays: int, path: Path) -> tuple[int, str]:
    """The number of models that a file says it holds, and how they vote.

    Raises:
        PayloadError: it cannot hold so many.
    """
    parts, vote = (ensemble.get("parts"), ensemble.get("vote")) if isinstance(ensemble, dict) else (None, None)
    if type(parts) is not int or not 1 <= parts <= arrays or not isinstance(vote, str):
        raise PayloadError("damaged_file", f"{path}: ensemble = {shown(ensemble)} does not fit its {arrays} arrays")
    return parts, vote


def task_of(meta: Mapping[str, Any], path: Path) -> LearningTask:
    """What a file says that its model predicts, one of cfl_flare's own tasks; classes, if it says nothing.

    Raises:
        PayloadError: it says something else than a task.
        ConfigError: it names a task of the user's, which is not imported because a file names it.
    """
    from cfl_flare.training.tasks import build_task

    spec: Any = meta.get("task", CLASSES)
    if not isinstance(spec, (str, dict)) or len(json.dumps(spec)) > MOST_ARGS:
        raise PayloadError("damaged_file", f"{path}: task = {shown(spec)} is none; name a file that cfl_flare wrote")

    def refuse(own: str) -> None:
        raise ConfigError(
            f"{path} is of the task {plain(own, 100)}, which is not cfl_flare's own; read the weights with "
            "cfl_flare.load_arrays, and predict in Python"
        )

    return build_task(spec, refuse)


def is_ours(spec: Mapping[str, Any]) -> bool:
    """Whether a file names one of cfl_flare's networks; for no other is a module imported because a file names it."""
    return NETWORK_PATHS.issuperset(class_paths(spec))


def is_imported(spec: Mapping[str, Any]) -> bool:
    """Whether this program has imported each class that a file names, and no package that is installed defines it.

    The file chooses the arguments, and many an installed class loads or downloads what these name. Of torch's, its
    layers may be arguments.
    """
    return all(path in NETWORK_PATHS or _is_own(*path.rpartition(".")[::2]) for path in class_paths(spec))


def _is_own(module: str, name: str) -> bool:
    """Whether the name is there, and the module that defines it, perhaps another one, lies in no folder of packages."""
    definer = str(getattr(vars(sys.modules.get(module, object)).get(name), "__module__", None))
    file = getattr(sys.modules.get(definer), "__file__", None)
    if file is None or definer.startswith("torch.nn.modules."):
        return file is not None
    packaged = any(any(folder.glob("*.dist-info")) for folder in Path(file).resolve().parents)
    return not packaged and definer.partition(".")[0] not in sys.stdlib_module_names


def check_weights(layout: Layout, arrays: Mapping[str, np.ndarray], parts: int, path: Path) -> None:
    """Compares the model that a file names with the weights in it, before any memory is allocated for the model.

    Raises:
        PayloadError: it would be another size, or its weights are whole numbers.
    """
    counters = {entry.name for entry in layout.entries if entry.kind == "counter"}
    for name, array in arrays.items():
        if array.dtype.kind != "f" and re.sub(r"^parts\.\d+\.", "", name) not in counters:
            raise PayloadError("dtype", f"{path}: {shown(name)} holds {array.dtype}, which are no weights; save floats")
    wanted = parts * sum(map(math.prod, layout.shapes.values()))
    held = sum(array.size for array in arrays.values())
    if wanted != held:
        raise PayloadError(
            "shape",
            f"{path}: the model that it names would have {wanted:,} weights, the file has {held:,}; name a whole file",
        )


def layout_of(spec: Mapping[str, Any]) -> Layout:
    """The layout of one of cfl_flare's own networks, without memory for its weights.

    Raises:
        ConfigError: its arguments do not fit.
    """
    import torch

    with torch.device("meta"):
        return Layout.of(build(spec, torch.nn.Module, "model"))
