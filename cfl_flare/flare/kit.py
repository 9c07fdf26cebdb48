# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A site's kit: what its component policy lets jobs use."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.flare.compat import allow_list_key

RESOURCES = "resources.json"
BACKUP = "resources.json.before-cfl"
ALL = "*"
STREAMS_LOGS = "allow_log_streaming"


@dataclass(frozen=True)
class Preparation:
    """What is to be changed in a kit.

    Attributes:
        resources: the file that FLARE reads first.
        before: its text; None where it is not there, and is made of the kit's ``resources.json.default``.
        after: its text with the change; None where there is nothing to change.
        diff: lines of a unified diff; layout apart, which is JSON's own.
        streams_logs: the kit lets jobs send this site's logs to the server.
    """

    resources: Path
    before: str | None
    after: str | None
    diff: list[str]
    streams_logs: bool

    def write(self) -> Path | None:
        """Makes the change and keeps the text that was there first; returns that backup, if one was made."""
        if self.after is None:
            return None
        backup = self.resources.with_name(BACKUP)
        made = self.before is not None and not backup.exists()
        self.resources.parent.mkdir(exist_ok=True)
        if made:
            backup.write_text(self.before or "")
        temporary = self.resources.with_name(RESOURCES + ".tmp")
        temporary.write_text(self.after)
        temporary.replace(self.resources)
        return backup if made else None


def preparation(kit: Path, classes: Sequence[str], keep_logs: bool = False) -> Preparation:
    """How a server's or a site's kit, or a simulator's workspace, comes to allow these classes.

    Args:
        kit: the folder that holds ``startup`` and ``local``; an empty one becomes a simulator's workspace.
        classes: class path prefixes; ``"package."`` is all of a package.
        keep_logs: also forbid that jobs stream logs to the server.

    Raises:
        ConfigError: it is no such folder, or its resources cannot be read.
    """
    local = _local(kit)
    there = next((p for p in (local / RESOURCES, local / f"{RESOURCES}.default") if p.is_file()), None)
    text = there.read_text() if there else "{}"
    content = _content(text, there or local)
    changed = with_allowed(content, classes)
    if keep_logs:
        changed[STREAMS_LOGS] = False
    old, new = (json.dumps(c, indent=2).splitlines() for c in (content, changed))
    diff = list(difflib.unified_diff(old, new, there.name if there else "nothing", RESOURCES, lineterm="", n=2))
    return Preparation(
        local / RESOURCES,
        text if there == local / RESOURCES else None,
        json.dumps(changed, indent=2) + "\n" if diff else None,
        diff,
        bool(changed.get(STREAMS_LOGS, True)),
    )


def code_carriers(kit: Path) -> str:
    """Whose jobs may carry code of their own to a kit, by FLARE's roles.

    Raises:
        ConfigError: it is no kit, or its policy cannot be read.
    """
    local = _local(kit)
    files = (local / "authorization.json", local / "authorization.json.default")
    there = next((path for path in files if path.is_file()), None)
    if there is None:
        return "anyone"  # a simulator's workspace
    try:
        permissions = json.loads(there.read_text())["permissions"]
        may = [
            r
            for r, rights in permissions.items()
            if (rights if isinstance(rights, str) else rights.get("byoc", "none")) != "none"
        ]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"site: {there} is no authorization policy of FLARE's ({error}); take the kit's own again"
        ) from error
    return ", ".join(may) or "nobody"


def with_allowed(content: dict[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Resources that allow these classes beside what they allow already; without a list, that is FLARE's own."""
    key = allow_list_key()
    listed = list(content.get(key, DEFAULT_CLASS_ALLOW_LIST))
    added = [] if ALL in listed else [c for c in classes if c not in listed]
    return {"format_version": 2, **content, key: listed + added}


def allow(resources: Path, classes: list[str]) -> None:
    """Adds class path prefixes to a simulator's component policy, keeping what is there.

    Args:
        resources: ``local/resources.json``; made if it is not there.
        classes: prefixes; ``"package."`` is all of a package.
    """
    content = json.loads(resources.read_text()) if resources.is_file() else {}
    resources.parent.mkdir(parents=True, exist_ok=True)
    resources.write_text(json.dumps(with_allowed(content, classes), indent=2))


def _local(kit: Path) -> Path:
    """The kit's folder of what the operator may change."""
    require(kit.is_dir(), f"site: {str(kit)!r} is no folder; name the startup kit of a site or of the server")
    local, startup = kit / "local", kit / "startup"
    simulated = (local / RESOURCES).is_file() or not any(kit.iterdir())
    if not simulated and not (local.is_dir() and startup.is_dir()):
        inside = sorted(p.parent.name for p in kit.glob("*/startup") if (p.parent / "local").is_dir())
        hint = f"name one of the kits in it: {', '.join(inside)}" if inside else "name the folder that has both"
        raise ConfigError(f"site: {str(kit)!r} is no startup kit: it lacks the folders 'startup' and 'local'; {hint}")
    require(
        not (startup / "fed_admin.json").is_file(),
        f"site: {str(kit)!r} is an admin's kit, which runs no jobs; prepare those of the server and of the sites",
    )
    return local


def _content(text: str, where: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"site: {where} is not JSON ({error}); mend it, or take the kit's own again") from error
    listed = content.get(allow_list_key(), []) if isinstance(content, dict) else None
    require(isinstance(listed, list), f"site: {where}: {allow_list_key()} should be a list of class paths")
    return dict(content)
