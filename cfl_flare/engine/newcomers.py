# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Newcomers: participants that were not in training join a finished run, whose models stay as they are.

One procedure serves all methods, since each of them can handle a late participant: a newcomer takes part in rounds of
its own, in which none of the server's models changes. It does so until it is placed in a cluster, and then once
more as a member. So its own part (a head, a personal model) is trained there. Each newcomer joins separately, and
changes nothing for the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cfl_flare.core.config import build, from_dict, one_line, require, require_whole
from cfl_flare.core.errors import (
    CFLError,
    ConfigError,
    DataError,
    PayloadError,
    RunFailedError,
)
from cfl_flare.core.files import atomic_write, check_memory
from cfl_flare.core.text import shown
from cfl_flare.data import DataConfig, DataSource, ParticipantData
from cfl_flare.data.splits import read_indicator
from cfl_flare.engine.indicator import Logits, logits_for
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, Task, check_arrays
from cfl_flare.methods import Groups, Method, ServerState, build_method
from cfl_flare.methods.slots import add_parts, is_cluster
from cfl_flare.methods.state import Predict
from cfl_flare.results.gate import check_file
from cfl_flare.results.metrics import average, leading, reported
from cfl_flare.results.model_file import CLASSES, is_ours, layout_of, model_of
from cfl_flare.results.run_dir import MODELS, NEWCOMERS, STATE, load_run, the_run
from cfl_flare.results.schema import count
from cfl_flare.results.served import save_served
from cfl_flare.results.store import Store, state_of
from cfl_flare.training.ensemble import Served
from cfl_flare.training.settings import TrainSettings

# A method that has not placed a newcomer after this number of rounds never will.
MOST = 100


@dataclass(frozen=True)
class Newcomer:
    """A participant that has joined a finished run.

    Attributes:
        cluster: its cluster; None if the method has none.
        rounds: the number of rounds that it took part in.
        served: what it predicts with.
        metrics: ``served_accuracy``, ``served_macro_f1``, ... on its own test split.
    """

    name: str
    cluster: int | None
    rounds: int
    served: Served
    metrics: dict[str, float]


def join_run(
    method: Method,
    state: ServerState,
    site: Site,
    name: str,
    logits: Predict | None = None,
    rounds: int = 1,
) -> Newcomer:
    """Lets a participant of a site join a finished run, whose state is not changed.

    Args:
        logits: what models predict on the indicator samples, for a method that needs it.
        rounds: how many it takes part in once it is placed.

    Raises:
        RunFailedError: it cannot be trained, or the method never places it.
    """
    require_whole("newcomer", rounds=rounds)
    site.memory[name] = {}
    first = state.round
    stayed = 0
    while stayed < rounds:
        placed = is_placed(method, state, name)
        if not placed and state.round - first >= MOST:
            raise RunFailedError(
                f"{name}: method {method.label} gave it no cluster in {MOST} rounds"
            )
        update = _result(method, state, site, name, train=True).update
        assert update is not None
        state = method.join(replace(state, logits=logits), update)
        stayed += placed
    # In its last round, not the next, so that it chooses its cluster by the same samples as before.
    seen: dict[str, Served] = {}
    result = _result(
        method,
        replace(state, round=state.round - 1),
        site,
        name,
        train=False,
        on_served=seen.__setitem__,
    )
    if not all(map(math.isfinite, result.metrics.values())):
        raise RunFailedError(
            f"{name}: its metrics are not finite: {result.metrics}; look for outliers in its samples"
        )
    return Newcomer(
        name,
        state.assignment.get(name),
        state.round - first,
        seen[name],
        dict(result.metrics),
    )


def is_placed(
    method: Method,
    state: ServerState,
    name: str,
) -> bool:
    """Whether a participant is sent the model of the cluster in which it will stay, or there is none for it.

    Args:
        method: the method.
        state: the state of the finished run.
        name: the newcomer's name.
    """
    sent = method.distribute(state, name)
    if not method.count_clusters(state) or not sent.trains:
        return True
    return name in state.assignment and any(map(is_cluster, sent.slots))


def _result(
    method: Method,
    state: ServerState,
    site: Site,
    name: str,
    train: bool,
    **settings: Any,
) -> Result:
    sent = method.distribute(state, name)
    task = Task.of(sent, train=train, evaluate=not train)
    result = site.carry_out(
        name, task, add_parts(state.bank, task.slots), state.round, **settings
    )
    if result.error is not None:
        raise RunFailedError(
            f"{name} failed: {result.error}: {result.traceback.strip().splitlines()[-1]}"
        )
    update = result.update
    if update is None:
        return result
    if not all(np.isfinite(d.vector).all() for d in update.diffs.values()):
        raise RunFailedError(
            f"{name}: its training ended with NaN or infinity; look for outliers in its samples"
        )
    check_arrays(name, update.arrays, sent.arrays)
    main = next(iter(sent.list_expected(update.cluster)), None)
    return replace(result, update=replace(update, main=main))


def describe_joining(method: Method) -> str:
    """The rule by which newcomers are placed, in a few words; empty if there are no clusters.

    Args:
        method: the method.
    """
    return method.traits.joins_by or (
        "the method's own assignment" if method.clusters else ""
    )


class Finished:
    """A finished run, ready to be joined, with its method and the server's state at its end.

    Args:
        run: its folder, or one with a single run below it.
        authorize: asked for each class path that the run names before it is imported; raises to refuse it. None if
            there is no policy.

    Raises:
        ConfigError: there is no finished run, it kept no state, or nobody in it has a cluster.
        GateError: one of its models may go to nobody but its members; a newcomer may be sent each of them.
        PayloadError: the state is damaged, or of another model.
    """

    def __init__(
        self,
        run: str | Path,
        authorize: Callable[[str], None] | None = None,
    ):
        self.folder = the_run(run)
        self.summary = load_run(self.folder).summary
        require(
            "train_script" not in self.summary,
            f"{self.folder}: only its own training script computes with its models as they were trained; a newcomer's "
            "site takes part in a run of the script",
        )
        for path in sorted((self.folder / MODELS).glob("*.safetensors")):
            check_file(path)
        store = Store(self.folder / STATE)
        resumable = (
            bool(store.versions()) and {"training", "seed"} <= self.summary.keys()
        )
        require(
            resumable,
            f"{self.folder} kept no state that a newcomer could join; run it again",
        )
        with self._reading():
            spec = model_of(self.summary, self.folder)
            self.make_model = partial(build, spec, nn.Module, "model", authorize)
            if is_ours(
                spec
            ):  # before memory is allocated for it, as another's arguments may ask for any amount
                layout = layout_of(spec)
                store.load(store.versions()[-1], layout)
                check_memory(
                    4 * layout.nbytes, f"{self.folder}: its model"
                )  # built, flat, gradients, an update
            self.method = build_method(self.summary["method"], authorize)
            require_whole(str(self.folder), seed=self.summary["seed"] + 1)
            training = from_dict(
                TrainSettings, {**self.summary["training"], "dp": None}, "training"
            )  # nothing leaves
            seed = self.summary["seed"]
            private = self.summary.get("private")
            self._site = Site(
                self.method,
                self.make_model,
                training,
                seed,
                authorize=authorize,
                private=private,
            )
            self.state = state_of(
                *store.load(store.versions()[-1], self._site.runtime.resident.layout)
            )
            most = max(
                len(self.summary["participants"]) * max(1, self.state.round),
                len(self.state.bank),
            )
            clusters = self.method.count_clusters(self.state)
            known = all(
                count(k) and k < clusters for k in self.state.assignment.values()
            )
            require(
                clusters <= most and known,
                f"{self.folder}: {clusters} clusters of {most} participants do not fit its state; the run is damaged",
            )
        joinable = not self.method.clusters or bool(self.state.assignment)
        require(
            joinable,
            f"{self.folder}: nobody in this run has a cluster, so a newcomer cannot get one either",
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns what damaged or foreign files of a run lead to into one error."""
        try:
            yield
        except CFLError:
            raise
        except Exception as error:  # nothing that is in the files can be relied on
            raise PayloadError(
                "damaged_file",
                f"{self.folder} cannot be joined ({one_line(error)}); copy its files again from its run",
            ) from error

    def logits(self, file: str | None = None) -> Predict | None:
        """What models predict on the indicator samples; None for a method that needs none.

        Args:
            file: where they are, in MedMNIST's layout; None for the file that the run's own settings name.

        Raises:
            ConfigError: the method needs a file and there is none, or it needs none.
            DataError: it cannot be read, or does not fit the model.
        """
        wanted = self.method.traits.indicator
        where = f"method {self.method.label}"
        if wanted is None:
            require(
                file is None,
                f"{where}: needs no indicator samples; leave --indicator-file out",
            )
            return None
        each = f"{wanted.per_class} indicator samples of each class"
        path = file or wanted.file
        if path is None:
            raise ConfigError(
                f"{where}: compares models on {each}; name a file with them: --indicator-file samples.npz"
            )
        try:
            return Logits(
                self.make_model,
                read_indicator(path, wanted.per_class, self.summary["seed"]),
            )
        except DataError as error:
            raise DataError(
                f"{where}: compares models on {each} (--indicator-file): {error}"
            ) from error

    def join(
        self,
        data: ParticipantData,
        logits: Predict | None = None,
        rounds: int = 1,
        group: str | None = None,
    ) -> Newcomer:
        """Lets a participant join; see `join_run`. ``group`` is its label, after a run of given groups.

        A ConfigError says that its name is taken, or that there is no such group.

        Args:
            data: the newcomer's samples.
            logits: predicts on the indicator samples; None for a method that needs
                none.
            rounds: rounds in which a newcomer takes part once it has a cluster.
            group: the newcomer's label; None for none.
        """
        method = self.method
        state = self.state
        if group is not None:
            if not isinstance(method, Groups):
                raise ConfigError(
                    f"{self.folder}: method {method.label} places newcomers itself; leave --group out"
                )
            there = ", ".join(map(shown, method.labels[:20]))
            known = (
                f"method groups: no group {shown(group)} was trained; there are {there}"
            )
            require(group in method.labels, known)
            state = replace(state, labels={**state.labels, data.name: group})
        taken = [p["name"] for p in self.summary["participants"]]
        require(
            data.name not in taken,
            f"newcomer: {data.name!r} is a participant of the run; give it another name",
        )
        self._site.add([data])
        with self._reading():
            return join_run(method, state, self._site, data.name, logits, rounds)

    def save(
        self,
        newcomer: Newcomer,
        folder: Path,
    ) -> Path:
        """Writes what a newcomer predicts with into a folder, for `read_model` of the results; returns the file.

        Args:
            newcomer: the newcomer.
            folder: where to write.
        """
        task = self.summary["training"].get("task", CLASSES)
        preparation = self._site.hosted[newcomer.name].preparation
        save_served(
            folder,
            "model",
            newcomer.served,
            self.summary["model"],
            self.state.round,
            task,
            preparation,
        )
        return folder / "model.safetensors"


def onboard_unseen(
    run: str | Path,
    source: DataSource,
    rounds: int = 1,
) -> dict[str, Any]:
    """Lets all participants that a simulation held back join its finished run, each separately.

    Means are weighted by n_i, as in the run's own summary. Each takes part in ``rounds`` rounds once it is placed.

    Args:
        run: the folder of the run.
        source: the data source of the run.
        rounds: rounds in which a newcomer takes part once it has a cluster.

    Returns:
        The content of ``newcomers.json`` in the run's folder: means, an entry for each that joined, and why others
        failed.

    Raises:
        ConfigError: the run held nobody back.
        CFLError: as for `Finished`.
    """
    torch.set_num_threads(1)  # as in the run itself
    finished = Finished(run)
    data = from_dict(DataConfig, finished.summary["data"], "data")
    people = data.newcomers(source)
    require(
        bool(people),
        f"{finished.folder}: this run held no participants back; set unseen in its data",
    )
    logits = logits_for(
        finished.method,
        finished.make_model,
        data,
        lambda: source,
        finished.summary["seed"],
    )
    joined = {}
    failed = {}
    for person in people:
        try:
            joined[person.name] = finished.join(person, logits, rounds)
        except RunFailedError as error:  # one failure must not stop the others
            failed[person.name] = str(error)
    metrics = {name: newcomer.metrics for name, newcomer in joined.items()}
    metric = leading((), reported(metrics.values(), sum(map(bool, metrics.values()))))
    key = f"served_{metric.name}"
    worst = metric.worst_first(
        (name, measured[key]) for name, measured in metrics.items() if key in measured
    )
    content = {
        "joins_by": describe_joining(finished.method),
        "rounds": rounds,
        **average(
            metrics, {person.name: float(len(person.train)) for person in people}
        ),
        f"served_worst_{metric.name}": worst[0][1] if worst else None,
        "failed": failed,
        "participants": [
            {
                "name": person.name,
                "samples": len(person.train),
                "group": person.group,
                "cluster": joined[person.name].cluster,
                "rounds": joined[person.name].rounds,
                **metrics[person.name],
            }
            for person in people
            if person.name in joined
        ],
    }
    atomic_write(finished.folder / NEWCOMERS, json.dumps(content, indent=1))
    return content
