# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError
from cfl_flare.methods import (
    CAM,
    IFCA,
    Contrastive,
    Download,
    Ensemble,
    FedAvg,
    FedProx,
    FeSEM,
    Finetune,
    Local,
    Proximal,
    WeCFL,
    build_method,
)
from cfl_flare.training.ensemble import Served
from tests.helpers.play import assert_same_bank, list_answered_slots, list_sent_slots, play_rounds
from tests.helpers.resumed import run_until
from tests.helpers.tiny import coin, initial, make_coin_learner

KEPT = {"momentum": 0.9, "keep_momentum": True}


def metrics(played, name):
    """What the participants measured of the last models."""
    return {n: a.metrics[name] for n, a in played[-1].answers.items()}


def test_one_fedavg_is_fedavg():
    plus, plain = play_rounds(Ensemble(parts=(FedAvg(),)), 2, **KEPT), play_rounds(FedAvg(), 2, streams="0.", **KEPT)
    assert_same_bank(plus[-1].after.bank, plain[-1].after.bank, "0.")
    assert metrics(plus, "served_loss") == pytest.approx(metrics(plain, "served_loss"), rel=1e-6)
    assert metrics(plus, "served_accuracy") == metrics(plain, "served_accuracy")


@pytest.mark.parametrize("part", [FedAvg(), FedProx(mu=0.5)], ids=lambda m: m.name)
def test_each_part_is_the_method_run_alone_from_that_seed(part):
    plus = play_rounds(Ensemble(parts=(part,) * 3), 3, **KEPT)
    assert list_sent_slots(plus[0]) == list_answered_slots(plus[0]) == {("0.global", "1.global", "2.global")}
    assert all(names == {"0.momentum", "1.momentum", "2.momentum"} for names in plus[-1].memory.values())
    for seed in range(3):
        alone = play_rounds(part, 3, first=seed, streams=f"{seed}.", **KEPT)
        assert_same_bank(plus[-1].after.bank, alone[-1].after.bank, f"{seed}.")
    assert plus[-1].after.assignment == {}
    assert not np.array_equal(plus[-1].after.bank["0.global"].vector, plus[-1].after.bank["1.global"].vector)


def test_no_two_parts_see_the_same_batches():
    """From one model, two parts with the same batches would end at the same one."""
    work = make_coin_learner([1, 0, 0, 0, 1, 1], steps=6, batch_size=1)
    method, start = Ensemble(parts=(FedAvg(), FedAvg())), coin(0, 0)
    diffs = method.local_update(work, Download(("0.global", "1.global"), (start, start))).diffs
    assert not np.array_equal(diffs["0.global"].vector, diffs["1.global"].vector)
    again = method.local_update(work, Download(("0.global", "1.global"), (start, start))).diffs
    for slot, diff in diffs.items():
        np.testing.assert_array_equal(diff.vector, again[slot].vector)


@pytest.mark.parametrize("clustered", [IFCA(k=2), FeSEM(k=2), WeCFL(k=2)], ids=lambda m: m.name)
def test_a_method_that_clusters_does_not_know_of_the_one_beside_it(clustered):
    both = play_rounds(Ensemble(parts=(FedAvg(), clustered), vote="logits"), 3, **KEPT)
    fedavg = play_rounds(FedAvg(), 3, streams="0.", **KEPT)
    alone = play_rounds(clustered, 3, first=1, streams="1.", **KEPT)
    for one, plain, own in zip(both, fedavg, alone):
        assert_same_bank(one.after.bank, plain.after.bank, "0.")
        assert_same_bank(one.after.bank, own.after.bank, "1.")
        assert one.after.assignment == own.after.assignment
        assert one.after.extras == {"0": {}, "1": own.after.extras}
        keys = own.record.keys() & {"objective", "clusterability", "inter_cosine", "empty_clusters", "ari", "moved"}
        assert {k: one.record[k] for k in keys} == {k: own.record[k] for k in keys}
    assert both[1].record["objective"] is not None
    assert both[1].record["bytes_down"] == fedavg[1].record["bytes_down"] + alone[1].record["bytes_down"]


def test_penalties_of_a_part_are_its_own():
    held = WeCFL(k=2, penalties=(Contrastive(mu=2.0),))
    both, alone = play_rounds(Ensemble(parts=(FedAvg(), held)), 3), play_rounds(held, 3, first=1, streams="1.")
    assert_same_bank(both[-1].after.bank, alone[-1].after.bank, "1.")
    assert_same_bank(both[-1].after.bank, play_rounds(FedAvg(), 3, streams="0.")[-1].after.bank, "0.")


def test_sampled_rounds_are_those_of_the_parts_alone():
    both = play_rounds(Ensemble(parts=(FedAvg(), WeCFL(k=2))), 3, sample=3)
    alone = play_rounds(WeCFL(k=2), 3, first=1, streams="1.", sample=3)
    assert_same_bank(both[-1].after.bank, alone[-1].after.bank, "1.")


MODELS = (coin(2, 0), coin(0, 1))


@pytest.mark.parametrize("vote", ["probabilities", "logits"])
def test_votes(vote):
    """On labels 0, 1: soft voting takes the mean of the softmax outputs, the sum that of the added logits."""
    method = Ensemble(parts=(FedAvg(), FedAvg()), vote=vote)
    work = make_coin_learner([0, 1])
    served = method.build_predictor(work, Download(("0.global", "1.global"), MODELS, {"0": {}, "1": {}}))
    assert served == Served(MODELS, vote)
    p = np.mean([1 / (1 + np.exp(-2)), 1 / (1 + np.exp(1))]) if vote == "probabilities" else 1 / (1 + np.exp(-1))
    measured = work.evaluate(served)
    assert measured["loss"] == pytest.approx(-(np.log(p) + np.log(1 - p)) / 2, rel=1e-5)
    assert measured["accuracy"] == 0.5


def test_what_the_parts_trained_is_measured_together():
    played = play_rounds(Ensemble(parts=(FedAvg(), IFCA(k=2))), 2, trained=True)
    assert all(0 <= a.metrics["trained_accuracy"] <= 1 for a in played[0].answers.values())
    work = make_coin_learner([0])
    Ensemble(parts=(FedAvg(), FedAvg())).local_update(
        work, Download(("0.global", "1.global"), (coin(0, 0), coin(1, 1)))
    )
    assert isinstance(work.trained, Served)
    np.testing.assert_allclose([m.vector for m in work.trained.models], [[0.5, -0.5], [1.5, 0.5]])
    assert work.trained.vote == "probabilities"


def test_finetuning_tunes_each_part_by_itself_with_its_own_momentum():
    """Thesis sec. 7.4.4: FedAvg-Finetune+IFCA-Finetune."""
    one = play_rounds(Ensemble(parts=(FedAvg(),), finetune=True), 2, **KEPT)
    alone = play_rounds(Finetune(), 2, streams="0.", **KEPT)
    assert metrics(one, "served_loss") == pytest.approx(metrics(alone, "served_loss"), rel=1e-6)
    work = make_coin_learner([0])
    served = Ensemble(parts=(FedAvg(), FedAvg()), finetune=True).build_predictor(
        work, Download(("0.global", "1.global"), (coin(0, 0), coin(1, 1)))
    )
    np.testing.assert_allclose([m.vector for m in served.models], [[0.5, -0.5], [1.5, 0.5]])
    assert served.vote == "probabilities"


def test_local_models_have_seeds_and_memories_of_their_own():
    played = play_rounds(Ensemble(parts=(Local(), Local())), 2)
    assert all(names == {"0.model", "1.model"} for names in played[-1].memory.values())
    both, alone = metrics(played, "served_loss"), metrics(play_rounds(Local(), 2), "served_loss")
    assert all(both[name] != alone[name] for name in both)
    assert played[-1].after.bank == {}


def test_models_that_never_left_the_participants_leave_no_ensemble(tmp_path):
    server = run_until(Ensemble(parts=(FedAvg(), Local())), tmp_path)
    assert list((tmp_path / "clusters").iterdir()) == []
    assert set(server.state.bank) == {"0.global"}


def test_whole_models_are_one_ensemble_or_one_a_cluster():
    plus = Ensemble(parts=(FedAvg(), FedAvg()))
    state = plus.start(initial)
    assert {slot: [m.vector.tolist() for m in s.models] for slot, s in plus.list_models(state, None).items()} == {
        "global": [[0, 0], [1, -1]]
    }
    beside = Ensemble(parts=(IFCA(k=2), FedAvg()), vote="logits")
    found = beside.list_models(beside.start(initial), None)
    assert {slot: [m.vector.tolist() for m in served.models] for slot, served in found.items()} == {
        "cluster-0": [[0, 0], [2, -2]],
        "cluster-1": [[1, -1], [2, -2]],
    }
    assert {served.vote for served in found.values()} == {"logits"}


def test_needs_and_model_are_those_of_the_most_demanding_part():
    method = Ensemble(parts=(FedAvg(), WeCFL(k=5)))
    assert method.plan(method.start(initial)).fewest == 5
    with pytest.raises(ConfigError, match="k = 7 clusters need as many participants"):
        play_rounds(Ensemble(parts=(FedAvg(), WeCFL(k=7))), 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": ()}, r"parts = \(\) should name a method"),
        ({"parts": (IFCA(k=2), WeCFL(k=2))}, r"parts = \['ifca', 'wecfl'\] all cluster; take one of them"),
        ({"parts": (FedAvg(), "ifca")}, "parts should be methods"),
        ({"parts": (FedAvg(), None)}, "parts should be methods"),
        ({"parts": 3}, "'int' object is not iterable"),
        ({"parts": (FedAvg(), CAM(base=IFCA(k=2)))}, r"parts = \['ifca-cam'\] predict with several models"),
        ({"parts": (Ensemble(parts=(FedAvg(),)),)}, r"parts = \['fedavg\+'\] predict with several models"),
        ({"vote": "majority"}, "vote = 'majority' should be 'logits' or 'probabilities'"),
        ({"penalties": (Proximal(),)}, "belong to the methods inside it"),
        ({"weighting": "uniform"}, "weighting belongs to the methods in it"),
        ({"parts": (FedAvg(), Finetune())}, "finetune belongs to the whole"),
        ({"k": 2}, "unknown setting 'k'"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "ensemble", "parts": (FedAvg(),), **settings})
