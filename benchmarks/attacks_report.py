# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of the cells that `attacks` left: of each attack and defence, and paired by seed with runs without attack.

``attacks.md`` has all that was measured. ``paired.json`` and ``paired.md`` are about attackers who know the defences,
over several seeds. They have a row for which all seeds were measured.

    python benchmarks/attacks.py --out attacks-adaptive --rounds 8 --attackers 1 --seeds 0 1 2 --attacks none ALIE
    python benchmarks/attacks_report.py --out attacks-adaptive
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from attacks import ADAPTIVE, ATTACKS, DEFENCES, HOSPITALS, METHODS, TRAINING, read
from kept import interval

# ---- All that was measured ----


def table(lines: list[dict[str, Any]], attackers: int, value: Callable[[dict[str, Any]], str]) -> list[str]:
    """A Markdown table of one value: attacks and methods down, defences across, as far as there is anything to say."""
    texts: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        if line["attackers"] in (0, attackers) and value(line):
            texts.setdefault((line["attack"], line["method"]), {})[line["defence"]] = value(line)
    measured = [name for name in DEFENCES if any(name in row for row in texts.values())]
    rows = [f"| attack | method | {' | '.join(measured)} |", "|---|---|" + "---|" * len(measured)]
    for row in product(ATTACKS + ADAPTIVE, METHODS):
        if row in texts:
            rows.append(f"| {row[0]} | {row[1]} | {' | '.join(texts[row].get(name, '') for name in measured)} |")
    return rows


def markdown(lines: list[dict[str, Any]]) -> str:
    """``attacks.md``."""
    rounds, seeds = ({line[key] for line in lines} for key in ("rounds", "seed"))
    commits = ", ".join(sorted({line["commit"] for line in lines}))
    majorities = [f"{100 * share:.1f}" for share in sorted({line["majority"] for line in lines})]
    about = (
        f"{HOSPITALS} hospitals in 3 groups by labels, {max(rounds)} rounds of {TRAINING.local_steps} steps; seeds: "
        f"{', '.join(map(str, sorted(seeds)))}; commits {commits}; `python benchmarks/attacks.py`. The honest "
        f"hospitals' own majority class: {majorities[0]} to {majorities[-1]} percent, as there are 9, 11 or 12 of them."
    )
    text = ["# Attacks on blood cells", "", about]
    for attackers in sorted({line["attackers"] for line in lines} - {0}):
        text += ["", f"## {attackers} of {HOSPITALS} hospitals attack"]
        text += ["", "Accuracy of the honest hospitals, percent:", ""]
        text += table(lines, attackers, lambda line: f"{100 * line['accuracy']:.1f}")
        text += ["", "Attack success, percent of the honest hospitals' test images that get the attacker's label:", ""]
        text += table(lines, attackers, lambda line: "" if line["success"] is None else f"{100 * line['success']:.1f}")
        text += ["", "Attackers that end in a cluster without honest hospitals / that the records name, percent:", ""]
        text += table(
            lines, attackers, lambda line: line["attackers"] and f"{_share(line['alone'])} / {_share(line['caught'])}"
        )
    text += ["", "Honest hospitals that a defence clipped or left out at least once, percent, without attack:", ""]
    text += table(lines, 0, lambda line: _share(line["honest_caught"]))
    return "\n".join(text) + "\n"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


# ---- Paired by seed ----


def difference(values: list[float]) -> dict[str, float]:
    """The mean of paired differences over seeds, and its interval of 95 percent."""
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
                "against no attack and no defence": difference(
                    [a - 100 * line["accuracy"] for a, line in zip(accuracy, clean, strict=True)]
                ),
                "against no defence": difference(
                    [a - 100 * line["accuracy"] for a, line in zip(accuracy, bare, strict=True)]
                ),
                "caught": None if attack == "none" else float(np.mean([line["caught"] for line in here])),
                "honest caught": round(float(np.mean([line["honest_caught"] for line in here])), 2),
            }
        )
    return table


def paired(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """``paired.json``."""
    seeds = sorted({line["seed"] for line in lines})
    (rounds,) = {line["rounds"] for line in lines}
    commits = sorted({line["commit"] for line in lines})
    return {"seeds": seeds, "rounds": rounds, "cells": len(lines), "commits": commits, "rows": rows(lines, seeds)}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of the cells")
    out = parser.parse_args().out
    lines = read(out)
    (out / "attacks.md").write_text(markdown(lines))
    if len({line["seed"] for line in lines}) > 1:
        content = paired(lines)
        (out / "paired.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
