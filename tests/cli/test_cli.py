# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command line, and its command ``study``."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from cfl_flare.cli import main
from cfl_flare.cli.options import CONFIG
from cfl_flare.cli.specs import build_named
from cfl_flare.core.config import unmarked
from cfl_flare.core.errors import ConfigError
from cfl_flare.flare.allowed import CLASSES
from cfl_flare.methods import FedDS
from cfl_flare.models import MLP
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.store import Store
from cfl_flare.results.study import load_study


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def cfl(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs a command in this process."""
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *words: Done(main(words), *capfd.readouterr())


def test_run_in_process_and_show(cfl, monkeypatch, tmp_path):
    out = tmp_path / "out"
    done = cfl(
        "run",
        "--loop",
        "--rounds",
        "3",
        "--method",
        "fesem:k=3",
        "--method",
        "ifca:k=2",
        "--method",
        "local",
        "--keep-features",
        "--out",
        str(out),
    )
    assert done.returncode == 0, done.stderr
    assert "fesem (K=3)" in done.stdout
    run = load_run(out / "fesem-k3")
    assert run.summary["rounds"] == 3 == len(run.feature_files)
    figures = {"accuracy.png", "cluster_sizes.png", "analysis.png", "flows.png"}
    assert {path.name for path in (out / "fesem-k3").glob("*.png")} == figures
    assert {path.name for path in (out / "local").glob("*.png")} == {"accuracy.png"}
    assert {path.name for path in out.glob("*.png")} == {"accuracy.png", "cluster_sizes.png"}
    for path in out.rglob("*.png"):
        path.unlink()
    monkeypatch.setenv("COLUMNS", "60")
    shown = cfl("show", str(out))
    assert shown.returncode == 0
    (line,) = [line.split() for line in shown.stdout.splitlines() if line.startswith("fesem (K=3)")]
    assert line[-2:] == [f"{run.summary['seconds']:.1f}", "fesem-k3"]  # a narrow terminal cuts nothing
    assert {path.name for path in out.glob("*.png")} == {"accuracy.png", "cluster_sizes.png"}
    assert {path.name for path in (out / "fesem-k3").glob("*.png")} == figures


def test_samples_that_were_never_scaled_are_noticed(cfl, tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"train": 80, "test": 40}
    images = {f"{k}_images": rng.integers(0, 256, (n, 8, 8)).astype(np.float32) for k, n in shapes.items()}
    np.savez(tmp_path / "raw.npz", **images, **{f"{k}_labels": np.arange(n) % 2 for k, n in shapes.items()})
    words = ["--data", str(tmp_path / "raw.npz"), "--participants", "2", "--partition", "iid", "--rounds", "1"]
    done = cfl("run", "--loop", "--method", "fedavg", *words, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "data: samples go from 0 to 255: expected 0 to 1; set range of the source" in done.stderr


def test_a_network_that_ends_with_a_softmax_is_noticed(cfl, tmp_path):
    words = ["--rounds", "1", "--participants", "4", "--model", "tests.test_odd_models.Softmaxed"]
    done = cfl("run", "--loop", "--method", "fedavg", *words, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("look at the model: the network ends with Softmax in forward(), and task") == 1


def test_indicator_samples_are_held_back_by_themselves_and_from_all_that_are_compared(cfl, tmp_path):
    words = ["run", "--loop", "--rounds", "1", "--out", str(tmp_path), "--method", "fedavg", "--method", "feddsmic:k=3"]
    done = cfl(*words)
    assert done.returncode == 0, done.stderr
    for run in (load_run(tmp_path / "fedavg"), load_run(tmp_path / "feddsmic-k3")):
        assert run.summary["data"]["indicator_samples"] == 10
        assert sum(p["samples"] for p in run.summary["participants"]) == 1347 - 10 * 10


def test_a_server_s_file_is_found_from_where_the_command_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.npz").touch()
    method = build_named("fedds:k=2,indicator_file=few.npz")
    assert isinstance(method, FedDS)
    assert method.indicator_file == str(tmp_path / "few.npz")


def test_methods_lists_everything(cfl):
    done = cfl("methods")
    assert done.returncode == 0
    for word in (
        "wecfl",
        "clustering_rounds (None)",
        "k (needed)",
        "label_permutation",
        "digits",
        "fashion-cnn",
        "Ghosh",
        "penalties (none)",
        "heterogeneity_tiers",
    ):
        assert word in done.stdout


def test_methods_lists_combinations_and_penalties_with_their_settings(cfl):
    done = cfl("methods")
    assert done.returncode == 0
    rows, name = {}, ""
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if len(cells) == 3:
            name = cells[0] or name
            rows.setdefault(name, []).append(cells[1])
    assert [s for s in rows["fedavg+"] if s.startswith(("k", "vote"))] == ["k (needed)", "vote (probabilities)"]
    assert {"vote (logits)", "k (needed)", "weighting (samples, uniform)"} <= set(rows["fedavg+fesem"])
    assert {"k (needed)", "warmup (10)", "weighting (samples)", "lam (0.01)"} <= set(rows["fesem-cam"])
    assert {"base (needed)", "updates (simultaneous)"} <= set(rows["cam"])
    assert {"parts (needed)", "vote (probabilities)"} <= set(rows["ensemble"])
    assert {"proximal", "contrastive", "knowledge_sharing"} <= rows.keys()
    assert "tau (1.0)" in rows["contrastive"]
    assert not [word for word in ("MISSING", "<class '", "dataclass", "()") if word in done.stdout]


def test_help_shows_how_to_choose(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["run", "--help"])
    printed = capsys.readouterr().out
    for option in ("--method", "--data", "--partition", "--participants", "--sites", "--rounds", "--out"):
        assert option in printed


@pytest.mark.parametrize("command", [("show", "nowhere"), ("run", "--method", "nope", "--out", "x")])
def test_bad_input_is_one_line_and_status_2(cfl, command):
    done = cfl(*command)
    assert done.returncode == 2
    assert done.stderr.startswith("cfl-flare: ")
    assert done.stderr.count("\n") == 1


def test_a_process_of_its_own_ends_with_that_status_and_line():
    command = [sys.executable, "-m", "cfl_flare.cli", "show", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cfl-flare: ") and done.stderr.count("\n") == 1


# ---- ``study`` ----


WORDS = ["study", "--participants", "6", "--partition", "iid", "--rounds", "2", "--rungs", "1", "--bootstrap", "50"]


@pytest.fixture
def study_of(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: its exit status, and what it printed."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: (main(words), *capfd.readouterr())


def test_a_study_prints_its_verdict_and_a_finished_one_prints_it_again(study_of, tmp_path):
    out = tmp_path / "out"
    status, printed, error = study_of(*WORDS, "--method", "ifca:k=2", "--out", str(out))
    assert status == 0, error
    study = load_study(out)
    names = {"local", "fedavg", "fedavg-bias", "finetune", "ifca-k2", "wecfl-k2", "random-k2"}
    assert names <= set(study["titles"]) and names <= set(study["rungs"][0]["means"])
    verdict = study["verdict"]
    for sentence in verdict["sentences"]:
        assert sentence in printed
    assert "cost: " in printed and len(verdict["hospitals"]) == 6
    assert f"report: {out / 'report.html'}" in printed and verdict["sentences"][0] in (out / "report.html").read_text()
    run = load_run(out / "fedavg")
    assert run.summary["data"]["measured_on"] == "validation" and run.summary["rounds"] == 2
    assert (out / "fedavg" / "clusters" / "global.safetensors").is_file() and not (out / "checkpoints").exists()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    status, again, _ = study_of(*WORDS, "--method", "ifca:k=2", "--out", str(out))
    assert status == 0 and verdict["sentences"][0] in again
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    status, _, error = study_of(*WORDS, "--lr", "0.5", "--out", str(out))
    assert status == 2 and "is of a study with other settings (candidates, training); give the same ones" in error


def test_a_study_compares_given_groups_with_those_that_it_finds(study_of, tmp_path):
    """Of ten hospitals, each country's has another half of the patients with the outcome."""
    rng, rows = np.random.default_rng(0), ["hospital,country,a,b,died"]
    for hospital in range(10):
        for a, b in rng.normal(size=(30, 2)):
            rows.append(f"h{hospital},{'nl' if hospital % 2 else 'gr'},{a},{b},{int(a + b * (-1) ** hospital > 0)}")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    table = ["--data", f"table:path={tmp_path}/table.csv,label=died,key=hospital", "--partition", "natural"]
    words = ["study", *table, "--task", "binary", "--model", "logistic", "--rounds", "2", "--rungs", "1"]
    status, printed, error = study_of(*words, "--groups", "country", "--out", str(tmp_path / "out"))
    assert status == 0, error
    titles = load_study(tmp_path / "out")["titles"]
    assert titles["groups-k2"] == "given groups (K=2)" and titles["finetune"] in printed
    config = ["--config", str(tmp_path / "out" / CONFIG), "--out", str(tmp_path / "again")]
    status, _, error = study_of("study", *config)
    assert status == 0 and load_study(tmp_path / "again")["titles"] == titles, error
    people = load_run(tmp_path / "out" / "groups-k2").summary["participants"]
    assert {person["name"][1:]: person["cluster"] for person in people} == {str(i): i % 2 for i in range(10)}
    for data, column, why in (
        (table, "nation", "no column 'nation'; it has hospital, country"),
        (["--participants", "6", "--partition", "iid"], "data", "the data's participants have no groups; leave it out"),
        (
            ["--job", str(tmp_path), "--model", "mlp:input_shape=[4],num_classes=2"],
            "none.json",
            "cannot read none.json",
        ),
    ):
        status, _, error = study_of("study", *data, "--groups", column)
        assert status == 2 and why in error


def test_a_report_that_cannot_be_written_leaves_the_verdict(study_of, tmp_path, monkeypatch):
    from cfl_flare.report import vega

    monkeypatch.setattr(vega, "MAKE", "raise SystemExit('no engine here')")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    vega.script.cache_clear()
    status, printed, error = study_of(*WORDS, "--out", str(tmp_path / "out"))
    assert status == 0, error
    assert "the report's plots cannot be made: no engine here" in printed and "report: /" not in printed
    assert load_study(tmp_path / "out")["verdict"]["sentences"][0] in printed


def test_a_study_goes_on_after_an_interruption(study_of, tmp_path, monkeypatch):
    from cfl_flare.engine.study.in_process import InProcess

    usual, asked = InProcess.train, []

    def interrupted(self, candidate, rounds):
        if candidate.name == "wecfl-k2":
            raise KeyboardInterrupt
        usual(self, candidate, rounds)

    monkeypatch.setattr(InProcess, "train", interrupted)
    assert study_of(*WORDS, "--out", str(tmp_path / "broken"))[0] == 130
    assert load_study(tmp_path / "broken")["verdict"] is None
    elsewhere = Store(tmp_path / "broken" / "checkpoints")
    elsewhere.lock()
    status, _, error = study_of(*WORDS, "--out", str(tmp_path / "broken"))
    assert status == 2 and "study: another process works in" in error and "name a new folder" in error
    elsewhere.unlock()
    monkeypatch.setattr(InProcess, "train", lambda self, c, r: (asked.append(c.name), usual(self, c, r))[1])
    assert study_of(*WORDS, "--out", str(tmp_path / "broken"))[0] == 0
    assert study_of(*WORDS, "--out", str(tmp_path / "whole"))[0] == 0
    one, other = (load_study(tmp_path / name)["verdict"] for name in ("broken", "whole"))
    assert one == other and "wecfl-k2" in asked


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--rungs", "0"], "study: rungs = 0 should be in [1, 8]"),
        (["--minutes", "-1"], "study: minutes = -1.0 should be > 0"),
        (["--margin", "0"], "study: margin = 0.0 should be > 0"),
        (["--validation", "0"], "study: validation = 0.0 sets no samples aside"),
        (["--method", "fedavg"], "--method fedavg is a candidate already; leave it out"),
        (
            ["--method", "groups:groups=[a,b]"],
            "--method groups-k2: a study's sites name no group; give each one's label",
        ),
        (["--method", "ifca:k=7"], "method ifca: k = 7 is more than participants = 6; lower k"),
        (["--rounds", "1"], "study: rounds = 1 is spent on looking for the number of clusters; give 2 or more"),
    ],
)
def test_refusals_come_before_anything_is_written(study_of, tmp_path, words, why):
    status, _, error = study_of(*WORDS, "--out", str(tmp_path / "out"), *words)
    assert status == 2 and why in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[]", "is a list, not an object"),
        ("{", "it is not JSON"),
        ('{"version": 2}', "version = 2 is not the number of this format"),
        ('{"version": 1}', "has no 'settings'"),
    ],
)
def test_a_folder_with_something_else_is_left_alone(study_of, tmp_path, content, why):
    (tmp_path / "study.json").write_text(content)
    status, _, error = study_of(*WORDS, "--out", str(tmp_path))
    assert status == 2 and why in error
    (tmp_path / "study.json").rename(tmp_path / "other.json")
    status, _, error = study_of(*WORDS, "--out", str(tmp_path))
    assert status == 2 and "is not an empty folder, and holds no study.json; name a new one" in error
    assert (tmp_path / "other.json").read_text() == content


def test_what_a_foreign_study_says_is_no_command_for_the_terminal(tmp_path):
    from rich.console import Console

    from cfl_flare.report.gains import hospitals_table
    from cfl_flare.report.study import candidates_table
    from cfl_flare.report.table import printed

    own = {"name": "x\x1b[31m", "tested": 5, "value": None, "to_one": None, "to_alone": None}
    verdict = {"metric": "[red]a\x1b", "tested": {}, "chosen": {"name": "y"}, "hospitals": [own]}
    rung = {"rounds": 1, "means": {"y\x1b": 0.5}, "dropped": {"z": "\x1b[2J[red]"}}
    study = json.loads(json.dumps({"rungs": [rung], "titles": {"y\x1b": "t\x1b"}, "verdict": verdict}))
    console = Console(width=200, record=True, force_terminal=False)
    for table in (candidates_table(study), hospitals_table(study)):
        console.print(printed("", table))
    assert "\x1b" not in console.export_text(styles=False)


# ---- As a job for real sites ----

MODEL = "mlp:input_shape=[1,8,8],num_classes=10"


def configs(folder: Path) -> tuple[dict, dict]:
    """The arguments of an exported job's controller and executor."""
    server, client = (
        json.loads((folder / "app" / "config" / f"config_fed_{side}.json").read_text()) for side in ("server", "client")
    )
    return server["workflows"][0], client["executors"][0]["executor"]


def test_a_study_is_written_as_one_job(study_of, tmp_path):
    words = ["study", "--job", str(tmp_path), "--name", "ward", "--min-clients", "4", "--model", MODEL, "--rounds", "7"]
    status, printed, error = study_of(*words, "--method", "ifca:k=2", "--margin", "0.1", "--task-timeout", "60")
    assert status == 0, error
    assert f"nvflare job submit -j {tmp_path / 'ward'}" in " ".join(printed.split())
    controller, executor = configs(tmp_path / "ward")
    assert controller["path"] in CLASSES and executor["path"] in CLASSES
    server, site = unmarked(controller["args"]), unmarked(executor["args"])
    assert server["study"] == {"rungs": 3, "minutes": None, "margin": 0.1, "fewest_events": 100}
    assert server["num_rounds"] == site["num_rounds"] == 7 and server["task_timeout"] == 60
    assert server["more"] == site["more"] and [one["method"] for one in site["more"]] == ["ifca"]
    assert server["facts"] == {"data": site["data"], "training": site["training"]}
    assert site["data"]["measured_on"] == "validation" and site["training"]["bootstrap"] == 200
    assert site["source"]["class_path"].endswith(".SiteData")
    assert server["run_name"] == site["run_name"] == "ward" and "resume_from" not in server
    assert json.loads((tmp_path / "ward" / "meta.json").read_text())["min_clients"] == 4
    assert not {"method", "private", "aggregator_id"} & {*server, *site}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--min-clients", "3"], "--min-clients is of a job for real sites; give --job DIR with it, or leave it out"),
        (["--resume-from", "a"], "--resume-from is of a job for real sites; give --job DIR"),
        (["--job", "jobs", "--out", "x"], "--out is where a study on this machine goes; with --job, leave it out"),
        (["--job", "jobs", "--validation", "0"], "study: validation = 0.0 sets no samples aside"),
        (["--job", "jobs", "--bootstrap", "0"], "study: bootstrap = 0 leaves differences without intervals"),
        (["--job", "jobs", "--dp", "epsilon=3"], "study: dp would be spent once for each candidate"),
        (["--job", "jobs", "--rounds", "1"], "study: rounds = 1 is spent"),
        (["--job", "jobs", "--name", "a/b"], "--name = 'a/b' should be letters"),
        (["--job", "jobs", "--rungs", "0"], "study: rungs = 0 should be in [1, 8]"),
        (["--job", "jobs", "--method", "fedavg"], "--method fedavg is a candidate already; leave it out"),
        (["--job", ".", "--name", "taken"], "taken' is not an empty folder; name a new one"),
        (["--job", "jobs", "--patience", "2"], "unrecognized arguments: --patience 2"),
    ],
)
def test_what_does_not_belong_together_is_refused_before_anything_is_written(
    study_of, tmp_path, monkeypatch, words, why
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "meta.json").touch()
    before = sorted(tmp_path.rglob("*"))
    status, printed, error = study_of("study", "--model", MODEL, *words)
    assert status == 2 and why in error and not printed and len(error.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["private", "patience", "stop_cond", "initial_ckpt", "train_script", "measured_on"])
def test_a_recipe_takes_no_setting_of_a_single_run(name):
    from cfl_flare import Digits, StudyRecipe

    settings = {"num_rounds": 4, "min_clients": 2, "validation": 0.25, "training": {"bootstrap": 50}}
    with pytest.raises(ConfigError, match=f"study: {name} cannot be set for the candidates of a study; leave it out"):
        StudyRecipe(model=MLP([1, 8, 8], 10), data=Digits(), **settings, **{name: "x"})


def test_show_prints_a_study_again_and_one_without_a_verdict(study_of, tmp_path):
    out = tmp_path / "job" / "workspace" / "cfl"
    status, printed, _ = study_of(*WORDS, "--out", str(out))
    assert status == 0
    status, again, error = study_of("show", str(tmp_path / "job"))
    assert status == 0 and not error
    tables = printed[printed.index("candidates") :]
    assert again == tables[: tables.index("results: ")]
    study = load_study(out)
    (out / "study.json").write_text(json.dumps({**study, "version": 1, "verdict": None, "rungs": []}))
    status, begun, error = study_of("show", str(out))
    assert status == 0 and "no verdict yet: the study was interrupted" in begun
    (tmp_path / "job" / "study.json").write_text((out / "study.json").read_text())
    status, _, error = study_of("show", str(tmp_path / "job"))
    assert status == 2 and "holds several studies" in error
