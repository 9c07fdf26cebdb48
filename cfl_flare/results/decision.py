# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a study comes to its verdict.

Candidates are chosen by validation samples. Test samples only tell how good what was chosen is, and a clustered
candidate is recommended only if it is clearly better than the best other one there. So choosing among many candidates
makes no test figure too good. Where too few samples decide, the measure says nothing, or one hospital reverses the
choice, the study cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cfl_flare.core.errors import ConfigError
from cfl_flare.results.comparison import (
    TIMES,
    Measured,
    difference,
    gains,
    left_out_times,
    majority,
    mean_of,
    shared_by_all,
    usual_margin,
    without,
)
from cfl_flare.results.verdict import (
    Basis,
    Compared,
    Entrant,
    Hospital,
    Verdict,
    figure,
    is_accuracy,
    listed,
    signed,
)


@dataclass(frozen=True)
class Choice:
    """What the hospitals' numbers say, before it is asked whether they are enough.

    Attributes:
        clustered: the preferred candidate with clusters; None without any.
        other: the preferred one without.
        cluster: whether the first is clearly better on test samples.
        alone: the name of each hospital alone.
        gain: by how much the first is better on test samples; 0 without any.
        lead: by how much training alone is better than the best one model on validation samples.
    """

    clustered: Entrant | None
    other: Entrant
    cluster: bool
    alone: str
    gain: float
    lead: float

    @classmethod
    def of(
        cls,
        tested: Mapping[str, Measured],
        validated: Mapping[str, Measured],
        entrants: Sequence[Entrant],
        mode: str,
        seed: int,
        alone: str,
        times: int = TIMES,
    ) -> Choice:
        """Chooses by validation samples, and judges by test samples; see `decide`."""
        clustered, other = (
            preferred([e for e in entrants if bool(e.clusters) == grouped], validated, mode, seed, alone, times)
            for grouped in (True, False)
        )
        assert other is not None
        apart = clustered and difference(tested[clustered.name], tested[other.name], mode, seed, times)
        cluster, gain = (apart.low > 0, apart.gain) if apart else (False, 0.0)
        known = shared_by_all({one.name: validated[one.name] for one in entrants if not one.clusters})
        means = {name: mean_of(measured, mode) * (1 if mode == "max" else -1) for name, measured in known.items()}
        lead = means.pop(alone, 0.0) - max(means.values(), default=0.0)
        return cls(clustered, other, cluster, alone, gain, lead)

    def stands(self, rest: Choice) -> bool:
        """Whether the choice stands beside what it is without one hospital.

        Of fewer hospitals, less is clear. So a gain stands if it still is clear, or half of it is left. That there is
        none stands if there is no clear one without the hospital.
        """
        if self.cluster:
            return rest.cluster or 2 * rest.gain >= self.gain
        if self.other.name == self.alone and not rest.cluster:
            return 2 * rest.lead >= self.lead
        return self.words == rest.words

    @property
    def words(self) -> str:
        """What to do, whatever the number of clusters and the private layers."""
        return "cluster" if self.cluster else "training alone" if self.other.name == self.alone else "one model"


def decide(
    tested: Mapping[str, Measured],
    validated: Mapping[str, Measured],
    entrants: Sequence[Entrant],
    rounds: int,
    metric: str,
    mode: str = "max",
    margin: float | None = None,
    seed: int = 0,
    one_model: str = "fedavg",
    alone: str = "local",
    fewest: int = 0,
    everyone: int | None = None,
) -> Verdict:
    """Chooses by validation samples, and judges by test samples.

    Args:
        tested: what the candidates that are left measured on test samples.
        validated: the same on validation samples.
        entrants: these candidates; one of them is one model for all, and one each hospital alone.
        rounds: after which they were measured.
        metric: what was measured.
        mode: which end of it is best.
        margin: the difference that matters to one hospital; None for the usual one.
        seed: of the draws of hospitals.
        one_model: the name of one model for all.
        alone: the name of each hospital alone.
        fewest: samples of the rarer class that each split needs, or of any kind where there are no classes.
        everyone: how many hospitals take part; None for those that measured.
    """
    unclustered = [entrant for entrant in entrants if not entrant.clusters]
    choice = Choice.of(tested, validated, entrants, mode, seed, alone)
    clustered, other = choice.clustered, choice.other
    others = _without_each(choice, tested, validated, entrants, mode, seed)
    reversing = {name: words for name, words in others.items() if words}
    splits = {"validation": validated[one_model], "test": tested[one_model]}
    basis = {split: Basis.of_measured(measured, everyone) for split, measured in splits.items()}
    best = [tested[one.name] for one in (clustered, other) if one is not None]
    unsure = _too_few(basis, fewest) or _no_better_than_naming(best, metric, seed) or _one_reverses(choice, reversing)
    if unsure:
        other = preferred([e for e in unclustered if e.name != alone], validated, mode, seed, alone) or other
    pairs = [] if clustered is None else [(clustered.name, entrant.name) for entrant in unclustered]
    pairs += [(other.name, name) for name in (one_model, alone) if name != other.name]
    compared = tuple(Compared(one, its, difference(tested[one], tested[its], mode, seed)) for one, its in pairs)
    chosen = clustered if choice.cluster and clustered is not None and not unsure else other
    measured, means = tested[chosen.name], {name: mean_of(of, mode) for name, of in tested.items()}
    margin = margin or usual_margin(metric, means[one_model])
    to_one, to_alone = (
        {} if chosen.name == name else gains(measured, tested[name], mode, margin) for name in (one_model, alone)
    )
    hospitals = [Hospital(n, at.tested, at.value, to_one.get(n), to_alone.get(n)) for n, at in measured.items()]
    return Verdict(
        metric=metric,
        mode=mode,
        cluster=bool(chosen.clusters),
        chosen=chosen,
        best_clustered=clustered,
        best_other=other,
        rounds=rounds,
        tested=means,
        compared=compared,
        hospitals=tuple(hospitals),
        unsure=unsure,
        left_out=len(others),
        reversed_without=reversing,
        basis=basis,
        margin=margin,
        majority=None if (naming := majority(tested[one_model])) is None else mean_of(naming),
        one_model=one_model,
        alone=alone,
    )


def _without_each(
    choice: Choice,
    tested: Mapping[str, Measured],
    validated: Mapping[str, Measured],
    entrants: Sequence[Entrant],
    mode: str,
    seed: int,
) -> dict[str, str]:
    """By hospital, what the choice is without it, if that reverses it; of one there is nothing to leave out."""
    names = list(dict.fromkeys(name for split in (tested, validated) for of in split.values() for name in of))
    words = dict[str, str]()
    for name in names if len(names) > 1 else []:
        rest = [{way: without(of, name) for way, of in split.items()} for split in (tested, validated)]
        try:
            times = left_out_times(len(names))
            left = Choice.of(rest[0], rest[1], entrants, mode, seed, choice.alone, times)
            instead = left.words if left.words != choice.words else "less than half of that gain"
            words[name] = "" if choice.stands(left) else instead
        except ConfigError:  # no other hospital measured two of the candidates
            words[name] = "no choice"
    return words


def _one_reverses(choice: Choice, reversing: Mapping[str, str]) -> str:
    """Why a choice does not stand that one hospital reverses; empty if none does."""
    if not reversing:
        return ""
    instead = " or ".join(f"'{words}'" for words in dict.fromkeys(reversing.values()))
    return f"one hospital reverses it: with all it is '{choice.words}', and {instead} without {listed([*reversing])}"


def _too_few(basis: Mapping[str, Basis], fewest: int) -> str:
    """Why the samples cannot decide; empty if they can."""
    for split, rests in basis.items():
        if rests.deciding < fewest:
            kind = "" if rests.rarer is None else " that are not of the most frequent class"
            return f"{rests.deciding} {split} samples{kind} are too few, {fewest} are needed (--fewest-events)"
    return ""


def _no_better_than_naming(best: Sequence[Measured], metric: str, seed: int) -> str:
    """Why an accuracy says nothing: whoever names the most frequent class everywhere has it, too; empty if not so.

    Args:
        best: what the best candidates measured.
        metric: what it is.
        seed: of the draws of hospitals.
    """
    if not is_accuracy(metric):
        return ""
    namings = [(measured, majority(measured)) for measured in best]
    found = [difference(measured, naming, seed=seed) for measured, naming in namings if naming is not None]
    if not found or any(one.low > 0 for one in found):
        return ""
    top = max(found, key=lambda one: one.gain)
    return (
        f"accuracy {figure(top.one)} is no better than naming the most frequent class everywhere, "
        f"{figure(top.other)} ({signed(top.gain)}, 95 % interval {signed(top.low)} to {signed(top.high)}); "
        "judge by another key_metric, such as loss or auroc"
    )


def preferred(
    entrants: Sequence[Entrant],
    validated: Mapping[str, Measured],
    mode: str = "max",
    seed: int = 0,
    alone: str = "local",
    times: int = TIMES,
) -> Entrant | None:
    """The simplest of those that are not clearly worse than the best one on validation samples; None without any.

    The rule of one standard error (Breiman et al. 1984, sec. 3.4.3) with the interval of the difference in place of the
    error. Fewer models are simpler: one for all, then few clusters, without private layers first, and last one for each
    hospital. One model with private layers is still one: with them or without, the better one is taken.
    """
    sign, known = (1 if mode == "max" else -1), shared_by_all({one.name: validated[one.name] for one in entrants})
    means = {name: sign * mean_of(measured, mode) for name, measured in known.items()}
    ranked = sorted(entrants, key=lambda one: (-means[one.name], one.private))
    alike = ranked[:1]
    best = validated[ranked[0].name] if ranked else {}
    alike += [one for one in ranked[1:] if difference(best, validated[one.name], mode, seed, times).low <= 0]
    return min(alike, key=lambda one: (one.name == alone, one.clusters, one.clusters and one.private), default=None)
