# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Several methods as one job: one start of FLARE, and the numbers of the loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cfl_flare.cli import main
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.flare.allowed import CLASSES
from cfl_flare.flare.several import CANDIDATE, candidates_of, known_run
from cfl_flare.results.run_dir import load_run

FEDAVG = {"method": "fedavg"}


@pytest.mark.parametrize("name", ["../local", "a/b", "", "/etc", 7, None])
def test_a_run_s_name_is_a_folder_s(name):
    with pytest.raises(ConfigError, match="the name of a run"):
        candidates_of([{"name": name, "method": FEDAVG}], None)


def test_two_runs_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two runs are called 'a'"):
        candidates_of([{"name": "a", "method": FEDAVG}, {"name": "a", "method": {"method": "local"}}], None)


@pytest.mark.parametrize("name", ["b", "../a", None, ["a"], {"a": 1}])
def test_a_site_trains_no_run_that_the_job_does_not_have(name):
    known = candidates_of([{"name": "a", "method": FEDAVG}], None)
    assert known_run({CANDIDATE: "a"}, known) == "a"
    with pytest.raises(PayloadError, match="this job has no candidate"):
        known_run({CANDIDATE: name}, known)


def test_a_prepared_kit_does_not_allow_it():
    assert not [name for name in CLASSES if "several" in name]


@pytest.mark.slow
def test_methods_of_one_command_are_one_job_with_the_numbers_of_the_loop(tmp_path: Path) -> None:
    options = ["--method", "fedavg", "--method", "ditto", "--method", "wecfl:k=2", "--participants", "6"]
    options += ["--partition", "label_permutation:groups=2", "--rounds", "2", "--private", "bias"]
    assert main(["run", *options, "--out", str(tmp_path / "flare")]) == 0
    assert main(["run", "--loop", *options, "--out", str(tmp_path / "loop")]) == 0
    assert [path.name for path in (tmp_path / "flare" / "flare").iterdir() if path.name != "cfl_state"] == ["several"]
    for name in ("fedavg", "ditto", "wecfl-k2"):
        folder, alone = tmp_path / "flare" / name, tmp_path / "loop" / name
        through, inside = load_run(folder), load_run(alone)
        assert through.summary["final"].keys() == inside.summary["final"].keys()
        for kind in ("served_accuracy", "served_macro_f1", "served_loss"):
            assert through.summary["final"][kind] == inside.summary["final"][kind]
        assert (folder / "assignments.jsonl").read_text().count("\n") == 12
        lines = [[json.loads(x) for x in (f / "assignments.jsonl").read_text().splitlines()] for f in (folder, alone)]
        assert [x["cluster"] for x in lines[0]] == [x["cluster"] for x in lines[1]]
        assert sorted(p.name for p in (folder / "served").iterdir()) == sorted(
            p.name for p in (alone / "served").iterdir()
        )
        assert (folder / "report.html").is_file()
