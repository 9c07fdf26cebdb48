# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""From a data source to the participants of one site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cfl_flare.config import from_dict, require
from cfl_flare.data.partitions import PARTITIONS, Partition, partition
from cfl_flare.data.sources import DataSource, Samples, checked, normalised
from cfl_flare.errors import ConfigError


@dataclass(frozen=True)
class ParticipantData:
    """One participant's samples, normalised, float32.

    Attributes:
        name: its name.
        train: what it trains on.
        test: what it is measured on.
        group: its true group in a simulation, else None.
    """

    name: str
    train: Samples
    test: Samples
    group: int | None = None


def build_partition(spec: Mapping[str, Any]) -> Partition:
    """The partition of a job: ``{"partition": "dirichlet", "alpha": 0.1}``.

    Raises:
        ConfigError: an unknown rule or setting, or a value out of its range.
    """
    settings = dict(spec)
    name = settings.pop("partition", None)
    if name not in PARTITIONS:
        raise ConfigError(f"partition {name!r} is unknown; there are {', '.join(PARTITIONS)}")
    return from_dict(PARTITIONS[name], settings, f"partition {name}")


@dataclass(frozen=True)
class DataConfig:
    """How the participants of a run get their data.

    Attributes:
        participants: in a simulation, how many share the source's samples; None at real sites, where each site is one
            participant with all that its own source reads.
        partition: the rule of the simulation; None at real sites.
        seed: of the partition.
        min_samples: fewest training samples of a participant.
    """

    participants: int | None = None
    partition: Mapping[str, Any] | None = None
    seed: int = 0
    min_samples: int = 8

    def __post_init__(self) -> None:
        where = "data"
        require(
            (self.participants is None) == (self.partition is None),
            f"{where}: participants = {self.participants} and partition = {self.partition} belong together: give both "
            "to simulate participants from one pooled set, neither where each site has its own data",
        )
        require(self.min_samples >= 1, f"{where}: min_samples = {self.min_samples} should be >= 1")
        if self.partition is not None:
            rule = build_partition(self.partition)
            require(
                isinstance(self.participants, int) and self.participants >= 1,
                f"{where}: participants = {self.participants!r} should be a whole number >= 1",
            )
            rule.check(self.participants or 0)

    def host(self, source: DataSource, site: str, index: int, sites: int) -> list[ParticipantData]:
        """The participants that a site hosts: its block of a simulation's, or itself.

        Args:
            source: what the site reads.
            site: its name.
            index: its place among the sites, from 0.
            sites: how many sites there are.

        Raises:
            DataError: the samples cannot be read, are unsound, or too few.
        """
        train, test = checked(source.load(), f"data {type(source).__name__}")
        if self.partition is None or self.participants is None:
            require(
                len(train) >= self.min_samples,
                f"data: {site} has {len(train)} training samples, fewer than min_samples = {self.min_samples}",
            )
            return [_prepared(site, train, test, None)]
        rule = build_partition(self.partition)
        mine, tests = partition(train, test, rule, self.participants, self.seed, self.min_samples)
        classes = int(max(train.y.max(), test.y.max())) + 1
        truth = rule.truth(self.participants)
        first, last = index * self.participants // sites, (index + 1) * self.participants // sites
        width = len(str(self.participants - 1))
        hosted = []
        for i in range(first, last):
            own = [
                rule.alter(s.take(idx), truth[i], classes, self.seed) for s, idx in ((train, mine[i]), (test, tests[i]))
            ]
            hosted.append(_prepared(f"p{i:0{width}d}", own[0], own[1], truth[i]))
        return hosted


def _prepared(name: str, train: Samples, test: Samples, group: int | None) -> ParticipantData:
    return ParticipantData(name, Samples(normalised(train.x), train.y), Samples(normalised(test.x), test.y), group)
