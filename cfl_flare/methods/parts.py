# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The setting ``cluster_on``: the part of a model by which participants are compared."""

from __future__ import annotations

from typing import Any

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import ROLES, Layout

Part = str | tuple[str, ...]


def known_part(cluster_on: Any, where: str) -> Part:
    """The setting as a role or a tuple of names.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(cluster_on, str):
        require(cluster_on in ROLES, f"{where}: cluster_on = {cluster_on!r} should be one of {ROLES}")
        return cluster_on
    names = isinstance(cluster_on, (list, tuple)) and all(isinstance(n, str) for n in cluster_on)
    require(names, f"{where}: cluster_on = {cluster_on!r} should be one of {ROLES} or a list of names")
    return tuple(cluster_on)


def check_part(cluster_on: Part, layout: Layout, where: str) -> None:
    """Whether a model has this part.

    Raises:
        ConfigError: it has not.
    """
    try:
        layout.select(cluster_on)
    except ConfigError as error:
        fits = f"{where}: cluster_on = {cluster_on!r} does not fit the model"
        raise ConfigError(f"{fits}: {error}; set cluster_on=all") from error
