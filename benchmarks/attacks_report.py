# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What attackers who know the defences do, paired by seed with runs without attack.

There is a row for each method, attack and defence of which all seeds were measured.

    python benchmarks/attacks.py --out attacks-adaptive --rounds 8 --attackers 1 --seeds 0 1 2 --attacks none ALIE
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from attacks import ADAPTIVE, DEFENCES, METHODS
from kept import interval


def difference(accuracy: list[float], others: list[dict[str, Any]]) -> dict[str, float]:
    """The mean of paired differences over seeds, and its interval of 95 percent."""
    values = [mine - 100 * line["accuracy"] for mine, line in zip(accuracy, others, strict=True)]
    return {name: round(end, 1) for name, end in zip(("mean", "low", "high"), interval(values))}


def rows(lines: list[dict[str, Any]], seeds: list[int]) -> list[dict[str, Any]]:
    """By method, attack and defence: accuracy, what the attack and the defence changed, and who was caught."""
    cells = {(line["method"], line["attack"], line["defence"], line["seed"]): line for line in lines}
    table = []
    for method, attack, defence in product(METHODS, ("none", *ADAPTIVE), DEFENCES):
        sets = ((method, attack, defence), (method, "none", "none"), (method, attack, "none"))
        if not all((*key, seed) in cells for key in sets for seed in seeds):
            continue
        here, clean, bare = ([cells[(*key, seed)] for seed in seeds] for key in sets)
        accuracy, worst = ([100 * line[key] for line in here] for key in ("accuracy", "worst"))
        table.append(
            {
                "method": method,
                "attack": attack,
                "defence": defence,
                "accuracy": round(float(np.mean(accuracy)), 1),
                "worst hospital": round(float(np.mean(worst)), 1),
                "against no attack and no defence": difference(accuracy, clean),
                "against no defence": difference(accuracy, bare),
                "caught": None if attack == "none" else float(np.mean([line["caught"] for line in here])),
                "honest caught": round(float(np.mean([line["honest_caught"] for line in here])), 2),
            }
        )
    return table


def paired(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """``paired.json``."""
    seeds = sorted({line["seed"] for line in lines})
    return {"seeds": seeds, "rows": rows(lines, seeds)}
