# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Who missed rounds, below the table."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from cfl_flare.core.errors import ConfigError
from cfl_flare.report.table import NAMED, missed_lines, print_whole, results_table
from cfl_flare.results.missed import Missed, missed_rounds
from cfl_flare.results.run_dir import Run, load_run
from tests.tiny import rounds

ROUNDS = [
    {"trained": ["a", "b"], "failed": {}},
    {"trained": ["a"], "failed": {"b": "no result in time", "c": "KeyError in its script"}},
    {"trained": ["b"], "failed": {"b": "of another task", "c": "KeyError in its script"}},
    {"trained": ["a"], "failed": {"b": "KeyError in its script", "c": "no result in time"}},
    {"trained": ["a"], "failed": {"b": "KeyError in its script"}},
]


@pytest.fixture
def run(tmp_path) -> Run:
    rounds(tmp_path)
    return replace(load_run(tmp_path), rounds=[])


def test_rounds_in_which_one_was_asked_are_counted():
    found = missed_rounds(ROUNDS)
    assert found == {"b": Missed(3, 5, "KeyError in its script"), "c": Missed(3, 3, "KeyError in its script")}
    assert missed_rounds([{"round": 0}]) == {}


def test_they_are_named_below_the_table(run, tmp_path):
    with (tmp_path / "said").open("w") as said:
        print_whole(Console(file=said, width=300), results_table([run, replace(run, rounds=ROUNDS)]))
    lines = (tmp_path / "said").read_text().splitlines()
    assert [line.strip() for line in lines[4:]] == [
        f"{run.name}: b missed 3 of 5 rounds: KeyError in its script",
        f"{run.name}: c missed 3 of 3 rounds: KeyError in its script",
    ]


def test_a_run_without_them_has_no_such_line(run):
    assert missed_lines([run]) == [] and results_table([run]).caption is None


def test_the_summary_has_them(run):
    """In the fixture's second round, nothing of c arrives."""
    assert run.summary["missed"] == {"c": {"rounds": 1, "asked": 2, "reason": "no result in time"}}
    assert missed_lines([load_run(run.folder)]) == ["c missed 1 of 2 rounds: no result in time"]


def test_sites_that_took_no_part_are_named_too(run):
    left = replace(run, summary={**run.summary, "sites_left_out": {"s": "data: [red]\x1b"}})
    assert missed_lines([left]) == [r"s took no part: data: \[red]\x1b"]


def test_of_many_those_who_missed_most(run):
    names = [f"p{i}" for i in range(NAMED + 5)]
    lines = [
        {"trained": names[:-1], "failed": {names[-1]: "late"}},
        {"trained": [], "failed": dict.fromkeys(names, "x")},
    ]
    said = missed_lines([replace(run, rounds=lines)])
    assert said[0] == f"{names[-1]} missed 2 of 2 rounds: late"
    assert len(said) == NAMED + 1 and said[-1] == "5 more missed rounds; summary.json has them"


@pytest.mark.parametrize("odd", [{"failed": ["b"]}, {"failed": {"b": 7}}, {"trained": "everyone"}, {"trained": [None]}])
def test_records_of_another_program_are_refused(run, odd):
    path = run.folder / "rounds.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), **odd}), *others]))
    with pytest.raises(ConfigError, match=next(iter(odd))):
        load_run(run.folder)
