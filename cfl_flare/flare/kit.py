# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A startup kit on disk: how it is prepared for cfl_flare, what an operator changes in it, what jobs leave there."""

from __future__ import annotations

import difflib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_common.widgets.component_path_authorizer import CLASS_ALLOW_LIST

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import (
    atomic_write,
    make_folder,
    parse_json,
    read_json,
    read_text,
    writing,
)
from cfl_flare.core.settings import changed
from cfl_flare.data.files import expanded
from cfl_flare.flare import allowed
from cfl_flare.flare.allowed import (
    AUTHORIZATION,
    OF_FLARE,
    POLICY,
    PREFIX,
    PRIVACY,
    VALIDATOR,
    Policy,
    written,
)
from cfl_flare.flare.policy import STATE_ROOT

RESOURCES = "resources.json"
BACKUP = "resources.json.before-cfl"
JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STREAMS_LOGS = "allow_log_streaming"
# FLARE's launchers that run a job in a container of its own, by their ids.
CONTAINERS = ("docker_launcher", "k8s_launcher")


@dataclass(frozen=True)
class Change:
    """A change of one of a kit's files.

    Attributes:
        after: the new text; None if there is nothing to change.
        diff: lines of a unified diff, apart from the layout of the JSON.
        operators: the operator's own text, which is backed up; None if there is none.
    """

    file: Path
    after: str | None
    diff: list[str]
    operators: str | None = None

    @classmethod
    def of(cls, file: Path, before: str, after: str) -> Change:
        """The change of a file from one text to another."""
        diff = _diff(before, after, file.name, file.name)
        return cls(file, after if diff else None, diff)

    def write(self) -> Path | None:
        """Makes the change; returns the backup of the operator's own file, if one was made.

        No backup is ever replaced: a second one gets a number.

        Raises:
            FileError: one of the files cannot be written; the old one is left.
        """
        if self.after is None:
            return None
        make_folder(self.file.parent)
        backup = None if self.operators is None else self._back_up(self.operators)
        atomic_write(self.file, self.after, durable=True)
        return backup

    def _back_up(self, text: str) -> Path:
        """Keeps the file itself, with its owner and its permissions, under the first free name."""
        for number in count(1):
            backup = self.file.with_name(
                BACKUP if number == 1 else f"{BACKUP}-{number}"
            )
            try:
                os.link(self.file, backup)
            except FileExistsError:
                continue
            except OSError:  # the file system has no hard links
                if backup.exists():
                    continue
                atomic_write(backup, text, durable=True)
            return backup
        raise AssertionError("count() has no end")


@dataclass(frozen=True, kw_only=True)
class Preparation(Change):
    """A change of the resources that FLARE reads first, which are made from the kit's default where there are none.

    Attributes:
        exists: whether there are resources besides the kit's default.
        streams_logs: whether the kit lets jobs send its logs to the server.
        checks_jobs: whether it already refuses jobs as `cfl_flare.flare.job_check` does.
        others: classes besides cfl_flare's and those of FLARE's that its jobs use, which it already allows.
    """

    exists: bool
    streams_logs: bool
    checks_jobs: bool
    others: list[str]


def preparation(
    kit: Path, classes: Sequence[str], keep_logs: bool = False
) -> Preparation:
    """The change that lets a server's or a site's kit, or a simulator's workspace, allow classes.

    Args:
        kit: the folder that holds ``startup`` and ``local``; an empty one becomes a simulator's workspace.
        classes: class path prefixes; ``"package."`` allows all of a package.
        keep_logs: jobs stream no logs to the server.

    Raises:
        ConfigError: the folder is not a kit, or its resources cannot be read.
    """
    local = _local(kit)
    source = allowed.first_file(local, RESOURCES)
    try:
        text = read_text(source) if source else "{}"
        content = parse_json(text, str(source))
    except FileError as error:
        raise ConfigError(f"site: {error}, or restore the kit's own") from error
    listed = content.get(CLASS_ALLOW_LIST, []) if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise ConfigError(
            f"site: {source}: {CLASS_ALLOW_LIST} should be a list of class paths"
        )
    started = [
        name
        for name in ("fed_server.json", "fed_client.json")
        if (kit / "startup" / name).is_file()
    ]
    prepared = (
        allowed.with_job_check(content, classes)
        if started
        else allowed.with_allowed(content, classes)
    )
    if "fed_server.json" in started:
        prepared = allowed.with_rejoin(prepared)
    if keep_logs:
        prepared[STREAMS_LOGS] = False
    diff = _diff(
        written(content),
        written(prepared),
        source.name if source else "nothing",
        RESOURCES,
    )
    exists = source == local / RESOURCES
    ours = any(str(entry).startswith(PREFIX) for entry in listed) and text == written(
        content
    )
    return Preparation(
        file=local / RESOURCES,
        after=written(prepared) if diff else None,
        diff=diff,
        operators=text if exists and not ours else None,
        exists=exists,
        streams_logs=bool(prepared.get(STREAMS_LOGS, True)),
        checks_jobs=allowed.checks_jobs(content),
        others=[
            entry
            for entry in listed
            if not str(entry).startswith(PREFIX) and entry not in OF_FLARE
        ],
    )


def policy_change(
    local: Path,
    data_roots: Sequence[str] = (),
    data_sets: Sequence[str] = (),
    **limits: float | None,
) -> Change:
    """The change of a kit's policy that an operator asks for: what to add to its lists, and limits that are not None.

    Raises:
        ConfigError: the policy cannot be read, a value is out of its range, or a folder does not exist.
    """
    old = Policy.read(local / POLICY)
    roots = [str(expanded(root).resolve()) for root in data_roots]
    for root in roots:
        require(
            Path(root).is_dir(),
            f"site: --data-root {root!r} is not a folder; make it first",
        )
    values: dict[str, Any] = {
        name: value for name, value in limits.items() if value is not None
    }
    values["data_roots"] = tuple(dict.fromkeys((*old.data_roots, *roots)))
    values["data_sets"] = tuple(
        dict.fromkeys((*old.data_sets, *map(_resolve_data_set, data_sets)))
    )
    new = replace(old, **values)
    texts = (
        written({name: getattr(policy, name) for name in changed(policy)})
        for policy in (old, new)
    )
    return Change.of(local / POLICY, *texts)


def _resolve_data_set(text: str) -> str:
    """``NAME=PATH`` with its whole path; a ConfigError if nothing is there."""
    name, _, given = text.partition("=")
    place = expanded(given).resolve()
    reason = f"site: --data-set {text!r} should be NAME=PATH of a file or a folder"
    require(bool(name and given) and place.exists(), f"{reason}; make it first")
    return f"{name}={place}"


def console_change(local: Path) -> Change:
    """The change that keeps FLARE's admin console from a site's files; none where the operator has a policy already."""
    file, after = local / AUTHORIZATION, allowed.closed(local)
    if after is None or file.exists():
        return Change(file, None, [])
    return Change(
        file, after, [f"+ {allowed.READS}: none for each role, in {AUTHORIZATION}"]
    )


def privacy_change(local: Path) -> Change:
    """The change after which nothing of a script leaves that is not in the ledger; a ConfigError for no such policy."""
    file = local / PRIVACY
    try:
        before = read_json(file) if file.exists() else None
        after = allowed.with_ledger(before)
    except (FileError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"site: {file} is no privacy policy ({error}); correct it, or remove it"
        ) from error
    return Change.of(file, written(before) if before else "", written(after))


def _diff(before: str, after: str, old: str, new: str) -> list[str]:
    return list(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), old, new, lineterm="", n=2
        )
    )


def undone(kit: Path, dry_run: bool = False) -> str:
    """Takes back what `preparation` changed in a kit; the operator's limits in ``local/cfl.json`` stay.

    A file that is as `preparation` wrote it gives way to its newest backup, or to the kit's default. From a file that
    was changed since, cfl_flare's classes and components are taken out. An ``authorization.json`` that keeps the admin
    console from files goes as well, if nobody has changed it.

    Returns:
        What was done, or would be in a ``dry_run``, in a line.

    Raises:
        ConfigError: the folder is not a kit.
        FileError: its resources cannot be read or written.
    """
    resources = _local(kit) / RESOURCES
    content = read_json(resources) if resources.is_file() else {}
    listed = content.get(CLASS_ALLOW_LIST, []) if isinstance(content, dict) else []
    if not any(str(entry).startswith(PREFIX) for entry in listed):
        return f"{kit}: it is not prepared; nothing to change"
    backups = sorted(
        resources.parent.glob(f"{BACKUP}*"),
        key=lambda path: (len(path.name), path.name),
    )
    if read_text(resources) != written(content):
        content = _without_ours(content, resources)
        action: Callable[[], object] = partial(
            atomic_write, resources, written(content), durable=True
        )
        line = "cfl_flare's classes are taken out"
    elif backups:
        action, line = (
            partial(os.replace, backups[-1], resources),
            f"{backups[-1].name} is put back",
        )
    else:
        action, line = resources.unlink, f"removed; FLARE reads {RESOURCES}.default"
    console = resources.with_name(AUTHORIZATION)
    if not dry_run:
        with writing(resources):
            action()
            if console.is_file() and read_text(console) == allowed.closed(
                console.parent
            ):
                console.unlink()
    return f"{resources}: {line}" + (" (--dry-run: not done)" if dry_run else "")


def _without_ours(content: dict[str, Any], resources: Path) -> dict[str, Any]:
    """Resources without cfl_flare's classes and components, and with FLARE's classes that preparing took away."""
    classes = [
        entry
        for entry in content[CLASS_ALLOW_LIST]
        if not str(entry).startswith(PREFIX)
    ]
    restored: dict[str, Any] = {**content, CLASS_ALLOW_LIST: classes}
    if "components" in content:
        restored["components"] = [
            part for part in content["components"] if part.get("path") != allowed.REJOIN
        ]
    if allowed.checks_jobs(content):
        operators, default = (
            restored.pop(VALIDATOR)["args"].get("then"),
            resources.with_name(f"{RESOURCES}.default"),
        )
        before = (read_json(default) if default.is_file() else {}).get(
            CLASS_ALLOW_LIST, DEFAULT_CLASS_ALLOW_LIST
        )
        of_flare = [entry for entry in before if entry in DEFAULT_CLASS_ALLOW_LIST]
        others = [entry for entry in classes if entry not in OF_FLARE]
        restored[CLASS_ALLOW_LIST] = [*dict.fromkeys((*of_flare, *others))]
        restored |= {VALIDATOR: operators} if operators else {}
    return restored


@dataclass(frozen=True)
class OldJob:
    """What a job has left in a kit, which FLARE never deletes; ``days`` since anything in it was written."""

    folder: Path
    days: float
    nbytes: int


def old_jobs(kit: Path, days: float) -> list[OldJob]:
    """The jobs that ended at a kit more than ``days`` days ago, the oldest first; none that still runs."""
    _local(kit)
    commands = [
        " ".join(process.info["cmdline"] or ())
        for process in psutil.process_iter(["cmdline"])
    ]
    jobs = []
    for meta in kit.glob("*/meta.json"):
        folder = meta.parent
        if (
            folder.is_symlink()
            or not JOB_ID.fullmatch(folder.name)
            or any(folder.name in line for line in commands)
        ):
            continue
        files = [path.lstat() for path in (folder, *folder.rglob("*"))]
        age = (time.time() - max(status.st_mtime for status in files)) / 86400
        if age > days:
            jobs.append(OldJob(folder, age, sum(status.st_size for status in files)))
    return sorted(jobs, key=lambda job: -job.days)


def job_store(kit: Path) -> Path | None:
    """The folder in which a server keeps jobs and their results; None if its resources do not say."""
    root = (_component_args(kit, "job_manager") or {}).get("uri_root")
    return Path(root) if isinstance(root, str) else None


def loses_state(kit: Path) -> bool:
    """Whether jobs run in containers that keep nothing but the job's own folder, without a state root of the site's."""
    launchers = [
        args for name in CONTAINERS if (args := _component_args(kit, name)) is not None
    ]
    studies = _local(kit) / "study_runtime.yaml"
    named = json.dumps(launchers) + (read_text(studies) if studies.is_file() else "")
    return bool(launchers) and STATE_ROOT not in named


def _component_args(kit: Path, name: str) -> dict[str, Any] | None:
    """The arguments of a component of the kit's resources; None if there is none of that id."""
    source = allowed.first_file(_local(kit), RESOURCES)
    content = read_json(source) if source else {}
    components = content.get("components") if isinstance(content, dict) else None
    for component in components if isinstance(components, list) else ():
        if isinstance(component, dict) and component.get("id") == name:
            args = component.get("args")
            return args if isinstance(args, dict) else {}
    return None


def allow(resources: Path, classes: list[str]) -> None:
    """Adds class path prefixes to the component policy of a simulator's ``local/resources.json``, or creates it."""
    content = read_json(resources) if resources.is_file() else {}
    make_folder(resources.parent)
    atomic_write(resources, written(allowed.with_allowed(content, classes)))


def _local(kit: Path) -> Path:
    """The kit's folder of files that the operator may change."""
    require(
        kit.is_dir(),
        f"site: {str(kit)!r} is not a folder; name the startup kit of a site or of the server",
    )
    local, startup = kit / "local", kit / "startup"
    simulated = (local / RESOURCES).is_file() or not any(kit.iterdir())
    if not simulated and not (local.is_dir() and startup.is_dir()):
        inside = sorted(
            p.parent.name
            for p in kit.glob("*/startup")
            if (p.parent / "local").is_dir()
        )
        hint = (
            f"name one of the kits in it: {', '.join(inside)}"
            if inside
            else "name the folder that has both"
        )
        raise ConfigError(
            f"site: {str(kit)!r} is not a startup kit: it lacks the folders 'startup' and 'local'; {hint}"
        )
    require(
        not (startup / "fed_admin.json").is_file(),
        f"site: {str(kit)!r} is an admin's kit, which runs no jobs; prepare those of the server and of the sites",
    )
    return local
