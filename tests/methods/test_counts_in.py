# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What is guarded is what is averaged: an update says in which means it counts, also with a share in several."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from cfl_flare.clustering.floor import Census, Floor, memberships
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.shares import exposed
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.min_cluster_size import Means
from cfl_flare.engine.newcomers import Finished, onboard_unseen
from cfl_flare.engine.partial_sums import check_sums
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.methods import (
    CAM,
    IFCA,
    AutoK,
    Contrastive,
    Download,
    Ensemble,
    FedAvg,
    FedDS,
    FeSEM,
    Method,
    Mixture,
    Participant,
    Proximal,
    ServerState,
    Traits,
    Update,
    WeCFL,
    cluster_slot,
)
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.store import Store, state_metadata, state_of
from tests.loop import MODEL, TRAINING, run_loop
from tests.tiny import LAYOUT, coin, initial, update

SAMPLES = {"a": 100, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5}
PEOPLE = [Participant(name, f"site-{name}", n) for name, n in SAMPLES.items()]


@dataclass(frozen=True, kw_only=True)
class Reassigning(Method):
    """A contributor's: a participant trains its cluster's model, which its mean takes, and only then moves."""

    name: ClassVar[str] = "reassigning"
    paper: ClassVar[str] = "none"
    # To which clusters the server moves participants.
    moves: ClassVar[Mapping[str, int]] = {}

    @property
    def traits(self) -> Traits:
        return Traits(clusters=2, averages_only=True)

    def start(self, initial, participants=()) -> ServerState:
        return ServerState({cluster_slot(k): initial(k) for k in range(2)})

    def distribute(self, state, participant) -> Download:
        return Download((cluster_slot(state.assignment.get(participant, 0 if participant in "abc" else 1)),))

    def assign(self, state, updates):
        return {u.participant: self.moves.get(u.participant, int(u.main_slot[-1])) for u in updates}

    def counts_in(self, state, update, assignment):
        return self.by_slot(update)

    def aggregate(self, state, updates, assignment) -> ServerState:
        return state.after(self.means(state, updates), assignment)


def ran(method: Method, ends: Mapping[str, float], **settings) -> Server:
    """A round, after which each participant's model is at its number."""
    settings = {"clip_norm": None, **settings}
    running = Server(method, LAYOUT, PEOPLE, ServerSettings(2, **settings), method.start(lambda i: coin(100 * i, 0)))
    for name, task in running.tasks().items():
        start = running.bank[task.slots[0]].vector[0]
        moved = update(name, SAMPLES[name], task.slots[0], ends[name] - start, 0.0)
        running.accept(Result(name, moved), f"site-{name}")
    running.finish_round()
    return running


def ends_of(running: Server) -> dict[str, float]:
    return {slot: float(model.vector[0]) for slot, model in running.state.bank.items()}


ENDS = {"a": 10.0, "b": 0.0, "c": 1.0, "d": 98.0, "e": 98.0, "f": 98.0}


@dataclass(frozen=True, kw_only=True)
class Alone(Reassigning):
    """a, which trained with b and c, moves to the others' cluster, and d, e and f to that of b and c."""

    moves: ClassVar[Mapping[str, int]] = {"a": 1, "d": 0, "e": 0, "f": 0}


@dataclass(frozen=True, kw_only=True)
class Apart(Reassigning):
    """b and c move to the others' cluster."""

    moves: ClassVar[Mapping[str, int]] = {"b": 1, "c": 1}


@dataclass(frozen=True, kw_only=True)
class Following(Apart):
    """The same, but a model counts in its participant's new cluster."""

    def counts_in(self, state, update, assignment):
        return self.by_cluster(update, assignment)


def test_a_site_s_share_is_of_the_mean_in_which_it_counts():
    # Capped at 1/3 of cluster-0's mean, which a, b and c make, they count as 2, 1 and 2: (2 * 10 + 0 + 2 * 1) / 5.
    shares = ends_of(ran(Alone(), ENDS, max_weight_share=0.4))
    assert shares == pytest.approx({"cluster-0": 22 / 5, "cluster-1": 98})
    # In the cluster of the others, b and c count beside d, e and f: 0 and 1 weigh 1 and 2 of 15.
    shares = ends_of(ran(Following(), ENDS, max_weight_share=0.4))
    assert shares == pytest.approx({"cluster-0": 10, "cluster-1": (2 + 12 * 98) / 15})


def test_a_median_is_of_the_models_of_one_mean():
    assert ends_of(ran(Apart(), ENDS, aggregation="median")) == {"cluster-0": 1.0, "cluster-1": 98.0}
    assert ends_of(ran(Following(), ENDS, aggregation="median")) == {"cluster-0": 10.0, "cluster-1": 98.0}


def test_a_floor_is_of_the_sites_that_make_a_mean():
    floor = {"hold_small_clusters": True, "min_sites_per_cluster": 3}
    running = ran(Apart(), ENDS, **floor)
    assert ends_of(running)["cluster-0"] == pytest.approx(1002 / 103)
    assert "held_back" not in running.progress.record
    running = ran(Following(), ENDS, **floor)
    assert ends_of(running) == pytest.approx({"cluster-0": 0, "cluster-1": (2 + 12 * 98) / 15})  # a is alone
    assert running.progress.record["held_back"] == ["a"]


def test_each_part_of_an_ensemble_has_its_own_weights_and_shares():
    both = Ensemble(parts=(FedAvg(), FeSEM(k=2, cluster_on="all")))
    running = Server(both, LAYOUT, PEOPLE, ServerSettings(2, max_weight_share=0.4, clip_norm=None), both.start(initial))
    for name in running.tasks():
        far = 90.0 * (name in "def")
        moved = {"0.global": coin(ENDS[name], 0), "1.global": coin(far, 0)}
        running.accept(Result(name, Update(name, SAMPLES[name], moved)), f"site-{name}")
    running.finish_round()
    assert ends_of(running) == pytest.approx(
        {
            "0.global": (10 * 10 + 0 * 1 + 1 * 2 + 98 * 12) / 25,  # a counts as 10 of 25, which is 0.4
            "1.global": 46,
            "1.cluster-0": 1,  # from seed 1; all count alike
            "1.cluster-1": 91,
        }
    )


def test_a_newcomer_counts_in_no_cluster_before_it_trained_its_model():
    method = FedDS(k=2)
    state = method.start(initial, list("ab"))
    joining = Update("z", 9, {"newcomer": coin(5, 5)}, main="newcomer")
    assert method.counts_in(state, joining, {"z": 1}) == {}
    member = Update("a", 2, {"cluster-0": coin(1, 1)}, main="cluster-0")
    assert method.counts_in(state, member, {"a": 1}) == {"cluster-0": {"cluster-1": 2.0}}
    assert method.cluster_weights(state, [joining, member], {"a": 1, "z": 1}) == [0, 1]


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"cluster-1": {"cluster-1": 1.0}}, r"counts_in names \['cluster-1'\], which a did not train"),
        (
            {"cluster-0": {"cluster-0": -1.0}},
            "gives a's cluster-0 the weights {'cluster-0': -1.0}; they should be >= 0",
        ),
        ({"cluster-0": {"cluster-0": np.nan}}, "they should be >= 0"),
        ({"cluster-0": {"cluster-0": 0.5, "cluster-1": 0.5}}, "cluster-0 counts in .*'cluster-1'.*; leave it out"),
    ],
)
def test_what_cannot_be_counted_is_refused(counts, says, monkeypatch):
    monkeypatch.setattr(Reassigning, "counts_in", lambda self, state, u, _: counts if u.participant == "a" else {})
    with pytest.raises(ConfigError, match=says):
        ran(Reassigning(), ENDS, aggregation="median")


def test_a_model_can_count_in_several_means(monkeypatch):
    halves = {"cluster-0": 0.5, "cluster-1": 0.5}
    monkeypatch.setattr(Reassigning, "counts_in", lambda self, state, u, _: dict.fromkeys(u.diffs, halves))
    running = ran(Reassigning(), ENDS)
    assert ends_of(running) == pytest.approx(dict.fromkeys(halves, sum(ENDS.values()) / 6))


# ---- What a method does not declare is not assumed ----


@dataclass(frozen=True, kw_only=True)
class Undeclared(Reassigning):
    """It says that it clusters, and nothing else."""

    @property
    def traits(self) -> Traits:
        return Traits(clusters=2)


@dataclass(frozen=True, kw_only=True)
class Hollow(WeCFL):
    """WeCFL without some traits."""

    lacks: tuple[str, ...] = ()

    @property
    def traits(self) -> Traits:
        return replace(super().traits, **{name: type(getattr(Traits(), name))() for name in self.lacks})


@dataclass(frozen=True, kw_only=True)
class Mixed(WeCFL):
    @property
    def traits(self) -> Traits:
        return replace(super().traits, mixes=True)


@dataclass(frozen=True, kw_only=True)
class Nowhere(WeCFL):
    def start(self, initial, participants=()) -> ServerState:
        return ServerState({cluster_slot(k): initial(k) for k in range(self.k)})


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: CAM(base=Hollow(k=2, lacks=("compares_models",))), "does not declare the trait compares_models"),
        (lambda: CAM(base=Hollow(k=2, lacks=("takes_penalties",))), "does not declare the trait takes_penalties"),
        (lambda: CAM(base=Nowhere(k=2)).start(initial), "has no common model .* take fesem or wecfl"),
        (lambda: AutoK(base=Hollow(k=2, lacks=("compares_models",))), "'wecfl' does not declare compares_models"),
        (lambda: AutoK(base=Hollow(k=2, lacks=("serves_one",))), "'wecfl' does not declare serves_one"),
        (lambda: AutoK(base=Mixed(k=2)), "'wecfl' mixes clusters"),
        (
            lambda: Ensemble(parts=(FedAvg(), Hollow(k=2, lacks=("clusters",)))),
            r"parts = \['wecfl'\] assign, but declare no clusters",
        ),
        (lambda: CAM(base=Undeclared()), "base = reassigning has .* or does not declare the trait shares_centres; "),
        (
            lambda: Ensemble(parts=(FedAvg(), Undeclared())),
            r"parts = \['reassigning'\] .* do not declare the trait serves_one",
        ),
        (lambda: Undeclared(penalties=(Proximal(),)), r"penalties = \['proximal'\] are for .* declare takes_penalties"),
        (lambda: Undeclared(penalties=(Contrastive(),)), "are for a method whose traits declare takes_penalties"),
    ],
)
def test_an_undeclared_trait_is_refused_before_a_run(build, says):
    with pytest.raises(ConfigError, match=says):
        build()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"aggregation": "median"}, "or declares neither averages_only nor mergeable in its traits; leave it out"),
        ({"server_optimizer": "adam", "server_lr": 0.1}, "declares neither averages_only nor mergeable"),
        ({"hold_small_clusters": True, "min_sites_per_cluster": 2}, "computes more than means of models"),
    ],
)
def test_so_it_is_for_what_a_run_asks(settings, says):
    with pytest.raises(ConfigError, match=says):
        ran(Undeclared(), ENDS, **settings)


def test_a_method_that_assigns_says_in_which_mean_its_models_count():
    @dataclass(frozen=True, kw_only=True)
    class Silent(FedAvg):
        def assign(self, state: ServerState, updates):
            return {}

    with pytest.raises(ConfigError, match=r"defines assign, but not counts_in.* self.by_slot\(update\) there"):
        Silent()
    assert IFCA(k=2).traits.takes_penalties


# ---- Shares in several clusters ----


@dataclass(frozen=True, kw_only=True)
class Soft(WeCFL):
    """WeCFL, but a participant is in its cluster by 0.7 and in the other one by 0.3."""

    name: ClassVar[str] = "soft"
    k: int = 2

    @property
    def traits(self) -> Traits:
        return replace(super().traits, mixes=True)

    def assign(self, state, updates):
        labels = super().assign(state, updates)
        return {name: Mixture({int(k): 0.7, 1 - int(k): 0.3}) for name, k in labels.items()}


MIXED_PEOPLE = [Participant(name, f"site-{name}", 10) for name in "abcd"]
MIXED_ENDS = {"a": 0.0, "b": 1.0, "c": 10.0, "d": 11.0}


def one_round(method=None, ends=MIXED_ENDS, **settings) -> Server:
    method = method or Soft()
    running = Server(
        method,
        LAYOUT,
        MIXED_PEOPLE,
        ServerSettings(3, clip_norm=None, merge_small_clusters=False, **settings),
        method.start(initial),
    )
    for name, task in running.tasks().items():
        if name in ends:
            start = float(running.bank[task.slots[0]].vector[0])
            running.accept(Result(name, update(name, 10, task.slots[0], ends[name] - start, 0.0)), f"site-{name}")
    running.finish_round()
    return running


def test_a_model_counts_in_each_of_its_clusters_by_its_share():
    running = one_round()
    assert running.state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert running.state.assignment["a"].shares == {0: 0.7, 1: 0.3}
    means = {slot: float(model.vector[0]) for slot, model in running.state.bank.items()}
    # 0.7 * (0 + 1) + 0.3 * (10 + 11) over 0.7 * 2 + 0.3 * 2, and the other way round.
    assert means == pytest.approx({"cluster-0": 7.0 / 2, "cluster-1": 15.0 / 2, "global": 5.5})
    assert running.state.extras["common_weights"] == pytest.approx([0.5, 0.5])


def test_the_floor_counts_sites_by_their_effective_number():
    # (0.7 + 0.7 + 0.3 + 0.3)^2 / (0.49 + 0.49 + 0.09 + 0.09) = 3.45 sites.
    assert one_round(min_sites_per_cluster=3).progress.record["small_clusters"] == []
    assert one_round(min_sites_per_cluster=4).progress.record["small_clusters"] == [0, 1]
    running = one_round(min_sites_per_cluster=4, hold_small_clusters=True)
    assert running.progress.record["held_back"] == ["a", "b", "c", "d"]
    # 20 of all 40 samples are in each cluster.
    assert one_round(min_samples_per_cluster=20).progress.record["small_clusters"] == []
    assert one_round(min_samples_per_cluster=21).progress.record["small_clusters"] == [0, 1]


def test_shares_of_one_are_as_a_hard_assignment():
    where = {"a": "one", "b": "two", "c": "one"}
    census = Census(Floor(2, 15), where, dict.fromkeys(where, 10))
    hard, soft = {"a": 0, "b": 0, "c": 1}, {"a": Mixture({0: 1}), "b": Mixture({0: 2}), "c": Mixture({1: 1})}
    assert census.members(memberships(hard)) == census.members(memberships(soft))
    assert census.small(memberships(soft)) == {1}


def test_a_mixture_travels_through_json_to_the_bit(tmp_path):
    mixture = Mixture({1: 0.1, 0: 0.7, 4: 0.3})
    assert (int(mixture), json.dumps(mixture)) == (0, "0")
    assert list(mixture.shares) == [0, 1, 4] and sum(mixture.shares.values()) == pytest.approx(1)
    state = ServerState({"global": coin(1, 2)}, {"a": mixture, "b": 3})
    store = Store(tmp_path)
    store.save(1, state.bank, state_metadata(state))
    again = state_of(*store.load(1, LAYOUT))
    assert again.assignment["a"].shares == mixture.shares
    assert type(again.assignment["b"]) is int


def test_a_checkpoint_of_an_earlier_version_says_weights():
    facts = {"assignment": {}, "round": 2, "extras": {"0": {"weights": [0.5, 0.5]}, "1": {"rest": 1}}}
    extras = state_of({}, facts).extras
    assert (extras["0"]["has_centres"], extras["0"]["common_weights"]) == (True, [0.5, 0.5])
    assert extras["1"] == {"rest": 1}


@pytest.mark.parametrize("shares", [{}, {0: 0.0}, {0: -1.0, 1: 2.0}, {0: np.nan}, {-1: 1.0}, {0: np.inf}])
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(ConfigError, match="should be finite numbers >= 0"):
        Mixture(shares)


@dataclass(frozen=True, kw_only=True)
class UndeclaredShares(Soft):
    @property
    def traits(self) -> Traits:
        return replace(super().traits, mixes=False, averages_only=True)


def test_what_mixtures_do_not_go_with_is_refused():
    with pytest.raises(ConfigError, match="its traits do not declare mixes; declare it"):
        one_round(UndeclaredShares())
    with pytest.raises(ConfigError, match="aggregation = 'median' replaces means, but in method soft"):
        one_round(aggregation="median")
    sums = type(
        "Sums", (UndeclaredShares,), {"traits": property(lambda self: replace(Soft().traits, averages_only=True))}
    )
    with pytest.raises(ConfigError, match="in method soft a model may count in several means; leave site_sums out"):
        check_sums(True, sums(), ServerSettings(3))


def test_means_of_the_same_sites_with_other_shares_are_held_against_each_other(tmp_path):
    both = [{"a": 0.7, "b": 0.7, "c": 0.3}, {"a": 0.3, "b": 0.3, "c": 0.7}]
    assert exposed(both, 2) == {frozenset("c")}
    assert exposed(both[:1], 2) == set()
    running = one_round(ends={"a": 0.0, "b": 1.0, "c": 10.0})
    running.earlier_means = Means(tmp_path / "means.jsonl", 2)
    for name, task in running.tasks().items():
        running.accept(Result(name, update(name, 10, task.slots[0], 0.0, 0.0)), f"site-{name}")
    running.finish_round()
    assert not running.progress.record["aggregated"]
    assert "difference" in str(running.progress.record["failed"])


def test_a_run_is_recorded_resumed_and_joined(tmp_path):
    settings = ServerSettings(3, min_sites_per_cluster=3, merge_small_clusters=True)
    data = DataConfig(8, {"partition": "label_permutation", "groups": 2}, unseen=0.25)

    def run(folder, **more):
        given = {"method": Soft(), "model": MODEL, "source": Digits(), "data": data, "settings": settings}
        return run_loop(**given, training=TRAINING, folder=tmp_path / folder, sites=6, **more)

    whole = run("whole")
    checkpoints = Store(tmp_path / "store")
    run("halved", checkpoints=checkpoints, until=1)
    halved = run("halved", checkpoints=checkpoints)
    for slot, model in whole.state.bank.items():
        np.testing.assert_array_equal(model.vector, halved.state.bank[slot].vector)
    of_runs = [load_run(tmp_path / folder) for folder in ("whole", "halved")]
    assert of_runs[0].assignments == of_runs[1].assignments
    last = of_runs[0].assignments[-1]
    assert last["shares"][str(last["cluster"])] == 0.7
    assert all(sorted(p["shares"].values()) == [0.3, 0.7] for p in of_runs[0].summary["participants"])
    assert of_runs[0].summary["small_clusters"] == []
    joined = onboard_unseen(tmp_path / "whole", Digits())
    assert not joined["failed"] and len(joined["participants"]) == 2
    assert all(p["shares"][str(p["cluster"])] == 0.7 for p in joined["participants"])
    assert all(isinstance(k, Mixture) for k in Finished(tmp_path / "whole").state.assignment.values())
