# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A study: candidates train side by side, what is clearly worse is dropped, and the rest is judged.

Successive halving (Jamieson and Talwalkar 2016) with a test: all candidates are measured on validation samples after
some rounds, then after twice as many, and so on. Each time those are dropped that are clearly worse than the best one,
at most half of all. What trains the candidates is a `Trainer`: this process, or sites.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from cfl_flare.clustering.gap import describe_note
from cfl_flare.core.config import require
from cfl_flare.core.errors import AbortedError, CFLError, ConfigError, RunFailedError
from cfl_flare.core.files import atomic_write
from cfl_flare.core.text import plain
from cfl_flare.engine.study.candidates import (
    Candidate,
    StudySettings,
    clustered_candidates,
    random_groups,
)
from cfl_flare.engine.study.journal import Journal, Rung, Search
from cfl_flare.engine.study.judged import Judged
from cfl_flare.results.comparison import (
    MARGIN,
    Measured,
    clear_without_each,
    difference,
    mean_of,
    score_candidates,
    shared_by_all,
)
from cfl_flare.results.decision import decide
from cfl_flare.results.metrics import Metric, is_share
from cfl_flare.results.study import ALONE, ONE_MODEL, STUDY, VERSION, Verdict

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
    def names(self) -> Sequence[str]:
        """Those of the hospitals."""

    @property
    def most_clusters(self) -> int:
        """How many clusters can be as large as each has to be."""

    def search(self) -> Search:
        """Looks for the number of clusters."""

    def private_layers(self, candidate: Candidate) -> str | None:
        """The layers that hospitals may keep with a candidate's method; None for none."""

    def train(self, candidate: Candidate, rounds: int) -> None:
        """Trains a candidate until it has this many rounds; from where it is, not anew."""

    def measured(self, candidate: Candidate, rounds: int, split: str) -> Measured:
        """What every hospital measures of a candidate after these rounds, on ``validation`` or ``test`` samples."""


class Study:
    """Compares candidates, and says which to train.

    Args:
        candidates: those known before the number of clusters is; as an attribute, all of them once the study has run.
        journal: what an earlier attempt found; it goes on from there.
        save: called whenever there is more of it.
        say: called with one line on each step.
        seed: of the random groups.
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
        require(
            trainer.metric.mode is not None,
            f"study: the name of the metric {metric!r} does not say which end is best, so nothing can be compared; "
            "set key_metric_mode to 'max' or 'min'",
        )
        self._mode = str(trainer.metric.mode)
        self.trainer, self.candidates, self.settings = (
            trainer,
            list(candidates),
            settings,
        )
        self.journal, self._save, self._say, self._seed = (
            journal or Journal(),
            save,
            say,
            seed,
        )

    def run(self) -> Verdict:
        """Runs it, or what is left of it.

        Raises:
            ConfigError: the candidates cannot be compared.
            CFLError: each hospital alone, or one model for all, cannot be trained.
        """
        journal = self.journal
        if journal.clusters is None:
            start = time.monotonic()
            search = self.trainer.search()
            journal.clusters, journal.words = (
                int(search.note["k"]),
                describe_note(search.note),
            )
            journal.k_set, journal.assignment = search.note["set"], search.assignment
            journal.searched = search.rounds
            journal.search_seconds = time.monotonic() - start
            self._save(journal)
        self._say(f"after {journal.searched} rounds: {journal.words}")
        self._add_clustered(journal.clusters)
        left = list(self.candidates)
        ladder = self.settings.ladder(self.trainer.rounds)
        for i, rounds in enumerate(ladder):
            if i == len(journal.rungs):  # others are of an earlier attempt
                if i and not self._affordable(left, rounds - ladder[i - 1]):
                    self._say(
                        f"{self.settings.minutes:g} minutes are used up; the candidates have {ladder[i - 1]} rounds"
                    )
                    break
                journal.verdict = None
                journal.rungs.append(
                    self._rung(left, rounds, first=i == 0, last=rounds == ladder[-1])
                )
                self._save(journal)
            left = self._left(journal.rungs[i])
        if journal.verdict is None:
            journal.verdict = self._verdict(left)
            self._save(journal)
        return journal.verdict

    def _add_clustered(self, found: int) -> None:
        """Add candidates with clusters and random groups, if there can be two clusters."""
        possible = self.trainer.most_clusters
        self.candidates = [
            replace(candidate, possible=possible) for candidate in self.candidates
        ]
        if possible < 2:
            self._say("no two clusters can be large enough: no clusters are compared")
            return
        self.candidates += clustered_candidates(found, possible, self.candidates)
        groups = random_groups(self.journal.assignment, self.trainer.names, self._seed)
        self.candidates.append(groups)

    def write(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Writes what the study has found so far, with its settings as JSON; a FileError if it cannot."""
        rounds, titles = (
            self.trainer.rounds,
            {c.name: c.entrant.title for c in self.candidates},
        )
        content = {
            "version": VERSION,
            "settings": facts,
            "rounds": rounds,
            "titles": titles,
        }
        atomic_write(
            folder / STUDY,
            json.dumps({**content, **self.journal.to_dict(rounds)}, indent=1),
        )

    def _affordable(self, left: Sequence[Candidate], rounds: int) -> bool:
        """Whether more rounds of the candidates that are left fit into the minutes, at the speed so far."""
        if self.settings.minutes is None:
            return True
        spent = self.journal.seconds
        expected = (
            spent
            / self.journal.cost(self.trainer.rounds)["rounds"]
            * rounds
            * len(left)
        )
        return spent + expected <= 60 * self.settings.minutes

    def _rung(
        self, left: Sequence[Candidate], rounds: int, first: bool, last: bool
    ) -> Rung:
        start = time.monotonic()
        measured, dropped = dict[str, Measured](), dict[str, str]()
        for candidate in left:
            self._train(candidate, rounds, measured, dropped)
        private = self._best_private(measured) if first else None
        if private is not None:
            self._train(private, rounds, measured, dropped)
        dropped |= self._too_few(measured)
        measured = {
            name: hospitals
            for name, hospitals in measured.items()
            if name not in dropped
        }
        means = self._means(measured)
        if not last:
            best = {name: self.journal.judged[name].validated for name in measured}
            dropped |= self._worse(best)
        for name, why in dropped.items():
            self._say(f"{rounds} rounds: {name} is dropped: {why}")
        return Rung(rounds, means, dropped, time.monotonic() - start)

    def _train(
        self,
        candidate: Candidate,
        rounds: int,
        measured: dict[str, Measured],
        dropped: dict[str, str],
    ) -> None:
        """Trains and measures a candidate; if that fails, it is dropped, unless the verdict needs it."""
        try:
            self.trainer.train(candidate, rounds)
            validated = self.trainer.measured(candidate, rounds, VALIDATION)
            self._judge(candidate, rounds, validated)
            measured[candidate.name] = validated
        except (
            AbortedError,
            ConfigError,
        ):  # what the settings name is wrong, for all of them
            raise
        except CFLError as error:
            if candidate.baseline:
                raise
            dropped[candidate.name] = f"it failed: {plain(str(error), 300)}"

    def _judge(self, candidate: Candidate, rounds: int, validated: Measured) -> None:
        """Measures a candidate on test samples, if it never was better on validation samples."""
        earlier = self.journal.judged.get(candidate.name)
        if earlier is not None and not self._is_better(validated, earlier.validated):
            return
        tested = self.trainer.measured(candidate, rounds, TEST)
        self.journal.judged[candidate.name] = Judged(rounds, validated, tested)

    def _is_better(self, measured: Measured, reference: Measured) -> bool:
        """Whether the hospitals that measured both have better numbers. Without any, the reference stays."""
        try:
            return difference(measured, reference, self._mode).gain > 0
        except ConfigError:
            return False

    def _best_private(self, measured: Mapping[str, Measured]) -> Candidate | None:
        """The best number of clusters so far with private layers."""
        clustered = {c.name: c for c in self._clustered() if c.name in measured}
        if not clustered:
            return None
        best = self._rank({name: measured[name] for name in clustered})[0]
        return self._with_private(clustered[best])

    def _clustered(self) -> list[Candidate]:
        return [
            c
            for c in self.candidates
            if c.method.clusters and c.private is None and not c.control
        ]

    def _with_private(self, candidate: Candidate) -> Candidate | None:
        layers = self.trainer.private_layers(candidate)
        return None if layers is None else candidate.with_private(layers)

    def _means(self, measured: Mapping[str, Measured]) -> dict[str, float]:
        """Each candidate's mean over the hospitals that measured all of them."""
        shared = shared_by_all(measured)
        return {name: mean_of(hospitals) for name, hospitals in shared.items()}

    @staticmethod
    def _too_few(measured: Mapping[str, Measured]) -> dict[str, str]:
        """Candidates that were measured by half of the hospitals or fewer, of those that measured both baselines.

        Any two of the others have a hospital in common.
        """
        both = measured[ALONE].keys() & measured[ONE_MODEL].keys()
        if not both:
            raise RunFailedError(
                f"study: no hospital measured both {ALONE} and {ONE_MODEL}; their logs say why"
            )
        counts = {
            name: len(both & hospitals.keys()) for name, hospitals in measured.items()
        }
        return {
            name: f"it failed: {count} of {len(both)} hospitals measured it"
            for name, count in counts.items()
            if name not in (ALONE, ONE_MODEL) and 2 * count <= len(both)
        }

    def _rank(self, measured: Mapping[str, Measured]) -> list[str]:
        """The best first, by paired differences that no hospital moves without a bound."""
        scores = score_candidates(measured, self._mode)
        return sorted(scores, key=lambda name: -scores[name])

    def _worse(self, measured: Mapping[str, Measured]) -> dict[str, str]:
        """Those that are clearly worse than the best one, the worst ones first, at most half of all.

        They also are without any one hospital: no single one takes a candidate out of the study.
        """
        ranked = self._rank(measured)
        dropped = dict[str, str]()
        best = ranked[0]
        stay = {candidate.name for candidate in self.candidates if candidate.stays}
        for name in reversed(ranked[1:]):
            if name in stay or len(dropped) >= len(ranked) // 2:
                continue
            lead = difference(measured[best], measured[name], self._mode)
            if lead.low > 0 and clear_without_each(
                measured[best], measured[name], self._mode
            ):
                ends = f"{lead.low:.3f} to {lead.high:.3f}"
                dropped[name] = (
                    f"{best} is better by {lead.gain:.3f}, 95 % interval {ends}"
                )
        return dropped

    def _left(self, rung: Rung) -> list[Candidate]:
        """Those that train on after a comparison, with the private one that the first of them brought."""
        known = {candidate.name for candidate in self.candidates}
        for base in self._clustered():
            joined = self._with_private(base)
            if (
                joined is not None
                and joined.name in {*rung.means, *rung.dropped} - known
            ):
                self.candidates.append(joined)
        return [
            c
            for c in self.candidates
            if c.name in rung.means and c.name not in rung.dropped
        ]

    def _choose_pulls(self, left: Sequence[Candidate]) -> dict[str, Candidate]:
        """The candidates that are judged by name: of a method with several pulls, the best on validation samples.

        One that was dropped counts as well. Training alone keeps the name by which the verdict knows it.
        """
        known = self.journal.judged
        chosen = dict[str, Candidate]()
        for family in dict.fromkeys(candidate.family for candidate in left):
            best, *others = (
                candidate
                for candidate in self.candidates
                if candidate.family == family and candidate.name in known
            )
            for other in others:
                if self._is_better(
                    known[other.name].validated, known[best.name].validated
                ):
                    best = other
            chosen[family if family == ALONE else best.name] = best
        return chosen

    def _verdict(self, left: Sequence[Candidate]) -> Verdict:
        rung, metric, trainer = (
            self.journal.rungs[-1],
            self.trainer.metric,
            self.trainer,
        )
        chosen = self._choose_pulls(left)
        judged = {name: self.journal.judged[c.name] for name, c in chosen.items()}
        validated = {name: values.validated for name, values in judged.items()}
        tested = {name: values.tested for name, values in judged.items()}
        for name, why in self._too_few(tested).items():
            self._say(f"test samples: {name} is left out: {why}")
            del tested[name]
        entrants = [
            replace(c.entrant.after(judged[name].rounds, rung.rounds), name=name)
            for name, c in chosen.items()
            if name in tested
        ]
        return decide(
            tested,
            validated,
            entrants,
            rung.rounds,
            metric.name,
            self._mode,
            self.settings.margin,
            fewest=self.settings.fewest_events,
            everyone=len(trainer.names),
            found=self.journal.clusters,
        )
