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

from cfl_flare.core.errors import PayloadError

Array = np.ndarray


def save_arrays(path: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
    """Writes arrays and JSON metadata as one safetensors file, atomically."""
    data = save({k: np.asarray(v, order="C") for k, v in arrays.items()}, {"cfl_flare": json.dumps(dict(meta))})
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    temporary.replace(path)


def load_arrays(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Reads what `save_arrays` wrote.

    Raises:
        PayloadError: the file is damaged or is no safetensors file.
    """
    try:
        with safe_open(str(path), framework="numpy") as f:
            meta = json.loads((f.metadata() or {}).get("cfl_flare", "{}"))
            return {name: f.get_tensor(name) for name in f.keys()}, meta  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise PayloadError("damaged_file", f"{path} cannot be read: {error}") from error
