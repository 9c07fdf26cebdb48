# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A startup kit: what its component policy lets jobs use."""

from __future__ import annotations

import difflib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import atomic_write, make_folder, parse_json, read_json, read_text, writing
from cfl_flare.flare.allowed import OF_FLARE, PREFIX, VALIDATOR, checks_jobs, with_allowed, with_job_check
from cfl_flare.flare.compat import allow_list_key
from cfl_flare.flare.console import AUTHORIZATION, closed

RESOURCES = "resources.json"
BACKUP = "resources.json.before-cfl"
REJOIN = "cfl_flare.flare.rejoin.Rejoin"
JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STREAMS_LOGS = "allow_log_streaming"
# FLARE's launchers that run a job in a container of its own, by their ids.
CONTAINERS = ("docker_launcher", "k8s_launcher")
STATE_ROOT = "CFL_STATE_ROOT"


@dataclass(frozen=True)
class Preparation:
    """A change of a kit.

    Attributes:
        resources: the file that FLARE reads first.
        before: its text; None if it does not exist yet and is made from the kit's ``resources.json.default``.
        after: its new text; None if there is nothing to change.
        diff: lines of a unified diff, apart from the layout of the JSON.
        streams_logs: whether the kit lets jobs send its logs to the server.
        checks_jobs: whether it already refuses jobs as `cfl_flare.flare.job_check` does.
        others: classes besides cfl_flare's and those of FLARE's that its jobs use, which it already allows.
        ours: whether ``before`` is as an earlier preparation wrote it.
    """

    resources: Path
    before: str | None
    after: str | None
    diff: list[str]
    streams_logs: bool
    checks_jobs: bool
    others: list[str]
    ours: bool = False

    def write(self) -> Path | None:
        """Makes the change; returns the backup of the operator's own file, if one was made.

        A file that `preparation` wrote is never taken for the operator's own, and no backup is ever replaced: a second
        one gets a number.

        Raises:
            FileError: one of the files cannot be written; the old one is left.
        """
        if self.after is None:
            return None
        make_folder(self.resources.parent)
        backup = None if self.before is None or self.ours else self._back_up()
        atomic_write(self.resources, self.after)
        return backup

    def _back_up(self) -> Path:
        """Keeps the file itself, with its owner and its permissions, under the first free name."""
        for number in count(1):
            backup = self.resources.with_name(BACKUP if number == 1 else f"{BACKUP}-{number}")
            try:
                os.link(self.resources, backup)
            except FileExistsError:
                continue
            except OSError:  # the file system has no hard links
                if backup.exists():
                    continue
                atomic_write(backup, self.before or "")
            return backup
        raise AssertionError("count() has no end")


def preparation(kit: Path, classes: Sequence[str], keep_logs: bool = False) -> Preparation:
    """The change that lets a server's or a site's kit, or a simulator's workspace, allow classes.

    Args:
        kit: the folder that holds ``startup`` and ``local``; an empty one becomes a simulator's workspace.
        classes: class path prefixes; ``"package."`` allows all of a package.
        keep_logs: also forbid that jobs stream logs to the server.

    Raises:
        ConfigError: the folder is not a kit, or its resources cannot be read.
    """
    local = _local(kit)
    source = _first_file(local, RESOURCES)
    try:
        text = read_text(source) if source else "{}"
        content = parse_json(text, str(source))
    except FileError as error:
        raise ConfigError(f"site: {error}, or restore the kit's own") from error
    listed = content.get(allow_list_key(), []) if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise ConfigError(f"site: {source}: {allow_list_key()} should be a list of class paths")
    started = [name for name in ("fed_server.json", "fed_client.json") if (kit / "startup" / name).is_file()]
    changed = with_job_check(content, classes) if started else with_allowed(content, classes)
    if "fed_server.json" in started:
        changed = with_rejoin(changed)
    if keep_logs:
        changed[STREAMS_LOGS] = False
    old, new = (json.dumps(c, indent=2).splitlines() for c in (content, changed))
    diff = list(difflib.unified_diff(old, new, source.name if source else "nothing", RESOURCES, lineterm="", n=2))
    return Preparation(
        local / RESOURCES,
        text if source == local / RESOURCES else None,
        written(changed) if diff else None,
        diff,
        bool(changed.get(STREAMS_LOGS, True)),
        checks_jobs(content),
        [entry for entry in listed if not str(entry).startswith(PREFIX) and entry not in OF_FLARE],
        any(str(one).startswith(PREFIX) for one in listed) and text == written(content),
    )


def written(content: dict[str, Any]) -> str:
    """The text of resources as `preparation` writes them."""
    return json.dumps(content, indent=2) + "\n"


def undone(kit: Path, dry_run: bool = False) -> str:
    """Takes back what `preparation` changed in a kit; the operator's limits in ``local/cfl.json`` stay.

    A file that is as `preparation` wrote it gives way to its newest backup, or to the kit's default. From a file that
    was changed since, cfl_flare's classes and components are taken out.

    An ``authorization.json`` that keeps the admin console from files goes as well, if nobody has changed it.

    Returns:
        What was done, or would be in a ``dry_run``, in a line.

    Raises:
        ConfigError: the folder is not a kit.
        FileError: its resources cannot be read or written.
    """
    resources = _local(kit) / RESOURCES
    content = read_json(resources) if resources.is_file() else {}
    listed = content.get(allow_list_key(), []) if isinstance(content, dict) else []
    if not any(str(entry).startswith(PREFIX) for entry in listed):
        return f"{kit}: it is not prepared; nothing to change"
    backups = sorted(resources.parent.glob(f"{BACKUP}*"), key=lambda path: (len(path.name), path.name))
    if read_text(resources) != written(content):
        classes = [entry for entry in listed if not str(entry).startswith(PREFIX)]
        parts = [part for part in content.get("components", []) if part.get("path") != REJOIN]
        changed = {**content, allow_list_key(): classes, **({"components": parts} if parts else {})}
        if checks_jobs(content):
            own, default = changed.pop(VALIDATOR)["args"].get("then"), resources.with_name(f"{RESOURCES}.default")
            before = (read_json(default) if default.is_file() else {}).get(allow_list_key(), DEFAULT_CLASS_ALLOW_LIST)
            of_flare = [entry for entry in before if entry in DEFAULT_CLASS_ALLOW_LIST]
            others = [entry for entry in classes if entry not in OF_FLARE]
            changed |= {allow_list_key(): [*dict.fromkeys((*of_flare, *others))], **({VALIDATOR: own} if own else {})}
        action: Callable[[], object] = partial(atomic_write, resources, written(changed))
        line = "cfl_flare's classes are taken out"
    elif backups:
        action, line = partial(os.replace, backups[-1], resources), f"{backups[-1].name} is put back"
    else:
        action, line = resources.unlink, f"removed; FLARE reads {RESOURCES}.default"
    console = resources.with_name(AUTHORIZATION)
    if not dry_run:
        with writing(resources):
            action()
            if console.is_file() and read_text(console) == closed(console.parent):
                console.unlink()
    return f"{resources}: {line}" + (" (--dry-run: not done)" if dry_run else "")


@dataclass(frozen=True)
class OldJob:
    """What a job has left in a kit; FLARE deletes none of it.

    Attributes:
        folder: in the kit, named by the job's id.
        days: since anything in it was written.
        nbytes: its size.
    """

    folder: Path
    days: float
    nbytes: int


def old_jobs(kit: Path, days: float) -> list[OldJob]:
    """The jobs that ended at a kit more than so many days ago, the oldest first. One that still runs is none of them.

    Raises:
        ConfigError: the folder is not a kit.
    """
    _local(kit)
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    jobs = []
    for meta in kit.glob("*/meta.json"):
        folder = meta.parent
        if folder.is_symlink() or not JOB_ID.fullmatch(folder.name) or any(folder.name in line for line in commands):
            continue
        found = [path.lstat() for path in (folder, *folder.rglob("*"))]
        age = (time.time() - max(status.st_mtime for status in found)) / 86400
        if age > days:
            jobs.append(OldJob(folder, age, sum(status.st_size for status in found)))
    return sorted(jobs, key=lambda job: -job.days)


def job_store(kit: Path) -> Path | None:
    """The folder in which a server keeps jobs and their results; None if its resources do not say.

    Raises:
        ConfigError: the folder is not a kit.
        FileError: its resources cannot be read.
    """
    root = (_component_args(kit, "job_manager") or {}).get("uri_root")
    return Path(root) if isinstance(root, str) else None


def loses_state(kit: Path) -> bool:
    """Whether jobs run in containers that keep nothing but the job's own folder, without a state root of the site's.

    Raises:
        ConfigError: the folder is not a kit.
        FileError: its resources cannot be read.
    """
    launchers = [args for name in CONTAINERS if (args := _component_args(kit, name)) is not None]
    studies = _local(kit) / "study_runtime.yaml"
    named = json.dumps(launchers) + (read_text(studies) if studies.is_file() else "")
    return bool(launchers) and STATE_ROOT not in named


def _component_args(kit: Path, name: str) -> dict[str, Any] | None:
    """The arguments of a component of the kit's resources; None if there is none of that id."""
    source = _first_file(_local(kit), RESOURCES)
    content = read_json(source) if source else {}
    found = content.get("components") if isinstance(content, dict) else None
    for component in found if isinstance(found, list) else ():
        if isinstance(component, dict) and component.get("id") == name:
            args = component.get("args")
            return args if isinstance(args, dict) else {}
    return None


def with_rejoin(content: dict[str, Any]) -> dict[str, Any]:
    """A server's resources with the component that takes sites into running jobs; see `cfl_flare.flare.rejoin`."""
    components = content.get("components", [])
    if any(component.get("path") == REJOIN for component in components):
        return content
    return {**content, "components": [*components, {"id": "cfl_rejoin", "path": REJOIN, "args": {}}]}


def allow(resources: Path, classes: list[str]) -> None:
    """Adds class path prefixes to the component policy of a simulator's ``local/resources.json``, or creates it."""
    content = read_json(resources) if resources.is_file() else {}
    make_folder(resources.parent)
    atomic_write(resources, written(with_allowed(content, classes)))


def _first_file(local: Path, name: str) -> Path | None:
    """The operator's own file, else the kit's default one."""
    return next((path for path in (local / name, local / f"{name}.default") if path.is_file()), None)


def _local(kit: Path) -> Path:
    """The kit's folder of files that the operator may change."""
    require(kit.is_dir(), f"site: {str(kit)!r} is not a folder; name the startup kit of a site or of the server")
    local, startup = kit / "local", kit / "startup"
    simulated = (local / RESOURCES).is_file() or not any(kit.iterdir())
    if not simulated and not (local.is_dir() and startup.is_dir()):
        inside = sorted(p.parent.name for p in kit.glob("*/startup") if (p.parent / "local").is_dir())
        hint = f"name one of the kits in it: {', '.join(inside)}" if inside else "name the folder that has both"
        raise ConfigError(
            f"site: {str(kit)!r} is not a startup kit: it lacks the folders 'startup' and 'local'; {hint}"
        )
    require(
        not (startup / "fed_admin.json").is_file(),
        f"site: {str(kit)!r} is an admin's kit, which runs no jobs; prepare those of the server and of the sites",
    )
    return local
