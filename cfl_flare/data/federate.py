# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""From a data source to the participants of one site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cfl_flare.core.config import as_spec, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.seeds import stream
from cfl_flare.core.settings import Bounds, check_settings, setting
from cfl_flare.data.deal import Deal, Partition, dealt
from cfl_flare.data.indicator_samples import drawn
from cfl_flare.data.labels import outputs_for
from cfl_flare.data.partitions import build_partition
from cfl_flare.data.report import PartitionReport, participant_names, report_of
from cfl_flare.data.samples import DataSource, Samples, normalised, read, taken


@dataclass(frozen=True)
class ParticipantData:
    """One participant's samples, normalised, float32.

    Attributes:
        name: its name.
        train: its training split.
        test: its test split.
        group: its true group in a simulation, else None.
    """

    name: str
    train: Samples
    test: Samples
    group: int | None = None


UNSEEN = Bounds(
    "a share in [0.0, 1.0) or a count", lambda value: 0 <= value < 1 if isinstance(value, float) else value >= 0
)


@dataclass(frozen=True)
class DataConfig:
    """How the participants of a run get their data: in a simulation from one source's samples, else each its own.

    In a simulation ``participants`` and ``partition`` are given. Where each site is one participant, with all that its
    own source reads, they are not. A partition ``"name:setting=value"`` becomes its dictionary.
    """

    participants: int | None = setting(None, help="to simulate: how many participants share the data", ge=1)
    partition: Mapping[str, Any] | str | None = setting(None, help="how it is dealt out, like dirichlet:alpha=0.1")
    seed: int = setting(0, help="of the partition", ge=0)
    min_samples: int = setting(8, help="fewest training samples of a participant", ge=1)
    indicator_samples: int = setting(
        0,
        help="to simulate: samples of each class to compare models on; a recipe's default: what its method needs",
        ge=0,
    )
    unseen: float | int = setting(
        0, help="participants held back from training, to join afterwards: share or count", bounds=UNSEEN
    )

    def __post_init__(self) -> None:
        if isinstance(self.partition, str):
            object.__setattr__(self, "partition", as_spec(self.partition, "partition"))
        check_settings(self, "data")
        require(
            (self.participants is None) == (self.partition is None),
            f"data: participants = {self.participants} and partition = {self.partition} belong together: give both "
            "to simulate participants from one pooled set, neither where each site has its own data",
        )
        if self.partition is not None and self.participants is not None:
            build_partition(self.partition).check(self.participants)
        require(
            not self.indicator_samples or self.partition is not None,
            f"data: indicator_samples = {self.indicator_samples} can be taken out of a simulation's data only; where "
            "each site has its own, give the method an indicator_file",
        )
        if self.unseen:
            require(
                self.participants is not None,
                f"data: unseen = {self.unseen} participants can be held back in a simulation only; a site that was not "
                "in training joins by 'cfl-flare onboard'",
            )
            left = f"leaves none of {self.participants} participants to train; hold back fewer"
            require(bool(self.names), f"data: unseen = {self.unseen} {left}")

    @property
    def names(self) -> list[str]:
        """The names of a simulation's participants that train; empty where they are not known in advance."""
        return [participant_names(self.participants or 0)[i] for i in self._indices(unseen=False)]

    @property
    def who_trains(self) -> str:
        """How many participants of a simulation train, for messages: ``participants = 24``."""
        every = f"participants = {self.participants}"
        return f"the {len(self.names)} of {every} that train" if self.unseen else every

    def _indices(self, unseen: bool) -> list[int]:
        """The indices of the participants that are held back, or of the others; they depend on the seed alone."""
        count = self.participants or 0
        held = max(1, round(self.unseen * count)) if isinstance(self.unseen, float) and self.unseen else self.unseen
        held_back = set(stream(self.seed, "unseen").permutation(count)[: int(held)].tolist())
        return [i for i in range(count) if (i in held_back) == unseen]

    def _block(self, index: int, sites: int) -> list[int]:
        """The indices of a simulation's participants that a site hosts."""
        block = self._indices(unseen=False)
        return block[index * len(block) // sites : (index + 1) * len(block) // sites]

    def names_at(self, site: str, index: int, sites: int) -> list[str]:
        """The names of the participants that `host` gives a site."""
        if self.partition is None:
            return [site]
        return [participant_names(self.participants or 0)[i] for i in self._block(index, sites)]

    def host(self, source: DataSource, site: str, index: int, sites: int) -> list[ParticipantData]:
        """The participants that a site hosts: its block of a simulation's, by its index among the sites, or itself.

        Raises:
            DataError: the samples cannot be read, are not valid, or too few.
        """
        if self.partition is not None:
            return self._people(source, self._block(index, sites))
        train, test = _read(source)
        require(
            len(train) >= self.min_samples,
            f"data: {site} has {len(train)} training samples, fewer than min_samples = {self.min_samples}; lower that",
        )
        return [_prepared(site, train, test, None)]

    def newcomers(self, source: DataSource) -> list[ParticipantData]:
        """A simulation's participants that are held back from training.

        Raises:
            DataError: the samples cannot be read, are not valid, or too few.
        """
        return self._people(source, self._indices(unseen=True)) if self.unseen else []

    def _people(self, source: DataSource, indices: Sequence[int]) -> list[ParticipantData]:
        """The participants of a simulation with these indices."""
        rule, train, test, deal = self._deal(source)
        classes = outputs_for(train.y, test.y)
        names, people = participant_names(len(deal.truth)), []
        for i in indices:
            own, own_test = (
                rule.alter(taken(train, test, parts[i]), deal.truth[i], classes, self.seed)
                for parts in (deal.train, deal.test)
            )
            people.append(_prepared(names[i], own, own_test, deal.truth[i]))
        return people

    def _deal(self, source: DataSource) -> tuple[Partition, Samples, Samples, Deal]:
        """The rule, the samples without the indicator samples, and how the rule deals them out."""
        if self.partition is None or self.participants is None:
            raise ConfigError("data: without a partition there is nothing to report; each site has its own data")
        train, test = _read(source)
        if self.indicator_samples:
            indicator = drawn(train.y, self.indicator_samples, self.seed, "data", spare=1)
            train = train.take(np.setdiff1d(np.arange(len(train)), indicator))
        rule = build_partition(self.partition)
        return rule, train, test, dealt(train, test, rule, self.participants, self.seed, self.min_samples)

    def report(self, source: DataSource) -> PartitionReport:
        """How a source is dealt out to the participants of a simulation.

        Raises:
            ConfigError: there is no partition.
            DataError: the samples cannot be read, are not valid, or too few.
        """
        rule, train, test, deal = self._deal(source)
        return report_of(train, test, deal, rule.name)

    def indicator(self, source: DataSource, per_class: int) -> Samples:
        """The indicator samples on which a simulation's method compares models.

        Args:
            source: the source that the simulation deals out.
            per_class: how many of each class; at most ``indicator_samples``.

        Raises:
            DataError: the samples cannot be read, or are not valid.
            ConfigError: a class has too few.
        """
        train, _ = _read(source)
        return train.take(drawn(train.y, per_class, self.seed, "data", spare=1))


def _read(source: DataSource) -> tuple[Samples, Samples]:
    return read(source, f"data {type(source).__name__}")


def _prepared(name: str, train: Samples, test: Samples, group: int | None) -> ParticipantData:
    return ParticipantData(name, Samples(normalised(train.x), train.y), Samples(normalised(test.x), test.y), group)
