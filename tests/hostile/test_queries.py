# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What authors and servers get of one patient beside the models: other paths to the data, memories, codes, counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cfl_flare.cli import main
from cfl_flare.core.config import describe, marked
from cfl_flare.core.errors import FAILURES, FREE_OF_DATA, WITHHELD, BudgetError
from cfl_flare.data import DataConfig, Digits, ParticipantData, Samples, SiteData
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Task
from cfl_flare.flare import site_run, wire
from cfl_flare.flare.allowed import Policy
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.site_run import SiteRun
from cfl_flare.methods import CGPFL, CLoVE, Ditto, Ensemble, FedAvg, Method
from cfl_flare.models import Logistic
from cfl_flare.results.balance import LedgerJob
from cfl_flare.results.ledger import JobBooks, Ledger, Rules
from cfl_flare.results.store import Store
from cfl_flare.training.privacy import TEST, TRAIN, Spend, epsilon_of, least_noise, rdp_of
from cfl_flare.training.settings import TrainSettings
from tests.helpers.hospitals import Hospitals
from tests.helpers.kits import JOB, ask_check_in, context, make_executor, write_kit, write_kit_npz
from tests.helpers.loop import run_loop
from tests.helpers.tiny import Coin, coin

DELTA = 1e-5
TRAINING = {"local_steps": 2, "dp": {"epsilon": 3.0, "rounds": 2, "measured": 2}}


def make_private_job(source: SiteData | None = None, **changes: Any) -> ClusteredExecutor:
    """A job's process at a site, whose author asks for an epsilon of 3."""
    return make_executor(source or SiteData(), **{"training": marked(TRAINING), **changes})


def ask_private_job(site: ClusteredExecutor, folder: Path, job: str = "job", **changes: Any) -> dict[str, Any]:
    """What a site answers to a job's first task."""
    fl_ctx = context(folder)
    fl_ctx.set_prop(ReservedKey.RUN_NUM, job)
    (folder / job).mkdir(exist_ok=True)
    (folder / job / "meta.json").write_text("{}")
    shared = {key: getattr(site, key) for key in ("method", "model", "data", "training", "seed", "run_name")}
    task: Shareable = ask_check_in(job={**JOB, **shared}, **changes)
    said = site.execute(wire.CHECK_TASK, task, fl_ctx, Signal())
    return wire.content_of(wire.from_shareable(said).meta)


def spend_all(site: ClusteredExecutor) -> None:
    """Trains until the job's epsilon is spent."""
    assert site._books is not None
    noise = 8 * least_noise(3.0, DELTA)
    with pytest.raises(BudgetError):
        for number in range(1000):
            site._books.spend("site-1", number, [Spend("training", TRAIN, noise)])


# ---- Other paths to the same patients ----


def link_file(data: Path) -> Path:
    other = data.parents[1] / "lung" / "ward.npz"
    other.parent.mkdir()
    os.link(data, other)
    return other


def name_folder(data: Path) -> Path:
    return data.parent


def copy_file(data: Path) -> Path:
    """As two mounts of one data set look, if they are of two file systems."""
    other = data.parents[1] / "mounted" / "ward.npz"
    other.parent.mkdir()
    other.write_bytes(data.read_bytes())
    return other


@pytest.mark.parametrize("find_other", [link_file, name_folder, copy_file])
def test_another_path_has_no_second_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find_other: Callable[[Path], Path]
) -> None:
    data = write_kit_npz(tmp_path / "heart" / "ward.npz")
    folder = write_kit(tmp_path / "site-1", epsilon_budget=4.0)
    monkeypatch.setenv("CFL_DATA", str(data))
    first = make_private_job()
    assert "error" not in ask_private_job(first, folder, "first")
    spend_all(first)
    monkeypatch.setenv("CFL_DATA", str(find_other(data)))
    assert ask_private_job(make_private_job(), folder, "second")["error"] == "budget"


def test_operators_name_data_of_other_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heart = write_kit_npz(tmp_path / "heart" / "ward.npz")
    lung = write_kit_npz(tmp_path / "lung" / "ward.npz")
    other = write_kit_npz(tmp_path / "other" / "ward.npz")
    folder = write_kit(tmp_path / "site-1")
    named = [word for data in (heart, lung) for word in ("--data-set", f"{data.parent.name}={data.parent}")]
    assert main(["site", "prepare", str(folder), "--epsilon-budget", "4", *named]) == 0
    monkeypatch.setenv("CFL_DATA", str(heart))
    first = make_private_job()
    assert "error" not in ask_private_job(first, folder, "first")
    spend_all(first)
    monkeypatch.setenv("CFL_DATA", str(heart.parent))
    assert ask_private_job(make_private_job(), folder, "second")["error"] == "budget"
    monkeypatch.setenv("CFL_DATA", str(lung))
    assert "error" not in ask_private_job(make_private_job(), folder, "third")
    monkeypatch.setenv("CFL_DATA", str(other))
    assert ask_private_job(make_private_job(), folder, "fourth")["error"] == "budget"
    capsys.readouterr()
    assert main(["site", "ledger", "--kit", str(folder), "--json"]) == 0
    spent = {line["data"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert spent.keys() == {"heart", "lung"}
    assert 2.9 < spent["heart"]["epsilon"] <= 3 and spent["lung"]["epsilon"] < 1


def test_what_was_spent_before_names_counts_for_each(tmp_path: Path) -> None:
    def spend(data: str, job: str) -> float:
        ledger = Ledger(tmp_path / "state", tmp_path / "kit", "site-1", Rules(), data)
        ledger.open()
        JobBooks(ledger, LedgerJob(job, job, "", 9.0, DELTA)).spend("p", 0, [Spend("training", TRAIN, 2.0)])
        return float(ledger.summary()["epsilon"])

    once, twice, thrice = (epsilon_of(rdp_of([Spend("", TRAIN, 2.0)] * number), DELTA) for number in (1, 2, 3))
    assert spend("", "a") == pytest.approx(once)
    assert spend("heart", "b") == pytest.approx(twice)
    assert spend("lung", "c") == pytest.approx(twice)
    assert spend("heart", "d") == pytest.approx(thrice)


@pytest.mark.parametrize(
    "sets", [["heart"], ["heart=ward"], ["=/data"], ["a=/data", "b=/data/heart"], ["a=/x", "b=/x"]]
)
def test_odd_data_sets_are_refused(sets: list[str]) -> None:
    with pytest.raises(ValueError, match=r"data.sets?"):
        Policy(data_sets=tuple(sets))


@pytest.mark.parametrize("named", [False, True])
def test_a_linked_folder_hides_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    """A job of four sites and one of three of them, which reads the same files from another folder."""
    hospitals = Hospitals(tmp_path, monkeypatch)
    assert not hospitals.submit(hospitals.names).failures()
    (tmp_path / "new").mkdir()
    for name in hospitals.names:
        os.link(tmp_path / f"{name}.npz", tmp_path / "new" / f"{name}.npz")
        sets = [f"old={tmp_path / name}.npz", f"new={tmp_path / 'new'}"]
        policy = {"min_sites_per_cluster": 3, "data_sets": sets if named else []}
        (tmp_path / name / "local" / "cfl.json").write_text(json.dumps(policy))
    hospitals.data = tmp_path / "new"
    # Jobs from before the operators named data sets may have been of the same patients.
    assert hospitals.submit(hospitals.names[:3]).failures() == {"difference"}


def test_named_data_sets_have_records_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hospitals = Hospitals(tmp_path, monkeypatch)
    (tmp_path / "new").mkdir()
    for name in hospitals.names:
        (tmp_path / "new" / f"{name}.npz").write_bytes((tmp_path / f"{name}.npz").read_bytes())
        sets = [f"old={tmp_path / name}.npz", f"new={tmp_path / 'new'}"]
        policy = {"min_sites_per_cluster": 3, "data_sets": sets}
        (tmp_path / name / "local" / "cfl.json").write_text(json.dumps(policy))
    assert not hospitals.submit(hospitals.names).failures()
    assert hospitals.submit(hospitals.names[:3], seed=1).failures() == {"difference"}
    hospitals.data = tmp_path / "new"
    assert not hospitals.submit(hospitals.names[:3], seed=2).failures()


# ---- A run that is resumed ----


def resume_with(folder: Path, division: str) -> float:
    """The run's epsilon for a patient who trains in a job that resumes one of epsilon 3 on its test samples."""
    ledger = Ledger(folder / "state", folder / "kit", "site-1")
    ledger.open()
    noise = least_noise(3.0, DELTA)
    first = LedgerJob("a", "ward", "", 3.0, DELTA, division="seed 0")
    JobBooks(ledger, first).spend("site-1", 0, [Spend("metrics", TEST, noise)])
    second = LedgerJob("b", "next", "ward", 3.0, DELTA, division=division)
    JobBooks(ledger, second).spend("site-1", 1, [Spend("training", TRAIN, noise)])
    return float(ledger.summary()["epsilon"])


@pytest.mark.parametrize("division", ["seed 1", ""])
def test_a_patient_who_changes_splits_pays_both(tmp_path: Path, division: str) -> None:
    """Its sum would be 4.44, and the author promised 3."""
    with pytest.raises(BudgetError, match=r"epsilon = 4\.44 at delta = 1e-05, and the job may spend 3"):
        resume_with(tmp_path, division)


def test_patients_who_stay_in_their_split_do_not(tmp_path: Path) -> None:
    assert resume_with(tmp_path, "seed 0") == pytest.approx(4.44, abs=0.01)  # as if dealt otherwise: two jobs


def test_a_resumed_job_with_another_split_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "ward.npz")))
    folder = write_kit(tmp_path / "site-1")
    divisions = []
    for changes in ({}, {}, {"seed": 1}, {"data": marked({"validation": 0.3})}):
        site = make_private_job(**changes)
        assert "error" not in ask_private_job(site, folder)
        assert isinstance(site._books, JobBooks)
        divisions.append(site._books.job.division)
    assert divisions[0] == divisions[1]
    assert len({*divisions}) == 3


# ---- Memories ----


def keep_memory(method: Method, memory: dict[str, list[float]]) -> dict[str, list[float]]:
    """What participant a remembers in a process of this method, which then remembers ``memory`` as well."""
    site = Site(method, Coin, TrainSettings(), seed=0)
    site.hosted = {"a": None}  # type: ignore[dict-item]
    log: Any = SimpleNamespace(log_info=lambda *words: None, log_warning=lambda *words: None)
    run = SiteRun(site, "run", {}, log)
    run.recall(1, "run", None)  # type: ignore[arg-type]
    known = {what: model.vector.tolist() for what, model in site.memory["a"].items()}
    site.memory["a"] |= {what: coin(*numbers) for what, numbers in memory.items()}
    run.remember(1)
    return known


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (Ensemble(parts=(Ditto(), Ditto(), CGPFL(k=2))), Ensemble(parts=(Ditto(), CGPFL(k=2)))),
        (Ensemble(parts=(Ditto(), CGPFL(k=2))), Ensemble(parts=(CGPFL(k=2), Ditto()))),
        (Ditto(lam=1.0), Ditto(lam=2.0)),
    ],
)
def test_parts_read_no_memory_of_other_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Method, reader: Method
) -> None:
    """Ditto's personal model stays at the site. CGPFL sends the model that it finds at the same place."""
    monkeypatch.setattr(site_run, "store_for", lambda name, fl_ctx: Store(tmp_path / name / "site"))
    secret = {"personal": [7.0, 7.0], "1.personal": [8.0, 8.0]}
    assert keep_memory(writer, secret) == {}
    assert keep_memory(writer, {}) == secret
    assert keep_memory(reader, {}) == {}


# ---- Refusals ----


def test_numbers_in_a_job_ask_for_no_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By halving, 24 refused jobs gave the number of patients and the largest laboratory value."""
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "ward.npz")))
    folder = write_kit(tmp_path / "site-1", epsilon_budget=4.0)
    codes = {
        ask_private_job(make_private_job(data=marked({"min_samples": asked})), folder, f"job-{asked}").get("error")
        for asked in (1, 19, 20, 21, 40)
    }
    assert codes == {"budget"}
    assert not list((tmp_path / "state").rglob("*.jsonl"))


def test_ranges_in_a_job_ask_for_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{40 + i},{100 + i},{i % 2}\n" for i in range(40))
    (tmp_path / "ward.csv").write_text(f"age,sodium,label\n{rows}")
    agreed = tmp_path / "columns.json"
    monkeypatch.setenv("CFL_DATA", str(tmp_path / "ward.csv"))
    assert main(["site", "columns", "--out", str(agreed)]) == 0
    folder = write_kit(tmp_path / "site-1", epsilon_budget=4.0)
    source = SiteData(columns=json.loads(agreed.read_text()))
    model = marked(describe(Logistic((2,), 2), "model"))
    said = ask_private_job(make_private_job(source=source, model=model), folder, "ranges")
    assert said["error"] == "budget"
    assert not list((tmp_path / "state").rglob("*.jsonl"))
    monkeypatch.setenv("CFL_COLUMNS", str(agreed))
    assert ask_private_job(make_private_job(source=source, model=model), folder, "agreed").get("error") != "budget"


def test_refusals_by_data_are_coarse_and_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = write_kit_npz(tmp_path / "ward.npz")
    monkeypatch.setenv("CFL_DATA", str(data))
    caplog.set_level("INFO")
    folder = write_kit(tmp_path / "site-1", epsilon_budget=4.0, max_refusals=2)
    large = describe(Logistic((1, 9, 9), 2), "model")
    narrow = describe(Logistic((1, 4, 4), 1), "model")
    assert ask_private_job(make_private_job(model=marked(large)), folder, "shape")["error"] == WITHHELD
    assert ask_private_job(make_private_job(model=marked(narrow)), folder, "classes")["error"] == WITHHELD
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2 and all(line.endswith(f"failed: {WITHHELD}") for line in errors)
    assert ask_private_job(make_private_job(), folder, "honest")["error"] == "ledger"
    assert "max_refusals = 2" in caplog.text
    capsys.readouterr()
    assert main(["site", "ledger", "--kit", str(folder)]) == 0
    assert "refusals by data: 2 of at most 2" in capsys.readouterr().out
    assert main(["site", "ledger", "--kit", str(folder), "--accept", "a wrong model"]) == 0
    assert "error" not in ask_private_job(make_private_job(), folder, "honest")
    assert ask_private_job(make_private_job(model=marked(large)), folder, "again")["error"] == WITHHELD


def test_failures_in_a_round_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's model that overflows on one value asks whether somebody has it."""
    ledger = Ledger(tmp_path / "state", tmp_path / "kit", "site-1", Rules(4.0, max_refusals=2))
    ledger.open()
    books = JobBooks(ledger, LedgerJob("a", "ward", "", 3.0, DELTA))
    assert [books.report(code) for code in ("diverged", "budget", "training", "memory")] == [
        WITHHELD,
        "budget",
        WITHHELD,
        "ledger",
    ]
    with pytest.raises(ValueError, match="--accept REASON"):
        books.spend("site-1", 0, [Spend("training", TRAIN, 9.0)])


def test_without_a_budget_codes_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "ward.npz")))
    folder = write_kit(tmp_path / "site-1")
    large = describe(Logistic((1, 9, 9), 2), "model")
    assert ask_private_job(make_private_job(model=marked(large)), folder)["error"] == "model"


def test_every_code_is_known() -> None:
    assert {*FREE_OF_DATA, WITHHELD} < FAILURES.keys()


# ---- Counts that nobody asked for ----


def list_answers_of(training: TrainSettings) -> dict[str, Any]:
    """What a site answers to a server that asks for all that there is."""
    x, y = np.ones((40, 1), np.float32), np.array([0] * 30 + [1] * 10)
    site = Site(FedAvg(), Coin, training, seed=0)
    site.add([ParticipantData("a", Samples(x, y), Samples(x, y))])
    questions = {
        "scores": {},
        "test_classes": {},
        "bootstrap": {"times": 50, "measures": []},
        "membership": {"shadow_models": 2, "models": [["global", ["global"], "probabilities", []]]},
    }
    task = Task(("global",), train=False, evaluate=True, questions=questions)
    return dict(site.carry_out("a", task, {"global": coin(0, 0)}, 0).answers)


def test_a_server_gets_what_the_job_asks_for() -> None:
    """The numbers of test samples by label left on the server's word."""
    assert list_answers_of(TrainSettings()).keys() == {"metrics"}
    asked = list_answers_of(TrainSettings(bootstrap=50))
    assert asked.keys() == {"metrics", "test_classes", "bootstrap"}
    assert asked["test_classes"] == [30, 10]


# ---- Results ----


@pytest.mark.parametrize("method", [CLoVE(k=2), Ensemble(parts=(FedAvg(), CLoVE(k=2)))])
def test_results_hold_no_hospitals_losses(tmp_path: Path, method: Method) -> None:
    model = {"class_path": "cfl_flare.models.Logistic", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
    data = DataConfig(6, {"partition": "label_permutation", "groups": 2})
    training = TrainSettings(lr=0.1, local_steps=2)
    server = run_loop(
        method=method,
        model=model,
        source=Digits(),
        data=data,
        settings=ServerSettings(3),
        training=training,
        folder=tmp_path / "run",
    )
    known = {name.rpartition(".")[2] for name in server.state.arrays}
    assert known == server.participants.keys()
    clusters = {*server.state.assignment.values()}
    (file,) = (tmp_path / "run").glob("**/state/*.safetensors")
    text = file.read_bytes()
    assert all(f"mean/{cluster}".encode() in text for cluster in clusters)
    published = method.publish(server.state).arrays
    assert len(published) == len(clusters)
    for name, row in server.state.arrays.items():
        assert row.tobytes() not in text, name
