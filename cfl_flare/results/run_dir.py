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

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cfl_flare.clustering.gap import NUMBER
from cfl_flare.core.config import build, unmarked
from cfl_flare.core.errors import ConfigError, FileError, PayloadError
from cfl_flare.core.files import atomic_write, below, json_lines, make_folder, read_json
from cfl_flare.core.params import Layout
from cfl_flare.core.safetensors_io import load_arrays as read_arrays
from cfl_flare.core.safetensors_io import save_arrays
from cfl_flare.core.text import plain
from cfl_flare.methods import GLOBAL
from cfl_flare.results import schema
from cfl_flare.results.key_metric import ACCURACY, Metric, reported
from cfl_flare.results.model_file import ARRAYS, CLASSES, check_weights, is_ours, layout_of, model_of, parts_of, task_of
from cfl_flare.training.ensemble import Ensemble, Served

if TYPE_CHECKING:
    import torch

    from cfl_flare.data.preparation import Preparation

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
        """What the run is called in tables: its method, with K, and whether that was found in the run."""
        clusters = self.summary["clusters"]
        found = " found" if any(NUMBER in r for r in self.rounds) else ""
        return self.summary["label"] + (f" (K={clusters}{found})" if clusters else "")

    @property
    def metric(self) -> Metric:
        """The metric that tells how good the run is; accuracy, in runs of versions that knew no other."""
        return Metric(**self.summary.get("metric", {"name": ACCURACY}))

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


def save_served(
    folder: Path,
    name: str,
    served: Served,
    model: Mapping[str, Any],
    rounds: int,
    task: Mapping[str, Any] | str = CLASSES,
    preparation: Preparation | None = None,
) -> None:
    """Writes a model or an ensemble, for `read_model`.

    Args:
        folder: where to; created if it does not exist.
        name: of the file, without its ending: a slot or a participant.
        served: what to write.
        model: the module's ``{"class_path", "args"}``.
        rounds: rounds completed.
        task: what the model predicts, as in the run's settings.
        preparation: how its participant fills up and scales a table; None for other data, and for models of several.
    """
    meta: dict[str, Any] = {"slot": name, "round": rounds, "model": unmarked(model)}
    if task != CLASSES:
        meta["task"] = task
    if preparation is not None:
        meta["preparation"] = preparation.to_dict()
    arrays = served.models[0].arrays()
    if len(served.models) > 1:  # named as in the `state_dict` of an `Ensemble`
        meta["ensemble"] = {"parts": len(served.models), "vote": served.vote}
        arrays = {f"parts.{i}.{key}": a for i, part in enumerate(served.models) for key, a in part.arrays().items()}
    make_folder(folder)
    save_arrays(folder / f"{name}.safetensors", arrays, meta)


def load_model(run: str | Path, slot: str = GLOBAL, model: torch.nn.Module | None = None) -> torch.nn.Module:
    """A trained model of a run, ready to predict.

    Args:
        run: the run's folder, or one with a single run below it, such as FLARE's own result folder.
        slot: ``"global"`` or ``"cluster-0"``, ...
        model: a module of the run's class to load the weights into; needed if it is not one of cfl_flare's own.

    Raises:
        ConfigError: the run has no such model, or its class is not cfl_flare's and no module was given.
    """
    return read_model(_model_file(run, slot), model)


def load_arrays(run: str | Path, slot: str = GLOBAL) -> dict[str, np.ndarray]:
    """The arrays of a trained model of a run by name, float32, without a module; of any run, not only of arrays.

    Args:
        run: the run's folder, or one with a single run below it, such as FLARE's own result folder.
        slot: ``"global"`` or ``"cluster-0"``, ...

    Raises:
        ConfigError: the run has no such model.
        PayloadError: its file is damaged.
    """
    return read_arrays(_model_file(run, slot))[0]


def _model_file(run: str | Path, slot: str) -> Path:
    """The file of one of a run's models.

    Raises:
        ConfigError: it has no such model.
    """
    folder = Path(run) if (Path(run) / MODELS).is_dir() else the_run(run)
    path = folder / MODELS / f"{slot}.safetensors"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.safetensors"))) or "none"
        raise ConfigError(f"{run} has no model {slot!r}; it has: {there}")
    return path


def read_model(path: Path, model: torch.nn.Module | None = None) -> torch.nn.Module:
    """A model from its file, ready to predict.

    Args:
        path: a file that `save_served` wrote.
        model: a module of its class to load the weights into; needed if it is not one of cfl_flare's own.

    Raises:
        PayloadError: the file is damaged, or holds the weights of another model than it names.
        ConfigError: the model's class is not cfl_flare's and no module was given.
    """
    from torch import nn

    from cfl_flare.training.resident import ResidentModel

    arrays, meta = read_arrays(path)
    spec, ensemble = model_of(meta, path), meta.get("ensemble")
    parts, vote = (1, "") if ensemble is None else parts_of(ensemble, len(arrays), path)
    if model is None and spec["class_path"] == ARRAYS:
        raise ConfigError(f"{path} holds arrays, which no module computes with; read them with cfl_flare.load_arrays")
    if model is None and not is_ours(spec):
        raise ConfigError(f"{path} holds a {plain(spec['class_path'], 100)}; build one and pass it as model=")
    check_weights(layout_of(spec) if model is None else Layout.of(model), arrays, parts, path)
    if model is None:
        model = build(spec, nn.Module, "model")
    if ensemble is not None:
        link = task_of(meta, path).link if vote == "probabilities" else "softmax"  # a sum is the same with any
        model = Ensemble([copy.deepcopy(model) for _ in range(parts)], vote, link)
    try:
        packed = Layout.of(model).pack(arrays)
    except PayloadError as error:
        raise PayloadError(error.code, f"{path}: {error}; name the file of a sound model") from error
    resident = ResidentModel(model)
    resident.load(packed)
    return resident.module.eval()
