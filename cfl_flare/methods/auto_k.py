# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The number of clusters from the first rounds: ``wecfl:k=auto``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from cfl_flare.clustering.gap import (
    NUMBER,
    ClusterCount,
    describe_count,
    describe_note,
    differ_between,
    estimate_clusters,
    remove_explained,
)
from cfl_flare.clustering.measures import compute_inner_products
from cfl_flare.core.config import from_dict, require, require_whole
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.settings import SEED, setting
from cfl_flare.methods.base import Method
from cfl_flare.methods.dsmic import FedDS
from cfl_flare.methods.fedavg import FedAvg
from cfl_flare.methods.ifca import IFCA
from cfl_flare.methods.slots import GLOBAL, cluster_slot, is_cluster
from cfl_flare.methods.state import (
    Assignment,
    Counts,
    Download,
    Mapped,
    Plan,
    ServerState,
    Traits,
    Update,
    read_heads,
)
from cfl_flare.methods.wecfl import WeCFL
from cfl_flare.methods.wrapper import Wrapper, as_the_leader
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner

logger = logging.getLogger(__name__)

AUTO = "auto"
# The model that all train until the number of clusters is known; what the state says from then on.
COMMON = "common"
NUMBER_FOUND = "found"
BEGAN = "began"
# What `automatic` gives to the whole, not to the base.
OF_WHOLE = ("warmup", "finetune", "finetune_epochs")


def with_clusters(
    base: Method,
    k: int,
) -> Method:
    """Copy a method with another number of clusters.

    Args:
        base: the method that clusters.
        k: the number of clusters.
    """
    return replace(base, k=k)  # type: ignore[call-arg]


def divide_compared(
    layout: Layout, base: Method
) -> tuple[str | tuple[str, ...], tuple[str, ...]]:
    """The parameters whose updates are compared, and the last layer's biases, which only prevalence tells apart.

    Without any other parameter to compare, all of the part is compared.
    """
    part = layout.compared(base.traits.cluster_on)
    parameters = [entry for entry in layout.entries if entry.kind == "parameter"]
    chosen = [
        entry
        for entry in parameters
        if (entry.is_of(part) if isinstance(part, str) else entry.name in part)
    ]
    biases = [entry.name for entry in chosen if entry.head and len(entry.shape) == 1]
    others = [entry.name for entry in chosen if entry.name not in biases]
    if not biases or not others:
        return part, ()
    return tuple(others), tuple(biases)


def label_nearest(
    products: np.ndarray,
    rows: np.ndarray,
    labels: np.ndarray,
) -> np.ndarray:
    """Label all participants by the nearest mean of the clusters that were found among some of them.

    Args:
        products: inner products ``(m, m)`` of all updates.
        rows: places ``(n,)`` of the participants that have labels.
        labels: ``(n,)`` int, 0 to k - 1.

    Returns:
        Labels ``(m,)``. Those who had a label keep it.
    """
    clusters = [rows[labels == k] for k in range(labels.max() + 1)]
    # Row k has the weights with which cluster k's mean is a sum of updates.
    weights = np.stack(
        [
            np.bincount(members, minlength=len(products)) / len(members)
            for members in clusters
        ]
    )
    squares = np.einsum("ki,ij,kj->k", weights, products, weights)
    # ||u_i - mean_k||^2 without ||u_i||^2, which is the same for all k.
    distances = squares - 2 * products @ weights.T
    nearest = distances.argmin(axis=1)
    nearest[rows] = labels
    return np.asarray(nearest)


@dataclass(frozen=True, kw_only=True)
class Warmup(FedAvg):
    """Rounds of FedAvg. The last one asks everyone and finds the clusters with which the base goes on."""

    base: Method
    rounds: int
    seed: int

    def searches(self, state: ServerState) -> bool:
        """Whether the coming round finds the clusters: the last one of the warm-up, or the next one if it fails.

        Args:
            state: the server's state between two rounds.
        """
        return state.round >= self.rounds - 1

    def plan(self, state: ServerState) -> Plan:
        """Everyone is asked where the clusters are found, and more than half must answer.

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        searches = self.searches(state)
        return Plan(
            everyone=searches, fewest=1 + state.extras["half"] if searches else 1
        )

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """Send a participant its models (distribution step).

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        return Download((COMMON,))

    def compute_vector(
        self,
        state: ServerState,
        update: Update,
    ) -> np.ndarray:
        """Compute the vector by which a participant is compared.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            ``(d,)`` float32.
        """
        return self.base.compute_vector(state, update)

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """The clusters found, in the round that finds them.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        if not self.searches(state):
            return {}
        compared, biases = divide_compared(state.bank[COMMON].layout, self.base)
        products = compute_inner_products(
            update.main_diff.part(compared) for update in updates
        )
        names = [update.participant for update in read_heads(updates)]
        number, rows = self.find_number(state, products, names)
        labels = label_nearest(products, rows, number.labels)

        # Prevalence moves the last layer's biases most. If these differ between the clusters, the clusters may be
        # nothing else.
        apart = None
        if biases and number.k > 1:
            moved = np.stack([update.main_diff.part(biases) for update in updates])
            moved = moved.astype(np.float64)
            if differ_between(moved[rows], number.labels, self.seed):
                unexplained = remove_explained(products, moved)
                apart, _ = self.find_number(state, unexplained, names)
        note = describe_count(number, [names[i] for i in rows.tolist()], apart)
        state.notes[NUMBER] = note
        logger.info("%s", describe_note(note))
        return dict(zip(names, labels.tolist()))

    def find_number(
        self,
        state: ServerState,
        products: np.ndarray,
        names: Sequence[str],
    ) -> tuple[ClusterCount, np.ndarray]:
        """Find the number of clusters by the gap statistic.

        A group below the minimum size opens no cluster. The search goes on among the other participants.

        Args:
            state: the server's, with the minimum sizes.
            products: inner products ``(m, m)`` of the updates.
            names: the m participants.

        Returns:
            The number with labels, and the places ``(n,)`` of the participants that it was found among.
        """
        rows = np.arange(len(names))
        most = self.base.clusters
        number = estimate_clusters(products, most, seed=self.seed)
        while state.census is not None and number.k > 1 and most == self.base.clusters:
            members = zip([names[i] for i in rows.tolist()], number.labels.tolist())
            is_large = ~np.isin(number.labels, list(state.census.small(members)))
            if is_large.all():
                break
            if is_large.any():
                rows = rows[is_large]
            else:  # all groups are small: look for as many clusters as can be large enough
                most = min(state.count_possible(most), most - 1)
            number = estimate_clusters(
                products[np.ix_(rows, rows)], most, seed=self.seed
            )
        return number, rows

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """In the common model; in the cluster found, in the round that finds them.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        return self.count_by_cluster(update, assignment)

    def weight(self, update: Update) -> float:
        """Weigh an update.

        Args:
            update: the update of one participant.

        Returns:
            The weight psi_i, up to a common factor.
        """
        return self.base.weight(update)

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """The mean model; in the round that finds the clusters, the M-step of the base with that number.

        That is as if each participant had been sent the common model as its cluster's. Clusters that were given up as
        too small leave no gap in the numbers.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        if not self.searches(state):
            return state.after(self.compute_means(state, updates))
        ids = sorted(set(assignment.values()))
        clusters = {name: ids.index(cluster) for name, cluster in assignment.items()}
        copies = {cluster_slot(k): state.bank[COMMON] for k in range(len(ids))}
        others = {slot: model for slot, model in state.bank.items() if slot != COMMON}

        def of_cluster(update: Update) -> Update:
            cluster = clusters[update.participant]
            slot = cluster_slot(cluster)
            ((_, weight),) = self.read_counts(state, update, assignment).values()
            counts = {slot: (slot, weight)}
            return replace(
                update,
                diffs={slot: update.main_diff},
                main=slot,
                cluster=cluster,
                counts_in=counts,
            )

        sent = replace(state, bank={**others, **copies}, extras={})
        after = with_clusters(self.base, len(ids)).aggregate(
            sent, Mapped(updates, of_cluster), clusters
        )
        return replace(
            after,
            extras={**state.extras, **after.extras, NUMBER_FOUND: len(ids)},
            notes=state.notes,
        )

    def list_models(
        self,
        state: ServerState,
        layout: Layout,
    ) -> dict[str, Served]:
        """List the models that the run leaves.

        Args:
            state: the server's state between two rounds.
            layout: the names and shapes of a model's arrays.

        Returns:
            What predicts, by name.
        """
        return {GLOBAL: Served((state.bank[COMMON],))}

    def join(
        self,
        state: ServerState,
        update: Update,
    ) -> ServerState:
        """Place a newcomer to the finished run.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            The state in which the newcomer may be assigned.
        """
        return state


@dataclass(frozen=True, kw_only=True)
class AutoK(Wrapper):
    """Finds the number of clusters, then goes on as a method with that number: ``wecfl:k=auto``.

    It begins as FedAvg. In the last round of this warm-up all are asked to train. The gap statistic clusters their
    updates of the common model, see `cfl_flare.clustering.gap.estimate_clusters`. These clusters, each with the mean
    of what its members trained in that round, are what the base goes on with. If there is one, the base has one.
    """

    name: ClassVar[str] = "auto-k"
    paper: ClassVar[str] = (
        "Tibshirani et al. 2001 (gap statistic); Liu et al. 2008 (its reference)"
    )

    base: Method = setting(
        help="wecfl, fesem, ifca, fedds, feddsmic or cgpfl; its k is the largest number that is tried, or half the "
        "participants if that is less"
    )
    warmup: int = setting(
        5,
        help="rounds of FedAvg, the last of which asks everyone and finds the clusters",
        ge=1,
    )
    seed: int = setting(
        0,
        help="seed of the data without clusters that the updates are compared with",
        bounds=SEED,
    )

    def __post_init__(self) -> None:
        known = isinstance(self.base, (WeCFL, IFCA, FedDS))
        require(
            known,
            f"{self.where}: base = {self.base!r} should be wecfl, fesem, ifca, fedds, feddsmic or cgpfl",
        )
        super().__post_init__()
        if isinstance(self.base, IFCA):
            separate = not self.base.shared_backbone
            require(
                separate,
                f"{self.where}: shared_backbone = True leaves no whole models to compare; leave it out",
            )
            warm = not self.base.warm_start
            require(
                warm,
                f"{self.where}: warm_start = True does what the warm-up does anyway; leave it out",
            )
        lacking = self.base.traits.lacking("compares_models", "serves_one")
        require(
            not lacking,
            f"{self.where}: base = {self.base.label!r} does not declare {', '.join(lacking)}",
        )
        with_clusters(self.base, 1)  # a penalty may be for one number of clusters alone

    @property
    def inner(self) -> tuple[Method, ...]:
        return (self.base,)

    @property
    def label(self) -> str:
        return f"{self.base.label}-{AUTO}" + "-finetune" * self.finetune

    @property
    def traits(self) -> Traits:
        """The base's; its number of clusters is not known, and each update is looked at."""
        return replace(
            super().traits,
            clusters=1,
            serves_one=True,
            shares_centres=False,
            averages_only=False,
        )

    def _phase(self, k: int | None) -> Method:
        """The warm-up, or the base with the number of clusters that was found."""
        if k is None:
            return Warmup(base=self.base, rounds=self.warmup, seed=self.seed)
        return with_clusters(self.base, k)

    def leading(self, state: ServerState) -> Method:
        """Choose the part that leads in this state.

        Args:
            state: the server's state between two rounds.
        """
        return self._phase(state.extras.get(NUMBER_FOUND))

    def view_state(
        self,
        state: ServerState,
        i: int,
    ) -> ServerState:
        """All of it; the base counts rounds from the one that found the clusters.

        Args:
            state: the server's state between two rounds.
            i: the number of the part.

        Returns:
            The state as the part sees it.
        """
        return replace(state, round=state.round - state.extras.get(BEGAN, 0))

    def view_update(
        self,
        i: int,
        update: Update,
    ) -> Update:
        """Show an update to a part.

        Args:
            i: the number of the part.
            update: the update of one participant.

        Returns:
            The update as the part sees it.
        """
        return update

    # ---- On the server ----

    plan = as_the_leader("plan")
    list_models = as_the_leader("list_models")

    def check(
        self,
        layout: Layout,
        rounds: int | None = None,
    ) -> None:
        """Check that the method fits the model and the number of rounds.

        Args:
            layout: the names and shapes of a model's arrays.
            rounds: the number of rounds of the run, if it is known.
        """
        super().check(layout, rounds)
        enough = rounds is None or rounds > self.warmup
        require(
            enough,
            f"{self.where}: warmup = {self.warmup} leaves none of {rounds} rounds; lower it",
        )

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """One model for all, and the base's models but its clusters'.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        models = with_clusters(self.base, 1).start(initial, participants).bank
        bank = {slot: model for slot, model in models.items() if not is_cluster(slot)}
        return ServerState(
            {**bank, COMMON: initial(0)}, extras={"half": len(participants) // 2}
        )

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """The common model, then what the base sends, with the number of clusters found.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        sent = self.leading(state).distribute(self.view_state(state, 0), participant)
        if NUMBER_FOUND not in state.extras:
            return sent
        return replace(
            sent, scalars={**sent.scalars, NUMBER_FOUND: state.extras[NUMBER_FOUND]}
        )

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """That of the warm-up, or of the base, whose rounds begin where the clusters are found.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        after = self.leading(state).aggregate(
            self.view_state(state, 0), updates, assignment
        )
        extras = dict(after.extras)
        if NUMBER_FOUND in extras and NUMBER_FOUND not in state.extras:
            extras[BEGAN] = state.round
        return replace(after, round=state.round + 1, extras=extras)

    def join(
        self,
        state: ServerState,
        update: Update,
    ) -> ServerState:
        """Place a newcomer to the finished run.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            The state in which the newcomer may be assigned.
        """
        joined = self.leading(state).join(self.view_state(state, 0), update)
        return replace(joined, round=state.round + 1)

    # ---- On the site ----

    def local_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """Train the models that were sent (local update step).

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            The differences to the models that were sent.
        """
        return self._phase(download.scalars.get(NUMBER_FOUND)).local_update(
            learner, download
        )

    def serve(
        self,
        learner: Learner,
        download: Download,
    ) -> Params | Served:
        """Choose what the participant predicts with.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
        return self._phase(download.scalars.get(NUMBER_FOUND)).serve(learner, download)

    def finetune_served(
        self,
        learner: Learner,
        served: Params | Served,
    ) -> Params | Served:
        """Train the served models for one more local round.

        Args:
            learner: the participant's data, random streams and memory.
            served: the models that the participant predicts with.

        Returns:
            The tuned models.
        """
        return self.base.finetune_served(learner, served)


def build_automatic(
    cls: type[Method],
    settings: Mapping[str, Any],
    where: str,
) -> AutoK:
    """The method of ``k = "auto"``; ``k_max`` is the base's k, and ``warmup`` and the like belong to the whole.

    Args:
        settings: settings by name.
        where: begins the message of an error.
    """
    known = issubclass(cls, (WeCFL, IFCA, FedDS))
    require(
        known,
        f"{where}: k = 'auto' is for wecfl, fesem, cgpfl, ifca, fedds and feddsmic; give a number",
    )
    largest = settings.get("k_max", 10)
    require_whole(where, 1000, k_max=largest)
    rest = {key: value for key, value in settings.items() if key not in ("k", "k_max")}
    outer = {key: rest.pop(key) for key in OF_WHOLE if key in rest}
    names = {f.name for f in fields(cls)}
    unknown = [key for key in rest if key not in names]
    there = ", ".join(("k_max", *OF_WHOLE, *sorted(names - {"k", *OF_WHOLE})))
    require(
        not unknown,
        f"{where}: unknown setting {(*unknown, '')[0]!r}; with k = 'auto' it has: {there}",
    )
    return from_dict(
        AutoK, {"base": from_dict(cls, {**rest, "k": largest}, where), **outer}, where
    )
