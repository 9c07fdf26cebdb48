# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What server and sites ask of a job before they take part.

An operator's limits are in ``local/cfl.json`` of the kit, and no job can change them or where runs keep their state.
Versions of server, sites and job are compatible, and server and sites have equal settings.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import nvflare
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import get_job_meta_study
from nvflare.app_common.utils.file_utils import resolve_path_under_root

from cfl_flare.core import PACKAGE, __version__
from cfl_flare.core.config import check_run_name, from_dict, require, unmarked
from cfl_flare.core.errors import (
    BudgetError,
    ConfigError,
    FloorError,
    SettingsError,
    SoftwareError,
)
from cfl_flare.core.files import keep_private
from cfl_flare.data import DataConfig, DataSource
from cfl_flare.data.files import reading_within
from cfl_flare.data.sources import PATIENT
from cfl_flare.engine.settings import BOUNDS, FEWEST_SCORED
from cfl_flare.flare.allowed import POLICY, Policy
from cfl_flare.flare.compat import SIMULATED_JOB, on_one_machine, simulated
from cfl_flare.results.gate import tpr_bound
from cfl_flare.results.ledger import COUNTERS, Ledger, Rules
from cfl_flare.results.store import Store
from cfl_flare.training.settings import TrainSettings

SHARE = "max_weight_share"
STATE_ROOT = "CFL_STATE_ROOT"


def data_config(
    data: Mapping[str, Any], fl_ctx: FLContext, source: DataSource | None = None
) -> DataConfig:
    """How a job deals data out. At real sites its owners have no names: they would be compared with the sites' own.

    Raises:
        ConfigError: at a real site, which a POC's is not, it deals out the site's own data.
    """
    config = from_dict(DataConfig, unmarked(data), "data")
    if simulated(fl_ctx):
        return config
    if not (
        config.partition is None
        or source is None
        or source.public
        or on_one_machine(fl_ctx)
    ):
        config.check_public(source)
    return replace(config, owners=())


def study_of(fl_ctx: FLContext, named: str | None = None) -> str:
    """The study that the job belongs to, whose data it reads; for a job without one, FLARE says ``default``.

    Raises:
        ConfigError: the job names the data of another study.
    """
    study = str(get_job_meta_study(fl_ctx.get_prop(FLContextKey.JOB_META)))
    require(
        named in (None, study),
        f"data site: study = {named!r}: the job is of study {study!r}, and reads no other's data; leave it out",
    )
    return study


def limited_paths(fl_ctx: FLContext) -> AbstractContextManager[None]:
    """Inside it, paths that a job names must lie in the policy's ``data_roots``; in a simulation they are free."""
    return reading_within(None if simulated(fl_ctx) else Policy.of(fl_ctx).data_roots)


def check_floor(bounds: Any, fl_ctx: FLContext) -> None:
    """Raises a FloorError if the ``bounds`` of a job's means are weaker than this site's policy asks for, or missing.

    The server states these `cfl_flare.engine.settings.BOUNDS`. A simulation or POC has no site of its own, and a policy
    with ``min_sites_per_cluster = 1`` asks for nothing.
    """
    policy = Policy.of(fl_ctx)
    stated = bounds if isinstance(bounds, dict) else {}
    for name in BOUNDS if policy.min_sites_per_cluster > 1 else ():
        value, limit = stated.get(name), getattr(policy, name, True)
        met = isinstance(value, (int, float)) and (
            0 < value <= limit if name == SHARE else value >= limit
        )
        if not met and not on_one_machine(fl_ctx):
            raise FloorError(
                f"job: {name} = {value}, as the server states it, is weaker than the {limit} that {POLICY} of "
                f"{fl_ctx.get_identity_name()} asks for; set it in the job, or let the operator lower it with "
                "'cfl-flare site prepare KIT --min-sites-per-cluster 1' and the like"
            )


def check_attacks(
    training: TrainSettings, fewest_tests: int, fl_ctx: FLContext
) -> None:
    """Raises a FloorError if this site's bound on membership attacks could not be checked in the job, or is too low.

    ``fewest_tests`` is the number of test samples of the participant that has fewest.
    """
    policy = Policy.of(fl_ctx)
    bound, private = policy.max_tpr_at_1pct_fpr, training.privacy
    if bound is None:
        return
    fewest = policy.min_membership
    who = (
        f"{POLICY} of {fl_ctx.get_identity_name()} has max_tpr_at_1pct_fpr = {bound:g}"
    )
    if private is not None:
        limit = tpr_bound(private.epsilon, private.delta)
        met = limit <= bound
        reason = f"dp with epsilon = {private.epsilon} allows {limit:.3g}; lower epsilon in the job"
    elif fewest_tests < FEWEST_SCORED and not policy.accept_unmeasured:
        met = False
        reason = f"{fewest_tests} test samples do not tell; have {FEWEST_SCORED}, or set accept_unmeasured"
    elif not training.membership:
        met, reason = (
            False,
            f"the job measures no attack; set membership = {fewest} there",
        )
    else:
        met = training.membership >= fewest
        reason = f"min_membership = {fewest}, and the job has membership = {training.membership}; raise it there"
    require(met, f"job: {who}, and {reason}", FloorError)


def state_root(fl_ctx: FLContext) -> Path:
    """The operator's ``$CFL_STATE_ROOT``, else ``cfl_state`` next to the site's kit or the simulator's workspace.

    Whatever this process makes below it is readable for its owner alone.
    """
    root = _find_state_root(fl_ctx)
    keep_private(root)
    return root


def _find_state_root(fl_ctx: FLContext) -> Path:
    chosen = os.environ.get(STATE_ROOT)
    if chosen:
        return Path(chosen).expanduser()
    kit = Path(fl_ctx.get_engine().get_workspace().get_root_dir()).resolve()
    workspace = kit.parent if fl_ctx.get_job_id() == SIMULATED_JOB else kit
    return workspace.parent / "cfl_state"


def store_for(run_name: str, fl_ctx: FLContext) -> Store:
    """This site's store of a run; that of a real site survives a power failure.

    Raises:
        ConfigError: the name is not a folder's, or points outside the state root.
    """
    check_run_name(run_name, "run_name")
    root = state_root(fl_ctx)
    try:
        folder = resolve_path_under_root(
            str(root), os.path.join(run_name, fl_ctx.get_identity_name()), "run_name"
        )
    except ValueError as error:
        raise ConfigError(f"run: run_name = {run_name!r}: {error}") from error
    return Store(Path(folder), durable=not simulated(fl_ctx))


def ledger_for(place: str, fl_ctx: FLContext) -> Ledger:
    """This site's ledger, as it counts for the data that lies there; its counter is in the kit's folder.

    Raises:
        BudgetError: the operator names data sets, and the data is in none of them.
    """
    policy = Policy.of(fl_ctx)
    kit = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
    name = policy.data_set_of(place)
    named = bool(name) or not policy.data_sets or policy.epsilon_budget is None
    reason = f"data: {place!r} is in none of the operator's data_sets, so that no budget is known for it"
    require(
        named,
        f"{reason}; run 'cfl-flare site prepare KIT --data-set NAME=PATH'",
        BudgetError,
    )
    rules = rules_of(policy, os.environ.get(PATIENT, ""))
    return Ledger(
        state_root(fl_ctx),
        kit / COUNTERS,
        fl_ctx.get_identity_name(),
        rules,
        name,
        place,
    )


def rules_of(policy: Policy, patients: str = "") -> Rules:
    """What an operator's policy says about the ledger."""
    return Rules(
        policy.epsilon_budget, policy.delta_budget, patients, policy.max_refusals
    )


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


def check_software(versions: Mapping[str, str], who: str, place: str) -> None:
    """Raises a SoftwareError if a version here and that of the job or the server differ in their first two numbers.

    Missing versions are not checked. The message begins with ``who``, whose they are.
    """
    for package, version in SOFTWARE.items():
        other = versions.get(package, version)
        require(
            series(other) == series(version),
            f"{who} {package} {other}, but {place} runs {version}: the first two numbers must be the same; install one "
            "version at the server and every site and make the job with it (an installed package is used rather than "
            "the copy that a job carries)",
            SoftwareError,
        )


def check_known(unknown: Sequence[str], component: str, place: str) -> None:
    """Raises a ConfigError if a component was given settings that it does not have."""
    require(
        not unknown,
        f"job: {place} does not know the {component}'s settings {unknown}; leave them out",
    )


def check_same_settings(
    servers: Mapping[str, Any], sites: Mapping[str, Any], place: str
) -> None:
    """Raises a SettingsError for the first of the ``sites``' settings that differs in the two config files of a job."""
    for name in (key for key in sites if key in servers):
        _check_equal(name, unmarked(servers[name]), unmarked(sites[name]), place)


def _check_equal(where: str, servers: Any, sites: Any, place: str) -> None:
    """The same for a part of a setting; a missing value counts as None."""
    if isinstance(servers, Mapping) and isinstance(sites, Mapping):
        for key in {**servers, **sites}:
            _check_equal(f"{where}.{key}", servers.get(key), sites.get(key), place)
        return
    require(
        servers == sites,
        f"job: {where} = {reprlib.repr(servers)} at the server, {reprlib.repr(sites)} at {place}; set it to the same "
        "value in config_fed_server and config_fed_client",
        SettingsError,
    )


def unused_copy(fl_ctx: FLContext) -> str | None:
    """A warning if the job carries a copy of cfl_flare that is not used because another is installed."""
    carried = (
        Path(
            fl_ctx.get_engine().get_workspace().get_app_custom_dir(fl_ctx.get_job_id())
        )
        / "cfl_flare"
    )
    if not carried.is_dir() or carried.resolve() == PACKAGE:
        return None
    return f"the job carries cfl_flare, but the copy that is installed here runs: {__version__} in {PACKAGE}"
