# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Code that is sent with a job (BYOC): cfl_flare itself, and the user's own modules that the job names."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path

from nvflare.apis.job_def import SERVER_SITE_NAME
from nvflare.job_config.api import FedJob

from cfl_flare.core import PACKAGE

# Of a larger message FLARE 2.9's connection by http, its default, breaks at a site: aiohttp's own limit.
MOST_CARRIED = 4 * 2**20
OWN_PACKAGES = ("cfl_flare", "torch", "torchvision", "nvflare")


def packages_of(class_paths: Iterable[str]) -> list[str]:
    """The top-level packages of classes, without those that are installed wherever cfl_flare is."""
    names = [path.partition(".")[0] for path in class_paths]
    return [name for name in dict.fromkeys(names) if name not in OWN_PACKAGES]


def stage(job: FedJob, packages: Iterable[str], sites: Iterable[str]) -> tempfile.TemporaryDirectory[str]:
    """Puts packages into a job's custom folders.

    Args:
        job: the job.
        packages: top-level ones; those that are installed like any other library are skipped.
        sites: the client apps' targets; the server gets them too.

    Returns:
        The folder from which the job is made; it must be kept until then.
    """
    kept = tempfile.TemporaryDirectory(prefix="cfl-byoc-")
    for package in packages:
        path = _source_of(package)
        if path is None:
            continue
        staged = Path(kept.name) / path.name
        if path.is_dir():
            shutil.copytree(path, staged, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, staged)
        for target in (SERVER_SITE_NAME, *sites):
            job.add_file_to(str(staged), target, dest_dir=path.name if path.is_dir() else None)
    return kept


def too_large(files: Iterable[str]) -> str | None:
    """What to say of a job that cannot be deployed to real sites, because of the files that it carries.

    FLARE sends each site all of them, those for the server too.

    Args:
        files: and folders; what is named twice travels once.
    """
    inside = [(p, [p] if p.is_file() else [own for own in p.rglob("*") if own.is_file()]) for p in {*map(Path, files)}]
    sizes = {place: sum(path.stat().st_size for path in own) for place, own in inside}
    if sum(sizes.values()) <= MOST_CARRIED:
        return None
    largest = max(sizes, key=lambda place: sizes[place])
    return (
        f"the job carries files of {sum(sizes.values()) / 1e6:.1f} MB, of which {largest.name} has "
        f"{sizes[largest] / 1e6:.1f} MB; FLARE's connections by http, its default, break at 4 MB, and such a job ends "
        "with 'deployment timeout'. Install packages at the sites, and put a start model on the server and name it by "
        "its absolute path"
    )


def _source_of(package: str) -> Path | None:
    """Folder or file of a top-level package; None if it is installed like any other library (except cfl_flare)."""
    if package == "cfl_flare":
        return PACKAGE
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    if Path(sysconfig.get_paths()["purelib"]) in path.parents:
        return None
    return path.parent if path.name == "__init__.py" else path
