# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One flipped bit anywhere in a run's folder, a line left out, swapped or added is named."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from nvflare.lighter import utils

from cfl_flare.cli import main
from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import ServerSettings
from cfl_flare.flare.signature import ServerSigner, check_signature
from cfl_flare.methods import WeCFL
from cfl_flare.results.lineage import FIRST, LINEAGE, Chain, canonical, complete_lines, covered, later
from cfl_flare.results.lineage_check import check_lineage
from cfl_flare.results.run_dir import ASSIGNMENTS, ROUNDS, SUMMARY
from cfl_flare.results.store import Store
from cfl_flare.training.settings import TrainSettings
from tests.loop import run_loop

MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [4]}}
DATA = DataConfig(4, {"partition": "label_permutation", "groups": 2})


def loop(folder: Path, checkpoints: Path | None = None, rounds: int = 3, until: int | None = None) -> Path:
    run_loop(
        method=WeCFL(k=2),
        model=MODEL,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(num_rounds=rounds, cross_site_evaluation=True, keep_features=True),
        training=TrainSettings(lr=0.1, local_steps=2, bootstrap=50),
        folder=folder,
        checkpoints=None if checkpoints is None else Store(checkpoints),
        checkpoint_every=1,
        until=until,
    )
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return loop(tmp_path_factory.mktemp("lineage") / "run")


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def problems(run: Path) -> list[str]:
    return check_lineage(run).problems


def test_digests_are_those_of_the_files_and_of_each_other(run):
    entries = [json.loads(line) for line in (run / LINEAGE).read_text().splitlines()]
    assert [entry["kind"] for entry in entries] == ["start", "round", "round", "round", "close"]
    assert [entry["before"] for entry in entries] == [FIRST, *(entry["digest"] for entry in entries[:-1])]
    for entry in entries:
        text = json.dumps({k: v for k, v in entry.items() if k != "digest"}, sort_keys=True, separators=(",", ":"))
        assert entry["digest"] == hashlib.sha256(text.encode()).hexdigest()
    for name, digest in entries[-1]["files"].items():
        assert digest == hashlib.sha256((run / name).read_bytes()).hexdigest()
    rounds = (run / ROUNDS).read_text().splitlines()
    records = {n: d for entry in entries for n, (d, _) in entry["records"].items()}
    assert records == {str(i): hashlib.sha256(line.encode()).hexdigest() for i, line in enumerate(rounds)}
    lineage = check_lineage(run)
    assert (lineage.problems, len(lineage.records), len(lineage.files)) == ([], 3, len(covered(run)))


def test_each_flipped_bit_of_each_file_is_named(run):
    rng = np.random.default_rng(0)
    names = [*covered(run), LINEAGE]
    assert {SUMMARY, ROUNDS, ASSIGNMENTS, "clusters/cluster-1.safetensors", "served/p0.safetensors"} <= {*names}
    for name in names:
        content = (run / name).read_bytes()
        for at in {0, len(content) - 1, *rng.integers(len(content), size=4).tolist()}:
            changed = bytearray(content)
            changed[at] ^= 1 << int(rng.integers(8))
            (run / name).write_bytes(changed)
            assert any(name in problem for problem in problems(run)), (name, at)
        (run / name).write_bytes(content)
    assert problems(run) == []


def test_each_bit_of_the_chain_s_last_entry_is_named(run):
    content = (run / LINEAGE).read_bytes()
    start = content[:-1].rfind(b"\n") + 1
    for at in range(start, len(content), 7):
        (run / LINEAGE).write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        assert any(LINEAGE in problem for problem in problems(run)), at


@pytest.mark.parametrize("name", [LINEAGE, ROUNDS, ASSIGNMENTS])
def test_a_line_that_is_left_out_swapped_or_doubled_is_named(run, name):
    lines = (run / name).read_text().splitlines(keepends=True)
    for i in range(len(lines)):
        others = [lines[:i] + lines[i + 1 :], [*lines[: i + 1], *lines[i:]]]
        others += [[*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]] if i + 1 < len(lines) else []
        for changed in others:
            (run / name).write_text("".join(changed))
            assert any(problem.startswith(name) for problem in problems(run)), (i, changed)
    (run / name).write_text("".join(lines))
    assert problems(run) == []


def test_what_is_wrong_with_a_record_is_said(run):
    first, second, third = (run / ROUNDS).read_text().splitlines(keepends=True)
    for lines, words in (
        ((first, third), "the record of round 1 was left out"),
        ((second, first, third), "records were swapped: they are in the order 1, 0, 2"),
        ((first, second, second, third), "the record of round 1 is there 2 times"),
        ((first, second.replace('"moved": ', '"moved": 1'), third), "the record of round 1 is changed"),
        ((first, second, third, third.replace('"round": 2', '"round": 3')), "the record of round 3 was added"),
    ):
        (run / ROUNDS).write_text("".join(lines))
        assert f"{ROUNDS}: {words}" in problems(run)


def test_files_that_go_or_come_are_named_and_those_made_later_are_listed(run):
    (run / "clusters" / "cluster-1.safetensors").rename(run / "clusters" / "cluster-2.safetensors")
    for name in ("report.html", "accuracy.png", "flare.log"):
        (run / name).write_text("later")
    lineage = check_lineage(run)
    assert lineage.problems == [
        "clusters/cluster-1.safetensors was left out",
        "clusters/cluster-2.safetensors was added",
    ]
    assert later(run) == ["accuracy.png", "flare.log", "report.html"]


def test_a_chain_written_anew_cannot_hide_other_settings_or_data(run):
    """Whoever can write an unsigned chain again still has to write its first entry again."""
    summary = json.loads((run / SUMMARY).read_text())
    summary["training"]["lr"], summary["participants"][2]["samples"] = 0.2, 1
    (run / SUMMARY).write_text(json.dumps(summary, indent=1))
    lines = complete_lines(run / LINEAGE)
    closing = json.loads(lines[-1])
    chain = Chain(run, 3)
    chain._count, chain.head = 4, closing["before"]
    (run / LINEAGE).write_text("".join(line + "\n" for line in lines[:-1]))
    chain.close(3, {})
    said = problems(run)
    assert f"{SUMMARY}: training is not what the run began with" in said
    assert f"{SUMMARY}: the data of 'p2' is not what it said at check-in" in said


def test_an_interrupted_run_goes_on_with_its_chain(tmp_path):
    run = loop(tmp_path / "run", tmp_path / "state", until=2)
    assert problems(run) == []
    half = (run / LINEAGE).read_text()
    loop(run, tmp_path / "state")
    text = (run / LINEAGE).read_text()
    assert text.startswith(half) and problems(run) == []
    kinds = [json.loads(line)["kind"] for line in text.splitlines()]
    assert kinds == ["start", "round", "round", "close", "resume", "round", "close"]
    entries = [json.loads(line) for line in text.splitlines()]
    assert entries[4]["checkpoint"] == entries[2]["checkpoint"] and len(entries[2]["checkpoint"]) == 2
    assert list(entries[4]["records"]) == ["0"], "the last round's record is completed after the interruption"


def test_a_checkpoint_or_a_record_that_changes_before_a_run_goes_on_is_named(tmp_path):
    run = loop(tmp_path / "run", tmp_path / "state", until=2)
    path = tmp_path / "state" / "round-000002.safetensors"
    arrays, meta = load_arrays(path)
    save_arrays(path, {name: array + 1 if array.dtype.kind == "f" else array for name, array in arrays.items()}, meta)
    lines = (run / ROUNDS).read_text().splitlines(keepends=True)
    (run / ROUNDS).write_text("".join([lines[0].replace('"moved": 0', '"moved": 3'), *lines[1:]]))
    loop(run, tmp_path / "state")
    assert problems(run) == [
        f"{ROUNDS}: round 0 was changed before the run went on",
        f"{LINEAGE}: line 5: the checkpoint after 2 rounds is not the one that was written",
    ]


def test_a_line_cut_off_by_a_power_failure_is_dropped_when_the_run_goes_on(tmp_path):
    run = loop(tmp_path / "run", tmp_path / "state", until=2)
    content = (run / LINEAGE).read_text()
    (run / LINEAGE).write_text(content + content[:40])
    assert problems(run)[0] == f"{LINEAGE}: the last line is cut off"
    loop(run, tmp_path / "state")
    assert problems(run) == []


def test_a_run_that_begins_again_begins_a_new_chain(run):
    loop(run)
    assert problems(run) == []
    assert json.loads((run / LINEAGE).read_text().splitlines()[0])["entry"] == 0


@pytest.mark.parametrize("line", ["{}", "[1]", "x", '{"entry": 1e400}', "[" * 100_000, '{"entry":"0"}', "\x00"])
def test_hostile_chains_are_named_and_open_no_file(run, line):
    (run / LINEAGE).write_text((run / LINEAGE).read_text() + line + "\n")
    assert f"{LINEAGE}: line 6 is changed: it is no entry" in problems(run)


def test_a_chain_names_no_file_outside_its_folder(run, tmp_path):
    (tmp_path / "secret").write_text("outside")
    lines = complete_lines(run / LINEAGE)
    entry = json.loads(lines[-1])
    entry["files"]["../secret"] = hashlib.sha256(b"outside").hexdigest()
    (run / LINEAGE).write_text("\n".join([*lines[:-1], canonical(entry)]) + "\n")
    assert "../secret was left out" in problems(run)


class Project:
    """A root and certificates under it, as FLARE's provisioning makes them."""

    def __init__(self, folder: Path, name: str = "project"):
        self.name, (self.key, public) = name, utils.generate_keys()
        issuer = utils.Identity(name)
        root = utils.generate_cert(issuer, issuer, self.key, public, ca=True)
        self.root = folder / f"{name}.pem"
        self.root.write_bytes(utils.serialize_cert(root))

    def signer(self, name: str = "server", role: str | None = None) -> ServerSigner:
        key, public = utils.generate_keys()
        subject = utils.Identity(name, "hospitals", role)
        certificate = utils.generate_cert(subject, utils.Identity(self.name), self.key, public)
        return ServerSigner(name, utils.serialize_cert(certificate).decode(), key)


def signed(run: Path, signer: ServerSigner) -> Path:
    lines = complete_lines(run / LINEAGE)
    (run / LINEAGE).write_text("".join(line + "\n" for line in lines[:-1]))
    chain = Chain(run, 3)
    chain.close(3, chain._data, signer.name)
    signer.sign(run, chain.head)
    return run


def said(run: Path, root: Path | None) -> list[str]:
    lineage = check_lineage(run)
    return [*lineage.problems, *check_signature(run, lineage, root)[0]]


def test_a_signature_holds_for_the_project_s_root_alone(run, tmp_path):
    project, other = Project(tmp_path), Project(tmp_path, "other")
    signed(run, project.signer())
    assert said(run, None) == [] and said(run, project.root) == []
    assert "is not of the project whose root is" in said(run, other.root)[0]
    signed(run, other.signer())  # forged, by whoever can write the folder
    assert said(run, None) == [] and "is not of the project" in said(run, project.root)[0]


def test_neither_a_hospital_nor_a_user_signs_in_the_server_s_place(run, tmp_path):
    project = Project(tmp_path)
    for signer in (project.signer("local"), project.signer("admin", role="project_admin")):
        assert "lineage.crt is a site's or a user's, not the server's" in said(signed(run, signer), project.root)


def test_each_bit_of_a_signature_and_of_its_certificate_is_named(run, tmp_path):
    project = Project(tmp_path)
    signed(run, project.signer())
    for name in ("lineage.sig", "lineage.crt"):
        content = (run / name).read_bytes()
        for at in range(0, len(content), 5):
            for bit in (0, 1, 5, 7):
                (run / name).write_bytes(content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :])
                assert said(run, project.root), (name, at, bit)
        (run / name).write_bytes(content)
    assert said(run, project.root) == []


def test_a_signature_cannot_be_left_out_or_moved(run, tmp_path):
    project = Project(tmp_path)
    unsigned = shutil.copytree(run, tmp_path / "unsigned")
    assert "the chain is not signed" in said(unsigned, project.root)[0] and said(unsigned, None) == []
    signed(run, project.signer())
    for name in ("lineage.sig", "lineage.crt"):
        shutil.copy(run / name, unsigned / name)
    assert "lineage.sig was added: the chain says that nobody signed it" in said(unsigned, None)
    (run / "lineage.sig").unlink()
    assert "or lineage.crt was left out" in said(run, None)[0]


def test_the_command_says_what_was_changed_and_fails(run, tmp_path, capsys):
    assert main(["dossier", str(run), "--verify"]) == 0
    assert "no changes" in capsys.readouterr().out
    (run / SUMMARY).write_text("{}")
    assert main(["dossier", str(run), "--verify"]) == 1
    assert "summary.json is changed" in capsys.readouterr().out
    (run / LINEAGE).unlink()
    assert main(["dossier", str(run), "--verify"]) == 2
    assert main(["dossier", str(tmp_path), "--root", "x"]) == 2
