# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace

import numpy as np
import pytest

from cfl_flare.core.arrays import Archive, LatestModels
from cfl_flare.core.errors import ConfigError
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import ServerSettings
from cfl_flare.extensions import present_results
from cfl_flare.methods import CGPFL, Download, Ensemble, FedAC, ServerState, Update
from cfl_flare.methods.fedac_tuning import Clusters, tune
from cfl_flare.methods.wrapper import Clustering
from cfl_flare.results.metrics import measure_round
from cfl_flare.results.store import Store
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.play import MODEL, play_rounds
from tests.helpers.tiny import LAYOUT, coin, initial, step_method
from tests.helpers.tiny import make_coin_learner as coin_learner
from tests.methods.test_ifca_wecfl import SPLIT, make_split_model
from tests.methods.test_personal import G, backbone, make_split_learner


def start_with_archive(method: FedAC) -> ServerState:
    state = method.start(lambda index: make_split_model(0, 0, 0))
    return replace(state, archive=Archive())


def make_split_update(name: str, slot: str, *values: float, samples: int = 1) -> Update:
    return Update(name, samples, {slot: make_split_model(*values)})


def step_with_archive(method: FedAC, state: ServerState, updates: list[Update]) -> ServerState:
    """One round of the server, archive and all."""
    return replace(step_method(method, state, updates), archive=state.archive)


FOUR = [
    make_split_update(n, "global", v, v, 0, samples=s)
    for n, v, s in (("a", 4, 5), ("b", 6, 1), ("c", -4, 2), ("d", -6, 7))
]


def test_a_local_step_goes_on_with_the_own_model_under_both_pulls():
    """Alg. 1, LocalUpdate: cross-entropy's gradient is (-2g, -g, g) at (1, 1, -1); see FedPer's test."""
    method = FedAC(k=2, mu=0.2, lam=0.1)
    work = make_split_learner({"personal": make_split_model(1, 1, -1)})
    centre = make_split_model(0.5, 0, 0)
    done = method.local_update(work, Download(("cluster-1", "phi"), (centre, backbone(3))))
    expected = np.array([1 + 2 * G - 0.2 * 0.5 + 0.1 * 2, 1 + G - 0.2, -1 - G + 0.2])
    np.testing.assert_allclose(work.memory["personal"].vector, expected, rtol=1e-5)
    assert done.diffs.keys() == {"cluster-1"}
    np.testing.assert_allclose(done.diffs["cluster-1"].vector, expected - centre.vector, rtol=1e-5)
    assert method.serve(work, Download(("cluster-1",), (centre,))) is work.memory["personal"]


@pytest.mark.parametrize("similarity", ["lrcos", "l2"])
def test_a_newcomer_goes_where_it_moved_from_the_common_model(similarity: str) -> None:
    """By (1, 0, 0) from (5, 5, 5): towards (9, 6, 5), though (5, 4, 5) is nearer and its own cosine is larger."""
    method = FedAC(k=2, similarity=similarity)
    state = start_with_archive(method)
    centres = {
        "global": make_split_model(5, 5, 5),
        "cluster-0": make_split_model(5, 4, 5),
        "cluster-1": make_split_model(9, 6, 5),
    }
    ended = replace(state, bank={**state.bank, **centres}, assignment={"old": 0}, archive=None)
    newcomer = method.join(ended, make_split_update("new", "global", 1, 0, 0))
    assert newcomer.assignment == {"old": 0, "new": 1}


def test_without_a_cluster_only_the_embedding_pulls():
    method = FedAC(k=2, mu=0.2, lam=0.1)
    work = make_split_learner()
    method.local_update(work, Download(("global", "phi"), (make_split_model(1, 1, -1), backbone(3))))
    expected = [1 + 2 * G + 0.1 * 2, 1 + G, -1 - G]
    np.testing.assert_allclose(work.memory["personal"].vector, expected, rtol=1e-5)


def test_phi_is_a_mean_over_the_round_and_the_centres_are_means_over_all_known_models():
    method = FedAC(k=2, tuning=False)
    state = step_with_archive(method, start_with_archive(method), FOUR)
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert state.bank["cluster-0"].vector.tolist() == [5, 5, 0]
    assert state.bank["phi"].vector.tolist() == [0]
    assert state.bank["global"].vector.tolist() == [0, 0, 0]
    state = step_with_archive(
        method, state, [make_split_update("a", "cluster-0", 3, 3, 2)]
    )  # a's model is now (8, 8, 2), b's still (6, 6, 0)
    assert state.bank["cluster-0"].vector.tolist() == [7, 7, 1]
    assert state.bank["cluster-1"].vector.tolist() == [-5, -5, 0]
    assert state.bank["phi"].vector.tolist() == [8]
    np.testing.assert_allclose(state.bank["global"].vector, [1, 1, 0.5])


def test_the_e_step_moves_those_who_are_not_asked_too():
    """c was asked, and takes its cluster's centre with it past d: d's model is now most like the other centre."""
    method = FedAC(k=2, tuning=False, similarity="l2")
    state = step_with_archive(
        method,
        start_with_archive(method),
        [make_split_update(n, "global", v, 0, 0) for n, v in (("a", 0), ("c", 10), ("d", 7))],
    )
    assert state.assignment == {"a": 0, "c": 1, "d": 1}
    state = step_with_archive(
        method, state, [make_split_update("c", "cluster-1", 31.5, 0, 0)]
    )  # to 40: the centre goes to 23.5
    assert state.assignment == {"a": 0, "c": 1, "d": 1}  # the E-step was by the old centres
    state = step_with_archive(method, state, [make_split_update("c", "cluster-1", 16.5, 0, 0)])
    assert state.assignment == {"a": 0, "c": 1, "d": 0}


def test_the_map_is_fitted_anew_after_so_many_rounds():
    method = FedAC(k=2, tuning=False, map_every=2)
    state, fitted = start_with_archive(method), []
    for number in range(5):
        slot = "global" if not number else "cluster-0"
        state = step_with_archive(
            method,
            state,
            FOUR if not number else [make_split_update("a", slot, 1, 0, 0), make_split_update("b", slot, 0, 1, 0)],
        )
        fitted.append(state.extras["map"])
    assert fitted == [0, 0, 2, 2, 4]


def test_weights_may_be_samples():
    method = FedAC(k=1, weighting="samples", tuning=False)
    state = step_with_archive(
        method,
        start_with_archive(method),
        [make_split_update("a", "global", 1, 0, 0, samples=3), make_split_update("b", "global", 5, 0, 0)],
    )
    assert state.bank["cluster-0"].vector.tolist() == [2, 0, 0]
    assert state.bank["phi"].vector.tolist() == [2]


def clusters(places: dict[int, dict[str, float]]) -> Clusters:
    """Clusters of participants on a line."""
    known = LatestModels(Archive(), LAYOUT, {n: (0, 1) for own in places.values() for n in own})
    for own in places.values():
        for name, place in own.items():
            known.keep(name, coin(place, 0))
    members = {k: list(own) for k, own in places.items()}
    centres = {k: known.mean(names, "uniform", coin(0, 0)) for k, names in members.items()}
    return Clusters(members, centres, max(places) + 1, known, "uniform")


def by_sign(found: Clusters):
    def halves(names):
        middle = found.known.mean(names, "uniform", coin(0, 0)).vector[0]
        low = [n for n in names if found.known.model(n).vector[0] < middle]
        return low, [n for n in names if n not in low]

    return halves


def test_dispersion_by_hand():
    """Centres 1, 6, 11. Distances of centres 25, 100 and 25, 25; inside 1, 0, 4."""
    found = clusters({0: {"a": 0, "b": 2}, 1: {"c": 6}, 2: {"d": 9, "e": 13}})
    assert found.measure_dispersion() == pytest.approx({0: 1 / 62.5, 1: 0, 2: 4 / 62.5})


def test_a_tight_cluster_is_merged_and_a_loose_one_split():
    found = clusters({0: {"a": 0, "b": 2}, 1: {"c": 6}, 2: {"d": 9, "e": 13}})
    assert tune(found, by_sign(found), 0.02, 0.05, []) == [{"cluster": 0, "into": 1}, {"cluster": 2, "new": 3}]
    assert found.members == {1: ["c", "a", "b"], 2: ["d"], 3: ["e"]}
    centres = {k: float(c.vector[0]) for k, c in found.centres.items()}
    assert centres == pytest.approx({1: 8 / 3, 2: 9, 3: 13})
    assert found.ids == 4


def test_a_cluster_of_one_is_neither_merged_nor_split():
    found = clusters({0: {"a": 0}, 1: {"c": 10}, 2: {"d": 20}})  # each has a dispersion of 0
    assert tune(found, by_sign(found), 0.2, 0.8, []) == []
    assert tune(found, by_sign(found), -2, -1, []) == []


def test_a_change_is_not_taken_back_for_a_while():
    places = {0: {"a": 0, "b": 2}, 1: {"c": 6}, 2: {"d": 9, "e": 13}}
    found = clusters(places)
    assert tune(found, by_sign(found), 0.02, 9, [{"round": 0, "cluster": 0, "new": 1}]) == []
    found = clusters(places)
    assert tune(found, by_sign(found), 0, 0.05, [{"round": 0, "cluster": 7, "into": 2}]) == []


@pytest.mark.parametrize(
    ("low", "high", "kept"), [(1 / 200, 1 / 20, True), (1 / 100, 1 / 20, False), (1 / 200, 1 / 40, False)]
)
def test_a_single_cluster_is_split_if_both_halves_are_neither_tight_nor_loose(low, high, kept):
    """Halves (0, 2) and (10, 14): centres 1 and 12, G = 1/121 and 4/121."""
    found = clusters({4: {"a": 0, "b": 2, "c": 10, "d": 14}})
    assert clusters({4: {"a": 0, "b": 2}}).measure_dispersion() == {4: float("inf")}
    assert tune(found, by_sign(found), low, high, []) == ([{"cluster": 4, "new": 5}] if kept else [])
    assert found.members == ({4: ["a", "b"], 5: ["c", "d"]} if kept else {4: ["a", "b", "c", "d"]})
    assert found.ids == (6 if kept else 5)
    assert float(found.centres[4].vector[0]) == (1 if kept else 6.5)


def test_merged_and_new_clusters_in_the_state_and_in_the_record():
    method = FedAC(k=2, low=0.2, high=0.8, cooldown=3)
    state = step_with_archive(method, start_with_archive(method), FOUR)  # G = (2) / 200 each: both far too tight
    assert state.extras["changes"] == [{"round": 0, "cluster": 0, "into": 1}]
    assert set(state.assignment.values()) == {1}
    assert "cluster-0" not in state.bank
    assert method.count_clusters(state) == 2
    record = measure_round({}, {}, {}, state, 2).record
    assert (record["empty_clusters"], record["cluster_sizes"], record["clusters_in_use"]) == ([], [0, 4], 1)
    assert state.notes == {
        "dispersion": {"1": None},
        "changes": [{"round": 0, "cluster": 0, "into": 1}],
    }
    json.dumps(state.extras)
    assert method.distribute(state, "a").slots == ("cluster-1",)
    assert method.distribute(state, "z").slots == ("global",)
    assert method.list_models(state, SPLIT).keys() == {"cluster-1", "global"}
    common = method.select_features(state.bank["global"])
    np.testing.assert_array_equal(Clustering.of(method, state).centre(state, 0), common)  # it has no members


def test_only_those_who_train_are_sent_the_embedding():
    one = play_rounds(FedAC(k=2), 2, sample=3)[1]
    slots = {name: order.slots for name, order in one.orders.items()}
    assert all(("phi" in slots[n]) == order.train for n, order in one.orders.items())
    assert sum("phi" in own for own in slots.values()) == 3


@pytest.mark.parametrize("checkpoint_every", [2, 3])
def test_a_stopped_run_reads_the_models_that_the_undisturbed_one_read(tmp_path, checkpoint_every):
    class Stop(Exception):
        pass

    def run(folder, stop=None):
        def watch(measured):
            if measured.record["round"] == stop:
                raise Stop

        return run_loop(
            method=FedAC(k=2, tuning=False, map_every=4),
            model=MODEL,
            source=Digits(),
            data=DataConfig(8, {"partition": "label_permutation", "groups": 2}),
            settings=ServerSettings(9, sample=3),
            training=TrainSettings(lr=0.1, local_steps=3),
            checkpoints=Store(folder),
            checkpoint_every=checkpoint_every,
            on_round=watch,
        ).state

    whole = run(tmp_path / "whole")
    with pytest.raises(Stop):
        run(tmp_path / "part", stop=6)
    rest = run(tmp_path / "part")
    assert rest.assignment == whole.assignment
    for slot, model in whole.bank.items():
        np.testing.assert_array_equal(model.vector, rest.bank[slot].vector)
    versions = [p.name for p in (tmp_path / "part" / "archive").glob("model*")]
    assert 8 <= len(versions) <= 8 + 3 * 2 * checkpoint_every  # what nobody needs any more is gone


@pytest.mark.parametrize("tuned", [False, True])
def test_groups_are_found_and_personal_models_serve_them(tmp_path, tuned):
    last = []
    run_loop(
        method=FedAC(k=2, tuning=tuned, low=0.01, high=0.9),
        folder=tmp_path,
        model=MODEL,
        source=Digits(),
        data=DataConfig(8, {"partition": "label_permutation", "groups": 2}),
        settings=ServerSettings(8, sample=0.5),
        training=TrainSettings(lr=0.1),
        on_round=lambda measured: last.append(measured.record),
    )
    assert last[-1]["ari"] == 1
    assert last[-1]["served_accuracy"] > 0.7
    assert present_results(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k = 0"),
        ({"k": 2, "mu": -1.0}, "mu = -1.0 should be >= 0"),
        ({"k": 2, "similarity": "cos"}, "similarity = 'cos' should be 'lrcos' or 'l2'"),
        ({"k": 2, "low": 0.8, "high": 0.2}, "low = 0.8 and high = 0.2 should be 0 <= low < high"),
        ({"k": 2, "map_every": 0}, "map_every = 0"),
        ({"k": 2, "cooldown": -1}, "cooldown = -1"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        FedAC(**settings)


def test_it_needs_a_backbone_and_runs_by_itself():
    with pytest.raises(ConfigError, match="method fedac: the backbone is the embedding, but"):
        FedAC(k=2).check(LAYOUT)
    with pytest.raises(ConfigError, match="keep models on the server's disk; run them alone"):
        Ensemble(parts=(FedAC(k=2),))


def test_cgpfl_s_model_is_pulled_to_its_centre():
    """x = 1, one sample of label 0: the gradient at (0, 0) is (-1/2, 1/2)."""
    memory = {"personal": coin(0, 0)}
    method = CGPFL(k=1, lam=0.5)
    done = method.local_update(coin_learner([0], memory=memory), Download(("cluster-0",), (coin(2, 4),)))
    np.testing.assert_allclose(memory["personal"].vector, [0.5 + 0.5 * 2, -0.5 + 0.5 * 4])
    np.testing.assert_allclose(done.diffs["cluster-0"].vector, [1.5 - 2, 1.5 - 4])
    with pytest.raises(ConfigError, match=r"lam = -1\.0 should be >= 0"):
        CGPFL(k=1, lam=-1.0)


def test_cgpfl_clusters_personal_models_by_k_means():
    method = CGPFL(k=2)
    state = method.start(initial)
    trained = (("a", 1, (0, 0)), ("b", 3, (2, 0)), ("c", 5, (9, 0)))
    updates = [Update(name, samples, {"global": coin(*v)}) for name, samples, v in trained]
    state = step_method(method, state, updates)
    assert state.assignment == {"a": 0, "b": 0, "c": 1}
    assert state.bank["cluster-0"].vector.tolist() == [1, 0]
    assert method.distribute(state, "c").slots == ("cluster-1",)
