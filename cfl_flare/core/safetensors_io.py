# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Named arrays and JSON metadata in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.files import atomic_write


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Writes arrays and JSON metadata as one safetensors file, atomically."""
    ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    atomic_write(path, save(ordered, {"cfl_flare": json.dumps(dict(meta))}))


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads what `save_arrays` wrote.

    Raises:
        PayloadError: the file is damaged or is not a safetensors file.
    """
    try:
        with safe_open(str(path), framework="numpy") as f:
            meta = json.loads((f.metadata() or {}).get("cfl_flare", "{}"))
            return {name: f.get_tensor(name) for name in f.keys()}, meta  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise PayloadError("damaged_file", f"{path} cannot be read: {error}") from error
