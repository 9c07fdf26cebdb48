# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a run leaves on disk, written as it goes, and how it is read again.

A run's folder holds ``rounds.jsonl`` (one line a round), ``assignments.jsonl`` (one line a round and participant),
``clusters/*.safetensors`` (the models), ``state/`` (the server's state, which newcomers join) and ``summary.json``
(written last). ``best/clusters/*.safetensors`` are the models of the run's best round. Where they were asked for, there
are also ``features/round-*.safetensors`` (the Gram matrix of the participants' features), ``cross_site.csv`` (every
model on every participant's test split) and ``newcomers.json`` (how participants that were held back fare).
"""

from __future__ import annotations

import copy
import csv
import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cfl_flare.core.config import build, require, unmarked
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout
from cfl_flare.core.safetensors_io import load_arrays, save_arrays
from cfl_flare.methods import GLOBAL, Method, Participant, ServerState, describe_method
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.store import Store, state_facts
from cfl_flare.training.ensemble import Ensemble, Served

if TYPE_CHECKING:
    import torch

ROUNDS, ASSIGNMENTS, SUMMARY, MODELS = "rounds.jsonl", "assignments.jsonl", "summary.json", "clusters"
FEATURES, STATE, NEWCOMERS, BEST, CROSS_SITE = "features", "state", "newcomers.json", "best", "cross_site.csv"
# At a site, below its folder of the run in the state root: what each of its participants predicts with.
SERVED = "served"


class Recorder:
    """Writes a run's results.

    Args:
        folder: where to; it is made.
        run: the run's own facts for the summary: data, partition, training settings.
        model: the model's ``{"class_path", "args"}``, stored beside the weights.
        recorded: rounds that an interrupted run recorded here and that are kept.
        last: the last of them that was measured.

    Attributes:
        last: the last round that was measured.

    Raises:
        ConfigError: the rounds that should be kept are not here.
    """

    def __init__(
        self,
        folder: Path,
        run: Mapping[str, Any],
        model: Mapping[str, Any],
        recorded: int = 0,
        last: RoundMetrics | None = None,
    ):
        self.folder, self._run, self._model, self.last = folder, unmarked(run), unmarked(model), last
        (folder / MODELS).mkdir(parents=True, exist_ok=True)
        (folder / SUMMARY).unlink(missing_ok=True)
        (folder / NEWCOMERS).unlink(missing_ok=True)
        (folder / CROSS_SITE).unlink(missing_ok=True)
        for old in [*(folder / MODELS).glob("*.safetensors"), *(folder / STATE).glob("round-*")]:
            old.unlink()
        if not recorded:  # later rounds are written over
            for old in (folder / FEATURES).glob("*.safetensors"):
                old.unlink()
            shutil.rmtree(folder / BEST, ignore_errors=True)
        kept = cut_lines(folder / ROUNDS, recorded)
        cut_lines(folder / ASSIGNMENTS, recorded)
        require(len(kept) == recorded, f"{folder} holds {len(kept)} of the {recorded} rounds that it should go on from")
        self._totals = {key: sum(line[key] for line in kept) for key in ("bytes_down", "bytes_up", "seconds")}

    def round(self, measured: RoundMetrics, state: ServerState, participants: Mapping[str, Participant]) -> None:
        """Appends a round."""
        self._append(ROUNDS, [measured.record])
        trained = set(measured.record["trained"])
        number = measured.record["round"]
        self._append(
            ASSIGNMENTS,
            [
                {"round": number, "participant": n, "cluster": state.assignment.get(n), "trained": n in trained}
                for n in participants
            ],
        )
        for key in self._totals:
            self._totals[key] += measured.record[key]
        if measured.participants:
            self.last = measured

    def features(self, number: int, products: np.ndarray, clusters: Mapping[str, int]) -> None:
        """Writes the inner products of a round's features: of these participants in this order, then of the centres."""
        (self.folder / FEATURES).mkdir(exist_ok=True)
        meta = {"round": number, "participants": list(clusters), "clusters": list(clusters.values())}
        save_arrays(self.folder / FEATURES / f"round-{number:04d}.safetensors", {"gram": products}, meta)

    def best(self, models: Mapping[str, Served], rounds: int) -> None:
        """Writes the models of the best round so far, in place of those of the one before.

        Args:
            models: what the run would leave if it ended here.
            rounds: rounds completed.
        """
        new = self.folder / (BEST + ".tmp")
        shutil.rmtree(new, ignore_errors=True)
        for slot, served in models.items():
            save_served(new / MODELS, slot, served, self._model, rounds)
        shutil.rmtree(self.folder / BEST, ignore_errors=True)
        if models:
            new.rename(self.folder / BEST)

    def cross_site(
        self,
        found: Mapping[str, Mapping[str, Mapping[str, float]]],
        participants: Mapping[str, Participant],
        state: ServerState,
    ) -> None:
        """Writes how each model does on each participant's test split: a line a participant and model.

        Args:
            found: by participant and model, the metrics.
            participants: all of them.
            state: with the clusters.
        """
        metrics = sorted({key for own in found.values() for one in own.values() for key in one})
        with (self.folder / CROSS_SITE).open("w", newline="") as f:
            writer = csv.writer(f)
            writer.writerow(["participant", "site", "group", "cluster", "model", *metrics])
            for name, own in found.items():
                who = participants[name]
                for model, measured in own.items():
                    place = [name, who.site, who.group, state.assignment.get(name), model]
                    writer.writerow([*place, *(measured.get(key) for key in metrics)])

    def _append(self, name: str, lines: list[dict[str, Any]]) -> None:
        with (self.folder / name).open("a") as f:
            f.writelines(json.dumps(line) + "\n" for line in lines)

    def close(
        self,
        state: ServerState,
        models: Mapping[str, Served],
        participants: Mapping[str, Participant],
        method: Method,
        extra: Mapping[str, Any],
    ) -> None:
        """Writes the models and the server's state, then the summary."""
        for slot, served in models.items():
            save_served(self.folder / MODELS, slot, served, self._model, state.round)
        Store(self.folder / STATE).save(state.round, state.bank, state_facts(state))
        last = self.last
        summary = {
            "method": describe_method(method),
            "label": method.label,
            "clusters": method.clusters_in(state),
            **self._run,
            "model": self._model,
            "rounds": state.round,
            "final": {} if last is None else last.scalars(),
            "final_round": None if last is None else last.record["round"],
            **self._totals,
            **extra,
            "participants": [
                {
                    "name": p.name,
                    "site": p.site,
                    "samples": p.samples,
                    "group": p.group,
                    "cluster": state.assignment.get(p.name),
                    **({} if last is None else last.participants.get(p.name, {})),
                }
                for p in participants.values()
            ],
            "versions": {n: version(n) for n in ("cfl-flare", "nvflare", "torch", "numpy", "scikit-learn")}
            | {"python": platform.python_version()},
        }
        temporary = self.folder / (SUMMARY + ".tmp")
        temporary.write_text(json.dumps(summary, indent=1))
        temporary.replace(self.folder / SUMMARY)


@dataclass(frozen=True)
class Run:
    """A finished run, read from its folder.

    Attributes:
        folder: where it lies.
        summary: ``summary.json``.
        rounds: the lines of ``rounds.jsonl``.
        assignments: the lines of ``assignments.jsonl``.
        newcomers: ``newcomers.json``; None where no participants were held back.
    """

    folder: Path
    summary: dict[str, Any]
    rounds: list[dict[str, Any]] = field(default_factory=list)
    assignments: list[dict[str, Any]] = field(default_factory=list)
    newcomers: dict[str, Any] | None = None

    @property
    def feature_files(self) -> list[Path]:
        """The rounds' kept features, in their order; see `read_features`."""
        return sorted((self.folder / FEATURES).glob("round-*.safetensors"))

    @property
    def name(self) -> str:
        """What the run is called in tables: its method, with K."""
        clusters = self.summary["clusters"]
        return self.summary["label"] + (f" (K={clusters})" if clusters else "")


def arrays_of(served: Served) -> dict[str, Any]:
    """The named arrays of a served model: its own, or each part's with a prefix, as in `Ensemble`'s state."""
    if len(served.models) == 1:
        return served.models[0].arrays()
    return {f"parts.{i}.{name}": a for i, model in enumerate(served.models) for name, a in model.arrays().items()}


def save_served(folder: Path, name: str, served: Served, model: Mapping[str, Any], rounds: int) -> None:
    """Writes what is predicted with, for `read_model`.

    Args:
        folder: where to; it is made.
        name: of the file, without its ending: a slot or a participant.
        served: one model or several.
        model: the module's ``{"class_path", "args"}``.
        rounds: rounds completed.
    """
    meta: dict[str, Any] = {"slot": name, "round": rounds, "model": unmarked(model)}
    if len(served.models) > 1:
        meta["ensemble"] = {"parts": len(served.models), "vote": served.vote}
    folder.mkdir(parents=True, exist_ok=True)
    save_arrays(folder / f"{name}.safetensors", arrays_of(served), meta)


@dataclass(frozen=True)
class Features:
    """The participants' features in one round, as far as their Gram matrix tells.

    Attributes:
        round: which.
        gram: ``(n + K, n + K)`` inner products of the n participants' features, then of the K centres after the round.
        participants: the n names.
        clusters: their clusters.
    """

    round: int
    gram: np.ndarray
    participants: tuple[str, ...]
    clusters: tuple[int, ...]


def read_features(path: Path) -> Features:
    """Reads one round's.

    Raises:
        PayloadError: the file is damaged.
    """
    arrays, meta = load_arrays(path)
    return Features(meta["round"], arrays["gram"], tuple(meta["participants"]), tuple(meta["clusters"]))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file that may still be growing; none if it is not there yet."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def cut_lines(path: Path, recorded: int) -> list[dict[str, Any]]:
    """Takes the lines of later rounds out of a JSON-lines file; returns those that stay."""
    kept = [line for line in read_lines(path) if line["round"] < recorded] if recorded else []
    if kept:
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        temporary.replace(path)
    else:
        path.unlink(missing_ok=True)
    return kept


def load_run(folder: str | Path) -> Run:
    """Reads a finished run.

    Raises:
        ConfigError: there is none.
    """
    folder = Path(folder)
    if not (folder / SUMMARY).is_file():
        raise ConfigError(f"{folder} holds no finished run: there is no {SUMMARY}")
    try:
        summary = json.loads((folder / SUMMARY).read_text())
        newcomers = json.loads((folder / NEWCOMERS).read_text()) if (folder / NEWCOMERS).is_file() else None
        return Run(folder, summary, read_lines(folder / ROUNDS), read_lines(folder / ASSIGNMENTS), newcomers)
    except ValueError as error:
        raise ConfigError(f"{folder} holds a damaged run: {error}; copy its files again from where it ran") from error


def find_runs(folder: str | Path) -> list[Run]:
    """All finished runs in a folder and below it, in the order of their names.

    Raises:
        ConfigError: there are none.
    """
    found = sorted(path.parent for path in Path(folder).rglob(SUMMARY))
    if not found:
        raise ConfigError(f"{folder} holds no finished run: no {SUMMARY} in it or below it")
    return [load_run(path) for path in found]


def the_run(folder: str | Path) -> Path:
    """The folder of the only run below this one.

    Raises:
        ConfigError: there is none, or several.
    """
    found = [run.folder for run in find_runs(folder)]
    if len(found) > 1:
        raise ConfigError(f"{folder} holds several runs: {', '.join(map(str, found))}; name one")
    return found[0]


def load_model(run: str | Path, slot: str = GLOBAL, model: torch.nn.Module | None = None) -> torch.nn.Module:
    """A trained model of a run, ready to predict.

    Args:
        run: the run's folder, or one with a single run below it, such as FLARE's own result folder.
        slot: ``"global"`` or ``"cluster-0"``, ...
        model: a module of the run's class to load the weights into; needed where it is not one of cfl_flare's own.

    Raises:
        ConfigError: no such model in the run, or its class is not cfl_flare's and no module was given.
    """
    folder = Path(run) if (Path(run) / MODELS).is_dir() else the_run(run)
    path = folder / MODELS / f"{slot}.safetensors"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.safetensors"))) or "none"
        raise ConfigError(f"{run} has no model {slot!r}; it has: {there}")
    return read_model(path, model)


def read_model(path: Path, model: torch.nn.Module | None = None) -> torch.nn.Module:
    """A model that `save_served` wrote, ready to predict.

    Args:
        path: its file.
        model: a module of its class; needed where that is not one of cfl_flare's own.

    Raises:
        PayloadError: the file is damaged.
        ConfigError: its class is not cfl_flare's and no module was given.
    """
    from torch import nn

    from cfl_flare.training.resident import ResidentModel

    arrays, meta = load_arrays(path)
    spec, ensemble = meta["model"], meta.get("ensemble")
    if model is None:
        if not spec["class_path"].startswith("cfl_flare."):
            raise ConfigError(f"{path} holds a {spec['class_path']}; build one and pass it as model=")
        model = build(spec, nn.Module, "model")
    if ensemble:
        model = Ensemble([copy.deepcopy(model) for _ in range(ensemble["parts"])], ensemble["vote"])
    resident = ResidentModel(model)
    resident.load(Layout.of(model).pack(arrays))
    return resident.module.eval()
