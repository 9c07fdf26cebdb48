# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the measuring of one paper consists of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cfl_flare.core.config import from_dict, require
from cfl_flare.core.seeds import stream
from cfl_flare.data import DataConfig, DataSource, ParticipantData
from cfl_flare.data.report import participant_names
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import Method
from cfl_flare.models import MODELS
from cfl_flare.training.settings import TrainSettings

PUBLISHED = Path(__file__).parents[1] / "published"
SCHEDULED = ("participants", "rounds", "sample", "evaluate_every", "min_samples", "indicator_samples", "unseen")
OF_DATA = ("outliers", "data_seed")

Rows = Mapping[str, tuple[str, ...]]

# What every table needs beside its methods: no federation, and no learning.
BASELINES: Rows = {"majority": ("plans.variants.OwnMajorityClass",), "local": ("local",)}
PRIVATE = "private="  # before the layers that a row keeps private, among its penalties


@dataclass(frozen=True)
class Some(DataConfig):
    """Of a simulation's participants those of some true groups; the others keep their samples and take no part.

    Attributes:
        groups: those that take part.
    """

    groups: tuple[int, ...] = ()

    def host(self, source: DataSource, site: str, index: int, sites: int) -> list[ParticipantData]:
        """The participants of the site that are in these groups."""
        return [data for data in super().host(source, site, index, sites) if data.group in self.groups]


@dataclass(frozen=True)
class Outliers(DataConfig):
    """A simulation some of whose participants have random labels, to train on and to be tested on.

    Attributes:
        random_labels: their names.
    """

    random_labels: tuple[str, ...] = ()

    def host(self, source: DataSource, site: str, index: int, sites: int) -> list[ParticipantData]:
        """The participants of the site."""
        people = super().host(source, site, index, sites)
        classes = 1 + max(int(split.y.max()) for data in people for split in (data.train, data.test))
        return [self._mixed(data, classes) if data.name in self.random_labels else data for data in people]

    def _mixed(self, data: ParticipantData, classes: int) -> ParticipantData:
        rng = stream(self.seed, "random labels", data.name)
        splits = {k: getattr(data, k) for k in ("train", "test")}
        return replace(data, **{k: replace(s, y=rng.integers(0, classes, len(s))) for k, s in splits.items()})


def model(name: str, input_shape: Sequence[int], num_classes: int) -> dict[str, Any]:
    """One of the package's networks, as a job names it."""
    args = {"input_shape": list(input_shape), "num_classes": num_classes}
    return {"class_path": f"cfl_flare.models.{MODELS[name].__name__}", "args": args}


@dataclass(frozen=True)
class Plan:
    """The settings of a paper, and what is laid beside its tables.

    Attributes:
        name: on the command line.
        title: of the report.
        source: the samples.
        model: the network, as a job names it.
        training: how participants train.
        partitions: rules by name.
        rows: of the main table: a method, its penalties, and which layers are private.
        participants: how many share the samples.
        rounds: of a cell, unless others are asked for.
        sweeps: further rows, by the name of what is swept in them.
        tables: of the paper, by number: the partitions and rows (or sweeps) of each.
        groups: of a partition's participants only those of these true groups take part.
        sample: participants a round, a share or a count.
        evaluate_every: rounds between measurements.
        min_samples: fewest training samples of a participant.
        indicator_samples: of each class, taken out of the samples before they are dealt out.
        unseen: participants held back from training, a share or a count.
        columns: the figures that the report's table shows.
        compared: those that are laid beside published ones.
        averaged: over which rounds of a run figures are averaged: so many of the ``last`` or of the ``best`` ones.
        outliers: how many participants have random labels, spread evenly over the others.
        data_seed: of the partition; None for that of the run.
        after: what is measured of a finished run beside its rounds, from its folder.
        refuse: raises ConfigError for a method that ``after`` cannot measure.
    """

    name: str
    title: str
    source: DataSource
    model: Mapping[str, Any]
    training: TrainSettings
    partitions: Mapping[str, Mapping[str, Any]]
    rows: Rows
    participants: int
    rounds: int
    sweeps: Mapping[str, Rows] = field(default_factory=dict)
    tables: Mapping[str, tuple[Sequence[str], Sequence[str]]] = field(default_factory=dict)
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sample: float | int = 1.0
    evaluate_every: int = 1
    min_samples: int = 8
    indicator_samples: int = 0
    unseen: float | int = 0
    columns: tuple[str, ...] = ("accuracy", "macro_f1", "worst_accuracy", "ari", "clusters_in_use")
    compared: tuple[str, ...] = ("accuracy", "macro_f1")
    averaged: tuple[str, int] = ("last", 3)
    outliers: int = 0
    data_seed: int | None = None
    after: Callable[[Plan, Path], Mapping[str, float]] | None = None
    refuse: Callable[[Method], None] | None = None

    @cached_property
    def published(self) -> dict[str, Any]:
        """The paper's own figures, ``published/<name>.json``; none where it has none of such samples."""
        path = PUBLISHED / f"{self.name}.json"
        return json.loads(path.read_text()) if path.exists() else {"about": ["Nothing."], "figures": {}}

    @property
    def named_rows(self) -> dict[str, tuple[str, ...]]:
        """The rows of the main table and of all sweeps."""
        return {**self.rows, **{name: row for sweep in self.sweeps.values() for name, row in sweep.items()}}

    def expanded(self, texts: Sequence[str]) -> list[str]:
        """Rows; a sweep's name stands for its rows."""
        return [row for text in texts for row in self.sweeps.get(text, (text,))]

    def said(self, row: str) -> tuple[str, ...]:
        """A row's method, penalties and private layers; a row without a name says them itself.

        As in ``wecfl:k=3 + proximal:mu=1 + private=norm``. A number of rounds may be said as a share of the run's, as
        in ``warmup=30%``.
        """
        texts = self.named_rows.get(row) or tuple(row.split(" + "))
        return tuple(re.sub(r"\b(\d+)%", lambda share: str(round(self.rounds * int(share[1]) / 100)), t) for t in texts)

    def method(self, row: str) -> tuple[str, ...]:
        """A row's method and penalties."""
        method, *more = self.said(row)
        return method, *(text for text in more if not text.startswith(PRIVATE))

    def private(self, row: str) -> str | None:
        """The layers that stay with each participant in a row; None for none."""
        found = (text.removeprefix(PRIVATE) for text in self.said(row)[1:] if text.startswith(PRIVATE))
        return next(found, None)

    @property
    def random_labels(self) -> tuple[str, ...]:
        """The names of the participants whose labels are random."""
        names = participant_names(self.participants)
        return tuple(names[(2 * i + 1) * self.participants // (2 * self.outliers)] for i in range(self.outliers))

    def data(self, partition: str, seed: int) -> DataConfig:
        """How the samples are dealt out."""
        seed = seed if self.data_seed is None else self.data_seed
        rule, held = dict(self.partitions[partition]), (self.min_samples, self.indicator_samples, self.unseen)
        if partition in self.groups:
            return Some(self.participants, rule, seed, *held, groups=self.groups[partition])
        if self.outliers:
            return Outliers(self.participants, rule, seed, *held, random_labels=self.random_labels)
        return DataConfig(self.participants, rule, seed, *held)

    def scheduled(self, seed: int) -> ServerSettings:
        """What the server schedules. No best round is kept: the papers' figures are of the last ones."""
        return ServerSettings(self.rounds, seed, self.sample, evaluate_every=self.evaluate_every, key_metric="")

    def altered(self, settings: Mapping[str, Any]) -> Plan:
        """The plan with other settings: what is scheduled, how participants train, or ``model`` by its name.

        Raises:
            ConfigError: an unknown setting, or a value out of its range.
        """
        training = {f.name: settings.get(f.name, getattr(self.training, f.name)) for f in fields(self.training)}
        known = ("model", *SCHEDULED, *OF_DATA, *training)
        unknown = [name for name in settings if name not in known]
        require(not unknown, f"plan {self.name}: unknown setting {unknown[:1]}; there are {', '.join(known)}")
        own = {name: settings[name] for name in (*SCHEDULED, *OF_DATA) if name in settings}
        if "model" in settings:
            name = settings["model"]
            require(name in MODELS, f"plan {self.name}: model = {name!r} is unknown; there are {', '.join(MODELS)}")
            own["model"] = model(name, **self.model["args"])
        return replace(self, training=from_dict(TrainSettings, training, "training"), **own)
