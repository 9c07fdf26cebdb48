# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Facts and files with which a job's server starts a run, and the work that the server gives to sites in a round."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nvflare.apis.fl_context import FLContext

from cfl_flare.core.errors import DifferenceError
from cfl_flare.engine.earlier_means import MEANS_FOLDER, Means
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.task import Task
from cfl_flare.flare.aggregator import ClusteringAggregator, Start
from cfl_flare.flare.allowed import Policy
from cfl_flare.flare.attendance import Work
from cfl_flare.flare.compat import simulated
from cfl_flare.flare.policy import state_root
from cfl_flare.results.ancestry import ANCESTRY, Ancestor, Ancestry, hash_split
from cfl_flare.results.gate import weaker_bound
from cfl_flare.training.settings import TrainSettings

REFUSED = f"site_failed: {DifferenceError.failure}"


def describe_run(training: TrainSettings, seed: int, data: Any) -> Ancestor:
    """Describe a run as an ancestor of its models.

    Args:
        training: how participants train.
        seed: the run's seed.
        data: the run's settings of data; None if the job states none.

    Returns:
        The ancestor, with the promised privacy and with the digest of the split.
    """
    privacy, dp = training.privacy, None
    if privacy is not None:
        dp = {"epsilon": privacy.epsilon, "delta": privacy.delta}
    return Ancestor(dp=dp, split=hash_split(seed, data))


def trace_ancestry(
    run: Ancestor,
    start: Start,
    aggregator: ClusteringAggregator,
    fl_ctx: FLContext,
) -> Ancestry:
    """List the runs in which the models will have been trained.

    Args:
        run: the run that starts.
        start: it may go on from a checkpoint.
        aggregator: it knows the job's initial model.
        fl_ctx: FLARE's context at the server.

    Returns:
        The runs, oldest first.

    Raises:
        GateError: the initial model may not leave its members.
    """
    if start.earlier is not None:
        pays = not simulated(fl_ctx)
        return start.earlier.add(replace(run, resumes=True, pays_with_parent=pays))
    if start.checkpoint is not None:
        return Ancestry((run,))
    initial = aggregator.read_initial_facts(fl_ctx)
    if initial is None:
        return Ancestry((run,))
    policy = Policy.of(fl_ctx)
    weaker = weaker_bound(initial, policy.max_tpr_at_1pct_fpr, policy.min_membership)
    return Ancestry.of(initial.get(ANCESTRY)).add(replace(run, weaker=weaker))


def open_means(schedule: ServerSettings, fl_ctx: FLContext) -> Means:
    """Open the server's file of the means that it has made in all its jobs.

    Args:
        schedule: its floor of sites counts if the run holds small clusters.
        fl_ctx: FLARE's context at the server.

    Returns:
        The means. With a minimum of one site they are noted and never refused.
    """
    fewest = schedule.floor.sites if schedule.hold_small_clusters else 1
    name = f"{fl_ctx.get_identity_name()}.jsonl"
    return Means(state_root(fl_ctx) / MEANS_FOLDER / name, fewest)


def describe_floor(schedule: ServerSettings) -> str:
    """Describe a cluster's minimum size and a site's largest weight, for the server's log."""
    floor = schedule.floor
    also = ""
    if not schedule.hold_small_clusters:
        also = "; models of fewer are not held back"
    return (
        f"a cluster needs {floor.sites} sites and {floor.samples} training samples{also}; "
        f"a site has at most {schedule.max_weight_share:.3g} of a cluster's weight"
    )


def list_refusing_sites(server: Server, failures: Mapping[str, str]) -> set[str]:
    """List the sites that refused to train with the others of a round.

    Args:
        server: it knows the sites of participants.
        failures: of a round, the reason by participant.

    Returns:
        The names of the sites.
    """
    sites = set()
    for name, reason in failures.items():
        if reason.startswith(REFUSED):
            sites.add(server.participants[name].site)
    return sites


def list_works(server: Server, tasks: Mapping[str, Task]) -> dict[str, Work]:
    """Describe each site's work in a round, so that only times of equal work are compared.

    Args:
        server: it knows the sites of participants.
        tasks: of a round, by participant.

    Returns:
        By site, what its participants do and how many they are.
    """
    counts: Counter[str] = Counter()
    kinds: dict[str, set[str]] = {}
    for name, task in tasks.items():
        site = server.participants[name].site
        counts[site] += 1
        steps = kinds.setdefault(site, set())
        steps.update(task.questions)
        if task.train:
            steps.add("train")
        if task.evaluate:
            steps.add("evaluate")
    works = {}
    for site, count in counts.items():
        works[site] = Work(" ".join(sorted(kinds[site])), count)
    return works


def split_digits(name: str) -> list[str | int]:
    """Make a sort key that puts site-10 after site-9.

    >>> sorted(["site-10", "site-9"], key=split_digits)
    ['site-9', 'site-10']
    """
    parts = re.split(r"(\d+)", name)
    return [int(part) if part.isdigit() else part for part in parts]
