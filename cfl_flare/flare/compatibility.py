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


def check_software(theirs: Mapping[str, str], who: str, place: str) -> None:
    """Compares the versions here with those that made the job, or that run at the server.

    Args:
        theirs: version of each package, as `SOFTWARE`; missing ones are not checked.
        who: whose they are; the message begins with it.
        place: the name of this server or site.

    Raises:
        SoftwareError: a version differs in its first two numbers.
    """
    for package, version in SOFTWARE.items():
        other = theirs.get(package, version)
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


def check_settings(servers: Mapping[str, Any], own: Mapping[str, Any], place: str) -> None:
    """Compares the two config files of a job, the server's and the sites'.

    Args:
        servers: the settings in the server's file.
        own: those in the site's file that must be equal.
        place: the name of this site.

    Raises:
        SettingsError: a setting differs; the message names the first one.
    """
    for name in (key for key in own if key in servers):
        found = _difference(name, unmarked(servers[name]), unmarked(own.get(name)))
        if found is not None:
            where, one, other = found
            raise SettingsError(
                f"job: {where} = {reprlib.repr(one)} at the server, {reprlib.repr(other)} at {place}; set it to the "
                "same value in config_fed_server and config_fed_client"
            )


def _difference(where: str, one: Any, other: Any) -> tuple[str, Any, Any] | None:
    """The first part in which two settings differ, with both values; a missing value counts as None."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found = (_difference(f"{where}.{key}", one.get(key), other.get(key)) for key in {**one, **other})
        return next((difference for difference in found if difference is not None), None)
    return None if one == other else (where, one, other)


def unused_copy(fl_ctx: FLContext) -> str | None:
    """A warning if the job carries a copy of cfl_flare that is not used because another is installed."""
    carried = Path(fl_ctx.get_engine().get_workspace().get_app_custom_dir(fl_ctx.get_job_id())) / "cfl_flare"
    if not carried.is_dir() or carried.resolve() == PACKAGE:
        return None
    return f"the job carries cfl_flare, but the copy that is installed here runs: {__version__} in {PACKAGE}"
