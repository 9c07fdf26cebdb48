# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Which sites count as lost."""

import pytest

from cfl_flare.flare.attendance import FETCHES, LONGEST_STEP, SILENCE, START, Attendance

SITES = ("site-1", "site-2")


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
    attendance = Attendance.ignored()
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
