# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Observers: the best round and early stopping, every model at every participant, test samples by class, membership."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import roc_curve

from cfl_flare.cli import main
from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.config import from_dict
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.data import Digits, Samples
from cfl_flare.engine.early_stopping import EarlyStopping
from cfl_flare.engine.observers import ClassCounts, Membership
from cfl_flare.engine.observers.membership import rates_of
from cfl_flare.engine.observers.observer import Asked, Probe
from cfl_flare.engine.server import Equipment, Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods import FedAvg, Participant, build_method
from cfl_flare.results.ancestry import Ancestor, Ancestry
from cfl_flare.results.gate import why_not
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.run_dir import load_run, read_lines
from cfl_flare.training.ensemble import Served
from cfl_flare.training.membership import ATTACKS, Counts, attacks, counted, halved, mean_likelihood
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import build_from_spec, run_loop
from tests.helpers.needs import needs_extension
from tests.helpers.play import DATA, MODEL, host_people
from tests.helpers.tiny import LAYOUT, initial, update

# ---- Early stopping ----


def run_accuracies(
    folder: Path, accuracies: list[float], metric: str = "accuracy", odd: str = "", **settings
) -> Server:
    """FedAvg whose model moves by (1, 1) a round, and does as well as it is told; b may report one metric more."""
    method = FedAvg()
    people = [Participant("a", "site", 1), Participant("b", "site", 1)]
    described = ServerSettings(**{"num_rounds": len(accuracies), **settings})
    server = Server(
        method, LAYOUT, people, described, method.start(initial), Equipment(recorder=Recorder(folder, {}, {}))
    )
    while True:
        last = server.finished
        for name, order in server.tasks().items():
            found = {f"served_{metric}": accuracies[server.state.round - 1], "served_loss": 1 - accuracies[0]}
            found |= {f"served_{odd}": 100.0 * server.state.round} if odd and name == "b" else {}
            moved = update(name, 1, "global", 1, 1) if order.train else None
            server.accept(Result(name, moved, {"metrics": found if order.evaluate else {}}), "site")
        server.finish_round()
        if last:
            server.close()
            return server


def read_global_head(folder: Path) -> list[float]:
    return list(load_arrays(folder / "clusters" / "global.safetensors")[0]["head.weight"].reshape(-1))


def test_the_best_round_s_models_are_kept_beside_the_last_ones(tmp_path):
    run_accuracies(tmp_path, [0.2, 0.9, 0.5, 0.9])
    summary = load_run(tmp_path).summary
    assert summary["best"] == {"metric": "accuracy", "mode": "max", "round": 1, "value": 0.9}  # of equals the first
    assert summary["stopped"] is None and summary["rounds"] == 4
    assert read_global_head(tmp_path / "best") == [2, 2]  # of round 1, the second one
    assert read_global_head(tmp_path) == [4, 4]
    assert load_arrays(tmp_path / "best" / "clusters" / "global.safetensors")[1]["round"] == 2


def test_smallest_is_best_where_it_is_asked_for_and_no_metric_is_no_best_round(tmp_path):
    run_accuracies(tmp_path / "a", [0.9, 0.2, 0.5], key_metric="served_accuracy", key_metric_mode="min")
    assert load_run(tmp_path / "a").summary["best"]["round"] == 1
    for name in ("", "unheard_of"):
        run_accuracies(tmp_path / f"b{name}", [0.9, 0.2], key_metric=name)
        assert load_run(tmp_path / f"b{name}").summary["best"] is None
        assert not (tmp_path / f"b{name}" / "best").exists()


def test_a_run_ends_early_once_its_condition_holds(tmp_path):
    server = run_accuracies(tmp_path, [0.2, 0.8, 0.7, 0.9, 0.9], stop_cond="accuracy >= 0.8")
    # Round 1 is measured with round 2, which is still finished and measured.
    summary = load_run(tmp_path).summary
    assert summary["stopped"] == "accuracy >= 0.8 in round 1"
    assert (summary["rounds"], summary["final_round"], server.state.round) == (3, 2, 3)
    assert [line["round"] for line in read_lines(tmp_path / "rounds.jsonl")] == [0, 1, 2]
    assert summary["best"]["round"] == 1 and read_global_head(tmp_path / "best") == [2, 2]


def test_a_condition_that_holds_in_the_end_alone_stops_nothing(tmp_path):
    for accuracies in ([0.2, 0.9], [0.2, 0.3, 0.9]):
        run_accuracies(tmp_path, accuracies, stop_cond="accuracy >= 0.8")
        assert load_run(tmp_path).summary["stopped"] is None


def test_patience_counts_rounds_since_the_last_improvement(tmp_path):
    run_accuracies(tmp_path, [0.2, 0.5, 0.5, 0.4, 0.9, 0.9, 0.9], patience=2)
    summary = load_run(tmp_path).summary
    assert summary["stopped"] == "no better accuracy than 0.5 of round 1 in 2 rounds"
    assert summary["rounds"] == 5
    # It waits for the metric of the condition, where there is one: the loss never changes.
    run_accuracies(tmp_path, [0.2, 0.5, 0.6, 0.7, 0.8], patience=2, stop_cond="loss <= 0.1")
    assert "no better loss than 0.8 of round 0" in load_run(tmp_path).summary["stopped"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"stop_cond": "accuracy>=80"}, r"stop_cond = 'accuracy>=80' should be '<metric> <sign> <number>'"),
        ({"stop_cond": "accuracy => 80"}, "should be '<metric>"),
        ({"stop_cond": "accuracy >= high"}, "should be '<metric>"),
        ({"key_metric_mode": "best"}, "key_metric_mode = 'best' should be 'min' or 'max'"),
        ({"key_metric_mode": "min", "stop_cond": "served_accuracy > 0.8"}, "contradicts stop_cond"),
        ({"patience": 0}, "patience = 0 should be >= 1"),
        ({"patience": 3, "key_metric": ""}, "name it as key_metric"),
        ({"patience": 1.5}, "patience = 1.5 should be"),
    ],
)
def test_refusals(settings, says):
    with pytest.raises(ConfigError, match=says):
        from_dict(ServerSettings, {"num_rounds": 3, **settings}, "run")


def test_the_direction_is_that_of_the_condition():
    assert EarlyStopping.of("loss", None, "loss <= 0.2", None).key.mode == "min"
    assert EarlyStopping.of("accuracy", None, "loss <= 0.2", 3).key.mode == "max"
    assert EarlyStopping.of("accuracy", None, "loss <= 0.2", 3).watched.mode == "min"


def test_the_summary_is_plain_json(tmp_path):
    run_accuracies(tmp_path, [0.2, 0.9])
    assert json.loads((tmp_path / "summary.json").read_text())["best"]["value"] == 0.9
    np.testing.assert_allclose(load_run(tmp_path).summary["final"]["served_accuracy"], 0.9)


def test_metrics_that_no_round_has_had():
    stopping = EarlyStopping.of("acuracy", None, "loss <= 0.2", None)
    assert stopping.unknown(None, None) == ["acuracy", "loss"]
    assert stopping.unknown(None, {"round": 0, "value": 1.0}) == ["acuracy"]
    assert EarlyStopping.of("accuracy", None, None, 3).unknown(None, None) == ["accuracy"]
    assert EarlyStopping.of("", None, None, None).unknown(None, None) == []


@pytest.mark.parametrize(
    ("metric", "values", "best", "mode"),
    [
        ("dice", [0.2, 0.9, 0.5], 1, "max"),
        ("r2", [-4.0, -2.5, -3.0], 1, "max"),
        ("val/c-index", [0.6, 0.5, 0.7], 2, "max"),
        ("accuracy", [20.0, 71.5, 55.0], 1, "max"),  # per cent
        ("mae", [30.0, 20.0, 25.0], 1, "min"),
    ],
)
def test_any_metric_in_place_of_accuracy(tmp_path, metric, values, best, mode):
    """Nothing is set: what participants report decides, whatever its scale, and its name says which end is best."""
    run_accuracies(tmp_path, values, metric, odd="iou" if metric != "accuracy" else "")
    found = load_run(tmp_path)
    assert (found.metric.name, found.metric.mode) == (metric, mode)
    assert found.summary["best"] == {"metric": metric, "mode": mode, "round": best, "value": values[best]}
    assert read_global_head(tmp_path / "best") == [best + 1] * 2
    assert found.rounds[best][f"served_worst_{metric}"] == values[best]
    assert found.reported == [metric, "loss"]  # b alone has iou


def test_patience_waits_for_the_metric_that_is_followed(tmp_path):
    run_accuracies(tmp_path, [0.2, 0.5, 0.5, 0.4, 0.9, 0.9], "dice", patience=2)
    assert load_run(tmp_path).summary["stopped"] == "no better dice than 0.5 of round 1 in 2 rounds"


def test_a_condition_s_metric_is_followed_where_there_is_no_accuracy(tmp_path):
    run_accuracies(tmp_path, [3.0, 2.0, 1.0, 1.0], "gap", odd="dice", stop_cond="worst_gap <= 2")
    summary = load_run(tmp_path).summary
    assert summary["stopped"] == "worst_gap <= 2 in round 1"
    assert summary["metric"] == {"name": "gap", "mode": "min"}
    assert summary["best"]["metric"] == "gap" and summary["best"]["value"] == 1.0


def test_a_metric_that_was_asked_for_is_not_replaced_by_another(tmp_path):
    run_accuracies(tmp_path, [0.2, 0.9], "dice", key_metric="dicee")
    summary = load_run(tmp_path).summary
    assert summary["best"] is None and summary["metric"]["name"] == "dice"


def test_the_metric_is_chosen_once(tmp_path):
    """One that all report only later does not take over: its values cannot be compared with those before.

    A round without any metric chooses none.
    """
    method = FedAvg()
    server = Server(method, LAYOUT, [Participant("a", "s", 1)], ServerSettings(3), method.start(initial))
    for found in ({}, {}, {"served_dice": 0.5}, {"served_dice": 0.4, "served_accuracy": 0.9}):
        for name, order in server.tasks().items():
            moved = update(name, 1, "global", 1, 1) if order.train else None
            server.accept(Result(name, moved, {"metrics": found if order.evaluate else {}}), "s")
        server.finish_round()
    assert server.progress.best == {"round": 1, "value": 0.5}


def test_a_condition_may_be_about_the_worst_of_another_metric(tmp_path):
    run_accuracies(tmp_path, [0.2, 0.5, 0.6], stop_cond="worst_loss <= 0.8")  # the loss is 0.8 in all rounds
    found = load_run(tmp_path)
    assert found.summary["stopped"] == "worst_loss <= 0.8 in round 0"
    assert {"served_worst_accuracy", "served_worst_loss"} <= found.rounds[0].keys()


def test_the_name_says_which_end_is_best_unless_the_settings_do():
    assert EarlyStopping.of("val_loss", None, None, None).key.mode == "min"
    assert EarlyStopping.of("cluster-0/worst_mae", None, None, None).key.mode == "min"
    assert EarlyStopping.of("loss", "max", None, None).key.mode == "max"
    assert EarlyStopping.of("accuracy", None, "loss = 0", 3).watched.mode == "min"
    assert EarlyStopping.of("objective", None, None, None).key.mode is None


# ---- Cross-site evaluation ----


def run_cross_site_table(folder: Path, method: str, **settings) -> list[dict[str, str]]:
    run_loop(
        method=build_from_spec(method),
        model=MODEL,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(2, cross_site_evaluation=True, **settings),
        training=TrainSettings(lr=0.1, local_steps=3),
        folder=folder,
    )
    with (folder / "cross_site.csv").open() as f:
        return list(csv.DictReader(f))


@pytest.mark.parametrize(
    ("method", "models"),
    [
        ("fedavg", {"global"}),
        ("wecfl:k=2", {"cluster-0", "cluster-1"}),
        ("ifca:k=2,shared_backbone=True", {"cluster-0", "cluster-1"}),  # put together of parts
        ("ifca-cam:k=2,warmup=1", {"cluster-0", "cluster-1"}),  # two that predict together
        ("fedavg+ifca:k=2", {"cluster-0", "cluster-1"}),
        ("fedper", {"global"}),
    ],
)
def test_every_model_meets_every_participant(tmp_path, method, models):
    lines = run_cross_site_table(tmp_path, method)
    assert {line["model"] for line in lines} == models
    assert len(lines) == 6 * len(models)
    people = {p["name"]: p for p in load_run(tmp_path).summary["participants"]}
    assert {line["participant"] for line in lines} == set(people)
    if "+" in method or method == "fedper":
        return  # what they predict with is theirs alone
    for line in lines:  # the own cluster's model does as it did when it was served
        own = people[line["participant"]]
        if line["model"] in (f"cluster-{own['cluster']}", "global") and not method.startswith("ifca"):
            assert float(line["accuracy"]) == pytest.approx(own["served_accuracy"])
            assert float(line["loss"]) == pytest.approx(own["served_loss"])


def test_the_last_exchange_carries_all_models_and_no_other_does(tmp_path):
    lines = run_cross_site_table(tmp_path / "a", "wecfl:k=2")
    with_it = load_run(tmp_path / "a")
    run_loop(
        method=build_method({"method": "wecfl", "k": 2}),
        model=MODEL,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(2),
        training=TrainSettings(lr=0.1, local_steps=3),
        folder=tmp_path / "b",
    )
    without = load_run(tmp_path / "b")
    assert not (tmp_path / "b" / "cross_site.csv").exists()
    assert with_it.summary["final"]["served_accuracy"] == without.summary["final"]["served_accuracy"]
    assert with_it.summary["bytes_down"] == without.summary["bytes_down"]  # one site, which has both models anyway
    assert {line["site"] for line in lines} == {"local"}


# ---- Samples of each class ----


def answer_counts(labels, task="classification", fewest=1, outputs=3):
    """What a participant with these test labels answers."""
    model = torch.nn.Linear(2, outputs)
    settings = TrainSettings(local_steps=1, task=task)
    site = Site(FedAvg(), lambda: model, settings, 0, fewest_scored=fewest)
    y = np.array(labels)
    samples = Samples(np.zeros((len(y), 2), np.float32), y)
    site.add([replace(host_people()[0], name="a", train=samples, test=samples)])
    learner = site.learner("a", {}, 0)
    return ClassCounts.answer(
        {}, Probe(learner, Served.of(site.runtime.initial(0)), {}, settings, site.sends_counts("a"))
    )


def test_counts_by_hand():
    assert answer_counts([0] * 12 + [2] * 2) == [12, 0, None]
    assert answer_counts([0] * 11 + [1] * 10, "binary", outputs=1) == [11, 10]
    assert answer_counts([[1, 0]] * 10 + [[1, 1]] * 9, "multilabel", outputs=2) == [19, None]
    assert answer_counts(np.array([0.5] * 20, np.float32), "regression", outputs=1) is None


def test_a_small_test_split_sends_none():
    assert answer_counts([0] * 29, fewest=30) is None
    assert answer_counts([0] * 30, fewest=30) == [30, 0, 0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (5, "5 should be its number of test samples by class"),
        ([], r"\[\] should be its number"),
        ("12", "'12' should be its number"),
        ([12, 3], "3 test samples of a class should be 0, None, or a whole number in 10"),
        ([True], "True test samples"),
        ([10.0], "10.0 test samples"),
        ([10**12], "1000000000000 test samples"),
        ([0] * 10_001, "should be its number of test samples by class"),
    ],
)
def test_what_no_honest_participant_sends_is_refused(answer, message):
    asked = Task(("global",), train=False, evaluate=True, questions={"test_classes": {}})
    result = Result("a", answers={"test_classes": answer})
    with pytest.raises(PayloadError, match=message):
        ClassCounts(True).check(answer, Asked(Participant("a", "local", 20), asked, result))


def test_nobody_answers_who_was_not_asked():
    task = Task(("global",), train=False, evaluate=True)
    with pytest.raises(PayloadError, match="a: it was not asked for its test samples of each class"):
        ClassCounts(True).check([10], Asked(Participant("a", "local", 20), task, Result("a")))


@pytest.mark.parametrize("draws", [0, 50])
def test_a_run_with_intervals_says_on_what_they_rest(tmp_path, draws):
    training = TrainSettings(lr=0.1, local_steps=1, bootstrap=draws)
    plan = {"model": MODEL, "source": Digits(), "data": DATA, "settings": ServerSettings(1), "training": training}
    run_loop(method=FedAvg(), folder=tmp_path, **plan)
    summary = load_run(tmp_path).summary
    if not draws:
        assert "test_classes" not in summary
        return
    for person in host_people():
        exact = np.bincount(person.test.y, minlength=10)
        assert summary["test_classes"][person.name] == [n if n == 0 or n >= 10 else None for n in exact]


# ---- Membership attacks, and the gate ----


def test_attacks_are_counted_at_the_lowest_threshold_that_one_per_cent_of_the_others_pass():
    members, others = np.array([5.0, 1.0, 3.0, 3.0]), np.array([2.0, 3.0, 0.0])
    assert counted(members, others) == Counts(1, 4, 0, 3)  # a tie with the threshold does not pass
    many = np.arange(250.0)  # two may pass: 249 and 248
    assert counted(np.array([247.0, 247.5, 300.0]), many) == Counts(2, 3, 2, 250)
    assert counted(np.zeros(4), np.zeros(30)) == Counts(0, 4, 0, 30)  # a model that says the same of everybody


def test_the_threshold_is_that_of_scikit_learn_s_curve():
    rng = np.random.default_rng(0)
    members, others = rng.normal(1, 1, 137).round(1), rng.normal(0, 1, 421).round(1)
    scores, truth = np.concatenate((members, others)), np.repeat([1, 0], (137, 421))
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert counted(members, others).rate == true[false <= 0.01].max() > 0


def test_a_likelihood_is_compared_with_the_mean_of_others():
    logarithms = [np.log([0.5, 0.1]), np.log([0.25, 0.1]), np.log([0.75, 0.4])]
    np.testing.assert_allclose(np.exp(mean_likelihood(logarithms)), [0.5, 0.2])


def attacked(rounds: int, tests: int = 100, classes: int = 200, each: int = 0) -> dict[str, dict[str, Counts]]:
    """Attacks on a model of random labels, by the larger one of its two participants.

    Of 200 classes a test sample's is never learnt, so that nobody is as sure of it as of a training sample's. With
    ``each``, so many samples are of one patient.
    """

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, classes))

    settings, rng = TrainSettings(lr=0.1, local_steps=20, batch_size=20), np.random.default_rng(1)
    site = Site(FedAvg(), network, settings, 0)
    for name, samples in (("a", 60), ("b", 30)):
        splits = (
            Samples(
                rng.normal(size=(n, 20)).astype(np.float32),
                rng.integers(classes, size=n),
                patient=np.arange(n) // each if each else None,
            )
            for n in (samples, tests)
        )
        site.add([replace(host_people()[0], name=name, **dict(zip(("train", "test"), splits)))])
    start = model = site.runtime.initial(0)
    for number in range(rounds):
        trained = np.stack([site.learner(name, {}, number).train(model).vector for name in "ab"])
        model = replace(model, vector=np.average(trained, axis=0, weights=(60, 30)).astype(np.float32))
    return attacks(site.learner("a", {}, rounds), {"untrained": Served.of(start), "trained": Served.of(model)}, 4)


def test_patients_are_attacked_and_not_their_samples():
    """Each has three samples; no shadow model has seen one of a patient whom it has not been given."""
    counts = attacked(20, tests=99, each=3)["trained"]
    assert {(of.members, of.non_members) for of in counts.values()} == {(20, 33)}
    assert all(of.true_positives > 12 and of.false_positives == 0 for of in counts.values()), counts
    site = Site(FedAvg(), lambda: torch.nn.Linear(1, 2), TrainSettings(), 0)
    x, patient = np.zeros((9, 1), np.float32), np.array([5, 5, 5, 2, 2, 8, 8, 8, 8])
    site.add(
        [
            replace(
                host_people()[0],
                name="a",
                **dict.fromkeys(("train", "test"), Samples(x, np.zeros(9, int), patient=patient)),
            )
        ]
    )
    first, halves = halved(site.learner("a", {}, 1), "shadow 0")
    of_halves = [half._train.patient.tolist() for half in halves]
    assert len(first) == 3 and [len({*of}) for of in of_halves] == [1, 2] and sum(map(len, of_halves)) == 9


def test_a_model_that_memorises_is_found_and_an_untrained_one_is_not():
    counts = attacked(rounds=8)
    for attack in ATTACKS:
        assert counts["trained"][attack].rate > 0.75, attack
        assert counts["untrained"][attack].rate < 0.1, attack
        assert counts["trained"][attack].numbers[1:2] + counts["trained"][attack].numbers[3:] == (60, 100)


def asked_of(samples: int = 20) -> Asked:
    question = {"shadow_models": 2, "models": [["cluster-1", ["cluster-1"], "logits", []]]}
    task = Task(("cluster-1",), train=False, evaluate=True, questions={"membership": question})
    return Asked(Participant("a", "local", samples), task, Result("a"))


HONEST = {"loss": [3, 20, 0, 40], "likelihood_ratio": [20, 20, 0, 40]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": {"cluster-0": HONEST}}, "should be counts of cluster-1 alone"),
        ({"models": [HONEST]}, "should be counts of cluster-1 alone"),
        ({"models": {"cluster-1": {"loss": [3, 20, 0, 40]}}}, "should be counts of loss, likelihood_ratio"),
        ({"objects": 1}, "and whether it objects"),
        ({"scores": [0.5]}, "and whether it objects"),
        *(
            ({"models": {"cluster-1": {**HONEST, "loss": numbers}}}, message)
            for numbers, message in (
                ([21, 20, 0, 40], "of at most 20 members, and of others at most 1 %"),
                ([3, 10**9, 0, 40], "of at most 20 members"),  # who says to have many drowns the others' rate
                ([3, 21, 0, 40], "of at most 20 members"),
                ([0, 0, 0, 40], "of at most 20 members"),
                ([3, 20, 1, 99], "of others at most 1 %"),
                ([3, 20, 0, 0], "of others at most 1 %"),
                ([3.0, 20, 0, 40], "should be four whole numbers of loss"),
                ([True, 20, 0, 40], "should be four whole numbers of loss"),
                ([-1, 20, 0, 40], "should be four whole numbers of loss"),
                ([3, 20, 0, 40, 5], "should be four whole numbers of loss"),
                ("3204", "should be four whole numbers of loss"),
                (None, "should be four whole numbers of loss"),
            )
        ),
    ],
)
def test_counts_that_are_not_possible_are_refused(change, message):
    observer, honest = Membership(2), {"models": {"cluster-1": HONEST}, "objects": False}
    assert observer.check(honest, asked_of())["models"]["cluster-1"]["loss"] == Counts(3, 20, 0, 40)
    with pytest.raises(PayloadError, match=message):
        observer.check({**honest, **change}, asked_of())


def test_attacks_that_nobody_asked_for_are_refused():
    nothing = Asked(Participant("a", "local", 20), Task(("global",), train=False, evaluate=True), Result("a"))
    with pytest.raises(PayloadError, match="a: it was not asked to attack models"):
        Membership(2).check({"models": {}, "objects": False}, nothing)


def pool_membership(
    answers: dict[str, tuple[str, Counts, bool]], bound: float | None = 0.5, **settings
) -> dict[str, Any]:
    """What a run's results hold of these answers: by participant its site, both attacks' counts, an objection."""
    observer, facts = Membership(2, bound, 2), dict[str, Any]()
    settings = ServerSettings(1, **settings)
    known = {
        name: {"models": {"cluster-0": dict.fromkeys(ATTACKS, counts)}, "objects_to": ["cluster-0"] * objects}
        for name, (_, counts, objects) in answers.items()
    }
    people_of = {name: Participant(name, site, counts.members) for name, (site, counts, _) in answers.items()}
    of_round = SimpleNamespace(answers=lambda key: {**known, "late": None})
    state = SimpleNamespace(assignment=dict.fromkeys(people_of, 0))
    server = SimpleNamespace(round=of_round, participants=people_of, settings=settings, state=state, recorder=None)
    observer.close(server, facts)
    return facts["membership"]


def test_the_rate_of_a_cluster_is_of_all_its_members_samples():
    facts = pool_membership({"a": ("s", Counts(2, 20, 0, 40), False), "b": ("t", Counts(28, 80, 1, 100), False)})
    of_loss = facts["models"]["cluster-0"]["attacks"]["loss"]
    assert (of_loss["tpr"], of_loss["members"], of_loss["non_members"]) == (0.3, 100, 140)
    np.testing.assert_allclose(of_loss["interval"], binomtest(30, 100).proportion_ci(0.95, "exact"))
    assert facts["models"]["cluster-0"]["sites"] == 2 and facts["objections"] == facts["single"] == []


def test_a_cluster_of_too_few_sites_or_samples_has_no_rate():
    two_of_one = {"a": ("s", Counts(2, 20, 0, 40), True), "b": ("s", Counts(8, 80, 1, 100), False)}
    assert pool_membership(two_of_one, min_sites_per_cluster=2)["models"] == {}
    assert pool_membership(two_of_one, min_sites_per_cluster=2)["objections"] == [
        "cluster-0"
    ]  # it is heard all the same
    assert pool_membership(two_of_one, min_samples_per_cluster=101)["models"] == {}
    assert pool_membership(two_of_one, min_samples_per_cluster=100)["models"] != {}


def test_a_single_member_is_not_drowned_by_the_others():
    answers = {"a": ("s", Counts(40, 50, 0, 40), False), "b": ("t", Counts(10, 1000, 1, 100), False)}
    facts = {"membership": pool_membership(answers, bound=0.1), "training": {}}
    assert facts["membership"]["models"]["cluster-0"]["attacks"]["loss"]["interval"][1] < 0.1
    assert "of a single member, attacks tell more than the server's bound of 0.1" in why_not(facts, "cluster-0")


def rates(tp: int, members: int = 200, **facts) -> dict[str, Any]:
    """A summary's facts of one model, to which nobody objects."""
    attack = rates_of(Counts(tp, members, 0, 90))
    attacks = {"loss": rates_of(Counts(0, members, 0, 90)), "likelihood_ratio": attack}
    of_model = {"sites": 3, "unmeasured": 0, "attacks": attacks}
    shadows = {"shadow_models": 16, "fewest_shadow_models": 16}
    return {"bound": 0.1, **shadows, "models": {"global": of_model}, "objections": [], "single": [], **facts}


def with_dp(*epsilons: float | None, **last: Any) -> Ancestry:
    """Runs that go on from each other, each with this epsilon; None without dp."""
    runs = [Ancestor(dp=None if epsilon is None else {"epsilon": epsilon, "delta": 1e-5}) for epsilon in epsilons]
    return Ancestry((*runs[:-1], replace(runs[-1], **last)))


PLAIN = with_dp(None)


@pytest.mark.parametrize(
    ("membership", "ancestry", "reason"),
    [
        (None, PLAIN, None),  # nobody set a bound
        (rates(10), PLAIN, None),
        (rates(13), PLAIN, r"likelihood_ratio tells 6.5% .*interval 3.5% to 10.9%.*above the bound of 0.1"),
        (rates(0, 20), PLAIN, "0.0% .*to 16.8%"),  # so few samples do not show that it is below
        (rates(13, bound=None), PLAIN, None),
        (rates(0, bound=None, objections=["global"]), PLAIN, "one of its members objects"),
        (rates(0, models={}), PLAIN, "no attack was measured on it, and the server's bound is 0.1"),
        (rates(0, models={"global": {"sites": 3, "attacks": {}}}), PLAIN, "no attack was measured on it"),
        (rates(0, shadow_models=2), PLAIN, "with 2 shadow models, and the server's operator asks for 16"),
        (rates(0, models={}), with_dp(2.0), None),  # exp(2) / 100 = 0.0739
        (rates(0, models={}), with_dp(3.0), "rate of 0.201, and the bound is 0.1"),
        (rates(0, models={}), with_dp(8.0), "rate of 1, and"),
        (rates(0, models={}), with_dp(1.0, 2.0), "epsilon = 3 allows .* rate of 0.201"),
        (rates(0, models={}), with_dp(1.0, 2.0, resumes=True, pays_with_parent=True), None),
        (rates(0, models={}), with_dp(None, 2.0), "no attack was measured on it"),
        (rates(0, models={}), with_dp(2.0, None), "no attack was measured on it"),
        (rates(0, models={}), with_dp(1.0, 1.0, resumes=True, split="other"), "the splits may differ"),
        (rates(10), with_dp(None, None, resumes=True, split="other"), "the splits may differ"),
        (rates(10), with_dp(None, None, weaker="its initial model leaks"), "its initial model leaks"),
        (rates(0, models={}), None, "no attack was measured on it"),  # nobody knows how it was trained
    ],
)
def test_what_may_leave(membership, ancestry, reason):
    summary = {} if membership is None else {"membership": membership}
    if ancestry is not None:
        summary["ancestry"] = ancestry.to_list()
    why = why_not(summary, "global")
    assert why is None if reason is None else re.search(reason, why), why


def note_rates(run: Path, membership: dict[str, Any]) -> None:
    """Write what attacks reached into a run's summary and into the files of its models; none were made on the best."""
    for path in run.glob("**/clusters/*.safetensors"):
        arrays, meta = load_arrays(path)
        best = path.parents[1].name == "best"
        save_arrays(path, arrays, {**meta, "membership": {**membership, "models": {}} if best else membership})
    path = run / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "membership": membership}))


@needs_extension("aftercare")
def test_onboard_convert_and_a_job_stop_at_the_gate(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_loop(
        method=FedAvg(),
        folder=tmp_path / "run",
        model=MODEL,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(1),
        training=TrainSettings(lr=0.1, local_steps=1, membership=2),
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    measured = summary["membership"]["models"]["global"]
    assert measured["attacks"]["loss"]["members"] == sum(len(person.train) for person in host_people())
    network = "mlp:input_shape=[1,8,8],num_classes=10"
    commands = [
        ["onboard", "run", "--data", "digits"],
        ["convert", "run", "--slot", "global", "--out", "onnx"],
        ["export", "--method", "fedavg", "--model", network, "--initial-ckpt", "run/clusters/global.safetensors"],
        ["convert", "run/best/clusters/global.safetensors", "--out", "onnx"],
    ]
    note_rates(tmp_path / "run", rates(13))
    for command in commands:
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "'global' stays with its members: " in said and "max_tpr_at_1pct_fpr" in said, said
        assert ("no attack was measured" if "run/best/" in said else "likelihood_ratio tells 6.5%") in said
    assert main(["show", "run"]) == 0
    assert "global stays with its members: the attack" in " ".join(capsys.readouterr().out.split())
    note_rates(tmp_path / "run", rates(10))
    assert main(commands[0]) == 0
