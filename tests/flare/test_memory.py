# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a site remembers between the rounds in which it is asked."""

from types import SimpleNamespace

import pytest

from cfl_flare.core.private import Division
from cfl_flare.engine.site import Result, Site, Task
from cfl_flare.flare import executor as module
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.methods import FedAvg, Local, Update, build_method
from cfl_flare.results.history import Note, read_notes
from cfl_flare.results.store import Store
from cfl_flare.training.memory import PRIVATE
from cfl_flare.training.settings import TrainSettings
from tests.tiny import Biased, Coin, coin


@pytest.fixture
def stores(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "store_for", lambda name, fl_ctx: Store(tmp_path / name / "site"))
    return tmp_path


def started() -> tuple[ClusteredExecutor, Site]:
    site = Site(Local(), Coin, TrainSettings(), seed=0)
    site.hosted = {"a": None, "b": None}  # type: ignore[dict-item]
    return ClusteredExecutor({}, {}, {}, {}, {}, run_name="run"), site


def recalled(executor: ClusteredExecutor, site: Site, number: int, run: str = "run") -> dict:
    executor._recall(number, site, run, None)
    return {name: {what: p.vector.tolist() for what, p in own.items()} for name, own in site.memory.items()}


def test_a_site_that_had_nothing_to_do_keeps_its_memory(stores):
    executor, site = started()
    assert recalled(executor, site, 0) == {"a": {}, "b": {}}
    site.memory["a"]["model"] = coin(1, 2)
    executor._remember(1, site)
    known = {"a": {"model": [1, 2]}, "b": {}}
    assert recalled(executor, site, 1) == known
    assert recalled(executor, site, 5) == known  # rounds 1 to 4 asked others
    again = started()
    assert recalled(*again, 5) == known  # a process of its own for the task


def test_a_resumed_run_reads_the_round_that_it_goes_on_from(stores):
    executor, site = started()
    recalled(executor, site, 0)
    for number in (1, 2):
        site.memory["a"]["model"] = coin(number, 0)
        executor._remember(number, site)
    assert recalled(*started(), 1) == {"a": {"model": [1, 0]}, "b": {}}
    assert recalled(*started(), 2) == {"a": {"model": [2, 0]}, "b": {}}
    assert recalled(*started(), 0) == {"a": {}, "b": {}}


def test_another_method_gets_no_memory(stores, caplog):
    """Ditto's personal model never leaves; CGPFL sends the model that it finds under that name."""
    layout = {"resident": SimpleNamespace(layout=coin(0, 0).layout), "division": Division.of(Coin(), None)}

    def process(method: dict) -> tuple[ClusteredExecutor, Site]:
        executor, site = started()
        site.method, site.runtime = build_method(method), SimpleNamespace(**layout)
        return executor, site

    executor, site = process({"method": "ditto"})
    recalled(executor, site, 0)
    site.memory["a"]["personal"] = coin(7, 7)
    executor._remember(1, site)
    assert recalled(*process({"method": "ditto"}), 1)["a"] == {"personal": [7, 7]}
    executor, site = process({"method": "cgpfl", "k": 2})
    executor.log_warning = lambda fl_ctx, text: caplog.records.append(text)  # type: ignore[method-assign]
    assert recalled(executor, site, 1)["a"] == {}
    assert "run 'run' was of method ditto, and this job is of cgpfl" in caplog.records[-1]


def test_a_job_with_other_private_layers_gets_no_memory(stores, caplog):
    """What a run kept for itself could leave by a job that names less of it."""

    def process(private: str | None, pull: float = 0.0) -> tuple[ClusteredExecutor, Site]:
        site = Site(FedAvg(), Biased, TrainSettings(), seed=0, private=private, private_shrinkage=pull)
        site.hosted = {"a": None}  # type: ignore[dict-item]
        executor = ClusteredExecutor({}, {}, {}, {}, {}, run_name="run", private=private)
        executor.log_warning = lambda fl_ctx, text: caplog.records.append(text)  # type: ignore[method-assign]
        return executor, site

    executor, site = process("bias")
    recalled(executor, site, 0)
    kept = site.runtime.first_private
    site.memory["a"][PRIVATE] = kept
    executor._remember(1, site)
    assert recalled(*process("bias"), 1)["a"] == {PRIVATE: kept.vector.tolist()}
    assert not caplog.records
    for other in (None, "weight"):
        assert recalled(*process(other), 1)["a"] == {}
        assert "1 private arrays and this job has" in caplog.records[-1]
    assert recalled(*process("bias", 2.0), 1)["a"] == {}  # by which what was kept would travel
    assert "1 private arrays and this job has 0" in caplog.records[-1]


def test_a_job_with_another_shrinkage_gets_no_memory(stores, caplog):
    def process(pull: float) -> tuple[ClusteredExecutor, Site]:
        site = Site(FedAvg(), Biased, TrainSettings(), seed=0, private="bias", private_shrinkage=pull)
        site.hosted = {"a": None}  # type: ignore[dict-item]
        executor = ClusteredExecutor({}, {}, {}, {}, {}, run_name="run", private="bias", private_shrinkage=pull)
        executor.log_warning = lambda fl_ctx, text: caplog.records.append(text)  # type: ignore[method-assign]
        return executor, site

    executor, site = process(2.0)
    recalled(executor, site, 0)
    site.memory["a"][PRIVATE] = site.runtime.untrained(0).take(site.runtime.division.private)
    executor._remember(1, site)
    assert recalled(*process(2.0), 1)["a"].keys() == {PRIVATE}
    assert recalled(*process(3.0), 1)["a"] == {}
    assert "run 'run' had private_shrinkage = 2.0 and this job has 3.0; resume it with the same" in caplog.records[-1]


def test_a_site_keeps_what_it_measured_each_round(stores):
    executor, _ = started()
    update = Update("a", 3, {"cluster-1": coin(1, 2)})
    tasks = {"a": Task(("cluster-1",), True, True), "b": Task(("cluster-0", "global"), True, False)}
    results = [Result("a", update, {"served_accuracy": 0.5}), Result("b", error="memory")]
    executor._note(0, tasks, results, False, True, None)
    folder = stores / "run" / "site"
    assert read_notes(folder) == [
        Note(0, "a", ["cluster-1"], True, None, {"served_accuracy": 0.5}),
        Note(0, "b", ["cluster-0", "global"], False, "memory", {}),
    ]


def test_a_history_that_cannot_be_written_fails_no_round(stores, caplog):
    executor, _ = started()
    executor.log_info = executor.log_error = lambda fl_ctx, text: caplog.records.append(text)
    (stores / "run").write_text("a file where the folder should be")
    executor._note(0, {}, [], False, True, None)
    assert caplog.records[0] == "round 0: its history failed: file"
