# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Builds what the command line names as ``name:setting=value``: methods with penalties, data sources, models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cfl_flare.core.config import build, from_dict, parse_spec, require
from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import SOURCES, DataSource
from cfl_flare.data.files import from_here
from cfl_flare.data.labels import outputs_for
from cfl_flare.data.samples import read
from cfl_flare.methods import Method, build_method
from cfl_flare.models import MODELS


def read_source(text: str, here: bool = True) -> DataSource:
    """The data source that the command line names.

    Args:
        text: as it was written.
        here: whether the sites run on this machine, in other folders: existing paths then become absolute.
    """
    name, settings = parse_spec(text)
    if name.endswith(".npz"):
        name, settings = "npz", {"path": name, **settings}
    if name in SOURCES:
        if here:
            from_here(settings)
        return from_dict(SOURCES[name], settings, f"data {name}")
    hint = f"there are {', '.join(SOURCES)}, a .npz file, or package.Class"
    if name.endswith(".csv"):
        hint = f"write table:path={name},label=COLUMN"
    elif Path(name).is_dir():
        hint = f"write folder:path={name}"
    require("." in name and "/" not in name and not name.endswith(".csv"), f"data {name!r} is unknown; {hint}")
    return build({"class_path": name, "args": settings}, DataSource, "data")  # type: ignore[type-abstract]


def model_spec(text: str | None, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    """The ``{"class_path", "args"}`` of the model that the command line names, or of one that fits the data.

    Without a name, it is the thesis's network for such images, or the MLP for samples that are smaller or not images.
    """
    name, settings = parse_spec(text) if text else ("mlp", {})
    if not text and len(shape) == 3 and min(shape[1:]) >= 16:
        name = "fashion-cnn" if shape[0] == 1 else "cifar-cnn"
    if name in MODELS:
        args = {"input_shape": list(shape), "num_classes": classes, **settings}
        return {"class_path": f"cfl_flare.models.{MODELS[name].__name__}", "args": args}
    require("." in name, f"model {name!r} is unknown; there are {', '.join(MODELS)}, or package.Class")
    return {"class_path": name, "args": settings}


def model_of_job(text: str | None, source: DataSource, data: str) -> dict[str, Any]:
    """The model of a job for other machines; shape and classes are given, or read from the data if it is here.

    Raises:
        ConfigError: they are not given, and the data cannot be read here.
    """
    name, settings = parse_spec(text) if text else ("mlp", {})
    if text and (name not in MODELS or {"input_shape", "num_classes"} <= settings.keys()):
        return model_spec(text, (), 0)
    try:
        return model_spec(text, *shape_and_classes(source, data))
    except DataError as error:
        raise ConfigError(
            f"the model's input_shape and num_classes are not given, and cannot be read from the data here ({error}); "
            f"give --model {name}:input_shape=[1,28,28],num_classes=10 with the sites' own, or a --data that is here"
        ) from error


def shape_and_classes(source: DataSource, data: str) -> tuple[tuple[int, ...], int]:
    """The shape of a sample, and the number of outputs of a model: of classes or findings, or 1.

    Raises:
        DataError: the samples cannot be read, or are not valid.
    """
    train, test = read(source, f"data {data}")
    return tuple(train.x.shape[1:]), outputs_for(train.y, test.y)


def build_named(text: str, penalties: Sequence[str] = (), here: bool = True) -> Method:
    """The method that the command line names, with its penalties; ``here`` as for `read_source`."""
    name, settings = parse_spec(text)
    file = settings.get("indicator_file")
    if here and isinstance(file, str) and Path(file).exists():
        settings["indicator_file"] = str(Path(file).resolve())
    if penalties:
        require("penalties" not in settings, f"--method {text}: give its penalties there or by --penalty, not both")
        named = [parse_spec(penalty) for penalty in penalties]
        settings["penalties"] = [{"penalty": what, **own} for what, own in named]
    return build_method({"method": name, **settings})
