# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run under pseudonyms, for readers outside of those who trained: no hospital's name, no exact size of its data."""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cfl_flare.clustering.gap import NUMBER
from cfl_flare.core.files import atomic_write, read_text
from cfl_flare.results.bootstrap import BOOTSTRAP, read_draws
from cfl_flare.results.curves import CURVES
from cfl_flare.results.run_dir import CROSS_SITE, Run

# Numbers of training samples have this many digits that are not 0.
DIGITS = 2


def pseudonyms(run: Run) -> dict[str, str]:
    """``hospital 1``, ``hospital 2``, ... for each participant and each site of another name, in the run's order."""
    people = run.summary["participants"]
    names = dict.fromkeys([*(person["name"] for person in people), *run.summary.get("sites_left_out", {})])
    known = {name: f"hospital {number}" for number, name in enumerate(names, start=1)}
    sites = dict.fromkeys(site for person in people if isinstance(site := person.get("site"), str))
    others = [site for site in sites if site not in known]
    return known | {site: f"site {number}" for number, site in enumerate(others, start=1)}


def hidden(text: str, names: Mapping[str, str]) -> str:
    """A text with pseudonyms in place of names.

    >>> hidden("St. Mary, Mary and Maryland", {"Mary": "hospital 2", "St. Mary": "hospital 1"})
    'hospital 1, hospital 2 and Maryland'
    """
    known = [re.escape(name) for name in sorted(filter(None, names), key=len, reverse=True)]
    pattern = rf"(?<!\w)(?:{'|'.join(known)})(?!\w)"
    return re.sub(pattern, lambda match: names[match[0]], text) if known else text


def rounded(value: Any) -> Any:
    """A number of samples, of `DIGITS` digits."""
    return int(float(f"{value:.{DIGITS}g}")) if isinstance(value, (int, float)) and value == value else value


def pseudonymised(run: Run, folder: Path) -> Run:
    """A copy of what a dossier shows of a run; names stand nowhere in it.

    The files that sections of a report read go into the folder, which is empty.
    """
    names = pseudonyms(run)
    people = [
        {**person, "name": names[person["name"]], "site": names.get(person.get("site")), "clipped": None}
        | {key: rounded(person[key]) for key in ("samples", "steps") if key in person}
        for person in run.summary["participants"]
    ]
    of_names = ("test_classes", "missed", "sites_left_out")
    parts = {key: run.summary[key] for key in of_names if isinstance(run.summary.get(key), dict)}
    renamed = {key: {names.get(name, "?"): value for name, value in part.items()} for key, part in parts.items()}
    if isinstance(number := run.summary.get(NUMBER), dict):
        unsteady = {names.get(name, "?"): share for name, share in number.get("unsteady", {}).items()}
        renamed[NUMBER] = {**number, "unsteady": unsteady}
    summary = {**run.summary, **renamed, "participants": people}
    rounds = [{key: value for key, value in record.items() if _is_of_no_one(key, value)} for record in run.rounds]
    lines = [{**line, "participant": names.get(line["participant"], "?")} for line in run.assignments]
    _copy_files(run.folder, folder, names)
    return replace(run, folder=folder, summary=summary, rounds=rounds, assignments=lines, newcomers=None)


def _is_of_no_one(key: str, value: Any) -> bool:
    """Whether a part of a record is numbers, of all participants or of clusters."""
    numbers = value if isinstance(value, list) else [value]
    return key in ("clusters", "defined") or all(isinstance(part, (int, float, type(None))) for part in numbers)


def _copy_files(source: Path, target: Path, names: Mapping[str, str]) -> None:
    if (source / CURVES).is_file():
        shutil.copyfile(source / CURVES, target / CURVES)
    if (draws := read_draws(source)) is not None:
        renamed = tuple(names.get(name, "?") for name in draws.participants)
        replace(draws, participants=renamed).save(target / BOOTSTRAP)
    if (source / CROSS_SITE).is_file():
        rows = csv.DictReader(io.StringIO(read_text(source / CROSS_SITE), newline=""))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, rows.fieldnames or (), extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, **{key: names.get(row.get(key) or "", "?") for key in ("participant", "site")}})
        atomic_write(target / CROSS_SITE, text.getvalue())


def with_pseudonyms(value: Any, names: Mapping[str, str]) -> Any:
    """JSON values with pseudonyms in all their texts."""
    if isinstance(value, dict):
        return {key: with_pseudonyms(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [with_pseudonyms(part, names) for part in value]
    return hidden(value, names) if isinstance(value, str) else value
