# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run, of several runs and of a partition, from the plots of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from cfl_flare.core.files import atomic_write
from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.clusters import (
    moves,
    number_of_clusters,
    quality,
    sizes,
)
from cfl_flare.extensions.report.comparison import Runs, over_rounds, sizes_of_runs
from cfl_flare.extensions.report.measures import convergence, cross_site
from cfl_flare.extensions.report.page import Plot, Section, Table, View
from cfl_flare.results.metrics import ACCURACY
from cfl_flare.results.run_dir import Run
from cfl_flare.results.wording import cut

if TYPE_CHECKING:
    from cfl_flare.data import PartitionReport

WIDTH = 620
# A run's files, and the sections of its report whose plots they show.
FIGURES = {
    ACCURACY: convergence,
    "cluster_sizes": sizes,
    "flows": moves,
    "analysis": quality,
    "number_of_clusters": number_of_clusters,
    "cross_site": cross_site,
}


def draw(run: Run) -> list[Path]:
    """Draws a run's figures into its folder, those of `FIGURES` for which it has values, and returns the files.

    ``accuracy.png`` is ``key_metric.png`` where another metric judges the run.
    """
    return _draw(
        run.folder,
        run.name,
        [run],
        {name: make(View(run)) for name, make in FIGURES.items()},
    )


def draw_comparison(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draws the runs' metric over rounds, and the sizes of the clusters if at least two of them cluster."""
    compared = Runs(runs, folder)
    parts = {ACCURACY: over_rounds(compared), "cluster_sizes": sizes_of_runs(compared)}
    return _draw(folder, f"{len(runs)} runs", runs, parts)


def _draw(
    folder: Path, title: str, runs: Sequence[Run], parts: Mapping[str, Section | None]
) -> list[Path]:
    plots = {}
    for name, section in parts.items():
        if section is not None and section.plots:
            other = name == ACCURACY and any(
                run.metric.name != ACCURACY for run in runs
            )
            plots[folder / f"{'key_metric' if other else name}.png"] = section.plots
    return save(title, plots)


def save(title: str, plots: Mapping[Path, Sequence[Plot]]) -> list[Path]:
    """Writes pictures in the formats of the paths' endings, each as a whole or not at all.

    A picture's plots are one below another. The title may be anybody's name. A ConfigError says that vl-convert is not
    installed, or does not run here.
    """
    specs = [
        (path.suffix.lstrip("."), figure(title, shown)) for path, shown in plots.items()
    ]
    for path, content in zip(plots, vega.pictures(specs)):
        atomic_write(path, content)
    return [*plots]


def figure(title: str, plots: Sequence[Plot]) -> vega.Spec:
    """The specification of a picture: plots one below the other, with titles and without what answers to a pointer."""
    views = [
        {"width": WIDTH, "title": _heading(plot.title, plot.text), **_still(plot.spec)}
        for plot in plots
    ]
    legend = {**vega.CONFIG["legend"], "columns": 4}
    return {
        "config": {
            **vega.CONFIG,
            "background": "white",
            "font": "sans-serif",
            "legend": legend,
        },
        "title": _heading(title),
        "vconcat": views,
        "resolve": {
            "scale": dict.fromkeys(
                ("color", "strokeDash", "shape", "size"), "independent"
            )
        },
    }


def _heading(text: str, below: str = "") -> vega.Spec:
    """A title as text, which Vega interprets in no way."""
    lines = (
        {"subtitle": wrap(below, 105), "fontSize": 12, "frame": "group"}
        if below
        else {"fontSize": 14}
    )
    return {"text": cut(text), "anchor": "start", **lines}


def _still(spec: Any) -> Any:
    """A specification without what answers to a pointer."""
    if isinstance(spec, list):
        return [_still(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    moving = (
        "params",
        "tooltip",
        *(["opacity"] if isinstance(spec.get("opacity"), dict) else []),
    )
    return {key: _still(part) for key, part in spec.items() if key not in moving}


def draw_partition(report: PartitionReport, path: Path) -> Path:
    """Draws training samples by participant and class as bubbles whose area is their number (thesis Fig. A.1-A.4).

    Colours are the true groups; lines separate groups that are consecutive blocks. The path's ending determines the
    format.
    """
    participants, classes = report.train.shape
    total, most = int(report.train.sum()), int(report.train.max())
    groups = [*map(str, sorted({group for group in report.truth if group is not None}))]
    rows = [
        {
            "i": int(i),
            "y": int(y),
            "n": int(report.train[i, y]),
            "c": str(report.truth[i]),
        }
        for i, y in zip(*np.nonzero(report.train))
    ]
    starts = [
        i - 0.5
        for i in range(1, participants)
        if report.truth[i] != report.truth[i - 1]
    ]
    between = starts if len(starts) < len(groups) else []  # the groups are blocks
    axes = {
        name: {
            **vega.whole_axis(field, range(count), title),
            "scale": {"domain": [-0.7, count - 0.3], "nice": False},
        }
        for name, field, title, count in (
            ("x", "i", "participant", participants),
            ("y", "y", "class", classes),
        )
    }
    legend = {"title": "group"} if 1 < len(groups) <= 12 else None
    colours = {"domain": groups or ["None"], "range": vega.COLOURS}
    bubbles = {
        "mark": {"type": "point", "filled": True, "opacity": 0.8},
        "encoding": {
            **axes,
            "size": vega.quantity(
                "n", "samples", scale={"domain": [0, most], "range": [0, 150]}
            ),
            "color": {
                "field": "c",
                "type": "nominal",
                "scale": colours,
                "legend": legend,
            },
        },
    }
    rules = {
        "data": {"values": [{"x": x} for x in between]},
        "mark": {"type": "rule", "opacity": 0.4},
        "encoding": {"x": {**axes["x"], "field": "x"}},
    }
    width, height = (
        max(least, min(1600, 12 * count))
        for least, count in ((620, participants), (200, 2 * classes))
    )
    spec = {
        "width": width,
        "height": height,
        "data": {"values": rows},
        "layer": [rules, bubbles],
    }
    plot = Plot(
        f"{total} training samples",
        f"The largest bubble is {most}.",
        spec,
        Table((), ()),
    )
    return save(cut(report.rule), {path: [plot]})[0]
