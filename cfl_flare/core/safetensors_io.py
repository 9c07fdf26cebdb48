# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Named arrays and JSON metadata in one safetensors file, with a checksum of all its bytes.

The metadata begin with the SHA-256 of the file as it is with 64 zeros there. Files without one, of other programs or
of version 0.2, are read as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import FileError, PayloadError
from cfl_flare.core.files import MOST_JSON, atomic_write, check_memory, open_regular, parse_json

META, CHECKSUM, BLANK = "cfl_flare", "cfl_flare_sha256", "0" * 64


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Writes arrays and JSON metadata as one safetensors file, atomically.

    Raises:
        FileError: it cannot be written; an old file of that name is left.
    """
    ordered = {name: _plain(array) for name, array in arrays.items()}
    header: dict[str, Any] = {"__metadata__": {CHECKSUM: BLANK, META: json.dumps(dict(meta))}}
    names, end = sorted(ordered, key=lambda name: (-ordered[name].itemsize, name)), 0  # so that each is aligned
    for name in names:
        array = ordered[name]
        header[name] = {"dtype": _dtype(array), "shape": array.shape, "data_offsets": (end, end + array.nbytes)}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    parts = [ordered[name].reshape(-1).view(np.uint8).data for name in names]
    digest = hashlib.sha256(head)
    for part in parts:
        digest.update(part)
    head = head.replace(BLANK.encode(), digest.hexdigest().encode(), 1)

    def write(file: BinaryIO) -> None:
        file.write(head)
        for part in parts:
            file.write(part)

    atomic_write(path, write)


def _plain(array: Any) -> np.ndarray:
    """An array as its file holds it; itself, if it lies so in memory."""
    array = np.asarray(array, order="C")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _dtype(array: np.ndarray) -> str:
    kind = array.dtype.kind
    return "BOOL" if kind == "b" else f"{kind.upper()}{8 * array.itemsize}"


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads what `save_arrays` wrote, or another program's arrays. The arrays are never larger than the file.

    Raises:
        PayloadError: the file is damaged, does not match its checksum, or is not a safetensors file.
    """
    try:
        with open_regular(path) as file:
            check_memory(os.fstat(file.fileno()).st_size, str(path))
        with safe_open(str(path), framework="numpy") as f:
            metadata = f.metadata() or {}
            _verify(path, metadata)
            text = metadata.get(META, "{}")
            if len(text) > MOST_JSON:
                raise FileError(f"cannot read {path}: its metadata have {len(text):,} characters; name another file")
            meta = parse_json(text, f"{path}: metadata")
            arrays = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - not a mapping
    except FileError as error:
        raise PayloadError("damaged_file", str(error)) from error
    except (SafetensorError, OSError, TypeError, ValueError, AttributeError) as error:  # dtypes that numpy lacks
        raise PayloadError(
            "damaged_file", f"{path} cannot be read: {one_line(error)}; name a whole safetensors file"
        ) from error
    if not isinstance(meta, dict):
        raise PayloadError("damaged_file", f"{path} cannot be read: its metadata are a {type(meta).__name__}")
    return arrays, meta


def _verify(path: Path, metadata: Mapping[str, str]) -> None:
    """Raises a PayloadError for a file with a checksum that is not its own; damage may have hit the checksum's name."""
    if CHECKSUM not in metadata and not {META} < metadata.keys():
        return
    stated = metadata.get(CHECKSUM, BLANK)
    with open_regular(path) as file:
        length = file.read(8)
        digest = hashlib.sha256(length)
        header = file.read(int.from_bytes(length, "little"))
        digest.update(header.replace(stated.encode(), BLANK.encode(), 1))
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest() != stated:
        raise PayloadError("damaged_file", f"{path} does not match its checksum; copy it again, or name another file")
