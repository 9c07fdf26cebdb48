# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A site's ledger of differential privacy: what it adds up to, what it refuses, and that it halts after any kill."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfl_flare.core import files
from cfl_flare.core.errors import BudgetError, LedgerError
from cfl_flare.results import ledger as module
from cfl_flare.results.balance import LedgerJob
from cfl_flare.results.ledger import JobBooks, Ledger, Rules
from cfl_flare.training.privacy import ORDERS, TEST, TRAIN, Spend, epsilon_of

DELTA = 1e-5


def make_gaussian_spend(noise: float, split: str = TRAIN, steps: int = 1) -> Spend:
    return Spend("training", split, noise, 1.0, steps)


def epsilon(inverse_squares: float) -> float:
    """Of Gaussian mechanisms the inverse squares of whose noise multipliers sum up to this."""
    return epsilon_of(np.array(ORDERS) * inverse_squares / 2, DELTA)


def ledger_in(
    folder: Path, budget: float | None = None, site: str = "site-1", data: str = "", place: str = "", **rules: Any
) -> Ledger:
    opened = Ledger(folder / "state", folder / site, site, Rules(budget, DELTA, **rules), data, place)
    opened.open()
    return opened


def books(ledger: Ledger, job: str = "a", run: str = "ward", resumes: str = "", most: float = 1e3) -> JobBooks:
    return JobBooks(ledger, LedgerJob(job, run, resumes, most, DELTA))


def read_ledger_lines(ledger: Ledger) -> list[bytes]:
    return ledger.file.read_bytes().splitlines(keepends=True)


def spent(ledger: Ledger) -> float:
    return float(ledger.summary()["epsilon"])


def test_a_participants_spends_add_up_and_of_participants_and_splits_the_largest_counts(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    book = books(ledger)
    book.said("large", {TRAIN: 900, TEST: 100}, [make_gaussian_spend(10), make_gaussian_spend(5, TEST)])
    for number in range(3):
        book.spend("large", number, [make_gaussian_spend(2)])
    book.spend("small", 0, [make_gaussian_spend(4, steps=8)])
    assert spent(ledger) == pytest.approx(epsilon(1 / 100 + 3 / 4), rel=1e-12)
    book.spend("small", 1, [make_gaussian_spend(1)])
    assert spent(ledger) == pytest.approx(epsilon(8 / 16 + 1), rel=1e-12)
    book.spend("small", 1, [make_gaussian_spend(1, TEST)])  # other patients
    assert spent(ledger) == pytest.approx(epsilon(8 / 16 + 1), rel=1e-12)


def test_jobs_add_up_by_the_largest_of_each_as_they_may_deal_patients_otherwise(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    first, second = books(ledger, "a"), books(ledger, "b", "other")
    first.spend("north", 0, [make_gaussian_spend(2, steps=2)])
    first.spend("south", 0, [make_gaussian_spend(1)])
    second.spend("north", 0, [make_gaussian_spend(1)])
    second.spend("west", 0, [make_gaussian_spend(3, TEST)])
    assert spent(ledger) == pytest.approx(epsilon(max(2 / 4, 1) + max(1, 1 / 9)), rel=1e-12)
    first.spend("north", 1, [make_gaussian_spend(2, steps=4)])  # 6 / 4 is now the most of job a
    assert spent(ledger) == pytest.approx(epsilon(6 / 4 + 1), rel=1e-12)
    again = ledger_in(tmp_path)
    assert again.summary() == ledger.summary()
    assert again.summary()["jobs"]["a"]["epsilon"] == pytest.approx(epsilon(6 / 4), rel=1e-12)


def test_a_spend_above_the_operators_budget_leaves_no_line(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path, budget=epsilon(1.6))
    books(ledger, "a").spend("p", 0, [make_gaussian_spend(1)])
    second = books(ledger, "b")
    second.spend("q", 0, [make_gaussian_spend(2, steps=2)])
    before = read_ledger_lines(ledger)
    with pytest.raises(BudgetError, match=r"p would bring this site's data .* epsilon_budget"):
        second.spend("p", 1, [make_gaussian_spend(1, TEST)])
    assert read_ledger_lines(ledger) == before
    second.spend("q", 1, [make_gaussian_spend(4)])


def test_a_run_spends_no_more_than_its_author_allows_over_its_resumes(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    most = epsilon(1.01)
    books(ledger, "a", most=most).said("p", {TRAIN: 40}, [make_gaussian_spend(2)])
    books(ledger, "b", "next", "ward", most).spend("p", 1, [make_gaussian_spend(2)])
    third = books(ledger, "c", "next", "next", most)
    assert third.counts("p") == {TRAIN: 40}
    third.spend("p", 2, [make_gaussian_spend(2, steps=2)])
    with pytest.raises(BudgetError, match=r"run 'next': p would have spent .* the job may spend"):
        third.spend("p", 3, [make_gaussian_spend(8)])
    fresh = books(ledger, "d", "next", "", most)  # of the same name, and of no run before it
    assert fresh.counts("p") is None
    fresh.spend("p", 0, [make_gaussian_spend(1)])
    assert spent(ledger) == pytest.approx(epsilon(1 / 4 + 1 / 4 + 2 / 4 + 1), rel=1e-12)


def test_the_operators_patients_are_those_of_every_job(tmp_path: Path) -> None:
    by_rows = LedgerJob("a", "ward", "", 8.0, DELTA)
    by_patients = LedgerJob("b", "ward", "", 8.0, DELTA, "pid")
    ledger = ledger_in(tmp_path, patients="pid")
    for refused in (by_rows, LedgerJob("b", "ward", "", 8.0, DELTA, "row")):
        with pytest.raises(LedgerError, match=r"CFL_PATIENT = 'pid', and in job"):
            ledger.check(refused)
        with pytest.raises(LedgerError, match="let the job use the source site"):
            JobBooks(ledger, refused).spend("p", 0, [make_gaussian_spend(1)])
    ledger.check(by_patients)
    JobBooks(ledger, by_patients).spend("p", 0, [make_gaussian_spend(1)])
    assert ledger.summary()["patients"] == ["pid"] and ledger.summary()["lines"] == 2
    # Without CFL_PATIENT any grouping protects each row; what was spent so is no patient's epsilon later on.
    JobBooks(ledger_in(tmp_path), by_rows).spend("p", 0, [make_gaussian_spend(1)])
    with pytest.raises(LedgerError, match=r"in job a each sample is of a patient of its own"):
        ledger.check(by_patients)


def test_a_job_is_checked_against_what_is_left(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path, budget=8.0)
    assert ledger.summary()["left"] == pytest.approx(8, rel=1e-3)
    whole = LedgerJob("a", "ward", "", 8.0, DELTA)
    ledger.check(whole)
    with pytest.raises(BudgetError, match="the largest that is left is 8"):
        ledger.check(LedgerJob("a", "ward", "", 8.1, DELTA))
    JobBooks(ledger, whole).spend("p", 0, [make_gaussian_spend(1)])
    ledger.check(whole)  # the job's process was restarted
    ledger.check(LedgerJob("b", "next", "ward", 8.0, DELTA))  # it is resumed
    with pytest.raises(BudgetError, match="the largest that is left"):
        ledger.check(LedgerJob("b", "next", "", 8.0, DELTA))
    left = ledger.summary()["left"]
    ledger.check(LedgerJob("b", "next", "", left, DELTA))
    assert left < 8


def made(folder: Path, number: int = 6) -> Ledger:
    ledger = ledger_in(folder)
    book = books(ledger)
    book.said("p", {TRAIN: 7}, [make_gaussian_spend(9)])
    for round_number in range(number):
        book.spend(f"p{round_number % 2}", round_number, [make_gaussian_spend(4)])
    return ledger


def refuse_ledger(folder: Path, match: str = "ledger") -> None:
    with pytest.raises(LedgerError, match=match) as error:
        ledger_in(folder)
    assert "\n" not in str(error.value) and ";" in str(error.value)


CHANGES: dict[str, Callable[[bytes, Any], bytes]] = {
    "truncated": lambda text, draw: text[: draw(st.integers(0, len(text) - 1))],
    "flipped": lambda text, draw: (
        text[: (at := draw(st.integers(0, len(text) - 1)))]
        + bytes([text[at] ^ 1 << draw(st.integers(0, 7))])
        + text[at + 1 :]
    ),
    "swapped": lambda text, draw: swapped(
        text, *draw(st.lists(st.integers(0, 7), min_size=2, max_size=2, unique=True))
    ),
    "copied": lambda text, draw: copied(text, draw(st.integers(0, 7)), draw(st.integers(0, 7))),
}


def swapped(text: bytes, one: int, other: int) -> bytes:
    parts = text.splitlines(keepends=True)
    parts[one], parts[other] = parts[other], parts[one]
    return b"".join(parts)


def copied(text: bytes, line: int, place: int) -> bytes:
    parts = text.splitlines(keepends=True)
    return b"".join([*parts[:place], parts[line], *parts[place:]])


@pytest.mark.parametrize("change", CHANGES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_ledger_is_refused(tmp_path: Path, change: str, data: Any) -> None:
    folder = tmp_path / "whole"
    if not folder.exists():
        made(folder)
    file = next((folder / "state" / module.FOLDER).glob("*.jsonl"))
    whole = file.read_bytes()
    assert len(whole.splitlines()) == 8
    try:
        file.write_bytes(CHANGES[change](whole, data.draw))
        refuse_ledger(folder)
    finally:
        file.write_bytes(whole)
    assert spent(ledger_in(folder)) == pytest.approx(epsilon(3 / 16), rel=1e-12)


def test_a_ledger_from_a_backup_is_refused_until_the_operator_accepts_it(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    backup = ledger.file.read_bytes()
    for number in range(2):
        books(ledger).spend("p0", 6 + number, [make_gaussian_spend(4)])
    ledger.file.write_bytes(backup)
    with pytest.raises(LedgerError, match="it has changed under this job"):
        books(ledger).spend("p0", 8, [make_gaussian_spend(4)])
    refuse_ledger(tmp_path, "its last line of site-1 is number 8, and .* knows 10: it is no current copy")
    Ledger(tmp_path / "state", tmp_path / "site-1", "site-1").accept("the disk broke")
    again = ledger_in(tmp_path)
    assert spent(again) == pytest.approx(epsilon(3 / 16), rel=1e-12)
    assert [line["reason"] for line in again.summary()["accepted"]] == ["the disk broke"]
    again.file.write_bytes(backup)
    refuse_ledger(tmp_path, "no current copy")


def test_a_ledger_or_a_counter_that_is_missing_is_refused(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    content = ledger.file.read_bytes()
    ledger.file.unlink()
    refuse_ledger(tmp_path, "its last line of site-1 is number 0")
    ledger.file.write_bytes(content)
    (counter,) = (tmp_path / "site-1").glob("*.json")
    counter.unlink()
    refuse_ledger(tmp_path, "and .* knows 0")
    counter.write_text("[]")
    refuse_ledger(tmp_path, "not an object")


def test_data_that_is_newer_than_the_ledger_says_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "scans"
    (data / "ill").mkdir(parents=True)
    (data / "ill" / "1.png").write_bytes(b"1")
    os.utime(data / "ill" / "1.png", (1e9, 1e9))
    ledger_in(tmp_path, place=str(data))
    ledger_in(tmp_path, place=str(data))
    (data / "ill" / "2.png").write_bytes(b"2")
    os.utime(data / "ill" / "2.png", (2e9, 2e9))
    with pytest.raises(LedgerError, match=r"is newer than its ledger says, of 20\d\d-.*--accept REASON"):
        ledger_in(tmp_path, place=str(data))
    Ledger(tmp_path / "state", tmp_path / "site-1", "site-1").accept("two more patients")
    ledger_in(tmp_path, place=str(data))


def test_a_ledger_that_another_process_keeps_locked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = made(tmp_path)
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    with ledger.file.with_suffix(".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refuse_ledger(tmp_path, "another process has locked it for 0.05 s")
    ledger_in(tmp_path)


def test_two_sites_that_read_the_same_data_share_its_ledger(tmp_path: Path) -> None:
    ours, theirs = ledger_in(tmp_path), ledger_in(tmp_path, site="site-2")
    books(ours).spend("p", 0, [make_gaussian_spend(1)])
    books(theirs).spend("q", 0, [make_gaussian_spend(2)])
    books(theirs, "b").spend("q", 0, [make_gaussian_spend(2)])
    assert spent(ours) == spent(theirs) == pytest.approx(epsilon(1 + 1 / 4), rel=1e-12)
    content = b"".join(read_ledger_lines(ours)[:-1])  # the line of site-2
    ours.file.write_bytes(content)
    with pytest.raises(LedgerError, match="its last line of site-2 is number 3"):
        ledger_in(tmp_path, site="site-2")


class DiedError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", ["before the line", "within the line", "after the line", "after the counter"])
def test_a_process_that_dies_within_a_spend_has_spent_what_it_may_have_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    ledger = made(tmp_path)
    append, write = files.append, files.atomic_write

    def dying_append(path: Path, text: bytes, durable: bool) -> None:
        part = {"before the line": b"", "within the line": text[:-1]}.get(step, text)
        append(path, part, durable)
        if part != text:
            raise DiedError

    def dying_write(path: Path, text: str, durable: bool) -> None:
        if step == "after the counter":
            write(path, text, durable)
        raise DiedError

    with monkeypatch.context() as patch, pytest.raises(DiedError):
        patch.setattr(files, "append", dying_append)
        patch.setattr(files, "atomic_write", dying_write)
        books(ledger).spend("p0", 6, [make_gaussian_spend(4)])
    written = step.startswith("after")
    again = ledger_in(tmp_path)
    assert spent(again) == pytest.approx(epsilon((3 + written) / 16), rel=1e-12)
    books(again).spend("p0", 6, [make_gaussian_spend(4)])
    assert spent(ledger_in(tmp_path)) == pytest.approx(epsilon((4 + written) / 16), rel=1e-12)


def child_of(work: Callable[[], None]) -> int:
    """Starts a process that does this; its exit status is 0 if its budget halts it, and else 1."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        work()
    except BudgetError:
        status = 0
    finally:
        os._exit(status)


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_site_halts_in_the_same_round_or_earlier_by_the_number_of_kills(tmp_path: Path, seed: int) -> None:
    rounds, drawn = 40, tmp_path / "drawn"
    budget, chance = epsilon(rounds / 16 + 1e-9), random.Random(seed)

    def train() -> None:
        book = books(ledger_in(tmp_path, budget))
        with drawn.open("ab", buffering=0) as noise:
            for number in range(progress(), 10 * rounds):
                book.spend("p", number, [make_gaussian_spend(4)])
                noise.write(b".")

    def progress() -> int:
        return drawn.stat().st_size if drawn.exists() else 0

    kills, status = 0, 1
    while status:
        process, until = child_of(train), progress() + chance.randint(0, 6)
        alive = (os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        while progress() < until and os.waitid(*alive) is None:
            time.sleep(0.0005)
        time.sleep(chance.uniform(0, 0.01))
        os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        assert status in (0, signal.SIGKILL)
        kills += status != 0
        ledger = ledger_in(tmp_path)
        entered = len(read_ledger_lines(ledger)) - 1
        assert progress() <= entered
        assert spent(ledger) <= budget * (1 + 1e-9)
        if kills == 40:
            break  # each before a single spend, on a slow machine
    assert kills > 3
    while os.waitpid(child_of(train), 0)[1]:
        pass
    assert len(read_ledger_lines(ledger_in(tmp_path))) - 1 == rounds
    assert rounds - kills <= progress() <= rounds


def test_processes_that_spend_at_the_same_time_share_the_budget(tmp_path: Path) -> None:
    ledger_in(tmp_path)

    def train(job: str) -> None:
        book = books(ledger_in(tmp_path, epsilon(20 / 16 + 1e-9)), job, job)
        for number in range(100):
            book.spend("p", number, [make_gaussian_spend(4)])

    children = [child_of(lambda job=job: train(job)) for job in "abc"]  # type: ignore[misc]
    assert [os.waitpid(process, 0)[1] for process in children] == [0, 0, 0]
    ledger = ledger_in(tmp_path)
    assert len(read_ledger_lines(ledger)) == 21
    assert spent(ledger) == pytest.approx(epsilon(20 / 16), rel=1e-12)
