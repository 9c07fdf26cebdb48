# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""From a data source to the participants of one site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from cfl_flare.core.config import as_spec, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.seeds import stream
from cfl_flare.core.settings import Bounds, check_settings, setting
from cfl_flare.core.text import shown, unique_names
from cfl_flare.data.deal import Deal, Partition, dealt, dealt_by_patient
from cfl_flare.data.labels import outputs_for
from cfl_flare.data.loading import read
from cfl_flare.data.partitions import Natural, build_partition
from cfl_flare.data.patients import CHOICES_HELP, settle_patients
from cfl_flare.data.pixels import check_range
from cfl_flare.data.preparation import Preparation
from cfl_flare.data.samples import DataSource, Samples, check_values, normalised
from cfl_flare.data.splits import draw_indicator, split_by_class
from cfl_flare.data.summary import (
    ParticipantData,
    PartitionReport,
    participant_names,
    report_of,
)

T = TypeVar("T")
UNSEEN = Bounds(
    "a share in [0.0, 1.0) or a count",
    lambda value: 0 <= value < 1 if isinstance(value, float) else value >= 0,
)


@dataclass(frozen=True)
class DataConfig:
    """How the participants of a run get their data: in a simulation from one source's samples, else each its own.

    A simulation needs ``participants`` and ``partition``. Without them each site is one participant, with all that its
    own source reads. A partition ``"name:setting=value"`` becomes its dictionary. With ``natural``, the participants
    are all owners of samples, and `resolved` counts and names them.

    A method that takes a source raises a DataError if its samples cannot be read, are not valid, or are too few.

    Attributes:
        owners: the names of all participants, if samples go to their owners and `resolved` has named them; else they
            are ``p0``, ``p1``, ...
    """

    participants: int | None = setting(
        None,
        help="to simulate: how many participants share the data; with natural, default all owners",
        ge=1,
        le=100_000,
    )
    partition: Mapping[str, Any] | str | None = setting(
        None, help="how it is dealt out, like dirichlet:alpha=0.1"
    )
    seed: int = setting(0, help="of the partition", ge=0)
    min_samples: int = setting(8, help="fewest training samples of a participant", ge=1)
    indicator_samples: int = setting(
        0,
        help="to simulate: samples of each class to compare models on; a recipe's default: what its method needs",
        ge=0,
    )
    validation: float = setting(
        0.0,
        help="share of each participant's training samples that is set aside, to choose settings by",
        ge=0,
        lt=1,
    )
    measured_on: Literal["test", "validation"] = setting(
        "test",
        help="which samples models are measured on; with validation, the test samples are not used",
    )
    unseen: float | int = setting(
        0,
        help="participants held back from training, to join afterwards: share or count",
        bounds=UNSEEN,
    )
    train_groups: tuple[int, ...] = setting(
        (),
        help="to simulate: only participants of these true groups train, such as 0 and 1 of heterogeneity_tiers; the "
        "others join afterwards",
    )
    without: tuple[str, ...] = setting(
        (), help="to simulate: participants that take no part, by their names"
    )
    repeated_patients: Literal["refuse", "first", "drop", "allow"] = setting(
        "refuse", help=CHOICES_HELP
    )
    owners: Sequence[str] = ()  # no setting: it is in the data

    def __post_init__(self) -> None:
        if isinstance(self.partition, str):
            object.__setattr__(self, "partition", as_spec(self.partition, "partition"))
        check_settings(self, "data")
        reason = "but no samples are set aside for it; give validation a share, as 0.25"
        require(
            self.measured_on == "test" or self.validation > 0,
            f"data: measured_on = 'validation', {reason}",
        )
        object.__setattr__(self, "owners", list(self.owners))
        object.__setattr__(self, "without", tuple(self.without))
        are_names = all(isinstance(name, str) for name in self.owners) and len(
            self.owners
        ) in (0, self.participants)
        wanted = f"owners = {shown(self.owners)} should be the names of all participants, as a run writes them"
        require(
            are_names and unique_names(self.owners) == self.owners, f"data: {wanted}"
        )
        if self.participants is None and self._natural:
            return
        both = f"participants = {self.participants} and partition = {self.partition} belong together"
        way_out = "give both to simulate participants from one pooled set, neither where each site has its own data"
        require(
            (self.participants is None) == (self.partition is None),
            f"data: {both}: {way_out}",
        )
        if self.partition is not None and self.participants is not None:
            build_partition(self.partition).check(self.participants)
        reason = f"indicator_samples = {self.indicator_samples} can be taken out of a simulation's data only"
        way_out = "where each site has its own, give the method an indicator_file"
        require(
            not self.indicator_samples or self.partition is not None,
            f"data: {reason}; {way_out}",
        )
        strange = sorted({*self.without} - {*self._everyone})
        there = (
            "the participants are "
            + ", ".join(self._everyone[:5])
            + ", ..." * (len(self._everyone) > 5)
        )
        there = (
            there
            if self._everyone
            else "participants can be left out in a simulation only"
        )
        require(
            not strange,
            f"data: without = {shown(strange[:3])}: there is no such participant; {there}",
        )
        require(
            not self.without or bool(self.names),
            "data: without leaves no participant to train; leave out fewer",
        )
        reason = (
            f"unseen = {self.unseen} participants can be held back in a simulation only"
        )
        way_out = "a site that was not in training joins by 'cfl-flare onboard'"
        require(
            not self.unseen or self.participants is not None,
            f"data: {reason}; {way_out}",
        )
        reason = f"unseen = {self.unseen} leaves none of {self.participants} participants to train"
        require(not self.unseen or bool(self.names), f"data: {reason}; hold back fewer")
        self._other_groups()

    def check_public(self, source: DataSource | None) -> None:
        """Raises a ConfigError if a site's own data would be dealt out: the sizes of its parts tell its labels."""
        reason = f"partition = {shown(self.partition)} deals out what {type(source).__name__} reads, the site's own"
        way_out = (
            "leave participants and partition out, as each real site is one participant"
        )
        is_dealt = (
            self.partition is not None and source is not None and not source.public
        )
        require(not is_dealt, f"data: {reason}; that is for simulations: {way_out}")

    @property
    def holds_back(self) -> bool:
        """Whether participants are held back from training."""
        return bool(self.unseen or self.train_groups)

    def _other_groups(self) -> set[int]:
        """The indices of the participants whose true group does not train.

        Raises:
            ConfigError: a group is not there, or the partition has none.
        """
        if not self.train_groups:
            return set()
        where = f"data: train_groups = {list(self.train_groups)}"
        rule = None if self.partition is None else build_partition(self.partition)
        truth = [] if rule is None else rule.truth(self.participants or 0)
        groups = sorted({group for group in truth if group is not None})
        require(
            bool(groups),
            f"{where}: the partition has no groups that are known in advance; leave it out",
        )
        there = ", ".join(map(str, groups))
        known = {*self.train_groups} <= {*groups}
        require(known, f"{where}: the groups are {there}; name some of them")
        return {i for i, group in enumerate(truth) if group not in self.train_groups}

    @property
    def _natural(self) -> bool:
        return self.partition is not None and isinstance(
            build_partition(self.partition), Natural
        )

    def resolved(self, source: DataSource) -> DataConfig:
        """With the number and the names of the participants, where samples go to their owners; else as it is."""
        if self.owners or not self._natural:
            return self
        _, train, _, deal = self._deal(source)
        return replace(
            self, participants=len(deal.train), owners=Natural.names(train, deal.train)
        )

    @property
    def _everyone(self) -> Sequence[str]:
        return self.owners or participant_names(self.participants or 0)

    @property
    def names(self) -> list[str]:
        """The names of a simulation's participants that train; empty where they are not known in advance."""
        return [self._everyone[i] for i in self._indices(unseen=False)]

    @property
    def who_trains(self) -> str:
        """How many participants of a simulation train, for messages: ``participants = 24``."""
        every = f"participants = {self.participants}"
        return (
            f"the {len(self.names)} of {every} that train"
            if self.holds_back or self.without
            else every
        )

    def _indices(self, unseen: bool) -> list[int]:
        """The indices of the participants that are held back, or of the others; they depend on the seed alone."""
        count = self.participants or 0
        is_share = isinstance(self.unseen, float) and self.unseen > 0
        unseen_count = (
            max(1, round(self.unseen * count)) if is_share else int(self.unseen)
        )
        held_back = set(
            stream(self.seed, "unseen").permutation(count)[:unseen_count].tolist()
        )
        held_back |= self._other_groups()
        absent = {i for i, name in enumerate(self._everyone) if name in self.without}
        return [
            i for i in range(count) if (i in held_back) == unseen and i not in absent
        ]

    def names_at(self, site: str, index: int, sites: int) -> list[str]:
        """The names of the participants that `host` gives a site."""
        return [site] if self.partition is None else _block(self.names, index, sites)

    def host(
        self, source: DataSource, site: str, index: int, sites: int
    ) -> list[ParticipantData]:
        """The participants that a site hosts: its block of a simulation's, by its index among the sites, or itself."""
        if self.partition is not None:
            return self._people(
                source, _block(self._indices(unseen=False), index, sites)
            )
        train, test, _ = self._read(source)
        few = f"{site} has {len(train)} training samples, fewer than min_samples = {self.min_samples}"
        require(len(train) >= self.min_samples, f"data: {few}; lower that")
        return [self._prepared(source, site, train, test)]

    def label_of(self, source: DataSource, data: ParticipantData) -> str | None:
        """The group that a participant names: what its site's source says, or the number of its true group."""
        if self.partition is None:
            return source.group_label
        return None if data.group is None else str(data.group)

    def _read(self, source: DataSource) -> tuple[Samples, Samples, list[str]]:
        """A source's samples in which each patient has one place, and lines on the patients that had several.

        At a real site, class numbers stay as they are: only the labels of all sites together could be numbered anew.
        """
        train, test = read(source, alone=self.partition is None)
        if not source.prepares:
            _check_pixels(source, "data", train, test)
        return settle_patients(
            train, test, self.repeated_patients, self._natural, "data"
        )

    def newcomers(self, source: DataSource) -> list[ParticipantData]:
        """A simulation's participants that are held back from training."""
        return (
            self._people(source, self._indices(unseen=True)) if self.holds_back else []
        )

    def _people(
        self, source: DataSource, indices: Sequence[int]
    ) -> list[ParticipantData]:
        rule, train, test, deal = self._deal(source)
        classes = max(outputs_for(train.y, test.y), len(train.classes))
        streams, people = participant_names(len(deal.truth)), []
        names = self.owners or streams
        others = "data: the owners of the samples are not those that the run names; name the data that it was made with"
        require(
            not self.owners or Natural.names(train, deal.train) == self.owners, others
        )
        everyone = None
        if source.prepares:
            everyone = taken(
                train,
                test,
                np.sort(
                    np.concatenate([deal.train[i] for i in self._indices(unseen=False)])
                ),
            )
        for i in indices:
            mine, my_tests = (
                rule.alter(
                    taken(train, test, parts[i]), deal.truth[i], classes, self.seed
                )
                for parts in (deal.train, deal.test)
            )
            participant = self._prepared(
                source, names[i], mine, my_tests, deal.truth[i], everyone
            )
            people.append(replace(participant, stream=streams[i]))
        return people

    def _prepared(
        self,
        source: DataSource,
        name: str,
        train: Samples,
        test: Samples,
        group: int | None = None,
        federation: Samples | None = None,
    ) -> ParticipantData:
        """A participant's samples as its models see them, without those that are set aside."""
        if self.validation:
            train, aside = split_by_class(
                replace(train, key=None), self.validation, self.seed
            )
            test = aside if self.measured_on == "validation" else test
        preparation, clipped = source.preparation(train, federation), None
        if (
            preparation is None and source.prepares
        ):  # a site's own images, of which `_read` did not know
            _check_pixels(source, name, train, test)
        # At a real site, where a job names the absent values, refusals would tell it the largest of the others.
        if (
            preparation is not None
            and not preparation.is_scaled
            and federation is not None
        ):
            for samples in (train, test):
                check_range(
                    samples.x,
                    name,
                    "set scaling to auto, or bring the table's numbers to about 0 to 1",
                )
        if preparation is not None and preparation.clip is not None:
            clipped = preparation.clipped(train.x) + preparation.clipped(test.x)
        train, test = (
            _as_seen(name, samples, preparation) for samples in (train, test)
        )
        return ParticipantData(name, train, test, group, preparation, clipped=clipped)

    def _deal(self, source: DataSource) -> tuple[Partition, Samples, Samples, Deal]:
        """The rule, the samples without the indicator samples, and how the rule deals them out."""
        if self.partition is None:
            raise ConfigError(
                "data: without a partition there is nothing to report; each site has its own data"
            )
        train, test, _ = self._read(source)
        participants = self.participants or Natural.able(train, test, self.min_samples)
        if self.indicator_samples:
            indicator = draw_indicator(
                train.y, self.indicator_samples, self.seed, "data", spare=1
            )
            train = train.take(np.setdiff1d(np.arange(len(train)), indicator))
        rule = build_partition(self.partition)
        way = dealt if train.patient is None or self._natural else dealt_by_patient
        deal = way(train, test, rule, participants, self.seed, self.min_samples)
        return rule, train, test, deal

    def described(self, source: DataSource) -> list[str]:
        """What became of a source's columns, of owners that are too small, and of patients at several places."""
        lines = source.described()
        if source.patient is None and not self._natural:
            return lines
        train, test, repeated = self._read(source)
        lines = [*lines, *repeated]
        if self._natural:
            lines.append(Natural.described(train, test, self.min_samples))
        return lines

    def report(self, source: DataSource) -> PartitionReport:
        """How a source is dealt out to the participants of a simulation."""
        rule, train, test, deal = self._deal(source)
        return report_of(
            train,
            test,
            deal,
            rule.name,
            Natural.names(train, deal.train) if self._natural else None,
        )

    def indicator(self, source: DataSource, per_class: int) -> Samples:
        """The indicator samples on which a simulation's method compares models, as these see them.

        ``per_class`` is at most ``indicator_samples``.
        """
        train, _, _ = self._read(source)
        chosen = train.take(
            draw_indicator(train.y, per_class, self.seed, "data", spare=1)
        )
        return _as_seen(
            "data",
            chosen,
            source.preparation(train, train) if source.prepares else None,
        )


def _block(participants: list[T], index: int, sites: int) -> list[T]:
    """Those of a simulation's participants that a site hosts."""
    return participants[
        index * len(participants) // sites : (index + 1) * len(participants) // sites
    ]


def _as_seen(name: str, samples: Samples, preparation: Preparation | None) -> Samples:
    """Samples as models see them: scaled as their source says, else normalised as pixels are."""
    seen = (
        normalised(samples.x)
        if preparation is None
        else check_values(preparation.apply(samples.x), name)
    )
    return Samples(seen, samples.y, patient=samples.patient, classes=samples.classes)


def _check_pixels(source: DataSource, where: str, *parts: Samples) -> None:
    """Raises a DataError if samples that no source prepares are clearly outside of [0, 1]."""
    hint = (
        "scale them in the source's load(), by numbers that are the same at all sites"
    )
    if hasattr(source, "range"):
        hint = "set range of the source to the smallest and the largest possible number, alike at all sites"
    for samples in parts:
        check_range(samples.x, where, hint)


def taken(train: Samples, test: Samples, indices: np.ndarray) -> Samples:
    """The samples at indices, sorted, that count the training samples and then, going on, the test samples."""
    of_train, of_test = np.split(indices, [np.searchsorted(indices, len(train))])
    if not len(of_test):
        return train.take(of_train)
    tests = test.take(of_test - len(train))
    return train.take(of_train).joined(tests) if len(of_train) else tests
