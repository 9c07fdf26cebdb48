# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The pictures of the documents, drawn from the kept cells by `reports`, the script beside this one."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
from colours import COLOURS
from hospital_gains import gaining, losses
from kept import group, interval, kept, paired, signed, value
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from plans.figures import FIGURES
from png import save
from which_method import RESULTS, places, rows_of

BASE, FIGURE, SEEDS = "fedavg", "pooled_auroc", 3
PANELS = {"stroke": "Stroke, 187 hospitals", "heart": "Heart disease, 4 hospitals"}
SHOWN = ("accuracy", "macro_f1", "ari", "clusters_in_use")


def differences(result: str) -> dict[str, list[float]]:
    """Of each row with enough seeds, by the mean, to FedAvg."""
    seeds: dict[str, set[int]] = {}
    for cell in kept(result):
        seeds.setdefault(cell.facts["row"], set()).add(cell.facts["seed"])
    shown = (row for row in seeds if row not in (BASE, "majority"))  # the latter would be far to the left
    rows = [row for row in shown if seeds[row] == seeds[BASE] and len(seeds[row]) >= SEEDS]
    base = group(result, "natural", BASE)
    to_base = {row: paired(group(result, "natural", row), base, FIGURE) for row in rows}
    return dict(sorted(to_base.items(), key=lambda item: sum(item[1])))


def forest(axes: Axes, result: str) -> None:
    """A line a row: the mean difference and its interval, in blue with a private bias; how many hospitals gain."""
    gains = differences(result)
    base = losses(group(result, "natural", BASE))
    for i, (row, values) in enumerate(gains.items()):
        mean, low, high = interval(values)
        axes.plot([low, high], [i, i], color=COLOURS[0 if "bias" in row else 1], linewidth=1.5)
        axes.plot(mean, i, "o", color=COLOURS[0 if "bias" in row else 1], markersize=4)
        gain, of = gaining(losses(group(result, "natural", row)), base)
        axes.annotate(f"{gain} of {of}", (1.01, i), xycoords=("axes fraction", "data"), va="center", fontsize="x-small")
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(gains)), list(gains), fontsize="small")
    axes.set(title=PANELS[result], xlabel="points of pooled AUROC above FedAvg, 95 % interval")
    axes.annotate("hospitals\nthat gain", (1.01, 1.01), xycoords="axes fraction", fontsize="x-small")


def draw_hospitals(path: Path) -> None:
    """What each method gains over FedAvg at the hospitals: a panel a set."""
    drawn = Figure(figsize=(12, 7.5), layout="constrained")
    for axes, result in zip(drawn.subplots(1, 2), PANELS):
        forest(axes, result)
    save(drawn, path, dpi=110)


def draw_deals(path: Path) -> None:
    """IFCA over deals of the data and starts: a panel a figure, a point a start, a colour a method."""
    cells = kept("starts")
    rows = list(dict.fromkeys(cell.facts["row"] for cell in cells))
    figure = Figure(figsize=(4 * len(SHOWN), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(SHOWN)), SHOWN):
        for i, row in enumerate(rows):
            dealt = [cell for cell in cells if cell.facts["row"] == row]
            deals = [cell.facts["settings"]["data_seed"] + 0.25 * i for cell in dealt]
            axes.plot(deals, [value(cell, name) for cell in dealt], "ox"[i % 2], color=COLOURS[i], label=row, alpha=0.8)
        axes.set(title=FIGURES[name].title, xlabel="deal of the data")
    axes.legend(fontsize="small")
    save(figure, path)


def draw_which_method(path: Path) -> None:
    """The table of `which_method` as colours; places at which a row was not measured stay white."""
    laid_out = places(RESULTS, "accuracy")
    rows = rows_of(laid_out)
    table = [[statistics.fmean(d) if (d := place.differences(row)) else np.nan for place in laid_out] for row in rows]
    drawn = Figure(figsize=(1.1 * len(laid_out) + 3, 0.3 * len(rows) + 2), layout="constrained")
    axes = drawn.subplots()
    image = axes.imshow(np.array(table), cmap="RdBu", vmin=-30, vmax=30, aspect="auto")
    axes.set_xticks(range(len(laid_out)), [place.name for place in laid_out], rotation=40, ha="right", fontsize="small")
    axes.set_yticks(range(len(rows)), rows, fontsize="small")
    for i, line in enumerate(table):
        for j, number in enumerate(line):
            if not np.isnan(number):
                axes.text(j, i, signed(number, 1), ha="center", va="center", fontsize="x-small")
    drawn.colorbar(image, label="points of accuracy above the better of local and fedavg")
    save(drawn, path)
