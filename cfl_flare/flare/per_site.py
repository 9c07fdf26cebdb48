# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's controller with a task for each site; a round waits for no site that cannot answer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReturnCode, SiteType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import ALL_SITES
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.private.fed.utils.fed_utils import extract_participants

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import PayloadError
from cfl_flare.core.text import plain, shown
from cfl_flare.flare import compat, rejoin
from cfl_flare.flare.attendance import LONGEST_STEP, Attendance, Pace, Patience, Work
from cfl_flare.results.job_record import ENDED, PREPARE, Attempt

RESULTS = "cfl"
RETURN_CODES = frozenset(
    code for name, code in vars(ReturnCode).items() if name.isupper()
)
LOST = "lost: it gives no sign of life"
DEAF = (
    "it gives signs of life and fetches no task, so another process has its identity (FLARE's preflight-check of a "
    "running site does that); restart the site"
)
UNWAITED = "no result; it has missed too many tasks in a row to be waited for"
# Seconds between questions to the server whether a site has connected meanwhile.
ASK_EVERY = 5.0


class PerSiteController(ModelController):
    """A ModelController that sends each site its own data, and that no single site can stop.

    One broadcast cannot carry different data for different sites: FLARE copies a task's data once, after the first
    site has asked for it. So each site gets a task of its own, and the round waits for all of them together. It does
    not wait for a site that is lost until that site is heard again; see `cfl_flare.flare.attendance.Attendance`. Nor
    does it wait for one that has left too many tasks unanswered, until it answers; see `Patience` there.

    Attributes:
        site_errors: why each site's last result cannot be used: FLARE's return code, or a reason.
        left_out: why sites take no part in the job.
        late: sites where the job has been started, or started again, in its middle.
        plain: tasks are plain FLModels with one model each, as FLARE's Client API expects.
        patience: which sites answer.
    """

    def __init__(self, *args: Any, plain: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.site_errors: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.late: list[str] = []
        self.plain = plain
        self.patience = Patience()
        self._pace = Pace()
        self._listened = 0.0
        self._hung: set[str] = set()
        self._given_up: set[str] = set()
        self._attempt = (
            Attempt()
        )  # in its record FLARE keeps what was known if it ends the job from outside
        self._attendance = Attendance(math.inf, math.inf)
        self._tasks: dict[str, Task] = {}
        self._processing = 0
        self._deaf: set[str] = set()
        self._ended: set[str] = set()
        self._asks, self._last_request = False, 0.0
        self._requests: compat.HeldRequests | None = None
        self._result_processed = threading.Event()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Prepares a job: it has a record from now on and, at real sites, follows which of them are heard."""
        super().start_controller(fl_ctx)
        meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
        self._attempt = Attempt(self.results, str(meta.get("name", "job")))
        compat.keep_quiet()
        compat.return_memory()
        compat.fail_undecodable(self.engine, self._give_up)
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
        self._requests = None if runner is None else compat.HeldRequests(runner)
        if compat.simulated(fl_ctx):
            return
        self._attendance, self._asks = Attendance(), True
        compat.hear_heartbeats(self.communicator, self.engine, self._hear)
        compat.survive_failed_tasks(self.engine)

    @property
    def results(self) -> Path:
        return Path(self.get_run_dir()) / RESULTS

    def panic(self, reason: str) -> None:
        """Ends the job; its record has the reason, unless FLARE has ended it from outside before."""
        signal = getattr(self, "abort_signal", None)
        if signal is None or not signal.triggered:
            self._attempt.end(reason)
        super().panic(reason)

    def _hear(self, site: str) -> None:
        """Notes a sign of life of a site; called under FLARE's lock."""
        self._attempt.hear(site)
        if self._attendance.hear(site):
            self.info(f"{site} is heard again; it takes part from the next round")

    def admit(self, server: Any) -> None:
        """A round is about to begin: sites that have connected meanwhile take part from now on."""

    def _give_up(self, site: str, reason: str) -> None:
        task = self._tasks.get(site)
        if task is not None and task.completion_status is None:
            self.site_errors[site] = reason
            self.cancel_task(task, fl_ctx=self.fl_ctx)

    def _build_shareable(self, data: FLModel | None = None) -> Shareable:
        """A COLLECTION with one DXO per model, so that FLARE's filters act on each model separately."""
        assert data is not None
        if self.plain:
            return super()._build_shareable(data)
        shareable = DXO(
            DataKind.COLLECTION, data=data.params, meta=data.meta
        ).to_shareable()
        shareable.set_header(AppConstants.CURRENT_ROUND, data.current_round)
        shareable.set_header(AppConstants.NUM_ROUNDS, data.total_rounds)
        shareable.add_cookie(AppConstants.CONTRIBUTION_ROUND, data.current_round)
        return shareable

    def _accept_train_result(
        self,
        client_name: str,
        result: Shareable,
        fl_ctx: FLContext,
        is_unknown_task: bool = False,
    ) -> bool:
        self._answered(client_name)
        try:
            code = result.get_return_code() or ReturnCode.OK
            if code not in RETURN_CODES:
                raise ValueError(f"return code {shown(code)}")
            if code == ReturnCode.OK:
                FLModelUtils.from_shareable(result)
        except (
            Exception
        ) as error:  # what a site sends can break FLARE's own code as well
            self._refuse(
                client_name, f"malformed: FLARE cannot read it ({one_line(error)})"
            )
            return False
        if code != ReturnCode.OK:
            self.site_errors[client_name] = code
        return bool(
            super()._accept_train_result(client_name, result, fl_ctx, is_unknown_task)
        )

    def _prepare_task(
        self,
        data: FLModel,
        task_name: str,
        timeout: int,
        callback: Callable[[FLModel], bool],
    ) -> Task:
        """A task whose results are refused, with the reason, where the callback raises an error."""

        def checked(result: FLModel) -> bool:
            site = result.meta["client_name"]
            try:
                return callback(result)
            except PayloadError as error:
                self._refuse(
                    site,
                    str(error)
                    if error.code == "site_failed"
                    else f"{error.code}: {error}",
                )
            except Exception as error:
                self._refuse(site, f"malformed: it cannot be used ({one_line(error)})")
            return False

        return super()._prepare_task(
            data=data, task_name=task_name, timeout=timeout, callback=checked
        )

    def _refuse(self, site: str, reason: str) -> None:
        self.site_errors[site] = plain(reason)
        self.warning(f"{site}: result refused: {self.site_errors[site]}")

    def process_result_of_unknown_task(
        self,
        client: Client,
        task_name: str,
        client_task_id: str,
        result: Shareable,
        fl_ctx: FLContext,
    ) -> None:
        self.warning(
            f"{client.name}: late result of task {task_name!r} dropped; raise task_timeout if this goes on"
        )
        self._answered(client.name, late=True)

    def _answered(self, site: str, late: bool = False) -> None:
        self._pace.finish(site, self._listened, late)
        self._hung.discard(site)
        if self.patience.answer(site, late):
            self.info(f"{site} answers again: rounds wait for it as for the others")

    def _process_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        self._processing += 1  # meanwhile FLARE holds other sites' heartbeats back
        try:
            super()._process_result(client_task, fl_ctx)
        finally:
            self._processing -= 1
            self._result_processed.set()

    def ask(
        self,
        task_name: str,
        data: Mapping[str, FLModel],
        timeout: int,
        on_result: Callable[[FLModel], bool],
        first: bool = False,
        works: Mapping[str, Work] | None = None,
    ) -> bool:
        """Sends each site its data and waits until all results are in, or time is up, or who is left is lost.

        Args:
            data: what each site gets.
            timeout: seconds.
            on_result: called with each result that is not an error; False refuses it.
            first: it is the first task of these sites, so that none is busy with an earlier one.
            works: what each site does, if that is more than the task's name says.

        Returns:
            False if the job was aborted meanwhile.
        """
        self.site_errors.clear()
        self._tasks = {}
        self._given_up = set()
        self._look_for_sites()
        compat.room_for_answers(len(data))
        for site, model in data.items():
            if site in self._attendance.lost:
                self.site_errors[site] = LOST
                continue
            self.set_fl_context(model)
            self._tasks[site] = self._prepare_task(model, task_name, timeout, on_result)
            self._pace.begin(
                site, (works or {}).get(site, Work(task_name)), self._listened
            )
            self.send(self._tasks[site], fl_ctx=self.fl_ctx, targets=[site])
        if self._requests is not None:
            self._requests.release()
        waited_for = self.patience.waited_for(self._tasks)
        before = time.monotonic()
        while self.get_num_standing_tasks():
            if self.abort_signal.triggered:
                return False
            if self._result_processed.wait(self._task_check_period / 2):
                self._result_processed.clear()
                self.communicator.check_tasks()  # else the task stands until FLARE looks at it again
            now = time.monotonic()
            self._go_on_without_lost(0.0 if self._processing else now - before)
            self._listened += min(now - before, LONGEST_STEP)
            self._go_on_without_hung()
            if first:
                self._go_on_without_deaf()
            self._look_for_sites()
            before = now
            if all(
                self._tasks[site].completion_status is not None for site in waited_for
            ):
                for site in self._tasks:
                    self._give_up(site, UNWAITED)
        self._count_misses()
        return not self.abort_signal.triggered

    def _count_misses(self) -> None:
        for site, task in self._tasks.items():
            missed = (
                task.completion_status == TaskCompletionStatus.TIMEOUT
                or site in self._given_up
            )
            if missed:
                self._hung.add(site)
            if missed and self.patience.miss(site):
                self.error(
                    f"{site} has missed too many tasks in a row: it is still asked, but rounds no longer wait for it"
                )

    def _go_on_without_lost(self, seconds: float) -> None:
        for site in self._attendance.listen(seconds, self._tasks):
            self.error(
                f"{site} is lost: it has given no sign of life for too long; rounds go on without it"
            )
            self._give_up(site, LOST)

    def _go_on_without_hung(self) -> None:
        """Ends the wait for sites that take far longer than before: they hang, or their process is gone."""
        for site, task in self._tasks.items():
            if task.completion_status is not None:
                continue
            reason = self._pace.find_delay(site, self._listened)
            if reason is not None:
                self.error(
                    f"{site}: {reason}: the round goes on without it; it may hang, or its process is gone"
                )
                self._given_up.add(site)
                self._give_up(site, reason)

    def _go_on_without_deaf(self) -> None:
        for site, task in self._tasks.items():
            if (
                task.completion_status is None
                and not task.client_tasks
                and self._attendance.deaf(site)
            ):
                self._deaf.add(site)
                self._give_up(site, DEAF)

    def _look_for_sites(self) -> None:
        """Asks the server, now and then, to start the job at sites that have connected, or come back."""
        if not self._asks or time.monotonic() < self._last_request + ASK_EVERY:
            return
        self._last_request = time.monotonic()
        self._ask_server()
        if not self._asks:
            return
        known = {client.name for client in self.engine.get_clients()}
        for site in compat.new_members(self.engine):
            self._attendance.expect(site)
            self._pace.forget(site)
            self._deaf.discard(site)
            self.patience.answer(site)
            self.info(
                f"{site} has {'come back' if site in known else 'connected'}; the job is started there"
            )
            self.late.append(site)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Ends the job; the server is told for which sites it need not wait."""
        super().stop_controller(fl_ctx)
        if self._requests is not None:
            self._requests.release(ends=True)
        if self._asks:
            self._ask_server(ends=True)
        elif self._hung and compat.simulated(fl_ctx):
            compat.end_simulated_sites(self._hung)

    def _ask_server(self, ends: bool = False) -> None:
        request = Shareable()
        request[rejoin.SIGNATURE] = self.engine.args.token_signature
        request[rejoin.LOST] = sorted(self._attendance.lost | self._deaf | self._hung)
        request[rejoin.ENDS] = ends
        with self.engine.new_context() as fl_ctx:
            target = [str(SiteType.SERVER_PARENT)]
            replies = self.engine.send_aux_request(
                target, rejoin.TOPIC, request, 5.0, fl_ctx, optional=True
            )
        for reply in () if ends else (replies or {}).values():
            for site in {*reply.get(rejoin.ENDED, [])} - {*self.late} - self._ended:
                self._ended.add(site)
                self.error(
                    f"{site}: its job process has ended; FLARE ends the job for it. {PREPARE}"
                )
                self._attempt.note({site: ENDED})
        if any(
            reply.get_return_code() == ReturnCode.TOPIC_UNKNOWN
            for reply in (replies or {}).values()
        ):
            self._asks = False
            self.warning(
                "the server's kit has no cfl_flare component, so a site that is restarted misses this job"
            )

    def sites_that_never_came(self) -> list[str]:
        """The sites that the job names and that were not connected when it started."""
        deployed = (self.fl_ctx.get_prop(FLContextKey.JOB_META) or {}).get(
            "deploy_map", {}
        )
        named = {
            name
            for participants in deployed.values()
            for name in extract_participants(participants)
        }
        known = {client.name for client in self.engine.get_clients()} | {
            str(SiteType.SERVER),
            ALL_SITES,
        }
        return sorted(named - known)
