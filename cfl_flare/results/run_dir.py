# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a run leaves on disk, and how to read it.

A run's folder holds ``rounds.jsonl`` (one line per round), ``assignments.jsonl`` (one line per round and participant),
``clusters/*.safetensors`` (the models), ``state/`` (the server's state, for newcomers) and ``summary.json`` (written
last). ``started.json`` says from the start what is planned.
``best/clusters/*.safetensors`` are the models of the best round. On request, there are also
``features/round-*.safetensors`` (the Gram matrix of the participants' features), ``cross_site.csv`` (every model's
metrics on every participant's test split), ``newcomers.json`` (results of participants that were held back) and
``bootstrap.safetensors`` (final measures on draws of every test split).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cfl_flare.clustering.gap import NUMBER, is_clear
from cfl_flare.core.arrays import load_arrays as read_arrays
from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import atomic_write, below, json_lines, read_json
from cfl_flare.results import schema
from cfl_flare.results.key_metric import ACCURACY, Metric, reported

if TYPE_CHECKING:
    pass

ROUNDS, ASSIGNMENTS, SUMMARY, MODELS = "rounds.jsonl", "assignments.jsonl", "summary.json", "clusters"
STARTED = "started.json"
FEATURES, STATE, NEWCOMERS, BEST, CROSS_SITE = "features", "state", "newcomers.json", "best", "cross_site.csv"
# At a site, in its folder of the run below the state root: what each of its participants predicts with.
SERVED = "served"


@dataclass(frozen=True)
class Run:
    """A finished run, read from its folder.

    Attributes:
        folder: the run's.
        summary: ``summary.json``.
        rounds: the lines of ``rounds.jsonl``.
        assignments: the lines of ``assignments.jsonl``.
        newcomers: ``newcomers.json``; None if no participants were held back.
    """

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
        """What the run is called in tables: its method, with K, and whether that was found in the run, and clear."""
        clusters, note = self.summary["clusters"], self.summary.get(NUMBER)
        note = note or next((r[NUMBER] for r in self.rounds if NUMBER in r), None)  # version 0.2 has it there alone
        text = f"K={clusters}" if note is None else f"K={clusters} found" if is_clear(note) else f"about K={clusters}"
        return self.summary["label"] + (f" ({text})" if clusters else "")

    @property
    def metric(self) -> Metric:
        """The metric that tells how good the run is; accuracy, in runs of versions that knew no other."""
        return Metric(**self.summary.get("metric", {"name": ACCURACY}))

    @property
    def script(self) -> str | None:
        """The training script that trained and measured; None if cfl_flare did."""
        name = self.summary.get("train_script")
        return name if isinstance(name, str) else None

    @property
    def reported(self) -> list[str]:
        """The metrics of served models that most participants reported, in their order."""
        people = self.summary["participants"]
        return reported(people, sum(any(key.startswith("served_") for key in one) for one in people))

    def defined(self, name: str) -> tuple[int, int]:
        """Of how many participants a number of the last measured round is, and of how many it could be.

        These were measured then, or have no test samples.
        """
        people = self.summary["participants"]
        everyone = sum(one.get("tested") is False or any(key.startswith("served_") for key in one) for one in people)
        last = self.summary.get("final_round")
        found: dict[str, int] = next((line.get("defined", {}) for line in self.rounds if line.get("round") == last), {})
        return found.get(name, everyone), everyone


@dataclass(frozen=True)
class Features:
    """The Gram matrix of the participants' features in one round.

    Attributes:
        round: its number.
        gram: ``(n + K, n + K)`` inner products of the n participants' features, then of the K centres after the round.
        participants: the n names.
        clusters: their clusters.
    """

    round: int
    gram: np.ndarray
    participants: tuple[str, ...]
    clusters: tuple[int, ...]


def read_features(path: Path) -> Features:
    """Reads the features of one round.

    Raises:
        PayloadError: the file is damaged.
    """
    arrays, meta = read_arrays(path)
    return Features(meta["round"], arrays["gram"], tuple(meta["participants"]), tuple(meta["clusters"]))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON Lines file that may still be growing; none if it does not exist yet.

    Raises:
        FileError: it is too large, or a line is not a JSON object.
    """
    return list(json_lines(path)) if path.exists() else []


def cut_lines(path: Path, recorded: int) -> list[dict[str, Any]]:
    """Removes the lines of rounds from ``recorded`` on from a JSON Lines file; returns the others."""
    kept = [line for line in read_lines(path) if line["round"] < recorded] if recorded else []
    if kept:
        atomic_write(path, "".join(json.dumps(line) + "\n" for line in kept))
    else:
        path.unlink(missing_ok=True)
    return kept


def load_run(folder: str | Path) -> Run:
    """Reads a finished run.

    Raises:
        ConfigError: the folder does not hold one.
    """
    folder = Path(folder)
    if not (folder / SUMMARY).is_file():
        raise ConfigError(f"{folder} holds no finished run: there is no {SUMMARY}")
    places = {name: folder / name for name in (SUMMARY, NEWCOMERS, ROUNDS, ASSIGNMENTS)}
    try:
        optional = {**schema.THROUGH_FLARE, **schema.ADDED}
        summary = schema.checked(read_json(places[SUMMARY]), str(places[SUMMARY]), schema.SUMMARY, optional)
        newcomers = None
        if places[NEWCOMERS].is_file():
            newcomers = schema.checked(read_json(places[NEWCOMERS]), str(places[NEWCOMERS]), {}, schema.NEWCOMERS)
        rounds, assignments = (
            [schema.checked(line, str(places[name]), *fields) for line in read_lines(places[name])]
            for name, fields in ((ROUNDS, (schema.ROUND, schema.MEASURED)), (ASSIGNMENTS, (schema.ASSIGNMENT,)))
        )
    except FileError as error:
        raise ConfigError(f"{folder} holds a damaged run: {error}; copy its files again from where it ran") from error
    return Run(folder, summary, rounds, assignments, newcomers)


def find_runs(folder: str | Path) -> list[Run]:
    """All finished runs in a folder and below it, sorted by name.

    Raises:
        ConfigError: there are none.
        FileError: there are too many files to look at.
    """
    found = sorted(path.parent for path in below(Path(folder)) if path.name == SUMMARY)
    if not found:
        raise ConfigError(f"{folder} holds no finished run: no {SUMMARY} in it or below it")
    return [load_run(path) for path in found]


def the_run(folder: str | Path) -> Path:
    """The folder of the only run in or below a folder.

    Raises:
        ConfigError: there is none, or more than one.
    """
    found = [run.folder for run in find_runs(folder)]
    if len(found) > 1:
        raise ConfigError(f"{folder} holds several runs: {', '.join(map(str, found))}; name one")
    return found[0]
