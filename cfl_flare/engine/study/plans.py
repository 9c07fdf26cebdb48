# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A study as a run's plan: what all candidates share, checked before any of them trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cfl_flare.core.config import require
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.engine.study.candidates import Candidate, search_candidate


def study_plan(plan: RunPlan) -> RunPlan:
    """What all candidates of a study share: they train on, and are measured on, validation samples.

    Raises:
        ConfigError: a setting of the plan's makes no study.
    """
    require(
        plan.data.validation > 0,
        f"study: validation = {plan.data.validation} sets no samples aside to choose by; give a share, as 0.25",
    )
    require(
        plan.server.num_rounds > 1,
        "study: rounds = 1 is spent on looking for the number of clusters; give 2 or more",
    )
    require(
        plan.training is not None and plan.training.bootstrap > 0,
        "study: bootstrap = 0 leaves differences without intervals; give a number of draws, such as 200",
    )
    early = plan.server.stop_cond is not None or plan.server.patience is not None
    require(not early, "study: stop_cond and patience end candidates at different rounds; leave them out")
    return replace(plan, data=replace(plan.data, measured_on="validation"))


def of_candidate(plan: RunPlan, candidate: Candidate) -> RunPlan:
    """A candidate's run."""
    return replace(plan, method=candidate.method, job=replace(plan.job, private=candidate.private))


def check_candidates(plan: RunPlan, candidates: Sequence[Candidate]) -> None:
    """Checks candidates, and what looks for the number of clusters, against the model and the settings.

    Raises:
        ConfigError: one does not fit.
    """
    check_plans([of_candidate(plan, one) for one in (*candidates, search_candidate(plan.server.num_rounds))])
