# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Trains a study's candidates in this process, and keeps what it finds in a folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cfl_flare.core.errors import ConfigError, RunFailedError
from cfl_flare.data import ParticipantData
from cfl_flare.data.preparation import agreed_only
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.loop import (
    class_counts,
    class_facts,
    place_participants,
    run_loop,
)
from cfl_flare.engine.observers.bootstrap import Bootstrap
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.site import Site
from cfl_flare.engine.study.candidates import (
    Candidate,
    of_candidate,
    private_layers,
    study_plan,
)
from cfl_flare.engine.study.halving import TEST, VALIDATION
from cfl_flare.engine.study.journal import Search
from cfl_flare.engine.task import Task
from cfl_flare.methods.slots import add_parts
from cfl_flare.results.comparison import AtHospital, Measured
from cfl_flare.results.metrics import RoundMetrics, leading
from cfl_flare.results.store import Checkpoint, Store, StoreError
from cfl_flare.training.bootstrap import SECONDS
from cfl_flare.training.runtime import Place
from cfl_flare.training.tasks import LearningTask

CHECKPOINTS = "checkpoints"
Watch = Callable[[str, int], AbstractContextManager[Callable[[RoundMetrics], None]]]


class InProcess:
    """A `cfl_flare.engine.study.halving.Trainer` without FLARE.

    Each candidate is a run of the loop in its own folder, which trains on and is measured on validation samples; after
    each rung it holds the results so far. What it is on test samples is measured apart, when it is asked for.

    Args:
        plan: what all candidates share; its method and its private layers are replaced.
        out: the study's folder.
        watch: opened for each training with its name and number of rounds; what it yields is called with each round.
        say: called with one line now and then, while measuring takes long.
    """

    def __init__(
        self,
        plan: RunPlan,
        out: Path,
        watch: Watch = lambda name, rounds: nullcontext(lambda measured: None),
        say: Callable[[str], None] = lambda line: None,
    ):
        self.plan = plan = study_plan(plan)
        assert plan.reader is not None and plan.training is not None
        self.reader, self.training = plan.reader, plan.training
        self.out, self._watch, self._say = out, watch, say
        self.rounds = plan.server.num_rounds
        self.module = plan.make_model()
        self._hosted: dict[str, list[ParticipantData]] = {}
        site = Site(plan.method, plan.make_model, plan.training, plan.server.seed)
        site.add(self.hosted(VALIDATION))
        self.remarks = site.remarks
        task = site.runtime.task
        self.plan = plan = replace(
            plan, server=plan.server.judged(task, site.runtime.division.layout)
        )
        self.metric = leading(
            plan.server.early_stopping.named, [*task.ranges(self.training.measures)]
        )
        self.names = [*site.hosted]

    def hosted(self, split: str) -> list[ParticipantData]:
        """The participants, whose test samples are those of this split."""
        if split not in self._hosted:
            on: Literal["test", "validation"] = (
                "test" if split == TEST else "validation"
            )
            config = replace(self.plan.data, measured_on=on)
            with agreed_only(self.training.privacy is not None):
                self._hosted[split] = config.host(self.reader, "local", 0, 1)
        return self._hosted[split]

    @property
    def most_clusters(self) -> int:
        """How many clusters can be as large as each has to be."""
        places = place_participants(list(self.names), self.plan.sites)
        samples = sum(len(data.train) for data in self.hosted(VALIDATION))
        floor = self.plan.server.floor
        return floor.clusters(list(places.values()), samples)

    def search(self) -> Search:
        return Search.made(self.train, self.out, self.rounds)

    def private_layers(self, candidate: Candidate) -> str | None:
        return private_layers(self.module, candidate.method, self.training.built_task())

    def train(self, candidate: Candidate, rounds: int) -> None:
        """Trains a candidate until it has so many rounds, from its last checkpoint."""
        plan = of_candidate(self.plan, candidate)
        plan = replace(
            plan, training=replace(self.training, bootstrap=0), until=rounds
        )  # `measured` draws
        with self._watch(candidate.name, rounds) as on_round:
            run_loop(
                plan,
                self.out / candidate.name,
                on_round,
                Checkpoints(self._store(candidate.name), every=10),
            )

    def _store(self, name: str) -> Store:
        return Store(self.out / CHECKPOINTS / name)

    def measured(self, candidate: Candidate, rounds: int, split: str) -> Measured:
        """What every participant measures of a candidate, as its last checkpoint has it.

        Raises:
            RunFailedError: it has no checkpoint of this round, or measuring failed.
        """
        plan = of_candidate(self.plan, candidate)
        device, seed = (
            Place.of(plan.site.device, plan.site.gpu_memory).device,
            plan.server.seed,
        )
        site = Site(
            plan.method,
            plan.make_model,
            self.training,
            seed,
            device=device,
            private=plan.job.private,
        )
        site.add(self.hosted(split))
        checkpoint, _ = Checkpoint.read(
            self._store(candidate.name), site.runtime.division.layout
        )
        state = checkpoint.state
        if state.round != rounds:
            raise RunFailedError(
                f"study: {candidate.name} has {state.round} rounds, not {rounds}; use a new folder"
            )
        site.memory.update(
            {name: dict(memory) for name, memory in checkpoint.memory.items()}
        )
        key, measured = f"served_{self.metric.name}", dict[str, AtHospital]()
        counts = class_counts(site.runtime.task, self.hosted(split))
        said = time.monotonic()
        for number, (name, data) in enumerate(site.hosted.items()):
            if time.monotonic() - said > SECONDS:
                said = time.monotonic()
                self._say(
                    f"measuring {candidate.name} on {split} samples: {number} of {len(site.hosted)} hospitals so far"
                )
            draws = {
                Bootstrap.key: {
                    "times": self.training.bootstrap,
                    "measures": [self.metric.name],
                }
            }
            task = Task.of(
                plan.method.distribute(state, name), train=False, evaluate=True
            )
            task = replace(task, questions=draws)
            result = site.carry_out(
                name, task, add_parts(state.bank, list(task.needed)), rounds
            )
            if result.error is not None:
                raise RunFailedError(
                    f"study: {candidate.name} cannot be measured at {name}: {result.error}"
                )
            drawn = result.answers.get(Bootstrap.key)
            if key in result.metrics and drawn is not None:
                values = np.array(drawn["values"].get(key, ()), np.float64)
                facts = (len(data.train), len(data.test), drawn["draw"])
                measured[name] = AtHospital(
                    *facts,
                    result.metrics[key],
                    values,
                    counts.get(name, ()),
                    _count_events(site.runtime.task, data),
                )
        if not measured:
            raise RunFailedError(
                f"study: no participant measured {self.metric.name} on {split} samples"
            )
        return measured

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps the study's folder to itself meanwhile; a ConfigError if another process has it."""
        store = self._store("")
        try:
            store.lock()
        except StoreError as error:
            way_out = "wait until it is done, or name a new folder"
            raise ConfigError(
                f"study: another process works in {str(self.out)!r}; {way_out}"
            ) from error
        try:
            yield
        finally:
            store.unlock()

    def described(
        self, candidates: Sequence[Candidate], settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What makes two studies the same, for their files, as JSON values."""
        plan = self.plan
        return {
            "model": plan.model,
            "source": plan.source,
            "data": asdict(plan.data),
            "run": asdict(plan.server.in_simulation()),
            "training": asdict(self.training),
            **class_facts(self.reader, self.training.built_task(), self.hosted(TEST)),
            "candidates": [candidate.described() for candidate in candidates],
            "study": dict(settings),
        }

    def clean(self) -> None:
        """Deletes the checkpoints of a finished study."""
        shutil.rmtree(self.out / CHECKPOINTS, ignore_errors=True)


def _count_events(task: LearningTask, data: ParticipantData) -> int | None:
    """How many of the samples that are measured have an event; None where the task is no survival."""
    if task.form != "time":
        return None
    return int(data.test.y[:, 1].sum())
