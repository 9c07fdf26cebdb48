# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What is guarded is what is averaged: an update says in which mean each of its models counts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError
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
    Participant,
    Proximal,
    ServerState,
    Traits,
    Update,
    WeCFL,
    cluster_slot,
)
from tests.helpers.tiny import LAYOUT, coin, initial, update

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
        return self.count_by_slot(update)

    def aggregate(self, state, updates, assignment) -> ServerState:
        return state.after(self.compute_means(state, updates), assignment)


def ran(method: Method, ends: Mapping[str, float], **settings) -> Server:
    """A round, after which each participant's model is at its number."""
    settings = {"clip_norm": 0, **settings}
    running = Server(method, LAYOUT, PEOPLE, ServerSettings(2, **settings), method.start(lambda i: coin(100 * i, 0)))
    for name, task in running.tasks().items():
        start = running.bank[task.slots[0]].vector[0]
        moved = update(name, SAMPLES[name], task.slots[0], ends[name] - start, 0.0)
        running.accept(Result(name, moved), f"site-{name}")
    running.finish_round()
    return running


def read_ends(running: Server) -> dict[str, float]:
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
        return self.count_by_cluster(update, assignment)


def test_a_site_s_share_is_of_the_mean_in_which_it_counts():
    # Capped at 1/3 of cluster-0's mean, which a, b and c make, they count as 2, 1 and 2: (2 * 10 + 0 + 2 * 1) / 5.
    shares = read_ends(ran(Alone(), ENDS, max_weight_share=0.4))
    assert shares == pytest.approx({"cluster-0": 22 / 5, "cluster-1": 98})
    # In the cluster of the others, b and c count beside d, e and f: 0 and 1 weigh 1 and 2 of 15.
    shares = read_ends(ran(Following(), ENDS, max_weight_share=0.4))
    assert shares == pytest.approx({"cluster-0": 10, "cluster-1": (2 + 12 * 98) / 15})


def test_a_median_is_of_the_models_of_one_mean():
    assert read_ends(ran(Apart(), ENDS, aggregation="median")) == {"cluster-0": 1.0, "cluster-1": 98.0}
    assert read_ends(ran(Following(), ENDS, aggregation="median")) == {"cluster-0": 10.0, "cluster-1": 98.0}


def test_a_floor_is_of_the_sites_that_make_a_mean():
    floor = {"hold_small_clusters": True, "min_sites_per_cluster": 3}
    running = ran(Apart(), ENDS, **floor)
    assert read_ends(running)["cluster-0"] == pytest.approx(1002 / 103)
    assert "held_back" not in running.progress.record
    running = ran(Following(), ENDS, **floor)
    assert read_ends(running) == pytest.approx({"cluster-0": 0, "cluster-1": (2 + 12 * 98) / 15})  # a is alone
    assert running.progress.record["held_back"] == ["a"]


def test_each_part_of_an_ensemble_has_its_own_weights_and_shares():
    both = Ensemble(parts=(FedAvg(), FeSEM(k=2, cluster_on="all")))
    running = Server(both, LAYOUT, PEOPLE, ServerSettings(2, max_weight_share=0.4, clip_norm=0), both.start(initial))
    for name in running.tasks():
        far = 90.0 * (name in "def")
        moved = {"0.global": coin(ENDS[name], 0), "1.global": coin(far, 0)}
        running.accept(Result(name, Update(name, SAMPLES[name], moved)), f"site-{name}")
    running.finish_round()
    assert read_ends(running) == pytest.approx(
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
    assert method.counts_in(state, member, {"a": 1}) == {"cluster-0": ("cluster-1", 2.0)}
    assert method.compute_cluster_weights(state, [joining, member], {"a": 1, "z": 1}) == [0, 1]


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"cluster-1": ("cluster-1", 1.0)}, r"counts_in names \['cluster-1'\], which a did not train"),
        ({"cluster-0": ("cluster-1", -1.0)}, "gives a's cluster-0 the weight -1.0 in cluster-1; it should be >= 0"),
        ({"cluster-0": ("cluster-0", np.nan)}, "it should be >= 0"),
        ({"cluster-0": ("cluster-0", np.inf)}, "it should be >= 0"),
    ],
)
def test_what_cannot_be_counted_is_refused(counts, says, monkeypatch):
    monkeypatch.setattr(Reassigning, "counts_in", lambda self, state, u, _: counts if u.participant == "a" else {})
    with pytest.raises(ConfigError, match=says):
        ran(Reassigning(), ENDS, aggregation="median")


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

    with pytest.raises(ConfigError, match=r"defines assign, but not counts_in.* self.count_by_slot\(update\) there"):
        Silent()
    assert IFCA(k=2).traits.takes_penalties
