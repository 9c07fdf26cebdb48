# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A participant may be in several clusters, each with a share."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from cfl_flare.clustering.differences import exposed
from cfl_flare.clustering.floor import Census, Floor, memberships
from cfl_flare.core.errors import ConfigError
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.means import Means
from cfl_flare.engine.newcomers import Finished, onboard_unseen
from cfl_flare.engine.partial_sums import check_sums
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.methods import Mixture, Participant, ServerState, Traits, WeCFL
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.store import Store, state_metadata, state_of
from tests.joining import MODEL, TRAINING
from tests.loop import run_loop
from tests.tiny import LAYOUT, coin, initial, update


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


PEOPLE = [Participant(name, f"site-{name}", 10) for name in "abcd"]
ENDS = {"a": 0.0, "b": 1.0, "c": 10.0, "d": 11.0}


def one_round(method=None, ends=ENDS, **settings) -> Server:
    method = method or Soft()
    running = Server(
        method,
        LAYOUT,
        PEOPLE,
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
class Undeclared(Soft):
    @property
    def traits(self) -> Traits:
        return replace(super().traits, mixes=False, averages_only=True)


def test_what_mixtures_do_not_go_with_is_refused():
    with pytest.raises(ConfigError, match="its traits do not declare mixes; declare it"):
        one_round(Undeclared())
    with pytest.raises(ConfigError, match="aggregation = 'median' replaces means, but in method soft"):
        one_round(aggregation="median")
    sums = type("Sums", (Undeclared,), {"traits": property(lambda self: replace(Soft().traits, averages_only=True))})
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
