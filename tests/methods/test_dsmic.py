# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedDSMIC and FedDS: by hand on the Coin, whose logits on x = 1 are its weights, and in whole runs on digits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, Digits, Samples
from cfl_flare.engine.indicator import Logits, logits_for, samples_to_set_aside
from cfl_flare.engine.server import Equipment, Server, ServerSettings
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.methods import (
    CAM,
    Download,
    Ensemble,
    FedAvg,
    FedDS,
    FedDSMIC,
    KnowledgeSharing,
    Participant,
    PerFedAvg,
    ServerState,
    build_method,
)
from cfl_flare.models import MLP
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.play import streams_of
from tests.helpers.tiny import LAYOUT, Coin, coin, initial, make_coin_learner, rounds, step_method, update

ONES = Samples(np.ones((4, 1), np.float32), np.array([0, 0, 1, 1]))
PREDICT = Logits(Coin, ONES)
MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [8]}}
DATA = DataConfig(6, {"partition": "label_permutation", "groups": 2}, indicator_samples=10)
NAMES = [f"p{i}" for i in range(7)]


def make_dsmic_state(*centres: tuple[float, float]) -> ServerState:
    bank = {f"cluster-{k}": coin(*c) for k, c in enumerate(centres)}
    return ServerState({**bank, "newcomer": coin(0, 0)}, logits=PREDICT)


def run_dsmic_loop(method, count=3, data=DATA, lr=0.1, steps=3, **more):
    settings = {k: more.pop(k) for k in ("folder", "checkpoints", "on_round", "checkpoint_every") if k in more}
    training = TrainSettings(lr=lr, local_steps=steps)
    run = {"method": method, "model": MODEL, "source": Digits(), "data": data, "training": training}
    return run_loop(**run, settings=ServerSettings(count, **more), **settings)


def kl(one, other):
    """By the definition, of two Coins, on four equal samples."""
    p, q = (np.exp(v) / np.exp(v).sum() for v in (np.array(one, float), np.array(other, float)))
    return 4 * (p * np.log(p / q)).sum()


def test_assignment_by_hand():
    centres = [(0.0, 0.0), (4.0, -4.0), (-1.0, 1.0)]
    state, method = make_dsmic_state(*centres), FedDS(k=3)
    models = {"a": (0.4, -0.4), "b": (3.5, -3.5), "c": (-2.0, 2.0)}
    assert [np.argmin([kl(m, c) for c in centres]) for m in models.values()] == [0, 1, 2]
    diffs = [update(n, 1, "cluster-1", m[0] - 4, m[1] + 4) for n, m in models.items()]
    assert method.assign(state, diffs) == {"a": 0, "b": 1, "c": 2}
    shifted = update("d", 1, "cluster-0", 7.5, 0.5)  # the same predictions as (3.5, -3.5), far off in its weights
    assert method.assign(state, [shifted]) == {"d": 1}


def test_the_divergence_is_weighed_by_the_participant_s_predictions():
    one, centres = (0.5, -0.5), [(2.0, -2.0), (-0.3, 0.3)]
    forward, backward = [kl(one, c) for c in centres], [kl(c, one) for c in centres]
    assert (np.argmin(forward), np.argmin(backward)) == (1, 0)
    assert FedDS(k=2).assign(make_dsmic_state(*centres), [update("a", 1, "newcomer", *one)]) == {"a": 1}


def test_ties_go_to_the_lowest_cluster():
    assert FedDS(k=3).assign(make_dsmic_state((3, 3), (1, 1), (2, 2)), [update("a", 1, "cluster-2", 0, 0)]) == {"a": 0}


def test_they_are_compared_with_the_centres_that_were_sent():
    """Both participants of centre 0 end at centre 1; after the average nobody would know centre 0 again."""
    method, state = FedDS(k=2), make_dsmic_state((0, 0), (3, -3))
    updates = [update("a", 1, "cluster-0", 3, -3), update("b", 3, "cluster-0", 5, -5)]
    assignment = method.assign(state, updates)
    after = method.aggregate(state, updates, assignment)
    assert assignment == after.assignment == {"a": 1, "b": 1}
    np.testing.assert_array_equal(after.bank["cluster-1"].vector, [4.5, -4.5])  # (1*3 + 3*5) / 4
    np.testing.assert_array_equal(after.bank["cluster-0"].vector, [0, 0])  # empty: it keeps its model
    assert after.logits is None
    assert after.round == 1


def test_starts_from_c_seeds_with_the_participants_spread_evenly():
    method = FedDS(k=3)
    state = method.start(initial, NAMES)
    assert {s: m.vector.tolist() for s, m in state.bank.items()} == {
        "cluster-0": [0, 0], "cluster-1": [1, -1], "cluster-2": [2, -2], "newcomer": [3, -3]
    }  # fmt: skip
    sent = {name: method.distribute(state, name).slots for name in NAMES}
    counts = [list(sent.values()).count((f"cluster-{k}",)) for k in range(3)]
    assert sorted(counts) == [2, 2, 3]
    assert state.assignment == {}
    assert method.start(initial, NAMES[::-1]).extras == state.extras  # whatever their order
    assert FedDS(k=3, seed=1).start(initial, NAMES).extras != state.extras
    assert list(method.list_models(state, LAYOUT)) == ["cluster-0", "cluster-1", "cluster-2"]


def test_a_newcomer_trains_alone_tells_its_cluster_and_then_joins_it():
    method = FedDS(k=2)
    state = method.start(initial, NAMES).after({"cluster-0": coin(-3, 3), "cluster-1": coin(3, -3)})
    assert method.distribute(state, "new").slots == ("newcomer",)
    assert method.distribute(state, "new").list_expected(None) == ("newcomer",)
    updates = [update("new", 9, "newcomer", 0, 0), update("p0", 1, "cluster-0", 6, -5)]  # (2, -2) and (3, -2)
    assignment = method.assign(replace(state, logits=PREDICT), updates)
    after = method.aggregate(state, updates, assignment)
    assert assignment == {"new": 1, "p0": 1}
    np.testing.assert_array_equal(after.bank["cluster-1"].vector, [3, -2])  # p0's alone
    np.testing.assert_array_equal(after.bank["newcomer"].vector, [2, -2])
    assert method.distribute(after, "new").slots == ("cluster-1",)


def test_a_round_of_newcomers_alone_leaves_the_centres():
    method, state = FedDS(k=2, penalties=(KnowledgeSharing(),)), make_dsmic_state((0, 0), (3, -3))
    updates = [update("a", 2, "newcomer", 4, -4)]
    after = step_method(method, state, updates)
    np.testing.assert_array_equal(after.bank["cluster-1"].vector, [3, -3])
    assert after.assignment == {"a": 1}


def test_fedds_trains_by_sgd_and_serves_the_centre():
    download = Download(("cluster-1",), (coin(0, 0),))
    np.testing.assert_allclose(
        FedDS().local_update(make_coin_learner([0]), download).diffs["cluster-1"].vector, [0.5, -0.5]
    )
    assert FedDS().build_predictor(make_coin_learner([0]), download) is download.models[0]


def test_feddsmic_trains_by_maml_and_serves_one_step_from_the_centre():
    download, p0 = Download(("cluster-1",), (coin(0, 0),)), 1 / (1 + np.exp(-1.0))
    sent = FedDSMIC().local_update(make_coin_learner([0]), download)
    np.testing.assert_allclose(sent.diffs["cluster-1"].vector, [1 - p0, p0 - 1], rtol=1e-6)
    np.testing.assert_allclose(FedDSMIC().build_predictor(make_coin_learner([0]), download).vector, [0.5, -0.5])


@pytest.mark.parametrize(("clustered", "plain"), [(FedDS(k=1), FedAvg()), (FedDSMIC(k=1), PerFedAvg())])
def test_one_cluster_is_the_method_with_one_model(clustered, plain):
    one, other = run_dsmic_loop(clustered), run_dsmic_loop(plain)
    np.testing.assert_array_equal(one.state.bank["cluster-0"].vector, other.state.bank["global"].vector)


@pytest.mark.parametrize("method", [FedDS(k=2), FedDSMIC(k=2, personal_steps=2)], ids=lambda m: m.name)
def test_it_finds_groups_that_name_the_same_images_otherwise(method):
    found = run_dsmic_loop(method, 8, lr=0.1, steps=20)
    truth = {name: p.group for name, p in found.participants.items()}
    assert len({(truth[name], c) for name, c in found.state.assignment.items()}) == 2


def test_it_runs_on_groups_of_classes_with_participants_sampled_and_penalties():
    data = DataConfig(6, {"partition": "class_groups", "groups": 3, "alpha": 0.1}, indicator_samples=10, min_samples=4)
    found = run_dsmic_loop(FedDSMIC(k=3, penalties=(KnowledgeSharing(),)), 4, data, sample=4)
    assert set(found.state.assignment.values()) <= {0, 1, 2}
    assert not found.rejected
    assert not any(np.isnan(m.vector).any() for m in found.state.bank.values())


def test_beside_another_method_it_is_what_it_is_alone():
    both = run_dsmic_loop(Ensemble(parts=(FedDS(k=2), FedAvg())))
    with streams_of("0."):
        alone = run_dsmic_loop(FedDS(k=2))
    assert both.state.assignment == alone.state.assignment
    for k in range(2):
        one, other = both.state.bank[f"0.cluster-{k}"], alone.state.bank[f"cluster-{k}"]
        np.testing.assert_array_equal(one.vector, other.vector)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k = 0 should be in .1, 1000."),
        ({"indicator_samples": 0}, "indicator_samples = 0 should be >= 1"),
        ({"indicator_file": 3}, r"indicator_file = 3 should be str \| None"),
        ({"personal_steps": -1}, "personal_steps = -1 should be >= 0"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "feddsmic", **settings})
    with pytest.raises(ConfigError, match="base = 'fedds' compares whole models, not sums; take another"):
        CAM(base=FedDS())


def test_without_indicator_samples_no_run_begins():
    message = "method fedds: compares models on 10 .* but the data's indicator_samples = 4; set it to 10 there, or name"
    with pytest.raises(ConfigError, match=message):
        run_dsmic_loop(FedDS(k=2), data=replace(DATA, indicator_samples=4))
    recipe = {"method": "fedds:k=2", "model": MLP((1, 8, 8), 10), "data": Digits(), "num_rounds": 1, "min_clients": 2}
    with pytest.raises(ConfigError, match=r"the server has no file with them; name one .* indicator_file=samples.npz"):
        ClusteredRecipe(**recipe)
    assert ClusteredRecipe(**{**recipe, "method": "fedds:k=2,indicator_file=a.npz"}).plan.data.indicator_samples == 0
    simulated = {"participants": 4, "partition": "iid"}
    assert ClusteredRecipe(**recipe, **simulated).plan.data.indicator_samples == 10
    assert ClusteredRecipe(**{**recipe, "method": "fedavg"}, **simulated).plan.data.indicator_samples == 0
    with pytest.raises(ConfigError, match="method fedds: the server has no indicator samples"):
        rounds(method=FedDS(k=2))


def test_methods_that_are_compared_share_what_is_left():
    methods = [FedAvg(), FedDS(), FedDSMIC(indicator_samples=20), FedDS(indicator_samples=50, indicator_file="a.npz")]
    assert samples_to_set_aside(methods) == 20
    assert samples_to_set_aside(methods[:1]) == 0
    assert samples_to_set_aside([Ensemble(parts=(FedAvg(), FedDS(indicator_samples=7)))]) == 7


def test_a_server_predicts_on_the_samples_of_its_file(tmp_path):
    digits, _ = Digits().load()
    np.savez(tmp_path / "few.npz", train_images=digits.x[:, 0], train_labels=digits.y)
    method = FedDS(k=2, indicator_file=str(tmp_path / "few.npz"), indicator_samples=5)
    server = run_dsmic_loop(method, 1, replace(DATA, indicator_samples=0))
    predict = logits_for(method, lambda: MLP((1, 8, 8), 10, hidden=[8]), DataConfig(), Digits, 0)
    assert predict is not None
    assert predict([server.state.bank["cluster-0"], server.state.bank["cluster-1"]]).shape == (2, 50, 10)


def test_samples_that_do_not_fit_the_model_are_refused():
    with pytest.raises(DataError, match=r"indicator samples of shape \[1\] do not fit the model"):
        Logits(lambda: torch.nn.Linear(3, 2), ONES)


def test_a_server_keeps_no_predictions_in_its_state():
    method = FedDS(k=2)
    people = [Participant(name, "site", 1) for name in NAMES]
    server = Server(method, LAYOUT, people, ServerSettings(1), method.start(initial, NAMES), Equipment(logits=PREDICT))
    assert server.state.logits is None
    assert set(server.state.extras["start"]) == {p.name for p in people}
