# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedCUAU: clusters by how heterogeneous a participant's data is; knowledge flows towards the more heterogeneous.

FedCUAU (anonymous, under review). Lines and sections are those of its Algorithm 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.measures import bin_by_rank, list_thresholds
from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import GLOBAL, Method
from cfl_flare.methods.fedavg import FedAvg, FedProx
from cfl_flare.methods.personal import HEAD, BackboneOnly, FedBABU, FedPer
from cfl_flare.methods.slots import (
    BACKBONE,
    find_last_block,
    list_parameters_outside,
    replace_part,
    split_layers,
)
from cfl_flare.methods.state import (
    Assignment,
    Counts,
    Download,
    Plan,
    ServerState,
    Traits,
    Update,
)
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner

# The slots of the shared layers, and of the mean update.
SHARED = "shared"
AU = "au"
# In the state once stage 1 is done: the percentile points between clusters.
THRESHOLDS = "thresholds"
BASES: dict[str, FedAvg] = {
    m.name: m for m in (FedAvg(), FedProx(), FedBABU(finetune=False), FedPer())
}


@dataclass(frozen=True, kw_only=True)
class FedCUAU(Method):
    """Clusters by the divergence of a participant's first update (CU) from the mean update (AU); FedCUAU, Alg. 1.

    Round 0 is stage 1, and round t the t-th of stage 2: a run of T + 1 rounds has T rounds of the base. In round t the
    participants, their batches and their learning rate are those of the base's round t - 1. After it, the shared layers
    with those of the last cluster, (w^s, w^CC), are exactly the base's model.

    In stage 1 nothing is sent: each participant builds the run's initial model from the seed. One that fails in round
    0, or joins later, does the same stage 1 in its first round. Its distance to round 0's AU places it between round
    0's percentile points. Until then it is served C1's model.

    With ``finetune`` a participant is served its own cluster's model, fine-tuned (the personalised accuracy); without
    it C1's model (the initial accuracy), or for FedPer, whose heads are the participants', its own cluster's.
    """

    name: ClassVar[str] = "fedcuau"
    paper: ClassVar[str] = "FedCUAU (anonymous, under review)"

    base: Method | str = setting(
        "fedavg",
        help="what is improved: fedavg, fedprox, fedbabu, fedper, or one of them with settings of its own",
    )
    k: int = setting(
        2,
        help="number of clusters C; cluster 0 is C1, of the least heterogeneous data",
        ge=2,
    )
    cluster_layers: tuple[str, ...] | None = setting(
        None,
        help="the layers of which each cluster has a copy, as names or beginnings of names (body.layer4); None for the "
        "backbone's last block with a convolution and all after it (sec. 6.3)",
    )
    stage1_lr: float | None = setting(
        None,
        help="learning rate of stage 1, None for the run's; CUAU orders participants by heterogeneity while they have "
        "hardly moved (Prop. 1)",
        gt=0,
    )
    finetune: bool = setting(
        False,
        help="serve the own cluster's model, fine-tuned (personalised accuracy), and not C1's (initial accuracy)",
    )
    finetune_epochs: int | None = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        base = BASES.get(self.base) if isinstance(self.base, str) else self.base
        known = base is not None and type(base) in {type(m) for m in BASES.values()}
        require(
            known,
            f"method fedcuau: base = {self.base!r} should be one of {', '.join(BASES)}",
        )
        object.__setattr__(self, "base", base)
        require(
            not self.inner.finetune,
            "method fedcuau: finetune belongs to the whole; set base's finetune = False",
        )
        require(
            self.weighting == "samples",
            "method fedcuau: weighting belongs to its base; give it there",
        )
        layers = self.cluster_layers
        if layers is not None:
            valid = (
                isinstance(layers, (list, tuple))
                and bool(layers)
                and all(isinstance(n, str) for n in layers)
            )
            require(
                valid,
                f"method fedcuau: cluster_layers = {layers!r} should be a list of names, or None",
            )
            object.__setattr__(self, "cluster_layers", tuple(layers))

    @property
    def inner(self) -> FedAvg:
        assert isinstance(self.base, FedAvg)
        return self.base

    @property
    def label(self) -> str:
        names = (self.inner.name, *(p.short for p in self.inner.penalties), "cuau")
        return "-".join(names) + "-finetune" * self.finetune

    @property
    def traits(self) -> Traits:
        return Traits(
            clusters=self.k,
            joins_by="distance of its first update to the mean update",
            compares_models=True,
            serves_one=True,
            starts_on_site=True,
            no_penalties="belong to its base; give them there",
            no_private="a participant trains several copies of its layers, and private ones would fit one of them",
        )

    def join(
        self,
        state: ServerState,
        update: Update,
    ) -> ServerState:
        """`aggregate` places the newcomer, as its first update is not a model that could be compared.

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.

        Returns:
            The state in which the newcomer may be assigned.
        """
        return self.join_by_aggregate(state, update)

    @property
    def headless(self) -> bool:
        return isinstance(self.inner, BackboneOnly)

    def weight(self, update: Update) -> float:
        """Weigh an update.

        Args:
            update: the update of one participant.

        Returns:
            The weight psi_i, up to a common factor.
        """
        return self.inner.weight(update)

    def plan(self, state: ServerState) -> Plan:
        """All participants do stage 1 in one round (lines 2-5), which needs a participant for each cluster.

        Later rounds sample as the base's rounds, which have no stage 1 before them.

        Args:
            state: the server's state between two rounds.

        Returns:
            Who trains, and how many updates the round needs.
        """
        first = self.is_stage_one(state)
        return Plan(
            everyone=first, draw=max(0, state.round - 1), fewest=self.k if first else 1
        )

    def is_stage_one(self, state: ServerState) -> bool:
        """Whether the coming round is stage 1 (lines 2-9).

        Args:
            state: the server's state between two rounds.
        """
        return THRESHOLDS not in state.extras

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
        self.inner.check(layout)
        there = layout.head.size > 0
        require(
            there,
            "method fedcuau: stage 1 sends the head; take a model with a torch.nn.Linear layer",
        )
        self.parts(layout)
        enough = rounds is None or rounds > 1
        require(
            enough,
            f"method fedcuau: stage 1 takes the first of {rounds} rounds; add some",
        )

    def parts(self, layout: Layout) -> tuple[Layout, Layout]:
        """The parts of a model that travel: its shared layers, and its cluster layers (sec. 6.1).

        Args:
            layout: the names and shapes of a model's arrays.
        """
        travels = layout.backbone if self.headless else layout
        given = self.cluster_layers or find_last_block(layout, self.headless)
        return split_layers(
            travels, given, f"{self.where}: cluster_layers = {list(given)}"
        )

    def start(
        self,
        initial: Callable[[int], Params],
        participants: Sequence[str] = (),
    ) -> ServerState:
        """All copies start from the run's initial model (line 10). AU has the layout of the head.

        Args:
            initial: builds the untrained model of the run's i-th seed.
            participants: the names of all participants at the start.

        Returns:
            The state before round 0.
        """
        # Line 10: w^s, and one copy of the cluster layers for each of C1 to CC.
        model = initial(0)
        shared, cluster = self.parts(model.layout)
        head = model.take(model.layout.head)
        bank = {
            SHARED: model.take(shared),
            **{slot: model.take(cluster) for slot in self.slots},
            AU: head - head,
        }
        return ServerState({**bank, HEAD: head} if self.headless else bank)

    def distribute(
        self,
        state: ServerState,
        participant: str,
    ) -> Download:
        """The shared layers, the cluster layers to predict with, and to train those of its own cluster and all above.

        The slots to train always follow these two, even if one of them is repeated, so that both sides know them. A
        participant with none of them does stage 1, and sends only the difference of its head.

        Args:
            state: the server's state between two rounds.
            participant: the participant's name.

        Returns:
            The models for the participant, and what must come back.
        """
        if self.is_stage_one(state):
            return Download(returns=(AU,))
        cluster = state.assignment.get(participant)
        if cluster is None:
            return Download((SHARED, self.slots[0]), returns=(AU,))
        # The initial accuracy is that of C1, the personalised one that of the own cluster.
        served = cluster if self.finetune or isinstance(self.inner, FedPer) else 0
        trains = self.slots[cluster:]
        return Download(
            (SHARED, self.slots[served]), to_train=trains, returns=(*trains, SHARED)
        )

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
        if not download.slots[2:]:
            return self.client_update(learner)
        return self.cluster_client_update(learner, download)

    def client_update(self, learner: Learner) -> Update:
        """Stage 1: CU_k of the head, after one local epoch of all layers from the initial model (lines 5, 16-19).

        Args:
            learner: the participant's data, random streams and memory.
        """
        # Lines 16-18: every participant builds the same start, and trains all of its layers.
        start = learner.initial(0)
        trained = learner.in_round(0, self.stage1_lr).train(
            start, purpose="stage 1", epochs=1
        )
        # Line 19: only the head's update travels.
        return Update(
            learner.participant,
            learner.samples,
            {AU: (trained - start).take(start.layout.head)},
        )

    def cluster_client_update(
        self,
        learner: Learner,
        download: Download,
    ) -> Update:
        """Stage 2: the base's step on (w^s, w^CC), then each w^Cj from j = own on under the new w^s (lines 20-25).

        The head of FedBABU and FedPer stays as the base's step left it. BatchNorm in the frozen layers uses its
        batches' statistics, as in all training.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.
        """
        # Line 21: the base's step on the shared layers with the copy of CC.
        view = _stage_two(learner)
        *copies, last = download.slots[2:]
        update = self.inner.local_update(view, self._composed(learner, download, last))
        (diff,) = update.diffs.values()
        diffs = {
            slot: diff.take(download.model(slot).layout) for slot in (SHARED, last)
        }
        joint = view.trained
        assert isinstance(joint, Params)
        learner.trained = joint

        # The copy of the own cluster is trained last. It is what the participant's training ends with.
        for slot in reversed(copies):
            layout = download.model(slot).layout
            start = replace_part(joint, download.model(slot))
            frozen = list_parameters_outside(layout, joint.layout)
            terms = self.inner.list_terms(Download((slot,), (start,)), slot)
            trained = view.part(slot).train(start, terms, frozen=frozen)
            diffs[slot] = (trained - start).take(layout)
            learner.trained = trained
        return replace(update, diffs=diffs)

    def _composed(
        self,
        learner: Learner,
        download: Download,
        slot: str,
    ) -> Download:
        """The base's download: the shared layers with a cluster's."""
        layout = learner.initial(0).layout
        name = GLOBAL
        if self.headless:
            layout = layout.backbone
            name = BACKBONE
        return Download(
            (name,), (layout.join(download.model(SHARED), download.model(slot)),)
        )

    def assign(
        self,
        state: ServerState,
        updates: Sequence[Update],
    ) -> Assignment:
        """In stage 2 all stay in their clusters.

        Empty while a participant does stage 1, whose update is not a model that could be compared with others.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.

        Returns:
            The cluster of each participant of the round.
        """
        if any(AU in update.diffs for update in updates):
            return {}
        return {
            update.participant: state.assignment[update.participant]
            for update in updates
        }

    def counts_in(
        self,
        state: ServerState,
        update: Update,
        assignment: Assignment,
    ) -> Counts:
        """Each copy of layers counts in the mean of that copy (line 14).

        Args:
            state: the server's state between two rounds.
            update: the update of one participant.
            assignment: the cluster of each of the round's participants.

        Returns:
            ``{slot: (mean, weight)}``.
        """
        return self.count_by_slot(update)

    def aggregate(
        self,
        state: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> ServerState:
        """AU = sum n_k/n CU_k (line 6), CUAU_k = ||CU_k - AU||_2 (line 8); each slot's mean (line 14).

        The pseudo-code's further 1/N and 1/K are misprints: with them no mean would be one.

        Args:
            state: the server's state between two rounds.
            updates: the updates of the round, in the participants' order.
            assignment: the cluster of each of the round's participants.

        Returns:
            The state after the round.
        """
        # Lines 6 and 14: AU in stage 1, else each slot's mean.
        means = self.compute_means(state, updates)
        if self.is_stage_one(state):
            divergence = compute_divergences(updates, means[AU])
            bins, k = self.divide_by_rank(state, divergence)
            return state.after(
                means, bins, **{THRESHOLDS: list_thresholds(divergence, bins, k)}
            )

        # A participant that did stage 1 later is placed between the percentile points of round 0.
        au = state.bank[AU]
        limits = state.extras[THRESHOLDS]
        placed = {
            name: bisect_left(limits, value)
            for name, value in compute_divergences(updates, au).items()
        }
        return state.after({**means, AU: au}, placed)

    def divide_by_rank(
        self,
        state: ServerState,
        divergence: Mapping[str, float],
    ) -> tuple[dict[str, int], int]:
        """Assign P_{i-1/C} < CUAU_k <= P_{i/C} (line 9), by rank, as in print the smallest would be in no cluster.

        Args:
            state: the server's state between two rounds.
            divergence: CUAU_k of each participant.

        Returns:
            Each participant's cluster, and the number of clusters: as many of C as can be large enough.
        """
        # A cluster below the minimum size leaves one cluster less.
        sizes = state.sizes([*divergence])
        for k in range(self.k, 0, -1):
            bins = bin_by_rank(divergence, k)
            if sizes is None or sizes.met(
                np.array([bins[name] for name in divergence])
            ):
                break
        return bins, k

    def serve(
        self,
        learner: Learner,
        download: Download,
    ) -> Params | Served:
        """Predict with C1's model or the own cluster's, before stage 1 with the initial model.

        Args:
            learner: the participant's data, random streams and memory.
            download: the models that the participant was sent.

        Returns:
            One model, or several that vote.
        """
        if not download.slots:
            return learner.initial(0)
        return self.inner.serve(
            _stage_two(learner), self._composed(learner, download, download.slots[1])
        )

    def finetune_served(
        self,
        learner: Learner,
        served: Params | Served,
    ) -> Params | Served:
        """The personalised model (sec. 6.3).

        Args:
            learner: the participant's data, random streams and memory.
            served: the models that the participant predicts with.

        Returns:
            The tuned models.
        """
        return super().finetune_served(_stage_two(learner), served)

    def list_models(
        self,
        state: ServerState,
        layout: Layout,
    ) -> dict[str, Served]:
        """Each cluster's model; with FedBABU's head, or for FedPer the run's untrained one.

        Args:
            state: the server's state between two rounds.
            layout: the names and shapes of a model's arrays.

        Returns:
            What predicts, by name.
        """
        rest = [state.bank[SHARED]]
        untrained = frozenset[str]()
        if isinstance(self.inner, BackboneOnly):
            head = state.bank[HEAD]
            rest.append(head)
            untrained = self.inner.untrained(head)
        return {
            slot: Served((layout.join(*rest, state.bank[slot]),), untrained=untrained)
            for slot in self.slots
        }


def compute_divergences(
    updates: Sequence[Update],
    au: Params,
) -> dict[str, float]:
    """CUAU_k = ||CU_k - AU||_2 of each participant that did stage 1 in this round (line 8).

    Args:
        updates: the updates of the round, in the participants' order.
        au: AU, the mean update of the head.
    """
    divergences = {}
    for update in updates:
        if AU in update.diffs:
            vector = (update.diffs[AU] - au).vector.astype(np.float64)
            divergences[update.participant] = float(np.linalg.norm(vector))
    return divergences


def _stage_two(learner: Learner) -> Learner:
    """The participant in the base's round: stage 1 took one."""
    return learner.in_round(max(0, learner.round - 1))
