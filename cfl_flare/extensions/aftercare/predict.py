# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``predict``: what a run's model predicts for images or a table; ``convert``: the model as an ONNX graph."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cfl_flare.cli.options import Parser
from cfl_flare.cli.specs import check_out, model_spec, new_file
from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.config import build, one_line, require
from cfl_flare.core.errors import DataError
from cfl_flare.core.files import atomic_write, below, make_folder
from cfl_flare.core.text import plain, shown
from cfl_flare.data.columns import Columns
from cfl_flare.data.features import check_columns, describe_unknown, encoded, names_of
from cfl_flare.data.files import expanded, find, read_npz
from cfl_flare.data.frames import is_table, read_frame
from cfl_flare.data.images import SUFFIXES, decoded
from cfl_flare.data.pixels import check_range, scale_to
from cfl_flare.data.preparation import Preparation
from cfl_flare.data.samples import channels_first, check_values, normalised
from cfl_flare.extensions.aftercare.onnx_graph import Portable, write_onnx
from cfl_flare.results.gate import check_file
from cfl_flare.results.model_file import model_of, read_model, task_of
from cfl_flare.results.run_dir import SERVED
from cfl_flare.results.served import (
    PREPARATIONS,
    classes_of,
    find_model,
    pixels_of,
    preparation_of,
)
from cfl_flare.training.ensemble import Ensemble
from cfl_flare.training.losses import predict_from
from cfl_flare.training.tasks import Binary, LearningTask

ARRAYS = ("images", "test_images")
# A text that begins with one of these is a formula for a spreadsheet.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
BATCH = 256


def _add_model(command: Parser, whose: str) -> None:
    """The options that name a model."""
    command.add_argument(
        "run",
        help="a .safetensors model, or a folder with one: a run's, or a site's state folder",
    )
    which = "which of a run's models, if it has several: cluster-0, ...; default: the participant's"
    command.add_argument("--slot", metavar="NAME", help=which)
    of_table = "as at the end of the run; with --slot, whose filling up and scaling of a table is used"
    command.add_argument("--participant", metavar="NAME", help=f"{whose}, {of_table}")
    command.add_argument(
        "--model",
        metavar="CLASS",
        help="the model's class, if it is one of your own: package.Class",
    )


def add_predict_options(command: Parser) -> None:
    _add_model(command, "who predicts")
    command.add_argument(
        "--data",
        required=True,
        metavar="D",
        help="a folder of images, an .npz file, or a table",
    )
    command.add_argument(
        "--id",
        metavar="COLUMN",
        help="the table's column that names its rows in the predictions",
    )
    command.add_argument(
        "--array",
        metavar="NAME",
        help="the array of an .npz file; default: images, or test_images",
    )
    command.add_argument(
        "--out", required=True, metavar="CSV", help="where the predictions go"
    )


def predict(arguments: argparse.Namespace) -> None:
    """``cfl-flare predict`` writes a CSV file with a line for each sample: its name, and what the task predicts of it.

    With classes that is the most probable label and each one's probability. With one finding it is a label and a
    probability, with several the probabilities, else a number, or a risk: the logarithm of the relative hazard. Classes
    have the names that the run's table has for them.
    """
    out, data, row_name = (
        new_file("--out", arguments.out),
        Path(arguments.data),
        arguments.id,
    )
    path = find_model(Path(arguments.run), arguments.slot, arguments.participant)
    module, meta, columns = (
        read_model(path, untrained(arguments.model)),
        load_arrays(path)[1],
        None,
    )
    if "preparation" in meta or is_table(data):
        preparation = preparation_of(path, meta, arguments.participant)
        columns = preparation.columns
        names, samples = read_rows(data, preparation, row_name)
    else:
        require(
            row_name is None,
            f"predict: --id = {row_name!r} names a table's column, and {data} is no table",
        )
        shape = getattr(
            module.parts[0] if isinstance(module, Ensemble) else module,
            "input_shape",
            None,
        )
        is_image = isinstance(shape, (tuple, list)) and len(shape) == 3
        pixels = pixels_of(path, meta)
        names, samples = read_images(
            data, arguments.array, shape if is_image else None, pixels
        )
    # A preparation has scaled the rows of a table.
    as_seen: Callable[[np.ndarray], np.ndarray] = (
        normalised if columns is None else np.asarray
    )
    outputs = outputs_of(module, samples, data, as_seen)
    header, rows = lines_of(
        task_of(meta, path), outputs, path, columns, classes_of(path, meta)
    )
    lines = io.StringIO(newline="")
    writer = csv.writer(lines)
    writer.writerow(map(cell, [row_name or "sample", *header]))
    for name, row in zip(names, rows):
        writer.writerow(map(cell, [name, *row]))
    atomic_write(out, lines.getvalue().encode(errors="surrogateescape"))
    print(f"{out}: {len(names)} predictions")


def untrained(text: str | None) -> torch.nn.Module | None:
    """The module that ``--model`` names."""
    return (
        None
        if text is None
        else build(model_spec(text, (), 0), torch.nn.Module, "model")
    )


def cell(value: Any) -> Any:
    """A value for a CSV file; no spreadsheet takes a text for a formula."""
    try:
        float(value)
    except ValueError:
        return f"'{value}" if value[:1] in FORMULA else value
    return value


def read_images(
    data: Path,
    array: str | None,
    shape: Sequence[int] | None,
    pixels: Sequence[float] | None = None,
) -> tuple[list[str], np.ndarray]:
    """Images of a folder or of an .npz file's array, and their names: a file's path in the folder, or an index.

    Args:
        data: the folder or the file.
        array: the array's name; None for one of `ARRAYS`.
        shape: ``(channels, height, width)``, to which a folder's images are converted; None to leave them.
        pixels: the range of the pixels with which the model was trained; None for bytes, and floats in [0, 1].

    Raises:
        DataError: there are no images, or their numbers are clearly outside of that range.
    """
    data = find(str(expanded(str(data))), "predict", folder=None)
    if data.is_dir():
        files = sorted(
            p
            for p in below(data)
            if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")
        )
        if not files:
            raise DataError(
                f"{data}: holds no images; they end in {', '.join(SUFFIXES)}"
            )
        size, channels = (
            (None, None) if shape is None else ((shape[1], shape[2]), shape[0])
        )
        return [str(p.relative_to(data)) for p in files], decoded(
            files, lambda i: str(files[i]), size, channels
        )
    arrays = read_npz(data, None if array is None else [array])
    name = array or next((n for n in ARRAYS if n in arrays), None)
    if name is None:
        raise DataError(
            f"{data}: has no array {' or '.join(ARRAYS)} but {', '.join(arrays)}; name one with --array"
        )
    content = (
        arrays[name]
        if pixels is None
        else scale_to(arrays[name], pixels, f"{data}: {name}")
    )
    images = channels_first(content, f"{data}: {name}")
    check_values(images, f"{data}: {name}")
    check_range(images, f"{data}: {name}", "bring the images to what the run's were")
    return [str(i) for i in range(len(images))], images


def read_rows(
    data: Path, preparation: Preparation, identifier: str | None = None
) -> tuple[list[str], np.ndarray]:
    """The rows of a table as a model takes them, and their names in a column, or their numbers, from 0."""
    data, columns = find(str(expanded(str(data))), "predict"), preparation.columns
    identifiers = [] if identifier is None else [identifier]
    texts = [
        name
        for name in identifiers
        if name not in {column.column for column in columns.columns}
    ]
    frame = read_frame(
        data, columns.names, columns.absent, columns, as_text=[*texts, *columns.named]
    )
    if identifier is not None and identifier not in frame:
        raise DataError(
            f"{data}: no column {shown(identifier)}, which --id names; it has {names_of(frame)}"
        )
    check_columns(frame, columns, str(data), [columns.label or "label", *identifiers])
    x, _ = encoded(frame, columns, str(data))
    for line in describe_unknown(frame, columns):
        print(plain(f"{data}: column {line}"), file=sys.stderr)
    ids = (
        range(len(x))
        if identifier is None
        else frame[identifier].astype(object).fillna("")
    )
    return [plain(str(row)) for row in ids], preparation.apply(x)


def lines_of(
    task: LearningTask,
    outputs: torch.Tensor,
    path: Path,
    columns: Columns | None,
    classes: Sequence[str] = (),
) -> tuple[list[str], list[list[Any]]]:
    """The columns of the CSV file, and a line for each sample, of the model's outputs ``(n, classes)``.

    The names of the ``classes`` are the run's, for samples that are no table.
    """
    reason = f"predict: {path} predicts masks, which no line of a table holds"
    require(
        outputs.dim() == 2, f"{reason}; read it with cfl_flare.load_model in Python"
    )
    if task.form == "time":
        return ["risk"], [[f"{risk:.6f}"] for risk in outputs[:, 0].tolist()]
    predictions, column = (
        predict_from(outputs, task.link),
        None if columns is None else columns.label,
    )
    title = None if column is None else f"predicted {column}"
    written = [[f"{p:.6f}" for p in row] for row in predictions.tolist()]
    if task.link not in ("softmax", "sigmoid"):
        return [title or "value"], written
    count = 2 if isinstance(task, Binary) else predictions.shape[1]
    names, header = class_names(count, columns, classes)
    if isinstance(task, Binary):
        labels, header = (
            (predictions[:, 0] >= task.threshold).int().tolist(),
            header[1:],
        )
    elif task.link == "softmax":
        labels = predictions.argmax(1).tolist()
    else:
        return header, written
    return [title or "label", *header], [
        [names[label], *row] for label, row in zip(labels, written)
    ]


def class_names(
    count: int, columns: Columns | None, classes: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The names of this number of classes, and of their probabilities: numbers, where nothing names them."""
    numbers = [str(k) for k in range(count)]
    if columns is None and classes:
        names = [*classes[:count], *numbers[len(classes) :]]
        return names, [f"p({name})" for name in names]
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
def outputs_of(
    module: torch.nn.Module,
    images: np.ndarray,
    data: Any,
    as_seen: Callable[[np.ndarray], np.ndarray],
) -> torch.Tensor:
    """The model's outputs, ``(n, classes, ...)``, of samples that ``as_seen`` makes float32 as the model sees them."""
    if not len(images):
        raise DataError(f"{data}: holds no images; name a file with some")
    out = []
    for i in range(0, len(images), BATCH):
        try:
            out.append(module(torch.from_numpy(as_seen(images[i : i + BATCH]))))
            finite = torch.isfinite(out[-1]).flatten(1).all(dim=1)
        except Exception as error:  # the module may be the user's, and raise anything
            reason = f"the model {type(module).__name__} does not take images of shape {images.shape[1:]}"
            way_out = "bring them to the shape of the run's"
            raise DataError(
                f"{data}: {reason} ({one_line(error)}); {way_out}"
            ) from error
        if not finite.all():
            bad = i + int(torch.nonzero(~finite)[0])
            reason = f"{data}: the model predicts nothing for image {bad}, but NaN or infinity"
            raise DataError(
                f"{reason}; look for huge numbers in the image, or in the model's weights"
            )
    return torch.cat(out)


def add_convert_options(command: Parser) -> None:
    _add_model(command, "whose model")
    command.add_argument(
        "--out", required=True, metavar="DIR", help="where the files go; a new folder"
    )


def convert(arguments: argparse.Namespace) -> None:
    """Write a model as an ONNX graph, with a JSON file that describes its input and its outputs."""
    out = Path(arguments.out)
    participant = arguments.participant
    check_out(out)
    module = untrained(arguments.model)
    path = find_model(Path(arguments.run), arguments.slot, participant)
    check_file(path)
    portable = portable_of(path, participant, module)
    # Only its owner may read a participant's model, and the means of a site's table.
    make_folder(
        out, private=portable.preparation is not None or path.parent.name == SERVED
    )
    for file in write_onnx(out, path.stem, portable):
        print(plain(str(file)))


def portable_of(
    path: Path, participant: str | None = None, module: torch.nn.Module | None = None
) -> Portable:
    """A model from its file, with what a reader has to know.

    Arguments are as for `cfl_flare.results.model_file.read_model`; the participant is whose filling up and scaling of a
    table is used, if the file does not say it.

    Raises:
        ConfigError: nobody knows how samples are prepared, or the module does not say the shape of a sample.
        PayloadError: the file is damaged.
    """
    model, meta = read_model(path, module), load_arrays(path)[1]
    task, of_one, preparation = (
        task_of(meta, path),
        model.parts[0] if isinstance(model, Ensemble) else model,
        None,
    )
    if "preparation" in meta or (path.parents[1] / PREPARATIONS).is_file():
        preparation = preparation_of(path, meta, participant)
    shape: Any = (
        getattr(of_one, "input_shape", None)
        if preparation is None
        else (len(preparation.fill),)
    )
    is_shape = isinstance(shape, (tuple, list)) and all(
        type(side) is int and side > 0 for side in shape
    )
    reason = f"{path}: {type(of_one).__name__} does not say the shape of a sample"
    require(is_shape, f"{reason}; keep it as the attribute input_shape")
    is_prepared = (
        preparation is not None or len(shape) == 3 or path.parent.name == SERVED
    )
    reason = f"{path} takes rows of {shape}, and does not say how a table is filled up and scaled"
    way_out = "name a site's state folder, or a simulation's, with --participant"
    require(is_prepared, f"{reason}: each site has its own; {way_out}")
    with torch.no_grad():
        outputs = model(torch.zeros(2, *shape))
    classes: list[str] = []
    if task.link in ("softmax", "sigmoid"):
        columns = None if preparation is None else preparation.columns
        count = 2 if isinstance(task, Binary) else outputs.shape[1]
        classes = class_names(count, columns, classes_of(path, meta))[0]
    facts = {
        "name": path.stem,
        "network": model_of(meta, path),
        "rounds": meta.get("round"),
    }
    return Portable(model, task, tuple(shape), preparation, classes, facts)
