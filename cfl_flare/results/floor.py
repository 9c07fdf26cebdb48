# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the floor of a cluster's sites and samples changed in a run, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cfl_flare.core.text import plain

# Under which keys a round's record has it: whom the floor kept out of which cluster, whose models it kept out of a
# mean, and which clusters are below it.
MOVED, HELD, SMALL = "moved_for_floor", "held_back", "small_clusters"
# Which arrays of models were too few sites', as filters removed them elsewhere.
ARRAYS = "arrays_held_back"
# Under which key a summary says how many clusters can be, where that is fewer than were asked for.
POSSIBLE = "possible_clusters"
# So many names are listed.
NAMED = 10


def in_round(record: Mapping[str, Any]) -> str:
    """One line on a round, for the log; empty where the floor changed nothing.

    >>> in_round({"moved_for_floor": {"p3": 1}, "held_back": ["p1", "p2"], "small_clusters": []})
    'kept out of the cluster that fits best, as another needs them: p3 (cluster 1); held back, as too few sites or \
samples trained their model: p1, p2'
    """
    moved = [f"{name} (cluster {k})" for name, k in record.get(MOVED, {}).items()]
    parts = [f"kept out of the cluster that fits best, as another needs them: {_listed(moved)}"] if moved else []
    held = record.get(HELD)
    parts += [f"held back, as too few sites or samples trained their model: {_listed(held)}"] if held else []
    arrays = record.get(ARRAYS)
    parts += [f"arrays held back, as filters leave them to too few sites: {_listed(arrays)}"] if arrays else []
    parts += [f"still below the floor: clusters {_listed(record[SMALL])}"] if record.get(SMALL) else []
    return "; ".join(parts)


def of_run(summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence on each thing that the floor changed in a run, with whom and in how many rounds."""
    run, lines = summary.get("run"), []
    asked = run if isinstance(run, Mapping) else {}
    floor = f"{asked.get('min_sites_per_cluster')} sites and {asked.get('min_samples_per_cluster')} training samples"
    if POSSIBLE in summary:
        lines.append(fewer(summary[POSSIBLE], summary["clusters"], floor))
    for key, what, why in (
        (MOVED, "Kept out of the cluster that fits best", f"so that another has {floor}"),
        (HELD, "Held back, so that their model stayed as it was", f"as too few trained it for {floor}"),
    ):
        counts = Counter(name for line in rounds for name in line.get(key, ()))
        if counts:
            times = sum(bool(line.get(key)) for line in rounds)
            who = _listed(f"{name} ({count})" for name, count in counts.most_common())
            lines.append(f"{what}, {why}, in {times} of {len(rounds)} rounds: {who}.")
    if summary.get(SMALL):
        lines.append(f"Clusters {_listed(summary[SMALL])} have too few members for {floor}, whose data they reveal.")
    return lines


def fewer(possible: int, asked: int, floor: str) -> str:
    """A sentence on how many clusters are used."""
    return f"Of the {asked} clusters that were asked for, {possible} are used: no more can have {floor} each."


def _listed(names: Iterable[Any]) -> str:
    every = [plain(str(name), 100) for name in names]
    return ", ".join(every[:NAMED]) + (f" and {len(every) - NAMED} more" if len(every) > NAMED else "")
