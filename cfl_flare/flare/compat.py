# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The private FLARE 2.9 hooks that cfl_flare relies on, all in one place."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import get_job_meta_study
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.private.fed.utils.fed_utils import authorize_build_component

from cfl_flare.core.config import one_line, require
from cfl_flare.core.errors import ClassError, ConfigError, PayloadError
from cfl_flare.core.text import plain, shown

SIMULATED_JOB = "simulate_job"
RETURN_CODES = frozenset(code for name, code in vars(ReturnCode).items() if name.isupper())


class PerSiteController(ModelController):
    """A ModelController that sends each site its own data.

    One broadcast cannot carry different data for different sites: FLARE copies a task's data once, after the first
    site has asked for it. So each site gets a task of its own, and the round waits for all of them together.

    Attributes:
        site_errors: why each site's last result cannot be used: FLARE's return code, or a reason.
        plain: tasks are plain FLModels with one model each, as FLARE's Client API expects.
    """

    def __init__(self, *args: Any, plain: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.site_errors: dict[str, str] = {}
        self.plain = plain

    def _build_shareable(self, data: FLModel | None = None) -> Shareable:
        """A COLLECTION with one DXO per model, so that FLARE's filters act on each model separately."""
        assert data is not None
        if self.plain:
            return super()._build_shareable(data)
        shareable = DXO(DataKind.COLLECTION, data=data.params, meta=data.meta).to_shareable()
        shareable.set_header(AppConstants.CURRENT_ROUND, data.current_round)
        shareable.set_header(AppConstants.NUM_ROUNDS, data.total_rounds)
        shareable.add_cookie(AppConstants.CONTRIBUTION_ROUND, data.current_round)
        return shareable

    def _accept_train_result(
        self, client_name: str, result: Shareable, fl_ctx: FLContext, is_unknown_task: bool = False
    ) -> bool:
        try:
            code = result.get_return_code() or ReturnCode.OK
            if code not in RETURN_CODES:
                raise ValueError(f"return code {shown(code)}")
            if code == ReturnCode.OK:
                FLModelUtils.from_shareable(result)
        except Exception as error:  # what a site sends can break FLARE's own code as well
            self._refuse(client_name, f"malformed: FLARE cannot read it ({one_line(error)})")
            return False
        if code != ReturnCode.OK:
            self.site_errors[client_name] = code
        return bool(super()._accept_train_result(client_name, result, fl_ctx, is_unknown_task))

    def _prepare_task(self, data: FLModel, task_name: str, timeout: int, callback: Callable[[FLModel], bool]) -> Task:
        """A task whose results are refused, with the reason, where the callback raises an error."""

        def checked(result: FLModel) -> bool:
            site = result.meta["client_name"]
            try:
                return callback(result)
            except PayloadError as error:
                self._refuse(site, str(error) if error.code == "site_failed" else f"{error.code}: {error}")
            except Exception as error:
                self._refuse(site, f"malformed: it cannot be used ({one_line(error)})")
            return False

        return super()._prepare_task(data=data, task_name=task_name, timeout=timeout, callback=checked)

    def _refuse(self, site: str, reason: str) -> None:
        """Notes why a site's result is refused."""
        self.site_errors[site] = plain(reason)
        self.warning(f"{site}: result refused: {self.site_errors[site]}")

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Drops a result that arrives after its round has ended."""
        self.warning(f"{client.name}: late result of task {task_name!r} dropped; raise task_timeout if this goes on")

    def exchange(
        self, task_name: str, data: Mapping[str, FLModel], timeout: int, on_result: Callable[[FLModel], bool]
    ) -> bool:
        """Sends each site its data and waits until all results are in, or time is up.

        Args:
            task_name: the task.
            data: what each site gets.
            timeout: seconds.
            on_result: called with each result that is not an error; False refuses it.

        Returns:
            False if the job was aborted meanwhile.
        """
        self.site_errors.clear()
        for site, model in data.items():
            self.set_fl_context(model)
            task = self._prepare_task(data=model, task_name=task_name, timeout=timeout, callback=on_result)
            self.send(task, fl_ctx=self.fl_ctx, targets=[site])
        while self.get_num_standing_tasks():
            if self.abort_signal.triggered:
                return False
            time.sleep(self._task_check_period / 2)
        return not self.abort_signal.triggered


def component_policy(fl_ctx: FLContext) -> Callable[[str], None]:
    """The site's component policy, for classes that FLARE itself does not see in a job.

    Returns:
        A function of a class path that raises a ClassError where the policy refuses it.
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
    """Raises a ConfigError for a site's name that FLARE cannot use, or fewer sites than the job starts with."""
    from nvflare.recipe.utils import _validate_per_site_targets  # not needed in the processes of a job

    try:
        _validate_per_site_targets({name: {} for name in names}, fewest)
    except ValueError as error:
        raise ConfigError(f"recipe: per-site config: {error}") from error


def simulated(fl_ctx: FLContext) -> bool:
    """Whether this process is in FLARE's simulator, and not in a provisioned kit, which has its start-up file."""
    startup = Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir())
    return not any((startup / name).exists() for name in ("fed_client.json", "fed_server.json"))


def study_of(fl_ctx: FLContext) -> str:
    """The study that the job belongs to; for a job without one, FLARE says ``default``."""
    return str(get_job_meta_study(fl_ctx.get_prop(FLContextKey.JOB_META)))


def allow_list_key() -> str:
    """The name of the allow-list in a site's resources file."""
    from nvflare.app_common.widgets.component_path_authorizer import CLASS_ALLOW_LIST

    return str(CLASS_ALLOW_LIST)


def check_study(given: str | None, jobs: str) -> str:
    """The study whose data a job reads, which is its own.

    Raises:
        ConfigError: the job names another one.
    """
    require(
        given in (None, jobs),
        f"data site: study = {given!r}: the job is of study {jobs!r}, and reads no other's data; leave it out",
    )
    return jobs
