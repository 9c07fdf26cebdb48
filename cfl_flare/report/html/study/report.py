# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a study: its sections, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cfl_flare.report.html.number_of_clusters import number_of_clusters
from cfl_flare.report.html.page import page
from cfl_flare.report.html.section import Section, Table, attempt
from cfl_flare.report.html.settings import MOST, WIDTH, flattened
from cfl_flare.report.html.study.candidates import candidates, cost
from cfl_flare.report.html.study.hospitals import hospitals
from cfl_flare.report.html.study.view import StudyView
from cfl_flare.report.html.text import cut
from cfl_flare.report.html.view import View
from cfl_flare.report.html.who import who
from cfl_flare.results.study import SEARCH, load_study

# Sentences of a verdict that are shown.
SENTENCES = 20


def study_report(folder: Path) -> str:
    """The report of a study, as HTML.

    Raises:
        ConfigError: the folder holds none, or its file is damaged.
    """
    view = StudyView(load_study(folder), folder)
    found = [attempt(make.__name__, partial(make, view)) for make in SECTIONS]
    hospitals_there = 0 if view.verdict is None else len(view.verdict["hospitals"])
    of = f"{hospitals_there} hospitals and " if hospitals_there else ""
    subtitle = f"A study of {of}{len(view.names)} candidates, judged by {view.measure_name}; folder {cut(folder.name)}"
    return page("Should we cluster?", subtitle, [one for one in found if one is not None])


def verdict(view: StudyView) -> Section:
    """What the study says, in its sentences."""
    if view.verdict is None:
        rungs = view.study["rungs"]
        done = f"{len(rungs)} of its comparisons are made" if rungs else "no comparison is made yet"
        return Section("Verdict", [f"There is no verdict yet: {done}. The same command goes on with the study."])
    said = [cut(sentence, 5000) for sentence in view.verdict["sentences"][:SENTENCES]]
    short = view.verdict["rounds"] < view.study["rounds"]
    notes = [f"It is about {view.verdict['rounds']} of {view.study['rounds']} rounds."] if short else []
    return Section("Verdict", said, notes=notes)


def search(view: StudyView) -> Section | None:
    """How the number of clusters was found; None before that."""
    if view.study["found"] is None:
        return None
    text = f"After {view.study['searched']} rounds, before the candidates trained: {cut(view.study['words'], 500)}."
    run = view.run(SEARCH)
    section = None if run is None else number_of_clusters(View(run))
    if section is None:
        return Section("The number of clusters", [text], notes=[_lacking(SEARCH, "by which criterion")])
    return replace(section, text=[text], plots=[plot for plot in section.plots if len(plot.table.rows) > 1])


def together(view: StudyView) -> Section | None:
    """Who is with whom in the chosen candidate; None if it has no clusters."""
    if view.verdict is None or not view.verdict["chosen"]["clusters"]:
        return None
    chosen = view.verdict["chosen"]
    run = view.run(chosen["name"])
    if run is None:
        return Section("Who is with whom", notes=[_lacking(chosen["name"], "who is with whom")])
    section = who(View(run))
    return None if section is None else replace(section, text=[f"In {cut(chosen['title'], 200)}.", *section.text])


def _lacking(name: str, what: str) -> str:
    return f"The folder lacks the run {cut(name)}, which says {what}."


def settings(view: StudyView) -> Section:
    """The settings that all candidates share, and the candidates that were given."""
    rows = [[cut(name, 100), cut(value, WIDTH)] for name, value in _settings(view.study["settings"])]
    return Section("Settings", tables=[("Settings", Table.of(("setting", "value"), rows, MOST))])


def _settings(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for part, value in found.items():
        if part == "candidates" and isinstance(value, list):
            value = {str(own["name"]): own for own in value if isinstance(own, dict) and "name" in own}
        yield from flattened(part, value)


SECTIONS: Sequence[Callable[[StudyView], Section | None]] = (
    verdict,
    hospitals,
    candidates,
    search,
    together,
    cost,
    settings,
)
