# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Predictions of a run's model for images without labels."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cfl_flare.cli.specs import model_spec
from cfl_flare.core.config import build, one_line, require
from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.core.safetensors_io import load_arrays
from cfl_flare.data.files import expanded, find, read_npz
from cfl_flare.data.images import SUFFIXES, decoded
from cfl_flare.data.samples import channels_first, normalised
from cfl_flare.results.run_dir import MODELS, SERVED, read_model, the_run

ARRAYS = ("images", "test_images")
BATCH = 256


def predict_file(run: Path, slot: str | None, data: Path, array: str | None, model: str | None, out: Path) -> int:
    """Writes a CSV file with one line per sample: its name, the most probable label, each class's probability.

    Args:
        run: a model's file, or a folder with one.
        slot: which model of the folder; None if there is only one.
        data: an .npz file, or a folder of images, at any depth.
        array: the array of an .npz file; None for ``images`` or ``test_images``.
        model: the module as the command line names it, if its class is not one of cfl_flare's own.
        out: the CSV file.

    Returns:
        The number of samples.

    Raises:
        ConfigError: there is no such model, or more than one.
        DataError: the images cannot be read, or do not fit the model.
    """
    path = find_model(run, slot)
    spec = load_arrays(path)[1].get("model") or {}
    own = None if model is None else build(model_spec(model, (), 0), torch.nn.Module, "model")
    module = read_model(path, own)
    shape = tuple((spec.get("args") or {}).get("input_shape") or ())
    names, images = read_images(data, array, shape if len(shape) == 3 else None)
    probabilities = probabilities_of(module, images, data)
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sample", "label", *(f"p{k}" for k in range(probabilities.shape[1]))])
        for name, row in zip(names, probabilities):
            writer.writerow([name, int(row.argmax()), *(f"{p:.6f}" for p in row)])
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
        files = sorted(p for p in data.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
        if not files:
            raise DataError(f"{data}: holds no images; they end in {', '.join(SUFFIXES)}")
        size, channels = (None, None) if shape is None else ((shape[1], shape[2]), shape[0])
        return [str(p.relative_to(data)) for p in files], decoded(files, lambda i: str(files[i]), size, channels)
    arrays = read_npz(data, None if array is None else [array])
    name = array or next((n for n in ARRAYS if n in arrays), None)
    if name is None:
        raise DataError(f"{data}: has no array {' or '.join(ARRAYS)} but {', '.join(arrays)}; name one with --array")
    images = channels_first(arrays[name], f"{data}: {name}")
    return [str(i) for i in range(len(images))], images


@torch.no_grad()
def probabilities_of(module: torch.nn.Module, images: np.ndarray, data: Any) -> np.ndarray:
    """Softmax of the model's logits, ``(n, classes)``.

    Raises:
        DataError: the images do not fit the model.
    """
    out = []
    for i in range(0, len(images), BATCH):
        try:
            logits = module(torch.from_numpy(normalised(images[i : i + BATCH])))
        except Exception as error:  # the module may be the user's, and raise anything
            raise DataError(
                f"{data}: the model {type(module).__name__} does not take images of shape {images.shape[1:]} "
                f"({one_line(error)}); bring them to the shape of the run's"
            ) from error
        out.append(logits.softmax(dim=1).numpy())
    return np.concatenate(out)
