# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Checks a run's folder against its lineage, and names what is not as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from cfl_flare.core.errors import FileError
from cfl_flare.core.files import file_sha256, read_json
from cfl_flare.core.text import plain, shown
from cfl_flare.results import lineage, schema
from cfl_flare.results.lineage import LINEAGE, NONE, Entries
from cfl_flare.results.run_dir import ASSIGNMENTS, ROUNDS, SUMMARY

NAMED = schema.object_with(name=schema.text)


def check_lineage(folder: Path) -> Entries:
    """A run's chain, whose problems name each file, record and entry that is not what it was.

    `cfl_flare.flare.signature` checks who signed it.

    A FileError says that there is no chain, or that it cannot be read.
    """
    path = folder / LINEAGE
    if not path.is_file():
        raise FileError(f"{folder} has no {LINEAGE}: version 0.3 and later write one; name the folder of such a run")
    chain = Entries(lineage.complete_lines(path))
    problems = chain.problems
    if not path.read_bytes().endswith(b"\n"):
        problems.append(f"{LINEAGE}: the last line is cut off")
    if chain.files is None:
        problems.append(f"{LINEAGE}: the chain is not closed: the run has not ended, or entries were left out")
    problems += [*_changed_records(folder, chain.records), *_changed_files(folder, chain.files or {})]
    problems += _changed_summary(folder, chain)
    chain.problems = [plain(problem) for problem in dict.fromkeys(problems)]
    return chain


def _changed_records(folder: Path, expected: Mapping[str, list[str]]) -> list[str]:
    """Records that are not in the order of their rounds, or not those that the chain has."""
    records, problems = lineage.records_of(folder), []
    there = [(number, digests[0]) for number, digests in records if digests[0] != NONE]
    who, times = {number: digests[1] for number, digests in records}, Counter(number for number, _ in there)
    for number, (record, assignments) in expected.items():
        problems += [f"{ROUNDS}: the record of round {number} was left out"] * (not times[number])
        problems += [f"{ROUNDS}: the record of round {number} is changed"] * ((number, record) not in there)
        problems += [f"{ASSIGNMENTS}: round {number} is changed"] * (who.get(number) != assignments)
    for number, count in times.items():
        problems += [f"{ROUNDS}: the record of round {number or '?'} was added"] * (number not in expected)
        problems += [f"{ROUNDS}: the record of round {number} is there {count} times"] * (count > 1)
    order = [number for number, _ in there if number in expected]
    if order != sorted(order, key=int):
        problems.append(f"{ROUNDS}: records were swapped: they are in the order {', '.join(order[:20])}")
    return problems


def _changed_files(folder: Path, expected: Mapping[str, str]) -> list[str]:
    there = set(lineage.covered(folder))
    problems = [f"{name} was left out" for name in expected.keys() - there]
    problems += [f"{name} was added" for name in there - expected.keys()] if expected else []
    common = there & expected.keys()
    problems += [f"{name} is changed" for name in common if file_sha256(folder / name) != expected[name]]
    return sorted(problems)


def _changed_summary(folder: Path, chain: Entries) -> list[str]:
    """What a run's summary says of its settings and of participants' data, against what the chain began with."""
    try:
        summary = schema.checked(read_json(folder / SUMMARY), SUMMARY, {"participants": schema.list_of(NAMED)})
    except FileError:
        return [f"{SUMMARY} is missing or cannot be read"]
    problems = [
        f"{SUMMARY}: {name} is not what the run began with"
        for name, digest in chain.settings.items()
        if lineage.digest_of(summary.get(name)) != digest
    ]
    people = lineage.data_digests(summary["participants"])
    return problems + [
        f"{SUMMARY}: the data of {shown(name)} is not what it said at check-in"
        for name in {**chain.data, **people}
        if people.get(name) != chain.data.get(name)
    ]
