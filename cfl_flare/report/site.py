# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A site's own report of a run: from what it keeps itself, about its own participants alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cfl_flare.core.config import require
from cfl_flare.report import vega
from cfl_flare.report.page import ROUNDS, Plot, Section, Series, Table, line_plot, page, sections, thinned
from cfl_flare.report.text import axis_title, cut, finite, measure_name, number, unique
from cfl_flare.results.metrics import leading, of_training
from cfl_flare.results.run_dir import HISTORY, Note, read_notes

# Participants and measures that are drawn.
PEOPLE, MEASURES = 10, 4


@dataclass(frozen=True)
class SiteHistory:
    """The lines of a site's history of a run."""

    notes: Sequence[Note]

    @cached_property
    def shown(self) -> dict[str, str]:
        """Each participant's name as it is shown."""
        return unique([*dict.fromkeys(note.participant for note in self.notes)])

    @cached_property
    def measures(self) -> list[str]:
        """Of served models; the first is that by which models are compared."""
        keys = dict.fromkeys(key for note in self.notes for key in note.metrics if key.startswith("served_"))
        names = [key.removeprefix("served_") for key in keys]
        first = leading([], names).name
        rest = [name for name in names if name != first and not of_training(name)]
        return [name for name in (first, *rest) if name in names][:MEASURES]


def site_report(folder: Path) -> str:
    """The report of a site's folder, as HTML; a `ConfigError` says that its history has no line yet."""
    history = SiteHistory(read_notes(folder))
    require(bool(history.notes), f"{folder / HISTORY} has no line yet; wait for the site's first round")
    title = f"{cut(folder.name)} in {cut(folder.parent.name)}"
    subtitle = "What this site keeps of the run, of its own participants alone: numbers as they were before any filter."
    return page(title, subtitle, sections(history, (result, measures, models, failures)))


def result(history: SiteHistory) -> Section:
    """What was measured last."""
    last = {note.participant: note for note in history.notes if note.metrics}
    trained = Counter(note.participant for note in history.notes if note.trained)
    rows = []
    for name, label in history.shown.items():
        metrics = last[name].metrics if name in last else {}
        after = str(last[name].round) if name in last else "-"
        values = [number(metrics.get(f"served_{measure}")) for measure in history.measures]
        rows.append([label, str(trained[name]), after, *values])
    rounds = len({note.round for note in history.notes if note.trained})
    text = (
        f"{len(history.shown)} participants of this site, {rounds} rounds of training. Measures are of the served "
        "model, on each participant's own test split. There is no interval, so they claim nothing beyond these samples."
    )
    columns = ["participant", "rounds trained", "after round", *map(measure_name, history.measures)]
    return Section("Result", [text], tables=[("Measured last", Table(columns, rows))])


def measures(history: SiteHistory) -> Section | None:
    """Each measure over rounds, a line for each participant."""
    plots = []
    drawn = thinned([*history.shown], PEOPLE)
    for measure in history.measures:
        lines: Series = {}
        for note in history.notes:
            value = finite(note.metrics.get(f"served_{measure}"))
            if note.participant in drawn and value is not None:
                lines.setdefault(history.shown[note.participant], {})[note.round] = value
        series = {label: {r: line[r] for r in thinned([*line], ROUNDS)} for label, line in lines.items()}
        if series:
            text = "Of the model that the participant was served after that many rounds."
            plots.append(line_plot(f"{measure_name(measure)} by round", text, series, axis_title(measure)))
    people = len(history.shown)
    notes = [f"{len(drawn)} of {people} participants are drawn."] if len(drawn) < people else []
    return Section("Measures by round", plots=plots, notes=notes) if plots else None


def models(history: SiteHistory) -> Section | None:
    """Which model each participant was sent, where that was one."""
    single = [note for note in history.notes if len(note.models) == 1]
    if not single:
        return None
    names = unique([*dict.fromkeys(note.models[0] for note in single)])
    rounds = {*thinned(sorted({note.round for note in single}), ROUNDS)}
    people = {name: i for i, name in enumerate(thinned([*history.shown], vega.NAMED))}
    cells = [
        {"i": people[note.participant], "name": history.shown[note.participant], "c": names[note.models[0]]}
        | {"r": str(note.round), "n": note.round}
        for note in single
        if note.participant in people and note.round in rounds
    ]
    spec = {
        "height": max(60, 22 * len(people)),
        "data": {"values": cells},
        "mark": vega.CELL,
        "encoding": {
            "x": {**vega.ROUNDS, "sort": {"field": "n"}, "title": "after round"},
            "y": vega.names({}),
            "color": vega.colour([*names.values()]),
            "tooltip": vega.tips(name="participant", r="after round", c="model"),
        },
    }
    times = Counter((note.participant, note.models[0]) for note in single)
    rows = [[history.shown[name], names[model], str(count)] for (name, model), count in times.items()]
    text = "Which of the run's models this site's participants were sent; who else has them is not known here."
    table = Table(("participant", "model", "rounds"), rows)
    return Section("Models", plots=[Plot("Models by round", text, spec, table)])


def failures(history: SiteHistory) -> Section:
    """The failures of the site's participants, as the server was told of them."""
    times = Counter((note.participant, note.failed) for note in history.notes if note.failed)
    if not times:
        return Section("Failures", ["No participant failed in a round."])
    rows = [[history.shown[name], cut(code), str(count)] for (name, code), count in times.items()]
    text = "The server was told these codes. The reasons are in the job's log at this site."
    return Section("Failures", [text], tables=[("Failures", Table(("participant", "code", "rounds"), rows))])
