# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Predictions of a run's model for images or a table without labels, as its task has them."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cfl_flare.cli.specs import model_spec
from cfl_flare.core.config import build, one_line, require
from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.core.files import atomic_write, below
from cfl_flare.core.safetensors_io import load_arrays as read_arrays
from cfl_flare.core.text import plain
from cfl_flare.data.features import check_columns, encoded
from cfl_flare.data.files import expanded, find, read_npz
from cfl_flare.data.frames import is_table, read_frame
from cfl_flare.data.images import SUFFIXES, decoded
from cfl_flare.data.preparation import Preparation
from cfl_flare.data.samples import channels_first, check_values, normalised
from cfl_flare.results.model_file import task_of
from cfl_flare.results.preparations import preparation_of
from cfl_flare.results.run_dir import MODELS, SERVED, read_model, the_run
from cfl_flare.training.ensemble import Ensemble, predicted
from cfl_flare.training.tasks import Binary, LearningTask

ARRAYS = ("images", "test_images")
BATCH = 256


def predict_file(
    run: Path, slot: str | None, participant: str | None, data: Path, array: str | None, model: str | None, out: Path
) -> int:
    """Writes a CSV file with one line per sample: its name, and what the run's task predicts of it.

    With classes that is the most probable label and each one's probability; a label and a probability of one finding;
    the probabilities of several; a number; or a risk, the logarithm of the relative hazard.

    Args:
        run: a model's file, or a folder with one.
        slot: which model of the folder; None if there is only one.
        participant: whose filling up and scaling of a table is used, if the model's file does not say it.
        data: an .npz file, a folder of images, at any depth, or a table.
        array: the array of an .npz file; None for ``images`` or ``test_images``.
        model: the module as the command line names it, if its class is not one of cfl_flare's own.
        out: the CSV file.

    Returns:
        The number of samples.

    Raises:
        ConfigError: there is no such model, or more than one, or its class is not cfl_flare's and none was given.
        PayloadError: the model's file is damaged, or its weights are not of the model that it names.
        FileError: the CSV file cannot be written.
        DataError: the samples cannot be read, or do not fit the model.
    """
    path = find_model(run, slot)
    own = None if model is None else build(model_spec(model, (), 0), torch.nn.Module, "model")
    module = read_model(path, own)
    meta = read_arrays(path)[1]
    task = task_of(meta, path)
    shape = getattr(module.parts[0] if isinstance(module, Ensemble) else module, "input_shape", None)
    images_of = shape if isinstance(shape, (tuple, list)) and len(shape) == 3 else None
    if "preparation" in meta or is_table(data):
        names, images = read_rows(data, fitted(meta, path, participant))
    else:
        names, images = read_images(data, array, images_of)
    header, rows = lines_of(task, outputs_of(module, images, data), path)
    lines = io.StringIO(newline="")
    writer = csv.writer(lines)
    writer.writerow(["sample", *header])
    for name, row in zip(names, rows):
        writer.writerow([name, *row])
    atomic_write(out, lines.getvalue().encode(errors="surrogateescape"))
    return len(names)


def find_model(run: Path, slot: str | None) -> Path:
    """The file of a model.

    Args:
        run: a model's file; a run's folder or one above it; a site's folder of a run below the state root.
        slot: the file's name without its ending; None if there is only one.

    Raises:
        ConfigError: there is none, or more than one.
    """
    if run.is_file():
        return run
    require(run.is_dir(), f"predict: {str(run)!r} is neither a model's file nor a folder with models")
    below = next((run / name for name in (SERVED, MODELS) if (run / name).is_dir()), None)
    found = sorted(below.glob("*.safetensors")) if below else sorted(run.glob(f"*/{SERVED}/*.safetensors"))
    if not found:
        found = sorted((the_run(run) / MODELS).glob("*.safetensors"))
    chosen = [path for path in found if slot in (None, path.stem)]
    if len(chosen) != 1:
        there = ", ".join(path.stem for path in found) or "none"
        wanted = "several models; choose one with --slot" if slot is None else f"no single model {slot!r}"
        raise ConfigError(f"predict: {str(run)!r} has {wanted}; it has: {there}")
    return chosen[0]


def read_images(data: Path, array: str | None, shape: Sequence[int] | None) -> tuple[list[str], np.ndarray]:
    """Images and their names: a file's path in the folder, or an index.

    Args:
        data: an .npz file, or a folder.
        array: the array of an .npz file.
        shape: ``(channels, height, width)`` to which a folder's images are converted; None to leave them as they are.

    Raises:
        DataError: they cannot be read.
    """
    data = find(str(expanded(str(data))), "predict", folder=None)
    if data.is_dir():
        files = sorted(p for p in below(data) if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
        if not files:
            raise DataError(f"{data}: holds no images; they end in {', '.join(SUFFIXES)}")
        size, channels = (None, None) if shape is None else ((shape[1], shape[2]), shape[0])
        return [str(p.relative_to(data)) for p in files], decoded(files, lambda i: str(files[i]), size, channels)
    arrays = read_npz(data, None if array is None else [array])
    name = array or next((n for n in ARRAYS if n in arrays), None)
    if name is None:
        raise DataError(f"{data}: has no array {' or '.join(ARRAYS)} but {', '.join(arrays)}; name one with --array")
    images = channels_first(arrays[name], f"{data}: {name}")
    check_values(images, f"{data}: {name}")
    return [str(i) for i in range(len(images))], images


def fitted(meta: Mapping[str, Any], path: Path, participant: str | None) -> Preparation:
    """How a table is filled up and scaled for a model: as its file says, else as a participant of its run did.

    Raises:
        ConfigError: nothing says it.
    """
    if "preparation" in meta:
        return Preparation.of(meta["preparation"], f"{path}: preparation")
    return preparation_of(path.parent.parent, participant)


def read_rows(data: Path, preparation: Preparation) -> tuple[list[str], np.ndarray]:
    """The rows of a table as a model takes them, and their numbers, from 0.

    Raises:
        DataError: it cannot be read, lacks a column, or has a new one.
    """
    data, columns = find(str(expanded(str(data))), "predict"), preparation.columns
    frame = read_frame(data, columns.names, columns.absent)
    check_columns(frame, columns, str(data), [columns.label or "label"])
    x, others = encoded(frame, columns, str(data))
    for name, rows in others.items():
        line = f"{data}: column {name!r}: {rows} of {len(frame)} rows have a category that no site named"
        print(plain(line), file=sys.stderr)
    return [str(i) for i in range(len(x))], preparation.apply(x)


def lines_of(task: LearningTask, outputs: torch.Tensor, path: Path) -> tuple[list[str], list[list[Any]]]:
    """The columns of the CSV file, and a line for each sample.

    Raises:
        ConfigError: predictions are no numbers of a line.
    """
    require(
        outputs.dim() == 2,
        f"predict: {path} predicts masks, which no line of a table holds; read it with cfl_flare.load_model in Python",
    )
    if task.form == "time":
        return ["risk"], [[f"{risk:.6f}"] for risk in outputs[:, 0].tolist()]
    found = predicted(outputs, task.link)
    written = [[f"{p:.6f}" for p in row] for row in found.tolist()]
    if task.link not in ("softmax", "sigmoid"):
        return ["value"], written
    header = [f"p{k}" for k in range(found.shape[1])]
    if isinstance(task, Binary):
        labels, header = (found[:, 0] >= task.threshold).int().tolist(), ["p1"]
    elif task.link == "softmax":
        labels = found.argmax(1).tolist()
    else:
        return header, written
    return ["label", *header], [[label, *row] for label, row in zip(labels, written)]


@torch.no_grad()
def outputs_of(module: torch.nn.Module, images: np.ndarray, data: Any) -> torch.Tensor:
    """The model's outputs, ``(n, classes, ...)``.

    Raises:
        DataError: the images do not fit the model.
    """
    if not len(images):
        raise DataError(f"{data}: holds no images; name a file with some")
    out = []
    for i in range(0, len(images), BATCH):
        try:
            out.append(module(torch.from_numpy(normalised(images[i : i + BATCH]))))
            finite = torch.isfinite(out[-1]).flatten(1).all(dim=1)
        except Exception as error:  # the module may be the user's, and raise anything
            raise DataError(
                f"{data}: the model {type(module).__name__} does not take images of shape {images.shape[1:]} "
                f"({one_line(error)}); bring them to the shape of the run's"
            ) from error
        if not finite.all():
            bad = i + int(torch.nonzero(~finite)[0])
            raise DataError(
                f"{data}: the model predicts nothing for image {bad}, but NaN or infinity; look for huge numbers in "
                "the image, or in the model's weights"
            )
    return torch.cat(out)
