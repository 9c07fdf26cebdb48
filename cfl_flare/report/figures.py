# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run, of several runs and of a partition, from the plots of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from cfl_flare.core.files import atomic_write
from cfl_flare.report.html.bundle import pictures
from cfl_flare.report.html.clusters import quality, sizes
from cfl_flare.report.html.comparison import Runs, over_rounds, sizes_of_runs
from cfl_flare.report.html.cross_site import cross_site
from cfl_flare.report.html.measures import convergence
from cfl_flare.report.html.moves import moves
from cfl_flare.report.html.number_of_clusters import number_of_clusters
from cfl_flare.report.html.section import Plot, Section
from cfl_flare.report.html.specs import CONFIG
from cfl_flare.report.html.text import cut
from cfl_flare.report.html.view import View
from cfl_flare.results.key_metric import ACCURACY

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run

WIDTH = 620
# A run's files, and the sections of its report whose plots they show.
FIGURES: Mapping[str, Callable[[View], Section | None]] = {
    ACCURACY: convergence,
    "cluster_sizes": sizes,
    "flows": moves,
    "analysis": quality,
    "number_of_clusters": number_of_clusters,
    "cross_site": cross_site,
}


def draw(run: Run) -> list[Path]:
    """Draws a run's figures into its folder, those of `FIGURES` for which it has values.

    ``accuracy.png`` is ``key_metric.png`` where another metric judges the run.

    Returns:
        The files.
    """
    sections = {name: partial(make, View(run)) for name, make in FIGURES.items()}
    return _draw(run.folder, run.name, {run.metric.name}, sections)


def draw_comparison(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draws the runs' metric over rounds, and the sizes of the clusters if at least two of them cluster.

    Returns:
        The files.
    """
    them = Runs(runs, folder)
    sections = {ACCURACY: partial(over_rounds, them), "cluster_sizes": partial(sizes_of_runs, them)}
    return _draw(folder, f"{len(runs)} runs", {run.metric.name for run in runs}, sections)


def _draw(
    folder: Path, title: str, metrics: set[str], sections: Mapping[str, Callable[[], Section | None]]
) -> list[Path]:
    plots = {}
    for name, make in sections.items():
        if (section := make()) is not None and section.plots:
            file = "key_metric" if name == ACCURACY and metrics != {ACCURACY} else name
            plots[folder / f"{file}.png"] = section.plots
    return save(title, plots)


def save(title: str, plots: Mapping[Path, Sequence[Plot]]) -> list[Path]:
    """Writes pictures in the formats of the paths' endings, each as a whole or not at all.

    Args:
        title: of all of them; it may be anybody's name.
        plots: those of each picture, one below the other.

    Raises:
        ConfigError: vl-convert is not installed, or does not run here.
        FileError: a picture cannot be written.
    """
    specs = [(path.suffix.lstrip("."), _figure(title, some)) for path, some in plots.items()]
    for path, content in zip(plots, pictures(specs)):
        atomic_write(path, content, durable=False)
    return [*plots]


def _figure(title: str, plots: Sequence[Plot]) -> dict[str, Any]:
    views = [{"width": WIDTH, "title": _heading(plot.title, plot.text), **_still(plot.spec)} for plot in plots]
    legend = {**CONFIG["legend"], "columns": 4}
    return {
        "config": {**CONFIG, "background": "white", "font": "sans-serif", "legend": legend},
        "title": _heading(title),
        "vconcat": views,
        "resolve": {"scale": dict.fromkeys(("color", "strokeDash", "shape", "size"), "independent")},
    }


def _heading(text: str, below: str = "") -> dict[str, Any]:
    """A title as text, which Vega interprets in no way."""
    lines = {"subtitle": wrap(below, 105), "fontSize": 12, "frame": "group"} if below else {"fontSize": 14}
    return {"text": cut(text), "anchor": "start", **lines}


def _still(spec: Any) -> Any:
    """A specification without what answers to a pointer."""
    if isinstance(spec, list):
        return [_still(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    moving = ("params", "tooltip", *(["opacity"] if isinstance(spec.get("opacity"), dict) else []))
    return {key: _still(part) for key, part in spec.items() if key not in moving}
