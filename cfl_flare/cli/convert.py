# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``cfl-flare convert``: a run's model in formats that other programs read, ONNX and MONAI's bundle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from cfl_flare.cli.options import Parser
from cfl_flare.cli.predict import class_names, find_model, untrained
from cfl_flare.cli.specs import check_out
from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.config import require
from cfl_flare.core.files import make_folder
from cfl_flare.core.text import plain
from cfl_flare.results.gate import check_file
from cfl_flare.results.model_file import model_of, read_model, task_of
from cfl_flare.results.run_dir import SERVED
from cfl_flare.results.served import PREPARATIONS, preparation_of
from cfl_flare.training.ensemble import Ensemble
from cfl_flare.training.formats import FORMATS, Portable, write_formats
from cfl_flare.training.tasks import Binary


def add_convert_options(command: Parser) -> None:
    command.add_argument("run", help="a .safetensors model, or a folder with one: a run's, or a site's state folder")
    which = "which of a run's models, if it has several: cluster-0, ...; default: the participant's"
    command.add_argument("--slot", metavar="NAME", help=which)
    whose = "whose model, as at the end of the run; with --slot, whose filling up and scaling of a table is used"
    command.add_argument("--participant", metavar="NAME", help=whose)
    command.add_argument("--model", metavar="CLASS", help="the model's class, if it is one of your own: package.Class")
    formats = f"one or several of {', '.join(FORMATS)} (%(default)s); monai is for images"
    command.add_argument("--formats", default="onnx", metavar="F,F", help=formats)
    command.add_argument("--out", required=True, metavar="DIR", help="where the files go; a new folder")


def convert(arguments: argparse.Namespace) -> None:
    """``cfl-flare convert`` writes a model, with a JSON file that describes its input and its outputs."""
    out, participant = Path(arguments.out), arguments.participant
    check_out(out)
    module = untrained(arguments.model)
    path = find_model(Path(arguments.run), arguments.slot, participant)
    check_file(path)
    portable = portable_of(path, participant, module)
    make_folder(out, private=portable.preparation is not None or path.parent.name == SERVED)
    formats = [name.strip() for name in arguments.formats.split(",")]
    for file in write_formats(out, path.stem, portable, formats):
        print(plain(str(file)))


def portable_of(path: Path, participant: str | None = None, module: torch.nn.Module | None = None) -> Portable:
    """A model from its file, with what a reader has to know.

    Arguments are as for `cfl_flare.results.model_file.read_model`; the participant is whose filling up and scaling of a
    table is used, if the file does not say it.

    Raises:
        ConfigError: nobody knows how samples are prepared, or the module does not say the shape of a sample.
        PayloadError: the file is damaged.
    """
    model, meta = read_model(path, module), load_arrays(path)[1]
    task, of_one, preparation = task_of(meta, path), model.parts[0] if isinstance(model, Ensemble) else model, None
    if "preparation" in meta or (path.parents[1] / PREPARATIONS).is_file():
        preparation = preparation_of(path, meta, participant)
    shape: Any = getattr(of_one, "input_shape", None) if preparation is None else (len(preparation.fill),)
    is_shape = isinstance(shape, (tuple, list)) and all(type(side) is int and side > 0 for side in shape)
    reason = f"{path}: {type(of_one).__name__} does not say the shape of a sample"
    require(is_shape, f"{reason}; keep it as the attribute input_shape")
    is_prepared = preparation is not None or len(shape) == 3 or path.parent.name == SERVED
    reason = f"{path} takes rows of {shape}, and does not say how a table is filled up and scaled"
    way_out = "name a site's state folder, or a simulation's, with --participant"
    require(is_prepared, f"{reason}: each site has its own; {way_out}")
    with torch.no_grad():
        outputs = model(torch.zeros(2, *shape))
    classes: list[str] = []
    if task.link in ("softmax", "sigmoid"):
        columns = None if preparation is None else preparation.columns
        classes = class_names(2 if isinstance(task, Binary) else outputs.shape[1], columns)[0]
    facts = {"name": path.stem, "network": model_of(meta, path), "rounds": meta.get("round")}
    return Portable(model, task, tuple(shape), preparation, classes, facts)
