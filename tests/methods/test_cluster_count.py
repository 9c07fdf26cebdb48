# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The number of clusters from the first rounds, and methods whose number changes in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import nn

from cfl_flare.cli.specs import build_named
from cfl_flare.clustering.gap import DRAWS, ClusterCount, describe_note
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.params import Layout, Params
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.newcomers import join_run
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.extensions import present_results
from cfl_flare.methods import (
    CAM,
    IFCA,
    Assignment,
    AutoK,
    Contrastive,
    Download,
    Ensemble,
    FedAvg,
    KnowledgeSharing,
    Method,
    Participant,
    Update,
    WeCFL,
    auto_k,
    build_method,
    describe_method,
)
from cfl_flare.methods.base import cluster_slot
from cfl_flare.methods.state import Counts, Plan, ServerState, Traits
from cfl_flare.results.analysis import gram
from cfl_flare.results.run_dir import load_run, read_features
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.play import MODEL, list_answered_slots, list_sent_slots, play_rounds
from tests.helpers.tiny import LAYOUT, coin, initial, make_coin_learner, rounds, step_method, update

# ---- ``k=auto`` ----


NAMES, SAMPLES = list("abcdef"), (3, 1, 2, 2, 4, 6)


def auto(k: int = 10, warmup: int = 1, **more: Any) -> AutoK:
    return AutoK(base=WeCFL(k=k, **more), warmup=warmup)


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clusters that will be found; a test may change them. The criterion itself has tests of its own."""
    wanted = [0, 1, 0, 1, 0, 1]

    def found(products: np.ndarray, most: int, seed: int) -> ClusterCount:
        assert products.shape == (len(wanted), len(wanted))
        return ClusterCount(np.array(wanted), (0.0, 1.5, 1.6), (0.0, 3.0, 3.2), (1.0, 0.95, 0.4), (2, 2, 3, 2))

    monkeypatch.setattr(auto_k, "estimate_clusters", found)
    return wanted


def answers(slot: str = auto_k.COMMON) -> list[Update]:
    """Participant i moves by (i, 1)."""
    return [update(n, s, slot, i, 1) for i, (n, s) in enumerate(zip(NAMES, SAMPLES))]


def step_without_notes(method: Method, state: ServerState, updates: Sequence[Update]) -> ServerState:
    state = replace(state, notes={})
    return step_method(method, state, updates)


def start_from_second(method: Method) -> ServerState:
    """With common model (2, -2)."""
    return method.start(lambda i: initial(i + 2), NAMES)


def test_biases_of_the_last_layer_are_not_compared() -> None:
    """Prevalence moves them."""
    deep = Layout.of(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
    assert auto_k.divide_compared(deep, WeCFL(k=2)) == (("0.weight", "0.bias", "1.weight"), ("1.bias",))
    assert auto_k.divide_compared(deep, WeCFL(k=2, cluster_on=("1.bias",))) == (("1.bias",), ())
    backbone = auto_k.divide_compared(deep, WeCFL(k=2, cluster_on="backbone"))
    assert backbone == ("backbone", ())


def test_the_warm_up_is_fedavg_weighted_by_samples() -> None:
    method = auto(warmup=2)
    state = start_from_second(method)
    assert (method.plan(state).everyone, method.plan(state).fewest) == (False, 1)
    assert method.distribute(state, "a").slots == (auto_k.COMMON,)
    after = step_without_notes(method, state, answers())
    # (0*3 + 1*1 + 2*2 + 3*2 + 4*4 + 5*6) / 18 = 57 / 18
    np.testing.assert_allclose(after.bank[auto_k.COMMON].vector, [2 + 57 / 18, -1])
    assert (after.assignment, method.count_clusters(after), after.round) == ({}, 0, 1)
    assert method.list_models(after, LAYOUT)["global"].models == (after.bank[auto_k.COMMON],)
    assert (method.plan(after).everyone, method.plan(after).fewest) == (True, 4)  # more than half of six


def test_wecfl_goes_on_from_the_clusters_that_were_found(labels: list[int]) -> None:
    after = step_without_notes(auto(), start_from_second(auto()), answers())
    # Cluster 0: a, c, e move by (0*3 + 2*2 + 4*4) / 9 = 20/9; cluster 1: b, d, f by (1 + 3*2 + 5*6) / 9 = 37/9.
    np.testing.assert_allclose(after.bank["cluster-0"].vector, [2 + 20 / 9, -1], rtol=1e-6)
    np.testing.assert_allclose(after.bank["cluster-1"].vector, [2 + 37 / 9, -1], rtol=1e-6)
    np.testing.assert_allclose(after.bank["global"].vector, [2 + 57 / 18, -1], rtol=1e-6)
    assert set(after.bank) == {"cluster-0", "cluster-1", "global"}
    assert after.assignment == dict(zip(NAMES, labels))
    assert after.extras["common_weights"] == [0.5, 0.5]
    assert after.notes["number_of_clusters"]["k"] == auto().count_clusters(after) == 2
    assert auto().distribute(after, "b").slots == ("cluster-1",)
    assert auto().distribute(after, "late").slots == ("global",)


def test_ifca_goes_on_with_its_clusters_alone(labels: list[int]) -> None:
    labels[:] = [0, 1, 2, 0, 1, 2]
    method = AutoK(base=IFCA(k=5), warmup=1)
    after = step_without_notes(method, start_from_second(method), answers())
    assert set(after.bank) == {"cluster-0", "cluster-1", "cluster-2"}
    np.testing.assert_allclose(after.bank["cluster-2"].vector, [2 + (2 * 2 + 5 * 6) / 8, -1])
    assert method.distribute(after, "a").choices == {k: f"cluster-{k}" for k in range(3)}
    trained = update("a", 3, "cluster-2", 4, 0, cluster=2)
    later = step_without_notes(method, after, [trained])
    assert (later.assignment["a"], later.round) == (2, 2)
    np.testing.assert_allclose(later.bank["cluster-2"].vector - after.bank["cluster-2"].vector, [4, 0])


def test_clusters_that_were_merged_leave_no_gap(labels: list[int]) -> None:
    method = auto()
    state = replace(start_from_second(method), notes={})
    after = method.aggregate(state, answers(), dict(zip(NAMES, [2, 1, 2, 1, 2, 1])))
    assert after.assignment == dict(zip(NAMES, [1, 0, 1, 0, 1, 0]))
    assert method.count_clusters(after) == 2


def test_the_base_counts_its_rounds_from_the_one_that_found_the_clusters(labels: list[int]) -> None:
    method = auto(warmup=3, clustering_rounds=1)
    state = start_from_second(method)
    for _ in range(3):
        state = step_without_notes(method, state, answers())
    assert state.round == 3
    moves = {"a": (9, 0), "b": (-9, 0)}  # each to where the other's centre is, but the assignment is frozen
    updates = [update(n, 1, method.distribute(state, n).slots[0], *moves[n]) for n in moves]
    assert method.assign(state, updates) == {"a": 0, "b": 1}


def test_on_the_site_the_warm_up_has_no_penalties_and_leaves_no_memory() -> None:
    for spec in ("cgpfl:k=auto", "feddsmic:k=auto", "wecfl:k=auto,penalties=[]"):
        method = build_named(spec)
        memory: dict[str, Any] = {}
        one = make_coin_learner([0, 0], memory=memory)
        sent = replace(method.distribute(start_from_second(method), "a"), models=(coin(0, 0),))
        found = method.local_update(one, sent)
        np.testing.assert_allclose(found.diffs[auto_k.COMMON].vector, [0.5, -0.5])  # one step of SGD, by hand
        assert memory == {}
        assert method.serve(one, sent) == sent.models[0]


def test_penalties_know_the_number_that_was_found(labels: list[int]) -> None:
    method = AutoK(base=WeCFL(k=9, penalties=(Contrastive(mu=1.0),)), warmup=1)
    after = step_without_notes(method, start_from_second(method), answers())
    download = method.distribute(after, "a")
    assert (download.slots, download.to_train) == (("cluster-0",), ("cluster-1",))
    assert download.scalars == {"has_centres": True, "cluster_weights": [0.5, 0.5], "found": 2}


@pytest.mark.parametrize("spec", ["wecfl:k=auto", "fesem:k=auto,k_max=3", "ifca:k=auto", "cgpfl:k=auto,lam=0.1"])
def test_whole_runs_find_two_groups_and_go_on(spec: str) -> None:
    method = replace(build_named(spec), warmup=2)
    rounds = play_rounds(method, 4, local_steps=8)
    assert [list_sent_slots(one) for one in rounds[:2]] == [{(auto_k.COMMON,)}] * 2
    assert [list_answered_slots(one) for one in rounds[:2]] == [{(auto_k.COMMON,)}] * 2
    assert rounds[1].record["number_of_clusters"]["k"] == method.count_clusters(rounds[-1].after) == 2
    assert [one.record.get("ari") for one in rounds[:4]] == [None, 1, 1, 1]
    assert method.count_clusters(rounds[1].before) == 0
    assert [one.record["cluster_sizes"] for one in rounds[:4]] == [[], [3, 3], [3, 3], [3, 3]]


def run_cluster_count(method: Method, partition: Any, folder: Path, rounds: int = 5, **more: Any) -> Server:
    return run_loop(
        method=method,
        model=MODEL,
        source=Digits(),
        data=DataConfig(12, partition, indicator_samples=10 if method.traits.indicator else 0),
        settings=ServerSettings(rounds),
        training=TrainSettings(lr=0.1, local_steps=5),
        folder=folder,
        **more,
    )


@pytest.mark.parametrize(("partition", "k"), [("label_permutation:groups=3", 3), ("iid", 1)])
@pytest.mark.parametrize("name", ["wecfl", "fedds"])
def test_digits(name: str, partition: str, k: int, tmp_path: Path) -> None:
    method = build_named(f"{name}:k=auto,warmup=3")
    run_cluster_count(method, partition, tmp_path)
    kept = load_run(tmp_path)
    assert kept.summary["clusters"] == k
    assert kept.name == f"{name}-auto (K={k} found)"
    assert kept.summary["final"].get("ari", 1) in (1, None)
    note = kept.rounds[2]["number_of_clusters"]
    assert (note["k"], list(note["by_k"])) == (k, ["1", "2", "3", "4", "5", "6"])
    assert note == kept.summary["number_of_clusters"]
    assert note["draws"] == {str(k): DRAWS} and note["by_k"][str(k)]["stability"] == 1
    assert build_method(kept.summary["method"]) == method
    assert present_results(tmp_path) == []
    line = describe_note(note)
    assert line.startswith("3 clusters found (clear): " if k == 3 else "one cluster found (clear): with 2 to 6")


def test_with_one_cluster_wecfl_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    ours = run_cluster_count(build_named("wecfl:k=auto,warmup=2"), "iid", tmp_path / "a")
    theirs = run_cluster_count(FedAvg(), "iid", tmp_path / "b")
    np.testing.assert_array_equal(ours.state.bank["cluster-0"].vector, theirs.state.bank["global"].vector)


def test_a_round_that_too_few_answer_finds_nothing_and_the_next_one_does(labels: list[int]) -> None:
    method = auto()
    people = [Participant(n, "site", s) for n, s in zip(NAMES, SAMPLES)]
    server = Server(method, LAYOUT, people, ServerSettings(3, sample=2), start_from_second(method))
    from cfl_flare.engine.task import Result

    def answer(names: str) -> None:
        tasks = server.tasks()
        assert set(tasks) == set(NAMES)
        for one in answers():
            if one.participant in names:
                server.accept(
                    Result(one.participant, one, {"metrics": {"served_accuracy": 0.5} if server.state.round else {}}),
                    "site",
                )
        server.finish_round()

    answer("abc")
    assert (method.count_clusters(server.state), server.state.round) == (0, 1)
    answer("abcdef")
    assert (method.count_clusters(server.state), server.state.round) == (2, 2)
    assert len({n for n, task in server.tasks().items() if task.train}) == 2  # sampled from now on


def test_a_newcomer_joins_as_in_the_base() -> None:
    from cfl_flare.data import ParticipantData, Samples
    from cfl_flare.engine.site import Site
    from tests.helpers.tiny import Coin

    method = auto(warmup=2)
    bank = {"global": coin(0, 0), "cluster-0": coin(2, 0), "cluster-1": coin(0, 2)}
    ended = ServerState(
        bank,
        {"old": 0},
        5,
        {auto_k.NUMBER_FOUND: 2, auto_k.BEGAN: 1, "has_centres": True, "common_weights": [0.5, 0.5]},
    )
    site = Site(method, Coin, TrainSettings(lr=1.0, momentum=0.0, local_steps=1, batch_size=3), 0)
    samples = Samples(np.ones((3, 1), np.float32), np.array([1, 1, 1]))
    site.add([ParticipantData("new", samples, samples)])
    newcomer = join_run(method, ended, site, "new", None, 1)
    assert (newcomer.cluster, newcomer.rounds) == (1, 2)


def test_specs_and_their_description() -> None:
    method = build_named("ifca:k=auto,k_max=4,warmup=2,finetune=True,assignment_samples=50")
    assert method == AutoK(base=IFCA(k=4, assignment_samples=50), warmup=2, finetune=True)
    assert method.label == "ifca-auto-finetune"
    assert build_method(describe_method(method)) == method
    assert (method.clusters, method.traits.averages_only, method.traits.assigns_on_site) == (1, False, True)
    assert build_named("hypcluster:k=auto").label == "ifca-auto"
    penalised = build_method({"method": "wecfl", "k": "auto", "penalties": [{"penalty": "proximal", "mu": 0.1}]})
    assert penalised.label == "wecfl-prox-auto" or penalised.label.endswith("-auto")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: build_named("fl-hc:k=auto"), "method fl-hc: k = 'auto' is for wecfl.*; give a number"),
        (lambda: build_named("fedac:k=auto"), "method fedac: k = 'auto' is for wecfl"),
        (lambda: build_named("wecfl:k=auto,kmax=3"), r"unknown setting 'kmax'; with k = 'auto' it has: k_max, warmup"),
        (lambda: build_named("wecfl:k=auto,k_max=0"), r"k_max = 0 should be"),
        (lambda: build_named("wecfl:k=auto,warmup=0"), r"warmup = 0 should be"),
        (lambda: build_named("wecfl:k=automatic"), r"k = 'automatic' should be int"),
        (lambda: build_named("wecfl-cam:k=auto"), r"k = 'auto' stands alone: write"),
        (lambda: WeCFL(k="auto"), r"k = 'auto' stands alone: write"),  # type: ignore[arg-type]
        (lambda: AutoK(base=FedAvg()), "base = .* should be wecfl"),
        (lambda: AutoK(base=WeCFL(k=3, finetune=True)), "finetune belongs to the whole"),
        (lambda: AutoK(base=WeCFL(k=3), weighting="uniform"), "weighting belongs to the methods in it"),
        (lambda: AutoK(base=IFCA(k=3, shared_backbone=True)), "shared_backbone = True leaves no whole models"),
        (lambda: AutoK(base=IFCA(k=3, warm_start=True)), "warm_start = True does what the warm-up does"),
        (lambda: AutoK(base=WeCFL(k=2, penalties=(KnowledgeSharing(lam=(1.0, 2.0)),))), "lam = .* has 2 values for 1"),
        (lambda: CAM(base=auto()), "wecfl-auto has no fixed number of centres"),
        (lambda: auto(warmup=5).check(LAYOUT, 5), "warmup = 5 leaves none of 5 rounds; lower it"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_way_out(build: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def test_inside_an_ensemble_it_leads() -> None:
    rounds = play_rounds(Ensemble(parts=(FedAvg(), replace(auto(), warmup=2))), 3, local_steps=8)
    assert rounds[-1].record == {}
    assert [one.record["cluster_sizes"] for one in rounds[:3]] == [[], [3, 3], [3, 3]]


def searched(attackers: int, groups: int, seed: int, floor: int = 3) -> dict[str, Any]:
    """What the search notes of twelve sites in groups of one size, some of which send what is far away."""
    layout, rng = Layout.of(nn.Linear(40, 1, bias=False)), np.random.default_rng(seed)
    people = [Participant(f"p{i:02}", f"site-{i:02}", 40) for i in range(12)]
    settings = ServerSettings(3, min_sites_per_cluster=floor, hold_small_clusters=floor > 1)
    running = Server(auto(), layout, people, settings, auto().start(lambda i: Params(layout, np.zeros(40, np.float32))))
    centres = rng.normal(0, 1, (groups, 40))
    for i, name in enumerate(running.tasks()):
        vector = centres[i % groups] + rng.normal(0, 0.5, 40)
        vector = 5 * rng.normal(0, 1, 40) if i < attackers else vector
        sent = Update(name, 40, {auto_k.COMMON: Params(layout, vector.astype(np.float32))})
        running.accept(Result(name, sent, {"metrics": {}}), f"site-{i:02}")
    running.finish_round()
    clusters = [running.state.assignment[f"p{i:02}"] for i in range(attackers, 12)]
    alike = all((a == b) == (i % groups == j % groups) for i, a in enumerate(clusters) for j, b in enumerate(clusters))
    assert running.progress.record is not None
    return {**running.progress.record["number_of_clusters"], "alike": alike}


@pytest.mark.parametrize(("attackers", "groups"), [(0, 3), (0, 1), (1, 3), (2, 3), (3, 3), (1, 2), (3, 2), (3, 1)])
def test_a_few_far_away_participants_open_no_clusters(attackers: int, groups: int) -> None:
    """Three are as many as a cluster needs, and may be one; without a floor they make six of three."""
    for seed in range(5):
        note = searched(attackers, groups, seed)
        assert note["alike"]
        assert groups <= note["k"] <= groups + (attackers == 3)


def test_without_a_floor_they_do() -> None:
    assert searched(1, 3, 0, floor=1)["k"] == 4
    assert searched(3, 3, 4, floor=1)["k"] == 6


# ---- Methods whose number of clusters changes ----


@dataclass(frozen=True, kw_only=True)
class Growing(Method):
    """No cluster in round 0, one in round 1, and one more in each round after it; each takes another participant."""

    name: ClassVar[str] = "growing"
    paper: ClassVar[str] = "a test"

    @property
    def traits(self) -> Traits:
        return Traits(clusters=1, serves_one=True, takes_penalties=True)

    def count_clusters(self, state: ServerState) -> int:
        return sum(slot.startswith("cluster-") for slot in state.bank)

    def distribute(self, state: ServerState, participant: str) -> Download:
        known = state.assignment.get(participant)
        return Download(("global" if known is None else cluster_slot(known),))

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        names = [u.participant for u in updates]
        return {n: min(i, state.round - 1) for i, n in enumerate(names)} if state.round else {}

    def counts_in(self, state: ServerState, update: Update, assignment: Assignment) -> Counts:
        return self.count_by_cluster(update, assignment)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        if not assignment:
            return state.after(self.compute_means(state, updates))
        return state.after(self.compute_centres(state, updates, assignment), assignment)


@dataclass(frozen=True, kw_only=True)
class Choosing(Growing):
    """As Growing, but the participants say in which cluster they are."""

    @property
    def traits(self) -> Traits:
        return Traits(clusters=1, assigns_on_site=True)

    def distribute(self, state: ServerState, participant: str) -> Download:
        sent = super().distribute(state, participant)
        clusters = range(self.count_clusters(state))
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


def test_a_changing_number_of_clusters_is_presented(tmp_path: Path) -> None:
    rounds(tmp_path / "a", Growing(), count=4, keep_features=True)
    rounds(tmp_path / "b", Growing(), count=2)
    runs = [load_run(tmp_path / name) for name in "ab"]
    assert [read_features(f).gram.shape for f in runs[0].feature_files] == [(4, 4), (6, 6), (7, 7)]
    assert present_results(tmp_path / "a") == []
    assert present_results(tmp_path, runs) == []


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
    assert both.count_clusters(state) == 0
    state = replace(state, bank={**state.bank, "1.cluster-0": initial(0), "1.cluster-1": initial(0)})
    assert both.count_clusters(state) == 2


def test_what_needs_all_centres_is_refused() -> None:
    with pytest.raises(ConfigError, match="penalty contrastive: needs a method with clusters: ifca, fesem or wecfl"):
        Growing(penalties=(Contrastive(),))
    with pytest.raises(
        ConfigError, match=r"no fixed number of centres .* or does not declare the trait shares_centres"
    ):
        CAM(base=Growing())
