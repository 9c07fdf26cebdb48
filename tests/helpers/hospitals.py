# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs at real sites, in one process: the real controller, and a real executor with data of its own at each site.

Jobs differ in the sites that take part, as their author chooses them. What travels is written and read by FLARE's own
serializer, and results are taken by FLARE's own controller code.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.apis.workspace import Workspace
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.utils import fobs

from cfl_flare.core.config import describe, marked
from cfl_flare.data import SiteData
from cfl_flare.flare import ClusteringAggregator
from cfl_flare.flare.controller import ClusteredController
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.persistor import ClusterModelPersistor
from cfl_flare.models import Logistic
from tests.helpers.kits import write_kit

flare_decomposers.register()
common_decomposers.register()
MODEL = describe(Logistic((1, 4, 4), 2), "model")
# Each round a site takes one step on all of its samples.
TRAINING = {"lr": 0.1, "local_steps": 1, "batch_size": 1000}


def read_means(file: Path, array: str = "head.weight") -> list[list[list[str]]]:
    """The sets whose means of an array a server has made, by round: each member is a site and the array's start."""
    rounds = []
    for line in map(json.loads, file.read_text().splitlines()):
        starts = line["starts"].get(array, {})
        sets = [[f"{site} {starts[slot]}" for site, slot in members if slot in starts] for members in line["sets"]]
        rounds.append([members for members in sets if members])
    return rounds


@dataclass
class Job:
    """What a job left.

    Attributes:
        models: the server's at the end.
        updates: what each site sent, by round and site.
        answers: all that each site answered.
        panics: why the job was ended.
        controller: which ran it.
    """

    models: dict[str, np.ndarray] = field(default_factory=dict)
    updates: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)
    answers: list[tuple[str, str, Shareable]] = field(default_factory=list)
    panics: list[str] = field(default_factory=list)
    controller: Any = None

    def failures(self) -> set[str]:
        """The codes that sites answered with."""
        found = (answer["DXO"]["meta"]["cfl"].get("error") for _, _, answer in self.answers)
        return {code for code in found if code is not None}


class Hospitals:
    """Kits whose operators asked for a floor, and the jobs that are submitted to them.

    Args:
        folder: a new one.
        monkeypatch: sets each site's data while it works.
        count: of sites.
        floor: that each site's policy asks for.
        tests: of the last site, its test samples; the others have 40.
        policy: of the server.
        sites_policy: of each site.
    """

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        count: int = 4,
        floor: int = 3,
        tests: int = 40,
        policy: Mapping[str, Any] = MappingProxyType({}),
        sites_policy: Mapping[str, Any] = MappingProxyType({}),
    ):
        self.folder, self._monkeypatch, self._jobs = folder, monkeypatch, 0
        self.names = [f"hospital-{i}" for i in range(1, count + 1)]
        self.root, self.data = folder / "cfl_state", folder
        monkeypatch.setenv("CFL_STATE_ROOT", str(self.root))
        place = write_kit(folder / "server", **policy)
        (place / "startup" / "fed_client.json").rename(place / "startup" / "fed_server.json")
        rng = np.random.default_rng(0)
        for name in self.names:
            write_kit(folder / name, min_sites_per_cluster=floor, **sites_policy)
            images, labels = rng.integers(0, 256, (40, 4, 4), np.uint8), np.arange(40) % 2
            count_tests = tests if name == self.names[-1] else 40
            arrays = {"train_images": images, "train_labels": labels}
            arrays |= {"test_images": images[:count_tests], "test_labels": labels[:count_tests]}
            np.savez(folder / f"{name}.npz", **arrays)

    def context(self, name: str, job: str, title: str, sites: Iterable[str], **more: Any) -> FLContext:
        """FLARE's context of a job's process."""
        fl_ctx = FLContext()
        engine = SimpleNamespace(
            get_workspace=lambda: Workspace(str(self.folder / name), name),
            get_clients=lambda: [Client(site, "token") for site in sites],
            new_context=lambda: nullcontext(fl_ctx),
            **{"fire_event": lambda *event: None, **more},
        )
        for key, value in {"ENGINE": engine, "IDENTITY_NAME": name, "RUN_NUM": job}.items():
            fl_ctx.set_prop(getattr(ReservedKey, key), value)
        fl_ctx.set_prop(FLContextKey.JOB_META, {JobMetaKey.JOB_NAME.value: title})
        (self.folder / name / job).mkdir(exist_ok=True)
        (self.folder / name / job / "meta.json").write_text("{}")
        return fl_ctx

    def submit(
        self,
        sites: Collection[str],
        title: str = "heart",
        method: str = "fedavg",
        method_settings: Mapping[str, Any] = MappingProxyType({}),
        silent: Collection[tuple[int, str]] = (),
        late: str | None = None,
        training: Mapping[str, Any] = TRAINING,
        private: str | None = None,
        model: Mapping[str, Any] = MODEL,
        resume_from: str | None = None,
        initial_ckpt: str | None = None,
        **settings: Any,
    ) -> Job:
        """Runs a job at these sites.

        Args:
            sites: that its author chose.
            title: its name.
            method: its method.
            method_settings: and that one's settings.
            silent: rounds and sites that do not answer in them.
            late: a site that connects after the first round.
            training: how participants train.
            private: the layers that each participant has for itself.
            model: the job's.
            resume_from: names the run that it resumes.
            initial_ckpt: the file at the server from which it starts.
            settings: of the server.
        """
        self._jobs += 1
        job, identity, done = Job(), f"{self._jobs:08x}-job", []
        components: dict[str, Any] = {}
        how = marked({"method": method, **method_settings})
        shared = {"training": marked(dict(training)), "data": marked({})}
        executors = {
            site: ClusteredExecutor(
                method=how,
                model=marked(dict(model)),
                private=private,
                source=marked(describe(SiteData(), "data")),
                run_name=title,
                seed=settings.get("seed", 0),
                **shared,
            )
            for site in sites
        }

        def send(task: Task, fl_ctx: FLContext, targets: list[str], *_: Any) -> None:
            (site,) = targets
            asked = fobs.loads(fobs.dumps(task.data))
            number = -1 if task.name == "check" else job.controller.aggregator.running.state.round
            if late is not None and number == 0:
                job.controller.late = [late]
            if (number, site) in silent:
                return
            self._monkeypatch.setenv("CFL_DATA", str(self.data / f"{site}.npz"))
            said = executors[site].execute(task.name, asked, self.context(site, identity, title, sites), Signal())
            job.answers.append((task.name, site, said))
            answer = ClientTask(Client(site, "token"), task)
            answer.result = fobs.loads(fobs.dumps(said))
            for dxo in (said["DXO"]["data"] or {}).values():
                job.updates[number, site] = np.concatenate([a.ravel() for a in dxo.data.values()])
            task.result_received_cb(answer, fl_ctx)

        def fire_event(event: str, fl_ctx: FLContext) -> None:
            if event == "_fatal_system_error":
                job.panics.append(str(fl_ctx.get_prop("__event_data__")))

        connected = [site for site in sites if site != late]
        fl_ctx = self.context(
            "server", identity, title, connected, get_component=lambda name: components.get(name), fire_event=fire_event
        )
        controller = ClusteredController(facts=shared, **{"num_rounds": 1, **settings})
        aggregator = ClusteringAggregator(how, marked(dict(model)), initial_ckpt=initial_ckpt, private=private)
        aggregator.fl_ctx = fl_ctx
        components |= {"aggregator": aggregator, "persistor": ClusterModelPersistor(title, resume_from)}
        components["_Server_Runner"] = SimpleNamespace()
        controller.communicator = SimpleNamespace(
            send=send, get_num_standing_tasks=lambda: len(done), client_is_active=None
        )
        controller._draw = lambda: None
        job.controller = controller
        controller.start_controller(fl_ctx)
        controller._asks = False
        controller.control_flow(Signal(), fl_ctx)
        if aggregator.server is not None:
            job.models = {slot: model.vector.copy() for slot, model in aggregator.server.state.bank.items()}
        controller.persistor.checkpoints.store.unlock()
        return job

    def record(self, site: str) -> list[dict[str, Any]]:
        """The lines of a site's record of runs."""
        file = self.root / "_jobs" / f"{site}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

    def means(self) -> list[list[list[str]]]:
        """The sets whose means the server has made, by round."""
        return read_means(self.root / "_means" / "server.jsonl")
