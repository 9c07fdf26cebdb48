# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's admin console at a site: by default it shows the kit's files, and so what logs say of the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.security.security import COMMAND_CATEGORIES, CommandCategory

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import read_json

AUTHORIZATION, DEFAULT = "authorization.json", "authorization.json.default"
CODE, READS = "byoc", CommandCategory.SHELL_COMMANDS
# FLARE's rights: categories of commands, commands without one, and two of jobs.
# A role may have a single command; its condition is then stronger than its category's.
READ_COMMANDS = {command for command, category in COMMAND_CATEGORIES.items() if category == READS}
COMMANDS = {command for name, command in vars(AdminCommandNames).items() if name.isupper()}
RIGHTS = {*COMMAND_CATEGORIES.values(), *(COMMANDS - COMMAND_CATEGORIES.keys()), CODE, "server-predeployed-flwr"}


def permitted_roles(local: Path, right: str) -> str:
    """The roles that have a right at a kit.

    Args:
        local: the kit's folder ``local``.
        right: `CODE`, to send jobs with their own code, or `READS`, to read files by the admin console.

    Raises:
        ConfigError: the kit's policy cannot be read.
    """
    policy = next((local / name for name in (AUTHORIZATION, DEFAULT) if (local / name).is_file()), None)
    if policy is None:
        return "anyone"  # a simulator's workspace
    names = {right, *(READ_COMMANDS if right == READS else ())}
    granted = {role: [rights.get(name, "none") for name in names] for role, rights in _rights(policy).items()}
    return ", ".join(role for role, of in granted.items() if {*of} != {"none"}) or "nobody"


def closed(local: Path) -> str | None:
    """The text of FLARE's default policy of a kit, in which nobody may read files; None if it has no default."""
    if not (local / DEFAULT).is_file():
        return None
    permissions = {
        role: {**rights, **dict.fromkeys(rights.keys() & READ_COMMANDS, "none"), READS: "none"}
        for role, rights in _rights(local / DEFAULT).items()
    }
    return json.dumps({"format_version": "1.0", "permissions": permissions}, indent=2) + "\n"


def _rights(policy: Path) -> dict[str, dict[str, Any]]:
    """By role, the condition of each right; a role with one condition has it for all rights that FLARE knows."""
    try:
        permissions = read_json(policy)["permissions"]
        require(all(isinstance(rights, (str, list, dict)) for rights in permissions.values()), "a role has no rights")
    except (FileError, ConfigError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"site: {policy} is not an authorization policy of FLARE's ({error}); restore the kit's own file"
        ) from error
    named = {right for rights in permissions.values() if isinstance(rights, dict) for right in rights}
    known = sorted({*RIGHTS, *named})
    return {
        role: rights if isinstance(rights, dict) else dict.fromkeys(known, rights)
        for role, rights in permissions.items()
    }
