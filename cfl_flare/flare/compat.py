# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Private hooks of FLARE 2.9 for what a process must know: its policy, its study, whether it is simulated.

Those of a running job's tasks are in `per_site`, those of lost and returning sites in `rejoin`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import get_job_meta_study
from nvflare.fuel.utils.config import Config, ConfigFormat, ConfigLoader
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.fed.utils.fed_utils import authorize_build_component

from cfl_flare.core.config import from_dict, require, unmarked
from cfl_flare.core.errors import ClassError, ConfigError
from cfl_flare.data import DataConfig, DataSource

# What FLARE's parsers of HOCON and YAML replace by variables, and where they read other files or addresses.
REPLACED = re.compile(r"\$\{|\binclude\b", re.IGNORECASE)
SIMULATED_JOB = "simulate_job"
# They write some sixty lines a round at level INFO: each task, each message, each transfer.
CHATTY = (
    "nvflare.apis.impl.wf_comm_server",
    "nvflare.app_common.np.np_downloader",
    "nvflare.fuel.f3.streaming.download_service",
    "nvflare.private.fed.server.server_commands",
    "nvflare.private.fed.server.server_runner",
)


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


def keep_quiet() -> None:
    """Leaves a job's log to what happens: FLARE's loggers of single messages speak from level WARNING on.

    A level that the operator gives one of them in ``local/log_config.json`` stays.
    """
    for name in CHATTY:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def simulated(fl_ctx: FLContext) -> bool:
    """Whether this process is in FLARE's simulator, and not in a provisioned kit, which has its start-up file."""
    startup = Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir())
    return not any((startup / name).exists() for name in ("fed_client.json", "fed_server.json"))


def on_one_machine(fl_ctx: FLContext) -> bool:
    """Whether all sites are of one user on one machine: in FLARE's simulator, or in that user's POC workspace."""
    from nvflare.tool.poc.poc_commands import get_poc_workspace  # slow, and needed where a job would be refused alone

    if simulated(fl_ctx):
        return True
    kit = Path(fl_ctx.get_engine().get_workspace().get_root_dir()).resolve()
    try:
        return kit.parents[2] == Path(get_poc_workspace()).resolve()  # project/prod_00/site-1 in it
    except (OSError, IndexError):  # there is no home to read FLARE's settings from
        return False


def data_config(data: Mapping[str, Any], fl_ctx: FLContext, source: DataSource | None = None) -> DataConfig:
    """How a job deals data out. At real sites its owners have no names: they would be compared with the sites' own.

    Raises:
        ConfigError: at a real site, which a POC's is not, it deals out the site's own data.
    """
    config = from_dict(DataConfig, unmarked(data), "data")
    if simulated(fl_ctx):
        return config
    if not (config.partition is None or source is None or source.public or on_one_machine(fl_ctx)):
        config.check_public(source)
    return replace(config, owners=())


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


class _Literal(ConfigLoader):
    """Parses a configuration in which nothing is replaced or included."""

    def __init__(self, form: ConfigFormat, loader: ConfigLoader):
        super().__init__(form)
        self.loader = loader

    def load_config(self, file_path: str) -> Config:
        return self.load_config_from_str(Path(file_path).read_text("utf-8"))

    def load_config_from_str(self, config_str: str) -> Config:
        match = REPLACED.search(config_str)
        require(match is None, f"{match and match[0]!r} is replaced when it is read; write it as JSON, without")
        return self.loader.load_config_from_str(config_str)

    def load_config_from_dict(self, config_dict: dict) -> Config:
        return self.loader.load_config_from_dict(config_dict)


def parse_literally() -> None:
    """From now on, FLARE's parsers in this process refuse text that refers to variables, files or addresses.

    Otherwise it reads those of a job when it is submitted and deployed, before anybody is asked.
    """
    for form, loader in ConfigFactory._fmt2Loader.items():
        if form != ConfigFormat.JSON and not isinstance(loader, _Literal):
            ConfigFactory._fmt2Loader[form] = _Literal(form, loader)
