# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Partition rules by name, and the rules that use the source's keys or modify another rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from cfl_flare.core.config import as_spec
from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.core.settings import setting
from cfl_flare.core.text import unique_names
from cfl_flare.data.deal import Partition, Pool, filled
from cfl_flare.data.groups import (
    ClassGroups,
    ClusterDirichlet,
    ClusterNClass,
    LabelPermutation,
    Scanner,
    Skewed,
)
from cfl_flare.data.label_skew import (
    IID,
    LDA,
    Dirichlet,
    HeterogeneityTiers,
    NClass,
    shares_of,
)
from cfl_flare.data.samples import Samples


@dataclass(frozen=True)
class Natural(Partition):
    """Each participant has all samples of one user or site, as named in the source's key column (LEAF).

    Set ``key`` in the source (npz, table) to name the column. By default all users with enough training samples take
    part. One without a test sample trains and is not measured. If ``participants`` are fewer, they are drawn among
    those with enough training samples and a test sample. The others' samples stay unused.
    """

    name: ClassVar[str] = "natural"
    every: ClassVar[bool] = True

    @staticmethod
    def owners(
        train: Samples, test: Samples
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The users, sorted, and the place of each training and test sample's user among them."""
        if train.key is None or test.key is None:
            raise DataError(
                "partition natural: the samples have no key; set key in the data source (npz or table)"
            )
        key, test_key = train.key, test.key
        if key.dtype.kind != test_key.dtype.kind:
            key, test_key = key.astype(str), test_key.astype(str)
        users = np.union1d(key, test_key)
        return users, np.searchsorted(users, key), np.searchsorted(users, test_key)

    @classmethod
    def sizes(cls, train: Samples, test: Samples) -> tuple[np.ndarray, np.ndarray]:
        """The number of each user's training samples, and of its test samples."""
        users, *numbers = cls.owners(train, test)
        counts, tests = (np.bincount(part, minlength=len(users)) for part in numbers)
        return counts, tests

    @staticmethod
    def names(train: Samples, parts: Sequence[np.ndarray]) -> list[str]:
        """The participants' names: those of the owners of these training samples."""
        assert train.key is not None
        return unique_names(str(train.key[part[0]]) for part in parts)

    @classmethod
    def able(cls, train: Samples, test: Samples, min_samples: int) -> int:
        """How many users have enough training samples; a DataError if none has."""
        counts, _ = cls.sizes(train, test)
        able = int((counts >= min_samples).sum())
        none = f"none of {len(counts)} keys has {min_samples} training samples, the largest has {counts.max()}"
        cls.require(able > 0, f"{none}; lower min_samples", DataError)
        return able

    @classmethod
    def described(cls, train: Samples, test: Samples, min_samples: int) -> str:
        """How many users take part, and what happens to the others."""
        counts, tests = cls.sizes(train, test)
        small = counts < min_samples
        line = f"natural: {(~small).sum()} of {len(counts)} keys take part"
        if small.any():
            unused = int((counts + tests)[small].sum())
            line += f"; {small.sum()} have fewer than min_samples = {min_samples} training samples, and their {unused} "
            line += "samples stay unused"
        untested = int(((tests == 0) & ~small).sum())
        return line + (
            f"; {untested} have no test sample: they train, and are not measured"
            if untested
            else ""
        )

    def strata(self, train: Samples, test: Samples) -> tuple[np.ndarray, np.ndarray]:
        return self.owners(train, test)[1:]

    def truth_of(
        self, counts: np.ndarray, train: Samples, parts: Sequence[np.ndarray]
    ) -> list[int | None]:
        """The group that the source names for each participant; a DataError if its samples are of several."""
        if train.group is None:
            return [None] * len(parts)
        truth: list[int | None] = []
        for part in parts:
            groups = np.unique(train.group[part])
            if len(groups) > 1:
                assert train.key is not None
                several = f"the samples of key {str(train.key[part[0]])!r} are of {len(groups)} groups"
                raise DataError(
                    f"partition natural: {several}; name a column that has one group for each key"
                )
            truth.append(int(groups[0]))
        return truth

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray:
        able = np.flatnonzero(pool.train >= pool.min_samples)
        if participants < len(able):
            able = np.flatnonzero((pool.train >= pool.min_samples) & (pool.test >= 1))
        few = f"{len(able)} of {pool.classes} keys have {pool.min_samples} training samples and a test sample, fewer"
        way_out = "take fewer, or a lower min_samples"
        self.require(
            len(able) >= participants,
            f"{few} than participants = {participants}; {way_out}",
            DataError,
        )
        shares = np.zeros((participants, pool.classes))
        shares[
            np.arange(participants),
            np.sort(rng.choice(able, participants, replace=False)),
        ] = 1
        return shares


@dataclass(frozen=True)
class Outer(Partition):
    """A rule that modifies another one, the label rule. The settings of both are given together.

    The label rule determines each participant's mix of labels, the true groups, and changes of the samples.
    """

    rule: str | Mapping[str, Any] = setting(
        "iid", help='the label rule, by name or as {"partition": name, ...settings}'
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = "should be a rule's name; give its settings together with it"
        self.require(
            isinstance(self.rule, (str, Mapping)), f"rule = {self.rule!r} {wanted}"
        )
        is_for_labels = not isinstance(self.inner, (Outer, Natural))
        self.require(
            is_for_labels,
            f"rule = {self.inner.name!r} is not a rule for labels; name one that is",
        )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Partition:
        names = {field.name for field in fields(cls)}
        mine = {key: value for key, value in settings.items() if key in names}
        if mine.keys() != settings.keys():
            rule = mine.get("rule", cls.rule)
            rule = rule if isinstance(rule, Mapping) else {"partition": rule}
            mine["rule"] = {
                **rule,
                **{key: value for key, value in settings.items() if key not in names},
            }
        return super().of(mine)

    @property
    def inner(self) -> Partition:
        return build_partition(
            {"partition": self.rule} if isinstance(self.rule, str) else self.rule
        )

    def check(self, participants: int) -> None:
        self.inner.check(participants)

    def strata(self, train: Samples, test: Samples) -> tuple[np.ndarray, np.ndarray]:
        return self.inner.strata(train, test)


@dataclass(frozen=True)
class Quantity(Outer):
    """Participants' sizes are drawn from lo to hi, their labels from the samples of the label rule (FedAC 5.1).

    For example ``quantity:lo=50,hi=350,rule=n_class,n=3``. Samples beyond the drawn sizes stay unused.
    """

    name: ClassVar[str] = "quantity"
    advice: ClassVar[str] = (
        "the drawn sizes may be more than the rule's classes hold; take fewer participants, lower lo and hi, a milder "
        "rule or a lower min_samples"
    )

    lo: int = setting(50, help="fewest training samples of a participant")
    hi: int = setting(350, help="most training samples of a participant")

    def __post_init__(self) -> None:
        self.require(
            1 <= self.lo <= self.hi,
            f"lo = {self.lo}, hi = {self.hi} should be 1 <= lo <= hi",
        )
        super().__post_init__()

    def truth(self, participants: int) -> list[int | None]:
        return self.inner.truth(participants)

    def truth_of(
        self, counts: np.ndarray, train: Samples, parts: Sequence[np.ndarray]
    ) -> list[int | None]:
        return self.inner.truth_of(counts, train, parts)

    def alter(
        self, samples: Samples, group: int | None, classes: int, seed: int
    ) -> Samples:
        return self.inner.alter(samples, group, classes, seed)

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray | None:
        needed, there = self.lo * participants, pool.train.sum()
        need = f"{participants} participants of lo = {self.lo} training samples or more need {needed}"
        way_out = "take fewer participants or a lower lo"
        self.require(
            needed <= there, f"{need}, the data has {there}; {way_out}", DataError
        )
        inner = self.inner.shares(participants, pool, rng)
        sizes = rng.integers(self.lo, self.hi, size=participants, endpoint=True)
        if inner is None or sizes.sum() > pool.train.sum():
            return None
        return shares_of(filled(inner * pool.train, sizes, pool.train, rng), pool)


@dataclass(frozen=True)
class Crossed(Outer):
    """Groups by labels, each split among devices: hospitals differ in their patients and in their devices.

    Each group of the label rule is split, in the order of the participants, among devices. These alter images as the
    groups of `Scanner` do. ``crossed:scanners=2,rule=cluster_dirichlet,groups=2`` has four true groups.
    """

    name: ClassVar[str] = "crossed"

    rule: str | Mapping[str, Any] = setting(
        "cluster_dirichlet",
        help='a rule with true groups, by name or as {"partition": name, ...settings}',
    )
    scanners: int = setting(2, help="number of devices", ge=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        has_none = f"rule = {self.inner.name!r} has no groups by labels that are known in advance"
        way_out = "take cluster_dirichlet, cluster_n_class or label_permutation"
        self.require(
            isinstance(self.inner, (Skewed, LabelPermutation)), f"{has_none}; {way_out}"
        )

    def check(self, participants: int) -> None:
        super().check(participants)
        groups = [g for g in self.inner.truth(participants) if g is not None]
        smallest = min(groups.count(g) for g in set(groups))
        excess = f"scanners = {self.scanners} are more than the {smallest} participants of the smallest group"
        self.require(self.scanners <= smallest, f"{excess}; take fewer")

    def truth(self, participants: int) -> list[int | None]:
        inner = [g or 0 for g in self.inner.truth(participants)]
        rank = [
            inner[:i].count(g) for i, g in enumerate(inner)
        ]  # of a participant in its group
        return [
            g * self.scanners + r * self.scanners // inner.count(g)
            for g, r in zip(inner, rank)
        ]

    def shares(
        self, participants: int, pool: Pool, rng: np.random.Generator
    ) -> np.ndarray | None:
        return self.inner.shares(participants, pool, rng)

    def alter(
        self, samples: Samples, group: int | None, classes: int, seed: int
    ) -> Samples:
        by_labels, device = divmod(group or 0, self.scanners)
        altered = self.inner.alter(samples, by_labels, classes, seed)
        return Scanner(groups=self.scanners).alter(altered, device, classes, seed)


OF_PARTICIPANTS = (IID, Dirichlet, NClass, LDA, HeterogeneityTiers, Quantity, Natural)
OF_GROUPS = (
    ClusterDirichlet,
    ClusterNClass,
    ClassGroups,
    Crossed,
    Scanner,
    LabelPermutation,
)
PARTITIONS: dict[str, type[Partition]] = {
    rule.name: rule for rule in (*OF_PARTICIPANTS, *OF_GROUPS)
}


def build_partition(spec: Mapping[str, Any] | str) -> Partition:
    """The partition of a job: ``{"partition": "dirichlet", "alpha": 0.1}`` or ``"dirichlet:alpha=0.1"``."""
    settings = as_spec(spec, "partition")
    name = settings.pop("partition", None)
    if not isinstance(name, str) or name not in PARTITIONS:
        raise ConfigError(
            f"partition {name!r} is unknown; there are {', '.join(PARTITIONS)}"
        )
    return PARTITIONS[name].of(settings)
