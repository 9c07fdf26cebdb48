# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""From a data source to the participants of one site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cfl_flare.core.config import check_types, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.seeds import stream
from cfl_flare.data.deal import dealt
from cfl_flare.data.indicator_samples import drawn
from cfl_flare.data.partitions import build_partition
from cfl_flare.data.report import PartitionReport, participant_names, report_of
from cfl_flare.data.samples import DataSource, Samples, normalised, read


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


@dataclass(frozen=True)
class DataConfig:
    """How the participants of a run get their data.

    Attributes:
        participants: in a simulation, how many share the source's samples; None at real sites, where each site is one
            participant with all that its own source reads.
        partition: the rule of the simulation; None at real sites.
        seed: of the partition.
        min_samples: fewest training samples of a participant.
        indicator_samples: training samples of each class that a simulation takes out before it deals the others out:
            no participant has them, and a server whose method compares predictions does.
        unseen: how many of a simulation's participants are held back from the training, to join afterwards: a share in
            [0.0, 1.0), or a count.
    """

    participants: int | None = None
    partition: Mapping[str, Any] | None = None
    seed: int = 0
    min_samples: int = 8
    indicator_samples: int = 0
    unseen: float | int = 0

    def __post_init__(self) -> None:
        where = "data"
        check_types(self, where)
        require(self.seed >= 0, f"{where}: seed = {self.seed} should be >= 0")
        require(
            (self.participants is None) == (self.partition is None),
            f"{where}: participants = {self.participants} and partition = {self.partition} belong together: give both "
            "to simulate participants from one pooled set, neither where each site has its own data",
        )
        require(self.min_samples >= 1, f"{where}: min_samples = {self.min_samples} should be >= 1")
        held = self.indicator_samples
        require(held >= 0, f"{where}: indicator_samples = {held} should be >= 0")
        require(
            not held or self.partition is not None,
            f"{where}: indicator_samples = {held} can be taken out of a simulation's data only; where each site has "
            "its own, give the method an indicator_file",
        )
        if self.partition is not None:
            require(
                isinstance(self.participants, int) and self.participants >= 1,
                f"{where}: participants = {self.participants!r} should be a whole number >= 1",
            )
            build_partition(self.partition).check(self.participants or 0)
        self._check_unseen(where)

    def _check_unseen(self, where: str) -> None:
        unseen, participants = self.unseen, self.participants
        share = 0 <= unseen < 1 if isinstance(unseen, float) else unseen >= 0
        require(share, f"{where}: unseen = {unseen} should be a share in [0.0, 1.0) or a count")
        if unseen:
            require(
                participants is not None,
                f"{where}: unseen = {unseen} participants can be held back in a simulation only; a site that was not "
                "in training joins by 'cfl-flare onboard'",
            )
            left = f"leaves none of {participants} participants to train; hold back fewer"
            require(bool(self.names), f"{where}: unseen = {unseen} {left}")

    @property
    def names(self) -> list[str]:
        """The participants of a simulation that train, by name; none where nobody knows them beforehand."""
        every = participant_names(self.participants or 0)
        return [every[i] for i in self._places(unseen=False)]

    @property
    def who_trains(self) -> str:
        """How many participants of a simulation train, for messages: ``participants = 24``."""
        every = f"participants = {self.participants}"
        return f"the {len(self.names)} of {every} that train" if self.unseen else every

    def _places(self, unseen: bool) -> list[int]:
        """The places of those who are held back, or of the others; the seed alone decides."""
        count = self.participants or 0
        held = max(1, round(self.unseen * count)) if isinstance(self.unseen, float) and self.unseen else self.unseen
        drawn_out = set(stream(self.seed, "unseen").permutation(count)[: int(held)].tolist())
        return [i for i in range(count) if (i in drawn_out) == unseen]

    def host(self, source: DataSource, site: str, index: int, sites: int) -> list[ParticipantData]:
        """The participants that a site hosts: its block of those of a simulation that train, or itself.

        Args:
            source: what the site reads.
            site: its name.
            index: its place among the sites, from 0.
            sites: how many sites there are.

        Raises:
            DataError: the samples cannot be read, are unsound, or too few.
        """
        train, test = read(source, f"data {type(source).__name__}")
        if self.partition is None or self.participants is None:
            require(
                len(train) >= self.min_samples,
                f"data: {site} has {len(train)} training samples, fewer than min_samples = {self.min_samples}; "
                "lower that",
            )
            return [_prepared(site, train, test, None)]
        places = self._places(unseen=False)
        return self._deal_to(places[index * len(places) // sites : (index + 1) * len(places) // sites], train, test)

    def newcomers(self, source: DataSource) -> list[ParticipantData]:
        """The participants of a simulation that are held back from the training.

        Args:
            source: what is dealt out.

        Raises:
            DataError: the samples cannot be read, are unsound, or too few.
        """
        places = self._places(unseen=True)
        return self._deal_to(places, *read(source, f"data {type(source).__name__}")) if places else []

    def _deal_to(self, places: list[int], train: Samples, test: Samples) -> list[ParticipantData]:
        """The participants of a simulation at these places."""
        assert self.partition is not None and self.participants is not None
        rule, train = build_partition(self.partition), self._without_indicator(train)
        deal = dealt(train, test, rule, self.participants, self.seed, self.min_samples)
        classes = int(max(train.y.max(), test.y.max())) + 1
        names = participant_names(self.participants)
        people = []
        for i in places:
            group = deal.truth[i]
            own, held_back = (
                rule.alter(samples.take(indices), group, classes, self.seed)
                for samples, indices in ((train, deal.train[i]), (test, deal.test[i]))
            )
            people.append(_prepared(names[i], own, held_back, group))
        return people

    def report(self, source: DataSource) -> PartitionReport:
        """How the source is dealt out to the participants of a simulation.

        Args:
            source: what is dealt out.

        Raises:
            ConfigError: there is no partition.
            DataError: the samples cannot be read, are unsound, or too few.
        """
        if self.partition is None or self.participants is None:
            raise ConfigError("data: without a partition there is nothing to report; each site has its own data")
        train, test = read(source, f"data {type(source).__name__}")
        rule, train = build_partition(self.partition), self._without_indicator(train)
        deal = dealt(train, test, rule, self.participants, self.seed, self.min_samples)
        return report_of(train, test, deal, rule.name)

    def indicator(self, source: DataSource, per_class: int) -> Samples:
        """Those of a simulation's indicator samples that a method compares models on.

        Args:
            source: what the rest of is dealt out.
            per_class: how many of each class; at most ``indicator_samples``.

        Raises:
            DataError: the samples cannot be read, or are unsound.
            ConfigError: a class has too few.
        """
        train, _ = read(source, f"data {type(source).__name__}")
        return train.take(drawn(train.y, per_class, self.seed, "data", spare=1))

    def _without_indicator(self, train: Samples) -> Samples:
        if not self.indicator_samples:
            return train
        held = drawn(train.y, self.indicator_samples, self.seed, "data", spare=1)
        return train.take(np.setdiff1d(np.arange(len(train)), held))


def _prepared(name: str, train: Samples, test: Samples, group: int | None) -> ParticipantData:
    return ParticipantData(name, Samples(normalised(train.x), train.y), Samples(normalised(test.x), test.y), group)
