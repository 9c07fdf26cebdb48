# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a study comes to its verdict.

Validation samples choose candidates. Test samples only tell how good the chosen ones are: a clustered candidate is
recommended only if it is clearly better there than the best other one, and than random groups. So choosing among many
candidates makes no test figure too good. If too few samples decide, the measure says nothing, or one hospital reverses
the choice, the study cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cfl_flare.core.errors import ConfigError
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


@dataclass(frozen=True)
class Contest:
    """The candidates that are left, and what hospitals measured of them on test and on validation samples.

    Attributes:
        entrants: one of them is one model for all, and one each hospital alone.
        mode: which end of the metric is best.
        seed: of the draws of hospitals.
        times: how often hospitals are drawn.
    """

    tested: Mapping[str, Measured]
    validated: Mapping[str, Measured]
    entrants: Sequence[Entrant]
    mode: str
    seed: int
    times: int = comparison.TIMES

    @property
    def hospitals(self) -> list[str]:
        splits = (self.tested, self.validated)
        return list(
            dict.fromkeys(
                name
                for split in splits
                for measured in split.values()
                for name in measured
            )
        )

    def without(self, hospital: str) -> Contest:
        """The same with one hospital left out, and hospitals drawn less often."""
        tested, validated = (
            {
                way: comparison.without(measured, hospital)
                for way, measured in split.items()
            }
            for split in (self.tested, self.validated)
        )
        return replace(
            self,
            tested=tested,
            validated=validated,
            times=comparison.left_out_times(len(self.hospitals)),
        )

    def preferred(self, entrants: Sequence[Entrant]) -> Entrant | None:
        """The simplest of those that are not clearly worse than the best one on validation samples; None without any.

        The rule of one standard error (Breiman et al. 1984, sec. 3.4.3) with the interval of the difference in place of
        the error. Fewer models are simpler: one for all, then few clusters, without private layers first, then those
        that each hospital tunes, and last one for each hospital that nobody else trains. One model with private layers
        is still one: with them or without, the better one is taken.
        """
        known = comparison.shared_by_all(
            {entrant.name: self.validated[entrant.name] for entrant in entrants}
        )
        means = {name: self.score(measured) for name, measured in known.items()}
        ranked = sorted(
            entrants, key=lambda entrant: (-means[entrant.name], entrant.private)
        )
        alike = ranked[:1]
        for entrant in ranked[1:]:
            if self.compare(self.validated, ranked[0], entrant).low <= 0:
                alike.append(entrant)
        return min(alike, key=self._burden, default=None)

    def _burden(self, entrant: Entrant) -> tuple[Any, ...]:
        """What hospitals have to run and to check; the least is the simplest."""
        return (
            entrant.name == ALONE,
            entrant.tuned,
            entrant.clusters,
            entrant.clusters and entrant.private,
        )

    @property
    def random(self) -> Entrant | None:
        """The random groups; None if they were dropped."""
        return next((entrant for entrant in self.entrants if entrant.control), None)

    def compare(
        self, split: Mapping[str, Measured], entrant: Entrant, reference: Entrant
    ) -> Comparison:
        return comparison.difference(
            split[entrant.name], split[reference.name], self.mode, self.seed, self.times
        )

    def score(self, measured: Measured) -> float:
        return mean_of(measured, self.mode) * (1 if self.mode == "max" else -1)

    def choice(self) -> Choice:
        """Chooses by validation samples, and judges by test samples."""
        clustered = self.preferred(
            [e for e in self.entrants if e.clusters and not e.control]
        )
        unclustered = [e for e in self.entrants if not e.clusters]
        other = self.preferred(unclustered)
        assert other is not None
        apart = (
            None if clustered is None else self.compare(self.tested, clustered, other)
        )
        alike = (
            clustered
            and self.random
            and self.compare(self.tested, clustered, self.random).low <= 0
        )
        known = comparison.shared_by_all(
            {e.name: self.validated[e.name] for e in unclustered}
        )
        means = {name: self.score(measured) for name, measured in known.items()}
        lead = means.pop(ALONE, 0.0) - max(means.values(), default=0.0)
        cluster, gain = (
            (False, 0.0) if apart is None else (apart.low > 0 and not alike, apart.gain)
        )
        return Choice(clustered, other, cluster, gain, lead)


@dataclass(frozen=True)
class Choice:
    """What the hospitals' numbers say, whether they are enough or not.

    Attributes:
        clustered: the preferred candidate with clusters; None without any.
        other: the preferred one without.
        cluster: whether the first is clearly better on test samples.
        gain: by how much the first is better on test samples; 0 without any.
        lead: by how much training alone is better than the best one model on validation samples.
    """

    clustered: Entrant | None
    other: Entrant
    cluster: bool
    gain: float
    lead: float

    def stands(self, rest: Choice) -> bool:
        """Whether the choice stands against the one without one hospital.

        With fewer hospitals, fewer differences are clear. So a gain stands if it still is clear, or half of it is left.
        That there is none stands if there is no clear one without the hospital.
        """
        if self.cluster:
            return rest.cluster or 2 * rest.gain >= self.gain
        if self.other.name == ALONE and not rest.cluster:
            return 2 * rest.lead >= self.lead
        return self.words == rest.words

    @property
    def words(self) -> str:
        """What to do, whatever the number of clusters and the private layers."""
        return (
            "cluster"
            if self.cluster
            else "training alone"
            if self.other.name == ALONE
            else "one model"
        )


def decide(
    tested: Mapping[str, Measured],
    validated: Mapping[str, Measured],
    entrants: Sequence[Entrant],
    rounds: int,
    metric: str,
    mode: str = "max",
    margin: float | None = None,
    seed: int = 0,
    fewest: int = 0,
    everyone: int | None = None,
) -> Verdict:
    """Chooses by validation samples, and judges by test samples. `Contest` says what the other arguments are.

    Args:
        rounds: after which they were measured.
        metric: what was measured.
        margin: the difference that matters to one hospital; None for the usual one.
        fewest: samples of the rarer class that each split needs, or of any kind if there are no classes.
        everyone: how many hospitals take part; None for those that measured.
    """
    entrants = [entrant for entrant in entrants if entrant.name != PREVALENCE]
    contest = Contest(tested, validated, entrants, mode, seed)
    choice = contest.choice()
    clustered, other = choice.clustered, choice.other
    instead = _without_each(contest, choice)
    reversing = {name: words for name, words in instead.items() if words}
    splits = {"validation": validated[ONE_MODEL], "test": tested[ONE_MODEL]}
    basis = {
        split: Basis.of_measured(measured, everyone)
        for split, measured in splits.items()
    }
    best = [
        tested[entrant.name] for entrant in (clustered, other) if entrant is not None
    ]
    unsure = (
        _too_few(basis, fewest)
        or _no_better_than_naming(best, metric, seed)
        or _one_reverses(choice, reversing)
    )
    unclustered = [entrant for entrant in entrants if not entrant.clusters]
    if unsure:
        other = contest.preferred([e for e in unclustered if e.name != ALONE]) or other
    pairs = (
        []
        if clustered is None
        else [(clustered.name, entrant.name) for entrant in unclustered]
    )
    if clustered is not None and contest.random is not None:
        pairs.append((clustered.name, contest.random.name))
    pairs += [(other.name, name) for name in (ONE_MODEL, ALONE) if name != other.name]
    chosen = (
        clustered if choice.cluster and clustered is not None and not unsure else other
    )
    if PREVALENCE in tested:
        pairs.append((chosen.name, PREVALENCE))
    means = {name: mean_of(measured, mode) for name, measured in tested.items()}
    margin = margin or comparison.usual_margin(metric, means[ONE_MODEL])
    to_one, to_alone = (
        {}
        if chosen.name == name
        else comparison.gains(tested[chosen.name], tested[name], mode, margin)
        for name in (ONE_MODEL, ALONE)
    )
    naming = majority(tested[ONE_MODEL])
    return Verdict(
        metric=metric,
        mode=mode,
        cluster=bool(chosen.clusters),
        chosen=chosen,
        best_clustered=clustered,
        best_other=other,
        rounds=rounds,
        tested=means,
        compared={
            (name, its): comparison.difference(tested[name], tested[its], mode, seed)
            for name, its in pairs
        },
        hospitals=tuple(
            Hospital(name, at.tested, at.value, to_one.get(name), to_alone.get(name))
            for name, at in tested[chosen.name].items()
        ),
        unsure=unsure,
        left_out=len(instead),
        reversed_without=reversing,
        basis=basis,
        margin=margin,
        majority=None if naming is None else mean_of(naming),
        random="" if contest.random is None else contest.random.name,
    )


def _without_each(contest: Contest, choice: Choice) -> dict[str, str]:
    """By hospital, what the choice is without it, if that reverses it."""
    words = dict[str, str]()
    names = contest.hospitals
    for name in names if len(names) > 1 else []:
        try:
            rest = contest.without(name).choice()
            instead = (
                rest.words
                if rest.words != choice.words
                else "less than half of that gain"
            )
            words[name] = "" if choice.stands(rest) else instead
        except ConfigError:  # no other hospital measured two of the candidates
            words[name] = "no choice"
    return words


def _one_reverses(choice: Choice, reversing: Mapping[str, str]) -> str:
    if not reversing:
        return ""
    instead = " or ".join(f"'{words}'" for words in dict.fromkeys(reversing.values()))
    without = listed(reversing, MOST_NAMES)
    return f"one hospital reverses it: with all it is '{choice.words}', and {instead} without {without}"


def _too_few(basis: Mapping[str, Basis], fewest: int) -> str:
    """Why the samples cannot decide; empty if they can, as of the other reasons."""
    for split, rests in basis.items():
        if rests.deciding < fewest:
            kind = (
                ""
                if rests.rarer is None
                else " that are not of the most frequent class"
            )
            return f"{rests.deciding} {split} samples{kind} are too few, {fewest} are needed (--fewest-events)"
    return ""


def _no_better_than_naming(best: Sequence[Measured], metric: str, seed: int) -> str:
    """Why an accuracy says nothing: naming the most frequent class everywhere has it, too."""
    if not is_accuracy(metric):
        return ""
    namings = [(measured, majority(measured)) for measured in best]
    leads = [
        comparison.difference(measured, naming, seed=seed)
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
