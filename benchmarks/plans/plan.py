# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the measuring of one paper consists of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cfl_flare.core.config import from_dict, parse_spec, require
from cfl_flare.core.seeds import stream
from cfl_flare.data import DataConfig, DataSource, ParticipantData
from cfl_flare.data.summary import participant_names
from cfl_flare.engine.server import ServerSettings
from cfl_flare.models import MODELS
from cfl_flare.training.settings import TrainSettings

# ---- Figures of a row ----


class Figure(NamedTuple):
    """A figure of a finished cell.

    Attributes:
        key: in the lines of rounds.jsonl or in after.json.
        scale: by which it is multiplied for the table.
        title: of the table's column.
        digits: after the point.
    """

    key: str
    scale: float
    title: str
    digits: int = 2


FIGURES: dict[str, Figure] = {
    "accuracy": Figure("served_accuracy", 100, "accuracy"),
    "mean_accuracy": Figure("served_accuracy_unweighted", 100, "accuracy, mean of hospitals"),
    "macro_f1": Figure("served_macro_f1", 100, "macro-F1"),
    "balanced_accuracy": Figure("served_balanced_accuracy", 100, "balanced accuracy"),
    "auroc": Figure("served_auroc", 100, "AUROC"),
    "pooled_auroc": Figure("pooled_auroc", 100, "pooled AUROC"),
    "mean_auroc": Figure("served_auroc_unweighted", 100, "AUROC, mean of hospitals"),
    "loss": Figure("served_loss", 100, "log-loss × 100"),
    "pooled_ece": Figure("pooled_ece", 100, "calibration error, pooled"),
    "tenth_accuracy": Figure("tenth_accuracy", 100, "worst tenth"),
    "tenth_loss": Figure("tenth_loss", 100, "log-loss × 100 of the worst tenth"),
    "auprc": Figure("served_auprc", 100, "AUPRC"),
    "ece": Figure("served_ece", 100, "calibration error"),
    "brier": Figure("served_brier", 1, "Brier", 3),
    "worst_accuracy": Figure("served_worst_accuracy", 100, "worst"),
    "bottom_accuracy": Figure("served_bottom_accuracy", 100, "bottom"),
    "unseen": Figure("unseen", 100, "unseen"),
    "sound": Figure("sound", 100, "sound labels"),
    "sound_ari": Figure("sound_ari", 1, "ARI of sound"),
    "ari": Figure("ari", 1, "ARI"),
    "first_ari": Figure("first_ari", 1, "ARI of the first clustering"),
    "last_ari": Figure("last_ari", 1, "ARI of the last"),
    "nmi": Figure("nmi", 1, "NMI"),
    "stable": Figure("stable", 1, "rounds to stable", 1),
    "clusters_in_use": Figure("clusters_in_use", 1, "clusters", 1),
}


# ---- A paper ----


PUBLISHED = Path(__file__).parents[1] / "published.json"
SCHEDULED = ("participants", "rounds", "sample", "evaluate_every", "min_samples", "indicator_samples", "unseen")
OF_DATA = ("outliers", "data_seed", "validation", "measured_on")
OF_SOURCE = ("scaling", "pooled")  # of sources that have them
OF_SERVER = ("server_optimizer", "server_lr", "server_tau", "server_beta1", "server_beta2")

Rows = Mapping[str, tuple[str, ...]]

# What every table needs beside its methods: no federation, and no learning.
BASELINES: Rows = {"majority": ("plans.OwnMajorityClass",), "local": ("local",)}
PRIVATE = "private="  # before the layers that a row keeps private, among its penalties
TRAIN = "train:"  # before what a row's training has that the plan's has not, in the same place


@cache
def published() -> dict[str, Any]:
    """The papers' figures, by plan, as they were typed."""
    return json.loads(PUBLISHED.read_text())


@dataclass(frozen=True)
class Remembered(DataConfig):
    """What was dealt out last is not read and prepared again for the next cell, if it is of the same data."""

    def host(self, source: DataSource, site: str, index: int, sites: int) -> list[ParticipantData]:
        """The participants of the site."""
        return _hosted(
            repr((source, self, site, index, sites)), lambda: super(Remembered, self).host(source, site, index, sites)
        )


_LAST: dict[str, list[ParticipantData]] = {}


def _hosted(what: str, deal: Callable[[], list[ParticipantData]]) -> list[ParticipantData]:
    if what not in _LAST:
        _LAST.clear()
        _LAST[what] = deal()
    return list(_LAST[what])


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


def own_training(said: Sequence[str]) -> dict[str, Any]:
    """What a row's training has of its own, by its texts."""
    return {key: value for text in said if text.startswith(TRAIN) for key, value in parse_spec(text)[1].items()}


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
        split_seed: whether the run's seed draws the source's test split too.
        validation: share of each participant's training samples that is set aside.
        measured_on: what models are measured on, as of `DataConfig`.
        server: further settings of what the server schedules.
        after: what is measured of a finished run beside its rounds, from its folder.
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
    split_seed: bool = False
    validation: float = 0.0
    measured_on: Literal["test", "validation"] = "test"
    server: Mapping[str, Any] = field(default_factory=dict)
    after: Callable[[Plan, Path], Mapping[str, float]] | None = None

    @cached_property
    def published(self) -> dict[str, Any]:
        """The paper's own figures, of ``published.json``; none where it has none of such samples."""
        return published().get(self.name, {"about": ["Nothing."], "figures": {}})

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
        method, *penalties = self.said(row)
        return method, *(text for text in penalties if not text.startswith((PRIVATE, TRAIN)))

    def private(self, row: str) -> str | None:
        """The layers that stay with each participant in a row; None for none."""
        patterns = (text.removeprefix(PRIVATE) for text in self.said(row)[1:] if text.startswith(PRIVATE))
        return next(patterns, None)

    def of_row(self, row: str) -> Plan:
        """The plan with what a row's training has of its own."""
        return self.altered(own_training(self.said(row)))

    def source_of(self, seed: int) -> DataSource:
        """The samples, as a run's seed splits them."""
        return replace(self.source, seed=seed) if self.split_seed else self.source  # type: ignore[type-var]

    @property
    def random_labels(self) -> tuple[str, ...]:
        """The names of the participants whose labels are random."""
        names = participant_names(self.participants)
        return tuple(names[(2 * i + 1) * self.participants // (2 * self.outliers)] for i in range(self.outliers))

    def data(self, partition: str, seed: int) -> DataConfig:
        """How the samples are dealt out."""
        seed = seed if self.data_seed is None else self.data_seed
        rule, common = dict(self.partitions[partition]), ("min_samples", "indicator_samples", "unseen")
        held = {name: getattr(self, name) for name in (*common, "validation", "measured_on")}
        if self.outliers:
            return Outliers(self.participants, rule, seed, random_labels=self.random_labels, **held)
        return Remembered(self.participants, rule, seed, **held)

    def scheduled(self, seed: int) -> ServerSettings:
        """What the server schedules. No best round is kept: the papers' figures are of the last ones."""
        every = self.evaluate_every
        return ServerSettings(self.rounds, seed, self.sample, evaluate_every=every, key_metric="", **self.server)

    def altered(self, settings: Mapping[str, Any]) -> Plan:
        """The plan with other settings: what is scheduled, how participants train, the source's, or the model's.

        Raises:
            ConfigError: an unknown setting, or a value out of its range.
        """
        training = {f.name: settings.get(f.name, getattr(self.training, f.name)) for f in fields(self.training)}
        of_source = [name for name in OF_SOURCE if hasattr(self.source, name)]
        known = ("model", "hidden", *SCHEDULED, *OF_DATA, *OF_SERVER, *of_source, *training)
        unknown = [name for name in settings if name not in known]
        require(not unknown, f"plan {self.name}: unknown setting {unknown[:1]}; there are {', '.join(known)}")
        own = {name: settings[name] for name in (*SCHEDULED, *OF_DATA) if name in settings}
        if of_server := {name: settings[name] for name in OF_SERVER if name in settings}:
            own["server"] = {**self.server, **of_server}
        if "model" in settings:
            name = settings["model"]
            require(name in MODELS, f"plan {self.name}: model = {name!r} is unknown; there are {', '.join(MODELS)}")
            own["model"] = model(name, **self.model["args"])
        if "hidden" in settings:
            own["model"] = {**self.model, "args": {**self.model["args"], "hidden": [settings["hidden"]]}}
        if changed := {name: settings[name] for name in of_source if name in settings}:
            own["source"] = replace(self.source, **changed)  # type: ignore[type-var]
        return replace(self, training=from_dict(TrainSettings, training, "training"), **own)
