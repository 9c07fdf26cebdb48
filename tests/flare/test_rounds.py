# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""For which sites a round waits, and what a site remembers between the rounds in which it is asked."""

import math
import platform
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming import stream_utils
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.private.defs import CellMessageHeaderKeys, SpecialTaskName, TaskConstant

from cfl_flare.core.private import Division
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, Task
from cfl_flare.flare import site_run as module
from cfl_flare.flare.attendance import FETCHES, LONGEST_STEP, SILENCE, START, Attendance, Pace, Patience, Work
from cfl_flare.flare.compat import HeldRequests, fail_undecodable, room_for_answers
from cfl_flare.flare.site_run import RoundTask, SiteRun
from cfl_flare.methods import FedAvg, Local, Update, build_method
from cfl_flare.results.run_dir import HISTORY, Note, read_lines
from cfl_flare.results.store import Store
from cfl_flare.training.runtime import PRIVATE
from cfl_flare.training.settings import TrainSettings
from tests.helpers.tiny import Biased, Coin, coin

# ---- Attendance ----


SITES = ["site-1", "site-2"]


def listened(attendance: Attendance, seconds: float, *heard: str) -> list[str]:
    """Listens for some time, in which some sites give a sign every second."""
    lost = []
    for _ in range(int(seconds)):
        for site in heard:
            attendance.hear(site)
        lost += attendance.listen(1.0, SITES)
    return lost


@pytest.fixture
def attendance() -> Attendance:
    attendance = Attendance()
    for site in SITES:
        attendance.hear(site)
    return attendance


def test_a_silent_site_is_lost_once_and_in_less_than_a_minute(attendance):
    assert SILENCE < 60
    assert listened(attendance, SILENCE - 1, "site-1") == []
    assert listened(attendance, SILENCE, "site-1") == ["site-2"]
    assert attendance.lost == {"site-2"}


def test_a_lost_site_comes_back_when_it_is_heard(attendance):
    listened(attendance, SILENCE, "site-1")
    assert not attendance.hear("site-1") and attendance.hear("site-2")
    assert not attendance.lost
    assert listened(attendance, SILENCE - 1, "site-1") == []


def test_nobody_is_lost_while_all_are_silent(attendance):
    """Then it is the server that has no network."""
    assert listened(attendance, 3 * SILENCE) == []
    attendance.hear("site-1")
    assert attendance.listen(0.0, SITES) == ["site-2"]


def test_a_site_that_starts_has_more_time():
    attendance = Attendance()
    assert listened(attendance, START - 1, "site-1") == []
    assert listened(attendance, 1, "site-1") == ["site-2"]


def test_a_pause_of_the_server_is_not_the_sites_silence(attendance):
    assert attendance.listen(10 * SILENCE, SITES) == []
    assert LONGEST_STEP < SILENCE / 10


def test_a_site_that_is_started_again_is_expected(attendance):
    listened(attendance, SILENCE, "site-1")
    attendance.expect("site-2")
    assert not attendance.lost and not attendance.heard("site-2")
    attendance.hear("site-2")
    assert attendance.heard("site-2")


def test_in_a_simulation_nobody_is_lost():
    attendance = Attendance(math.inf, math.inf)
    attendance.hear("site-2")
    assert listened(attendance, 10 * START, "site-1") == []


def test_a_site_is_deaf_once_it_has_been_heard_for_as_long_as_it_takes_to_fetch_a_task(attendance):
    listened(attendance, FETCHES - 1, *SITES)
    assert not attendance.deaf("site-1")
    listened(attendance, 1, *SITES)
    assert attendance.deaf("site-1") and not attendance.deaf("site-3")
    attendance.expect("site-1")  # its process starts again: time counts from its next sign
    listened(attendance, FETCHES, "site-2")
    assert not attendance.deaf("site-1")
    listened(attendance, FETCHES, "site-1")
    assert attendance.deaf("site-1")


def test_a_site_that_misses_tasks_in_a_row_is_not_waited_for_until_it_answers():
    patience = Patience(2)
    assert not patience.miss("site-1")
    assert patience.waited_for(SITES) == SITES
    assert patience.miss("site-1")  # said once
    assert not patience.miss("site-1")
    assert patience.waited_for(SITES) == ["site-2"]
    assert patience.answer("site-1") and not patience.answer("site-1")
    assert patience.waited_for(SITES) == SITES


def test_only_misses_in_a_row_count():
    patience = Patience(2)
    for _ in range(3):
        assert not patience.miss("site-1")
        assert not patience.answer("site-1")
    assert patience.waited_for(SITES) == SITES


def test_if_nobody_answers_all_are_waited_for():
    patience = Patience(1)
    assert patience.miss("site-1") and patience.miss("site-2")
    assert patience.waited_for(SITES) == SITES


def test_without_a_limit_all_are_waited_for():
    patience = Patience()
    assert not any(patience.miss("site-1") for _ in range(100))
    assert patience.waited_for(SITES) == SITES


def test_one_that_is_always_late_is_waited_for_once_more_and_no_longer():
    patience = Patience(2)
    waited = []
    for _ in range(6):
        waited.append("s" in patience.waited_for(["s", "t"]))
        patience.miss("s")
        patience.answer("s", late=True)
    assert waited == [True, True, True, False, False, False]
    assert patience.answer("s") and "s" in patience.waited_for(["s", "t"])


@pytest.mark.parametrize(
    "said, reason",
    [
        ("Type 'tenseal.tensors.ckksvector.CKKSVector' is not allowed", ": a filter there encrypts models, .*"),
        ("Type 'torch.Tensor' is not allowed", ""),
    ],
)
def test_an_answer_that_cannot_be_decoded_fails_its_site_alone(said, reason, monkeypatch):
    def decode(message, *args, **kwargs):
        raise ValueError(said)

    monkeypatch.setattr(cell, "decode_payload", decode)
    clients, failures = {"token": SimpleNamespace(name="site-2")}, []
    engine = SimpleNamespace(client_manager=SimpleNamespace(clients=clients))
    fail_undecodable(engine, lambda *failure: failures.append(failure))
    answer = {StreamHeaderKey.TOPIC: ServerCommandNames.SUBMIT_UPDATE, CellMessageHeaderKeys.TOKEN: "token"}
    cell.decode_payload(Message(answer, b"?"))
    ((site, why),) = failures
    assert site == "site-2" and re.fullmatch(f"undecodable: ValueError{reason}", why)
    with pytest.raises(ValueError, match="not allowed"):  # what is no answer is FLARE's to handle
        cell.decode_payload(Message({}, b"?"))


class Runner:
    """In place of FLARE's: it has a task for a site once somebody puts one there."""

    def __init__(self):
        self.tasks: dict[str, Shareable] = {}
        self.requests = 0

    def process_task_request(self, client, fl_ctx):
        self.requests += 1
        if client in self.tasks:
            return "train", "1", self.tasks.pop(client)
        again = Shareable()
        again.set_header(TaskConstant.WAIT_TIME, 7.0)
        return SpecialTaskName.TRY_AGAIN, "", again


def test_more_sites_than_flare_has_threads_can_answer_at_once():
    """Each of 100 answers waits for one that comes after all of them, as for its own arrays."""
    room_for_answers(100)
    there = threading.Event()
    answers = [stream_utils.callback_thread_pool.submit(there.wait, 60) for _ in range(100)]
    stream_utils.callback_thread_pool.submit(there.set)
    assert all(answer.result() for answer in answers)


MODELS_IN_PIECES = """
import sys, threading
import psutil
from cfl_flare.flare.compat import return_memory

small = []

def receive():
    for _ in range(3):  # models, with a little that stays after each piece
        pieces = [(bytes(2**20), small.append(bytearray(4096)))[0] for _ in range(40)]
        model = b"".join(pieces)
        del pieces, model

def growth():
    before = psutil.Process().memory_info().rss
    threads = [threading.Thread(target=receive) for _ in range(8)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    return (psutil.Process().memory_info().rss - before) >> 20

if sys.argv[1] == "True":
    return_memory()
print(growth())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than GNU's")
def test_a_server_gives_back_the_memory_of_models_that_came_in_pieces():
    command = [sys.executable, "-c", MODELS_IN_PIECES]
    megabytes = {
        back: int(subprocess.run([*command, str(back)], capture_output=True, text=True, check=True).stdout)
        for back in (False, True)
    }
    assert megabytes[True] < 40 < 120 < megabytes[False]  # in eight threads, each model has 40


def hold_requests(runner: Runner, most: int = 50) -> HeldRequests:
    class Few(HeldRequests):
        MOST = most
        LONGEST = 60.0

    return Few(runner)


def test_a_held_request_is_answered_by_the_task_that_comes():
    runner = Runner()
    requests = hold_requests(runner)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(runner.process_task_request, site, None) for site in ("a", "b")]
        while runner.requests < 2:
            pass
        runner.tasks["a"] = Shareable()
        requests.release()
        name, _, data = answers[0].result(30)
        assert name == "train" and data.get_header(TaskConstant.WAIT_TIME) == HeldRequests.SOON
        name, _, data = answers[1].result(30)  # it asks again at once, and is held again
        assert name == SpecialTaskName.TRY_AGAIN and data.get_header(TaskConstant.WAIT_TIME) == HeldRequests.SOON


def test_beyond_so_many_requests_a_site_asks_again_after_the_job_s_interval():
    runner = Runner()
    requests = hold_requests(runner, most=0)
    name, _, data = runner.process_task_request("b", None)
    assert name == SpecialTaskName.TRY_AGAIN and data.get_header(TaskConstant.WAIT_TIME) == 7.0
    requests.release()


def test_a_job_that_ends_holds_nothing():
    runner = Runner()
    requests = hold_requests(runner)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(runner.process_task_request, "a", None)
        while runner.requests < 1:
            pass
        requests.release(ends=True)
        assert first.result(30)[0] == SpecialTaskName.TRY_AGAIN
    assert runner.process_task_request("a", None)[0] == SpecialTaskName.TRY_AGAIN


# ---- Memory ----


@pytest.fixture
def stores(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "store_for", lambda name, fl_ctx: Store(tmp_path / name / "site"))
    return tmp_path


def start_local_run() -> tuple[SiteRun, Site]:
    site = Site(Local(), Coin, TrainSettings(), seed=0)
    site.hosted = {"a": None, "b": None}  # type: ignore[dict-item]
    return SiteRun(site, "run", {}, SimpleNamespace()), site


def recalled(run: SiteRun, site: Site, number: int, name: str = "run") -> dict:
    run.recall(number, name, None)
    return {name: {what: p.vector.tolist() for what, p in own.items()} for name, own in site.memory.items()}


def test_a_site_that_had_nothing_to_do_keeps_its_memory(stores):
    run, site = start_local_run()
    assert recalled(run, site, 0) == {"a": {}, "b": {}}
    site.memory["a"]["model"] = coin(1, 2)
    run.remember(1)
    known = {"a": {"model": [1, 2]}, "b": {}}
    assert recalled(run, site, 1) == known
    assert recalled(run, site, 5) == known  # rounds 1 to 4 asked others
    again = start_local_run()
    assert recalled(*again, 5) == known  # a process of its own for the task


def test_a_resumed_run_reads_the_round_that_it_goes_on_from(stores):
    run, site = start_local_run()
    recalled(run, site, 0)
    for number in (1, 2):
        site.memory["a"]["model"] = coin(number, 0)
        run.remember(number)
    assert recalled(*start_local_run(), 1) == {"a": {"model": [1, 0]}, "b": {}}
    assert recalled(*start_local_run(), 2) == {"a": {"model": [2, 0]}, "b": {}}
    assert recalled(*start_local_run(), 0) == {"a": {}, "b": {}}


def test_a_process_of_a_resumed_run_that_is_started_again_goes_on_from_its_own_memory(stores):
    run, site = start_local_run()
    recalled(run, site, 0)
    site.memory["a"]["model"] = coin(1, 1)
    run.remember(1)

    def resumed() -> tuple[SiteRun, Site]:
        again, its = start_local_run()
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
        run, site = start_local_run()
        site.method, site.runtime = build_method(method), SimpleNamespace(**layout)
        return run, site

    run, site = process({"method": "ditto"})
    recalled(run, site, 0)
    site.memory["a"]["personal"] = coin(7, 7)
    run.remember(1)
    assert recalled(*process({"method": "ditto"}), 1)["a"] == {"personal": [7, 7]}
    run, site = process({"method": "cgpfl", "k": 2})
    run.log = hears(caplog)
    assert recalled(run, site, 1)["a"] == {}
    assert "run 'run' was of method 'ditto', and this job is of 'cgpfl'" in caplog.records[-1]


def test_a_job_with_other_private_layers_gets_no_memory(stores, caplog):
    """What a run kept for itself could leave by a job that names less of it."""

    def process(private: str | None) -> tuple[SiteRun, Site]:
        site = Site(FedAvg(), Biased, TrainSettings(), seed=0, private=private)
        site.hosted = {"a": None}  # type: ignore[dict-item]
        run = SiteRun(site, "run", {}, hears(caplog))
        return run, site

    run, site = process("bias")
    recalled(run, site, 0)
    private = site.runtime.division.private
    assert private is not None
    kept = site.runtime.untrained(0).take(private)
    site.memory["a"][PRIVATE] = kept
    run.remember(1)
    assert recalled(*process("bias"), 1)["a"] == {PRIVATE: kept.vector.tolist()}
    assert not caplog.records
    for other in (None, "weight"):
        assert recalled(*process(other), 1)["a"] == {}
        assert "1 private arrays and this job has" in caplog.records[-1]


def test_a_site_keeps_what_it_measured_each_round(stores):
    run, _ = start_local_run()
    update = Update("a", 3, {"cluster-1": coin(1, 2)})
    tasks = {"a": Task(("cluster-1",), True, True), "b": Task(("cluster-0", "global"), True, False)}
    results = [Result("a", update, {"metrics": {"served_accuracy": 0.5}}), Result("b", error="memory")]
    run.note(RoundTask(0, tasks, {}, None, False), results, True, None)
    notes = [
        Note(0, "a", ["cluster-1"], True, None, {"served_accuracy": 0.5}),
        Note(0, "b", ["cluster-0", "global"], False, "memory", {}),
    ]
    assert read_lines(stores / "run" / "site" / HISTORY) == [asdict(note) for note in notes]


def test_a_history_that_cannot_be_written_fails_no_round(stores, caplog):
    run, _ = start_local_run()
    run.log.log_info = run.log.log_error = lambda fl_ctx, text: caplog.records.append(text)
    (stores / "run").write_text("a file where the folder should be")
    run.note(RoundTask(0, {}, {}, None, False), [], True, None)
    assert caplog.records[0] == "round 0: its history failed: file"


# ---- Pace ----


def taught_pace() -> Pace:
    """Two sites have trained: the first in 2 s, the second with four participants in 8 s, so 2 s each."""
    pace = Pace(times=10, least=30, first=300)
    for site, work in (("site-1", Work("train")), ("site-2", Work("train", 4))):
        pace.begin(site, work, 0.0)
    pace.finish("site-1", 2.0)
    pace.finish("site-2", 8.0)
    return pace


def test_a_wait_is_bounded_by_earlier_answers():
    pace = taught_pace()
    pace.begin("site-1", Work("train"), 100.0)
    pace.begin("site-2", Work("train", 4), 100.0)
    assert pace.find_delay("site-1", 129.0) is None
    assert pace.find_delay("site-1", 130.0) == "no answer in 30 s, where its earlier answers took at most 2.0 s"
    assert pace.find_delay("site-2", 179.0) is None  # ten times 8 s
    assert pace.find_delay("site-2", 180.0) == "no answer in 80 s, where its earlier answers took at most 8.0 s"


def test_other_work_has_another_pace():
    pace = taught_pace()
    pace.begin("site-1", Work("train evaluate"), 100.0)
    assert pace.find_delay("site-1", 1e6) is None


def test_a_part_of_earlier_work_takes_no_longer():
    pace = Pace(times=10, least=30, first=300)
    pace.begin("site-1", Work("evaluate train"), 0.0)
    pace.finish("site-1", 5.0)
    pace.begin("site-1", Work("evaluate"), 100.0)
    assert pace.find_delay("site-1", 149.0) is None  # ten times 5 s
    assert pace.find_delay("site-1", 150.0) == "no answer in 50 s, where its earlier answers took at most 5.0 s"


def test_more_work_is_compared_with_others_that_do_it():
    pace = taught_pace()
    pace.begin("site-1", Work("evaluate train"), 100.0)
    pace.begin("site-2", Work("evaluate train", 4), 100.0)
    pace.finish("site-2", 116.0)  # 4 s for each of its participants
    assert pace.find_delay("site-1", 139.0) is None
    assert pace.find_delay("site-1", 140.0) == "no answer in 40 s, where those of other sites took at most 4.0 s"


def test_a_first_answer_is_compared_with_others():
    pace = taught_pace()
    pace.begin("site-3", Work("train"), 100.0)
    pace.begin("site-4", Work("train"), 100.0)
    assert pace.find_delay("site-3", 1e6) is None  # site-4 is at it as well
    pace.finish("site-4", 140.0)
    assert pace.find_delay("site-3", 499.0) is None  # ten times 40 s
    assert pace.find_delay("site-3", 500.0) == "no answer in 400 s, where those of other sites took at most 40.0 s"


def test_a_late_answer_teaches_the_pace():
    pace = taught_pace()
    pace.begin("site-1", Work("train"), 100.0)
    pace.begin("site-1", Work("train"), 130.0)  # the first one was given up
    pace.finish("site-1", 150.0, late=True)
    assert pace.find_delay("site-1", 629.0) is None  # ten times 50 s
    assert pace.find_delay("site-1", 630.0)
    pace.finish("site-1", 150.0)
    assert pace.find_delay("site-1", 1e6) is None  # it has nothing to do


def test_a_new_process_has_no_pace_yet():
    pace = taught_pace()
    pace.forget("site-1")
    pace.begin("site-1", Work("train"), 100.0)
    assert pace.find_delay("site-1", 399.0) is None
    assert pace.find_delay("site-1", 400.0)
