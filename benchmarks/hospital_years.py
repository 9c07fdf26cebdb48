# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Does the grouping of hospitals in their first year hold later? Stroke patients by date, and random parts beside them.

What two groupings of the same hospitals have in common: those of the first year and of the later ones, and, as a
measure of what chance alone does, those of two random parts of the same sizes. Their source is ``plans/years.py``.

    python benchmarks/tables.py run --plan stroke-years --set parts=dates swapped=False --seeds 0 1 2 3 4 --out cells
    python benchmarks/tables.py run --plan stroke-years --set parts=dates swapped=True --seeds 0 1 2 3 4 --out cells
    python benchmarks/tables.py run --plan stroke-years --set parts=random swapped=False --seeds 0 1 2 3 4 --out cells
    python benchmarks/tables.py run --plan stroke-years --set parts=random swapped=True --seeds 0 1 2 3 4 --out cells
    python benchmarks/hospital_years.py --out benchmarks/results/stroke-years/agreement.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import combinations
from pathlib import Path
from typing import Any

from sklearn.metrics import adjusted_rand_score

RESULT = "stroke-years"


def agreement() -> dict[str, Any]:
    """Mean ARI of the groupings of both parts, and of one part with two seeds, by rows and kinds of parts."""
    from kept import kept  # the script beside this one, which reads plans that read this one

    clusters: dict[tuple[str, str, bool], dict[int, list[int]]] = {}
    for cell in kept(RESULT):
        facts, found = cell.facts, cell.after["clusters"]
        if None not in found:
            where = facts["row"], facts["settings"]["parts"], facts["settings"]["swapped"]
            clusters.setdefault(where, {})[facts["seed"]] = found
    rows: dict[str, Any] = {}
    for (row, parts, swapped), of_seed in clusters.items():
        if swapped or (row, parts, True) not in clusters:
            continue
        other = clusters[row, parts, True]
        across = [adjusted_rand_score(of_seed[seed], other[seed]) for seed in sorted(of_seed.keys() & other.keys())]
        seeds = sorted(of_seed)
        within = [adjusted_rand_score(of_seed[a], of_seed[b]) for a, b in combinations(seeds, 2)]
        rows.setdefault(row, {})[parts] = {
            "between_parts": statistics.fmean(across),
            "least": min(across),
            "most": max(across),
            "between_seeds": statistics.fmean(within),
            "seeds": seeds,
        }
    return {"rows": rows}


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, required=True)
    path = options.parse_args().out
    path.write_text(json.dumps(agreement(), indent=1) + "\n")


if __name__ == "__main__":
    main()
