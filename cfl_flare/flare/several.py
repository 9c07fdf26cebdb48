# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Several runs as one FLARE job: sites start and check in once, read their data once, and train method after method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from torch import nn

from cfl_flare.core.config import build, check_run_name, require, unmarked
from cfl_flare.core.errors import AbortedError, PayloadError
from cfl_flare.core.params import Layout
from cfl_flare.core.settings import extends
from cfl_flare.core.text import plain, shown
from cfl_flare.data import DataSource
from cfl_flare.engine.drive import Checkpoints, drive
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.study.candidates import Candidate
from cfl_flare.engine.study.halving import TEST, VALIDATION
from cfl_flare.flare import wire
from cfl_flare.flare.aggregator import ClusteringAggregator, Start
from cfl_flare.flare.compat import component_policy, simulated
from cfl_flare.flare.controller import ClusteredController
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.site_run import SiteRun
from cfl_flare.methods import Participant, build_method, describe_method
from cfl_flare.training.privacy import Books

# Fields of a task, and of its answer, that say of which run it is and, in a study, which samples it is measured on.
CANDIDATE: Final = "candidate"
SPLIT: Final = "split"
SPLITS = (VALIDATION, TEST)
# The field of a study's check-in that has the number of samples in each split.
COUNTS = "splits"


def candidates_of(
    runs: Sequence[Mapping[str, Any]], policy: Any
) -> dict[str, Candidate]:
    """A job's runs, by name, of classes that the component ``policy`` allows; a ConfigError for a wrong one."""
    candidates: dict[str, Candidate] = {}
    for run in runs:
        name = run["name"]
        check_run_name(name, "the name of a run")
        require(
            name not in candidates,
            f"job: two runs are called {name!r}; rename one of them",
        )
        candidates[name] = Candidate(
            name, build_method(run["method"], policy), run.get("private")
        )
    return candidates


class SeveralController(ClusteredController):
    """Runs several methods one after the other at the sites of a job; each has results of its own.

    It also takes the arguments of `ClusteredController`, without those of a single run.

    Args:
        model: ``{"class_path", "args"}`` of the module that is trained.
        run_name: names the job's folder under the state root.
        runs: ``[{"name": "wecfl", "method": {"method": "wecfl", "k": 3}, "private": None}]``.
        initial_ckpt: the file of the model from which each run starts; None starts from untrained models.
    """

    @extends(ClusteredController.__init__, "judge", "aggregator_id", "persistor_id")
    def __init__(
        self,
        model: dict[str, Any],
        run_name: str,
        runs: list[dict[str, Any]] | None = None,
        initial_ckpt: str | None = None,
        **arguments: Any,
    ):
        super().__init__(aggregator_id="", persistor_id="", **arguments)
        self.model, self.run_name, self.runs, self.initial_ckpt = (
            model,
            run_name,
            runs,
            initial_ckpt,
        )
        self.everyone: list[Participant] = []

    def _prepare(self) -> None:
        self._training, policy = self._check_job(), component_policy(self.fl_ctx)
        self._module = build(self.model, nn.Module, "model", policy)
        self._task = self._training.built_task(policy)
        self._layout = Layout.of(self._module)
        self._settings = self._settings.judged(self._task, self._layout)
        self._schedule = self._scheduled()

    def _run_all(self) -> None:
        candidates = candidates_of(
            unmarked(self.runs or []), component_policy(self.fl_ctx)
        )
        self._settle_classes(None)
        self.everyone = self._gathered()
        for candidate in candidates.values():
            start = Start(
                self.everyone, Checkpoints(), folder=self.results / candidate.name
            )
            server = self._open(candidate, {CANDIDATE: candidate.name}, start)
            if not drive(server, self, start.checkpoints):
                raise AbortedError("the job was aborted")
            self._present(self.results / candidate.name)
        self._attempt.done()

    def _open(self, candidate: Candidate, tag: dict[str, str], start: Start) -> Server:
        """Makes a candidate the one whose rounds come next."""
        self.aggregator, self._tag = self._aggregator(candidate), tag
        return self.start(self._schedule_of(candidate), start)

    def _accept(self, answer: FLModel) -> bool:
        """Takes the run's name out of a site's answer; a PayloadError if it answers another task."""
        content = wire.content_of(answer.meta)
        answered = (
            self._tag
            if "error" in content
            else {key: content.pop(key, None) for key in self._tag}
        )
        if answered != self._tag:
            given, wanted = (
                " on ".join(map(shown, tag.values())) for tag in (answered, self._tag)
            )
            raise PayloadError(
                "candidate", f"the answer is of {given}, the task was {wanted}"
            )
        return super()._accept(answer)

    def _schedule_of(self, candidate: Candidate) -> ServerSettings:
        return self._schedule

    def _aggregator(self, candidate: Candidate) -> ClusteringAggregator:
        facts, method = self.facts or {}, describe_method(candidate.method)
        dealt_out: dict[str, Any] = {
            key: facts[key] for key in ("source", "data") if key in facts
        }
        held = None if candidate.method.traits.indicator is None else dealt_out
        aggregator = ClusteringAggregator(
            method, self.model, held, self.initial_ckpt, candidate.private
        )
        aggregator.fl_ctx = self.fl_ctx  # as FLARE does for a component of the job's
        return aggregator

    def _of_runs(self) -> dict[str, Any]:
        return {"model": self.model, "runs": self.runs, "run_name": self.run_name}

    def admit(self, server: Server) -> None:
        super().admit(server)
        self.everyone = list(server.participants.values())


class SeveralExecutor(ClusteredExecutor):
    """Carries out the tasks of several runs: the server names one, and this site knows what that is from the job.

    Runs share the data, which is read and checked at the first task. What a participant remembers of one, and the
    models that it is served, are in a folder of that run's.

    Its arguments are those of `ClusteredExecutor`, with the controller's ``runs`` in place of the method.
    """

    shared: ClassVar[tuple[str, ...]] = (
        "runs",
        "model",
        "data",
        "training",
        "seed",
        "run_name",
    )
    _recorded_as = "several"

    @extends(ClusteredExecutor.__init__, "method", "private")
    def __init__(self, runs: list[dict[str, Any]] | None = None, **arguments: Any):
        super().__init__({"method": "fedavg"}, **arguments)
        self.runs = runs

    @property
    def _runs_of_job(self) -> int | None:
        return len(unmarked(self.runs or []))

    def _stage_of(self, content: Mapping[str, Any]) -> dict[str, str]:
        return {"run": plain(str(content.get(CANDIDATE, "")))}

    def _opened_books(
        self, source: DataSource, content: dict[str, Any], fl_ctx: FLContext
    ) -> Books | None:
        single = simulated(fl_ctx) or self.training.get("dp") is None
        require(
            single,
            "training: dp pays for one run a job at real sites, and this has several; make a job of each",
        )
        return super()._opened_books(source, content, fl_ctx)

    def _host(
        self, site: Site, source: DataSource, content: dict[str, Any], fl_ctx: FLContext
    ) -> None:
        self._known = candidates_of(unmarked(self.runs or []), component_policy(fl_ctx))
        super()._host(site, source, content, fl_ctx)

    def _named_groups(self, site: Site) -> list[str]:
        return [
            label
            for run in self._known.values()
            for label in run.method.traits.named_groups
        ]

    def _run_of(
        self, content: dict[str, Any], site: Site, fl_ctx: FLContext
    ) -> tuple[SiteRun, dict[str, str]]:
        """The run that a task names, with the data of this job's ``site``; a PayloadError if there is no such run."""
        name = content.get(CANDIDATE)
        if not isinstance(name, str) or name not in self._known:
            raise PayloadError(
                "candidate",
                f"this job has no candidate {shown(name)}; it has {', '.join(self._known)}",
            )
        if name not in self._runs:
            run: Candidate = self._known[name]
            empty = self._empty_site(run.method, run.private, fl_ctx)
            self._runs[name] = self._site_run(empty.with_data_of(site), name)
        return self._runs[name], {CANDIDATE: name}
