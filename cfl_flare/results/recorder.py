# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Writes a run's folder, round by round; `cfl_flare.results.run_dir` says what is in it and reads it back."""

from __future__ import annotations

import csv
import io
import json
import logging
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from cfl_flare.clustering.gap import NUMBER
from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.config import require, unmarked
from cfl_flare.core.errors import FileError
from cfl_flare.core.files import append, atomic_write, make_folder, writing
from cfl_flare.data.preparation import Preparation
from cfl_flare.methods import Method, Participant, ServerState, describe_method
from cfl_flare.results import run_dir
from cfl_flare.results.ancestry import ANCESTRY, Ancestry
from cfl_flare.results.bootstrap import BOOTSTRAP, Draws
from cfl_flare.results.curves import CURVES
from cfl_flare.results.gate import ATTACKED
from cfl_flare.results.metrics import Metric, RoundMetrics
from cfl_flare.results.model_file import CLASSES
from cfl_flare.results.remarks import IMPROVING, improving, missed_rounds
from cfl_flare.results.served import save_served
from cfl_flare.results.store import Store, state_metadata
from cfl_flare.training.bootstrap import Replicates
from cfl_flare.training.ensemble import Served

logger = logging.getLogger(__name__)


class Recorder:
    """Writes a run's results. What cannot be written ends the run: each method raises a FileError.

    Args:
        folder: where to; created if it does not exist.
        run: the run's settings, for the summary: data, partition, training.
        model: the model's ``{"class_path", "args"}``, stored with the weights.
        recorded: rounds that an interrupted run recorded here and that are kept.
        last: the last round that was measured, before the run and in its course.

    Raises:
        ConfigError: the rounds to keep are not here.

    Attributes:
        membership: what attacks reached on the models so far; None if nobody set a bound, and nobody attacks.
    """

    def __init__(
        self,
        folder: Path,
        run: Mapping[str, Any],
        model: Mapping[str, Any],
        recorded: int = 0,
        last: RoundMetrics | None = None,
    ):
        self.folder, self._run, self._model, self.last = (
            folder,
            unmarked(run),
            unmarked(model),
            last,
        )
        self.membership: Mapping[str, Any] | None = None
        self._task = (self._run.get("training") or {}).get("task", CLASSES)
        self._draws: Draws | None = None
        make_folder(folder / run_dir.MODELS)
        names = (
            run_dir.STARTED,
            run_dir.SUMMARY,
            run_dir.NEWCOMERS,
            run_dir.CROSS_SITE,
            BOOTSTRAP,
            CURVES,
        )
        old = [folder / name for name in names]
        old += [
            path
            for part in (run_dir.MODELS, run_dir.SERVED)
            for path in (folder / part).glob("*.safetensors")
        ]
        old += (folder / run_dir.STATE).glob("round-*")
        if not recorded:  # later rounds overwrite theirs
            old += (folder / run_dir.FEATURES).glob("*.safetensors")
            shutil.rmtree(folder / run_dir.BEST, ignore_errors=True)
        for path in old:
            path.unlink(missing_ok=True)
        records = run_dir.cut_lines(folder / run_dir.ROUNDS, recorded)
        run_dir.cut_lines(folder / run_dir.ASSIGNMENTS, recorded)
        require(
            len(records) == recorded,
            f"{folder} holds {len(records)} of the {recorded} rounds to resume from",
        )
        self._totals = {
            key: sum(line[key] for line in records)
            for key in ("bytes_down", "bytes_up", "seconds")
        }

    def begin(self, label: str, rounds: int) -> None:
        """Write the run's plan, from which `show` counts the missing rounds of a run without results.

        Args:
            label: the method's name with its settings.
            rounds: the planned number of rounds.
        """
        atomic_write(
            self.folder / run_dir.STARTED,
            json.dumps({"label": label, "rounds": rounds}),
        )

    def round(
        self,
        measured: RoundMetrics,
        state: ServerState,
        participants: Mapping[str, Participant],
    ) -> None:
        number, trained = measured.record["round"], set(measured.record["trained"])
        lines = [
            {
                "round": number,
                "participant": n,
                "cluster": state.assignment.get(n),
                "trained": n in trained,
            }
            for n in participants
        ]
        for name, new in (
            (run_dir.ROUNDS, [measured.record]),
            (run_dir.ASSIGNMENTS, lines),
        ):
            append(self.folder / name, "".join(json.dumps(line) + "\n" for line in new))
        for key in self._totals:
            self._totals[key] += measured.record[key]
        if measured.participants:
            self.last = measured

    def features(
        self, number: int, products: np.ndarray, clusters: Mapping[str, int]
    ) -> None:
        """Writes the inner products of a round's features: the participants' in this order, then the centres'."""
        make_folder(self.folder / run_dir.FEATURES)
        meta = {
            "round": number,
            "participants": list(clusters),
            "clusters": list(clusters.values()),
        }
        save_arrays(
            self.folder / run_dir.FEATURES / f"round-{number:04d}.safetensors",
            {"gram": products},
            meta,
        )

    def best(self, models: Mapping[str, Served], rounds: int) -> None:
        """Replaces the models of the best round so far by those after this number of rounds."""
        new = self.folder / (run_dir.BEST + ".tmp")
        shutil.rmtree(new, ignore_errors=True)
        try:
            for slot, served in models.items():
                save_served(
                    new / run_dir.MODELS,
                    slot,
                    served,
                    self._model,
                    rounds,
                    self._task,
                    gate=self._gate,
                )
        except FileError:
            shutil.rmtree(new, ignore_errors=True)
            raise
        shutil.rmtree(self.folder / run_dir.BEST, ignore_errors=True)
        if models:
            with writing(self.folder / run_dir.BEST):
                new.rename(self.folder / run_dir.BEST)

    @property
    def _gate(self) -> dict[str, Any]:
        """The facts by which a model of this run is judged, for its file, which names no participant."""
        facts: dict[str, Any] = {
            ANCESTRY: Ancestry.of(self._run.get(ANCESTRY)).to_list(names=False)
        }
        if self.membership is not None:
            facts[ATTACKED] = self.membership
        return facts

    def _note_objections(self) -> None:
        """Writes into the files of the best round's models which of the models a member objects to."""
        if self.membership is None or not self.membership["objections"]:
            return
        for path in sorted(
            (self.folder / run_dir.BEST / run_dir.MODELS).glob("*.safetensors")
        ):
            arrays, meta = load_arrays(path)
            save_arrays(
                path, arrays, {**meta, ATTACKED: {**self.membership, "models": {}}}
            )

    def served(
        self,
        name: str,
        served: Served,
        rounds: int,
        preparation: Preparation | None,
        beside: Mapping[str, Served],
    ) -> None:
        """Writes what a simulation's participant predicts with, except for what the run's models have already."""
        save_served(
            self.folder / run_dir.SERVED,
            name,
            served,
            self._model,
            rounds,
            self._task,
            preparation,
            beside,
        )

    def cross_site(
        self,
        measured: Mapping[str, Mapping[str, Mapping[str, float]]],
        participants: Mapping[str, Participant],
        state: ServerState,
    ) -> None:
        """Writes each model's metrics on each participant's test split, one line per participant and model."""
        lines = [
            {
                **metrics,
                "participant": name,
                "site": participants[name].site,
                "group": participants[name].group,
            }
            | {"cluster": state.assignment.get(name), "model": model}
            for name, models in measured.items()
            for model, metrics in models.items()
        ]
        content = io.StringIO(newline="")
        keys = run_dir.CROSS_SITE_KEYS
        writer = csv.DictWriter(content, [*keys, *sorted({*chain(*lines)} - {*keys})])
        writer.writeheader()
        writer.writerows(lines)
        atomic_write(self.folder / run_dir.CROSS_SITE, content.getvalue())

    def bootstrap(
        self,
        drawn: Mapping[str, Replicates],
        participants: Mapping[str, Participant],
        share: float | None = None,
    ) -> None:
        """Writes what the final models reach on draws of the test splits; the summary will have the intervals."""
        draws = Draws.of(drawn, participants, share)
        if draws.values:
            self._draws = draws
            draws.save(self.folder / BOOTSTRAP)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The intervals of the last round's means; none without draws of the test splits."""
        if self._draws is None or self.last is None:
            return {}
        intervals = {}
        for key in self._draws.values:
            points = {
                name: metrics[key]
                for name, metrics in self.last.participants.items()
                if key in metrics
            }
            if (ends := self._draws.of_mean(key, points)) is not None:
                intervals[key] = ends
        return intervals

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
            folder = self.folder / run_dir.MODELS
            save_served(
                folder,
                slot,
                served,
                self._model,
                state.round,
                self._task,
                gate=self._gate,
            )
        left = method.publish(state)
        Store(self.folder / run_dir.STATE).save(
            left.round, left.bank, state_metadata(left), left.arrays
        )
        self._note_objections()
        last, lines, draws = (
            self.last,
            run_dir.read_lines(self.folder / run_dir.ROUNDS),
            self._draws,
        )
        points = {
            p: {} if last is None else last.participants.get(p, {})
            for p in participants
        }
        summary = {
            "method": describe_method(method),
            "label": method.label,
            "clusters": method.count_clusters(state),
            **self._run,
            "model": self._model,
            "rounds": state.round,
            "final": {} if last is None else last.scalars(),
            "final_round": None if last is None else last.record["round"],
            **({} if draws is None else {"intervals": self.intervals}),
            **self._totals,
            **next(({NUMBER: line[NUMBER]} for line in lines if NUMBER in line), {}),
            "missed": {n: asdict(m) for n, m in missed_rounds(lines).items()},
            **extra,
            "participants": [
                {
                    **p.check_in(),
                    "cluster": state.assignment.get(p.name),
                    **points[p.name],
                    **(
                        {}
                        if draws is None
                        else {"intervals": draws.intervals(p.name, points[p.name])}
                    ),
                }
                for p in participants.values()
            ],
            "versions": {
                n: version(n)
                for n in ("cfl-flare", "nvflare", "torch", "numpy", "scikit-learn")
            }
            | {"python": platform.python_version()},
        }
        metric = extra.get("metric")
        why = None
        if metric and metric["mode"] is not None and extra.get("stopped") is None:
            why = improving(lines, Metric(**metric))
        if why is not None:
            summary[IMPROVING] = why
            logger.warning("run: %s", why)
        atomic_write(self.folder / run_dir.SUMMARY, json.dumps(summary, indent=1))
