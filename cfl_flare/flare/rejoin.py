# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A component of the server itself: it starts a running job at sites that connect, or come back, in its middle."""

from __future__ import annotations

from collections import Counter
from threading import Lock, Thread
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import ALL_SITES, Job, JobMetaKey
from nvflare.apis.job_scheduler_spec import DispatchInfo
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.private.admin_defs import MsgHeader
from nvflare.private.admin_defs import ReturnCode as AdminCode
from nvflare.private.defs import AUTH_CLIENT_NAME_FOR_SJ, ERROR_MSG_PREFIX
from nvflare.private.fed.utils.fed_utils import extract_participants
from nvflare.utils.job_launcher_utils import get_resource_manager_spec

TOPIC = "cfl_flare.rejoin"
LOST, ENDS, ENDED, SIGNATURE = "lost", "ends", "ended", "signature"
TRIES = 5


class Rejoin(FLComponent):
    """Starts a job at sites that are connected but have no part in it, when the job's server process asks for it.

    FLARE deploys a job when it starts, to the sites that are connected then. A client that is restarted by its daemon
    gets a new token, which the job does not know. Here the server does for such a site what it did for the others:
    it reserves the site's resources, deploys the job if the site does not have it, and starts it, under the same
    authorization.

    It also settles what FLARE waits for at a job's end: the outcome of each site where it was started. Without this a
    job that has done all its rounds would end as abnormal because of a site that was lost on the way.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tries: Counter[tuple[str, str]] = Counter()
        self._lock = Lock()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Listens to jobs, once the server has started."""
        if event_type == EventType.SYSTEM_START:
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._asked)

    def _asked(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """A job's server process asks for its sites; those that are new it can see before they are started.

        Anybody can name a job. What the server has signed for it, its server process alone has, and shows no site.
        """
        engine, peer = fl_ctx.get_engine(), fl_ctx.get_peer_context()
        job_id, signature = peer.get_job_id() if peer else None, request.get(SIGNATURE)
        job, run = engine.job_runner.running_jobs.get(job_id), engine.run_processes.get(job_id)
        verify = engine.server.verify_auth_token
        if job is None or run is None or not verify(AUTH_CLIENT_NAME_FOR_SJ, job_id, str(signature)):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        members, connected = run[RunProcessKey.PARTICIPANTS], engine.client_manager.get_clients()
        gone = [client.name for token, client in members.items() if token not in connected]
        for site in [*request.get(LOST, []), *(gone if request.get(ENDS) else [])]:
            engine.job_runner.resolve_client_outcome(job_id, site)
        with self._lock:
            for client in () if request.get(ENDS) else engine.get_clients():
                self._take(client, job, run, engine)
        reply, pending = make_reply(ReturnCode.OK), engine.job_runner.is_client_outcome_pending
        reply[ENDED] = sorted(client.name for client in members.values() if not pending(job_id, client.name))
        return reply

    def _take(self, client: Client, job: Job, run: dict[str, Any], engine: Any) -> None:
        """Gives a site its part in the job, if it has none; the site is started in a thread of its own."""
        members, app = run[RunProcessKey.PARTICIPANTS], _app_of(job, client.name)
        if client.token in members or app is None or self._tries[job.job_id, client.token] >= TRIES:
            return
        self._tries[job.job_id, client.token] += 1
        known = any(c.name == client.name for c in members.values())
        others = {token: c for token, c in members.items() if c.name != client.name}
        run[RunProcessKey.PARTICIPANTS] = {**others, client.token: client}
        Thread(target=self._start, args=(client, app, job, known, run, engine), daemon=True).start()

    def _start(self, client: Client, app: str, job: Job, known: bool, run: dict[str, Any], engine: Any) -> None:
        with engine.new_context() as fl_ctx:
            try:
                self._deploy_and_start(client, app, job, known, run, fl_ctx)
            except Exception as error:
                with self._lock:
                    members = run[RunProcessKey.PARTICIPANTS]
                    run[RunProcessKey.PARTICIPANTS] = {t: c for t, c in members.items() if t != client.token}
                self.log_warning(fl_ctx, f"job {job.job_id}: {client.name} could not be taken in: {error}")
            else:
                self.log_info(fl_ctx, f"job {job.job_id}: {client.name} is taken in")

    def _deploy_and_start(
        self, client: Client, app: str, job: Job, known: bool, run: dict[str, Any], fl_ctx: FLContext
    ) -> None:
        engine, name = fl_ctx.get_engine(), client.name
        fl_ctx.set_prop(FLContextKey.CURRENT_JOB_ID, job.job_id, private=True)
        needs = get_resource_manager_spec({**job.meta, JobMetaKey.RESOURCE_SPEC.value: job.resource_spec}, name)
        enough, token = engine.check_client_resources(job, {name: needs}, fl_ctx).get(name, (False, "no answer"))
        if not enough:
            raise RuntimeError(f"its resources do not suffice ({token})")
        if not known:
            message = engine.job_runner._make_deploy_message(job, job.get_application(app, fl_ctx), app, fl_ctx)
            admin = engine.server.admin_server
            answers = admin.send_requests_and_get_reply_dict({client.token: message}, timeout_secs=admin.timeout)
            answer = answers.get(client.token)
            if answer is None or answer.get_header(MsgHeader.RETURN_CODE, AdminCode.OK) != AdminCode.OK:
                raise RuntimeError(f"it refused the job ({answer and answer.body})")
        job.meta[JobMetaKey.JOB_CLIENTS] = [c.to_dict() for c in run[RunProcessKey.PARTICIPANTS].values()]
        replies = engine.start_client_job(job, {name: DispatchInfo(app, needs, token)}, fl_ctx)
        said = next((r.reply.body for r in replies if r.reply is not None), "no answer")
        if str(said).startswith(ERROR_MSG_PREFIX) or said == "no answer":
            raise RuntimeError(f"it did not start the job ({said})")
        with engine.job_runner.lock:
            engine.job_runner._pending_client_outcomes.setdefault(job.job_id, set()).add(name)


def _app_of(job: Job, site: str) -> str | None:
    """The app that a job has for a site; None if it has none."""
    for app, participants in job.get_deployment().items():
        names = extract_participants(participants)
        if site in names or any(name.upper() == ALL_SITES for name in names):
            return str(app)
    return None
