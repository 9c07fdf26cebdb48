# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Named arrays and JSON metadata in one safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import FileError, PayloadError
from cfl_flare.core.files import MOST_JSON, atomic_write, check_memory, open_regular, parse_json


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Writes arrays and JSON metadata as one safetensors file, atomically.

    Raises:
        FileError: it cannot be written; an old file of that name is left.
    """
    ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    atomic_write(path, save(ordered, {"cfl_flare": json.dumps(dict(meta))}))


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads what `save_arrays` wrote, or another program's arrays. The arrays are never larger than the file.

    Raises:
        PayloadError: the file is damaged or is not a safetensors file.
    """
    try:
        with open_regular(path) as file:
            check_memory(os.fstat(file.fileno()).st_size, str(path))
        with safe_open(str(path), framework="numpy") as f:
            text = (f.metadata() or {}).get("cfl_flare", "{}")
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
