# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each method gains over FedAvg at the hospitals of the kept results, as a figure.

python benchmarks/hospital_figure.py --out docs/images/hospitals.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from colours import COLOURS
from hospital_gains import gaining, losses
from kept import group, interval, kept, paired
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from png import save

BASE, FIGURE, SEEDS = "fedavg", "pooled_auroc", 3
PANELS = {"stroke": "Stroke, 187 hospitals", "heart": "Heart disease, 4 hospitals"}


def differences(result: str) -> dict[str, list[float]]:
    """Of each row with enough seeds, by the mean, to FedAvg."""
    seeds: dict[str, set[int]] = {}
    for cell in kept(result):
        seeds.setdefault(cell.facts["row"], set()).add(cell.facts["seed"])
    shown = (row for row in seeds if row not in (BASE, "majority"))  # the latter would be far to the left
    rows = [row for row in shown if seeds[row] == seeds[BASE] and len(seeds[row]) >= SEEDS]
    base = group(result, "natural", BASE)
    found = {row: paired(group(result, "natural", row), base, FIGURE) for row in rows}
    return dict(sorted(found.items(), key=lambda item: sum(item[1])))


def forest(axes: Axes, result: str) -> None:
    """A line a row: the mean difference and its interval, in blue with a private bias; how many hospitals gain."""
    found = differences(result)
    base = losses(group(result, "natural", BASE))
    for i, (row, own) in enumerate(found.items()):
        mean, low, high = interval(own)
        axes.plot([low, high], [i, i], color=COLOURS[0 if "bias" in row else 1], linewidth=1.5)
        axes.plot(mean, i, "o", color=COLOURS[0 if "bias" in row else 1], markersize=4)
        gain, of = gaining(losses(group(result, "natural", row)), base)
        axes.annotate(f"{gain} of {of}", (1.01, i), xycoords=("axes fraction", "data"), va="center", fontsize="x-small")
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(found)), list(found), fontsize="small")
    axes.set(title=PANELS[result], xlabel="points of pooled AUROC above FedAvg, 95 % interval")
    axes.annotate("hospitals\nthat gain", (1.01, 1.01), xycoords="axes fraction", fontsize="x-small")


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, required=True)
    drawn = Figure(figsize=(12, 7.5), layout="constrained")
    for axes, result in zip(drawn.subplots(1, 2), PANELS):
        forest(axes, result)
    save(drawn, options.parse_args().out, dpi=110)


if __name__ == "__main__":
    main()
