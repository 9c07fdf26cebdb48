# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A figure of how good every model is on every participant's test split, by the run's metric."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cfl_flare.core.files import read_text
from cfl_flare.report.files import save
from cfl_flare.report.labels import in_figure
from cfl_flare.results.key_metric import leading

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run

# Up to this number of cells, the values are written in them.
WRITTEN = 400
# Up to this number of participants, each is named; of more, every second, third, ...
NAMED = 150
# The columns of the file that are not metrics.
KEYS = ("participant", "site", "group", "cluster", "model")


def cross_site(run: Run, table: Path, path: Path) -> Path | None:
    """Draws a run's ``cross_site.csv``: one row per participant, by cluster, one column per model, its own framed.

    Returns:
        The path; None if nothing was measured.
    """
    lines = list(csv.DictReader(io.StringIO(read_text(table), newline="")))
    metrics = [name for name in (lines[0] if lines else ()) if name not in KEYS]
    if not metrics:
        return None
    metric = leading([run.metric], metrics)
    cluster = {line["participant"]: line["cluster"] for line in lines}
    people = sorted(cluster, key=lambda name: (len(cluster[name]), cluster[name]))  # cluster 10 after cluster 9
    models = list(dict.fromkeys(line["model"] for line in lines))
    values = np.full((len(people), len(models)), np.nan)
    for line in lines:
        if line[metric.name]:
            values[people.index(line["participant"]), models.index(line["model"])] = float(line[metric.name])
    figure = Figure(figsize=(min(20, 3 + 0.9 * len(models)), min(30, 1.5 + 0.28 * len(people))), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(values, aspect="auto", cmap="viridis" if metric.mode == "max" else "viridis_r")
    for row, name in enumerate(people):
        for column, model in enumerate(models):
            if model == f"cluster-{cluster[name]}":
                axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="red", linewidth=1.5))
            if values.size <= WRITTEN and np.isfinite(values[row, column]):
                box = {"facecolor": "white", "alpha": 0.6, "linewidth": 0, "pad": 1}
                axes.text(column, row, f"{values[row, column]:.2f}", ha="center", va="center", fontsize=7, bbox=box)
    axes.set_xticks(range(len(models)), [in_figure(m) for m in models], rotation=45, ha="right")
    step = -(-len(people) // NAMED)
    axes.set_yticks(range(0, len(people), step), [in_figure(p) for p in people[::step]], fontsize=7)
    axes.set_title(f"{in_figure(run.name)}: {in_figure(metric.name)} on each participant's test split", fontsize=10)
    figure.colorbar(image, ax=axes, label=in_figure(metric.name))
    return save(figure, path)
