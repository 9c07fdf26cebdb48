# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""For which sites a round waits: those that the server hears, and that answer."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

# A site's job process sends a heartbeat every 10 s, also while it trains. One that has been silent for longer is lost.
SILENCE = 50.0
# The first heartbeat comes when the site's process has started, and a training script's with it.
START = 300.0
# A job process asks for tasks at once after its first heartbeat. One that does not within this time is refused them.
FETCHES = 60.0
# The silence counts while the server listens. A longer pause of its own process says nothing of the sites.
LONGEST_STEP = 1.0


class Attendance:
    """How long each site of a job has been silent.

    FLARE's server tells a job nothing of a site whose client process dies. The site counts as connected for another
    ten minutes, and for ever if its daemon restarts it meanwhile. The site's heartbeats in the job tell it at once.

    A site is lost only if another is heard. When all are silent, the server has no network, and the round waits for
    its time limit.

    Args:
        silence: seconds without a sign after which a site is lost; infinite in a simulation, whose sites may share a
            process and are silent between their turns.
        start: the same for a site that has not given a sign yet.
    """

    def __init__(self, silence: float = SILENCE, start: float = START):
        self._longest, self._start = silence, start
        self._silent: defaultdict[str, float] = defaultdict(float)
        self._heard_for: defaultdict[str, float] = defaultdict(float)
        self._started: set[str] = set()
        self._expected: set[str] = set()
        self.lost: set[str] = set()

    def hear(self, site: str) -> bool:
        """Notes a sign of a site; returns whether it had been lost."""
        self._silent[site] = 0.0
        self._started.add(site)
        self._expected.discard(site)
        returned = site in self.lost
        self.lost.discard(site)
        return returned

    def heard(self, site: str) -> bool:
        """Whether a site has given a sign since it was last expected."""
        return site not in self._expected

    def deaf(self, site: str) -> bool:
        """Whether a site has been heard for so long that it would have fetched a task that is there for it."""
        return self._heard_for[site] >= FETCHES

    def expect(self, site: str) -> None:
        """Notes that a site's process is being started, again or for the first time."""
        self._silent[site] = self._heard_for[site] = 0.0
        self._expected.add(site)
        self.lost.discard(site)

    def listen(self, seconds: float, sites: Collection[str]) -> list[str]:
        """Notes that the server has listened for some time, to these sites and to all that it has heard before.

        Returns:
            The sites that are lost from now on.
        """
        step = min(seconds, LONGEST_STEP)
        for site in {*self._silent, *sites}:
            self._silent[site] += step
        for site in self._started - self._expected:
            self._heard_for[site] += step
        if all(self._too_long(site) for site in self._started):
            return []
        newly_lost = sorted(site for site in self._silent if site not in self.lost and self._too_long(site))
        self.lost.update(newly_lost)
        return newly_lost

    def _too_long(self, site: str) -> bool:
        return self._silent[site] >= (self._longest if site in self._started else self._start)


class Patience:
    """How many tasks in a row each site has left unanswered.

    A site whose script hangs gives signs of life all the same. Rounds go on asking it, since it may wake up. They wait
    for it no longer than for the others, until it answers in time. After a late answer the next round waits for it
    once more, in case it has woken up. A site that is always late is not waited for.

    Args:
        most: number of tasks that a site may leave unanswered.
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

    def waited_for(self, sites: Iterable[str]) -> list[str]:
        """Those of the sites that are waited for: all, if there would be none."""
        sites = list(sites)
        return [site for site in sites if self._missed[site] < self._most] or sites
