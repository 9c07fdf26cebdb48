# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What attackers who know the defences do, over several seeds, each paired with its seed's run without attack.

Reads the cells that ``attacks.py run`` left in the folder, and writes ``paired.json`` and ``paired.md``. A row is there
if all its seeds are.

    python benchmarks/attacks.py run --out benchmarks/results/attacks-adaptive --rounds 8 --attackers 1 --seeds 0 1 2
    python benchmarks/attacks_paired.py --out benchmarks/results/attacks-adaptive
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from attacks import ADAPTIVE, DEFENCES, HOSPITALS, METHODS, TRAINING, read
from provenance import provenance

# Student's t for a two-sided interval of 95 percent, by the degrees of freedom.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


def interval(values: list[float]) -> dict[str, float]:
    """The mean of paired differences over seeds, and its interval of 95 percent."""
    half = T[len(values) - 1] * float(np.std(values, ddof=1)) / len(values) ** 0.5
    mean = float(np.mean(values))
    return {name: round(value, 1) for name, value in (("mean", mean), ("low", mean - half), ("high", mean + half))}


def rows(lines: list[dict[str, Any]], seeds: list[int]) -> list[dict[str, Any]]:
    """By method, attack and defence: accuracy, what the attack and the defence changed, and who was caught."""
    cells = {(one["method"], one["attack"], one["defence"], one["seed"]): one for one in lines}
    table = []
    for method, attack, defence in product(METHODS, ("none", *ADAPTIVE), DEFENCES):
        sets = ((method, attack, defence), (method, "none", "none"), (method, attack, "none"))
        if not all((*key, seed) in cells for key in sets for seed in seeds):
            continue
        here, clean, bare = ([cells[(*key, seed)] for seed in seeds] for key in sets)
        accuracy, worst = ([100 * one[key] for one in here] for key in ("accuracy", "worst"))
        table.append(
            {
                "method": method,
                "attack": attack,
                "defence": defence,
                "accuracy": round(float(np.mean(accuracy)), 1),
                "worst hospital": round(float(np.mean(worst)), 1),
                "against no attack and no defence": interval(
                    [a - 100 * one["accuracy"] for a, one in zip(accuracy, clean, strict=True)]
                ),
                "against no defence": interval(
                    [a - 100 * one["accuracy"] for a, one in zip(accuracy, bare, strict=True)]
                ),
                "caught": None if attack == "none" else float(np.mean([one["caught"] for one in here])),
                "honest caught": round(float(np.mean([one["honest_caught"] for one in here])), 2),
            }
        )
    return table


def shown(difference: dict[str, float]) -> str:
    """A difference and its interval."""
    return f"{difference['mean']:+.1f} ({difference['low']:+.1f} to {difference['high']:+.1f})"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    lines = read(out)
    seeds = sorted({one["seed"] for one in lines})
    table = rows(lines, seeds)
    commits = sorted({one["commit"] for one in lines})
    (rounds,) = {one["rounds"] for one in lines}
    facts = {"seeds": seeds, "rounds": rounds, "cells": len(lines), "commits": commits, "rows": table}
    (out / "paired.json").write_text(json.dumps({**provenance(), **facts}, indent=1) + "\n")
    about = (
        f"One of {HOSPITALS} hospitals in 3 groups by labels attacks; {rounds} rounds of {TRAINING.local_steps} steps; "
        f"seeds {', '.join(map(str, seeds))}; commits {', '.join(commits)}; {len(lines)} cells. Accuracy of the honest "
        "hospitals in percent; differences in points, paired by seed, with intervals of 95 percent by Student's t."
    )
    columns = ("method", "attack", "defence", "accuracy", "worst hospital", "against no attack, no defence")
    columns = (*columns, "against no defence", "attacker caught", "honest ones caught")
    text = ["# Attackers who know the defences, on blood cells", "", about, ""]
    text += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in table:
        text.append(
            f"| {row['method']} | {row['attack']} | {row['defence']} | {row['accuracy']:.1f} "
            f"| {row['worst hospital']:.1f} | {shown(row['against no attack and no defence'])} "
            f"| {shown(row['against no defence'])} | {'' if row['caught'] is None else format(row['caught'], '.0%')} "
            f"| {row['honest caught']:.0%} |"
        )
    (out / "paired.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
