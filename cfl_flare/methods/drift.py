# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedDrift: data comes in periods; who no model fits any more opens a cluster, and clusters that are alike merge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cfl_flare.clustering.agglomerative import alike
from cfl_flare.core.params import Params, weighted_mean
from cfl_flare.core.settings import setting
from cfl_flare.methods.base import Method
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.methods.state import PLAIN, Assignment, Counts, Download, Plan, ServerState, Traits, Update
from cfl_flare.training.learner import Learner

# The arrays have the names of a metric and of a count, as which a site's EgressFilter treats them.
LOSSES, SAMPLES = "loss", "samples"
POOL, PLACED, PERIODS, OPENED = "pool", "placed", "periods", "opened"
# Extras: the participants' clusters and samples by period, and the last period that began with merges.
SEEN, PERIOD = "seen", "period"


@dataclass(frozen=True, kw_only=True)
class FedDrift(Method):
    """In each period participants first send the losses of all models on their new data; these say where they belong.

    Then each trains its cluster's model on its data of this period and of all earlier ones in which it was there.
    """

    name: ClassVar[str] = "feddrift"
    paper: ClassVar[str] = "Jothimurugesan et al. 2023"

    delta: float = setting(0.2, help="rise of the loss that is a drift; clusters merge at this distance or less", ge=0)
    eager: bool = setting(False, help="FedDrift-Eager: all that drift in a period share one new model")
    apart: bool = setting(False, help="in the first period each participant opens a cluster, as if it had drifted")

    @property
    def traits(self) -> Traits:
        return replace(PLAIN, clusters=1, joins_by="smallest loss", mergeable=True, queries=None)

    def start(self, initial: Callable[[int], Params], participants: Sequence[str] = ()) -> ServerState:
        """Extras: the last period, when clusters were opened, participants' clusters, samples, and last loss."""
        return ServerState({cluster_slot(0): initial(0)}, extras={PERIOD: -1, OPENED: [-1], SEEN: {}})

    def clusters_in(self, state: ServerState) -> int:
        return len(state.extras[OPENED])

    def pool(self, state: ServerState) -> list[int]:
        """The clusters that all may join; one that is new takes in nobody else until the next period."""
        opened = enumerate(state.extras[OPENED])
        return [k for k, period in opened if period < state.period and cluster_slot(k) in state.bank]

    def plan(self, state: ServerState) -> Plan:
        return Plan(everyone=state.period > state.extras[PERIOD])

    def distribute(self, state: ServerState, participant: str) -> Download:
        """Its cluster's model; once a period all models, to send their losses."""
        cluster, clusters = state.assignment.get(participant), state.extras[SEEN].get(participant, [[]])[0]
        pool = [cluster_slot(k) for k in self.pool(state)]
        first = pool if cluster is None else [cluster_slot(cluster)]
        if len(clusters) > state.period:
            return Download((*first,), scalars={PERIODS: [t for t, then in enumerate(clusters) if then == cluster]})
        others = tuple(slot for slot in pool if slot not in first)
        shapes = {LOSSES: (state.period + 1, len(pool)), SAMPLES: (state.period + 1,)}
        scalars = {POOL: pool, PLACED: cluster is not None}
        return Download((*first,), to_train=others, returns=(), arrays=shapes, scalars=scalars)

    def local_update(self, learner: Learner, download: Download) -> Update:
        """Samples and losses by period, without new samples the losses on the latest; or it trains its model."""
        if POOL not in download.scalars:
            view = learner.of_periods(download.scalars[PERIODS])
            return replace(super().local_update(view if view.samples else learner, download), samples=learner.samples)
        models = [download.model(slot) for slot in download.scalars[POOL]]
        views = [learner.of_periods([t]) for t in range(learner.period + 1)]
        samples, views[-1] = np.array([view.samples for view in views], np.float32), learner
        losses = np.array([v.losses(models) if v.samples else np.zeros(len(models)) for v in views], np.float32)
        return Update(learner.participant, learner.samples, arrays={LOSSES: losses, SAMPLES: samples})

    def serve(self, learner: Learner, download: Download) -> Params:
        """Its cluster's model; that with the smallest loss, if it has no cluster."""
        return download.models[0 if download.scalars.get(PLACED, True) else learner.choice(download.models)]

    def vector(self, state: ServerState, update: Update) -> np.ndarray:
        """The model that it trained; after losses that with the smallest one."""
        return self.features(state.trained(update) if update.diffs else state.bank[self._best(state, update)])

    def _best(self, state: ServerState, update: Update) -> str:
        return cluster_slot(self.pool(state)[update.arrays[LOSSES][-1].argmin()])

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        """The cluster with the smallest loss; a new one, if that is above the last period's by more than delta."""
        stays = {u.participant: state.assignment[u.participant] for u in updates if not u.arrays}
        rows = {u.participant: u.arrays[LOSSES][-1] for u in updates if u.arrays}
        pool, new = self.pool(state), self.clusters_in(state)
        new -= self.eager and state.extras[OPENED][-1] == state.period
        unknown = -np.inf if self.apart and not state.assignment else np.inf
        costs = np.full((len(rows), new + len(rows)), np.inf)
        for cost, (name, losses) in zip(costs, rows.items()):
            cost[pool], bound = losses, state.extras[SEEN].get(name, [unknown])[-1] + self.delta
            if losses.min() > bound:
                cost[new] = bound
                new += not self.eager
        others = replace(state, assignment={name: k for name, k in state.assignment.items() if name not in rows})
        return {**stays, **others.placed([*rows], costs.argmin(axis=1), lambda: costs)}

    def counts_in(self, state: ServerState, update: Update, assignment: Assignment) -> Counts:
        """Where it was trained, by its samples of the periods in which it was there."""
        clusters, samples, _ = state.extras[SEEN].get(update.participant, ([], [], 0))
        trained = sum(n for k, n in zip(clusters, samples) if k == clusters[-1])
        return self.by_slot(replace(update, samples=max(1, min(trained, update.samples))))

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        """The mean of each model that was trained; or new clusters, each with a copy of the best model, and merges."""
        bank, sent = self.means(state, updates), {u.participant: u for u in updates if u.arrays}
        seen, known, pool = dict(state.extras[SEEN]), state.extras[OPENED], self.pool(state)
        for name, u in sent.items():
            before, (k, counts) = seen.get(name, [[]])[0], (assignment[name], u.arrays[SAMPLES].clip(0, u.samples))
            history = [*before, *[-1] * (state.period - len(before)), k]
            seen[name] = [history, counts.tolist(), float(u.arrays[LOSSES][-1].min())]
            bank.setdefault(cluster_slot(k), bank[self._best(state, u)])
        drifted = [name for name in sent if assignment[name] not in pool]
        new = sorted({assignment[name] for name in drifted} - {*range(len(known))})
        opened = known + [state.period] * (max(new, default=-1) + 1 - len(known))
        notes = {"drifted": drifted, OPENED: new} if sent else {}
        after = replace(state.after(bank, assignment, **{SEEN: seen, OPENED: opened}), notes=notes)
        return merged(after, {name: u.arrays[LOSSES] for name, u in sent.items()}, pool, self.delta)

    def join(self, state: ServerState, update: Update) -> ServerState:
        """A newcomer never drifts, and merges nothing."""
        settled = replace(state, extras={**state.extras, PERIOD: state.period})
        return replace(self.aggregate(settled, [update], self.assign(settled, [update])), bank=state.bank)


def merged(state: ServerState, losses: Mapping[str, np.ndarray], pool: Sequence[int], delta: float) -> ServerState:
    """The state in which clusters of a pool that are alike are the first of them, once a period, by losses in it.

    That one has the mean of their models. ``losses`` are those of participants, ``(periods, pool)`` each, as `alike`
    takes them with the threshold ``delta``.
    """
    if not losses or state.period <= state.extras[PERIOD]:
        return state
    seen = state.extras[SEEN]
    clusters, samples = (np.concatenate([seen[name][i] for name in losses]) for i in (0, 1))
    counts = samples[:, None] * (clusters[:, None] == pool)
    groups = [[pool[j] for j in group] for group in alike(np.concatenate([*losses.values()]), counts, delta)]
    bank, weights = dict(state.bank), dict(zip(pool, counts.sum(axis=0).tolist()))
    for group in groups:
        parts = [(bank.pop(cluster_slot(k)), weights[k]) for k in group]
        bank[cluster_slot(group[0])] = weighted_mean(parts, parts[0][0])
    into = {k: group[0] for group in groups for k in group}
    seen = {name: [[into.get(k, k) for k in history], *rest] for name, (history, *rest) in seen.items()}
    assignment = {name: into.get(k, k) for name, k in state.assignment.items()}
    extras, notes = {**state.extras, SEEN: seen, PERIOD: state.period}, {**state.notes, "merged": groups}
    return replace(state, bank=bank, assignment=assignment, extras=extras, notes=notes)
