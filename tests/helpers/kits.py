# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Components of FLARE without its processes: a kit on disk with its context, and a study's job in one process.

The job has the real controller, and a real executor at each of three sites. What travels is written and read by FLARE's
own serializer, and answers are taken by FLARE's own controller code.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.apis.workspace import Workspace
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.utils import fobs

from cfl_flare.core.config import describe, marked
from cfl_flare.data import DataSource, Digits
from cfl_flare.engine.plan import RunPlan
from cfl_flare.flare import wire
from cfl_flare.flare.allowed import CLASSES
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.policy import SOFTWARE
from cfl_flare.flare.study.controller import StudyController
from cfl_flare.flare.study.executor import StudyExecutor
from cfl_flare.models import Logistic
from tests.helpers.files import write_npz
from tests.helpers.play import MODEL as DIGITS_MODEL

SITE = "site-1"
MODEL = describe(Logistic((1, 4, 4), 2), "model")
JOB = {"method": {"method": "fedavg"}, "model": MODEL, "data": {}, "training": {"local_steps": 2}, "seed": 0}
JOB |= {"run_name": "ward"}


def write_kit(folder: Path, real: bool = True, **policy: Any) -> Path:
    """A site's kit that is prepared for cfl_flare, or a simulator's workspace."""
    for name in ("startup", "local", "job"):
        (folder / name).mkdir(parents=True)
    (folder / "job" / "meta.json").write_text("{}")
    (folder / "local" / "resources.json").write_text(json.dumps({"class_allow_list": list(CLASSES)}))
    if real:
        (folder / "startup" / "fed_client.json").write_text("{}")
    if policy:
        (folder / "local" / "cfl.json").write_text(json.dumps(policy))
    return folder


def context(folder: Path) -> FLContext:
    """FLARE's context of a job's process in a kit."""
    engine = SimpleNamespace(get_workspace=lambda: Workspace(str(folder), SITE), fire_event=lambda *event: None)
    fl_ctx = FLContext()
    job = {"ENGINE": engine, "IDENTITY_NAME": SITE, "RUN_NUM": "job"}
    for key, value in job.items():
        fl_ctx.set_prop(getattr(ReservedKey, key), value)
    fl_ctx.set_prop(FLContextKey.JOB_META, {})
    return fl_ctx


def make_executor(source: DataSource | dict[str, Any], **changes: Any) -> ClusteredExecutor:
    """The executor of a job with this source."""
    return ClusteredExecutor(
        **{**{key: marked(value) for key, value in JOB.items()}, "source": marked(describe(source, "data")), **changes}
    )


BOUNDS = {"min_sites_per_cluster": 3, "min_samples_per_cluster": 30, "hold_small_clusters": True}
BOUNDS |= {"max_weight_share": 1 / 3}


def ask_check_in(**changes: Any) -> Shareable:
    """The server's first task, of a job with the defaults at real sites."""
    content = {"software": SOFTWARE, "job": JOB, "memory_of": None, "index": 0, "sites": 1}
    return wire.to_shareable({}, {**content, "bounds": BOUNDS, **changes})


def answer(site: ClusteredExecutor, task: Shareable, folder: Path, name: str = wire.CHECK_TASK) -> dict[str, Any]:
    """What a site in a kit answers to a task."""
    said = site.execute(name, task, context(folder), Signal())
    return wire.content_of(wire.from_shareable(said).meta)


def write_kit_npz(path: Path, tests: int = 20) -> Path:
    """A small file in MedMNIST's layout."""
    images = np.random.default_rng(0).integers(0, 256, (20, 4, 4), np.uint8)
    labels = np.arange(20) % 2
    rows = np.arange(tests) % 20
    return write_npz(path, images, labels, images[rows], labels[rows])


flare_decomposers.register()
common_decomposers.register()
SITES = ("site-1", "site-2", "site-3")
HOSTILE = "site-2"
TRAINING = {"lr": 0.1, "local_steps": 3, "bootstrap": 50}

# Changes what the hostile site sends: (task, its content, honest answer) -> answer; None sends none.
Attack = Callable[[str, dict[str, Any], Shareable], Shareable | None]


def plan_digits_run(**settings: Any) -> RunPlan:
    """Six participants with two groups of labels, as the loop's study takes them."""
    own = {"num_rounds": 4, "participants": 6, "partition": "label_permutation:groups=2", "validation": 0.25}
    return RunPlan.of(
        method="fedavg", model=DIGITS_MODEL, data=Digits(), training=TRAINING, min_clients=1, **{**own, **settings}
    )


def fl_context(folder: Path, identity: str, components: Any = None, sites: tuple[str, ...] = SITES) -> FLContext:
    """FLARE's context of a job's process."""
    fl_ctx = FLContext()
    engine = SimpleNamespace(
        get_workspace=lambda: Workspace(str(folder), identity),
        get_clients=lambda: [Client(site, "token") for site in sites],
        get_component=lambda name: SimpleNamespace(),
        fire_event=components or (lambda *event: None),
        new_context=lambda: nullcontext(fl_ctx),
    )
    for key, value in {"ENGINE": engine, "IDENTITY_NAME": identity, "RUN_NUM": "job"}.items():
        fl_ctx.set_prop(getattr(ReservedKey, key), value)
    fl_ctx.set_prop(FLContextKey.JOB_META, {})
    return fl_ctx


@dataclass
class Bench:
    """A study's job.

    Attributes:
        folder: a new one, beside the state root.
        attack: of the hostile site.
        real: at real sites, and not in a simulation.
        late: a site that connects once the first candidate has trained for a round.
        panics: why the job was ended.
        sent: for each answer the task, the site, the candidate and the split, and the answer.
    """

    folder: Path
    attack: Attack = lambda task, content, answer: answer
    real: bool = False
    late: str | None = None
    panics: list[str] = field(default_factory=list)
    sent: list[tuple[str, str, str | None, str | None, Shareable]] = field(default_factory=list)
    signal: Signal = field(default_factory=Signal)

    def play(self, resume_from: str | None = None, run_name: str = "study", more: Any = (), **settings: Any) -> Bench:
        """Runs the job."""
        study = {key: settings.pop(key) for key in ("rungs", "minutes", "margin") if key in settings}
        plan = plan_digits_run(measured_on="validation", **settings)
        shared = {"model": marked(plan.model), "run_name": run_name, "more": marked(list(more))}
        data, training = marked(asdict(plan.data)), marked(asdict(plan.training))
        place = write_kit(self.folder / "server", self.real)
        if self.real:
            (place / "startup" / "fed_client.json").rename(place / "startup" / "fed_server.json")
        self.controller = StudyController(
            **shared,
            study=study,
            resume_from=resume_from,
            facts={"data": data, "training": training},
            **asdict(plan.server),
            **asdict(plan.controller),
        )
        source, seed = marked(plan.source), plan.server.seed
        rounds = plan.server.num_rounds
        self.executors = {
            site: StudyExecutor(**shared, source=source, data=data, training=training, num_rounds=rounds, seed=seed)
            for site in SITES
        }
        self.contexts = {site: fl_context(write_kit(self.folder / site, self.real), site) for site in SITES}
        connected = tuple(site for site in SITES if site != self.late)
        fl_ctx = fl_context(place, "server", self._event, connected)
        self.controller.communicator = SimpleNamespace(
            send=self._send, get_num_standing_tasks=lambda: 0, client_is_active=None
        )
        logging.getLogger().setLevel(logging.INFO)
        self.controller.start_controller(fl_ctx)
        self.controller._asks = False
        self.controller.control_flow(self.signal, fl_ctx)
        return self

    @property
    def results(self) -> Path:
        """The job's results."""
        return self.folder / "server" / "job" / "cfl"

    def _send(self, task: Task, fl_ctx: FLContext, targets: list[str], *_: Any) -> None:
        (site,) = targets
        asked = fobs.loads(fobs.dumps(task.data))
        content = dict(asked["DXO"]["meta"]["cfl"]) if "DXO" in asked else {}
        said: Shareable | None = self.executors[site].execute(task.name, asked, self.contexts[site], Signal())
        if site == HOSTILE and said is not None:
            said = self.attack(task.name, content, said)
        if self.late is not None and content.get("candidate") == "local" and content["round"] == 1:
            self.controller.late, self.late = [self.late], None
        if said is None:
            return
        self.sent.append((task.name, site, content.get("candidate"), content.get("split"), said))
        answer = ClientTask(Client(site, "token"), task)
        answer.result = fobs.loads(fobs.dumps(said))
        task.result_received_cb(answer, fl_ctx)

    def _event(self, event: str, fl_ctx: FLContext) -> None:
        if event == "_fatal_system_error":
            self.panics.append(str(fl_ctx.get_prop("__event_data__")))


def of_sites(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """A verdict without what sites do not tell, and a study in one process knows: the samples of each class."""
    kept = {key: value for key, value in verdict.items() if key not in ("sentences", "majority")}
    return kept | {"basis": {split: {**rests, "rarer": None} for split, rests in verdict["basis"].items()}}
