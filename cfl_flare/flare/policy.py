# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a kit's operator allows jobs to do, in ``local/cfl.json``, where no job can change it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext

from cfl_flare.core.config import from_dict, require
from cfl_flare.core.errors import ConfigError, FileError, FloorError
from cfl_flare.core.files import atomic_write, read_json
from cfl_flare.core.settings import check_settings, setting
from cfl_flare.data.files import expanded, reading_within
from cfl_flare.engine.settings import BOUNDS, LARGEST_SHARE
from cfl_flare.flare.compat import on_one_machine, simulated
from cfl_flare.flare.console import AUTHORIZATION, READS, closed

POLICY, SHARE = "cfl.json", "max_weight_share"


@dataclass(frozen=True)
class Policy:
    """An operator's limits. Without a file, the defaults hold."""

    data_roots: tuple[str, ...] = setting(
        (), help="folders in which a job may name files to read; with none, a job reads only what $CFL_DATA names"
    )
    min_sites_per_cluster: int = setting(
        3, help="a site takes part in no job with a lower min_sites_per_cluster; 1: others may see its own model", ge=1
    )
    min_samples_per_cluster: int = setting(30, help="the same of min_samples_per_cluster, unless the first is 1", ge=1)
    max_weight_share: float = setting(
        LARGEST_SHARE, help="and in none with a higher max_weight_share, unless the first is 1", gt=0, le=1
    )
    max_participants: int = setting(10_000, help="most participants that a server accepts from one site", ge=1)

    def __post_init__(self) -> None:
        check_settings(self, POLICY)
        roots = self.data_roots
        fits = isinstance(roots, (list, tuple)) and all(isinstance(r, str) and Path(r).is_absolute() for r in roots)
        require(fits, f"{POLICY}: data_roots = {roots!r} should be a list of folders, each with its whole path")
        object.__setattr__(self, "data_roots", tuple(roots))

    @property
    def content(self) -> dict[str, Any]:
        """What a file of this policy holds: the settings that are not the defaults."""
        values = {**asdict(self), "data_roots": list(self.data_roots)}
        return {f.name: values[f.name] for f in fields(self) if getattr(self, f.name) != f.default}

    @classmethod
    def of(cls, fl_ctx: FLContext) -> Policy:
        """The policy of the kit in which this process runs.

        Raises:
            ConfigError: the file is not JSON, or sets what does not exist.
        """
        return cls.read(Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / POLICY)

    @classmethod
    def read(cls, file: Path) -> Policy:
        """The policy in a file; the defaults if there is none.

        Raises:
            ConfigError: the file is not JSON, or sets what does not exist.
        """
        if not file.exists():
            return cls()
        try:
            content = read_json(file)
        except FileError as error:
            raise ConfigError(f"{file}: not readable as JSON ({error}); correct it, or remove it") from error
        require(isinstance(content, dict), f"{file}: should hold a JSON object with settings")
        return from_dict(cls, content, str(file))


@dataclass(frozen=True)
class PolicyChange:
    """A change of a kit's policy.

    Attributes:
        file: that holds the policy.
        after: its new text; None if there is nothing to change.
        diff: lines of a unified diff.
    """

    file: Path
    after: str | None
    diff: list[str]

    def write(self) -> None:
        """Makes the change."""
        if self.after is not None:
            atomic_write(self.file, self.after)

    @classmethod
    def of(cls, local: Path, data_roots: Sequence[str] = (), **limits: float | None) -> PolicyChange:
        """The change of a kit's policy that an operator asks for.

        Args:
            local: the kit's folder ``local``.
            data_roots: folders to add.
            limits: new values of other settings; None leaves the old one.

        Raises:
            ConfigError: the policy cannot be read, a value is out of its range, or a folder does not exist.
        """
        old = Policy.read(local / POLICY)
        roots = [str(expanded(root).resolve()) for root in data_roots]
        for root in roots:
            require(Path(root).is_dir(), f"site: --data-root {root!r} is not a folder; make it first")
        changed: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
        new = replace(old, data_roots=tuple(dict.fromkeys((*old.data_roots, *roots))), **changed)
        before, after = (json.dumps(policy.content, indent=2) for policy in (old, new))
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), POLICY, POLICY, lineterm="", n=2)
        return cls(local / POLICY, after + "\n" if new != old else None, list(lines))


def console_change(local: Path) -> PolicyChange:
    """The change that keeps FLARE's admin console from a site's files; none where the operator has a policy already."""
    file, after = local / AUTHORIZATION, closed(local)
    if after is None or file.exists():
        return PolicyChange(file, None, [])
    return PolicyChange(file, after, [f"+ {READS}: none for each role, in {AUTHORIZATION}"])


@contextmanager
def limited_paths(fl_ctx: FLContext) -> Iterator[None]:
    """Inside it, paths that a job names must lie in the policy's ``data_roots``; in a simulation they may be anywhere.

    Raises:
        ConfigError: the policy cannot be read.
    """
    with reading_within(None if simulated(fl_ctx) else Policy.of(fl_ctx).data_roots):
        yield


def check_floor(bounds: Any, fl_ctx: FLContext) -> None:
    """Raises a FloorError if what bounds a job's means is weaker than this site's policy asks for, or is not stated.

    A simulation or POC has no site of its own, and a policy with ``min_sites_per_cluster = 1`` asks for nothing.

    Args:
        bounds: what the server states; see `cfl_flare.engine.settings.BOUNDS`.
        fl_ctx: FLARE's.
    """
    policy = Policy.of(fl_ctx)
    stated = bounds if isinstance(bounds, dict) else {}
    for name in BOUNDS if policy.min_sites_per_cluster > 1 else ():
        value, limit = stated.get(name), getattr(policy, name, True)
        met = isinstance(value, (int, float)) and (0 < value <= limit if name == SHARE else value >= limit)
        if not met and not on_one_machine(fl_ctx):
            raise FloorError(
                f"job: {name} = {value}, as the server states it, is weaker than the {limit} that {POLICY} of "
                f"{fl_ctx.get_identity_name()} asks for; set it in the job, or let the operator lower it with "
                "'cfl-flare site prepare KIT --min-sites-per-cluster 1' and the like"
            )
