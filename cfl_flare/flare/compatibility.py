# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that the versions of server, sites and job are compatible, and that server and sites have equal settings."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nvflare
from nvflare.apis.fl_context import FLContext

from cfl_flare.core import PACKAGE, __version__
from cfl_flare.core.config import require, unmarked
from cfl_flare.core.errors import SettingsError, SoftwareError


def series(version: str) -> str:
    """The part of a version that must be equal: the first two numbers.

    >>> series("0.1.3")
    '0.1'
    """
    return ".".join(version.split(".")[:2])


# Patch releases of FLARE make no difference to a job, nor to the job templates that contain this.
SOFTWARE = {"cfl_flare": __version__, "nvflare": series(nvflare.__version__)}

# The executor's settings that must be equal to the server's.
SHARED = ("method", "model", "data", "training", "private", "seed", "run_name")


def check_software(versions: Mapping[str, str], who: str, place: str) -> None:
    """Raises a SoftwareError if a version here and that of the job or the server differ in their first two numbers.

    Args:
        versions: version of each package, as `SOFTWARE`; missing ones are not checked.
        who: whose they are; the message begins with it.
        place: the name of this server or site.
    """
    for package, version in SOFTWARE.items():
        other = versions.get(package, version)
        require(
            series(other) == series(version),
            f"{who} {package} {other}, but {place} runs {version}: the first two numbers must be the same; install one "
            "version at the server and every site and make the job with it (an installed package is used rather than "
            "the copy that a job carries)",
            SoftwareError,
        )


def check_known(unknown: Sequence[str], component: str, place: str) -> None:
    """Raises a ConfigError if a component was given settings that this version does not know."""
    require(not unknown, f"job: {place} does not know the {component}'s settings {unknown}; leave them out")


def check_settings(servers: Mapping[str, Any], sites: Mapping[str, Any], place: str) -> None:
    """Raises a SettingsError for the first setting that differs in the two config files of a job.

    Args:
        servers: the settings in the server's file.
        sites: those in the site's file that must be equal.
        place: the name of this site.
    """
    for name in (key for key in sites if key in servers):
        _check_equal(name, unmarked(servers[name]), unmarked(sites[name]), place)


def _check_equal(where: str, servers: Any, sites: Any, place: str) -> None:
    """The same for a part of a setting; a missing value counts as None."""
    if isinstance(servers, Mapping) and isinstance(sites, Mapping):
        for key in {**servers, **sites}:
            _check_equal(f"{where}.{key}", servers.get(key), sites.get(key), place)
        return
    require(
        servers == sites,
        f"job: {where} = {reprlib.repr(servers)} at the server, {reprlib.repr(sites)} at {place}; set it to the same "
        "value in config_fed_server and config_fed_client",
        SettingsError,
    )


def unused_copy(fl_ctx: FLContext) -> str | None:
    """A warning if the job carries a copy of cfl_flare that is not used because another is installed."""
    carried = Path(fl_ctx.get_engine().get_workspace().get_app_custom_dir(fl_ctx.get_job_id())) / "cfl_flare"
    if not carried.is_dir() or carried.resolve() == PACKAGE:
        return None
    return f"the job carries cfl_flare, but the copy that is installed here runs: {__version__} in {PACKAGE}"
