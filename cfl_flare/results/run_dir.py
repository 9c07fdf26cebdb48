# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a run leaves on disk, and how to read it.

A run's folder holds ``rounds.jsonl`` (one line per round), ``assignments.jsonl`` (one line per round and participant)
and ``clusters/*.safetensors`` (the models). ``state/`` is the server's state, for newcomers. ``started.json`` says from
the start what is planned, and ``summary.json`` is written last. ``best/clusters/*.safetensors`` are the models of the
best round. Settings add ``features/round-*.safetensors`` (the Gram matrix of the participants' features) and
``cross_site.csv`` (every model's metrics on every participant's test split). They add ``newcomers.json`` (results of
participants that were held back) and ``bootstrap.safetensors`` (final measures on draws of every test split).

A site keeps a folder of the run for its own operator, and never sends it: ``served/`` (the models with which its
participants predict), ``history.jsonl`` (one line per round and participant) and ``splits.json`` (a digest of each
participant's samples, which a run that resumes this one must have as well).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cfl_flare.clustering.gap import NUMBER, is_clear
from cfl_flare.core.arrays import load_arrays as read_arrays
from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import (
    append,
    atomic_write,
    below,
    json_lines,
    make_folder,
    read_json,
)
from cfl_flare.results import schema
from cfl_flare.results.ancestry import ANCESTRY, IS_ANCESTRY
from cfl_flare.results.metrics import Metric, reported
from cfl_flare.results.remarks import CAPPED, HELD, IMPROVING, MOVED, POSSIBLE, SMALL

ROUNDS, ASSIGNMENTS, SUMMARY, MODELS = (
    "rounds.jsonl",
    "assignments.jsonl",
    "summary.json",
    "clusters",
)
STARTED = "started.json"
FEATURES, STATE, NEWCOMERS, BEST, CROSS_SITE = (
    "features",
    "state",
    "newcomers.json",
    "best",
    "cross_site.csv",
)
TO_NAME = "name the folder of a run that has ended"
# The columns of CROSS_SITE that are not metrics.
CROSS_SITE_KEYS = ("participant", "site", "group", "cluster", "model")
# In a site's folder of the run, below its state root.
SERVED, HISTORY = "served", "history.jsonl"

INTERVALS = schema.dict_of(schema.row(schema.number, schema.number))
METRIC = schema.described(
    "a metric's name, with its mode, min, max or null",
    lambda value: (
        schema.object_with(
            name=schema.text, mode=lambda mode: mode in ("min", "max", None)
        )(value)
        and len(value) == 2
    ),
)


def clusters_found(value: Any) -> bool:
    """A number of clusters, with what it was chosen by."""
    of_number = schema.object_with(
        gap=schema.number, deviations=schema.number, stability=schema.number
    )
    note = schema.object_with(
        k=schema.count,
        by_k=schema.dict_of(of_number),
        draws=schema.dict_of(schema.count, lambda k: len(k) < 10 and k.isdecimal()),
        set=schema.row(schema.count, schema.count),
        unsteady=schema.dict_of(schema.number),
    )
    return note(value) and str(value["k"]) in value["by_k"]


def participant(value: Any) -> bool:
    """A participant: its name, its group, and the intervals of its measures, if there are some."""
    needed = schema.object_with(name=schema.text, group=schema.maybe(schema.count))
    return needed(value) and INTERVALS(value.get("intervals", {}))


MEMBERSHIP = schema.described(
    "what membership attacks reached: a bound, rates by model and attack, and the models to which members object",
    schema.object_with(
        bound=schema.maybe(schema.share),
        shadow_models=schema.count,
        fewest_shadow_models=schema.count,
        models=schema.dict_of(
            schema.object_with(
                sites=schema.count,
                unmeasured=schema.count,
                attacks=schema.dict_of(
                    schema.object_with(
                        tpr=schema.share,
                        interval=schema.row(schema.share, schema.share),
                        members=schema.count,
                        non_members=schema.count,
                    )
                ),
            )
        ),
        objections=schema.list_of(schema.text),
        single=schema.list_of(schema.text),
    ),
)
# What a file must hold, and what it may hold.
SUMMARY_FIELDS: schema.Fields = {
    "method": schema.json_object,
    "label": schema.text,
    "metric": METRIC,
    "final": schema.dict_of(schema.number),
    "participants": schema.list_of(participant),
    **dict.fromkeys(("clusters", "rounds"), schema.count),
    **dict.fromkeys(("bytes_down", "bytes_up", "seconds"), schema.number),
}
SUMMARY_OPTIONAL: schema.Fields = {
    "intervals": INTERVALS,
    "majority": schema.number,
    "test_classes": schema.dict_of(schema.list_of(schema.maybe(schema.count))),
    "membership": MEMBERSHIP,
    ANCESTRY: IS_ANCESTRY,
    "sites_left_out": schema.dict_of(schema.text),
    "classes": schema.list_of(schema.text),
    "range": schema.row(schema.number, schema.number),
    **dict.fromkeys(("positive", IMPROVING), schema.text),
    POSSIBLE: schema.count,
    SMALL: schema.list_of(schema.count),
    NUMBER: clusters_found,
}
ROUND_FIELDS: schema.Fields = {
    "round": schema.count,
    "cluster_sizes": schema.list_of(schema.count),
}
ROUND_OPTIONAL: schema.Fields = {
    **dict.fromkeys(("served_", "pooled_", "clusters_in_use"), schema.number),
    **dict.fromkeys(
        ("objective", "intra_cosine", "inter_cosine"), schema.maybe(schema.number)
    ),
    **dict.fromkeys(
        ("size_entropy", "largest_share", "moved_share", "ari"),
        schema.maybe(schema.number),
    ),
    **dict.fromkeys(("defined", MOVED), schema.dict_of(schema.count)),
    **dict.fromkeys(("trained", HELD), schema.list_of(schema.text)),
    CAPPED: schema.dict_of(schema.row(schema.share, schema.share)),
    "worst_participants": schema.dict_of(schema.dict_of(schema.number)),
    "failed": schema.dict_of(schema.text),
    SMALL: schema.list_of(schema.count),
    "clusterability": schema.list_of(schema.maybe(schema.number)),
    "dispersion": schema.maybe(schema.dict_of(schema.maybe(schema.number))),
    NUMBER: clusters_found,
}
ASSIGNMENT_FIELDS: schema.Fields = {
    "round": schema.count,
    "participant": schema.text,
    "cluster": schema.maybe(schema.count),
}


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, and what its JSON files hold; no ``newcomers`` if no participants were held back."""

    folder: Path
    summary: dict[str, Any]
    rounds: list[dict[str, Any]] = field(default_factory=list)
    assignments: list[dict[str, Any]] = field(default_factory=list)
    newcomers: dict[str, Any] | None = None

    @property
    def feature_files(self) -> list[Path]:
        """The files of the rounds' features, in their order; see `read_features`."""
        return sorted((self.folder / FEATURES).glob("round-*.safetensors"))

    @property
    def name(self) -> str:
        """The run's name in tables: its method, with K, and whether the run found that, and how clearly."""
        clusters, note = self.summary["clusters"], self.summary.get(NUMBER)
        if not clusters:
            return str(self.summary["label"])
        words = (
            f"K={clusters}"
            if note is None
            else f"K={clusters} found"
            if is_clear(note)
            else f"about K={clusters}"
        )
        return f"{self.summary['label']} ({words})"

    @property
    def metric(self) -> Metric:
        """The metric that tells how good the run is."""
        return Metric(**self.summary["metric"])

    @property
    def script(self) -> str | None:
        """The training script that trained and measured; None if cfl_flare did."""
        name = self.summary.get("train_script")
        return name if isinstance(name, str) else None

    def values(self, key: str) -> dict[str, float]:
        """By participant, its number of this name; who has none is left out."""
        return {
            p["name"]: p[key]
            for p in self.summary["participants"]
            if schema.number(p.get(key))
        }

    @property
    def reported(self) -> list[str]:
        """The metrics of served models that most participants reported, in their order."""
        people = self.summary["participants"]
        return reported(people, sum(map(_measured, people)))

    def defined(self, name: str) -> tuple[int, int]:
        """How many participants have a number of the last measured round, and how many could have it.

        The latter were measured then, or have no test samples.
        """
        people = self.summary["participants"]
        everyone = sum(
            person.get("tested") is False or _measured(person) for person in people
        )
        last = self.summary.get("final_round")
        counts: dict[str, int] = next(
            (r.get("defined", {}) for r in self.rounds if r.get("round") == last), {}
        )
        return counts.get(name, everyone), everyone


def _measured(person: Mapping[str, Any]) -> bool:
    return any(key.startswith("served_") for key in person)


@dataclass(frozen=True)
class Features:
    """The Gram matrix of the participants' features in one round.

    It holds inner products ``(n + K, n + K)`` of the n participants' features, then of the K centres after the round.
    """

    round: int
    gram: np.ndarray
    participants: tuple[str, ...]
    clusters: tuple[int, ...]


def read_features(path: Path) -> Features:
    arrays, meta = read_arrays(path)
    return Features(
        meta["round"],
        arrays["gram"],
        tuple(meta["participants"]),
        tuple(meta["clusters"]),
    )


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON Lines file that may still be growing; none if it does not exist yet."""
    return list(json_lines(path)) if path.exists() else []


def checked_lines(
    path: Path, needed: schema.Fields, others: schema.Fields | None = None
) -> list[dict[str, Any]]:
    """The lines of a JSON Lines file, each checked; see `read_lines` and `cfl_flare.results.schema.checked`."""
    return [
        schema.checked(line, str(path), needed, others) for line in read_lines(path)
    ]


def cut_lines(path: Path, recorded: int) -> list[dict[str, Any]]:
    """Removes the lines of rounds from ``recorded`` on from a JSON Lines file; returns the others."""
    lines = (
        [line for line in read_lines(path) if line["round"] < recorded]
        if recorded
        else []
    )
    if lines:
        atomic_write(path, "".join(json.dumps(line) + "\n" for line in lines))
    else:
        path.unlink(missing_ok=True)
    return lines


def load_run(folder: str | Path) -> Run:
    """Reads a finished run.

    Raises:
        ConfigError: the folder does not hold one.
    """
    folder = Path(folder)
    if not (folder / SUMMARY).is_file():
        raise ConfigError(
            f"{folder} holds no finished run: there is no {SUMMARY}; {TO_NAME}"
        )
    path = folder / NEWCOMERS
    try:
        summary = schema.checked(
            read_json(folder / SUMMARY),
            str(folder / SUMMARY),
            SUMMARY_FIELDS,
            SUMMARY_OPTIONAL,
        )
        newcomers = None
        if path.is_file():
            newcomers = schema.checked(
                read_json(path), str(path), {}, {"served_": schema.maybe(schema.number)}
            )
        rounds = checked_lines(folder / ROUNDS, ROUND_FIELDS, ROUND_OPTIONAL)
        assignments = checked_lines(folder / ASSIGNMENTS, ASSIGNMENT_FIELDS)
    except FileError as error:
        raise ConfigError(
            f"{folder} holds a damaged run: {error}; copy its files again from where it ran"
        ) from error
    return Run(folder, summary, rounds, assignments, newcomers)


def find_runs(folder: str | Path) -> list[Run]:
    """All finished runs in a folder and below it, sorted by name.

    Raises:
        ConfigError: there are none.
        FileError: there are too many files to look at.
    """
    folders = sorted(
        path.parent for path in below(Path(folder)) if path.name == SUMMARY
    )
    if not folders:
        raise ConfigError(
            f"{folder} holds no finished run: no {SUMMARY} in it or below it; {TO_NAME}"
        )
    return [load_run(path) for path in folders]


def the_run(folder: str | Path) -> Path:
    """The folder of the only run in or below a folder; a `ConfigError` says that there is none, or several."""
    folders = [run.folder for run in find_runs(folder)]
    if len(folders) > 1:
        raise ConfigError(
            f"{folder} holds several runs: {', '.join(map(str, folders))}; name one"
        )
    return folders[0]


@dataclass(frozen=True)
class Note:
    """A line of a site's history: what a participant did in a round.

    Attributes:
        round: from 0; the metrics are of the model after that many rounds.
        models: the names of the models that it was sent.
        trained: whether it sent an update.
        failed: the code of its failure; None if it did not fail.
        last: whether it was the run's last exchange, which measures the final models.
    """

    round: int
    participant: str
    models: Sequence[str]
    trained: bool
    failed: str | None
    metrics: Mapping[str, float]
    last: bool = False


def keep_notes(folder: Path, number: int, notes: Sequence[Note], first: bool) -> None:
    """Appends a round to a site's history.

    In a process's ``first`` round, lines of an earlier attempt, of this round and later ones, go.
    """
    make_folder(folder)
    if first:
        cut_lines(folder / HISTORY, number)
    append(folder / HISTORY, "".join(json.dumps(asdict(note)) + "\n" for note in notes))
