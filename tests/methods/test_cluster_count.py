# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods whose number of clusters changes in a run: what the server checks, records and draws of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.methods import CAM, Assignment, Contrastive, Download, Ensemble, FedAvg, Method, Participant, ServerState
from cfl_flare.methods.base import cluster_slot
from cfl_flare.methods.state import Counts, Plan, Traits, Update
from cfl_flare.report.figures import draw, draw_comparison
from cfl_flare.results.analysis import gram
from cfl_flare.results.run_dir import load_run, read_features
from tests.tiny import LAYOUT, initial, rounds, update


@dataclass(frozen=True, kw_only=True)
class Growing(Method):
    """No cluster in round 0, one in round 1, and one more in each round after it; each takes another participant."""

    name: ClassVar[str] = "growing"
    paper: ClassVar[str] = "a test"

    @property
    def traits(self) -> Traits:
        return Traits(clusters=1, serves_one=True, takes_penalties=True)

    def clusters_in(self, state: ServerState) -> int:
        return sum(slot.startswith("cluster-") for slot in state.bank)

    def distribute(self, state: ServerState, participant: str) -> Download:
        known = state.assignment.get(participant)
        return Download(("global" if known is None else cluster_slot(known),))

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        names = [u.participant for u in updates]
        return {n: min(i, state.round - 1) for i, n in enumerate(names)} if state.round else {}

    def counts_in(self, state: ServerState, update: Update, assignment: Assignment) -> Counts:
        return self.by_cluster(update, assignment)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        if not assignment:
            return state.after(self.means(state, updates))
        return state.after(self.centres(state, updates, assignment), assignment)


@dataclass(frozen=True, kw_only=True)
class Choosing(Growing):
    """As Growing, but the participants say in which cluster they are."""

    @property
    def traits(self) -> Traits:
        return Traits(clusters=1, assigns_on_site=True)

    def distribute(self, state: ServerState, participant: str) -> Download:
        sent = super().distribute(state, participant)
        clusters = range(self.clusters_in(state))
        return replace(sent, choices=dict.fromkeys(clusters, sent.slots[0])) if clusters else sent


@dataclass(frozen=True, kw_only=True)
class Everyone(FedAvg):
    """Asks everyone in round 1."""

    def plan(self, state: ServerState) -> Plan:
        return Plan(everyone=state.round == 1)


def test_each_round_s_record_has_the_clusters_that_there_were(tmp_path: Path) -> None:
    measured = [m.record for m in rounds(tmp_path, Growing(), count=4)]
    assert [len(r["cluster_sizes"]) for r in measured] == [0, 1, 2, 3]
    assert measured[1]["cluster_sizes"] == [3]  # c did not answer
    assert measured[3]["cluster_sizes"] == [1, 1, 2]
    assert [len(r.get("clusterability", ())) for r in measured] == [0, 1, 2, 3]
    assert "moved_share" not in measured[0]
    assert [m["moved"] for m in measured] == [0, 0, 2, 2]  # b and d to cluster 1, then c and d to cluster 2
    run = load_run(tmp_path)
    assert run.summary["clusters"] == 3
    assert run.name == "growing (K=3)"


def test_a_run_with_a_changing_number_of_clusters_is_drawn(tmp_path: Path) -> None:
    rounds(tmp_path / "a", Growing(), count=4, keep_features=True)
    rounds(tmp_path / "b", Growing(), count=2)
    runs = [load_run(tmp_path / name) for name in "ab"]
    assert [read_features(f).gram.shape for f in runs[0].feature_files] == [(4, 4), (6, 6), (7, 7)]
    names = [f.name for f in draw(runs[0])]
    assert names[1:4] == ["cluster_sizes.png", "flows.png", "analysis.png"]
    assert len(draw_comparison(runs, tmp_path)) == 2


def test_the_gram_matrix_has_the_centres_after_the_round() -> None:
    method = Growing()
    before = replace(method.start(initial), round=2)
    updates = [update(n, 1, "global", 1, i) for i, n in enumerate("ab")]
    assignment = method.assign(before, updates)
    after = method.aggregate(before, updates, assignment)
    assert gram(method, before, after, updates, assignment).shape == (4, 4)


@pytest.mark.parametrize(("cluster", "fits"), [(0, True), (1, True), (2, False)])
def test_a_picked_cluster_is_one_that_there_is_now(cluster: int, fits: bool) -> None:
    state = ServerState({slot: initial(0) for slot in ("global", "cluster-0", "cluster-1")}, {"a": 0})
    server = Server(Choosing(), LAYOUT, [Participant("a", "s", 1)], ServerSettings(2), state)
    server.tasks()
    answer = Result("a", update("a", 1, "cluster-0", 1, 1, cluster))
    if fits:
        server.accept(answer, "s")
        return
    with pytest.raises(PayloadError, match=r"cluster = 2 should be one of \[0, 1\]"):
        server.accept(answer, "s")


@pytest.mark.parametrize("method", [Everyone(), Ensemble(parts=(FedAvg(), Everyone()))], ids=lambda m: m.name)
def test_a_method_may_ask_everyone_in_one_round(method: Any) -> None:
    people = [Participant(n, "s", 1) for n in "abcd"]
    server = Server(method, LAYOUT, people, ServerSettings(4, sample=2, max_failed_rounds=4), method.start(initial))
    counts = []
    for _ in range(3):
        counts.append(sum(order.train for order in server.tasks().values()))
        server.finish_round()
    assert counts == [2, 4, 2]


def test_the_count_is_that_of_the_part_that_clusters() -> None:
    both = Ensemble(parts=(FedAvg(), Growing()))
    state = both.start(initial)
    assert both.clusters_in(state) == 0
    state = replace(state, bank={**state.bank, "1.cluster-0": initial(0), "1.cluster-1": initial(0)})
    assert both.clusters_in(state) == 2


def test_what_needs_all_centres_is_refused() -> None:
    with pytest.raises(ConfigError, match="penalty contrastive: needs a method with clusters: ifca, fesem or wecfl"):
        Growing(penalties=(Contrastive(),))
    with pytest.raises(
        ConfigError, match=r"no fixed number of centres .* or does not declare the trait shares_centres"
    ):
        CAM(base=Growing())
