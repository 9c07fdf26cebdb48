# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's controller for clustered learning: it schedules rounds, waits, writes checkpoints and fires events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel

from cfl_flare.core.config import from_dict, require, unmarked
from cfl_flare.core.errors import AbortedError, CFLError
from cfl_flare.core.settings import from_attributes, keep, shows
from cfl_flare.engine.drive import Transport, drive
from cfl_flare.engine.earlier_means import Means
from cfl_flare.engine.observers.membership import Membership
from cfl_flare.engine.plan import AssignSettings, ControllerSettings
from cfl_flare.engine.server import Equipment, Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.task import Task
from cfl_flare.extensions import present_results
from cfl_flare.flare import wire
from cfl_flare.flare.aggregator import ClusteringAggregator, Start
from cfl_flare.flare.allowed import Policy
from cfl_flare.flare.attendance import Patience
from cfl_flare.flare.class_names import compare_classes, settle_classes
from cfl_flare.flare.client_api.controller import Scripts
from cfl_flare.flare.client_api.results import check_failure
from cfl_flare.flare.compat import component_policy, simulated
from cfl_flare.flare.per_site import PerSiteController
from cfl_flare.flare.persistor import ClusterModelPersistor
from cfl_flare.flare.policy import (
    SOFTWARE,
    check_known,
    check_software,
    data_config,
    unused_copy,
)
from cfl_flare.flare.run_start import (
    describe_floor,
    describe_run,
    list_refusing_sites,
    list_works,
    open_means,
    split_digits,
    trace_ancestry,
)
from cfl_flare.flare.schema import decode_check_in, decode_classes
from cfl_flare.flare.tracking import JobEvents, bounds, track
from cfl_flare.methods import Participant
from cfl_flare.results.ancestry import ANCESTRY, Ancestry
from cfl_flare.results.job_record import READY, SILENT
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.store import Checkpoint, Progress
from cfl_flare.training.settings import TrainSettings

# The first task's time limit is at least this, in seconds: it starts the site's process and reads the data.
CHECK_IN = 300


class ClusteredController(PerSiteController):
    """Runs a clustered method over the sites of a job.

    It also takes the settings of `ServerSettings` and `ControllerSettings`. The check at the job's start may take as
    long as a round, or five minutes.

    Args:
        facts: about the run, for its summary; ``data`` and ``training`` must be as the sites' executors have them.
        made_by: the software that made the job; see `cfl_flare.flare.policy.SOFTWARE`.
        judge: if the sites run a training script of FLARE's Client API, the settings of
            `cfl_flare.engine.plan.AssignSettings`; None if they run cfl_flare's own executor.
        aggregator_id: the ClusteringAggregator's id in the job.
        persistor_id: the ClusterModelPersistor's id in the job.
    """

    _settings: ServerSettings

    @shows(ServerSettings, ControllerSettings, as_fields=True)
    def __init__(
        self,
        facts: dict[str, Any] | None = None,
        made_by: dict[str, str] | None = None,
        judge: dict[str, Any] | None = None,
        aggregator_id: str = "aggregator",
        persistor_id: str = "persistor",
        **settings: Any,
    ):
        plain = judge is not None
        super().__init__(
            persistor_id=persistor_id,
            ignore_result_error=True,
            task_check_period=0.1,
            plain=plain,
        )
        self._unknown = keep(self, settings, ServerSettings, ControllerSettings)
        self.facts, self.made_by, self.judge = facts, made_by, judge
        self.aggregator_id = aggregator_id
        self._tag: dict[str, str] = {}
        self._newest: list[str] = []
        self._hosting: dict[str, dict[str, Any]] = {}
        self._means: Means | None = None
        self._labels: Mapping[str, str] = {}
        self._classes: tuple[str, ...] | None = (
            None  # their names, which all sites that take part number alike
        )
        self._memory_of: str | None = None  # the run that is resumed

    def run(self) -> None:
        """The whole job: check in, rounds, results."""
        try:
            self._prepare()
            self._run_all()
        except AbortedError as error:
            self.info(str(error))
        except CFLError as error:
            self.panic(str(error))

    def _prepare(self) -> None:
        """Checks the job, and settles its schedule."""
        self.aggregator: ClusteringAggregator = self.get_component(self.aggregator_id)
        self._training, self._memory_of = self._check_job(), self.persistor.resume_from
        check_known(self.aggregator.unknown, "aggregator", "the server")
        self.aggregator.ranged = self.judge is None
        if self.judge is None:
            task = self._training.built_task(component_policy(self.fl_ctx))
            self._settings = self._settings.judged(
                task, self.aggregator.division(self.fl_ctx).layout
            )
        self._schedule = self._scheduled()
        if not simulated(self.fl_ctx):
            self.info(describe_floor(self._schedule))

    def _run_all(self) -> None:
        persistor: ClusterModelPersistor = self.persistor
        total = self._schedule.num_rounds
        layout = self.aggregator.division(self.fl_ctx).layout
        checkpoint = persistor.open(layout, self.results, self.fl_ctx)
        resumed_at = None if checkpoint is None else checkpoint.state.round
        self._labels = {} if checkpoint is None else checkpoint.state.labels
        self._settle_classes(checkpoint)
        require(
            resumed_at is None or resumed_at < total,
            f"run: resume_from names a run with {resumed_at} rounds; num_rounds = {total} adds none",
        )
        if (
            checkpoint is not None
        ):  # it goes on, whatever ended it before; its results begin with the next round
            checkpoint.progress.stopped, checkpoint.progress.failed_rounds = None, 0
            checkpoint.progress.record = None
        facts = {"name": persistor.run_name, "resumed_at": resumed_at}
        start = Start(
            self._gathered(),
            persistor.checkpoints,
            checkpoint,
            self.results,
            facts=facts,
        )
        start = replace(start, earlier=persistor.earlier)
        server = self.start(self._schedule, start)
        persistor.restore_best()
        if drive(server, self._transport(server), persistor.checkpoints):
            if server.recorder is not None and server.recorder.last is not None:
                track(
                    self,
                    bounds(server.recorder.intervals),
                    server.recorder.last.record["round"],
                )
            self._finish()

    def _settle_classes(self, checkpoint: Checkpoint | None) -> None:
        """Takes the names of classes from the run that is resumed, or from the job, if either has some."""
        task = (
            None
            if self.judge is not None
            else self._training.built_task(component_policy(self.fl_ctx))
        )
        has_classes = task is not None and task.classes
        of_job = unmarked(self.facts or {}).get("classes") if has_classes else None
        of_run = None if checkpoint is None else checkpoint.progress.classes
        self._classes = settle_classes(of_job, of_run)

    def start(self, schedule: ServerSettings, start: Start) -> Server:
        """Starts the run that the aggregator is of; a ConfigError if it cannot be run with these participants."""
        aggregator, recorder, checkpoint = self.aggregator, None, start.checkpoint
        data = (self.facts or {}).get("data")
        run = describe_run(self._training, self.seed, data)
        ancestry = trace_ancestry(run, start, aggregator, self.fl_ctx)
        start.checkpoints.run = {ANCESTRY: ancestry.to_list()}
        if start.folder is not None:
            recorder = self._open_recorder(start, schedule, ancestry)
        if self._means is None and not simulated(self.fl_ctx):
            self._means = open_means(self._schedule, self.fl_ctx)
        store = start.checkpoints.store
        progress = Progress() if checkpoint is None else checkpoint.progress
        progress.classes = None if self._classes is None else list(self._classes)
        equipment = Equipment(
            recorder,
            progress=progress,
            archive=None if store is None else store.archive,
            earlier_means=self._means,
            observers=[
                JobEvents(
                    self,
                    aggregator,
                    start.announces,
                    self._controller_settings.memory_gc_rounds,
                ),
                self._observe_membership(ancestry),
            ],
        )
        server = aggregator.begin(
            start, schedule, self._training, equipment, self.fl_ctx
        )
        if recorder is not None:
            recorder.begin(server.method.label, schedule.num_rounds)
        return server

    def _open_recorder(
        self, start: Start, schedule: ServerSettings, ancestry: Ancestry
    ) -> Recorder:
        """Opens the folder of a run's results, with the facts for its summary."""
        assert start.folder is not None
        facts = dict(self.facts or {})
        if self._classes:
            facts["classes"] = list(self._classes)
        if self.aggregator.private is not None:
            facts["private"] = self.aggregator.private
        facts |= {
            "run": asdict(schedule),
            **start.facts,
            "sites_left_out": self.left_out,
            ANCESTRY: ancestry.to_list(names=False),
        }
        last = None if start.checkpoint is None else start.checkpoint.last
        model = self.aggregator.model
        return Recorder(start.folder, facts, model, start.recorded, last)

    def _observe_membership(self, ancestry: Ancestry) -> Membership:
        policy = Policy.of(self.fl_ctx)
        bound, fewest = policy.max_tpr_at_1pct_fpr, policy.min_membership
        return Membership(
            self._training.membership, bound, fewest, ancestry.earlier_participants
        )

    def _transport(self, server: Server) -> Transport:
        if self.judge is None:
            return self
        assign = from_dict(AssignSettings, unmarked(self.judge), "judge")
        scripts = Scripts(
            server, assign, self._ask_scripts, self.warning, self.site_errors
        )
        scripts.probe()
        return scripts

    # ---- The transport to sites that run cfl_flare's own executor ----

    def only_train(self, server: Server) -> Collection[str]:
        return ()

    def exchange(self, server: Server, tasks: Mapping[str, Task]) -> bool:
        """One message a site, with the tasks of its participants."""
        if self.abort_signal.triggered:
            return False
        messages = self.aggregator.messages(tasks)
        for site, message in messages.items():
            message.meta[wire.META].update({**self._hosting[site], **self._tag})
        works = list_works(server, tasks)
        limit = self._controller_settings.task_timeout
        goes_on = self.ask(wire.TRAIN_TASK, messages, limit, self._accept, works=works)
        server.fail_sites(self.site_errors)
        return goes_on

    def _accept(self, answer: FLModel) -> bool:
        return self.aggregator.accept_model(answer)

    def _check_job(self) -> TrainSettings:
        """Checks the job's software and settings; returns how participants train."""
        if (remark := unused_copy(self.fl_ctx)) is not None:
            self.warning(remark)
        check_software(
            unmarked(self.made_by or {}), "the job was made by", "the server"
        )
        check_known(self._unknown, "controller", "the server")
        stated = (
            unmarked(self.facts or {}).get("training") if self.judge is None else None
        )
        training = from_dict(TrainSettings, stated or {}, "training")
        training.lr_at(
            0
        )  # sites have the same, and of an error say no more than a code
        self._controller_settings = from_attributes(ControllerSettings, self, "run")
        self._settings = from_attributes(ServerSettings, self, "run")
        self.patience = Patience(self._controller_settings.max_missed_tasks)
        return training

    def _scheduled(self) -> ServerSettings:
        """The schedule of a run, with what real hospitals need where it is not a simulation."""
        if simulated(self.fl_ctx):
            return self._settings.in_simulation()
        return self._settings.at_real_sites(self.judge is None)

    def _gathered(self) -> list[Participant]:
        """All participants, of the sites that can take part."""
        sites = sorted(
            (client.name for client in self.engine.get_clients()), key=split_digits
        )
        self._attempt.note(dict.fromkeys(sites, SILENT))
        participants = self._check_in(sites)
        self._attempt.note(
            dict.fromkeys({p.site for p in participants}, READY), checked_in=True
        )
        self.left_out |= dict.fromkeys(
            self.sites_that_never_came(), "it was not connected when the job started"
        )
        reasons = "; ".join(
            f"{site}: {reason}" for site, reason in self.left_out.items()
        )
        require(bool(participants), f"run: no site can take part: {reasons}")
        self.info(
            f"{len(participants)} participants on {len({p.site for p in participants})} sites"
        )
        return participants

    def admit(self, server: Server) -> None:
        """Sites that have connected since the job's start take part from the coming round."""
        self._turn_away(server)
        heard = [site for site in self.late if self._attendance.heard(site)]
        self.late = [site for site in self.late if site not in heard]
        new = sorted(
            {*heard} - {p.site for p in server.participants.values()}, key=split_digits
        )
        if not new:
            return
        for site in new:
            self.left_out.pop(site, None)
        admitted = self._check_in(new)
        names = [p.name for p in admitted if p.name not in server.participants]
        everyone = [
            *server.participants.values(),
            *(p for p in admitted if p.name in names),
        ]
        server.admit(sorted(everyone, key=lambda p: split_digits(p.site)))
        self._newest = new
        self.info(f"round {server.state.round}: {', '.join(names) or 'nobody'} joined")

    def _turn_away(self, server: Server) -> None:
        """Leaves out those that joined in the last round if others, who trained without them before, then refused."""
        newest = self._newest
        failures, self._newest = (server.progress.record or {}).get("failed", {}), []
        refused = list_refusing_sites(server, failures)
        if newest and refused - {*newest}:
            self.left_out |= dict.fromkeys(
                newest, "others refuse to train with it, after jobs without it"
            )
            self.warning(
                f"{', '.join(newest)}: left out: {', '.join(sorted(refused))} refuse to train with it"
            )
            server.admit(
                [p for p in server.participants.values() if p.site not in newest]
            )

    def _ask_scripts(
        self,
        task: str,
        data: Mapping[str, FLModel],
        on_result: Callable[[FLModel], bool],
    ) -> bool:
        """One exchange with scripts; if a site fails, its participant does."""

        def unless_failed(result: FLModel) -> bool:
            check_failure(result)
            return on_result(result)

        went = self.ask(
            task, data, self._controller_settings.task_timeout, unless_failed
        )
        self.aggregator.running.fail_sites(self.site_errors)
        return went

    def _check_in(self, sites: Sequence[str]) -> list[Participant]:
        """Asks sites which participants they host. A site that cannot take part is left out, with its reason."""
        if (
            self.judge is not None
        ):  # each is one participant, whose script's first result says how much data it has
            return [Participant(name, name, 1, unit="") for name in sites]
        known = len(self._hosting)
        common: dict[str, Any] = {
            "sites": known + len(sites),
            "memory_of": self._memory_of,
        }
        self._hosting |= {
            site: {"index": i, **common} for i, site in enumerate(sites, known)
        }
        hosted: dict[str, list[Participant]] = {}
        classes: dict[str, tuple[str, ...]] = {}
        dealt = data_config((self.facts or {}).get("data", {}), self.fl_ctx)
        policy = Policy.of(self.fl_ctx)

        def on_result(result: FLModel) -> bool:
            site = result.meta["client_name"]
            expected = dealt.names_at(
                site, self._hosting[site]["index"], common["sites"]
            )
            # A study takes its own fields out of the message before the schema checks what is left.
            participants = self._hosted_by(
                result, site, expected, policy.max_participants
            )
            classes[site] = decode_classes(result, site)
            hosted[site] = participants
            self._attempt.note({site: READY})
            return True

        rounds = self._schedule.num_rounds
        stated = {
            key: value
            for key, value in (self.facts or {}).items()
            if key in ("data", "training")
        }
        job = {**unmarked({**self._of_runs(), **stated}), "seed": self.seed}
        ours = {"software": SOFTWARE, "job": job, "bounds": self._schedule.bounds}
        data = {
            site: wire.message({}, {**ours, **self._hosting[site]}, 0, rounds)
            for site in sites
        }
        limit = max(self._controller_settings.task_timeout, CHECK_IN)
        goes_on = self.ask(wire.CHECK_TASK, data, limit, on_result, first=True)
        absent = {
            site: self.site_errors.get(site, "no result in time")
            for site in sites
            if site not in hosted
        }
        self._classes, others = compare_classes(
            classes, self._classes, is_start=not known
        )
        for site, reason in others.items():
            del hosted[site]
            absent[site] = reason
        for site, reason in absent.items():
            self.error(f"{site} is left out: {reason}")
        self.left_out |= absent
        if (
            goes_on
        ):  # else FLARE has ended the job, and the record says what was known before
            self._attempt.note(absent)
        return [p for site in sites for p in hosted.get(site, [])]

    def _hosted_by(
        self, result: FLModel, site: str, expected: Collection[str], most: int
    ) -> list[Participant]:
        return decode_check_in(result, site, expected, most, self._labels)

    def _of_runs(self) -> dict[str, Any]:
        """What the job runs. The sites must have the same; see `cfl_flare.flare.policy.SHARED`."""
        settings = {
            key: getattr(self.aggregator, key) for key in ("method", "model", "private")
        }
        return {**settings, "run_name": self.persistor.run_name}

    def _finish(self) -> None:
        self._attempt.done()
        self._present(self.results)
        self.info(f"results: {self.results}")

    def _present(self, folder: Path) -> None:
        """Lets extensions present a run's or a study's folder; they can do it later."""
        for remark in present_results(folder):
            self.warning(remark)
