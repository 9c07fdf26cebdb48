# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a study compares: each hospital alone, one model for all, and clusters, with private layers and without.

Random groups are beside them: clusters have to be better than these. `StudySettings` say what a study may cost, and
what difference matters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from cfl_flare.clustering.measures import measure_agreement
from cfl_flare.core.config import check_run_name, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.private import Division
from cfl_flare.core.seeds import stream
from cfl_flare.core.settings import check_settings, setting
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.engine.site import check_private
from cfl_flare.engine.study.prevalence import Prevalence, fits
from cfl_flare.methods import (
    FedAvg,
    Finetune,
    Groups,
    Local,
    Method,
    WeCFL,
    describe_method,
)
from cfl_flare.methods.auto_k import AutoK
from cfl_flare.results.study import ALONE, ONE_MODEL, PREVALENCE, SEARCH, Entrant
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import LearningTask

# Groups that are drawn, as the name of a candidate begins.
RANDOM = "random"
# Random groups are drawn so often at most.
DRAWS = 100
# The most clusters that are looked for.
MOST = 10
# Rounds of FedAvg in which the number of clusters is looked for.
WARMUP = 5
TITLES = {ALONE: "each hospital alone", ONE_MODEL: "one model for all"}
SAME = "the same prediction for everyone"
TUNED = "one model, fine-tuned at each hospital"
# How strongly training alone, and fine-tuning, may be held near their start. Validation samples choose.
PULLED = "-pull-"
PULLS = {ALONE: (0.01, 0.1), "finetune": (0.1, 1.0)}
# The layers that hospitals keep, in the order in which they are preferred, and their names in a sentence.
PRIVATE = {"norm": "private norm layers", "bias": "private biases"}


@dataclass(frozen=True)
class StudySettings:
    """How candidates are compared."""

    rungs: int = setting(
        3,
        help="number of comparisons of candidates, each after twice as many rounds; 1 for one at the end",
        ge=1,
        le=8,
    )
    minutes: float | None = setting(
        None,
        help="no comparison begins that would take the study beyond these minutes; default: no limit",
        gt=0,
    )
    margin: float | None = setting(
        None,
        help="the difference that matters to one hospital, in the key metric's unit; default: 0.05 of a share such as "
        "accuracy or AUROC, and a twentieth of one model's loss or error",
        gt=0,
    )
    fewest_events: int = setting(
        100,
        help="with fewer validation and test samples that are not of the most frequent class, or that have an event, "
        "a study cannot tell; where nobody counts them, with fewer samples",
        ge=0,
    )

    def __post_init__(self) -> None:
        check_settings(self, "study")

    def ladder(self, rounds: int) -> list[int]:
        """After how many rounds candidates are compared; the last number is all.

        >>> StudySettings(rungs=3).ladder(20), StudySettings(rungs=4).ladder(3)
        ([5, 10, 20], [1, 2, 3])
        """
        return sorted({math.ceil(rounds / 2**i) for i in range(self.rungs)})


@dataclass(frozen=True)
class Candidate:
    """One way to train.

    Attributes:
        name: of its folder.
        method: by which it trains.
        private: the layers that each participant has for itself; None for none.
        possible: how many clusters can be large enough; None if that is not known.
    """

    name: str
    method: Method
    private: str | None = None
    possible: int | None = None

    @property
    def entrant(self) -> Entrant:
        """As the verdict names it: by the clusters that there can be."""
        clusters = self.method.clusters
        number = f"K={clusters}"
        if self.possible is not None and self.possible < clusters:
            number = f"K={clusters}, at most {self.possible} possible"
            clusters = self.possible
        return Entrant(
            self.name,
            self._entitle(number),
            clusters,
            self.private is not None,
            self.method.finetune,
            self.control,
        )

    def _entitle(self, number: str) -> str:
        title = TITLES.get(self.method.label, self.method.label)
        if isinstance(self.method, Groups):
            kind = "random" if self.control else "given"
            title = f"{kind} groups ({number})"
        elif isinstance(self.method, Finetune):
            title = TUNED
        elif self.name == PREVALENCE:
            title = SAME
        elif self.method.clusters:
            title += f" ({number})"
        if self.pulled:
            title += f" (pull {self.pulled})"
        if self.private is not None:
            title += f" with {PRIVATE[self.private]}"
        return title

    @property
    def control(self) -> bool:
        """Whether its groups are random: it is never recommended, and clusters have to be better."""
        return self.name.startswith(f"{RANDOM}-k")

    @property
    def baseline(self) -> bool:
        """Whether the verdict compares with it in any case."""
        return self.name in TITLES

    @property
    def stays(self) -> bool:
        """Whether it is never dropped: clusters are held against the best way without them, if it learns late, too."""
        return self.method.label in (*TITLES, PREVALENCE) and not self.pulled

    @property
    def family(self) -> str:
        """The name without the pull."""
        return self.name.partition(PULLED)[0]

    @property
    def pulled(self) -> str:
        """How strongly it is held near its start; empty if it is not."""
        return self.name.partition(PULLED)[2]

    def with_pull(self, strength: float) -> Candidate:
        """The same method, held near its start."""
        method = replace(self.method, pull=strength)  # type: ignore[call-arg]
        return Candidate(f"{self.name}{PULLED}{strength:g}", method)

    def with_private(self, layers: str) -> Candidate:
        return replace(self, name=f"{self.name}-{layers}", private=layers)

    def described(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "name": self.name,
            "method": describe_method(self.method),
            "private": self.private,
        }


def named(method: Method, private: str | None = None) -> Candidate:
    """A candidate, with the name of its folder."""
    label = method.label.replace("+", "-plus-").strip("-")
    candidate = Candidate(
        label + (f"-k{method.clusters}" if method.clusters > 1 else ""), method
    )
    return candidate if private is None else candidate.with_private(private)


def private_layers(
    module: nn.Module, method: Method, task: LearningTask | None = None
) -> str | None:
    """The layers that hospitals may keep with this method: normalisation, else biases; None if neither fits."""
    for word in PRIVATE:
        try:
            check_private(method, Division.of(module, word), word, task=task)
        except ConfigError:
            continue
        return word
    return None


def first_candidates(
    module: nn.Module, methods: Sequence[Method] = (), task: LearningTask | None = None
) -> list[Candidate]:
    """Those that are known before the number of clusters is, with the user's methods.

    Under survival, a linear model's private bias would change nothing, so the task tells about private layers.

    Raises:
        ConfigError: a method of the user's is a candidate anyway, or given twice.
    """
    layers = private_layers(module, FedAvg(), task)
    private = [named(FedAvg(), layers)] if layers else []
    candidates = [named(Local()), named(FedAvg()), *private, named(Finetune())]
    candidates += [
        candidate.with_pull(strength)
        for candidate in list(candidates)
        for strength in PULLS.get(candidate.name, ())
    ]
    candidates += [named(Prevalence())] if fits(module, task) else []
    for candidate in map(named, methods):
        listed = f"--method {candidate.name}: a study's sites name no group; give each one's label, {{name: label}}"
        require(not candidate.method.traits.named_groups, listed)
        twice = candidate.name in [other.name for other in candidates]
        require(
            not twice, f"--method {candidate.name} is a candidate already; leave it out"
        )
        candidates.append(candidate)
    return candidates


def clustered_candidates(
    number: int, possible: int, taken: Sequence[Candidate] = ()
) -> list[Candidate]:
    """WeCFL with the number of clusters of the search, and with its neighbours; two groups are tried in any case.

    Args:
        number: of clusters that the search found.
        possible: how many clusters can be large enough.
        taken: the candidates that there are.

    >>> [c.name for c in clustered_candidates(1, 12)], [c.name for c in clustered_candidates(3, 12)]
    (['wecfl-k2'], ['wecfl-k2', 'wecfl-k3', 'wecfl-k4'])
    """
    names = [candidate.name for candidate in taken]
    numbers = [k for k in range(number - 1, number + 2) if 2 <= k <= possible]
    candidates = [named(WeCFL(k=k)) for k in numbers]
    return [candidate for candidate in candidates if candidate.name not in names]


def random_groups(
    clusters: Mapping[str, int], names: Collection[str], seed: int
) -> Candidate:
    """Groups of the sizes of some clusters, drawn at random; two halves, if there is one cluster.

    They are no more alike to the clusters than by chance: of four hospitals, every third draw would be the same pairs.

    Args:
        clusters: of each participant that has one.
        names: of all participants.
    """
    labels = (
        [*clusters.values()]
        if len({*clusters.values()}) > 1
        else [i % 2 for i in range(len(names))]
    )
    for i in range(DRAWS):
        order = stream(seed, "random groups", i).permutation(sorted(names)).tolist()
        groups = {name: str(labels[i % len(labels)]) for i, name in enumerate(order)}
        drawn = [int(groups[name]) for name in clusters]
        if (
            len({*clusters.values()}) < 2
            or measure_agreement([*clusters.values()], drawn)["ari"] <= 0
        ):
            break
    return control(groups)


def control(groups: Mapping[str, str]) -> Candidate:
    """Random groups as a candidate; as WeCFL's, its clusters begin after a common round."""
    return Candidate(
        f"{RANDOM}-k{len({*groups.values()})}", Groups(groups=groups, warmup=1)
    )


def search_rounds(rounds: int) -> int:
    """Rounds in which the number of clusters is looked for, in a study whose candidates have this many."""
    return max(1, min(WARMUP, rounds // 2))


def search_candidate(rounds: int) -> Candidate:
    """What looks for the number of clusters."""
    return Candidate(SEARCH, AutoK(base=WeCFL(k=MOST), warmup=search_rounds(rounds)))


def every_candidate(
    module: nn.Module, rounds: int, methods: Sequence[Method] = ()
) -> dict[str, Candidate]:
    """All that a study may train, by name, whatever its search says; a site knows them before the server names one.

    Raises:
        ConfigError: a method of the user's is a candidate anyway, or given twice, or its name cannot be a folder's.
    """
    candidates = [search_candidate(rounds), *first_candidates(module, methods)]
    names = [candidate.name for candidate in candidates]
    numbers = range(2, MOST + 2)
    candidates += [c for k in numbers if (c := named(WeCFL(k=k))).name not in names]
    candidates += [
        control({str(i): str(i) for i in range(k)}) for k in numbers
    ]  # the server alone knows who is where
    for base in candidates[1:]:
        layers = (
            private_layers(module, base.method)
            if base.method.clusters and base.private is None
            else None
        )
        candidates += [] if layers is None else [base.with_private(layers)]
    for candidate in candidates:
        check_run_name(candidate.name, "the name of a candidate")
    return {candidate.name: candidate for candidate in candidates}


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
    training = plan.training or TrainSettings()
    drawn = "bootstrap = 0 leaves differences without intervals; give a number of draws, such as 200"
    require(training.bootstrap > 0, f"study: {drawn}")
    spent = "dp would be spent once for each candidate; leave it out, and train the chosen method alone with it"
    require(training.dp is None, f"study: {spent}")
    attacks = training.membership
    require(
        not attacks,
        f"study: membership = {attacks} is for one run; leave it out, and run what is chosen with it",
    )
    early = plan.server.stop_cond is not None or plan.server.patience is not None
    require(
        not early,
        "study: stop_cond and patience end candidates at different rounds; leave them out",
    )
    return replace(plan, data=replace(plan.data, measured_on="validation"))


def of_candidate(plan: RunPlan, candidate: Candidate) -> RunPlan:
    return replace(
        plan, method=candidate.method, job=replace(plan.job, private=candidate.private)
    )


def check_candidates(plan: RunPlan, candidates: Sequence[Candidate]) -> None:
    """Raises a ConfigError if a candidate, or what looks for the number of clusters, does not fit model or settings."""
    everything = (*candidates, search_candidate(plan.server.num_rounds))
    check_plans([of_candidate(plan, candidate) for candidate in everything])
