# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a study: whether to cluster, who gains, and how that was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.clusters import number_of_clusters
from cfl_flare.extensions.report.facts import settings_table
from cfl_flare.extensions.report.gains import show_gains
from cfl_flare.extensions.report.page import Plot, Section, Table, View, page, sections
from cfl_flare.extensions.report.who import who
from cfl_flare.results.run_dir import SUMMARY, Run, load_run
from cfl_flare.results.study import SEARCH, load_study
from cfl_flare.results.study_tables import candidates_table, shown
from cfl_flare.results.wording import cut, finite, measure_name

# Sentences of a verdict that are shown.
SENTENCES = 20
VALIDATION, DROPPED, TEST = "validation", "validation, then dropped", "test"
LACKING = "The folder lacks the run {}, which says {}."
SHAPES = {VALIDATION: "circle", DROPPED: "cross", TEST: "diamond"}


@dataclass(frozen=True)
class StudyView:
    """A study as `cfl_flare.results.study.load_study` read it, with what several sections need of it."""

    study: Mapping[str, Any]
    folder: Path

    @property
    def verdict(self) -> dict[str, Any] | None:
        """The verdict; None if the study is not finished."""
        return cast("dict[str, Any] | None", self.study["verdict"])

    @property
    def measure_name(self) -> str:
        """What candidates are compared by, as it is called on the page."""
        return (
            "the metric"
            if self.verdict is None
            else measure_name(self.verdict["metric"])
        )

    @property
    def rounds(self) -> dict[str, int]:
        """How many rounds each candidate trained that was compared, in the candidates' order."""
        return {
            name: rung["rounds"]
            for rung in self.study["rungs"]
            for name in (*rung["means"], *rung["dropped"])
        }

    @cached_property
    def shown(self) -> dict[str, str]:
        return shown(self.study)

    def run(self, name: str) -> Run | None:
        """A run in the study's folder; None if there is none. A name may be anybody's: it is looked for, not opened."""
        names = [
            path.name
            for path in self.folder.iterdir()
            if path.is_dir() and not path.is_symlink()
        ]
        return (
            load_run(self.folder / name)
            if name in names and (self.folder / name / SUMMARY).is_file()
            else None
        )


def study_report(folder: Path) -> str:
    """The report of a study, as HTML; a ConfigError if the folder holds none, or its file is damaged."""
    view = StudyView(load_study(folder), folder)
    count = 0 if view.verdict is None else len(view.verdict["hospitals"])
    of = f"{count} hospitals and " if count else ""
    subtitle = f"A study of {of}{len(view.shown)} candidates, judged by {view.measure_name}; folder {cut(folder.name)}"
    makers = (verdict, hospitals, candidates, search, together, cost, settings)
    return page("Should we cluster?", subtitle, sections(view, makers))


def verdict(view: StudyView) -> Section:
    """What the study says, in its sentences."""
    if view.verdict is None:
        rungs = view.study["rungs"]
        done = (
            f"{len(rungs)} of its comparisons are made"
            if rungs
            else "no comparison is made yet"
        )
        return Section(
            "Verdict",
            [
                f"There is no verdict yet: {done}. The same command goes on with the study."
            ],
        )
    text = [cut(sentence, 5000) for sentence in view.verdict["sentences"][:SENTENCES]]
    short = view.verdict["rounds"] < view.study["rounds"]
    notes = (
        [f"It is about {view.verdict['rounds']} of {view.study['rounds']} rounds."]
        if short
        else []
    )
    return Section("Verdict", text, notes=notes)


def hospitals(view: StudyView) -> Section | None:
    """Each hospital's gain over one model and over training alone; None without a verdict."""
    if view.verdict is None:
        return None
    return show_gains(view.verdict, view.measure_name)


def candidates(view: StudyView) -> Section | None:
    """Each candidate at each comparison, and on test samples; None before the first one."""
    if not view.shown:
        return None
    stages = [
        (f"{rung['rounds']} rounds", VALIDATION, rung["means"], rung["dropped"])
        for rung in view.study["rungs"]
    ]
    stages.append(
        ("test", TEST, {} if view.verdict is None else view.verdict["tested"], {})
    )
    points = [
        {
            "i": i,
            "x": at,
            "v": finite(mean),
            "c": view.shown[name],
            "s": DROPPED if name in dropped else kind,
        }
        for i, (at, kind, means, dropped) in enumerate(stages)
        for name, mean in means.items()
        if name in view.shown
    ]
    text = (
        "Candidates train side by side and are compared on validation samples. Those that are clearly worse than the "
        "best one are dropped; test samples are measured once, of those that are left."
    )
    what = (
        "Means over the hospitals, weighted by training samples. Circles are of validation samples, and crosses of "
        "those that were dropped by them; diamonds are of test samples."
    )
    spec = _comparisons_spec(points, [*view.shown.values()])
    plot = Plot(
        f"{view.measure_name} at each comparison",
        what,
        spec,
        candidates_table(view.study),
    )
    return Section("The candidates", [text], [plot])


def _comparisons_spec(points: list[dict[str, Any]], titles: list[str]) -> vega.Spec:
    kinds = [kind for kind in SHAPES if any(point["s"] == kind for point in points)]
    shapes = {"domain": kinds, "range": [SHAPES[kind] for kind in kinds]}
    sort = {"field": "i", "op": "min"}
    shared = {
        "x": {
            "field": "x",
            "type": "ordinal",
            "sort": sort,
            "title": None,
            "axis": vega.UPRIGHT,
        },
        "y": vega.quantity("v", "mean", zero=False),
        "color": {
            **vega.colour(titles),
            "legend": {"title": None, "columns": 1, "labelLimit": 300},
        },  # titles are long
        "opacity": vega.UNCHOSEN_FADES,
    }
    lines = {
        "params": vega.CHOSEN,
        "transform": [{"filter": f"datum.s != '{TEST}'"}],
        "mark": {"type": "line", "strokeWidth": 1.8, "aria": False},
        "encoding": shared,
    }
    marks = {
        "mark": {"type": "point", "filled": True, "size": 80},
        "encoding": {
            **shared,
            "shape": {"field": "s", "type": "nominal", "scale": shapes, "legend": None},
            "tooltip": vega.tips(c="candidate", x="at", s="samples", v="mean"),
        },
    }
    return {"height": 300, "data": {"values": points}, "layer": [lines, marks]}


def search(view: StudyView) -> Section | None:
    """How the number of clusters was found; None before that."""
    if view.study["found"] is None:
        return None
    text = f"After {view.study['searched']} rounds, before the candidates trained: {cut(view.study['words'], 500)}."
    run = view.run(SEARCH)
    section = None if run is None else number_of_clusters(View(run))
    if section is None:
        return Section(
            "The number of clusters",
            [text],
            notes=[LACKING.format(SEARCH, "by which criterion")],
        )
    return replace(
        section,
        text=[text],
        plots=[plot for plot in section.plots if len(plot.table.rows) > 1],
    )


def together(view: StudyView) -> Section | None:
    """Who is with whom in the chosen candidate; None if it has no clusters."""
    if view.verdict is None or not view.verdict["chosen"]["clusters"]:
        return None
    chosen = view.verdict["chosen"]
    run = view.run(chosen["name"])
    if run is None:
        return Section(
            "Who is with whom",
            notes=[LACKING.format(cut(chosen["name"]), "who is with whom")],
        )
    section = who(View(run))
    return (
        None
        if section is None
        else replace(section, text=[f"In {cut(chosen['title'], 200)}.", *section.text])
    )


def cost(view: StudyView) -> Section:
    """The rounds that the study took, and those that training all candidates to the end would take."""
    spent, last = view.study["cost"], view.study["rounds"]
    share = (
        f" ({spent['rounds'] / spent['everything']:.0%})" if spent["everything"] else ""
    )
    text = (
        f"The study took {spent['rounds']} rounds, {spent['everything']} if all candidates had trained to the end"
        f"{share}, and {spent['seconds']:.0f} seconds."
    )
    if not view.shown:
        return Section("What it cost", [text])
    bars = [("looking for the number of clusters", view.study["searched"], 0)]
    for name, title in view.shown.items():
        trained = min(view.rounds[name], last)
        bars.append((title, trained, last - trained))
    parts = ("trained", "saved")
    values = [
        {"i": i, "name": title, "v": rounds, "c": parts[k], "k": k}
        for i, (title, *both) in enumerate(bars)
        for k, rounds in enumerate(both)
    ]
    colours = {"domain": parts, "range": [vega.COLOURS[0], "#B8BEC6"]}
    spec = {
        "height": 20 * len(bars),
        "data": {"values": values},
        "mark": "bar",
        "encoding": {
            "y": vega.names({"labelLimit": 160}),
            "x": vega.quantity("v", "rounds", axis=vega.WHOLE),
            "color": {
                "field": "c",
                "type": "nominal",
                "scale": colours,
                "legend": {"title": None},
            },
            "order": {"field": "k"},
            "tooltip": vega.tips(name="candidate", c="rounds", v="how many"),
        },
    }
    table = Table(
        ("candidate", "rounds trained", "rounds saved"),
        [[str(part) for part in bar] for bar in bars],
    )
    what = "Rounds that each candidate trained, and those that were saved because it was dropped or the study ended."
    return Section(
        "What it cost", [text], [Plot("Rounds by candidate", what, spec, table)]
    )


def settings(view: StudyView) -> Section:
    """The settings that all candidates share, and the candidates that were given."""
    values = dict(view.study["settings"])
    given = values.get("candidates")
    if isinstance(given, list):
        values["candidates"] = {
            str(c["name"]): c for c in given if isinstance(c, dict) and "name" in c
        }
    return Section("Settings", tables=[("Settings", settings_table(values))])
