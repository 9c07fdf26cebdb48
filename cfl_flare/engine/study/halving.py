# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A study: candidates train side by side, what is clearly worse is dropped, and the rest is judged.

Successive halving (Jamieson and Talwalkar 2016) with a test: all candidates are measured on validation samples after
some rounds, then after twice as many, and so on. Each time those are dropped that are clearly worse than the best one,
at most half of all. What trains the candidates is a `Trainer`: this process, or sites.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from cfl_flare.clustering.gap import in_words
from cfl_flare.core.config import require
from cfl_flare.core.errors import AbortedError, CFLError, ConfigError, RunFailedError
from cfl_flare.core.text import plain
from cfl_flare.engine.study.candidates import ALONE, ONE_MODEL, Candidate, clustered_candidates
from cfl_flare.engine.study.settings import StudySettings
from cfl_flare.results.comparison import MARGIN, Measured, clear_without_each, difference, mean_of, shared_by_all
from cfl_flare.results.decision import decide
from cfl_flare.results.key_metric import Metric, is_share
from cfl_flare.results.verdict import Verdict

VALIDATION: Final = "validation"
TEST: Final = "test"


class Trainer(Protocol):
    """What a study asks for, wherever its candidates are trained.

    Attributes:
        metric: by which they are compared.
        rounds: of a whole run.
    """

    metric: Metric
    rounds: int

    @property
    def participants(self) -> int:
        """How many hospitals there are."""
        ...

    def search(self) -> tuple[Mapping[str, Any], int]:
        """The number of clusters that was found, as `cfl_flare.clustering.gap.noted` has it, and in how many rounds."""
        ...

    def private_layers(self, candidate: Candidate) -> str | None:
        """The layers that hospitals may keep with a candidate's method; None for none."""
        ...

    def train(self, candidate: Candidate, rounds: int) -> None:
        """Trains a candidate until it has so many rounds; from where it is, not anew."""
        ...

    def measured(self, candidate: Candidate, rounds: int, split: str) -> Measured:
        """What every hospital measures of a candidate, after so many rounds, on ``validation`` or ``test`` samples."""
        ...


@dataclass(frozen=True)
class Rung:
    """One comparison on validation samples.

    Attributes:
        rounds: after which it was made.
        means: each candidate's mean over hospitals.
        dropped: why some train no further.
        seconds: that it took, with the training since the rung before.
    """

    rounds: int
    means: Mapping[str, float]
    dropped: Mapping[str, str]
    seconds: float


@dataclass
class Journal:
    """What a study has found so far; `Study` goes on from there.

    Attributes:
        found: the number of clusters that was found; None as long as it was not.
        searched: the rounds that took.
        search_seconds: and the seconds.
        rungs: the comparisons.
        verdict: None until there is one.
        words: on the number that was found, and how sure it is.
    """

    found: int | None = None
    searched: int = 0
    search_seconds: float = 0.0
    rungs: list[Rung] = field(default_factory=list)
    verdict: Verdict | None = None
    words: str = ""

    @property
    def seconds(self) -> float:
        """Of all that is done."""
        return self.search_seconds + sum(rung.seconds for rung in self.rungs)

    def cost(self, rounds: int) -> dict[str, Any]:
        """What the study cost, beside training all of its candidates to the end."""
        last = {name: rung.rounds for rung in self.rungs for name in rung.means}
        spent = self.searched + sum(last.values())
        return {"rounds": spent, "everything": self.searched + rounds * len(last), "seconds": self.seconds}

    def to_dict(self, rounds: int) -> dict[str, Any]:
        """As JSON values."""
        return {
            "found": self.found,
            "words": self.words,
            "searched": self.searched,
            "search_seconds": self.search_seconds,
            "rungs": [asdict(rung) for rung in self.rungs],
            "cost": self.cost(rounds),
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
        }


class Study:
    """Compares candidates, and says which to train.

    Args:
        trainer: what trains them.
        candidates: those known before the number of clusters is.
        settings: how they are compared.
        journal: what an earlier attempt found; it goes on from there.
        save: called whenever there is more of it.
        say: called with one line on what was found.
        seed: of the draws of hospitals.

    Attributes:
        candidates: all of them, once the study has run.
        journal: what was found.

    Raises:
        ConfigError: the margin makes no sense for the metric.
    """

    def __init__(
        self,
        trainer: Trainer,
        candidates: Sequence[Candidate],
        settings: StudySettings,
        journal: Journal | None = None,
        save: Callable[[Journal], None] = lambda journal: None,
        say: Callable[[str], None] = lambda line: None,
        seed: int = 0,
    ):
        margin, metric = settings.margin, trainer.metric.of_participants.name
        require(
            margin is None or margin < 0.5 or not is_share(metric, 0, 1),
            f"study: margin = {margin} is half of all that {metric} can be, 0 to 1; give a share such as {MARGIN}",
        )
        self.trainer, self.candidates, self.settings = trainer, list(candidates), settings
        self.journal, self._save, self._say, self._seed = journal or Journal(), save, say, seed
        self._validated: dict[str, Measured] = {}  # of the last comparison, if this attempt made it

    def run(self) -> Verdict:
        """Runs it, or what is left of it.

        Raises:
            ConfigError: the candidates cannot be compared.
            CFLError: each hospital alone, or one model for all, cannot be trained.
        """
        journal = self.journal
        if journal.found is None:
            begun = time.monotonic()
            note, journal.searched = self.trainer.search()
            journal.found, journal.words = int(note["k"]), in_words(note)
            journal.search_seconds = time.monotonic() - begun
            self._save(journal)
        self._say(f"after {journal.searched} rounds: {journal.words}")
        self.candidates += clustered_candidates(journal.found, self.trainer.participants, self.candidates)
        left = list(self.candidates)
        ladder = self.settings.ladder(self.trainer.rounds)
        for i, rounds in enumerate(ladder):
            if i < len(journal.rungs):  # an earlier attempt's
                left = self._rest(left, journal.rungs[i], first=i == 0)
                continue
            if i and not self._affordable(left, rounds - ladder[i - 1]):
                self._say(f"{self.settings.minutes:g} minutes are used up; the candidates have {ladder[i - 1]} rounds")
                break
            journal.verdict = None
            journal.rungs.append(self._rung(left, rounds, first=i == 0, last=rounds == ladder[-1]))
            self._save(journal)
            left = self._rest(left, journal.rungs[i], first=i == 0)
        if journal.verdict is None:
            journal.verdict = self._verdict(left)
            self._save(journal)
        return journal.verdict

    def _affordable(self, left: Sequence[Candidate], more: int) -> bool:
        """Whether so many more rounds of those that are left fit into the minutes, at the speed so far."""
        if self.settings.minutes is None:
            return True
        spent = self.journal.seconds
        expected = spent / self.journal.cost(self.trainer.rounds)["rounds"] * more * len(left)
        return spent + expected <= 60 * self.settings.minutes

    def _rung(self, left: list[Candidate], rounds: int, first: bool, last: bool) -> Rung:
        begun = time.monotonic()
        found, dropped = dict[str, Measured](), dict[str, str]()
        for candidate in left:
            self._train(candidate, rounds, found, dropped)
        if first:
            private = self._best_private(found)
            if private is not None:
                left.append(private)
                self._train(private, rounds, found, dropped)
        dropped |= self._too_few(found)
        found = {name: measured for name, measured in found.items() if name not in dropped}
        self._validated, means = found, self._means(found)
        if not last:
            dropped |= self._worse(found, means)
        for name, why in dropped.items():
            self._say(f"{rounds} rounds: {name} is dropped: {why}")
        return Rung(rounds, means, dropped, time.monotonic() - begun)

    def _train(self, candidate: Candidate, rounds: int, found: dict[str, Measured], dropped: dict[str, str]) -> None:
        """Trains and measures one; if that fails, it is dropped, unless the verdict needs it."""
        try:
            self.trainer.train(candidate, rounds)
            found[candidate.name] = self.trainer.measured(candidate, rounds, VALIDATION)
        except (AbortedError, ConfigError):  # what was asked for is wrong, for all of them
            raise
        except CFLError as error:
            if candidate.baseline:
                raise
            dropped[candidate.name] = f"it failed: {plain(str(error), 300)}"

    def _best_private(self, found: Mapping[str, Measured]) -> Candidate | None:
        """The best number of clusters so far with private layers."""
        clustered = [one for one in self.candidates if one.method.clusters and one.name in found]
        best = self._ranked(self._means({one.name: found[one.name] for one in clustered}))[:1]
        for candidate in clustered:
            if candidate.name in best:
                layers = self.trainer.private_layers(candidate)
                return None if layers is None else candidate.with_private(layers)
        return None

    def _means(self, found: Mapping[str, Measured]) -> dict[str, float]:
        """Each candidate's mean over the hospitals that measured all of them."""
        return {name: mean_of(of, self.trainer.metric.mode) for name, of in shared_by_all(found).items()}

    @staticmethod
    def _too_few(found: Mapping[str, Measured]) -> dict[str, str]:
        """Candidates that were measured by half of the hospitals or fewer, of those that measured both baselines.

        Any two of the others have a hospital in common.

        Raises:
            RunFailedError: no hospital measured both.
        """
        both = found[ALONE].keys() & found[ONE_MODEL].keys()
        if not both:
            raise RunFailedError(f"study: no hospital measured both {ALONE} and {ONE_MODEL}; their logs say why")
        there = {name: len(both & measured.keys()) for name, measured in found.items()}
        return {
            name: f"it failed: {count} of {len(both)} hospitals measured it"
            for name, count in there.items()
            if name not in (ALONE, ONE_MODEL) and 2 * count <= len(both)
        }

    def _ranked(self, means: Mapping[str, float]) -> list[str]:
        """The best first."""
        sign = 1 if self.trainer.metric.mode == "max" else -1
        return sorted(means, key=lambda name: -sign * means[name])

    def _worse(self, found: Mapping[str, Measured], means: Mapping[str, float]) -> dict[str, str]:
        """Those that are clearly worse than the best one, the worst ones first, at most half of all.

        They are so without any one hospital, too: no single one takes a candidate out of the study.
        """
        mode, seed = self.trainer.metric.mode, self._seed
        ranked, dropped = self._ranked(means), dict[str, str]()
        best = ranked[0]
        stay = {one.name for one in self._all(ranked) if one.stays}
        for name in reversed(ranked[1:]):
            if name in stay or len(dropped) >= len(ranked) // 2:
                continue
            apart = difference(found[name], found[best], mode, seed)
            if apart.high < 0 and clear_without_each(found[best], found[name], mode, seed):
                low, high = (f"{-end:.3f}" for end in (apart.high, apart.low))
                dropped[name] = f"{best} is better by {-apart.gain:.3f}, 95 % interval {low} to {high}"
        return dropped

    def _all(self, names: Sequence[str]) -> list[Candidate]:
        return [one for one in self.candidates if one.name in names]

    def _rest(self, left: Sequence[Candidate], rung: Rung, first: bool) -> list[Candidate]:
        """Those that train on after a comparison, with the private one that the first of them brought."""
        there = {one.name for one in self.candidates}
        if first:
            for base in list(self.candidates):
                layers = self.trainer.private_layers(base) if base.method.clusters and base.private is None else None
                joined = None if layers is None else base.with_private(layers)
                if joined is not None and joined.name in {*rung.means, *rung.dropped} - there:
                    self.candidates.append(joined)
        names = [name for name in rung.means if name not in rung.dropped]
        return self._all(names)

    def _verdict(self, left: Sequence[Candidate]) -> Verdict:
        rung, metric = self.journal.rungs[-1], self.trainer.metric
        validated = self._validated or {one.name: self.trainer.measured(one, rung.rounds, VALIDATION) for one in left}
        tested = {one.name: self.trainer.measured(one, rung.rounds, TEST) for one in left}
        for name, why in self._too_few(tested).items():
            self._say(f"test samples: {name} is left out: {why}")
            del tested[name]
        entrants = [one.entrant for one in left if one.name in tested]
        how = (metric.name, metric.mode, self.settings.margin, self._seed, ONE_MODEL, ALONE)
        floor = (self.settings.fewest_events, self.trainer.participants)
        return decide(tested, validated, entrants, rung.rounds, *how, *floor)
