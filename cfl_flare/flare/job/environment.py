# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the environment in which a recipe is to run, before anything is written or started."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv

from cfl_flare.core.config import require
from cfl_flare.engine.plan import RunPlan


def check_env(env: ExecEnv, plan: RunPlan, named: Sequence[str]) -> None:
    """Checks that a job can run in an environment.

    Args:
        env: the environment.
        plan: the job's.
        named: the sites that have settings of their own.

    Raises:
        ConfigError: too few or too many sites, or a folder in which FLARE's simulator cannot work.
    """
    if not isinstance(env, (SimEnv, PocEnv)):
        return  # the sites of a provisioned project are not known here
    where, method = type(env).__name__, plan.method
    if env.num_clients is not None:
        have = f"{where}: num_clients = {env.num_clients}"
        fewest = plan.job.min_clients
        require(
            env.num_clients >= fewest,
            f"{have} is less than the job's min_clients = {fewest}; it would never start",
        )
        if plan.data.participants is not None:
            most = len(plan.data.names)
            require(
                env.num_clients <= most,
                f"{have} is more than {plan.data.who_trains}; each site hosts at least one",
            )
        else:
            require(
                method.clusters <= env.num_clients,
                f"{have} is less than method {method.name}'s k = {method.clusters}, and each site is one participant; "
                "lower k",
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
