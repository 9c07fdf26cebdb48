# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout, Params
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import (
    Ditto,
    Download,
    FedAvg,
    FedBABU,
    FedPer,
    Local,
    Method,
    Proximal,
    Update,
    build_method,
)
from cfl_flare.models import MLP, Logistic
from cfl_flare.results.served import load_model
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.runtime import Runtime
from cfl_flare.training.runtime import Split as Samples
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.play import assert_same_bank, list_answered_slots, list_sent_slots, play_rounds, streams_of
from tests.helpers.tiny import coin, make_learner, update
from tests.helpers.tiny import make_coin_learner as coin_learner
from tests.methods.test_ifca_wecfl import SPLIT, Split, make_split_model

G = 1 / (1 + np.exp(2.0))  # 1 - p0 of the logits (1, -1)


def make_split_learner(memory: dict[str, Params] | None = None, steps: int = 1, seed: int = 0, **more) -> Learner:
    """A participant with one sample, x = 1 of label 0, and Split's three weights."""
    samples = Samples.of(np.ones((1, 1), np.float32), np.array([0]))
    return make_learner(Split, samples, memory, seed, **{"lr": 1.0, "momentum": 0.0, "local_steps": steps, **more})


def backbone(value: float) -> Params:
    return make_split_model(value, 0, 0).take(SPLIT.backbone)


def make_split_head(a: float, b: float) -> Params:
    return make_split_model(0, a, b).take(SPLIT.head)


def run_personal_loop(
    method: Method, participants: int = 4, rounds: int = 3, folder=None, partition="label_permutation", **more
):
    """A run on digits, and each round's loss of each participant."""
    losses = []
    server = run_loop(
        method=method,
        model=MLP((1, 8, 8), 10, hidden=(8,)),
        source=Digits(),
        data=DataConfig(participants, {"partition": partition, **({} if partition == "iid" else {"groups": 2})}),
        settings=ServerSettings(rounds, seed=more.pop("seed", 3)),
        training=TrainSettings(**{"lr": 0.1, "local_steps": 3, "keep_momentum": True, **more}),
        on_round=lambda measured: losses.append({n: m["served_loss"] for n, m in measured.participants.items()}),
        folder=folder,
    )
    return server, losses


def test_fedper_trains_the_global_backbone_and_its_own_head_and_keeps_the_head():
    """Logits (1, -1) on label 0: their gradient is (-g, g), the backbone's -g * 1 + g * -1, the head's that times 1."""
    work = make_split_learner({"head": make_split_head(1, -1)})
    done = FedPer().local_update(work, Download(("backbone",), (backbone(1),)))
    assert done.diffs.keys() == {"backbone"}
    np.testing.assert_allclose(done.diffs["backbone"].vector, [2 * G], rtol=1e-5)
    np.testing.assert_allclose(work.memory["head"].vector, [1 + G, -1 - G], rtol=1e-5)
    assert work.trained.layout == SPLIT


def test_fedper_s_first_head_is_that_of_the_seed_and_it_predicts_with_its_own():
    work = make_split_learner()
    start = work.initial(0)
    download = Download(("backbone",), (backbone(5),))
    np.testing.assert_array_equal(FedPer().serve(work, download).vector, [5, *start.vector[1:]])
    FedPer().local_update(work, download)
    served = FedPer().serve(work, download)
    np.testing.assert_array_equal(served.vector, [5, *work.memory["head"].vector])
    assert not np.array_equal(served.vector[1:], start.vector[1:])


def test_fedbabu_trains_the_backbone_under_the_seed_s_head():
    work = make_split_learner(steps=2, momentum=0.9, weight_decay=0.1, keep_momentum=True)
    a, b = work.initial(0).vector[1:]
    done = FedBABU().local_update(work, Download(("backbone",), (backbone(1),)))
    value, speed = 1.0, 0.0
    for _ in range(2):
        g = 1 / (1 + np.exp((a - b) * value))
        speed = 0.9 * speed + (-g * a + g * b + 0.1 * value)
        value -= speed
    np.testing.assert_allclose(done.diffs["backbone"].vector, [value - 1], rtol=1e-4)
    np.testing.assert_array_equal(work.trained.vector[1:], [a, b])
    np.testing.assert_array_equal(work.memory["momentum"].vector[1:], [0, 0])
    assert work.memory.keys() == {"momentum"}


def test_fedbabu_fine_tunes_the_whole_model_before_it_predicts():
    work = make_split_learner()
    download = Download(("backbone",), (backbone(1),))
    (tuned,) = Served.of(FedBABU().build_predictor(work, download)).models
    np.testing.assert_array_equal(tuned.vector, work.train(FedBABU().serve(work, download), purpose="finetune").vector)
    assert not np.array_equal(tuned.vector[1:], work.initial(0).vector[1:])
    plain = FedBABU(finetune=False)
    np.testing.assert_array_equal(plain.build_predictor(work, download).vector, [1, *work.initial(0).vector[1:]])
    assert (FedBABU().label, plain.label) == ("fedbabu", "fedbabu-initial")


@pytest.mark.parametrize("method", [FedPer(), FedBABU()], ids=lambda m: m.name)
def test_server_averages_backbones_and_leaves_the_head(method):
    state = method.start(lambda i: make_split_model(1, 2, 3))
    updates = [Update("a", 3, {"backbone": backbone(1)}), Update("b", 1, {"backbone": backbone(5)})]
    for order in (updates, updates[::-1]):
        after = method.aggregate(state, order, {})
        np.testing.assert_array_equal(after.bank["backbone"].vector, [3])  # 1 + (3*1 + 1*5)/4
        np.testing.assert_array_equal(after.bank["head"].vector, [2, 3])
        whole = method.list_models(after, SPLIT)
        np.testing.assert_array_equal(whole["global"].models[0].vector, [3, 2, 3])
    equal = type(method)(weighting="uniform").aggregate(state, updates, {})
    np.testing.assert_array_equal(equal.bank["backbone"].vector, [4])


@pytest.mark.parametrize("method", [FedPer(), FedBABU()], ids=lambda m: m.name)
def test_only_backbones_travel(method):
    rounds = play_rounds(method, 2)
    size = 4 * (64 * 8 + 8)
    for one in rounds[:2]:
        assert list_sent_slots(one) == list_answered_slots(one) == {("backbone",)}
        assert {a.update.diffs["backbone"].layout.nbytes for a in one.answers.values()} == {size}
    assert (rounds[0].record["bytes_down"], rounds[0].record["bytes_up"]) == (size, 6 * size)
    remembered = {"head"} if method.name == "fedper" else set()
    assert all(memory == remembered for memory in rounds[1].memory.values())


def test_fedper_of_one_participant_is_local_training():
    _, alone = run_personal_loop(Local(), 1, partition="iid")
    _, losses = run_personal_loop(FedPer(), 1, partition="iid")
    assert [one.keys() for one in losses] == [one.keys() for one in alone]
    for one, other in zip(losses, alone):
        np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-5)


def test_a_penalty_holds_fedper_s_whole_model_near_where_it_started():
    """The second step from (1 + 2g, 1 + g, -1 - g) is pulled back by mu * (2g, g, -g)."""
    download = Download(("backbone",), (backbone(1),))
    start = make_split_model(1, 1, -1)
    one, plain, held = (make_split_learner({"head": make_split_head(1, -1)}, steps=n) for n in (1, 2, 2))
    FedPer().local_update(one, download)
    FedPer().local_update(plain, download)
    FedPer(penalties=[Proximal(mu=0.4)]).local_update(held, download)
    pulled = plain.trained.vector - 0.4 * (one.trained.vector - start.vector)
    np.testing.assert_allclose(held.trained.vector, pulled, rtol=1e-5)


def test_ditto_moves_the_global_model_like_fedavg_and_its_own_by_the_pull_as_well():
    """From v = (1, 0) with w = (0, 0) sent, on label 0: the gradient is (p0 - 1, 1 - p0), the pull lambda * (1, 0)."""
    download = Download(("global",), (coin(0, 0),))
    work = coin_learner([0], memory={"personal": coin(1, 0)})
    done = Ditto(lam=0.5).local_update(work, download)
    np.testing.assert_allclose(done.diffs["global"].vector, [0.5, -0.5])
    p0 = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(work.memory["personal"].vector, [1 + (1 - p0) - 0.5, p0 - 1], rtol=1e-6)
    (served,) = Served.of(Ditto().serve(work, download)).models
    np.testing.assert_array_equal(served.vector, work.memory["personal"].vector)
    assert work.trained is work.memory["personal"]


def test_ditto_serves_the_global_model_to_those_who_have_none_of_their_own():
    served = Ditto().serve(coin_learner([0]), Download(("global",), (coin(3, 4),)))
    np.testing.assert_array_equal(served.vector, [3, 4])


def test_ditto_without_its_pull_is_fedavg_and_local_training_side_by_side():
    fedavg, _ = run_personal_loop(FedAvg())
    with streams_of("personal."):
        _, alone = run_personal_loop(Local())
    ditto, losses = run_personal_loop(Ditto(lam=0.0))
    assert_same_bank(ditto.state.bank, fedavg.state.bank)
    assert losses == alone
    pulled, closer = run_personal_loop(Ditto(lam=1.0))
    assert_same_bank(pulled.state.bank, fedavg.state.bank)
    assert closer != alone


def test_ditto_s_server_step_is_fedavg_s():
    method = Ditto()
    after = method.aggregate(
        method.start(lambda i: coin(0, 0)), [update("a", 3, "global", 1, 0), update("b", 1, "global", 5, 4)], {}
    )
    np.testing.assert_array_equal(after.bank["global"].vector, [2, 1])


def test_ditto_fine_tunes_its_own_model_and_forgets_it():
    work = coin_learner([0], memory={"personal": coin(0, 0)})
    (tuned,) = Served.of(Ditto(finetune=True).build_predictor(work, Download(("global",), (coin(9, 9),)))).models
    np.testing.assert_allclose(tuned.vector, [0.5, -0.5])
    np.testing.assert_array_equal(work.memory["personal"].vector, [0, 0])


@pytest.mark.parametrize("method", [FedPer(), FedBABU(), Ditto()], ids=lambda m: m.name)
def test_what_a_run_leaves_can_be_loaded(tmp_path, method):
    server, losses = run_personal_loop(method, folder=tmp_path)
    model = load_model(tmp_path, participant=None if method.name != "fedper" else "p0")
    bank = server.state.bank
    kept = bank["backbone"] if "backbone" in bank else bank["global"].take(bank["global"].layout.backbone)
    weight = kept.arrays()["body.1.weight"]
    np.testing.assert_array_equal(model.body[1].weight.detach().numpy(), weight)
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    assert losses[-1] != losses[0]


def test_fedbabu_s_head_is_the_seed_s_for_ever(tmp_path):
    one, two = (run_personal_loop(FedBABU(), rounds=n, weight_decay=0.01)[0] for n in (1, 3))
    np.testing.assert_array_equal(one.state.bank["head"].vector, two.state.bank["head"].vector)
    other = run_personal_loop(FedBABU(), rounds=1, seed=4)[0]
    assert not np.array_equal(one.state.bank["head"].vector, other.state.bank["head"].vector)
    site_side = Runtime(lambda: MLP((1, 8, 8), 10, hidden=(8,)), TrainSettings(), 3).initial(0)
    np.testing.assert_array_equal(one.state.bank["head"].vector, site_side.take(site_side.layout.head).vector)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"method": "ditto", "lam": -1.0}, "method ditto: lam = -1.0 should be >= 0"),
        ({"method": "ditto", "lam": float("inf")}, "lam = inf should be >= 0"),
        ({"method": "ditto", "lam": "much"}, "lam = 'much' should be float"),
        ({"method": "fedper", "lam": 1.0}, "unknown setting 'lam'"),
        ({"method": "fedper", "penalties": [{"penalty": "contrastive"}]}, "needs a method with clusters"),
        ({"method": "fedper", "penalties": [{"penalty": "proximal", "scope": "head"}]}, "a head that does not travel"),
        ({"method": "fedbabu", "penalties": [{"penalty": "proximal", "scope": "head"}]}, "take scope = 'backbone'"),
    ],
)
def test_refusals(spec, message):
    with pytest.raises(ConfigError, match=message):
        build_method(spec)


@pytest.mark.parametrize("method", [FedPer(), FedBABU()], ids=lambda m: m.name)
def test_a_model_without_a_backbone_is_refused(method):
    with pytest.raises(ConfigError, match=f"method {method.name}: only the backbone travels, but .* take fedavg"):
        method.check(Layout.of(Logistic((1, 8, 8), 10)))
    method.check(SPLIT)
    Ditto().check(Layout.of(Logistic((1, 8, 8), 10)))
