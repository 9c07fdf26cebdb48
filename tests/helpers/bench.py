# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A whole job in one process: the real controller and aggregator, three sites, and what one of them changes.

What travels is written and read by FLARE's own serializer, and results are taken by FLARE's own controller code.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.apis.workspace import Workspace
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.utils import fobs

from cfl_flare.core.config import describe
from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.task import Result
from cfl_flare.engine.task import Task as Asked
from cfl_flare.flare import ClusteringAggregator, wire
from cfl_flare.flare.controller import ClusteredController
from cfl_flare.flare.persistor import ClusterModelPersistor
from cfl_flare.methods import Method, Update, build_method
from cfl_flare.models import Logistic
from cfl_flare.results.curves import CURVES, Curves, load_curves
from cfl_flare.training.learner import Learner
from cfl_flare.training.runtime import Runtime, Split
from cfl_flare.training.settings import TrainSettings
from tests.helpers.kits import write_kit

flare_decomposers.register()
common_decomposers.register()
SITES = ("site-1", "site-2", "site-3")
HOSTILE = "site-2"
PEOPLE = {"site-1": ("p0", "p1"), "site-2": ("p2", "p3"), "site-3": ("p4", "p5")}
EVERYONE = [name for names in PEOPLE.values() for name in names]
MODEL = Logistic((1, 2, 2), 2)
LAYOUT = Layout.of(MODEL)
ROUNDS = 2
BINS = 10
# Methods whose participants send more than a model of theirs: they compute it on data.
LATER: dict[str, dict[str, Any]] = {
    "clove": {"k": 2},
    "cfl-gp": {"k": 2},
    "groups": {"groups": ["0", "1"]},
}

# Changes what the hostile site sends: (task, round, honest answer) -> answer; None sends none.
Attack = Callable[[str, int, Shareable], Shareable | None]


def samples_of(name: str) -> int:
    """How much data an honest participant has."""
    return 20 + EVERYONE.index(name)


def answer_check_in(site: str, names_groups: bool = False) -> Shareable:
    """An honest site's check-in."""
    groups = {name: EVERYONE.index(name) % 2 for name in PEOPLE[site]}
    hosted: list[dict[str, Any]] = [
        {"name": name, "samples": samples_of(name), "group": groups[name], "tested": True} for name in PEOPLE[site]
    ]
    for one in hosted if names_groups else ():
        one["label"] = str(groups[one["name"]])
    return wire.to_shareable({}, {"participants": hosted})


def scores_of(name: str) -> np.ndarray:
    """An honest participant's histograms of scores and its decisions, where a job asks for them."""
    counts = np.zeros((2, 2, BINS + 1), np.int32)
    extra = EVERYONE.index(name) % 2
    counts[1, 0, : BINS // 2 + extra], counts[1, 1, BINS // 2 : BINS] = 1, 2
    counts[0, :, :BINS] = counts[1, ::-1, BINS - 1 :: -1]  # of two classes, one's rank is the other's reversed
    counts[1, :, BINS], counts[0, :, BINS] = (extra, BINS), (0, BINS // 2)
    return counts


RUNTIME = Runtime(lambda: Logistic((1, 2, 2), 2), TrainSettings(lr=0.1, local_steps=2, batch_size=8), seed=0)


def compute_update(
    method: Method, name: str, asked: Asked, models: Mapping[str, Params], number: int, memory: Any
) -> Update:
    """What an honest participant computes on its data, whose labels the two groups name differently."""
    x = np.random.default_rng(EVERYONE.index(name)).normal(size=(samples_of(name), 1, 2, 2)).astype(np.float32)
    split = Split.of(x, (x[:, 0, 0, 0] > 0).astype(np.int64) ^ (EVERYONE.index(name) % 2))
    learner = Learner(RUNTIME, name, split, split, memory.setdefault(name, {}), number)
    return method.local_update(learner, asked.download(models))


def answer_task(task: Shareable, scored: bool = False, method: Method | None = None, memory: Any = None) -> Shareable:
    """An honest site's results: each participant moves the way of its group, or computes what a method asks for."""
    tasks, models, content = wire.decode_task(task, LAYOUT)
    found = []
    for name, asked in tasks.items():
        number, group = EVERYONE.index(name), EVERYONE.index(name) % 2
        noise = np.random.default_rng((number, content["round"])).normal(0, 0.01, LAYOUT.size)
        moved = Params(LAYOUT, (noise + (1 if group else -1) * 0.1).astype(np.float32))
        metrics = {"served_accuracy": 0.5 + 0.02 * number, "served_loss": 1.0} if asked.evaluate else {}
        chosen = group if asked.choices else None
        slot = asked.choices[group] if asked.choices else asked.slots[0]
        update = Update(name, samples_of(name), {slot: moved}, chosen) if asked.train else None
        if asked.train and method is not None:
            update = compute_update(method, name, asked, models, content["round"], memory)
        found.append(
            Result(name, update, {"metrics": metrics, "scores": scores_of(name) if scored and asked.evaluate else None})
        )
    return wire.encode_results(found, {"round": content["round"]})


@dataclass
class Run:
    """What a job left.

    Attributes:
        controller: which ran it.
        models: the server's models at the end.
        panics: why it ended, if it was ended.
        log: the lines of its log.
        records: of its rounds.
        curves: what it kept of histograms of scores, checked as a reader does; None without a file.
    """

    controller: ClusteredController
    models: Mapping[str, np.ndarray]
    panics: list[str]
    log: list[str]
    records: list[dict[str, Any]]
    curves: Curves | None

    @property
    def left_out(self) -> dict[str, str]:
        """The sites that did not take part, with the reasons."""
        return self.controller.left_out

    def trained(self, number: int) -> set[str]:
        """The hostile site's participants that trained in a round."""
        return set(self.records[number]["trained"]) & set(PEOPLE[HOSTILE])


@dataclass
class _Bench:
    """FLARE's part: the engine, and the communicator that takes each task to its site."""

    attack: Attack
    scored: bool = False
    method: Method | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    controller: Any = None
    components: dict[str, Any] = field(default_factory=dict)
    panics: list[str] = field(default_factory=list)

    def send(self, task: Task, fl_ctx: FLContext, targets: list[str], *_: Any) -> None:
        (site,) = targets
        asked = fobs.loads(fobs.dumps(task.data))
        said: Shareable | None
        if task.name == wire.CHECK_TASK:
            said = answer_check_in(site, self.method is not None and bool(self.method.traits.named_groups))
        else:
            said = answer_task(asked, self.scored, self.method, self.memory)
        if site == HOSTILE and said is not None:
            number = -1 if task.name == wire.CHECK_TASK else self.controller.aggregator.running.state.round
            said = self.attack(task.name, number, said)
        if said is None:
            return
        answer = ClientTask(Client(site, "token"), task)
        answer.result = fobs.loads(fobs.dumps(said))
        task.result_received_cb(answer, fl_ctx)

    def fire_event(self, event: str, fl_ctx: FLContext) -> None:
        if event == "_fatal_system_error":
            self.panics.append(str(fl_ctx.get_prop("__event_data__")))


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside it, it gets all that is logged."""
        root, level = logging.getLogger(), logging.getLogger().level
        root.addHandler(self)
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(self)
            root.setLevel(level)


def play_job(
    attack: Attack,
    method: Mapping[str, Any],
    policy: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> Run:
    """Runs a job in which the hostile site's answers pass an attack."""
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync"):  # no disk is waited for a thousand times
        place = write_kit(Path(folder) / "server", real=False, **(policy or {}))
        computes = method["method"] in LATER
        bench = _Bench(attack, "score_bins" in training, build_method(dict(method)) if computes else None)
        engine = SimpleNamespace(
            get_workspace=lambda: Workspace(str(place), "server"),
            get_clients=lambda: [Client(site, "token") for site in SITES],
            get_component=bench.components.get,
            fire_event=bench.fire_event,
            new_context=lambda: nullcontext(fl_ctx),
        )
        fl_ctx = FLContext()
        for key, value in {"ENGINE": engine, "IDENTITY_NAME": "server", "RUN_NUM": "job"}.items():
            fl_ctx.set_prop(getattr(ReservedKey, key), value)
        data = {"participants": len(EVERYONE), "partition": {"partition": "iid"}}
        settings = {"num_rounds": ROUNDS, "seed": 0, **settings}
        controller = ClusteredController(facts={"data": data, "training": dict(training)}, **settings)
        aggregator = ClusteringAggregator(dict(method), describe(MODEL, "model"))
        aggregator.fl_ctx = fl_ctx
        bench.components.update(aggregator=aggregator, persistor=ClusterModelPersistor("run"))
        controller.communicator = SimpleNamespace(send=bench.send, get_num_standing_tasks=lambda: 0)
        controller._present = lambda folder: None
        bench.controller = controller
        records: list[dict[str, Any]] = []
        lines = _Lines()
        with lines.listening():
            controller.start_controller(fl_ctx)
            controller.control_flow(Signal(), fl_ctx)
        text = next(Path(folder).rglob("rounds.jsonl"), None)
        if text is not None:
            records = [json.loads(line) for line in text.read_text().splitlines()]
        server = aggregator.server
        models = {} if server is None else {slot: model.vector.copy() for slot, model in server.state.bank.items()}
        kept = next(Path(folder).rglob(CURVES), None)
        curves = None if kept is None else load_curves(kept.parent)
        return Run(controller, models, bench.panics, lines.lines, records, curves)
