# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a site remembers between the rounds in which it is asked."""

from types import SimpleNamespace

import pytest

from cfl_flare.core.private import Division
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, Task
from cfl_flare.flare import site_run as module
from cfl_flare.flare.site_run import SiteRun
from cfl_flare.methods import FedAvg, Local, Update, build_method
from cfl_flare.results.run_dir import Note, read_notes
from cfl_flare.results.store import Store
from cfl_flare.training.runtime import PRIVATE
from cfl_flare.training.settings import TrainSettings
from tests.tiny import Biased, Coin, coin


@pytest.fixture
def stores(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "store_for", lambda name, fl_ctx: Store(tmp_path / name / "site"))
    return tmp_path


def started() -> tuple[SiteRun, Site]:
    site = Site(Local(), Coin, TrainSettings(), seed=0)
    site.hosted = {"a": None, "b": None}  # type: ignore[dict-item]
    return SiteRun(site, "run", {}, SimpleNamespace()), site


def recalled(run: SiteRun, site: Site, number: int, name: str = "run") -> dict:
    run.recall(number, name, None)
    return {name: {what: p.vector.tolist() for what, p in own.items()} for name, own in site.memory.items()}


def test_a_site_that_had_nothing_to_do_keeps_its_memory(stores):
    run, site = started()
    assert recalled(run, site, 0) == {"a": {}, "b": {}}
    site.memory["a"]["model"] = coin(1, 2)
    run.remember(1)
    known = {"a": {"model": [1, 2]}, "b": {}}
    assert recalled(run, site, 1) == known
    assert recalled(run, site, 5) == known  # rounds 1 to 4 asked others
    again = started()
    assert recalled(*again, 5) == known  # a process of its own for the task


def test_a_resumed_run_reads_the_round_that_it_goes_on_from(stores):
    run, site = started()
    recalled(run, site, 0)
    for number in (1, 2):
        site.memory["a"]["model"] = coin(number, 0)
        run.remember(number)
    assert recalled(*started(), 1) == {"a": {"model": [1, 0]}, "b": {}}
    assert recalled(*started(), 2) == {"a": {"model": [2, 0]}, "b": {}}
    assert recalled(*started(), 0) == {"a": {}, "b": {}}


def test_a_process_of_a_resumed_run_that_is_started_again_goes_on_from_its_own_memory(stores):
    run, site = started()
    recalled(run, site, 0)
    site.memory["a"]["model"] = coin(1, 1)
    run.remember(1)

    def resumed() -> tuple[SiteRun, Site]:
        again, its = started()
        again.name = "again"
        return again, its

    run, site = resumed()
    assert recalled(run, site, 1, "run") == {"a": {"model": [1, 1]}, "b": {}}
    site.memory["a"]["model"] = coin(2, 2)
    run.remember(2)
    assert recalled(*resumed(), 2, "run") == {"a": {"model": [2, 2]}, "b": {}}
    assert recalled(*resumed(), 1, "run") == {"a": {"model": [1, 1]}, "b": {}}


def hears(caplog) -> SimpleNamespace:
    """A component that logs, and warns of no more than that memory is missing."""

    def hear(fl_ctx, text: str) -> None:
        caplog.records.append(text)

    return SimpleNamespace(log_info=hear, log_warning=lambda fl_ctx, text: None)


def test_another_method_gets_no_memory(stores, caplog):
    """Ditto's personal model never leaves; CGPFL sends the model that it finds under that name."""
    layout = {"resident": SimpleNamespace(layout=coin(0, 0).layout), "division": Division.of(Coin(), None)}

    def process(method: dict) -> tuple[SiteRun, Site]:
        run, site = started()
        site.method, site.runtime = build_method(method), SimpleNamespace(**layout)
        return run, site

    run, site = process({"method": "ditto"})
    recalled(run, site, 0)
    site.memory["a"]["personal"] = coin(7, 7)
    run.remember(1)
    assert recalled(*process({"method": "ditto"}), 1)["a"] == {"personal": [7, 7]}
    run, site = process({"method": "cgpfl", "k": 2})
    run._log = hears(caplog)
    assert recalled(run, site, 1)["a"] == {}
    assert "run 'run' was of method ditto, and this job is of cgpfl" in caplog.records[-1]


def test_a_job_with_other_private_layers_gets_no_memory(stores, caplog):
    """What a run kept for itself could leave by a job that names less of it."""

    def process(private: str | None) -> tuple[SiteRun, Site]:
        site = Site(FedAvg(), Biased, TrainSettings(), seed=0, private=private)
        site.hosted = {"a": None}  # type: ignore[dict-item]
        run = SiteRun(site, "run", {}, hears(caplog))
        return run, site

    run, site = process("bias")
    recalled(run, site, 0)
    kept = site.runtime.first_private
    site.memory["a"][PRIVATE] = kept
    run.remember(1)
    assert recalled(*process("bias"), 1)["a"] == {PRIVATE: kept.vector.tolist()}
    assert not caplog.records
    for other in (None, "weight"):
        assert recalled(*process(other), 1)["a"] == {}
        assert "1 private arrays and this job has" in caplog.records[-1]


def test_a_site_keeps_what_it_measured_each_round(stores):
    run, _ = started()
    update = Update("a", 3, {"cluster-1": coin(1, 2)})
    tasks = {"a": Task(("cluster-1",), True, True), "b": Task(("cluster-0", "global"), True, False)}
    results = [Result("a", update, {"metrics": {"served_accuracy": 0.5}}), Result("b", error="memory")]
    run.note(0, tasks, results, False, True, None)
    folder = stores / "run" / "site"
    assert read_notes(folder) == [
        Note(0, "a", ["cluster-1"], True, None, {"served_accuracy": 0.5}),
        Note(0, "b", ["cluster-0", "global"], False, "memory", {}),
    ]


def test_a_history_that_cannot_be_written_fails_no_round(stores, caplog):
    run, _ = started()
    run._log.log_info = run._log.log_error = lambda fl_ctx, text: caplog.records.append(text)
    (stores / "run").write_text("a file where the folder should be")
    run.note(0, {}, [], False, True, None)
    assert caplog.records[0] == "round 0: its history failed: file"
