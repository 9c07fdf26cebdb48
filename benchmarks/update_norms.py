# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How much longer than the median honest updates are, which the default of ``clip_norm`` must exceed.

Runs the golden record's cases without FLARE (all methods, penalties and wrappers on digits, with sampling and resumed
runs), and notes of each round the longest update over the round's lower median, apart for parameters, for buffers and
for each layer; and how many times BatchNorm's variances, and by how many standard deviations its means, were outside of
what was sent and of the round's median.

    python benchmarks/update_norms.py --out benchmarks/results/update-norms.json
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
from provenance import provenance

from cfl_flare.engine import round as rounds
from cfl_flare.engine.clipping import Norms, Statistics

ROOT = Path(__file__).resolve().parents[1]
RATIOS: dict[str, list[float]] = {
    "parameters": [],
    "buffers": [],
    "layer": [],
    "running_var": [],
    "running_mean": [],
}


class Watched(Norms):
    """Norms that are noted before they are used."""

    def excess(self, bound: float) -> dict[tuple[str, str], dict[str, float]]:
        """As the parent's; the ratios are those for a bound of next to nothing."""
        for (_, part), far in super().excess(1e-6).items():
            RATIOS[part.partition(" ")[0]].append(max(far.values()) * 1e-6)
        return super().excess(bound)


class WatchedStatistics(Statistics):
    """Running statistics that are noted before they are used."""

    def excess(self, bound: float):  # type: ignore[no-untyped-def]
        """As the parent's; the ratios are those for a bound of 1."""
        for (_, name), far in super().excess(1.0)[1].items():
            RATIOS[name.rpartition(".")[2]].append(max(far.values()))
        return super().excess(bound)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    about = provenance()
    rounds.Norms = Watched  # type: ignore[misc]
    rounds.Statistics = WatchedStatistics  # type: ignore[misc]
    sys.path.insert(0, str(ROOT))
    sys.argv = ["record.py", "check", "--part", "loop"]
    try:
        runpy.run_path(str(ROOT / "tests" / "golden" / "record.py"), run_name="__main__")
    finally:
        found: dict[str, Any] = {
            part: {
                "rounds": len(ratios),
                "max": max(ratios),
                **{f"quantile {q}": float(np.quantile(ratios, q)) for q in (0.5, 0.9, 0.99, 0.999)},
            }
            for part, ratios in RATIOS.items()
            if ratios
        }
        out.write_text(json.dumps({**about, "longest update over the median": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
