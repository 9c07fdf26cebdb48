# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's aggregator for clustered learning: it owns the method and its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants

from cfl_flare.core.config import build, from_dict, require, unmarked
from cfl_flare.core.errors import PayloadError
from cfl_flare.core.private import Division
from cfl_flare.data import DataConfig, DataSource
from cfl_flare.data.files import authorised
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.early_stopping import EarlyStopping
from cfl_flare.engine.indicator import check_task, logits_for
from cfl_flare.engine.initial_models import initial_models
from cfl_flare.engine.observers import observers_of
from cfl_flare.engine.server import Equipment, Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import check_private
from cfl_flare.engine.task import Task
from cfl_flare.extensions import PlannedRun, create_observers
from cfl_flare.flare import wire
from cfl_flare.flare.compat import component_policy, simulated
from cfl_flare.flare.policy import limited_paths
from cfl_flare.flare.schema import decode_results
from cfl_flare.methods import Participant, ServerState, build_method
from cfl_flare.methods.slots import add_parts, list_travelling
from cfl_flare.results.ancestry import Ancestry
from cfl_flare.results.curves import Scored
from cfl_flare.results.gate import check_file, read_facts
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.run_dir import ROUNDS
from cfl_flare.results.store import Checkpoint
from cfl_flare.training.histograms import read_score_shape
from cfl_flare.training.resident import ResidentModel, build_untrained
from cfl_flare.training.settings import TrainSettings

# Of a site's refused results in a round, so many reasons are logged.
LOGGED = 10


@dataclass(frozen=True)
class Start:
    """Where a run of a job starts, and with whom.

    Attributes:
        checkpoint: where it goes on; None starts it.
        folder: of its results; None writes none.
        recorded: the rounds that an earlier attempt left in that folder.
        facts: for its summary.
        announces: FLARE's metrics and experiment tracking hear of it; they know one run a job.
        earlier: the runs in which the checkpoint's models were trained; None without a checkpoint of another job.
        drawn: the measures that participants compute on draws of their test splits; empty for all.
    """

    participants: Sequence[Participant]
    checkpoints: Checkpoints
    checkpoint: Checkpoint | None = None
    folder: Path | None = None
    recorded: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    announces: bool = True
    drawn: Sequence[str] = ()
    earlier: Ancestry | None = None


class ClusteringAggregator(ModelAggregator):
    """Checks the sites' results, clusters them and averages them.

    Args:
        method: ``{"method": "wecfl", "k": 3, ...}``.
        model: ``{"class_path", "args"}`` of the module that is trained.
        held: for a method that compares models on indicator samples: the ``source`` of a simulation and the ``data``
            settings that deal it out; with an indicator file the source is not read. None for other methods.
        initial_ckpt: the file of the model from which the run starts: an absolute path of the server's, or the name of
            a file that the job carries in its custom folder; None starts from untrained models.
        private: the layers that each participant has for itself; None for none, or where scripts train.

    Attributes:
        server: the running server; None before ``begin``.
        unknown: settings that it does not have; the controller refuses them.
        ranged: participants measure what the job asks for, in known ranges; scripts measure what they like.
    """

    def __init__(
        self,
        method: dict[str, Any],
        model: dict[str, Any],
        held: dict[str, Any] | None = None,
        initial_ckpt: str | None = None,
        private: str | None = None,
        **settings: Any,
    ):
        super().__init__()
        self.method = method
        self.model = model
        self.held = held
        self.initial_ckpt = initial_ckpt
        self.private, self.unknown = private, list(settings)
        self.server: Server | None = None
        self.ranged = True
        self._remarked = False

    @property
    def running(self) -> Server:
        assert self.server is not None, "begin() comes first"
        return self.server

    def division(self, fl_ctx: FLContext) -> Division:
        """What of the job's model travels."""
        torch.set_num_threads(1)
        return Division.of(ResidentModel(self._make_model(fl_ctx)).module, self.private)

    def _make_model(self, fl_ctx: FLContext) -> torch.nn.Module:
        return build(self.model, torch.nn.Module, "model", component_policy(fl_ctx))

    def _source(self, policy: Callable[[str], None]) -> DataSource:
        """The source of a simulation, for a method that compares models on indicator samples."""
        spec = unmarked(self.held or {}).get("source") or {}
        return build(spec, DataSource, "data", policy)  # type: ignore[type-abstract]

    def _start_model(self, fl_ctx: FLContext) -> Path | None:
        if self.initial_ckpt is None:
            return None
        carried = Path(
            fl_ctx.get_engine().get_workspace().get_app_custom_dir(fl_ctx.get_job_id())
        )
        path = carried / self.initial_ckpt  # an absolute path stays as it is
        inside = path.resolve().is_relative_to(carried.resolve())
        return path if inside else authorised(path, "run: initial_ckpt")

    def read_initial_facts(self, fl_ctx: FLContext) -> dict[str, Any] | None:
        """Read the facts by which the initial model is judged.

        Args:
            fl_ctx: of the job.

        Returns:
            See `cfl_flare.results.gate.read_facts`; None without an initial model.

        Raises:
            GateError: the model may go to nobody but its members, and the job would send it to all sites.
            PathError: the server's operator does not allow the path.
        """
        with limited_paths(fl_ctx):
            path = self._start_model(fl_ctx)
            if path is None:
                return None
            if not path.is_file():  # `begin` says so
                return {}
            check_file(path)
            return read_facts(path)

    def begin(
        self,
        start: Start,
        settings: ServerSettings,
        training: TrainSettings,
        equipment: Equipment,
        fl_ctx: FLContext,
    ) -> Server:
        """Starts the method, from the beginning or from a checkpoint's state.

        Raises:
            ConfigError: the method cannot be run with them or for the task, or lacks indicator samples.
            DataError: the indicator samples cannot be read, or do not fit the model.
            PathError: the server's operator does not allow a path that the job names.
        """
        policy, make_model, seed = (
            component_policy(fl_ctx),
            partial(self._make_model, fl_ctx),
            settings.seed,
        )
        method, division = (
            build_method(unmarked(self.method), policy),
            self.division(fl_ctx),
        )
        check_private(method, division, self.private, settings.num_rounds)
        task = training.built_task(policy)
        check_task(method, task)
        dealt_out = from_dict(
            DataConfig, unmarked(self.held or {}).get("data", {}), "data"
        )
        with limited_paths(fl_ctx):
            initial = initial_models(
                method, make_model, division.public, seed, self._start_model(fl_ctx)
            )
            logits = logits_for(
                method, make_model, dealt_out, partial(self._source, policy), seed
            )
        state = fresh = method.start(initial, [p.name for p in start.participants])
        if start.checkpoint is not None:
            state = start.checkpoint.state
            _check_resumed(fresh, state)
        shape = read_score_shape(training, division.layout)
        of_scores = (shape, task.link, settings.floor.sites)
        scored = None if shape is None else Scored.of(*of_scores, not simulated(fl_ctx))
        ranges = task.ranges(training.measures) if self.ranged else None
        of_extensions = create_observers(PlannedRun(training, settings))
        asking = observers_of(ranges, scored, training.bootstrap, start.drawn)
        equipment = replace(
            equipment,
            logits=logits,
            complete=division.complete(partial(build_untrained, make_model, seed, 0)),
            observers=[*(equipment.observers or ()), *of_extensions, *asking],
        )
        self.server = Server(
            method, division.public, start.participants, settings, state, equipment
        )
        return self.server

    def messages(self, tasks: Mapping[str, Task]) -> dict[str, FLModel]:
        """A round's message to each site: the tasks of its participants, and each model once."""
        server = self.running
        by_site: dict[str, dict[str, Task]] = {}
        stated = self._stated(tasks)
        for name, task in tasks.items():
            by_site.setdefault(server.participants[name].site, {})[name] = task
        number = server.state.round
        total = (
            number if server.finished else server.settings.num_rounds
        )  # after it, sites keep their served models
        needed = {
            s: list_travelling(n for t in of_site.values() for n in t.needed)
            for s, of_site in by_site.items()
        }
        models = add_parts(
            server.bank, {slot for slots in needed.values() for slot in slots}
        )
        encoded = wire.encode_models(models)
        messages = {}
        for site, of_site in by_site.items():
            content = {**stated, "tasks": wire.encode_tasks(of_site), "round": number}
            sent = {
                slot: DXO(DataKind.WEIGHTS, data=dict(encoded[slot].data))
                for slot in needed[site]
            }
            messages[site] = wire.message(sent, content, number, total)
        return messages

    def _stated(self, tasks: Mapping[str, Task]) -> dict[str, Any]:
        """What sites are told of each other: who is in the run, and who was averaged in the last round, if not all."""
        people, record = (
            self.running.participants,
            self.running.progress.record or {"aggregated": False},
        )
        everyone, training = (
            {p.site for p in people.values()},
            sum(task.train for task in tasks.values()),
        )
        counted = (
            {*record["trained"]} - {*record.get("held_back", ())}
            if record["aggregated"]
            else set()
        )
        averaged = {people[name].site for name in counted if name in people}
        sampled = 0 < training < len(people)
        together = sorted(everyone) if training else []
        return {
            "together": together,
            "sampled": sampled,
            "averaged": sorted(averaged) if averaged < everyone else [],
        }

    def accept_model(self, model: FLModel) -> bool:
        """Checks a site's results one by one, and returns whether it accepted any; of others it logs the reason."""
        server, site = self.running, model.meta.get("client_name", "?")
        accepted, refused, hosted = 0, list[str](), set(server.hosted_by(site))
        try:
            for result in decode_results(
                model, server.state.bank, server.state.round, hosted
            ):
                try:
                    if isinstance(result, tuple):
                        server.refuse(*result, site)
                    else:
                        server.accept(result, site)
                        accepted += 1
                except PayloadError as error:
                    refused.append(f"result refused ({error.code}): {error}")
        except PayloadError as error:
            server.rejected[error.code] += 1
            server.round.fail(list(hosted), f"{error.code}: {error}")
            refused = [f"all results refused ({error.code}): {error}"]
        if len(refused) > LOGGED:
            refused[LOGGED:] = [
                f"{len(refused) - LOGGED} more results refused; the run's {ROUNDS} has the reasons"
            ]
        for reason in refused:
            self.warning(f"round {server.state.round}: {site}: {reason}")
        return accepted > 0

    def aggregate_model(self) -> FLModel:
        """Ends the round; returns the metrics of the models that it started from, without parameters.

        Raises:
            TooFewAnswersError: too many rounds in a row had too few valid results.
        """
        measured = self.running.finish_round()
        return FLModel(params={}) if measured is None else self.announcement(measured)

    def announcement(self, measured: RoundMetrics) -> FLModel:
        """What FLARE's other components are told of a round that was measured; without parameters."""
        server, scalars = self.running, measured.scalars()
        info = {
            "metric_source": "cfl_flare",
            "metric_split": "test",
            "use_contribution_sites": False,
        }
        stopping = server.settings.early_stopping.following(server.progress.judged_by)
        if not self._remarked and server.progress.metric is not None:
            self._remarked = True
            self._remark_on_metrics(stopping, scalars)
        key = stopping.key
        name = None if key is None else key.name_in(scalars)
        if key is not None and name is not None and key.mode is not None:
            info["key_metric"] = {"name": name, "mode": key.mode}
            scalars[name] = measured.deciding()[name]
        return FLModel(
            params={},
            metrics=scalars,
            current_round=measured.record["round"],
            total_rounds=server.settings.num_rounds,
            meta={AppConstants.METRICS_AGGREGATION_INFO: info},
        )

    def _remark_on_metrics(
        self, stopping: EarlyStopping, scalars: Mapping[str, float]
    ) -> None:
        """Says, after the first round that was measured, which of the job's metrics nobody reports."""
        wanted, progress = self.running.settings.early_stopping, self.running.progress
        if (why := stopping.unordered) is not None:
            self.warning(f"run: {why}")
        elif (
            stopping.key != wanted.key
            and stopping.key is not None
            and wanted.key is not None
        ):
            self.warning(
                f"sites report no {wanted.key.name}: the best round is the one with the {stopping.key.mode}imum of "
                f"{stopping.key.name!r}; key_metric and key_metric_mode name another metric"
            )
        for unknown in stopping.unknown(progress.best, progress.watched):
            self.warning(
                f"no round has reported {unknown!r} so far, which decides on the best models or the end of the job; "
                f"the first one has {', '.join(name for name in sorted(scalars) if not name.startswith('cluster-'))}"
            )

    def reset_stats(self) -> None:
        """Nothing to reset: planning a round drops the results of the one before."""


def _check_resumed(fresh: ServerState, resumed: ServerState) -> None:
    """Raises a ConfigError if a resumed state is of another method or model than a fresh one.

    A method that finds its clusters has other models than it began with; what it began to count is still there.
    """
    missing = sorted(fresh.extras.keys() - resumed.extras.keys())
    changes = bool(fresh.extras) and not missing
    for slot, model in fresh.bank.items():
        matches = (
            resumed.bank[slot].layout == model.layout
            if slot in resumed.bank
            else changes
        )
        require(
            matches,
            f"run: resume_from names a run of another method or model: its {slot!r} does not fit",
        )
    require(
        not missing,
        f"run: resume_from names a run of another method: its state has no {missing}",
    )
