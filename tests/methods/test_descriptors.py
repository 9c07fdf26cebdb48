# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""CLoVE by numbers computed by hand: K models, the losses that they have, who trains which of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cfl_flare.clustering.agglomerative import choose_by_silhouette
from cfl_flare.clustering.floor import Census, Floor
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.engine.task import check_update
from cfl_flare.methods import CLoVE, Download, ServerState, Update, build_method
from tests.helpers.play import play_rounds
from tests.helpers.tiny import coin, initial, make_coin_learner, step_method, update

SAMPLES = {"a": 3, "b": 1, "c": 2, "d": 4}
CLOVE = CLoVE(k=2)
# Two models: a and b fit the second better, c the first. By distance a and b are alike.
LOSSES = {"a": (3.0, 1.0), "b": (2.8, 1.2), "c": (2.0, 5.0)}


def read_vector(state: ServerState, slot: str) -> list[float]:
    return state.bank[slot].vector.tolist()


def make_loss_updates(rows: dict[str, tuple[float, float]] = LOSSES) -> list[Update]:
    return [Update(n, SAMPLES.get(n, 1), arrays={"loss": np.array(r, np.float32)}) for n, r in rows.items()]


def make_end_updates(state: ServerState, ends: dict[str, float]) -> list[Update]:
    slots = {name: CLOVE.distribute(state, name).slots[0] for name in ends}
    return [update(n, SAMPLES[n], slots[n], end - read_vector(state, slots[n])[0], 0) for n, end in ends.items()]


def test_a_round_of_losses_says_who_trains_what_in_the_next_one():
    state = CLOVE.start(initial)  # models 0 and (1, -1)
    assert CLOVE.plan(state).fewest == 2
    sent = CLOVE.distribute(state, "a")
    assert (sent.slots, sent.returned, dict(sent.arrays)) == (("cluster-0", "cluster-1"), (), {"loss": (2,)})
    state = step_method(CLOVE, state, make_loss_updates())
    assert state.assignment == {"a": 1, "b": 1, "c": 0}
    assert (read_vector(state, "cluster-0"), read_vector(state, "cluster-1")) == ([0, 0], [1, -1])
    assert CLOVE.plan(state).draw == 0  # those train that sent losses
    assert CLOVE.distribute(state, "a") == Download(("cluster-1",))
    state = step_method(CLOVE, state, make_end_updates(state, {"a": 9, "b": 5, "c": -4}))
    assert read_vector(state, "cluster-1") == [(3 * 9 + 5) / 4, -1]
    assert read_vector(state, "cluster-0") == [-4, 0]
    sent = CLOVE.distribute(state, "a")  # the first is what it is measured with
    assert (sent.slots, sent.to_train, sent.returned) == (("cluster-1",), ("cluster-0",), ())


def test_clusters_are_matched_to_models_so_that_the_sum_of_losses_is_least():
    """Cluster (a, b) has losses 12 and 8, cluster (c) 6 and 1: 12 + 1 = 13 is less than 8 + 6 = 14."""
    state = step_method(CLOVE, CLOVE.start(initial), make_loss_updates({"a": (6, 4), "b": (6, 4), "c": (6, 1)}))
    assert state.assignment == {"a": 0, "b": 0, "c": 1}


def test_an_unmatched_model_stays_and_silhouette_chooses_the_number():
    method = CLoVE(k=3, silhouette=True)
    rows = {"a": (0.0, 9.0, 9.0), "b": (0.1, 9.0, 9.0), "c": (9.0, 9.0, 0.0), "d": (9.0, 9.0, 0.2)}
    state = step_method(method, method.start(initial), make_loss_updates(rows))  # type: ignore[arg-type]
    assert state.assignment == {"a": 0, "b": 0, "c": 2, "d": 2}
    assert read_vector(state, "cluster-1") == [1, -1]
    assert method.plan(method.start(initial)).fewest == 2
    points = np.array([[0.0], [1.0], [10.0], [11.0], [19.0], [20.0]])  # silhouettes: two 0.66, three 0.89
    assert [choose_by_silhouette(points, k) for k in (1, 2, 3, 9)] == [1, 2, 3, 3]
    assert choose_by_silhouette(points, 9, better=1.5) == 2
    assert choose_by_silhouette(points[:2], 9) == 2


def test_stable_clusters_are_frozen():
    method, state = CLoVE(k=2, stable=2), CLOVE.start(initial)
    state = step_method(method, state, make_loss_updates())
    assert not state.extras["frozen"]
    state = step_method(method, state, make_end_updates(state, {"a": 9, "b": 5, "c": -4}))
    moved = step_method(method, state, make_loss_updates({**LOSSES, "a": (2.0, 5.0)}))  # a changes its cluster
    assert moved.assignment == {"a": 0, "b": 1, "c": 0} and not moved.extras["frozen"]
    state = step_method(method, state, make_loss_updates())
    assert state.extras["frozen"] and method.plan(state).draw is None
    state = step_method(method, state, make_end_updates(state, {"a": 9, "b": 5, "c": -4}))
    assert method.distribute(state, "a") == Download(("cluster-1",))


def test_absent_participants_keep_their_count_of_stable_clusterings():
    """Rounds of losses of a and c, of b and d, and of a and c again: then both have had one cluster twice."""
    method, state = CLoVE(k=2, stable=2), CLOVE.start(initial)
    rows = {**LOSSES, "d": (2.1, 5.0)}
    for pair in ("ac", "bd", "ac"):
        assert not state.extras.get("frozen")
        state = step_method(method, state, make_loss_updates({name: rows[name] for name in pair}))
        if not state.extras["frozen"]:
            state = step_method(method, state, make_end_updates(state, dict.fromkeys(pair, 9.0)))
    assert state.extras["same"] == {"a": 2, "b": 1, "c": 2, "d": 1}
    assert state.extras["frozen"]


def test_a_sampled_run_becomes_stable():
    """Without that, half of all rounds would send K models and train nothing."""
    played = play_rounds(CLoVE(k=2), 16, sample=4)
    assert played[-1].after.extras["frozen"]


def test_who_is_late_sends_losses_of_the_models_that_were_compared():
    state = step_method(CLOVE, CLOVE.start(initial), make_loss_updates())
    state = step_method(
        CLOVE, replace(state, extras={**state.extras, "frozen": True}), make_end_updates(state, {"a": 9, "c": -4})
    )
    sent = CLOVE.distribute(state, "z")
    assert sent.slots == ("measured-0-0", "measured-0-1") and sent.returned == ()
    assert [read_vector(state, slot) for slot in sent.slots] == [[0, 0], [1, -1]]
    joined = CLOVE.join(state, make_loss_updates({"z": (2.6, 2.4)})[0])  # nearest to (2.9, 1.1)
    assert joined.assignment == {**state.assignment, "z": 1}
    assert CLOVE.distribute(joined, "z") == Download(("cluster-1",))
    both = CLOVE.assign(state, [*make_end_updates(state, {"a": 9}), *make_loss_updates({"z": (2.0, 4.0)})])
    assert both == {"a": 1, "z": 0}


def test_a_newcomer_is_placed_although_the_run_ended_before_a_round_of_losses():
    state = step_method(CLOVE, CLOVE.start(initial), make_loss_updates())
    state = step_method(CLOVE, state, make_end_updates(state, {"a": 9, "b": 5, "c": -4}))
    assert CLOVE.measures(state) and CLOVE.distribute(state, "z").slots == ("cluster-0", "cluster-1")
    waiting = CLOVE.join(
        state, make_loss_updates({"z": (0.0, 99.0)})[0]
    )  # of models that nobody else was measured with
    assert (waiting.assignment, waiting.round) == (state.assignment, state.round + 1)
    assert CLOVE.distribute(waiting, "z").slots == ("measured-0-0", "measured-0-1")
    joined = CLOVE.join(waiting, make_loss_updates({"z": (2.6, 2.4)})[0])  # nearest to (2.9, 1.1)
    assert joined.assignment == {**state.assignment, "z": 1} and joined.bank is state.bank
    assert CLOVE.distribute(joined, "z") == Download(("cluster-1",))


def test_the_site_sends_a_mean_loss_for_each_model_in_their_order_and_trains_nothing():
    """On label 0: log 2 with (0, 0), and log(1 + exp(-2)) with (1, -1)."""
    sent = Download(("cluster-1",), (coin(1, -1),), {"loss": True})
    sent = replace(sent, slots=("cluster-1", "cluster-0"), models=(coin(1, -1), coin(0, 0)))
    answer = CLOVE.local_update(make_coin_learner([0]), sent)
    assert answer.diffs == {}
    np.testing.assert_allclose(answer.arrays["loss"], [np.log(2), np.log1p(np.exp(-2))], rtol=1e-6)
    assert CLOVE.serve(make_coin_learner([0]), sent).vector.tolist() == [1, -1]
    both = (coin(0, 0), coin(1, -1))
    unplaced = Download(("cluster-0", "cluster-1"), both, {"loss": False})
    assert CLOVE.serve(make_coin_learner([0]), unplaced).vector.tolist() == [1, -1]
    assert CLOVE.serve(make_coin_learner([1]), unplaced).vector.tolist() == [0, 0]
    assert CLOVE.local_update(make_coin_learner([0]), Download(("cluster-0",), (coin(0, 0),))).diffs.keys() == {
        "cluster-0"
    }


def test_under_a_floor_no_cluster_is_too_small():
    """Without it, c would be alone; with two sites a cluster there is room for one."""
    names = {name: f"site-{name}" for name in LOSSES}
    state = replace(CLOVE.start(initial), census=Census(Floor(2, 1), names, SAMPLES))
    assert len({*CLOVE.assign(state, make_loss_updates()).values()}) == 1


@pytest.mark.parametrize("row", [(np.nan, 1.0), (np.inf, 1.0), (1e12, 1.0), (1.0,), (1.0, 1.0, 1.0)])
def test_hostile_losses_are_refused(row):
    state = CLOVE.start(initial)
    answer = Update("a", 3, arrays={"loss": np.array(row)})
    with pytest.raises(PayloadError, match="'loss'"):
        check_update(answer, CLOVE.distribute(state, "a"), state, "clove")


def test_refusals_of_clove():
    with pytest.raises(ConfigError, match="stable = 1 should be >= 2 or None"):
        CLoVE(k=2, stable=1)
    with pytest.raises(ConfigError, match="setting 'k' is missing"):
        build_method({"method": "clove"})


def test_rounds_alternate_and_a_sample_trains_that_was_measured():
    played = play_rounds(CLoVE(k=2, stable=None), 4, sample=4)
    measured, trains = played[0], played[1]
    assert measured.record["trained"] == trains.record["trained"]
    assert all(answer.update is None or not answer.update.diffs for answer in measured.answers.values())
    assert all(a.update.diffs for n, a in trains.answers.items() if a.update is not None and n in measured.after.arrays)
