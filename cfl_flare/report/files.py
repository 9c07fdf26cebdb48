# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Writes figures."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from cfl_flare.core.files import atomic_write


def save(figure: Figure, path: Path) -> Path:
    """Writes a figure in the format of the path's ending, as a whole or not at all; returns the path.

    Raises:
        FileError: it cannot be written.
    """
    ending = path.suffix.lstrip(".")
    atomic_write(path, lambda file: figure.savefig(file, format=ending, dpi=120), durable=False)
    return path
