# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a study says: whether to cluster, into how many groups, and which hospitals gain.

Candidates are chosen by validation samples. Test samples only tell how good what was chosen is, and a clustered
candidate is recommended only if it is clearly better than the best other one there. So choosing among many candidates
makes no test figure too good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cfl_flare.core.text import plain
from cfl_flare.results.comparison import (
    ALPHA,
    CHANCE,
    GAINS,
    LOSES,
    UNKNOWN,
    Difference,
    Gain,
    Measured,
    difference,
    gains,
    holm,
    mean_of,
    shared_by_all,
)

# With fewer hospitals, an interval over them says little of others.
FEW_HOSPITALS = 10
# So many names are listed in a sentence.
MOST_NAMES = 6


@dataclass(frozen=True)
class Entrant:
    """A candidate, as a verdict names it.

    Attributes:
        name: of its folder: ``wecfl-k3-norm``.
        title: in a sentence: ``wecfl (K=3) with private norm layers``.
        clusters: their number; 0 if it does not cluster.
        private: whether hospitals have layers of their own.
    """

    name: str
    title: str
    clusters: int = 0
    private: bool = False


@dataclass(frozen=True)
class Compared:
    """Two candidates on test samples.

    Attributes:
        one: the first's name.
        other: the second's.
        found: by how much the first is better.
        p: corrected for the number of comparisons of the verdict.
    """

    one: str
    other: str
    found: Difference
    p: float

    @property
    def clear(self) -> bool:
        """Whether the first is clearly better."""
        return self.p < ALPHA and self.found.gain > 0


@dataclass(frozen=True)
class Hospital:
    """What the chosen candidate brings one hospital.

    Attributes:
        name: its name.
        tested: its test samples.
        value: the chosen candidate's metric there; None if it is not defined.
        to_one: what it gains over one model for all; None if that was chosen.
        to_alone: what it gains over training alone; None if that was chosen.
    """

    name: str
    tested: int
    value: float | None
    to_one: Gain | None
    to_alone: Gain | None


@dataclass(frozen=True)
class Verdict:
    """What a study found.

    Attributes:
        metric: by which candidates were compared.
        mode: which end of it is best.
        cluster: whether to cluster.
        chosen: what to train.
        best_clustered: the best candidate with clusters; None if all were dropped.
        best_other: the best one without.
        rounds: after which the candidates were compared.
        tested: each measured candidate's mean over the hospitals' test samples.
        compared: the comparisons on which the verdict rests.
        hospitals: what the chosen candidate brings each hospital.
    """

    metric: str
    mode: str
    cluster: bool
    chosen: Entrant
    best_clustered: Entrant | None
    best_other: Entrant
    rounds: int
    tested: Mapping[str, float]
    compared: tuple[Compared, ...]
    hospitals: tuple[Hospital, ...] = ()
    one_model: str = field(default="fedavg", repr=False)
    alone: str = field(default="local", repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, with the sentences."""
        return {**asdict(self), "sentences": self.sentences()}

    def sentences(self) -> list[str]:
        """What to do, and how sure that is."""
        said = [self._advice()]
        for name, words in ((self.one_model, "one model for all"), (self.alone, "each hospital alone")):
            found = self._pair(self.chosen.name, name)
            if found is not None:
                said.append(f"Against {words}: {self._numbers(found)}.")
        said += self._who(self.one_model) + self._who(self.alone)
        measured = max((one.found.hospitals for one in self.compared), default=0)
        if 0 < measured < FEW_HOSPITALS:
            said.append(f"With {measured} hospitals, the intervals say little of other hospitals.")
        return said

    def _advice(self) -> str:
        if self.cluster:
            return f"Cluster into {self.chosen.clusters}: train {self.chosen.title}."
        alone = self.chosen.name == self.alone
        advice = f"Do not cluster: {'let each hospital train alone' if alone else 'train ' + self.chosen.title}."
        if self.best_clustered is None:
            return f"{advice} All candidates with clusters were clearly worse on validation samples."
        found = self._pair(self.best_clustered.name, self.best_other.name)
        assert found is not None
        worse = "clearly worse" if found.p < ALPHA else "no clear gain over it"
        return f"{advice} {self.best_clustered.title} is {worse}: {self._numbers(found)}."

    def _pair(self, one: str, other: str) -> Compared | None:
        return next((c for c in self.compared if (c.one, c.other) == (one, other)), None)

    def _numbers(self, pair: Compared) -> str:
        """``accuracy 0.84 against 0.79 (+0.05, 95 % interval +0.03 to +0.07)``."""
        found = pair.found
        sign = 1 if self.mode == "max" else -1
        low, high = sorted((sign * found.low, sign * found.high))
        by = f"{_signed(sign * found.gain)}, 95 % interval {_signed(low)} to {_signed(high)}"
        clear = "clear" if pair.p < ALPHA else "within chance"
        return f"{plain(self.metric, 60)} {_figure(found.one)} against {_figure(found.other)} ({by}, {clear})"

    def _who(self, reference: str) -> list[str]:
        """Which hospitals gain and lose against a reference."""
        one = reference == self.one_model
        found = {h.name: gain for h in self.hospitals if (gain := h.to_one if one else h.to_alone) is not None}
        if not found:
            return []
        by = {says: [n for n, g in found.items() if g.says == says] for says in (GAINS, LOSES, CHANCE, UNKNOWN)}
        if one:
            parts = [f"{len(by[GAINS])} of {len(found)} hospitals gain over one model"]
            parts += [f"{_named(by[LOSES])} {'loses' if len(by[LOSES]) == 1 else 'lose'}"] if by[LOSES] else []
            parts += [f"{len(by[CHANCE])} within chance"] if by[CHANCE] else []
        else:
            parts = [f"{len(by[GAINS])} of {len(found)} hospitals are better off than alone"]
            parts += [f"{_named(by[LOSES])} better off alone"] if by[LOSES] else []
            parts += [f"{len(by[CHANCE])} within chance"] if by[CHANCE] else []
        if by[UNKNOWN]:
            needed = sorted(n for name in by[UNKNOWN] if (n := found[name].needed) is not None)
            samples = f"{needed[0]} to {needed[-1]}" if needed and needed[0] < needed[-1] else f"{(needed or [0])[0]}"
            way = f" (they need about {samples} test samples each)" if needed else ""
            parts.append(f"{len(by[UNKNOWN])} cannot tell{way}")
        return ["; ".join(parts) + "."]


def decide(
    tested: Mapping[str, Measured],
    validated: Mapping[str, Measured],
    entrants: Sequence[Entrant],
    rounds: int,
    metric: str,
    mode: str = "max",
    margin: float = 0.05,
    seed: int = 0,
    one_model: str = "fedavg",
    alone: str = "local",
) -> Verdict:
    """Chooses by validation samples, and judges by test samples.

    Args:
        tested: what the candidates that are left measured on test samples.
        validated: the same on validation samples.
        entrants: these candidates; one of them is one model for all, and one each hospital alone.
        rounds: after which they were measured.
        metric: what was measured.
        mode: which end of it is best.
        margin: the difference that matters to one hospital.
        seed: of the draws of hospitals.
        one_model: the name of one model for all.
        alone: the name of each hospital alone.
    """
    without = [one for one in entrants if not one.clusters]
    clustered = preferred([one for one in entrants if one.clusters], validated, mode, seed)
    other = preferred(without, validated, mode, seed)
    assert other is not None
    pairs = [] if clustered is None else [(clustered.name, one.name) for one in without]
    pairs += [(other.name, name) for name in (one_model, alone) if name != other.name]
    found = [difference(tested[one], tested[its], mode, seed) for one, its in pairs]
    corrected = holm([one.p for one in found])
    compared = tuple(Compared(*pair, one, p) for pair, one, p in zip(pairs, found, corrected))
    cluster = clustered is not None and any(
        c.clear for c in compared if (c.one, c.other) == (clustered.name, other.name)
    )
    chosen = clustered if cluster and clustered is not None else other
    own = tested[chosen.name]
    to_one, to_alone = (
        {} if chosen.name == name else gains(own, tested[name], mode, margin) for name in (one_model, alone)
    )
    hospitals = [Hospital(n, one.tested, one.value, to_one.get(n), to_alone.get(n)) for n, one in own.items()]
    means = {name: mean_of(measured) for name, measured in tested.items()}
    return Verdict(
        metric, mode, cluster, chosen, clustered, other, rounds, means, compared, tuple(hospitals), one_model, alone
    )


def preferred(
    entrants: Sequence[Entrant], validated: Mapping[str, Measured], mode: str = "max", seed: int = 0
) -> Entrant | None:
    """The simplest of those that are not clearly worse than the best one on validation samples; None of none.

    The rule of one standard error (Breiman et al. 1984, sec. 3.4.3) with the interval of the difference in place of the
    error. Fewer clusters are simpler, then no private layers; of those that are as simple, the best.
    """
    sign, known = (1 if mode == "max" else -1), shared_by_all({one.name: validated[one.name] for one in entrants})
    means = {name: sign * mean_of(measured) for name, measured in known.items()}
    ranked = sorted(entrants, key=lambda one: -means[one.name])
    alike = ranked[:1]
    alike += [
        one for one in ranked[1:] if difference(validated[ranked[0].name], validated[one.name], mode, seed).low <= 0
    ]
    return min(alike, key=lambda one: (one.clusters, one.private), default=None)


def _figure(value: float) -> str:
    """Three digits after the point, unless they say nothing of so small or large a number."""
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + _figure(value)


def _named(names: Sequence[str]) -> str:
    shown = [plain(name, 60) for name in names[:MOST_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
