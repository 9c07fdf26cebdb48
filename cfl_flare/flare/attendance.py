# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Which sites the server hears, so that no round waits for one that is gone."""

from __future__ import annotations

import math
from collections.abc import Collection

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

    FLARE's server tells a job nothing of a site whose client process dies: it counts as connected for another ten
    minutes, and if the site's daemon restarts it meanwhile, for ever. The site's heartbeats in the job tell it at once.

    A site is lost only if another is heard: when all are silent, it is the server that has no network, and the round
    waits for its time limit.

    Args:
        silence: seconds without a sign after which a site is lost.
        start: the same for a site that has not given one yet.

    Attributes:
        lost: the sites that are lost.
    """

    def __init__(self, silence: float = SILENCE, start: float = START):
        self._longest, self._start = silence, start
        self._silent: dict[str, float] = {}
        self._heard_for: dict[str, float] = {}
        self._started: set[str] = set()
        self._expected: set[str] = set()
        self.lost: set[str] = set()

    @classmethod
    def ignored(cls) -> Attendance:
        """For a simulation, whose sites may share a process and are silent between their turns."""
        return cls(math.inf, math.inf)

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
        return self._heard_for.get(site, 0.0) >= FETCHES

    def expect(self, site: str) -> None:
        """A site's process is being started, again or for the first time."""
        self._silent[site] = self._heard_for[site] = 0.0
        self._expected.add(site)
        self.lost.discard(site)

    def listen(self, seconds: float, asked: Collection[str]) -> list[str]:
        """Notes that the server has listened for some time, to these and all that it has heard before.

        Returns:
            The sites that are lost from now on.
        """
        step = min(seconds, LONGEST_STEP)
        for site in {*self._silent, *asked}:
            self._silent[site] = self._silent.get(site, 0.0) + step
        for site in self._started - self._expected:
            self._heard_for[site] = self._heard_for.get(site, 0.0) + step
        if all(self._too_long(site) for site in self._started):
            return []
        found = sorted(site for site in self._silent if site not in self.lost and self._too_long(site))
        self.lost.update(found)
        return found

    def _too_long(self, site: str) -> bool:
        return self._silent[site] >= (self._longest if site in self._started else self._start)
