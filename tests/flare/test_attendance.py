# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""For which sites a round waits: which are lost, which answer, and whose answer cannot be decoded."""

import math
import re
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.private.defs import CellMessageHeaderKeys

from cfl_flare.flare.attendance import FETCHES, LONGEST_STEP, SILENCE, START, Attendance, Patience
from cfl_flare.flare.compat import fail_undecodable

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
