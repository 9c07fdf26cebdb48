# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A component of the server itself: it starts a running job at sites that connect, or come back, later."""

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

from cfl_flare.flare.compat import await_outcome, deployment

TOPIC = "cfl_flare.rejoin"
LOST, ENDS, ENDED, SIGNATURE = "lost", "ends", "ended", "signature"
TRIES = 5


class Rejoin(FLComponent):
    """Starts a job at sites that are connected but have no part in it, when the job's server process asks for it.

    FLARE deploys a job when it starts, to the sites that are connected then. A client that is restarted by its daemon
    gets a new token, which the job does not know. For such a site the server does here what it did for the others,
    under the same authorization. It reserves the site's resources, deploys the job if it is not there, and starts it.

    At a job's end FLARE waits for the outcome of each site where the job was started. This component settles the
    outcome of sites that were lost on the way, or hang. Without it a job that has done all its rounds would end as
    abnormal, a quarter of an hour later.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tries: Counter[tuple[str, str]] = Counter()
        self._lock = Lock()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._reply)

    def _reply(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Answers a job's server process, which asks for its sites; it can see new ones before they are started.

        Anybody can name a job. Only the job's server process has the token that the server has signed for it, and it
        shows that token to no site.
        """
        engine, peer = fl_ctx.get_engine(), fl_ctx.get_peer_context()
        job_id, signature = peer.get_job_id() if peer else None, request.get(SIGNATURE)
        job, run = (
            engine.job_runner.running_jobs.get(job_id),
            engine.run_processes.get(job_id),
        )
        verify = engine.server.verify_auth_token
        if (
            job is None
            or run is None
            or not verify(AUTH_CLIENT_NAME_FOR_SJ, job_id, str(signature))
        ):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        members, connected = (
            run[RunProcessKey.PARTICIPANTS],
            engine.client_manager.get_clients(),
        )
        gone = [
            client.name for token, client in members.items() if token not in connected
        ]
        # Only at the end: a site that is silent for a while has an outcome yet to come.
        for site in [*request.get(LOST, []), *gone] if request.get(ENDS) else ():
            engine.job_runner.resolve_client_outcome(job_id, site)
        with self._lock:
            for client in () if request.get(ENDS) else engine.get_clients():
                self._take_in(client, job, run, engine)
        reply, pending = (
            make_reply(ReturnCode.OK),
            engine.job_runner.is_client_outcome_pending,
        )
        reply[ENDED] = sorted(
            client.name
            for client in members.values()
            if not pending(job_id, client.name)
        )
        return reply

    def _take_in(
        self, client: Client, job: Job, run: dict[str, Any], engine: Any
    ) -> None:
        """Gives a site its part in the job, if it has none; the site is started in a thread of its own."""
        members, app = run[RunProcessKey.PARTICIPANTS], _app_of(job, client.name)
        if (
            client.token in members
            or app is None
            or self._tries[job.job_id, client.token] >= TRIES
        ):
            return
        self._tries[job.job_id, client.token] += 1
        deployed = any(member.name == client.name for member in members.values())
        others = {
            token: member
            for token, member in members.items()
            if member.name != client.name
        }
        run[RunProcessKey.PARTICIPANTS] = {**others, client.token: client}
        Thread(
            target=self._start,
            args=(client, app, job, deployed, run, engine),
            daemon=True,
        ).start()

    def _start(
        self,
        client: Client,
        app: str,
        job: Job,
        deployed: bool,
        run: dict[str, Any],
        engine: Any,
    ) -> None:
        with engine.new_context() as fl_ctx:
            try:
                _deploy_and_start(client, app, job, deployed, run, fl_ctx)
            except Exception as error:
                with self._lock:
                    members = run[RunProcessKey.PARTICIPANTS]
                    run[RunProcessKey.PARTICIPANTS] = {
                        t: c for t, c in members.items() if t != client.token
                    }
                self.log_warning(
                    fl_ctx,
                    f"job {job.job_id}: {client.name} could not be taken in: {error}",
                )
            else:
                self.log_info(fl_ctx, f"job {job.job_id}: {client.name} is taken in")


def _deploy_and_start(
    client: Client,
    app: str,
    job: Job,
    deployed: bool,
    run: dict[str, Any],
    fl_ctx: FLContext,
) -> None:
    engine, name = fl_ctx.get_engine(), client.name
    fl_ctx.set_prop(FLContextKey.CURRENT_JOB_ID, job.job_id, private=True)
    needs = get_resource_manager_spec(
        {**job.meta, JobMetaKey.RESOURCE_SPEC.value: job.resource_spec}, name
    )
    enough, token = engine.check_client_resources(job, {name: needs}, fl_ctx).get(
        name, (False, "no answer")
    )
    if not enough:
        raise RuntimeError(f"its resources do not suffice ({token})")
    if not deployed:
        admin, message = (
            engine.server.admin_server,
            deployment(engine, job, app, fl_ctx),
        )
        answers = admin.send_requests_and_get_reply_dict(
            {client.token: message}, timeout_secs=admin.timeout
        )
        answer = answers.get(client.token)
        if (
            answer is None
            or answer.get_header(MsgHeader.RETURN_CODE, AdminCode.OK) != AdminCode.OK
        ):
            raise RuntimeError(f"it refused the job ({answer and answer.body})")
    job.meta[JobMetaKey.JOB_CLIENTS] = [
        member.to_dict() for member in run[RunProcessKey.PARTICIPANTS].values()
    ]
    replies = engine.start_client_job(
        job, {name: DispatchInfo(app, needs, token)}, fl_ctx
    )
    outcome = next(
        (reply.reply.body for reply in replies if reply.reply is not None), "no answer"
    )
    if str(outcome).startswith(ERROR_MSG_PREFIX) or outcome == "no answer":
        raise RuntimeError(f"it did not start the job ({outcome})")
    await_outcome(engine, job.job_id, name)


def _app_of(job: Job, site: str) -> str | None:
    for app, participants in job.get_deployment().items():
        names = extract_participants(participants)
        if site in names or any(name.upper() == ALL_SITES for name in names):
            return str(app)
    return None
