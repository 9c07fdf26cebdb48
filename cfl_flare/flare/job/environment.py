# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a job needs where it runs: enough sites, a folder that FLARE can work in, and the files that it carries there.

These are cfl_flare itself, the user's own modules that the job names (BYOC), and the model that it starts from.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.job_def import SERVER_SITE_NAME
from nvflare.job_config.api import FedJob
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv

from cfl_flare.clustering.floor import LARGEST_SHARE
from cfl_flare.core import PACKAGE
from cfl_flare.core.arrays import save_arrays
from cfl_flare.core.config import require
from cfl_flare.core.private import Division
from cfl_flare.engine.initial_models import initial_models
from cfl_flare.engine.min_cluster_size import check_floor
from cfl_flare.engine.plan import RunPlan
from cfl_flare.methods import Participant

logger = logging.getLogger(__name__)
# A model of one site, which counts in full.
TRUSTING = {
    "min_sites_per_cluster": 1,
    "min_samples_per_cluster": 1,
    "max_weight_share": 1.0,
}
# With a larger message, FLARE 2.9's connection by http, its default, breaks at a site: aiohttp's own limit.
MOST_CARRIED = 4 * 2**20
# Installed wherever cfl_flare is.
INSTALLED = ("cfl_flare", "torch", "torchvision", "nvflare")
INITIAL = "initial_model.safetensors"


def check_env(env: ExecEnv, plan: RunPlan, named: Sequence[str]) -> None:
    """Raises a ConfigError if a job cannot run in an environment; ``named`` sites have settings of their own."""
    if not isinstance(env, (SimEnv, PocEnv)):
        plan.data.check_public(plan.reader)
        return  # the sites of a provisioned project are not known here
    where, method = type(env).__name__, plan.method
    if env.num_clients is not None:
        have = f"{where}: num_clients = {env.num_clients}"
        fewest = plan.job.min_clients
        enough = env.num_clients >= fewest
        require(
            enough,
            f"{have} is less than the job's min_clients = {fewest}; it would never start",
        )
        if plan.data.participants is not None:
            hosting = env.num_clients <= len(plan.data.names)
            require(
                hosting,
                f"{have} is more than {plan.data.who_trains}; each site hosts at least one",
            )
        else:
            require(
                method.clusters <= env.num_clients,
                f"{have} is less than method {method.name}'s k = {method.clusters}, and each site is one participant; "
                "lower k",
            )
        fewest_in_a_cluster = plan.server.floor.sites
        require(
            isinstance(env, SimEnv) or env.num_clients >= fewest_in_a_cluster,
            f"{have} is less than the job's min_sites_per_cluster = {fewest_in_a_cluster}, so that there could be no "
            "model; lower one or raise the other",
        )
    if isinstance(env, SimEnv):
        require(
            not named or env.clients is not None,
            f"{where}: the job has settings for each of its sites; name them: SimEnv(clients={list(named)})",
        )
        folder = str(env.workspace_root)
        require(  # FLARE writes it into a command line without quotes
            not re.search(r"[\s'\"\\\\]", folder),
            f"{where}: FLARE's simulator cannot work in {folder!r}: its path has a space, a quote or a backslash; "
            "choose another folder",
        )


def trust(controller: Any) -> None:
    """Gives a POC's server a simulation's defaults: its sites are all on this machine, and have nothing to hide."""
    values = {
        **TRUSTING,
        "max_weight_share": 1.0
        if controller.min_sites_per_cluster in (None, 1)
        else LARGEST_SHARE,
    }
    unset = {
        name: value
        for name, value in values.items()
        if getattr(controller, name) is None
    }
    for name, value in unset.items():
        setattr(controller, name, value)
    if unset:
        logger.warning(
            "PocEnv: all sites are on this machine, so this run has %s, as a simulation has; at real sites the "
            "defaults are 3, 30 and 1/3, and this run shows nothing of them",
            ", ".join(f"{name} = {value}" for name, value in unset.items()),
        )


def check_floors(plan: RunPlan, named: Sequence[str] = ()) -> None:
    """Raises a ConfigError if real sites' floors would end a job before it begins; unknown sites may be enough."""
    if plan.job.resume_from is not None:
        return
    settings = plan.server.at_real_sites(plan.script.train_script is None)
    sites = named or [
        f"site-{i}" for i in range(max(settings.floor.sites, plan.method.clusters))
    ]
    pattern = plan.job.private if plan.script.train_script is None else None
    layout = Division.of(plan.make_model(), pattern).public
    state = plan.method.start(
        initial_models(plan.method, plan.make_model, layout, plan.server.seed, None),
        list(sites),
    )
    check_floor(
        plan.method,
        state,
        settings,
        [Participant(site, site, settings.floor.samples) for site in sites],
    )


def warn_of_few_sites(plan: RunPlan, sites: int) -> None:
    """Warns of what to set in a job that may start with this number of sites, if a model needs more."""
    needed = plan.server.at_real_sites().floor.sites
    if sites < needed:
        logger.warning(
            "job %s may start with %d sites (min_clients), and a model needs %d at real sites or in a POC "
            "(min_sites_per_cluster): with fewer it ends before its first round. Raise min_clients, or set %s if the "
            "hospitals agree that each may see a model of one other, and their operators lower the limit of their kits",
            plan.job.name,
            sites,
            needed,
            ", ".join(f"{name} = {value}" for name, value in TRUSTING.items()),
        )


def stage(
    job: FedJob, packages: Iterable[str], sites: Iterable[str], folder: Path
) -> None:
    """Puts top-level packages into the custom folders of the server and of the client apps' targets ``sites``.

    Those that are installed like any other library are skipped. The job is made from ``folder``.
    """
    for path in filter(None, map(_source_of, packages)):
        staged = folder / path.name
        if path.is_dir():
            shutil.copytree(path, staged, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, staged)
        for target in (SERVER_SITE_NAME, *sites):
            job.add_file_to(
                str(staged), target, dest_dir=path.name if path.is_dir() else None
            )


def too_large(files: Iterable[str]) -> str | None:
    """Why a job cannot be deployed to real sites with these files and folders; None if it can.

    FLARE sends all of them to each site, those for the server too. A file that is named twice travels once.
    """
    sizes = {}
    for place in {*map(Path, files)}:
        inside = (
            [place]
            if place.is_file()
            else [path for path in place.rglob("*") if path.is_file()]
        )
        sizes[place] = sum(path.stat().st_size for path in inside)
    if sum(sizes.values()) <= MOST_CARRIED:
        return None
    largest = max(sizes, key=lambda place: sizes[place])
    return (
        f"the job carries files of {sum(sizes.values()) / 1e6:.1f} MB, and {largest.name} alone has "
        f"{sizes[largest] / 1e6:.1f} MB; FLARE's connections by http, its default, break at 4 MB. Such a job ends with "
        "'deployment timeout'. Install packages at the sites. Name the sites (site_names): then a start model goes to "
        "the server alone. Or put it there, and name it by its absolute path"
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


def place_model(plan: RunPlan, job: FedJob, folder: Path) -> str | None:
    """Sends the model that a job starts from with the job, where that is a local file or was given as arrays.

    It returns the path as the server finds it, or None if the server makes the model. As in FLARE's recipes, an
    absolute path is the server's. The arrays' file is in ``folder`` until the job is made.

    Raises:
        ConfigError: a relative path that is not a file here.
    """
    path = plan.job.initial_ckpt
    if path is None and plan.arrays is not None and plan.job.resume_from is None:
        path = str(folder / INITIAL)
        save_arrays(Path(path), plan.arrays, {})
    elif path is None or os.path.isabs(path):
        return path
    require(
        Path(path).is_file(),
        f"recipe: initial_ckpt = {path!r} is not a file, seen from this folder; a relative path is a file that is "
        "sent with the job, an absolute one is on the server",
    )
    job.add_file_to_server(str(Path(path).resolve()))
    return Path(path).name
