# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a study says: whether to cluster, into how many groups, and which hospitals gain; and its file, ``study.json``.

`cfl_flare.results.decision` comes to the verdict. The file holds the study's settings, its comparisons, what it cost,
and the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import below, read_json
from cfl_flare.core.text import plain
from cfl_flare.results import schema
from cfl_flare.results.comparison import (
    CHANCE,
    GAINS,
    LOSES,
    MARGIN,
    UNKNOWN,
    Comparison,
    Gain,
    Measured,
)
from cfl_flare.results.metrics import ACCURACY, Metric
from cfl_flare.results.remarks import figure, listed

STUDY, VERSION = "study.json", 1
# The candidates that each study has: each hospital alone, and one model for all.
ALONE, ONE_MODEL = "local", "fedavg"
# What a study holds every candidate against: the same prediction for everyone.
PREVALENCE = "prevalence"
# The folder of the run that looked for the number of clusters.
SEARCH = "number-of-clusters"
# With fewer hospitals, an interval over them says little of others.
FEW_HOSPITALS = 10
# A sentence lists this many names.
MOST_NAMES = 6
# The share of one model's loss from which on a sentence remarks on the margin that the user gave.
WIDE = 0.1


@dataclass(frozen=True)
class Entrant:
    """A candidate, as a verdict names it.

    Attributes:
        name: of its folder: ``wecfl-k3-norm``.
        title: in a sentence: ``wecfl (K=3) with private norm layers``.
        clusters: their number; 0 if it does not cluster.
        private: whether hospitals have layers of their own.
        tuned: whether each hospital trains its model on before it predicts.
        control: whether its clusters are random groups.
    """

    name: str
    title: str
    clusters: int = 0
    private: bool = False
    tuned: bool = False
    control: bool = False

    def after(self, rounds: int, everything: int) -> Entrant:
        """The candidate as it was after these rounds, which its title names unless they are all."""
        if rounds == everything:
            return self
        return replace(self, title=f"{self.title} for {rounds} rounds")

    @property
    def kind(self) -> int:
        """Simple kinds have low numbers: 0 for one model, 1 for clusters, 2 for a model of each hospital's own."""
        if self.tuned or self.name == ALONE:
            return 2
        return 1 if self.clusters else 0


@dataclass(frozen=True)
class Basis:
    """How much a comparison rests on.

    Attributes:
        hospitals: those that have the metric, ``of`` all that take part.
        samples: the samples that they measured.
        rarer: the samples that are not of the most frequent class; None if classes are not known, or there are none.
        events: the samples with an event, under survival; None otherwise.
    """

    hospitals: int
    of: int
    samples: int
    rarer: int | None
    events: int | None = None

    @classmethod
    def of_measured(cls, measured: Measured, everyone: int | None) -> Basis:
        """Count what one candidate was measured on.

        Args:
            measured: by hospital.
            everyone: how many hospitals take part; None for those that measured.
        """
        people = measured.values()
        by_class = zip(*(hospital.classes for hospital in people))
        totals = [sum(counts) for counts in by_class]
        events = [hospital.events for hospital in people if hospital.events is not None]
        return cls(
            len(measured),
            everyone or len(measured),
            sum(hospital.tested for hospital in people),
            sum(totals) - max(totals) if totals else None,
            sum(events) if events else None,
        )

    @property
    def deciding(self) -> int:
        """The samples that count for the smallest number: events, those of rarer classes, or all."""
        if self.events is not None:
            return self.events
        return self.samples if self.rarer is None else self.rarer

    @property
    def kind(self) -> str:
        """What the samples that count are, behind their number or the word samples."""
        if self.events is not None:
            return "with an event"
        return "" if self.rarer is None else "not of the most frequent class"

    def text(self, split: str) -> str:
        """``9 of 12 hospitals with 120 test samples, 31 of them not of the most frequent class``."""
        among = f", {self.deciding} of them {self.kind}" if self.kind else ""
        return f"{self.hospitals} of {self.of} hospitals with {self.samples} {split} samples{among}"


@dataclass(frozen=True)
class Hospital:
    """What the chosen candidate brings one hospital.

    Attributes:
        tested: its test samples.
        value: the chosen candidate's metric there; None if it is not defined.
        to_one: its gain over one model for all; None if that was chosen.
        to_alone: its gain over training alone; None if that was chosen.
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
        cluster: whether to cluster.
        chosen: what to train.
        best_clustered: the best candidate with clusters; None if all were dropped.
        best_other: the best one without.
        rounds: after which the candidates were compared.
        tested: each measured candidate's mean over the hospitals' test samples.
        compared: the comparisons of pairs of candidates on which the verdict rests, by their names.
        unsure: why the study cannot tell whether to cluster; empty if it can.
        left_out: how many hospitals were left out in turn, and the choice made again without each.
        reversed_without: the hospitals without which the choice is another, and which.
        basis: how much it rests on, ``validation`` and ``test``.
        margin: the difference that matters to one hospital.
        majority: the accuracy of naming the most frequent class everywhere; None if it is not known.
        random: the name of the random groups; empty if they were dropped.
    """

    metric: str
    mode: str
    cluster: bool
    chosen: Entrant
    best_clustered: Entrant | None
    best_other: Entrant
    rounds: int
    tested: Mapping[str, float]
    compared: Mapping[tuple[str, str], Comparison]
    hospitals: tuple[Hospital, ...] = ()
    unsure: str = ""
    left_out: int = 0
    reversed_without: Mapping[str, str] = field(default_factory=dict)
    basis: Mapping[str, Basis] = field(default_factory=dict)
    margin: float = MARGIN
    majority: float | None = None
    random: str = field(default="", repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, with the sentences."""
        compared = []
        for (name, reference), comparison in self.compared.items():
            values = asdict(comparison)
            means = {"one": values.pop("mean"), "other": values.pop("reference")}
            compared.append(
                {"one": name, "other": reference, "found": {**means, **values}}
            )
        return {**asdict(self), "compared": compared, "sentences": self.sentences()}

    def sentences(self) -> list[str]:
        """What to do, and how sure that is."""
        lines = [*self._warn_of_prevalence(), self._advice()]
        if self.basis:
            chosen, judged = (
                self.basis[split].text(split) for split in ("validation", "test")
            )
            lines.append(f"Chosen by {chosen}; judged by {judged}.")
        if self.left_out and not self.reversed_without:
            lines.append(
                f"Without any one of {self.left_out} hospitals the choice is the same."
            )
        if self.majority is not None and is_accuracy(self.metric):
            lines.append(
                f"Naming the most frequent class everywhere has accuracy {figure(self.majority)}."
            )
        references = {
            PREVALENCE: "the same prediction for everyone, by the prevalence alone",
            ONE_MODEL: "one model for all",
            ALONE: "each hospital alone",
        }
        for name, words in {
            **references,
            self.random: "random groups of the same sizes",
        }.items():
            comparison = self.compared.get((self.chosen.name, name))
            if comparison is not None:
                lines.append(f"Against {words}: {self._numbers(comparison)}.")
        lines += self._name_bounded() + self._who(ONE_MODEL) + self._who(ALONE)
        measured = max(
            (comparison.hospitals for comparison in self.compared.values()), default=0
        )
        if 0 < measured < FEW_HOSPITALS:
            lines.append(
                f"With {measured} hospitals, the intervals say little of other hospitals."
            )
        level = abs(self.tested[ONE_MODEL])
        if self.mode == "min" and self.margin > WIDE * level:
            share = f"{self.margin / level:.0%} of" if level else "above"
            lines.append(
                f"The margin {self.margin:g} is {share} one model's {plain(self.metric, 60)}, {figure(level)}: "
                "hospitals within chance may differ by that much. Leave --margin out for a twentieth of it."
            )
        return lines

    def _warn_of_prevalence(self) -> list[str]:
        """That the model is not clearly better than the prevalence, if it is not.

        A gain that matters is no reason to warn: with few hospitals, hardly any is clear.
        """
        comparison = self.compared.get((self.chosen.name, PREVALENCE))
        if comparison is None or comparison.low > 0 or comparison.gain > self.margin:
            return []
        numbers = self._numbers(comparison)
        same = "the same prediction for everyone, by the prevalence alone"
        why = f"{self.chosen.title} is not clearly better than {same}: {numbers}"
        return [f"Use none of these models yet: {why}."]

    def _name_bounded(self) -> list[str]:
        """The hospitals whose differences count as less than they measured."""
        decisive = {self.chosen.name}
        if self.best_clustered is not None:
            decisive.add(self.best_clustered.name)
        names = dict[str, None]()
        for (entrant, _), comparison in self.compared.items():
            if entrant in decisive:
                names |= dict.fromkeys(comparison.bounded)
        if not names:
            return []
        where = listed(names, MOST_NAMES)
        return [
            f"A difference counts as less than was measured at {where}: it is far outside the other hospitals'."
        ]

    def _advice(self) -> str:
        way = (
            "let each hospital train alone"
            if self.chosen.name == ALONE
            else f"train {self.chosen.title}"
        )
        if self.unsure:
            return f"Cannot tell whether to cluster: {self.unsure}. Until then, {way}."
        if self.cluster:
            return f"Cluster into {self.chosen.clusters}: {way}."
        advice = f"Do not cluster: {way}."
        if self.best_clustered is None:
            return f"{advice} No candidate with clusters was left to compare."
        comparison = self.compared[self.best_clustered.name, self.best_other.name]
        if comparison.low > 0:  # so that random groups decide
            numbers = self._numbers(
                self.compared[self.best_clustered.name, self.random]
            )
            return f"{advice} {self.best_clustered.title} is not clearly better than random groups: {numbers}."
        worse = "clearly worse" if comparison.clear else "no clear gain over it"
        return f"{advice} {self.best_clustered.title} is {worse}: {self._numbers(comparison)}."

    def _numbers(self, comparison: Comparison) -> str:
        """``accuracy 0.84 against 0.79 (+0.05, 95 % interval +0.03 to +0.07, clear)``."""
        sign = 1 if self.mode == "max" else -1
        low, high = sorted((sign * comparison.low, sign * comparison.high))
        by = f"{signed(sign * comparison.gain)}, 95 % interval {signed(low)} to {signed(high)}"
        clear = "clear" if comparison.clear else "within chance"
        means = f"{figure(comparison.mean)} against {figure(comparison.reference)}"
        return f"{plain(self.metric, 60)} {means} ({by}, {clear})"

    def _who(self, reference: str) -> list[str]:
        """Which hospitals gain and lose against a reference."""
        one_model = reference == ONE_MODEL
        gains = {
            h.name: gain
            for h in self.hospitals
            if (gain := h.to_one if one_model else h.to_alone) is not None
        }
        if not gains:
            return []
        names = {
            says: [n for n, g in gains.items() if g.says == says]
            for says in (GAINS, LOSES, CHANCE, UNKNOWN)
        }
        better, worse = "are better off than alone", "better off alone"
        if one_model:
            better, worse = (
                "gain over one model",
                "loses" if len(names[LOSES]) == 1 else "lose",
            )
        parts = [f"{len(names[GAINS])} of {len(gains)} hospitals {better}"]
        parts += [f"{listed(names[LOSES], MOST_NAMES)} {worse}"] if names[LOSES] else []
        parts += [f"{len(names[CHANCE])} within chance"] if names[CHANCE] else []
        if names[UNKNOWN]:
            needed = [gains[name].needed for name in names[UNKNOWN]]
            parts.append(f"{len(needed)} cannot tell{_suggest_samples(needed)}")
        return ["; ".join(parts) + "."]


def _suggest_samples(needed: Sequence[int | None]) -> str:
    """How many test samples would tell, at hospitals where a number within reach would."""
    known = sorted(count for count in needed if count is not None)
    if not known:
        return ""
    ends = " to ".join(map(str, dict.fromkeys((known[0], known[-1]))))
    if len(known) == len(needed):
        return f" (about {ends} test samples each would do)"
    return f" (at {len(known)} of them about {ends} test samples would do)"


def is_accuracy(metric: str) -> bool:
    return Metric(metric).of_participants.name == ACCURACY


def signed(value: float) -> str:
    return ("+" if value > 0 else "") + figure(value)


SENTENCE = schema.described(
    "a sentence", lambda value: isinstance(value, str) and len(value) <= 5000
)
NUMBERS = schema.dict_of(schema.number)
COUNTS = schema.list_of(schema.count)
GAIN = schema.object_with(
    **dict.fromkeys(("gain", "low", "high"), schema.maybe(schema.number)),
    says=schema.text,
    needed=schema.maybe(schema.count),
)
HOSPITAL = schema.object_with(
    name=schema.text,
    tested=schema.count,
    value=schema.maybe(schema.number),
    **dict.fromkeys(("to_one", "to_alone"), schema.maybe(GAIN)),
)
VERDICT = schema.object_with(
    metric=schema.text,
    cluster=schema.flag,
    chosen=schema.object_with(
        name=schema.text, title=schema.text, clusters=schema.count, private=schema.flag
    ),
    rounds=schema.count,
    tested=NUMBERS,
    hospitals=schema.list_of(HOSPITAL),
    sentences=schema.list_of(SENTENCE),
)
RUNG = schema.object_with(
    rounds=schema.count,
    means=NUMBERS,
    dropped=schema.dict_of(SENTENCE),
    seconds=schema.number,
)
COST = schema.object_with(
    rounds=schema.count, everything=schema.count, seconds=schema.number
)
FIELDS: schema.Fields = {
    "version": schema.version(VERSION),
    "settings": schema.json_object,
    "rounds": schema.count,
    "found": schema.maybe(schema.count),
    "words": SENTENCE,
    "set": COUNTS,
    "assignment": schema.dict_of(schema.count),
    "searched": schema.count,
    "search_seconds": schema.number,
    "judged": schema.json_object,
    "rungs": schema.described("comparisons of candidates", schema.list_of(RUNG)),
    "titles": schema.dict_of(schema.text),
    "cost": schema.described("rounds and seconds", COST),
    "verdict": schema.described("a verdict", schema.maybe(VERDICT)),
}


def load_study(folder: str | Path) -> dict[str, Any]:
    """What a study has found so far; a ConfigError if the folder holds none, or its file is damaged."""
    path = Path(folder) / STUDY
    if not path.is_file():
        raise ConfigError(f"{folder} holds no study: there is no {STUDY}")
    try:
        content = schema.checked(read_json(path), str(path), FIELDS)
    except FileError as error:
        raise ConfigError(f"{error}; start the study again in a new folder") from error
    return content


def find_study(folder: str | Path) -> Path | None:
    """The folder of the only study in or below a folder; None if there is none. A ConfigError if there are several."""
    folders = sorted(path.parent for path in below(Path(folder)) if path.name == STUDY)
    if len(folders) > 1:
        raise ConfigError(
            f"{folder} holds several studies: {', '.join(map(str, folders))}; name one"
        )
    return folders[0] if folders else None
