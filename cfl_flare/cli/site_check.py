# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Checks whether a site could take part in a job, for ``cfl-flare site check``."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import numpy as np
import psutil
from cryptography.x509 import load_pem_x509_certificate
from cryptography.x509.oid import NameOID
from packaging.requirements import Requirement
from rich import filesize
from torch.nn import Module

from cfl_flare.cli.specs import is_writable, model_spec, nearest_folder
from cfl_flare.core.config import build, one_line
from cfl_flare.core.errors import CFLError
from cfl_flare.core.files import find_open_folders
from cfl_flare.core.params import Layout
from cfl_flare.core.text import plain
from cfl_flare.data import DataConfig, DataSource, SiteData
from cfl_flare.data.labels import FORMS
from cfl_flare.data.summary import COUNTED, DataSummary, clipped_line
from cfl_flare.engine.site import Site
from cfl_flare.flare.allowed import (
    AUTHORIZATION,
    CLASSES,
    CODE,
    POLICY,
    READS,
    Policy,
    permitted_roles,
)
from cfl_flare.flare.kit import job_store, loses_state, preparation
from cfl_flare.flare.policy import STATE_ROOT, rules_of
from cfl_flare.methods import FedAvg
from cfl_flare.results.ledger import COUNTERS, Ledger
from cfl_flare.results.model_file import layout_of
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import find_task

# Names of environment variables whose values are secret.
SECRET = re.compile(
    r"passw|secret|token|credential|api_?key|private_?key|access_?key", re.IGNORECASE
)
STEPS = 5
# The last two versions of a participant's memory, the served model, and room to write the next ones.
MODELS_ON_DISK = 10
# At a server: three checkpoints at a time, the final models, the state and the best models, of ten clusters.
SERVER_MODELS = 60
# Where a server writes, at least this number of bytes should be free.
LEAST_FREE = 10**9
# Docker and Podman leave one of these in each container.
MARKS = ("/.dockerenv", "/run/.containerenv")


@dataclass(frozen=True)
class Finding:
    """The result of one check, what the operator can do about it, and whether a job would fail."""

    what: str
    result: str
    way_out: str = ""
    fatal: bool = False
    look: bool = (
        False  # an operator should look at it, although it names no way out of its own
    )


def versions() -> Iterator[Finding]:
    """The versions of the packages that a job needs, compared with cfl_flare's requirements."""
    yield Finding("Python", platform.python_version())
    yield Finding("cfl_flare", version("cfl-flare"))
    wanted = {r.name: r for r in map(Requirement, requires("cfl-flare") or ())}
    for name in ("nvflare", "torch", "numpy"):
        try:
            installed = version(name)
            suitable = installed in wanted[name].specifier
        except PackageNotFoundError:
            installed, suitable = "not installed", False
        yield Finding(
            name,
            installed,
            "" if suitable else f"pip install '{wanted[name]}'",
            not suitable,
        )


def kit(folder: Path) -> Iterator[Finding]:
    """What a kit's policies allow: cfl_flare in jobs, streaming of logs, files, and jobs with their own code."""
    current = preparation(folder, CLASSES)
    local, prepare, of_site = (
        current.file.parent,
        f"cfl-flare site prepare {folder}",
        is_site(folder),
    )
    if current.after is None:
        yield Finding("class allow-list", "has cfl_flare's classes")
    else:
        deploy = ", after FLARE's 'deploy prepare' if you use it: that deletes local/resources.json"
        lacks = "lacks cfl_flare's classes, or allows more of it than these"
        yield Finding(
            "class allow-list", lacks, prepare + deploy * (not current.exists), True
        )
    if of_site or is_server(folder):
        checks = (
            "those without code are checked before they run"
            if current.checks_jobs
            else "run as they come"
        )
        yield Finding("jobs", checks, "" if current.checks_jobs else prepare)
        if current.checks_jobs and current.others:
            yield Finding("class allow-list", f"also has {', '.join(current.others)}")
        if names := ", ".join(
            name for name in sorted(os.environ) if SECRET.search(name)
        ):
            yield Finding(
                "environment",
                f"has {names}",
                "jobs with code can read that: start FLARE by 'env -i'",
            )
    if of_site:
        streams = (
            "jobs may stream logs to the server"
            if current.streams_logs
            else "stay here"
        )
        yield Finding("logs", streams, prepare if current.streams_logs else "")
    yield policy(local)
    yield Finding(
        "custom code",
        f"jobs that carry code, such as training scripts: from {permitted_roles(local, CODE)}",
    )
    if of_site:
        readers = permitted_roles(local, READS)
        way_out = f"{prepare}, or set {READS!r} to 'none' for each role in your {AUTHORIZATION}"
        reads = f"may read this site's logs, with cat, grep and the like: {readers}"
        yield Finding("admin console", reads, "" if readers == "nobody" else way_out)


def policy(local: Path) -> Finding:
    try:
        limits = Policy.read(local / POLICY)
    except CFLError as error:
        return _failed("policy", error)
    roots = (
        f"jobs may name files in {', '.join(limits.data_roots)}"
        if limits.data_roots
        else "jobs may name no files"
    )
    bounds = f"min_samples_per_cluster {limits.min_samples_per_cluster}, max_weight_share {limits.max_weight_share:.3g}"
    if limits.min_sites_per_cluster == 1:
        bounds = "a job may show others this site's own model"
    allowed = f"{roots}; min_sites_per_cluster at least {limits.min_sites_per_cluster}, {bounds}"
    missing = [root for root in limits.data_roots if not Path(root).is_dir()]
    way_out = f"{missing[0]} is no folder: correct {POLICY}" if missing else ""
    return Finding(
        "policy", f"{allowed}, max_participants {limits.max_participants:,}", way_out
    )


def ledger_of(kit: Path, root: Path) -> Ledger:
    """A site's ledger of privacy."""
    rules = rules_of(Policy.read(kit / "local" / POLICY))
    return Ledger(root, kit / COUNTERS, name_of(kit), rules)


def privacy(kit: Path, root: Path) -> Iterator[Finding]:
    """What is left of the operator's budget for each data set; nothing where none is set and none was spent."""
    try:
        ledger = ledger_of(kit, root)
        spent = [of.summary() for of in ledger.by_data_set()] if ledger.is_begun else []
    except CFLError as error:
        yield _failed("privacy", error)
        return
    budget = ledger.budget
    if budget is not None and not spent:
        yield Finding("privacy", f"epsilon_budget {budget:g}, nothing spent")
    for of in spent:
        left = (
            "no budget is set"
            if budget is None
            else f"{of['left']:.3g} of {budget:g} left for a job"
        )
        way_out = (
            ""
            if of["left"] is None or of["left"] > 0
            else "no job with dp goes on; see 'cfl-flare site ledger'"
        )
        if budget is not None and of["refusals"] >= of["max_refusals"]:
            way_out = f"{of['refusals']} jobs were refused because of the data: see 'cfl-flare site ledger'"
        yield Finding(
            "privacy",
            f"{of['data'] or 'all data'}: epsilon {of['epsilon']:.3g} spent, {left}",
            way_out,
        )


def is_site(kit: Path) -> bool:
    """Whether this is a site's kit, and neither a server's nor a simulator's workspace."""
    return (kit / "startup").is_dir() and not is_server(kit)


def name_of(kit: Path) -> str:
    """The site's name, by its certificate; else the folder's."""
    certificate = kit / "startup" / "client.crt"
    if not certificate.is_file():
        return kit.resolve().name
    subject = load_pem_x509_certificate(certificate.read_bytes()).subject
    return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def is_server(kit: Path) -> bool:
    """Whether this is a server's kit, which has no data and keeps its own logs."""
    return (kit / "startup" / "fed_server.json").is_file()


def data(
    source: DataSource,
    model: str | None,
    config: DataConfig,
    device: str,
    state_root: Path,
) -> Iterator[Finding]:
    """Does what a job's first task does with the site's data, and measures a training step."""
    try:
        if isinstance(source, SiteData):
            path, origin = source.located()
            yield Finding("data", f"{path} ({origin})")
        (hosted,) = config.host(source, "this site", 0, 1)
        for line in (*config.described(source), *clipped_line([hosted])):
            yield _finding_of_line(line)
    except CFLError as error:
        yield _failed("data", error)
        return
    summary = DataSummary.of(hosted)
    yield Finding(
        "samples",
        f"{len(hosted.train)} training, {len(hosted.test)} test, {_shape(summary.shape)}",
    )
    patients = [
        len(np.unique(part.patient))
        for part in (hosted.train, hosted.test)
        if part.patient is not None
    ]
    if patients:
        yield Finding(
            "patients",
            "{} training, {} test, by {!r}".format(*patients, source.patient),
        )
    if summary.form == "class":
        yield Finding("classes", f"{summary.counts} (training + test)")
    else:
        yield Finding(
            "labels", f"{FORMS[summary.form]}, {COUNTED[summary.form]} {summary.counts}"
        )
    for remark in summary.remarks:
        result, _, way_out = remark.partition("; ")
        yield Finding("samples", result, way_out)
    try:
        outputs = max(summary.outputs, 2 if summary.form == "class" else 1)
        spec = model_spec(model, summary.shape, outputs, summary.form == "mask")
        training = TrainSettings(local_steps=STEPS, task=find_task(summary.form))
        site = Site(
            FedAvg(), partial(build, spec, Module, "model"), training, 0, device=device
        )
        site.add([hosted])
        seconds = step_seconds(site)
    except CFLError as error:
        yield _failed("model", error)
        return
    except Exception as error:  # the model may be the user's, and raise anything
        yield Finding("training", one_line(error), "fix the model", True)
        return
    for remark in site.remarks:
        result, _, way_out = remark.partition("; ")
        yield Finding("model", result, way_out)
    layout = site.runtime.resident.layout
    yield _model(layout, spec["class_path"].rpartition(".")[2] + ", ")
    yield Finding(
        "training", f"{seconds * 1000:.1f} ms per step of 32 samples on {device}"
    )
    yield disk(state_root, MODELS_ON_DISK * layout.nbytes)


def _finding_of_line(line: str) -> Finding:
    """A line on the columns; one that says what the operator can do, after a semicolon, is a remark."""
    return Finding("columns", plain(line), look="; " in line)


def _model(layout: Layout, name: str = "") -> Finding:
    return Finding(
        "model",
        f"{name}{layout.parameter_size:,} parameters, {filesize.decimal(layout.nbytes)}",
    )


def memory() -> Finding:
    used, free = psutil.Process().memory_info().rss, psutil.virtual_memory().available
    result = f"{filesize.decimal(free)} free; this check used {filesize.decimal(used)}"
    return Finding(
        "memory",
        result,
        "" if free > used else "free some: a job's process needs about as much",
    )


def step_seconds(site: Site) -> float:
    """Wall-clock seconds of one training step; some steps before it are not counted."""
    (name,) = site.hosted
    learner = site.learner(name, {}, 0)
    start = learner.initial(0)
    learner.train(start)
    started = time.perf_counter()
    learner.train(start)
    return (time.perf_counter() - started) / STEPS


def server_disks(kit: Path, model: str | None, state_root: Path) -> Iterator[Finding]:
    """Whether a server has room for a job, and its model if that is known: in its state root, kit and store of jobs."""
    needed = LEAST_FREE
    if model is not None:
        layout = layout_of(model_spec(model, (), 0))
        needed = max(needed, SERVER_MODELS * layout.nbytes)
        yield _model(layout)
    store = job_store(kit)
    yield disk(state_root, needed, "disk: checkpoints")
    yield disk(kit.resolve(), needed, "disk: running jobs", "another disk for the kit")
    if store is not None:
        where = "another disk by uri_root of job_manager in local/resources.json"
        yield disk(store, needed, "disk: finished jobs", where)
        if store.is_relative_to("/tmp"):
            lost = "a restart of the machine may delete it; set uri_root of job_manager in local/resources.json"
            yield Finding(
                "disk: finished jobs", f"{store} is below the temporary folder", lost
            )


def kit_of(named: str | None) -> Path | None:
    """The kit that is named, else the current folder if it is one, else None."""
    if named:
        return Path(named)
    here = Path.cwd()
    return here if (here / "startup").is_dir() and (here / "local").is_dir() else None


def default_state_root(kit: Path | None) -> Path:
    """Where a job keeps what outlives it: ``$CFL_STATE_ROOT``, else ``cfl_state`` beside the kit."""
    chosen = os.environ.get("CFL_STATE_ROOT")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return (Path.cwd() if kit is None else kit.resolve().parent) / "cfl_state"


def state(root: Path, kit: Path | None) -> Iterator[Finding]:
    """Whether the state root, which outlives a job, is lost with a container, or lies where FLARE deletes."""
    existing = nearest_folder(root)
    mounted = any(
        os.path.ismount(path)
        for path in (existing, *existing.parents)
        if path != Path(path.anchor)
    )
    if kit is not None and loses_state(kit):
        lost = "jobs run in containers, and FLARE keeps the job's folder alone: memories, checkpoints are lost"
        yield Finding(
            "state root",
            lost,
            "mount a folder, and set CFL_STATE_ROOT in local/study_runtime.yaml",
        )
    elif in_container() and not mounted:
        lost = f"{root} is lost with this container"
        yield Finding(
            "state root", lost, "mount a folder, and set CFL_STATE_ROOT to it"
        )
    too_open = find_open_folders(root)
    if too_open:
        reason = f"other users of this machine can enter {len(too_open)} folders below it, such as {too_open[0]}"
        yield Finding(
            "state root", reason, f"run: chmod -R go-rwx {shlex.quote(str(root))}/*"
        )
    if kit is not None and root.resolve().is_relative_to(kit.resolve()):
        inside = f"{root} is inside the kit, which is FLARE's"
        yield Finding("state root", inside, "set CFL_STATE_ROOT to a folder beside it")


def in_container() -> bool:
    return any(map(os.path.exists, MARKS)) or "KUBERNETES_SERVICE_HOST" in os.environ


def disk(
    root: Path,
    needed: int,
    what: str = "disk",
    instead: str = "CFL_STATE_ROOT on another disk",
) -> Finding:
    """Whether this many bytes can be written to a folder, which need not exist yet."""
    existing = nearest_folder(root)
    if not is_writable(existing):
        return Finding(
            what,
            f"{existing} is not writable",
            f"let FLARE's user write there, or set {instead}",
            True,
        )
    free = shutil.disk_usage(existing).free
    short = free < needed
    way_out = f"free {filesize.decimal(needed)}, or set {instead}" if short else ""
    return Finding(what, f"{filesize.decimal(free)} free at {root}", way_out, short)


def _failed(what: str, error: CFLError) -> Finding:
    """A fatal finding; the message of an error ends with the way out."""
    reason, _, way_out = str(error).rpartition("; ")
    return (
        Finding(what, reason, way_out, True)
        if reason
        else Finding(what, way_out, "", True)
    )


def _shape(shape: tuple[int, ...]) -> str:
    if len(shape) == 3:
        return (
            f"{shape[0]} channel{'s' if shape[0] > 1 else ''} of {shape[1]}x{shape[2]}"
        )
    return f"{'x'.join(map(str, shape))} numbers"


def describe_way_to_state(kit: str | None) -> str:
    """What to do if there is nothing below the state root."""
    if os.environ.get(STATE_ROOT):
        return (
            f"set {STATE_ROOT} to the folder that the site's process was started with"
        )
    way_out = f"if the site's process was started with {STATE_ROOT}, set it to the same folder here"
    return way_out if kit else f"name the site's kit by --kit, or {way_out}"
