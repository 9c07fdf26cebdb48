# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A site's own report of a run: from what it keeps itself, about its own participants alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from cfl_flare.core.config import require
from cfl_flare.report.html import curves, specs
from cfl_flare.report.html.page import page
from cfl_flare.report.html.section import Plot, Section, Table, attempt
from cfl_flare.report.html.text import cut, finite, measure_name, number, unique
from cfl_flare.report.html.view import ROUNDS, thinned
from cfl_flare.results.history import HISTORY, Note, read_notes
from cfl_flare.results.key_metric import leading, of_training

# Participants and measures that are drawn.
PEOPLE, MEASURES = 10, 4


@dataclass(frozen=True)
class Own:
    """A site's history of a run.

    Attributes:
        notes: its lines.
    """

    notes: Sequence[Note]

    @cached_property
    def shown(self) -> dict[str, str]:
        """Each participant's name as it is shown."""
        return unique([*dict.fromkeys(note.participant for note in self.notes)])

    @cached_property
    def measures(self) -> list[str]:
        """Of served models, that by which models are compared first."""
        names = dict.fromkeys(name for note in self.notes for name in note.metrics if name.startswith("served_"))
        plain = [name.removeprefix("served_") for name in names]
        first = leading([], plain).name
        rest = [name for name in plain if name != first and not of_training(name)]
        return [name for name in (first, *rest) if name in plain][:MEASURES]


def site_report(folder: Path) -> str:
    """The report of a site's folder, as HTML.

    Raises:
        ConfigError: there is no line in its history.
        FileError: the history is damaged.
    """
    own = Own(read_notes(folder))
    require(bool(own.notes), f"{folder / HISTORY} has no line yet; wait for the site's first round")
    found = [attempt(make.__name__, partial(make, own)) for make in (result, measures, models, failures)]
    title = f"{cut(folder.name)} in {cut(folder.parent.name)}"
    subtitle = "What this site keeps of the run, of its own participants alone: numbers as they were before any filter."
    return page(title, subtitle, [one for one in found if one is not None])


def result(own: Own) -> Section:
    """What was measured last."""
    last = {note.participant: note for note in own.notes if note.metrics}
    columns = ["participant", "rounds trained", "after round", *map(measure_name, own.measures)]
    trained = Counter(note.participant for note in own.notes if note.trained)
    rows = []
    for name, label in own.shown.items():
        note = last.get(name)
        values = (
            ["-"] * len(own.measures)
            if note is None
            else [number(note.metrics.get(f"served_{measure}")) for measure in own.measures]
        )
        rows.append([label, str(trained[name]), "-" if note is None else str(note.round), *values])
    rounds = len({note.round for note in own.notes if note.trained})
    text = (
        f"{len(own.shown)} participants of this site, {rounds} rounds of training. Measures are of the served model, "
        "on each participant's own test split. There is no interval, so they claim nothing beyond these samples."
    )
    return Section("Result", [text], tables=[("Measured last", Table.of(columns, rows))])


def measures(own: Own) -> Section | None:
    """Each measure over rounds, a line for each participant."""
    plots = []
    drawn = thinned([*own.shown], PEOPLE)
    for measure in own.measures:
        found: curves.Series = {}
        for note in own.notes:
            value = finite(note.metrics.get(f"served_{measure}"))
            if note.participant in drawn and value is not None:
                found.setdefault(own.shown[note.participant], {})[note.round] = value
        kept = {label: {r: values[r] for r in thinned([*values], ROUNDS)} for label, values in found.items()}
        if kept:
            what = "Of the model that the participant was served after so many rounds."
            plots.append(curves.plot(f"{measure_name(measure)} by round", what, kept, "value"))
    notes = [f"{len(drawn)} of {len(own.shown)} participants are drawn."] if len(drawn) < len(own.shown) else []
    return Section("Measures by round", plots=plots, notes=notes) if plots else None


def models(own: Own) -> Section | None:
    """Which model each participant was sent, where that was one."""
    single = [note for note in own.notes if len(note.models) == 1]
    if not single:
        return None
    names = unique([*dict.fromkeys(note.models[0] for note in single)])
    drawn = {*thinned(sorted({note.round for note in single}), ROUNDS)}
    people = {name: i for i, name in enumerate(thinned([*own.shown], specs.NAMED))}
    cells = [
        {
            "i": people[note.participant],
            "name": own.shown[note.participant],
            "r": str(note.round),
            "n": note.round,
            "c": names[note.models[0]],
        }
        for note in single
        if note.participant in people and note.round in drawn
    ]
    spec = {
        "height": max(60, 22 * len(people)),
        "data": {"values": cells},
        "mark": {"type": "rect", "aria": False},
        "encoding": {
            "x": {
                "field": "r",
                "type": "ordinal",
                "sort": {"field": "n"},
                "title": "after round",
                "axis": {"labelAngle": 0, "labelOverlap": True},
            },
            "y": {"field": "name", "type": "nominal", "sort": {"field": "i"}, "title": None},
            "color": specs.colour([*names.values()]),
            "tooltip": specs.tips(name="participant", r="after round", c="model"),
        },
    }
    times = Counter((note.participant, note.models[0]) for note in single)
    rows = [[own.shown[name], names[model], str(count)] for (name, model), count in times.items()]
    text = "Which of the run's models this site's participants were sent; who else has them is not known here."
    table = Table.of(("participant", "model", "rounds"), rows)
    return Section("Models", plots=[Plot("Models by round", text, spec, table)])


def failures(own: Own) -> Section:
    """The failures of the site's participants, as the server was told of them."""
    times = Counter((note.participant, note.failed) for note in own.notes if note.failed)
    if not times:
        return Section("Failures", ["No participant failed in a round."])
    rows = [[own.shown[name], cut(code), str(count)] for (name, code), count in times.items()]
    text = "The server was told these codes. The reasons are in the job's log at this site."
    return Section("Failures", [text], tables=[("Failures", Table.of(("participant", "code", "rounds"), rows))])
