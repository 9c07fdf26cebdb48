# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a participant that withdraws has touched; a run without it is bit-equal to one that never had it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.cli import main
from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.files import file_sha256
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import METHODS, FedAvg, Local, Method
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.methods.state import PLAIN, Download, ServerState
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.withdrawal import withdrawal
from cfl_flare.training.settings import TrainSettings
from tests.loop import run_loop
from tests.play import MODEL

ALONE = ServerSettings(2, clip_norm=None)


@dataclass(frozen=True, kw_only=True)
class Given(Method):
    """FedAvg within each of two groups: participants with an even number, and with an odd one."""

    name: ClassVar[str] = "given"
    paper: ClassVar[str] = "a test's"

    @property
    def traits(self):
        return replace(PLAIN, clusters=2, given_groups=True)

    def start(self, initial, participants=()):
        return ServerState({cluster_slot(k): initial(0) for k in range(2)}, {n: int(n[1:]) % 2 for n in participants})

    def distribute(self, state, participant):
        return Download((cluster_slot(state.assignment[participant]),))

    def assign(self, state, updates):
        return {update.participant: int(update.participant[1:]) % 2 for update in updates}

    def counts_in(self, state, update, assignment):
        return self.by_slot(update)

    def aggregate(self, state, updates, assignment):
        return state.after(self.means(state, updates), assignment)


@pytest.fixture
def groups(monkeypatch):
    """The test's method, known by its name."""
    monkeypatch.setitem(METHODS, "given", Given)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """A function that gives the folder of a run of six participants without some; each run is made once."""

    @cache
    def folder_of(method: Method, without: tuple[str, ...] = (), rounds: ServerSettings = ALONE) -> Path:
        folder = tmp_path_factory.mktemp("one") / "run"
        data = DataConfig(6, {"partition": "label_permutation", "groups": 2}, without=without)
        given = {"model": MODEL, "source": Digits(), "data": data, "settings": rounds}
        run_loop(method=method, training=TrainSettings(lr=0.1, local_steps=2), folder=folder, **given)
        return folder

    return folder_of


@pytest.fixture(scope="module")
def commanded(tmp_path_factory) -> Path:
    """The folder of a command's two runs, by ifca and by fedavg."""
    out = tmp_path_factory.mktemp("two") / "runs"
    methods = ["--method", "ifca:k=2", "--method", "fedavg"]
    few = ["--loop", "--rounds", "2", "--participants", "4", "--out", str(out)]
    assert main(["run", *methods, *few]) == 0
    return out


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "copies" / folder.name))


def models_of(folder: Path, kind: str = "clusters") -> dict[str, dict[str, bytes]]:
    """The arrays of each model, bit by bit."""
    files = sorted((folder / kind).glob("*.safetensors"))
    return {path.stem: {name: a.tobytes() for name, a in load_arrays(path)[0].items()} for path in files}


# ---- A run without a participant ----


@settings(max_examples=6, deadline=None)
@given(st.sets(st.integers(0, 5), min_size=1, max_size=4))
def test_with_given_groups_no_participant_changes_a_cluster_without_it(run_of, numbers):
    METHODS["given"] = Given
    try:
        absent = tuple(f"p{i}" for i in sorted(numbers))
        never, run = run_of(Given(), absent), load_run(run_of(Given()))
        report = withdrawal(run, absent, run.folder)
        before, after = models_of(run.folder), models_of(never)
        touched = {f"cluster-{number % 2}" for number in numbers}
        assert report.why_all == [] and set(report.models) == touched
        assert set(report.again) == {f"p{i}" for i in range(6) if f"cluster-{i % 2}" in touched} - set(absent)
        for slot in report.untouched:
            assert before[slot] == after[slot]
        stay = tuple(name for name in (f"p{i}" for i in range(6)) if name not in report.again)
        if report.again:  # they alone give the touched clusters' models, bit by bit
            partly = models_of(run_of(Given(), stay))
            assert all(partly[slot] == after[slot] for slot in touched)
    finally:
        del METHODS["given"]


@settings(max_examples=4, deadline=None)
@given(st.sets(st.integers(0, 5), min_size=1, max_size=4))
def test_of_participants_that_train_alone_the_others_models_stay(run_of, numbers):
    absent = tuple(f"p{i}" for i in sorted(numbers))
    run = load_run(run_of(Local()))
    report = withdrawal(run, absent, run.folder)
    assert report.again == [] and report.why_all == []
    before, after = models_of(run.folder, "served"), models_of(run_of(Local(), absent), "served")
    assert after == {name: model for name, model in before.items() if name not in absent}
    gone = {name for name in report.files if name.startswith("served/")}
    assert gone == {f"served/{name}.safetensors" for name in absent}


@pytest.mark.parametrize(
    "method, change, reason",
    [
        (FedAvg(), {}, "depends on all participants"),
        (Given(), {"clip_norm": 10.0}, "clip_norm"),
        (Given(), {"sample": 0.5}, "sample"),
        (Given(), {"patience": 5}, "patience"),
        (Given(), {"reject_outliers": True}, "reject_outliers"),
    ],
)
def test_what_couples_clusters_makes_all_of_them_train_again(run_of, groups, method, change, reason):
    run = load_run(run_of(method, rounds=replace(ALONE, **change)))
    report = withdrawal(run, ["p0"], run.folder)
    assert len(report.why_all) == 1 and reason in report.why_all[0]
    assert report.again == ["p1", "p2", "p3", "p4", "p5"] and report.untouched == []


def test_the_command_runs_again_as_if_it_had_never_been_there(commanded, tmp_path, capfd):
    run = copied(commanded, tmp_path) / "ifca-k2"
    assert main(["withdraw", "--participant", "p2", "--rerun", "--out", str(tmp_path / "again"), str(run)]) == 0
    report = json.loads((run / "withdrawal.json").read_text())
    assert report["rerun"] == str(tmp_path / "again" / "ifca-k2")
    never = ["run", "--config", str(run.parent / "run.toml"), "--method", "ifca:k=2", "--without", "p2"]
    assert main([*never, "--out", str(tmp_path / "never")]) == 0
    for kind in ("clusters", "served"):
        ours = models_of(tmp_path / "again" / "ifca-k2", kind)
        assert ours and ours == models_of(tmp_path / "never" / "ifca-k2", kind)
    assert ours.keys() == {"p0", "p1", "p3"}
    assert "p2" not in (tmp_path / "again" / "ifca-k2" / "summary.json").read_text().replace("without", "")[
        :0
    ] + "".join(person["name"] for person in load_run(tmp_path / "again" / "ifca-k2").summary["participants"])
    assert "run without them" in capfd.readouterr().out


def test_untouched_models_are_copied_and_the_others_trained_again(groups, tmp_path):
    out = tmp_path / "runs"
    options = ["--method", "given", "--loop", "--rounds", "2", "--participants", "5", "--clip-norm", "none"]
    assert main(["run", *options, "--out", str(out)]) == 0
    run = out / "given-k2"
    assert main(["withdraw", "--participant", "p2", "--rerun", "--out", str(tmp_path / "again"), str(run)]) == 0
    again = tmp_path / "again" / "given-k2"
    assert [person["name"] for person in load_run(again).summary["participants"]] == ["p0", "p4"]
    name = "clusters/cluster-1.safetensors"
    assert (again / name).read_bytes() == (run / name).read_bytes()
    assert main(["run", *options, "--without", "p2", "--out", str(tmp_path / "never")]) == 0
    assert models_of(again) == models_of(tmp_path / "never" / "given-k2")


@pytest.mark.slow
def test_through_flare_a_site_withdraws_with_all_that_it_hosts(tmp_path):
    few = ["--rounds", "2", "--participants", "6"]
    methods = ["--method", "ifca:k=2", "--method", "fedavg"]
    assert main(["run", *few, *methods, "--sites", "3", "--out", str(tmp_path / "runs")]) == 0
    run = tmp_path / "runs" / "ifca-k2"
    start = ["--method", "fedavg", "--initial-ckpt", str(run / "clusters" / "cluster-0.safetensors")]
    assert main(["run", *few, *start, "--loop", "--out", str(tmp_path / "later")]) == 0
    again = ["--rerun", "--out", str(tmp_path / "again"), "--beside", str(tmp_path)]
    assert main(["withdraw", str(run), "--site", "site-2", *again]) == 0
    report = json.loads((run / "withdrawal.json").read_text())
    assert report["withdrawn"] == ["p2", "p3"] and report["later_runs"] == [str(tmp_path / "later" / "fedavg")]
    never = ["--method", "ifca:k=2", "--without", "p2", "p3", "--loop", "--out", str(tmp_path / "never")]
    assert main(["run", *few, *never]) == 0
    # With FLARE and without, the bits are the same.
    assert models_of(tmp_path / "again" / "ifca-k2") == models_of(tmp_path / "never" / "ifca-k2") != {}


# ---- What was touched ----


def test_a_report_by_hand(run_of, groups, tmp_path):
    run = copied(run_of(Given()), tmp_path)
    lines = [json.loads(line) for line in (run / "assignments.jsonl").read_text().splitlines()]
    for line in lines:
        line["trained"] = not (line["participant"] == "p2" and line["round"] == 0)
    (run / "assignments.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    later = tmp_path / "copies" / "later"
    later.mkdir()
    started = file_sha256(run / "clusters" / "cluster-0.safetensors")
    (later / "summary.json").write_text(json.dumps({"started_from": started}))
    store = tmp_path / "state"
    store.mkdir()
    for number in (1, 2):
        save_arrays(store / f"round-{number:06d}.safetensors", {}, {})
        (store / f"round-{number:06d}.json").write_text("{}")
    assert main(["withdraw", "--participant", "p2", "--checkpoints", str(store), str(run)]) == 0
    report = json.loads((run / "withdrawal.json").read_text())
    assert (report["first_round"], report["models"], report["untouched"]) == (1, {"cluster-0": 1}, ["cluster-1"])
    assert report["checkpoints"] == [str(store / "round-000002.safetensors")]
    assert report["resume"] == str(store / "round-000001.safetensors")
    assert report["later_runs"] == [str(later)] and report["again"] == ["p0", "p4"]
    names = {f"served/p{i}.safetensors" for i in (0, 2, 4)} | {
        "summary.json",
        "rounds.jsonl",
        "state/round-000002.json",
    }
    assert names <= report["files"].keys()
    assert not {"clusters/cluster-1.safetensors", "served/p1.safetensors"} & report["files"].keys()


def test_who_never_trained_touched_nothing(run_of, tmp_path, capfd):
    run = copied(run_of(FedAvg()), tmp_path)
    text = (run / "assignments.jsonl").read_text().splitlines()
    lines = [{**(line := json.loads(row)), "trained": line["participant"] != "p1"} for row in text]
    (run / "assignments.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["withdraw", "--participant", "p1", str(run)]) == 0
    assert "trained in no round" in capfd.readouterr().out
    report = json.loads((run / "withdrawal.json").read_text())
    assert (report["first_round"], report["models"], report["again"]) == (None, {}, [])
    assert "summary.json" in report["files"] and not [n for n in report["files"] if n.endswith(".safetensors")]


# ---- Real sites ----


def at_real_sites(folder: Path, to: Path) -> Path:
    """A run as real sites leave it, of sites p0, ..., p5."""
    run = copied(folder, to)
    summary = json.loads((run / "summary.json").read_text())
    summary["data"] |= {"participants": None, "partition": None}
    for person in summary["participants"]:
        person["site"] = person["name"]
    (run / "summary.json").write_text(json.dumps(summary))
    return run


def test_the_job_to_submit_is_without_the_site_and_with_another_seed(run_of, tmp_path, capfd):
    run = at_real_sites(run_of(FedAvg()), tmp_path)
    export = ["export", "--method", "fedavg", "--model", "mlp:input_shape=[8],num_classes=2", "--min-clients", "6"]
    assert main([*export, "--sites", "p0,p1,p2,p3,p4,p5", "--out", str(tmp_path / "jobs")]) == 0
    job, out = tmp_path / "jobs" / "clustered", tmp_path / "new"
    assert main(["withdraw", "--site", "p2", "--job", str(job), "--out", str(out), str(run)]) == 0
    assert "cfl-flare site allow" in capfd.readouterr().out.replace("\n", " ")
    old, new = (json.loads((folder / "meta.json").read_text()) for folder in (job, out))
    assert new["deploy_map"] == {app: sites for app, sites in old["deploy_map"].items() if sites != ["p2"]}
    assert (old["min_clients"], new["min_clients"]) == (6, 5)
    assert not (out / "app_p2").exists() and (out / "app_p3").exists() and (job / "app_p2").exists()
    server = json.loads((out / "app_server/config/config_fed_server.json").read_text())
    client = json.loads((out / "app_p0/config/config_fed_client.json").read_text())
    assert server["workflows"][0]["args"]["seed"] == client["executors"][0]["executor"]["args"]["seed"] == 1


def test_a_job_for_all_names_the_others(run_of, tmp_path):
    run = at_real_sites(run_of(FedAvg()), tmp_path)
    export = ["export", "--method", "fedavg", "--model", "mlp:input_shape=[8],num_classes=2", "--out", str(tmp_path)]
    assert main(export) == 0
    out = tmp_path / "new"
    job = ["--job", str(tmp_path / "clustered"), "--out", str(out)]
    assert main(["withdraw", "--site", "p2", "--site", "p3", *job, str(run)]) == 0
    targets = json.loads((out / "meta.json").read_text())["deploy_map"]
    assert targets == {"app": ["server", "p0", "p1", "p4", "p5"]}


# ---- Refusals ----


def break_run(run: Path, what: str) -> None:
    file, text = {
        "summary": ("summary.json", "{"),
        "trained": ("assignments.jsonl", '{"round": 0, "participant": "p0", "cluster": 0, "trained": "yes"}\n'),
        "shares": ("assignments.jsonl", '{"round": 0, "participant": "p0", "cluster": 0, "shares": {"-1": 1}}\n'),
        "cluster": ("assignments.jsonl", '{"round": 0, "participant": "p0", "cluster": -5, "trained": true}\n'),
        "method": ("summary.json", json.dumps({**json.loads((run / "summary.json").read_text()), "method": {"k": []}})),
        "toml": ("run.toml", "method = ["),
        "other": ("run.toml", 'method = ["fedavg"]'),
    }[what]
    (run / file).write_text(text)


@pytest.mark.parametrize("what", ["summary", "trained", "shares", "cluster", "method", "toml", "other"])
def test_a_garbled_run_is_one_line(commanded, what, tmp_path, capfd):
    run = copied(commanded / "ifca-k2", tmp_path)
    break_run(run, what)
    assert main(["withdraw", "--participant", "p0", "--rerun", "--out", str(tmp_path / "out"), str(run)]) == 2
    error = capfd.readouterr().err
    assert error.startswith("cfl-flare: ") and error.count("\n") == 1 and str(run.name) in error
    assert not (tmp_path / "out").exists() and not (run / "withdrawal.json").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "name who withdraws"),
        (["--participant", "p9"], "--participant p9 is not in"),
        (["--site", "mars"], "there are local"),
        (["--participant", "p0", "--rerun"], "--out is where"),
        (["--participant", "p0", "--out", "x"], "--out is where"),
        (["--participant", "p0", "--job", "x", "--out", "x"], "repeat this by --rerun"),
        (["--site", "local", "--rerun", "--out", "x"], "nobody has to train again"),
    ],
)
def test_what_cannot_be_done_says_the_way_out(commanded, words, message, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = copied(commanded / "ifca-k2", tmp_path)
    assert main(["withdraw", str(run), *words]) == 2
    error = capfd.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_run_at_real_sites_is_not_run_here(run_of, tmp_path, capfd):
    run = at_real_sites(run_of(FedAvg()), tmp_path)
    assert main(["withdraw", "--site", "p2", "--rerun", "--out", str(tmp_path / "x"), str(run)]) == 2
    assert "give its job's folder as --job" in capfd.readouterr().err


@pytest.mark.parametrize("hostile", ["link", "app", "above", "seed", "meta"])
def test_a_hostile_job_is_refused(run_of, hostile, tmp_path, capfd):
    run = at_real_sites(run_of(FedAvg()), tmp_path)
    export = ["export", "--method", "fedavg", "--model", "mlp:input_shape=[8],num_classes=2", "--out", str(tmp_path)]
    assert main(export) == 0
    job = tmp_path / "clustered"
    meta, config = job / "meta.json", job / "app/config/config_fed_server.json"
    if hostile == "link":
        (job / "app" / "secret").symlink_to("/etc/hostname")
    elif hostile in ("app", "above"):
        place = "../.." if hostile == "app" else ".."
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "deploy_map": {place: ["p2"], "app": ["@ALL"]}}))
    elif hostile == "seed":
        config.write_text(config.read_text().replace('"num_rounds"', '"seed": "x", "num_rounds"'))
    else:
        meta.write_text("[]")
    capfd.readouterr()
    assert main(["withdraw", "--site", "p2", "--job", str(job), "--out", str(tmp_path / "new"), str(run)]) == 2
    assert capfd.readouterr().err.count("\n") == 1
    assert not (run / "withdrawal.json").exists()
