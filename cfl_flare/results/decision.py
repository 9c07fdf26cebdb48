# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a study comes to its verdict.

Validation samples choose one candidate of each kind: one model, clusters, and a model of each hospital's own. Test
samples judge these, from the simplest kind on. Clusters have to be clearly better than one model and than random
groups. A model of each hospital's own has to be clearly better than what was chosen so far. So choosing among many
candidates makes no test figure too good.

The study cannot tell if too few samples decide, if the measure says nothing, if one hospital reverses the choice, or
if clusters that were not chosen may be better by a difference that matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.text import plain
from cfl_flare.results import comparison
from cfl_flare.results.comparison import Comparison, Measured, majority, mean_of
from cfl_flare.results.remarks import figure, listed
from cfl_flare.results.study import (
    ALONE,
    MOST_NAMES,
    ONE_MODEL,
    PREVALENCE,
    Basis,
    Entrant,
    Hospital,
    Verdict,
    is_accuracy,
    signed,
)

# Over all hospitals, this part of the margin matters: every second hospital may gain the whole margin.
MEAN_MARGIN = 0.5


@dataclass(frozen=True)
class Contest:
    """The candidates that are left, and what hospitals measured of them on test and on validation samples.

    Attributes:
        entrants: one of them is one model for all, and one each hospital alone.
        mode: which end of the metric is best.
        found: the number of clusters that was found before the candidates trained; None if it is not known.
    """

    tested: Mapping[str, Measured]
    validated: Mapping[str, Measured]
    entrants: Sequence[Entrant]
    mode: str
    found: int | None = None

    @property
    def hospitals(self) -> list[str]:
        """The hospitals that measured anything on test samples."""
        names = (name for measured in self.tested.values() for name in measured)
        return list(dict.fromkeys(names))

    @property
    def random(self) -> Entrant | None:
        """The random groups; None if they were dropped."""
        return next((entrant for entrant in self.entrants if entrant.control), None)

    def without(self, hospital: str) -> Contest:
        """The same with one hospital left out of the test samples."""
        tested = {
            way: comparison.without(measured, hospital)
            for way, measured in self.tested.items()
        }
        return replace(self, tested=tested)

    def prefer(self, entrants: Sequence[Entrant]) -> Entrant | None:
        """Take the simplest candidate that validation samples do not tell from the best one.

        The rule of one standard error (Breiman et al. 1984, sec. 3.4.3) with the standard error of the paired
        difference. One model with private layers is as simple as without: the better of the two is taken.

        Args:
            entrants: the candidates.

        Returns:
            The candidate, or None if there are none.
        """
        if not entrants:
            return None
        simplest_first = sorted(entrants, key=self._burden)
        ways = {
            entrant.name: self.validated[entrant.name] for entrant in simplest_first
        }
        scores = comparison.score_candidates(ways, self.mode)
        ranked = sorted(
            entrants, key=lambda entrant: (-scores[entrant.name], entrant.private)
        )
        best = ranked[0]
        alike = [best, *(own for own in ranked[1:] if self._is_alike(best, own))]
        return min(alike, key=self._burden)

    def _is_alike(self, best: Entrant, entrant: Entrant) -> bool:
        apart = self.compare(self.validated, best, entrant)
        return apart.gain <= apart.error

    def _burden(self, entrant: Entrant) -> tuple[Any, ...]:
        """What hospitals have to run and to check; the least is the simplest.

        Of numbers of clusters, the number that was found comes first, then the smallest.
        """
        return (
            entrant.name == ALONE,
            entrant.tuned,
            entrant.clusters > 0 and entrant.clusters != self.found,
            entrant.clusters,
            entrant.clusters > 0 and entrant.private,
        )

    def compare(
        self, split: Mapping[str, Measured], entrant: Entrant, reference: Entrant
    ) -> Comparison:
        """Compare two candidates on validation or on test samples."""
        return comparison.difference(
            split[entrant.name], split[reference.name], self.mode
        )

    def choose(self) -> Choice:
        """Choose a candidate of each kind by validation samples, and judge them by test samples."""
        one = self.prefer([own for own in self.entrants if own.kind == 0])
        assert one is not None
        clustered = self.prefer(
            [own for own in self.entrants if own.kind == 1 and not own.control]
        )
        own = self.prefer([own for own in self.entrants if own.kind == 2])
        return self.judge(one, clustered, own)

    def judge(
        self, one: Entrant, clustered: Entrant | None, own: Entrant | None
    ) -> Choice:
        """Judge by test samples: what is less simple has to be clearly better.

        Args:
            one: one model for all hospitals.
            clustered: a candidate with clusters; None if all were dropped.
            own: a model of each hospital's own; None if all were dropped.
        """
        chosen = one
        challenges = []
        if clustered is not None:
            challenges = [self._challenge(clustered, one)]
            if self.random is not None:
                challenges.append(self._challenge(clustered, self.random))
            if all(challenge.wins for challenge in challenges):
                chosen = clustered
        if own is not None:
            challenges.append(self._challenge(own, chosen))
            if challenges[-1].wins:
                chosen = own
        return Choice(one, clustered, own, chosen, tuple(challenges))

    def _challenge(self, entrant: Entrant, reference: Entrant) -> Challenge:
        return Challenge(entrant, reference, self.compare_tests(entrant, reference))

    def compare_tests(self, entrant: Entrant, reference: Entrant) -> Comparison:
        """Compare two candidates on test samples."""
        return self.compare(self.tested, entrant, reference)


@dataclass(frozen=True)
class Challenge:
    """A candidate that has to be clearly better than a simpler one on test samples."""

    entrant: Entrant
    reference: Entrant
    apart: Comparison

    @property
    def wins(self) -> bool:
        return self.apart.low > 0


@dataclass(frozen=True)
class Choice:
    """What the hospitals' numbers say, whether they are enough or not.

    Attributes:
        one: the preferred way to train one model.
        clustered: the preferred candidate with clusters; None without any.
        own: the preferred way to give each hospital a model of its own; None without any.
        chosen: one of these three.
        challenges: the comparisons that led to it.
    """

    one: Entrant
    clustered: Entrant | None
    own: Entrant | None
    chosen: Entrant
    challenges: tuple[Challenge, ...]

    @property
    def other(self) -> Entrant:
        """The chosen candidate if it has no clusters, else one model."""
        return self.one if self.chosen.clusters else self.chosen

    def explain_reversal(self, rest: Contest) -> str:
        """What the choice is without one hospital, if that reverses it; empty if the choice stands.

        With fewer hospitals, fewer differences are clear. So a gain stands if it is still clear, or if half of it is
        left. A less simple candidate reverses the choice only if it is clearly better than the chosen one.

        Args:
            rest: the contest without the hospital.
        """
        for rival in (self.clustered, self.own):
            if rival is not None and rival.kind > self.chosen.kind:
                references = [self.chosen]
                if rival.kind == 1 and rest.random is not None:
                    references.append(rest.random)
                if all(rest.compare_tests(rival, own).low > 0 for own in references):
                    return name_choice(rival)
        for challenge in self.challenges:
            if challenge.wins and challenge.entrant.kind <= self.chosen.kind:
                left = rest.compare_tests(challenge.entrant, challenge.reference)
                if left.low <= 0 and 2 * left.gain < challenge.apart.gain:
                    return "less than half of that gain"
        return ""


def name_choice(entrant: Entrant) -> str:
    """Name a choice, whatever the number of clusters and the private layers."""
    if entrant.clusters:
        return "cluster"
    if entrant.name == ALONE:
        return "training alone"
    return "fine-tuning" if entrant.tuned else "one model"


def decide(
    tested: Mapping[str, Measured],
    validated: Mapping[str, Measured],
    entrants: Sequence[Entrant],
    rounds: int,
    metric: str,
    mode: str = "max",
    margin: float | None = None,
    fewest: int = 0,
    everyone: int | None = None,
    found: int | None = None,
) -> Verdict:
    """Choose by validation samples, and judge by test samples, over the hospitals that measured all candidates.

    Args:
        tested: what hospitals measured on test samples, by candidate.
        validated: the same on validation samples.
        entrants: the candidates that are left.
        rounds: after which they were measured.
        metric: what was measured.
        mode: which end of the metric is best.
        margin: the difference that matters to one hospital; None for the usual one.
        fewest: samples of both kinds that decide at least: of the rarer classes, with an event, or of any kind.
        everyone: how many hospitals take part; None for those that measured.
        found: the number of clusters that was found before the candidates trained.
    """
    entrants = [entrant for entrant in entrants if entrant.name != PREVALENCE]
    tested = comparison.shared_by_all(tested)
    validated = comparison.shared_by_all(validated)
    contest = Contest(tested, validated, entrants, mode, found)
    choice = contest.choose()
    means = {name: mean_of(measured) for name, measured in tested.items()}
    margin = margin or comparison.usual_margin(metric, means[ONE_MODEL])
    basis = {
        "validation": Basis.of_measured(validated[ONE_MODEL], everyone),
        "test": Basis.of_measured(tested[ONE_MODEL], everyone),
    }
    instead = _leave_each_out(contest, choice)
    reversing = {name: words for name, words in instead.items() if words}
    best = [tested[own.name] for own in (choice.clustered, choice.other) if own]
    blocked = (
        _too_few(basis, fewest)
        or _no_better_than_naming(best, metric)
        or _one_reverses(choice, reversing)
    )
    unsure = blocked or _explain_doubt(contest, choice, metric, MEAN_MARGIN * margin)
    chosen = choice.one if blocked else choice.chosen
    other = choice.one if blocked else choice.other
    naming = majority(tested[ONE_MODEL])
    return Verdict(
        metric=metric,
        mode=mode,
        cluster=bool(chosen.clusters),
        chosen=chosen,
        best_clustered=choice.clustered,
        best_other=other,
        rounds=rounds,
        tested=means,
        compared=_compare_pairs(contest, choice.clustered, chosen, other),
        hospitals=_list_hospitals(contest, chosen, margin),
        unsure=unsure,
        left_out=len(instead),
        reversed_without=reversing,
        basis=basis,
        margin=margin,
        majority=None if naming is None else mean_of(naming),
        random="" if contest.random is None else contest.random.name,
    )


def _compare_pairs(
    contest: Contest, clustered: Entrant | None, chosen: Entrant, other: Entrant
) -> dict[tuple[str, str], Comparison]:
    """The comparisons on which a verdict rests, on test samples."""
    unclustered = [entrant.name for entrant in contest.entrants if not entrant.clusters]
    controls = [entrant.name for entrant in contest.entrants if entrant.control]
    pairs = [(other.name, name) for name in (ONE_MODEL, ALONE)]
    if PREVALENCE in contest.tested:
        pairs.append((chosen.name, PREVALENCE))
    for entrant in (clustered, chosen if chosen.clusters else None):
        if entrant is not None:
            pairs += [(entrant.name, name) for name in (*unclustered, *controls)]
    return {
        (name, reference): comparison.difference(
            contest.tested[name], contest.tested[reference], contest.mode
        )
        for name, reference in pairs
        if name != reference
    }


def _list_hospitals(
    contest: Contest, chosen: Entrant, margin: float
) -> tuple[Hospital, ...]:
    """What the chosen candidate brings each hospital."""
    measured = contest.tested[chosen.name]
    gains = {
        name: comparison.gains(measured, contest.tested[name], contest.mode, margin)
        for name in (ONE_MODEL, ALONE)
        if name != chosen.name
    }
    to_one = gains.get(ONE_MODEL, {})
    to_alone = gains.get(ALONE, {})
    return tuple(
        Hospital(name, at.tested, at.value, to_one.get(name), to_alone.get(name))
        for name, at in measured.items()
    )


def _leave_each_out(contest: Contest, choice: Choice) -> dict[str, str]:
    """By hospital, what the choice is without it, if that reverses it."""
    names = contest.hospitals
    if len(names) < 2:
        return {}
    words = {}
    for name in names:
        try:
            words[name] = choice.explain_reversal(contest.without(name))
        except ConfigError:  # no other hospital measured two of the candidates
            words[name] = "no choice"
    return words


def _one_reverses(choice: Choice, reversing: Mapping[str, str]) -> str:
    if not reversing:
        return ""
    instead = " or ".join(f"'{words}'" for words in dict.fromkeys(reversing.values()))
    without = listed(reversing, MOST_NAMES)
    return f"one hospital reverses it: with all it is '{name_choice(choice.chosen)}', and {instead} without {without}"


def _explain_doubt(
    contest: Contest, choice: Choice, metric: str, matters: float
) -> str:
    """Why clusters that were not chosen may be worth it; empty if a gain that matters is excluded.

    Args:
        contest: the candidates and what was measured of them.
        choice: what was chosen.
        metric: what was measured.
        matters: the smallest mean gain that matters.
    """
    clustered = choice.clustered
    if clustered is None or choice.chosen.clusters:
        return ""
    lost = [
        challenge for challenge in choice.challenges if challenge.entrant == clustered
    ]
    unmet = [challenge for challenge in lost if not challenge.wins]
    if choice.chosen != choice.one or not unmet:
        apart = contest.compare_tests(clustered, choice.chosen)
        unmet = [Challenge(clustered, choice.chosen, apart)]
    challenge = unmet[0]
    if challenge.apart.high <= matters:
        return ""
    return (
        f"{clustered.title} may be better than {challenge.reference.title} by up to {figure(challenge.apart.high)} of "
        f"{plain(metric, 60)}, and {figure(matters)} matters; {_suggest_more(challenge.apart, matters)}"
    )


def _suggest_more(apart: Comparison, matters: float) -> str:
    """How many hospitals would tell a gain from none, or exclude a gain that matters."""
    half = apart.high - apart.gain
    reach = max(apart.gain, matters - apart.gain)
    needed = math.ceil(apart.hospitals * (half / reach) ** 2)
    if apart.hospitals < needed <= comparison.MOST_TIMES * apart.hospitals:
        return f"about {needed} hospitals such as these would tell"
    return "more hospitals, or more patients at each, would tell"


def _too_few(basis: Mapping[str, Basis], fewest: int) -> str:
    """Why the samples cannot decide; empty if they can."""
    deciding = sum(rests.deciding for rests in basis.values())
    if deciding >= fewest:
        return ""
    kind = basis["test"].kind
    samples = "validation and test samples"
    if kind:
        samples += f" {kind}" if kind.startswith("with") else f" that are {kind}"
    return f"{deciding} {samples} are too few, {fewest} are needed (--fewest-events)"


def _no_better_than_naming(best: Sequence[Measured], metric: str) -> str:
    """Why an accuracy says nothing: naming the most frequent class everywhere has it, too."""
    if not is_accuracy(metric):
        return ""
    namings = [(measured, majority(measured)) for measured in best]
    leads = [
        comparison.difference(measured, naming)
        for measured, naming in namings
        if naming is not None
    ]
    if not leads or any(lead.low > 0 for lead in leads):
        return ""
    top = max(leads, key=lambda lead: lead.gain)
    naming = f"naming the most frequent class everywhere, {figure(top.reference)}"
    by = f"{signed(top.gain)}, 95 % interval {signed(top.low)} to {signed(top.high)}"
    way_out = "judge by another key_metric, such as loss or auroc"
    return f"accuracy {figure(top.mean)} is no better than {naming} ({by}); {way_out}"
