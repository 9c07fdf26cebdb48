# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""For which sites a round waits until its time is up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable


class Patience:
    """How many tasks in a row each site has left unanswered.

    A site whose script hangs gives signs of life all the same. Rounds go on asking it, since it may wake up, but they
    wait for it no longer than for the others, until it answers in time. A late answer has the next round wait for it
    once, in case it has woken up; one that is always late is not waited for.

    Args:
        most: so many tasks a site may leave unanswered.
    """

    def __init__(self, most: float = math.inf):
        self._most = most
        self._missed: Counter[str] = Counter()
        self._late: set[str] = set()

    def miss(self, site: str) -> bool:
        """Notes that a site's time was up; returns whether it is no longer waited for from now on."""
        self._missed[site] += 1
        return self._missed[site] == self._most

    def answer(self, site: str, late: bool = False) -> bool:
        """Notes a site's answer; returns whether it is waited for again from now on."""
        if not late:
            self._late.discard(site)
            return self._missed.pop(site, 0) >= self._most
        if self._missed[site] < self._most or site in self._late:
            return False
        self._late.add(site)
        self._missed[site] = int(self._most) - 1
        return True

    def waited_for(self, asked: Iterable[str]) -> list[str]:
        """Those of the sites that are waited for: all, if there would be none."""
        asked = list(asked)
        return [site for site in asked if self._missed[site] < self._most] or asked
