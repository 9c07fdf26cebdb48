# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run's lineage where FLARE runs it: signed by a provisioned server, continued by a resumed job, in the simulator."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cfl_flare.cli import main
from cfl_flare.flare.signature import check_signature
from cfl_flare.results.lineage import LINEAGE, covered
from cfl_flare.results.lineage_check import check_lineage
from tests.e2e.deployment import SERVER
from tests.e2e.test_provisioned import exported

pytestmark = pytest.mark.slow


def said(run: Path, root: Path | None) -> list[str]:
    lineage = check_lineage(run)
    return [*lineage.problems, *check_signature(run, lineage, root)[0]]


def each_file_is_guarded(run: Path, folder: Path, root: Path | None) -> None:
    """A flipped bit in the middle of each file of a copy is named."""
    copy = Path(shutil.copytree(run, folder / "copy"))
    names = [*covered(copy), *(p.name for p in copy.glob("lineage.*"))]
    for name in names:
        content = (copy / name).read_bytes()
        middle = len(content) // 2
        (copy / name).write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        assert any(name in problem for problem in said(copy, root)), name
        (copy / name).write_bytes(content)
    assert said(copy, root) == []


def test_a_provisioned_server_signs_and_a_resumed_job_goes_on(trial, tmp_path, capsys):
    root = trial.kits / "hospital-1" / "startup" / "rootCA.pem"
    ended, results = trial.run(exported(trial, "lineage", "wecfl:k=2", num_rounds=2))
    assert ended == "FINISHED:COMPLETED"
    run = results / "cfl"
    assert main(["dossier", str(run), "--verify", "--root", str(root)]) == 0
    assert f"signed by {SERVER} of hospitals, whose certificate is the project's" in capsys.readouterr().out
    assert (run / "lineage.crt").read_text() == (trial.kits / SERVER / "startup" / "server.crt").read_text()
    each_file_is_guarded(run, tmp_path, root)
    assert main(["dossier", str(run), "--root", str(root), "--out", str(tmp_path / "dossier")]) == 0
    html = (tmp_path / "dossier" / "cluster-0" / "dossier.html").read_text()
    assert "which was checked against the project" in html and "hospital-" not in html
    assert said(run, root) == []
    first = (run / LINEAGE).read_text()
    job = exported(trial, "lineage", "wecfl:k=2", num_rounds=3, resume_from="lineage")
    ended, results = trial.run(job)
    assert ended == "FINISHED:COMPLETED" and said(results / "cfl", root) == []
    entries = [json.loads(line) for line in (results / "cfl" / LINEAGE).read_text().splitlines()]
    assert (results / "cfl" / LINEAGE).read_text().startswith(first)
    assert [entry["kind"] for entry in entries] == ["start", "round", "round", "close", "resume", "round", "close"]
    assert entries[4]["checkpoint"] == entries[2]["checkpoint"] != {}


def test_a_simulation_s_chain_covers_what_the_command_put_beside_its_results(tmp_path):
    words = ["run", "--method", "fedavg", "--participants", "3", "--rounds", "2", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    run = tmp_path / "out" / "fedavg"
    assert {"served/p0.safetensors", "summary.json", "rounds.jsonl"} <= {*covered(run)}
    assert main(["dossier", str(tmp_path / "out"), "--verify"]) == 0
    each_file_is_guarded(run, tmp_path, None)
