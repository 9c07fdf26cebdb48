# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a study: whether to cluster, who gains, and how that was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.clusters import number_of_clusters
from cfl_flare.extensions.report.facts import settings_table
from cfl_flare.extensions.report.page import (
    Plot,
    Section,
    Table,
    View,
    page,
    sections,
    thinned,
)
from cfl_flare.extensions.report.who import who
from cfl_flare.results.comparison import CHANCE, GAINS, LOSES, UNKNOWN
from cfl_flare.results.remarks import listed
from cfl_flare.results.run_dir import SUMMARY, Run, load_run
from cfl_flare.results.study import SEARCH, load_study
from cfl_flare.results.study_tables import (
    AGAINST,
    candidates_table,
    shown,
)
from cfl_flare.results.wording import (
    cut,
    finite,
    interval,
    measure_name,
    number,
    signed,
    told_apart,
)

# Sentences of a verdict that are shown, and hospitals in a plot and in a note.
SENTENCES, ROWS, NAMED = 20, 80, 20
# What is said of a hospital, by colour and by shape: who does not see one of them sees the other.
OTHER = "other"
KINDS = {
    GAINS: ("#009E73", "triangle-up"),
    LOSES: ("#D55E00", "triangle-down"),
    CHANCE: ("#0072B2", "circle"),
    UNKNOWN: ("#7F7F7F", "diamond"),
    OTHER: ("#CC79A7", "square"),
}
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
    if view.verdict is None or not view.verdict["hospitals"]:
        return None
    people = view.verdict["hospitals"]
    shown = told_apart(person["name"] for person in people)
    plots, notes = list[Plot](), list[str]()
    for key, words in AGAINST.items():
        gains = [
            (name, person, person[key])
            for name, person in zip(shown, people)
            if person[key] is not None
        ]
        unknown = [name for name, _, gain in gains if finite(gain["gain"]) is None]
        if gains:
            plots.append(_forest(f"Gain {words}", gains, view.measure_name))
        else:
            notes.append(f"There is no gain {words}: that is what was chosen.")
        if unknown:
            notes.append(
                f"No difference {words} could be measured at {listed(unknown, NAMED)}."
            )
        if len(gains) - len(unknown) > ROWS:
            notes.append(
                f"{ROWS} of {len(gains) - len(unknown)} hospitals are drawn, evenly spaced."
            )
    text = (
        f"What {cut(view.verdict['chosen']['title'], 200)} brings each hospital on its own test samples. Intervals are "
        "of its patients alone, and hold together for all hospitals with 95 %: they decide what is said of each."
    )
    return Section("What each hospital gains", [text], plots, notes=notes)


def _forest(
    title: str,
    gains: Sequence[tuple[str, dict[str, Any], dict[str, Any]]],
    measure: str,
) -> Plot:
    """A row for each hospital; those without a number only in the table."""
    known = [row for row in gains if finite(row[2]["gain"]) is not None]
    unknown = [row for row in gains if finite(row[2]["gain"]) is None]
    points = [
        {
            "i": i,
            "name": name,
            "v": finite(gain["gain"]),
            "lo": finite(gain["low"]),
            "hi": finite(gain["high"]),
        }
        | {"c": gain["says"] if gain["says"] in KINDS else OTHER, "n": person["tested"]}
        for i, (name, person, gain) in enumerate(thinned(known, ROWS))
    ]
    rows = []
    for name, person, gain in (*known, *unknown):
        difference = (
            signed(gain["gain"]),
            interval((gain["low"], gain["high"])),
            cut(gain["says"]),
        )
        rows.append(
            [
                name,
                number(person["tested"]),
                number(person["value"]),
                *difference,
                number(gain["needed"]),
            ]
        )
    columns = (
        "hospital",
        "test samples",
        measure,
        "gain",
        "95 % interval",
        "what can be said",
    )
    text = (
        "A mark is a hospital's gain with its interval, the largest first; right of the dashed line it is better off. "
        "Colour and shape are what can be said: cannot tell means too few test samples."
    )
    return Plot(
        title,
        text,
        _forest_spec(points),
        Table((*columns, "samples needed to tell"), rows),
    )


def _forest_spec(points: list[dict[str, Any]]) -> vega.Spec:
    kinds = [kind for kind in KINDS if any(point["c"] == kind for point in points)]
    colours, shapes = (
        {"domain": kinds, "range": [KINDS[kind][part] for kind in kinds]}
        for part in (0, 1)
    )
    by_kind: vega.Spec = {"field": "c", "type": "nominal", "legend": {"title": None}}
    gain = vega.quantity("v", "gain")
    shared: vega.Spec = {
        "y": vega.names({"labelLimit": 110}),
        "color": {**by_kind, "scale": colours},
        "tooltip": vega.tips(
            name="hospital", c="it", v="gain", lo="from", hi="to", n="test samples"
        ),
    }
    marks = {
        "mark": {"type": "point", "filled": True, "opacity": 1, "size": 70},
        "encoding": {**shared, "x": gain, "shape": {**by_kind, "scale": shapes}},
    }
    at_zero = {
        "data": {"values": [{}]},
        "mark": vega.DASHED,
        "encoding": {"x": {"datum": 0}},
    }
    return {
        "height": max(60, 18 * len(points)),
        "data": {"values": points},
        "layer": [at_zero, vega.intervals("x", gain, shared), marks],
    }


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
