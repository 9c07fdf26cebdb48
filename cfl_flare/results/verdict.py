# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a study says: whether to cluster, into how many groups, and which hospitals gain.

`cfl_flare.results.decision` says how it comes to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cfl_flare.core.text import plain
from cfl_flare.results.comparison import (
    CHANCE,
    GAINS,
    LOSES,
    MARGIN,
    UNKNOWN,
    Difference,
    Gain,
    Measured,
)
from cfl_flare.results.key_metric import ACCURACY, Metric

# With fewer hospitals, an interval over them says little of others.
FEW_HOSPITALS = 10
# A sentence lists this many names.
MOST_NAMES = 6
# A margin that is given is remarked on from this part of one model's loss on.
WIDE = 0.1


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
    """

    one: str
    other: str
    found: Difference


@dataclass(frozen=True)
class Basis:
    """What a comparison rests on.

    Attributes:
        hospitals: those where the metric is defined.
        of: all that take part.
        samples: that were measured there.
        rarer: those that are not of the most frequent class; None where classes are not known, or there are none.
    """

    hospitals: int
    of: int
    samples: int
    rarer: int | None

    @classmethod
    def of_measured(cls, measured: Measured, everyone: int | None) -> Basis:
        """That of one candidate, of so many hospitals."""
        totals = [sum(counts) for counts in zip(*(own.classes for own in measured.values()))]
        samples = sum(own.tested for own in measured.values())
        return cls(len(measured), everyone or len(measured), samples, sum(totals) - max(totals) if totals else None)

    @property
    def deciding(self) -> int:
        """The samples that count: those of the rarer class, where that is known."""
        return self.samples if self.rarer is None else self.rarer

    def text(self, split: str) -> str:
        """``9 of 12 hospitals with 120 test samples, 31 of them not of the most frequent class``."""
        among = "" if self.rarer is None else f", {self.rarer} of them not of the most frequent class"
        return f"{self.hospitals} of {self.of} hospitals with {self.samples} {split} samples{among}"


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
        unsure: why the study cannot tell whether to cluster; empty where it can.
        left_out: how many hospitals were left out in turn, and the choice made again without each.
        reversed_without: the hospitals without which the choice is another, and which.
        basis: on what it rests, ``validation`` and ``test``.
        margin: the difference that matters to one hospital.
        majority: the accuracy of naming the most frequent class everywhere; None where it is not known.
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
    unsure: str = ""
    left_out: int = 0
    reversed_without: Mapping[str, str] = field(default_factory=dict)
    basis: Mapping[str, Basis] = field(default_factory=dict)
    margin: float = MARGIN
    majority: float | None = None
    one_model: str = field(default="fedavg", repr=False)
    alone: str = field(default="local", repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, with the sentences."""
        return {**asdict(self), "sentences": self.sentences()}

    def sentences(self) -> list[str]:
        """What to do, and how sure that is."""
        said = [self._advice()]
        if self.basis:
            rest = [self.basis[split].text(split) for split in ("validation", "test")]
            said.append(f"Chosen by {rest[0]}; judged by {rest[1]}.")
        if self.left_out and not self.reversed_without:
            said.append(f"Without any one of {self.left_out} hospitals the choice is the same.")
        if self.majority is not None and is_accuracy(self.metric):
            said.append(f"Naming the most frequent class everywhere has accuracy {figure(self.majority)}.")
        for name, words in ((self.one_model, "one model for all"), (self.alone, "each hospital alone")):
            found = self._pair(self.chosen.name, name)
            if found is not None:
                said.append(f"Against {words}: {self._numbers(found)}.")
        said += self._who(self.one_model) + self._who(self.alone)
        measured = max((one.found.hospitals for one in self.compared), default=0)
        if 0 < measured < FEW_HOSPITALS:
            said.append(f"With {measured} hospitals, the intervals say little of other hospitals.")
        level = abs(self.tested[self.one_model])
        if self.mode == "min" and self.margin > WIDE * level:
            share = f"{self.margin / level:.0%} of" if level else "above"
            said.append(
                f"The margin {self.margin:g} is {share} one model's {plain(self.metric, 60)}, {figure(level)}: "
                "hospitals within chance may differ by that much. Leave --margin out for a twentieth of it."
            )
        return said

    def _advice(self) -> str:
        alone = self.chosen.name == self.alone
        way = "let each hospital train alone" if alone else f"train {self.chosen.title}"
        if self.unsure:
            return f"Cannot tell whether to cluster: {self.unsure}. Until then, {way}."
        if self.cluster:
            return f"Cluster into {self.chosen.clusters}: {way}."
        advice = f"Do not cluster: {way}."
        if self.best_clustered is None:
            return f"{advice} All candidates with clusters were clearly worse on validation samples."
        found = self._pair(self.best_clustered.name, self.best_other.name)
        assert found is not None
        worse = "clearly worse" if found.found.clear else "no clear gain over it"
        return f"{advice} {self.best_clustered.title} is {worse}: {self._numbers(found)}."

    def _pair(self, one: str, other: str) -> Compared | None:
        return next((c for c in self.compared if (c.one, c.other) == (one, other)), None)

    def _numbers(self, pair: Compared) -> str:
        """``accuracy 0.84 against 0.79 (+0.05, 95 % interval +0.03 to +0.07, clear)``."""
        found = pair.found
        sign = 1 if self.mode == "max" else -1
        low, high = sorted((sign * found.low, sign * found.high))
        by = f"{signed(sign * found.gain)}, 95 % interval {signed(low)} to {signed(high)}"
        clear = "clear" if found.clear else "within chance"
        return f"{plain(self.metric, 60)} {figure(found.one)} against {figure(found.other)} ({by}, {clear})"

    def _who(self, reference: str) -> list[str]:
        """Which hospitals gain and lose against a reference."""
        one = reference == self.one_model
        found = {h.name: gain for h in self.hospitals if (gain := h.to_one if one else h.to_alone) is not None}
        if not found:
            return []
        by = {says: [n for n, g in found.items() if g.says == says] for says in (GAINS, LOSES, CHANCE, UNKNOWN)}
        if one:
            parts = [f"{len(by[GAINS])} of {len(found)} hospitals gain over one model"]
            parts += [f"{listed(by[LOSES])} {'loses' if len(by[LOSES]) == 1 else 'lose'}"] if by[LOSES] else []
            parts += [f"{len(by[CHANCE])} within chance"] if by[CHANCE] else []
        else:
            parts = [f"{len(by[GAINS])} of {len(found)} hospitals are better off than alone"]
            parts += [f"{listed(by[LOSES])} better off alone"] if by[LOSES] else []
            parts += [f"{len(by[CHANCE])} within chance"] if by[CHANCE] else []
        if by[UNKNOWN]:
            needed = sorted(n for name in by[UNKNOWN] if (n := found[name].needed) is not None)
            samples = f"{needed[0]} to {needed[-1]}" if needed and needed[0] < needed[-1] else f"{(needed or [0])[0]}"
            way = f" (about {samples} test samples each would do)" if needed else ""
            parts.append(f"{len(by[UNKNOWN])} cannot tell{way}")
        return ["; ".join(parts) + "."]


def is_accuracy(metric: str) -> bool:
    """Whether candidates are compared by accuracy."""
    return Metric(metric).of_participants.name == ACCURACY


def figure(value: float) -> str:
    """Three digits after the point, unless they say nothing of so small or large a number."""
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"


def signed(value: float) -> str:
    """A figure with its sign."""
    return ("+" if value > 0 else "") + figure(value)


def listed(names: Sequence[str]) -> str:
    """The first `MOST_NAMES` names, and how many others there are."""
    shown = [plain(name, 60) for name in names[:MOST_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
