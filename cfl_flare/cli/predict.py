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
from cfl_flare.core.arrays import load_arrays as read_arrays
from cfl_flare.core.config import build, one_line, require
from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.core.files import atomic_write, below
from cfl_flare.core.text import plain, shown
from cfl_flare.data.columns import Columns
from cfl_flare.data.features import check_columns, encoded, names_of
from cfl_flare.data.files import expanded, find, read_npz
from cfl_flare.data.frames import is_table, read_frame
from cfl_flare.data.images import SUFFIXES, decoded
from cfl_flare.data.preparation import Preparation
from cfl_flare.data.samples import channels_first, check_values, normalised
from cfl_flare.results.model_file import task_of
from cfl_flare.results.preparations import preparation_of
from cfl_flare.results.run_dir import MODELS, SERVED, the_run
from cfl_flare.results.served import named, read_model, served_file
from cfl_flare.training.ensemble import Ensemble, predicted
from cfl_flare.training.tasks import Binary, LearningTask

ARRAYS = ("images", "test_images")
# A text that begins with one of these is a formula for a spreadsheet.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
BATCH = 256


def predict_file(
    run: Path,
    slot: str | None,
    participant: str | None,
    data: Path,
    array: str | None,
    model: str | None,
    out: Path,
    identifier: str | None = None,
) -> int:
    """Writes a CSV file with one line per sample: its name, and what the run's task predicts of it.

    With classes that is the most probable label and each one's probability; a label and a probability of one finding;
    the probabilities of several; a number; or a risk, the logarithm of the relative hazard. Classes have the names that
    the run's table has for them.

    Args:
        run: a model's file, or a folder with one.
        slot: which model of the folder; None if there is only one, or for the participant's.
        participant: who predicts; with a slot, whose filling up and scaling of a table is used.
        data: an .npz file, a folder of images, at any depth, or a table.
        array: the array of an .npz file; None for ``images`` or ``test_images``.
        model: the module as the command line names it, if its class is not one of cfl_flare's own.
        out: the CSV file.
        identifier: the table's column that names its rows; None for their numbers, from 0.

    Returns:
        The number of samples.

    Raises:
        ConfigError: there is no such model, or more than one, or its class is not cfl_flare's and none was given.
        PayloadError: the model's file is damaged, or its weights are not of the model that it names.
        FileError: the CSV file cannot be written.
        DataError: the samples cannot be read, or do not fit the model.
    """
    path = find_model(run, slot, participant)
    own = None if model is None else build(model_spec(model, (), 0), torch.nn.Module, "model")
    module = read_model(path, own)
    meta = read_arrays(path)[1]
    task = task_of(meta, path)
    shape = getattr(module.parts[0] if isinstance(module, Ensemble) else module, "input_shape", None)
    images_of = shape if isinstance(shape, (tuple, list)) and len(shape) == 3 else None
    columns = None
    if "preparation" in meta or is_table(data):
        preparation = fitted(meta, path, participant)
        columns = preparation.columns
        names, images = read_rows(data, preparation, identifier)
    else:
        require(identifier is None, f"predict: --id = {identifier!r} names a table's column, and {data} is no table")
        names, images = read_images(data, array, images_of)
    header, rows = lines_of(task, outputs_of(module, images, data), path, columns)
    lines = io.StringIO(newline="")
    writer = csv.writer(lines)
    writer.writerow(map(cell, [identifier or "sample", *header]))
    for name, row in zip(names, rows):
        writer.writerow(map(cell, [name, *row]))
    atomic_write(out, lines.getvalue().encode(errors="surrogateescape"))
    return len(names)


def cell(value: Any) -> Any:
    """A value for a CSV file; no spreadsheet takes a text for a formula."""
    try:
        float(value)
    except ValueError:
        return f"'{value}" if value[:1] in FORMULA else value
    return value


def find_model(run: Path, slot: str | None, participant: str | None = None) -> Path:
    """The file of a model.

    Args:
        run: a model's file; a run's folder or one above it; a site's folder of a run below the state root.
        slot: the file's name without its ending; None if there is only one, or for the participant's.
        participant: who predicts, unless a slot is named.

    Raises:
        ConfigError: there is none, or more than one.
    """
    if run.is_file():
        return run
    require(run.is_dir(), f"predict: {str(run)!r} is neither a model's file nor a folder with models")
    if slot is None and participant is not None:
        return served_file(run, participant)
    below = next((run / name for name in (MODELS, SERVED) if (run / name).is_dir()), None)
    found = sorted(below.glob("*.safetensors")) if below else sorted(run.glob(f"*/{SERVED}/*.safetensors"))
    if not found:
        found = sorted((the_run(run) / MODELS).glob("*.safetensors"))
    chosen = [path for path in found if slot in (None, path.stem)]
    if len(chosen) != 1:
        there = ", ".join(path.stem for path in found) or "none"
        wanted = "several models; choose one with --slot" if slot is None else f"no single model {slot!r}"
        people = sorted(path.stem for path in (found[0].parents[1] if found else run).glob(f"{SERVED}/*.safetensors"))
        who = f"; or choose who predicts with --participant: {named(people)}" if people and below != SERVED else ""
        raise ConfigError(f"predict: {str(run)!r} has {wanted}; it has: {there}{who}")
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


def read_rows(data: Path, preparation: Preparation, identifier: str | None = None) -> tuple[list[str], np.ndarray]:
    """The rows of a table as a model takes them, and their names in a column, or their numbers, from 0.

    Raises:
        DataError: it cannot be read, lacks a column, or has a new one.
    """
    data, columns = find(str(expanded(str(data))), "predict"), preparation.columns
    known = [] if identifier is None else [identifier]
    features = {column.column for column in columns.columns}
    texts = [name for name in known if name not in features]
    frame = read_frame(data, columns.names, columns.absent, columns.reading, as_text=texts)
    if identifier is not None and identifier not in frame:
        raise DataError(f"{data}: no column {shown(identifier)}, which --id names; it has {names_of(frame)}")
    check_columns(frame, columns, str(data), [columns.label or "label", *known])
    x, others = encoded(frame, columns, str(data))
    for name, rows in others.items():
        line = f"{data}: column {name!r}: {rows} of {len(frame)} rows have a category that no site named"
        print(plain(line), file=sys.stderr)
    ids = range(len(x)) if identifier is None else frame[identifier].astype(object).fillna("")
    return [plain(str(row)) for row in ids], preparation.apply(x)


def lines_of(
    task: LearningTask, outputs: torch.Tensor, path: Path, columns: Columns | None = None
) -> tuple[list[str], list[list[Any]]]:
    """The columns of the CSV file, and a line for each sample.

    Args:
        task: what is predicted.
        outputs: the model's, ``(n, classes)``.
        path: the model's file, for the error.
        columns: of the run's table, which name the label and its classes; None for other data.

    Raises:
        ConfigError: predictions are no numbers of a line.
    """
    require(
        outputs.dim() == 2,
        f"predict: {path} predicts masks, which no line of a table holds; read it with cfl_flare.load_model in Python",
    )
    if task.form == "time":
        return ["risk"], [[f"{risk:.6f}"] for risk in outputs[:, 0].tolist()]
    predictions, column = predicted(outputs, task.link), None if columns is None else columns.label
    what = None if column is None else f"predicted {column}"
    written = [[f"{p:.6f}" for p in row] for row in predictions.tolist()]
    if task.link not in ("softmax", "sigmoid"):
        return [what or "value"], written
    classes, header = class_names(2 if isinstance(task, Binary) else predictions.shape[1], columns)
    if isinstance(task, Binary):
        labels, header = (predictions[:, 0] >= task.threshold).int().tolist(), header[1:]
    elif task.link == "softmax":
        labels = predictions.argmax(1).tolist()
    else:
        return header, written
    return [what or "label", *header], [[classes[label], *row] for label, row in zip(labels, written)]


def class_names(count: int, columns: Columns | None) -> tuple[list[str], list[str]]:
    """What so many classes are called, and their probabilities: by their numbers, where nothing names them."""
    numbers = [str(k) for k in range(count)]
    if columns is None or columns.label is None:
        return numbers, [f"p{k}" for k in numbers]
    if columns.classes:
        names = [*columns.classes[:count], *numbers[len(columns.classes) :]]
        return names, [f"p({name})" for name in names]
    if columns.positive is not None:
        names = [f"<={columns.positive:g}", f">{columns.positive:g}", *numbers[2:]]
        return names, [f"p({columns.label}{name})" for name in names]
    return numbers, [f"p({columns.label}={k})" for k in numbers]


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
