# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the run cost: bytes and seconds by round."""

from __future__ import annotations

from itertools import accumulate

from rich import filesize

from cfl_flare.report.html import curves
from cfl_flare.report.html.section import Section
from cfl_flare.report.html.view import View
from cfl_flare.results.schema import number as is_number

DOWN, UP = "to the participants", "from the participants"


def traffic(view: View) -> Section | None:
    """Bytes so far and seconds by round; None if no round says them."""
    keys = {DOWN: "bytes_down", UP: "bytes_up", "seconds": "seconds"}
    lines = [line for line in view.run.rounds if all(is_number(line.get(key)) for key in keys.values())]
    if not lines:
        return None
    so_far = {label: [*accumulate(line[keys[label]] for line in lines)] for label in (DOWN, UP)}
    mega = {line["round"]: {label: own[i] / 1e6 for label, own in so_far.items()} for i, line in enumerate(lines)}
    summary = view.run.summary
    text = (
        f"{filesize.decimal(int(summary['bytes_down']))} to the participants and "
        f"{filesize.decimal(int(summary['bytes_up']))} from them, as the models' arrays; "
        f"{summary['seconds']:.1f} seconds in rounds, without the start of processes."
    )
    sent = curves.series(view, lambda line: mega.get(line["round"], {}))
    took = curves.series(view, lambda line: {"seconds": line.get("seconds")})
    plots = [
        curves.plot("Megabytes so far", "The models' arrays, added up over rounds.", sent, "MB", height=180),
        curves.plot(
            "Seconds of each round", "From a round's first task to its last model.", took, "seconds", height=180
        ),
    ]
    notes = [view.rounds_note] if view.rounds_note else []
    return Section("Traffic and time", [text], plots, notes=notes)
