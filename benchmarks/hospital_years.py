# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Does the grouping of hospitals in their first year hold later? Stroke patients by date, and random parts beside them.

The source of the plan ``stroke-years``, and what two groupings of the same hospitals have in common: those of the first
year and of the later ones, and, as a measure of what chance alone does, those of two random parts of the same sizes.

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
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.metrics import adjusted_rand_score

from cfl_flare.core.config import check_types
from cfl_flare.core.seeds import stream
from cfl_flare.data.hospitals import Stroke
from cfl_flare.data.preparation import Preparation
from cfl_flare.data.samples import DataSource, Samples

RESULT = "stroke-years"


@dataclass(frozen=True)
class Years(DataSource):
    """Stroke patients of hospitals that have enough of them both in their first year and later.

    Attributes:
        parts: patients are divided by date, or each hospital's at random into parts of the same sizes.
        swapped: the second part trains, and the first is for testing.
        fewest: patients of a hospital in either part.
        seed: of the random parts.
    """

    prepares: ClassVar[bool] = True

    parts: Literal["dates", "random"] = "dates"
    swapped: bool = False
    fewest: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self, "data years")

    @cached_property
    def _stroke(self) -> Stroke:
        return Stroke(scaling="federation", first_days=365)

    def load(self) -> tuple[Samples, Samples]:
        """Both parts."""
        first, later = self._stroke.load()
        assert first.key is not None and later.key is not None
        owners, counts = np.unique(first.key, return_counts=True)
        others, later_counts = np.unique(later.key, return_counts=True)
        able = np.intersect1d(owners[counts >= self.fewest], others[later_counts >= self.fewest])
        first, later = (part.take(np.flatnonzero(np.isin(part.key, able))) for part in (first, later))
        if self.parts == "random":
            first, later = self._at_random(first, later)
        return (later, first) if self.swapped else (first, later)

    def _at_random(self, first: Samples, later: Samples) -> tuple[Samples, Samples]:
        every, drawn = first.joined(later), []
        assert first.key is not None and every.key is not None
        for owner in np.unique(first.key):
            rng = stream(self.seed, "random parts", str(owner))
            drawn.append(rng.permutation(np.flatnonzero(every.key == owner))[: (first.key == owner).sum()])
        chosen = np.zeros(len(every), bool)
        chosen[np.concatenate(drawn)] = True
        return every.take(np.flatnonzero(chosen)), every.take(np.flatnonzero(~chosen))

    def preparation(self, train: Samples, federation: Samples | None = None) -> Preparation:
        """As the stroke table's."""
        return self._stroke.preparation(train, federation)


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
