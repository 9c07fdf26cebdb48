# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""For which sites a round waits: those that the server hears, and that answer."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

# A site's job process sends a heartbeat every 10 s, also while it trains. One that has been silent for longer is lost.
SILENCE = 50.0
# The first heartbeat comes when the site's process has started, and a training script's with it.
START = 300.0
# A job process asks for tasks at once after its first heartbeat. One that does not within this time is refused them.
FETCHES = 60.0
# The silence counts while the server listens. A longer pause of its own process says nothing of the sites.
LONGEST_STEP = 1.0


# A site may take so many times as long as its longest answer, and so many seconds in any case: longer than `SILENCE`,
# as one that is restarted loses nothing meanwhile.
TIMES = 10.0
LEAST = 60.0
# The same for its first answer, when all others have answered: it may have more data, or a slower processor.
FIRST = 300.0


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
        newly_lost = sorted(
            site
            for site in self._silent
            if site not in self.lost and self._too_long(site)
        )
        self.lost.update(newly_lost)
        return newly_lost

    def _too_long(self, site: str) -> bool:
        return self._silent[site] >= (
            self._longest if site in self._started else self._start
        )


@dataclass(frozen=True)
class Work:
    """What a site is asked to do: tasks of the same kind take times that can be compared.

    Attributes:
        kind: such as ``train``, or ``evaluate train`` for work of two parts.
        amount: how many participants there work.
    """

    kind: str
    amount: int = 1


class Pace:
    """How long each site's answers take, and so how long a round waits for a site that gives none.

    A hung process gives signs of life, and in a simulation nobody notices the end of a process. The time limit of a
    task is for the longest round that there may be. If a site's earlier answers took seconds, no round waits so long.
    An answer that comes too late counts as well: after it, rounds wait longer.

    Times are seconds of a clock that runs while the server listens.

    Args:
        times: a site may take so many times as long as its longest answer to such work.
        least: seconds that it may take in any case.
        first: the same for its first answer of a kind, when all others have given theirs, if it has answered no work
            that has a part of this one.
    """

    def __init__(
        self, times: float = TIMES, least: float = LEAST, first: float = FIRST
    ):
        self._times, self._least, self._first = times, least, first
        self._longest: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._open: defaultdict[str, list[tuple[Work, float]]] = defaultdict(list)

    def begin(self, site: str, work: Work, now: float) -> None:
        """Notes that a site is sent work."""
        self._open[site].append((work, now))

    def finish(self, site: str, now: float, late: bool = False) -> None:
        """Notes a site's answer to its newest work, or a ``late`` one, which is to the oldest."""
        if not self._open[site]:
            return
        work, begun = self._open[site].pop(0 if late else -1)
        if not late:
            self._open[site].clear()
        longest = self._longest[work.kind]
        longest[site] = max((now - begun) / work.amount, longest.get(site, 0.0))

    def forget(self, site: str) -> None:
        """Notes that a site's process is started anew, so that its next answer takes longer than the earlier ones."""
        self._open.pop(site, None)
        for longest in self._longest.values():
            longest.pop(site, None)

    def find_delay(self, site: str, now: float) -> str | None:
        """Why a round should no longer wait for a site that is at work.

        Returns:
            The reason in words, with both times; None if the site may take longer.
        """
        if not self._open[site]:
            return None
        work, begun = self._open[site][-1]
        others = self._longest[work.kind]
        own = self._find_longest(site, work.kind)
        if own is not None:
            usual = own * work.amount
            least = self._least
            words = f"its earlier answers took at most {usual:.1f} s"
        elif others and not self._others_work(site, work.kind):
            related = self._find_longest(site, work.kind, whole=False)
            usual = max(*others.values(), related or 0.0) * work.amount
            least = self._first if related is None else self._least
            words = f"those of other sites took at most {usual:.1f} s"
        else:
            return None
        limit = max(least, self._times * usual)
        taken = now - begun
        return f"no answer in {taken:.0f} s, where {words}" if taken >= limit else None

    def _find_longest(self, site: str, kind: str, whole: bool = True) -> float | None:
        """The longest time that a site took for work that contains this kind of work.

        Args:
            site: its name.
            kind: such as ``evaluate``, which ``evaluate train`` contains.
            whole: otherwise a part in common is enough.

        Returns:
            Seconds for one participant; None if it has answered no such work.
        """
        parts = set(kind.split())
        times = []
        for other, longest in self._longest.items():
            common = parts.intersection(other.split())
            if site in longest and (common == parts or (common and not whole)):
                times.append(longest[site])
        return max(times, default=None)

    def _others_work(self, site: str, kind: str) -> bool:
        """Whether another site that has never answered such work is at it as well."""
        longest = self._longest[kind]
        return any(
            other not in (site, *longest) and given and given[-1][0].kind == kind
            for other, given in self._open.items()
        )


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
