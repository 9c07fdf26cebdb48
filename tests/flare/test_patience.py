# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""For which sites a round waits."""

from cfl_flare.flare.patience import Patience

SITES = ["site-1", "site-2"]


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
