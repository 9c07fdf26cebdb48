# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""All that cfl_flare takes from FLARE 2.9 beyond its public interface: what is private, patched or guessed.

Each function names FLARE's symbol, and what breaks without it. What FLARE lets a subclass override stays in that class:

- ``ModelController._build_shareable``, ``_accept_train_result``, ``_prepare_task``, ``_process_result`` in `per_site`.
  Without them one broken answer ends the job, and filters do not see single models.
- ``Recipe._prepare_client_apps``, ``_apply_per_site_config``, ``_cse_added`` in `job.recipe`. Without them sites have
  no settings of their own, and FLARE's evaluation looks for one model.
- ``ScriptRunner._external_process_argv`` in `job.client_apps`. Without it the server hears of no error of a script
  that runs in a process of its own.
- ``nvflare.client.api.APIContext`` in `client_api.cfl_launcher`, which runs where cfl_flare need not be installed.
  Without it scripts send no arrays, and no function measures models.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import re
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import psutil
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import Job
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming import stream_utils
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils.config import Config, ConfigFormat, ConfigLoader
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.defs import CellMessageHeaderKeys, SpecialTaskName, TaskConstant
from nvflare.private.fed.utils.fed_utils import authorize_build_component

from cfl_flare.core.config import require
from cfl_flare.core.errors import ClassError, ConfigError

# An option of `mallopt` in malloc.h, and its value: bytes of free memory that a process may keep.
M_TRIM_THRESHOLD, FREE_MEMORY = -1, 16 * 2**20
# What FLARE's parsers of HOCON and YAML replace by variables, and where they read other files or addresses.
REPLACED = re.compile(r"\$\{|\binclude\b", re.IGNORECASE)
# The id of each job in FLARE's simulator, which it writes out where it is used.
SIMULATED_JOB = "simulate_job"
ENCRYPTED = ": a filter there encrypts models, which the server has to compare; remove it from the site's privacy.json"
# They write a line at level INFO for each task, each message, each transfer.
CHATTY = (
    "nvflare.apis.impl.wf_comm_server",
    "nvflare.app_common.np.np_downloader",
    "nvflare.fuel.f3.streaming.download_service",
    "nvflare.private.fed.server.server_commands",
    "nvflare.private.fed.server.server_runner",
)


def component_policy(fl_ctx: FLContext) -> Callable[[str], None]:
    """The site's component policy, for classes that FLARE does not see in a job: a ClassError says what it refuses.

    It asks ``fed_utils.authorize_build_component``. Without it a job could name any class as its data or its model.
    """

    def authorize(class_path: str) -> None:
        ctx = FLContext()  # a separate one: FLARE's check overwrites values of the context that it is given
        ctx.set_prop(FLContextKey.WORKSPACE_OBJECT, fl_ctx.get_engine().get_workspace())
        ctx.set_prop(FLContextKey.CURRENT_JOB_ID, fl_ctx.get_job_id())
        refusal = authorize_build_component({"path": class_path}, None, None, ctx, [])
        if refusal:
            raise ClassError(
                f"this site's policy does not allow {class_path!r}: {refusal}; add it to class_allow_list in "
                "local/resources.json, or submit the job with byoc=True"
            )

    return authorize


def check_site_names(names: Sequence[str], fewest: int) -> None:
    """Raises a ConfigError for a site's name that FLARE cannot use, or fewer sites than the job starts with.

    It asks ``recipe.utils._validate_per_site_targets``. Without it such a job fails when it is exported.
    """
    from nvflare.recipe.utils import (
        _validate_per_site_targets,
    )  # not needed in the processes of a job

    try:
        _validate_per_site_targets({name: {} for name in names}, fewest)
    except ValueError as error:
        raise ConfigError(f"recipe: per-site config: {error}") from error


def keep_quiet() -> None:
    """Leaves a job's log to what happens: FLARE's loggers of single messages speak from level WARNING on.

    A level that the operator gives one of them in ``local/log_config.json`` stays. The names are those of FLARE's
    modules. Without this a round writes some sixty lines.
    """
    for name in CHATTY:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def return_memory() -> None:
    """Lets this process give memory back to the system when models are freed; no effect without the GNU C library.

    FLARE receives models in pieces of 1 MB, with many threads. By default the C library keeps such pieces for the
    thread that freed them, as it raises its own limits with each. Limits that a program sets stay. Without this a
    server grows by several models a site.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, FREE_MEMORY)


def simulated(fl_ctx: FLContext) -> bool:
    """Whether this process is in FLARE's simulator, and not in a provisioned kit, which has its start-up file.

    That the files tell it is a guess. Without it real sites would have a simulation's limits.
    """
    startup = Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir())
    return not any(
        (startup / name).exists() for name in ("fed_client.json", "fed_server.json")
    )


def end_simulated_sites(sites: Collection[str]) -> None:
    """Ends the processes of sites that hang in FLARE's simulator, of which this process is the server.

    It finds them by the option ``--client`` of ``SimulatorClientRunner.do_one_task``. Without it the simulator waits
    for such a site for ever when the job is done.
    """
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            named = [
                after
                for option, after in itertools.pairwise(words)
                if option == "--client"
            ]
            if set(named) & set(sites):
                process.kill()


def on_one_machine(fl_ctx: FLContext) -> bool:
    """Whether all sites are of one user on one machine: in FLARE's simulator, or in that user's POC workspace.

    It asks ``poc_commands.get_poc_workspace``. Without it a POC's sites refuse jobs as real hospitals do.
    """
    from nvflare.tool.poc.poc_commands import (
        get_poc_workspace,
    )  # slow, and needed where a job would be refused alone

    if simulated(fl_ctx):
        return True
    kit = Path(fl_ctx.get_engine().get_workspace().get_root_dir()).resolve()
    try:
        return (
            kit.parents[2] == Path(get_poc_workspace()).resolve()
        )  # project/prod_00/site-1 in it
    except (OSError, IndexError):  # there is no home to read FLARE's settings from
        return False


class _Literal(ConfigLoader):
    """Parses a configuration in which nothing is replaced or included."""

    def __init__(self, form: ConfigFormat, loader: ConfigLoader):
        super().__init__(form)
        self.loader = loader

    def load_config(self, file_path: str) -> Config:
        return self.load_config_from_str(Path(file_path).read_text("utf-8"))

    def load_config_from_str(self, config_str: str) -> Config:
        match = REPLACED.search(config_str)
        require(
            match is None,
            f"{match and match[0]!r} is replaced when it is read; write it as JSON, without",
        )
        return self.loader.load_config_from_str(config_str)

    def load_config_from_dict(self, config_dict: dict) -> Config:
        return self.loader.load_config_from_dict(config_dict)


def parse_literally() -> None:
    """From now on, FLARE's parsers in this process refuse text that refers to variables, files or addresses.

    It replaces the loaders in ``ConfigFactory._fmt2Loader``. Without it FLARE reads what a job refers to when the job
    is submitted and deployed, before anybody is asked.
    """
    for form, loader in ConfigFactory._fmt2Loader.items():
        if form != ConfigFormat.JSON and not isinstance(loader, _Literal):
            ConfigFactory._fmt2Loader[form] = _Literal(form, loader)


def fail_undecodable(engine: Any, fail: Callable[[str, str], None]) -> None:
    """From now on, an answer that cannot be decoded is an empty one, and its site is reported with the reason.

    It wraps ``cell.decode_payload``. Without it FLARE exits the server's job process at such an answer. ``fail`` gets
    the site's name, or ``"?"``, and the reason.
    """
    decode = cell.decode_payload

    def guarded(message: Message, *args: Any, **kwargs: Any) -> None:
        try:
            decode(message, *args, **kwargs)
        except Exception as error:
            if (
                message.get_header(StreamHeaderKey.TOPIC)
                != ServerCommandNames.SUBMIT_UPDATE
            ):
                raise
            # An unknown token is that of a client that was killed while it was sending, and has come back since.
            client = engine.client_manager.clients.get(
                message.get_header(CellMessageHeaderKeys.TOKEN)
            )
            name = "?" if client is None else client.name
            encrypted = ENCRYPTED if "tenseal" in str(error) else ""
            fail(name, f"undecodable: {type(error).__name__}{encrypted}")
            peer = FLContext()  # without a job's id, so that FLARE drops the answer
            peer.set_prop(ReservedKey.IDENTITY_NAME, name, private=False)
            message.payload = Shareable()
            message.payload.set_peer_context(peer)

    cell.decode_payload = guarded


class HeldRequests:
    """Sites' requests for a task, which the server holds until there is one: a site need not ask again and again.

    It wraps ``ServerRunner.process_task_request`` of the job's runner, outside its locks. FLARE answers such a request
    at once. Without this a site asks again only after the job's ``task_request_interval``, and each round waits for it.
    """

    # The most seconds that a request is held: FLARE's sites wait five seconds for an answer.
    LONGEST = 1.0
    # The most requests that are held: FLARE has a hundred threads for all messages.
    MOST = 50
    # The seconds after which a site asks again that was held, or has had a task.
    SOON = 0.01

    def __init__(self, runner: Any):
        self._changed, self._free = (
            threading.Condition(),
            threading.BoundedSemaphore(self.MOST),
        )
        self._changes, self._ended = 0, False
        self._answer, runner.process_task_request = (
            runner.process_task_request,
            self._process,
        )

    def release(self, ends: bool = False) -> None:
        """There are new tasks, or the job ends."""
        with self._changed:
            self._changes += 1
            self._ended |= ends
            self._changed.notify_all()

    def _process(self, client: Any, fl_ctx: FLContext) -> tuple[str, str, Any]:
        before = self._changes
        name, task_id, data = self._answer(client, fl_ctx)
        if name == SpecialTaskName.TRY_AGAIN and not self._ended:
            if not self._free.acquire(blocking=False):
                return name, task_id, data
            try:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._changes != before or self._ended, self.LONGEST
                    )
            finally:
                self._free.release()
            name, task_id, data = self._answer(client, fl_ctx)
        if data is not None:
            data.set_header(TaskConstant.WAIT_TIME, self.SOON)
        return name, task_id, data


def room_for_answers(sites: int) -> None:
    """Lets this process take in the answers of so many sites at the same time.

    It widens ``stream_utils.callback_thread_pool``, which has 64 threads. While one of them takes in an answer, it
    waits for the arrays, and another one has to take these in. Without it a round in which 64 sites or more answer at
    once stands still until FLARE gives up.
    """
    pool = stream_utils.callback_thread_pool
    pool._max_workers = max(pool._max_workers, sites + HeldRequests.MOST)


def hear_heartbeats(
    communicator: Any, engine: Any, hear: Callable[[str], None]
) -> None:
    """From now on, a function gets the name of each site of the job that gives a sign, under FLARE's lock.

    It wraps ``WFCommServer.client_is_active`` of this communicator. Without it a round waits for a dead site until its
    time is up.
    """
    is_active = communicator.client_is_active

    def client_is_active(client_name: str, reason: str, fl_ctx: FLContext) -> None:
        if any(client.name == client_name for client in engine.get_clients()):
            hear(client_name)
        is_active(client_name, reason, fl_ctx)

    communicator.client_is_active = client_is_active


def survive_failed_tasks(engine: Any) -> None:
    """A site whose task fails with a grave code has failed its round: ``ServerRunner.ABORT_RETURN_CODES`` are emptied.

    Without it FLARE ends the job for all.
    """
    engine.get_component("_Server_Runner").ABORT_RETURN_CODES = []


def new_members(engine: Any) -> list[str]:
    """The sites where the server has started the job since it was last asked; this process knows them from now on.

    It asks ``ServerEngine._retrieve_clients_data``. Without it the job knows only the sites with which it began.
    """
    members = engine._retrieve_clients_data(engine.args.job_id) or {}
    known = {client.token for client in engine.get_clients()}
    names = [client.name for token, client in members.items() if token not in known]
    if names:
        engine.client_manager.set_clients(members)
    return names


def deployment(engine: Any, job: Job, app: str, fl_ctx: FLContext) -> Any:
    """The message that deploys a job's app at a site: ``JobRunner._make_deploy_message``.

    Without it a site that connects in the middle of a job cannot take part.
    """
    return engine.job_runner._make_deploy_message(
        job, job.get_application(app, fl_ctx), app, fl_ctx
    )


def await_outcome(engine: Any, job_id: str, site: str) -> None:
    """FLARE waits at the job's end for this site, too: ``JobRunner._pending_client_outcomes``.

    Without it a site that was taken in has no outcome, and the job ends before the site's process has.
    """
    with engine.job_runner.lock:
        engine.job_runner._pending_client_outcomes.setdefault(job_id, set()).add(site)


def config_of(recipe: Any) -> Any:
    """The configuration of a recipe's job: ``Recipe._job.job``. Without it the job carries cfl_flare's code."""
    return recipe._job.job


def apps_of(job: Any) -> dict[str, Any]:
    """A job's app configurations by target: ``FedJob._deploy_map``. Without it no recipe sees its own filters."""
    return {target: app.app_config for target, app in job._deploy_map.items()}


def start_instead(script: str, job: Any, ctx: Any) -> None:
    """The executor that a job got last starts this script, by ``FedJob._get_app`` and the executor's private path.

    Without it the server hears of no error of a script that runs in the executor's process.
    """
    job._get_app(ctx).app_config.executors[-1].executor._task_script_path = script
