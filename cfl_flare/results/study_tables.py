# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of a study: its candidates, and its hospitals' gains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cfl_flare.results.tables import Table
from cfl_flare.results.wording import (
    cut,
    interval,
    measure_name,
    number,
    signed,
    told_apart,
)

AGAINST = {"to_one": "over one model", "to_alone": "over training alone"}


def candidates_table(study: Mapping[str, Any]) -> Table:
    """A row for each candidate that was compared: its mean at each comparison and on test samples, and its fate."""
    verdict, rungs = study["verdict"], study["rungs"]
    tested, chosen = (
        ({}, "") if verdict is None else (verdict["tested"], verdict["chosen"]["name"])
    )
    rows = []
    for name, title in shown(study).items():
        means = [number(rung["means"].get(name)) for rung in rungs]
        drops = {
            rung["rounds"]: rung["dropped"][name]
            for rung in rungs
            if name in rung["dropped"]
        }
        fates = (
            ["chosen"]
            if name == chosen
            else [f"dropped after {at} rounds: {why}" for at, why in drops.items()]
        )
        rows.append(
            [
                title,
                *means,
                number(tested.get(name)),
                cut(fates[0], 500) if fates else "-",
            ]
        )
    validations = [f"validation, {rung['rounds']} rounds" for rung in rungs]
    return Table(["candidate", *validations, "test", "what became of it"], rows)


def shown(study: Mapping[str, Any]) -> dict[str, str]:
    """The title of each candidate that was compared, as it is shown."""
    names = dict.fromkeys(
        name for rung in study["rungs"] for name in (*rung["means"], *rung["dropped"])
    )
    return dict(
        zip(names, told_apart(study["titles"].get(name, name) for name in names))
    )


def hospitals_table(study: Mapping[str, Any]) -> Table:
    """A row for each hospital: the chosen candidate there, and what it gains over one model and over training alone.

    Intervals are of its own patients, and hold together for all hospitals of a column with 95 %.
    """
    people = study["verdict"]["hospitals"]
    rows = [
        [
            cut(h["name"]),
            number(h["tested"]),
            number(h["value"]),
            *(_gain(h[key]) for key in AGAINST),
        ]
        for h in people
    ]
    gains = (f"gain {words}" for words in AGAINST.values())
    return Table(
        ("hospital", "test samples", measure_name(study["verdict"]["metric"]), *gains),
        rows,
    )


def _gain(gain: Mapping[str, Any] | None) -> str:
    """``+0.050 (0.020 to 0.080), gains``."""
    if gain is None:
        return "-"
    known = (
        []
        if gain["gain"] is None
        else [f"{signed(gain['gain'])} ({interval((gain['low'], gain['high']))})"]
    )
    needed = [] if gain["needed"] is None else [f"needs {number(gain['needed'])}"]
    return ", ".join((*known, cut(gain["says"]), *needed))
