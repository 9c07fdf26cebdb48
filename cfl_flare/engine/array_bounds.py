# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How far an array that participants are compared by, such as their losses, may be from those of the others.

One array of huge numbers would else be all that a clustering sees. The measure is the median of all participants: where
it is, and how far most arrays are from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cfl_flare.engine.clipping import Excess
from cfl_flare.methods import Update
from cfl_flare.methods.state import Mapped, read_heads

# The name and the shape of an array.
Sort = tuple[str, tuple[int, ...]]


def bound_arrays(
    updates: Sequence[Update], bound: float
) -> tuple[Sequence[Update], Excess]:
    """Moves arrays that are too far from the coordinate-wise median of all towards it; other arrays keep their bits.

    Arrays of one name and shape are compared, in float64. If most of them are equal, none is moved.

    Args:
        updates: of a round.
        bound: the largest distance from the median, as a multiple of the median distance.

    Returns:
        The updates, and how many times too far the arrays of some participants were.
    """
    moved: dict[str, dict[str, np.ndarray]] = {}
    excess: Excess = {}
    for (name, shape), arrays in _sort_arrays(updates).items():
        rows = np.stack([array.ravel() for array in arrays.values()]).astype(np.float64)
        median = np.median(rows, axis=0)
        far = _measure_excess(rows - median, bound)
        for i, participant in enumerate(arrays):
            if i not in far:
                continue
            nearer = median + (rows[i] - median) / far[i]
            array = nearer.reshape(shape).astype(arrays[participant].dtype)
            moved.setdefault(participant, {})[name] = array
            excess.setdefault((name, "array"), {})[participant] = far[i]
    if not moved:
        return updates, excess
    return Mapped(updates, lambda update: _replace_arrays(update, moved)), excess


def _sort_arrays(updates: Sequence[Update]) -> dict[Sort, dict[str, np.ndarray]]:
    """Collects the arrays of a round by name and shape, then by participant."""
    sorts: dict[Sort, dict[str, np.ndarray]] = {}
    for update in read_heads(updates):
        for name, array in update.arrays.items():
            arrays = sorts.setdefault((name, array.shape), {})
            arrays[update.participant] = array
    return sorts


def _measure_excess(rows: np.ndarray, bound: float) -> dict[int, float]:
    """Measures how many times too far from the median some rows are.

    Args:
        rows: less their median, ``(m, d)`` float64.
        bound: as in `bound_arrays`.

    Returns:
        The factor by the row's number. Of an even number of rows the lower median distance counts.
    """
    distances = np.linalg.norm(rows, axis=1)
    most = bound * np.sort(distances)[(len(distances) - 1) // 2]
    if most == 0:
        return {}
    return {
        i: float(distance / most)
        for i, distance in enumerate(distances)
        if distance > most
    }


def _replace_arrays(
    update: Update, moved: Mapping[str, Mapping[str, np.ndarray]]
) -> Update:
    """Shows an update with the arrays of its participant that were moved."""
    if update.participant not in moved:
        return update
    return replace(update, arrays={**update.arrays, **moved[update.participant]})
