# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How many hospitals gain: whose patients a row predicts with a smaller log-loss than another, over all seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cells import Cell
from kept import CitationError, group

LOSS = "served_loss"


def losses(cells: dict[int, Cell]) -> np.ndarray:
    """Each hospital's log-loss, ``(seeds, hospitals)``; NaN where it was not measured."""
    found = [cells[seed].after.get("hospitals", {}).get(LOSS) for seed in sorted(cells)]
    if any(one is None for one in found):
        raise CitationError("these cells have no figures of single hospitals")
    return np.array(found, np.float64)


def gaining(mine: np.ndarray, theirs: np.ndarray) -> tuple[int, int]:
    """How many hospitals have a smaller mean over the seeds, and of how many.

    >>> gaining(np.array([[0.2, 0.5], [0.4, 0.5]]), np.array([[0.3, 0.4], [0.4, 0.4]]))
    (1, 2)

    Args:
        mine: ``(seeds, hospitals)``.
        theirs: the same of another row.
    """
    differences = (mine - theirs).mean(axis=0)
    there = differences[~np.isnan(differences)]
    return int((there < 0).sum()), len(there)


def table(result: str, partition: str, rows: Sequence[str], others: Sequence[str]) -> str:
    """Of each row how many hospitals gain by it, against some others."""
    lines = [
        "| hospitals that gain | " + " | ".join(f"against `{other}`" for other in others) + " |",
        "|---|" + "---:|" * len(others),
    ]
    of = {row: losses(group(result, partition, row)) for row in dict.fromkeys((*rows, *others))}
    for row in rows:
        counts = ["-" if row == other else "{} of {}".format(*gaining(of[row], of[other])) for other in others]
        lines.append(f"| `{row}` | {' | '.join(counts)} |")
    return "\n".join(lines)
