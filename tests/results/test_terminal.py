# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows: the table of finished runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cfl_flare.core.errors import ConfigError
from cfl_flare.results import tables as table
from cfl_flare.results.bootstrap import Difference
from cfl_flare.results.remarks import Missed, missed_rounds
from cfl_flare.results.run_dir import Run, load_run
from cfl_flare.results.tables import NAMED, missed_lines, print_whole, results_table
from tests.helpers.tiny import rounds

# ---- The table ----


REST = ["clusters", "ARI", "bytes", "seconds"]


def make_finished_run(metrics: dict[str, float], name: str = "accuracy", worst: float | None = None, **more) -> Run:
    """A finished run."""
    served = {f"served_{key}": value for key, value in metrics.items()}
    final = {**served, **({} if worst is None else {f"served_worst_{name}": worst})}
    facts = {"label": "fedavg", "clusters": 0, "rounds": 3, "bytes_down": 1, "bytes_up": 1, "seconds": 1.0}
    people = [{"name": "a", "group": None, **served}, {"name": "b", "group": None, **served}]
    summary = {**facts, "final": final, "participants": people, "metric": {"name": name, "mode": "max"}}
    return Run(Path("x"), {**summary, **more})


def columns(*runs: Run) -> dict[str, list[str]]:
    """The cells of each column, without those that have nothing to do with metrics."""
    found = {str(column.header): list(column.cells) for column in results_table(runs).columns}
    assert list(found)[:2] == ["method", "rounds"] and list(found)[-4:] == REST
    return {name: cells for name, cells in found.items() if name not in ("method", "rounds", *REST)}


def test_a_run_of_our_own_training():
    found = make_finished_run({"accuracy": 0.5, "macro_f1": 0.25, "loss": 2.0}, worst=0.1)
    assert columns(found) == {"accuracy": ["0.500"], "macro-F1": ["0.250"], "lowest": ["0.100"]}
    joined = Run(found.folder, found.summary, newcomers={"served_accuracy": 0.75, "served_loss": 9.0})
    assert columns(joined)["unseen"] == ["0.750"]
    by_loss = {**found.summary, "metric": {"name": "loss", "mode": "min"}}
    joined = Run(found.folder, by_loss, newcomers={"served_accuracy": 0.75, "served_loss": 9.0})
    assert columns(joined)["unseen"] == ["9.000"]


def test_a_script_s_metrics_whatever_their_scale():
    metrics = {"train_acc": 1.0, "hd95": 12345678.9, "loss": 1.0, "tiny": 2e-5, "third": 1.0, "dice": -0.25}
    assert columns(make_finished_run(metrics, "dice", worst=-3.0)) == {
        "dice": ["-0.250"],
        "hd95": ["1.23e+07"],
        "tiny": ["2.00e-05"],
        "lowest": ["-3.000"],
    }


def test_runs_judged_by_different_metrics_say_whose_lowest_it_is():
    first = make_finished_run({"accuracy": 0.5}, worst=0.25)
    second = make_finished_run({"dice": 0.75, "accuracy": 71.0}, "dice", worst=0.5)
    assert columns(first, second) == {
        "accuracy": ["0.500", "71.000"],
        "dice": ["-", "0.750"],
        "lowest accuracy": ["0.250", "-"],
        "lowest dice": ["-", "0.500"],
    }


def test_a_run_without_measured_rounds():
    assert columns(make_finished_run({}, final={})) == {"accuracy": ["-"], "lowest": ["-"]}


def test_a_mean_of_some_says_of_how_many_it_is():
    final = {"served_accuracy": 0.5, "served_auroc": 0.873, "pooled_auroc": 0.9, "pooled_macro_f1": 0.7}
    found = make_finished_run({"accuracy": 0.5, "auroc": 0.873}, final=final, final_round=1)
    lines = [{"round": 0, "defined": {"served_accuracy": 1}}, {"round": 1, "defined": {"served_auroc": 1}}]
    found = Run(found.folder, found.summary, lines)
    shown = columns(found, make_finished_run({"accuracy": 0.25}))
    assert shown["accuracy"] == ["0.500", "0.250"]
    assert shown["AUROC"] == ["0.873 (1 of 2)", "-"]
    assert (shown["pooled AUROC"], shown["pooled macro-F1"]) == (["0.900", "-"], ["0.700", "-"])


def test_intervals_stand_beside_their_means_and_a_pair_that_was_not_drawn_is_a_dash():
    first = make_finished_run(
        {"accuracy": 0.8731, "loss": 12.0}, worst=0.5, intervals={"served_accuracy": [0.851, 0.8934]}
    )
    second = make_finished_run({"accuracy": 0.5, "loss": 1.0}, worst=0.25)
    assert columns(first, second) == {
        "accuracy": ["0.873 [0.851, 0.893]", "0.500"],
        "lowest": ["0.500", "0.250"],
        "to the first": ["-", "-"],
    }
    assert "to the first" not in columns(first) and "to the first" not in columns(second, second)


def test_the_difference_to_the_first_run_has_its_sign(monkeypatch):
    first = make_finished_run({"accuracy": 0.5}, worst=0.5, intervals={"served_accuracy": [0.25, 0.75]})
    found = [Difference(0.0125, -0.004, 0.027, {}), Difference(-0.5, -0.75, 0.0, {})]
    monkeypatch.setattr(table, "paired_difference", lambda run, other, metric: found.pop(0))
    others = [make_finished_run(own, worst=0.5) for own in ({"accuracy": 0.5125}, {"accuracy": 0.0})]
    assert columns(first, *others)["to the first"] == ["-", "+0.013 [-0.004, 0.027]", "-0.500 [-0.750, 0.000]"]


# Who missed rounds, below the table.

MISSING = [
    {"trained": ["a", "b"], "failed": {}},
    {"trained": ["a"], "failed": {"b": "no result in time", "c": "KeyError in its script"}},
    {"trained": ["b"], "failed": {"b": "of another task", "c": "KeyError in its script"}},
    {"trained": ["a"], "failed": {"b": "KeyError in its script", "c": "no result in time"}},
    {"trained": ["a"], "failed": {"b": "KeyError in its script"}},
]


@pytest.fixture
def run_without_rounds(tmp_path) -> Run:
    rounds(tmp_path)
    return replace(load_run(tmp_path), rounds=[])


def test_rounds_in_which_one_was_asked_are_counted():
    found = missed_rounds(MISSING)
    assert found == {"b": Missed(3, 5, "KeyError in its script"), "c": Missed(3, 3, "KeyError in its script")}
    assert missed_rounds([{"round": 0}]) == {}


def test_they_are_named_below_the_table(run_without_rounds, tmp_path):
    with (tmp_path / "said").open("w") as said:
        print_whole(
            Console(file=said, width=300),
            results_table([run_without_rounds, replace(run_without_rounds, rounds=MISSING)]),
        )
    lines = (tmp_path / "said").read_text().splitlines()
    assert [line.strip() for line in lines[4:]] == [
        f"{run_without_rounds.name}: b missed 3 of 5 rounds: KeyError in its script",
        f"{run_without_rounds.name}: c missed 3 of 3 rounds: KeyError in its script",
    ]


def test_a_run_without_them_has_no_such_line(run_without_rounds):
    assert missed_lines([run_without_rounds]) == [] and results_table([run_without_rounds]).caption is None


def test_the_summary_has_them(run_without_rounds):
    """In the fixture's second round, nothing of c arrives."""
    assert run_without_rounds.summary["missed"] == {"c": {"rounds": 1, "asked": 2, "reason": "no result in time"}}
    assert missed_lines([load_run(run_without_rounds.folder)]) == ["c missed 1 of 2 rounds: no result in time"]


def test_sites_that_took_no_part_are_named_too(run_without_rounds):
    left = replace(
        run_without_rounds, summary={**run_without_rounds.summary, "sites_left_out": {"s": "data: [red]\x1b"}}
    )
    assert missed_lines([left]) == [r"s took no part: data: \[red]\x1b"]


def test_of_many_those_who_missed_most(run_without_rounds):
    names = [f"p{i}" for i in range(NAMED + 5)]
    lines = [
        {"trained": names[:-1], "failed": {names[-1]: "late"}},
        {"trained": [], "failed": dict.fromkeys(names, "x")},
    ]
    said = missed_lines([replace(run_without_rounds, rounds=lines)])
    assert said[0] == f"{names[-1]} missed 2 of 2 rounds: late"
    assert len(said) == NAMED + 1 and said[-1] == "5 more missed rounds; summary.json has them"


@pytest.mark.parametrize("odd", [{"failed": ["b"]}, {"failed": {"b": 7}}, {"trained": "everyone"}, {"trained": [None]}])
def test_records_of_another_program_are_refused(run_without_rounds, odd):
    path = run_without_rounds.folder / "rounds.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), **odd}), *others]))
    with pytest.raises(ConfigError, match=next(iter(odd))):
        load_run(run_without_rounds.folder)
