# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What ``cfl-flare site runs`` and ``site ledger`` say of a site's records, and where they look for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cfl_flare.cli import main
from cfl_flare.results.job_record import JOB, MEAN, ROUND, JobRecord

SITES = ["hospital-1", "hospital-2", "hospital-3"]


def make_kit(folder: Path) -> Path:
    for part in ("startup", "local"):
        (folder / part).mkdir(parents=True)
    (folder / "startup" / "fed_client.json").write_text('{"client": {"fqsn": "hospital-3"}}')
    return folder


def begin_job(root: Path, runs: int | None, rounds: int = 20) -> JobRecord:
    record = JobRecord(root, "hospital-3")
    facts = {"name": "job", "data": "", "rounds": rounds, "runs": runs, "method": "study", "participants": {"p": 80}}
    record.join("0123", SITES, 3, False, facts)
    return record


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "300")
    return tmp_path / "state"


@pytest.mark.parametrize("command", ["runs", "ledger"])
def test_the_variable_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.delenv("CFL_STATE_ROOT", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    kit = make_kit(tmp_path / "hospital-3")
    status = main(["site", command, "--kit", str(kit)])
    output = capsys.readouterr()
    said = output.out + output.err
    assert status == (2 if command == "runs" else 0)
    assert "CFL_STATE_ROOT" in said
    assert str(tmp_path / "cfl_state") in said
    assert "name the site's kit by --kit" not in said


def test_without_dp_the_ledger_is_empty(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    kit = make_kit(tmp_path / "hospital-3")
    assert main(["site", "ledger", "--kit", str(kit)]) == 0
    assert "no job with dp has spent anything here" in capsys.readouterr().out
    assert main(["site", "ledger", "--kit", str(kit), "--json"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["site", "ledger", "--kit", str(kit), "--accept", "after a crash"]) == 2


def test_a_study_has_rounds_of_each_candidate(root: Path, capsys: pytest.CaptureFixture) -> None:
    record = begin_job(root, runs=None)
    for number in range(20):
        record.note(ROUND, "0123", round=number, answered=number, run="wecfl-k2", split="validation")
    record.note(ROUND, "0123", round=20, answered=150, run="wecfl-k2", split="validation")
    assert main(["site", "runs"]) == 0
    said = capsys.readouterr().out
    assert "150, at most 20 a candidate" in said
    assert "begun" in said
    record.note(ROUND, "0123", round=20, answered=150, run="wecfl-k2", split="test")
    assert main(["site", "runs"]) == 0
    assert "ended" in capsys.readouterr().out


def test_several_runs_end_with_the_last(root: Path, capsys: pytest.CaptureFixture) -> None:
    record = begin_job(root, runs=2, rounds=3)
    record.note(ROUND, "0123", round=3, answered=3, run="fedavg")
    assert [job["decision"] for job in record.jobs()] == ["begun"]
    record.note(MEAN, "0123", sites=SITES, data="")
    record.note(ROUND, "0123", round=3, answered=5, run="wecfl-k2")
    assert [job["decision"] for job in record.jobs()] == ["ended"]
    assert main(["site", "runs"]) == 0
    assert "5 of 6" in capsys.readouterr().out
    assert record.lines()[0]["kind"] == JOB
