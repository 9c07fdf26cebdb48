# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One global model (FedAvg, FedProx, fine-tuning, first-order MAML), and groups given before the run; by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cfl_flare.cli import main
from cfl_flare.cli.specs import build_named
from cfl_flare.core.errors import ConfigError
from cfl_flare.engine.newcomers import Finished
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Task
from cfl_flare.methods import (
    CAM,
    Download,
    Ensemble,
    FedAvg,
    FedCUAU,
    FedProx,
    Finetune,
    Groups,
    Local,
    Method,
    Participant,
    PerFedAvg,
    ServerState,
    Update,
    WeCFL,
    build_method,
)
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.store import state_metadata, state_of
from cfl_flare.training.ensemble import Served
from tests.helpers.needs import needs_extension
from tests.helpers.play import assert_same_bank, play_rounds
from tests.helpers.served import write_digits_npz
from tests.helpers.tiny import LAYOUT, answer_round, coin, initial, make_coin_learner, start_server, step_method, update
from tests.methods.test_contract import run_contract_loop

# One SGD step with learning rate 1 from (0, 0) on label 0: softmax is (1/2, 1/2), the gradient (-1/2, 1/2).
STEP = [0.5, -0.5]


def test_server_step_is_the_mean_weighted_by_samples():
    method = FedAvg()
    state = method.start(initial)
    updates = [update("a", 3, "global", 1, 0), update("b", 1, "global", 5, 4)]
    after = step_method(method, state, updates)
    np.testing.assert_array_equal(after.bank["global"].vector, [2, 1])  # (3*1 + 1*5)/4, (3*0 + 1*4)/4
    assert after.round == 1
    assert after.assignment == {}


def test_uniform_weighting_counts_everyone_the_same():
    method = FedAvg(weighting="uniform")
    state = method.start(initial)
    after = method.aggregate(state, [update("a", 3, "global", 1, 0), update("b", 1, "global", 5, 4)], {})
    np.testing.assert_array_equal(after.bank["global"].vector, [3, 2])


def test_local_step_sends_the_difference_to_what_was_sent():
    method = FedAvg()
    sent = method.local_update(make_coin_learner([0]), Download(("global",), (coin(0, 0),)))
    np.testing.assert_allclose(sent.diffs["global"].vector, STEP)
    assert (sent.participant, sent.samples, sent.cluster) == ("p", 1, None)


def test_fedprox_second_step_is_pulled_back_by_mu():
    """Step 1 starts at the anchor: no pull. At (1/2, -1/2) the gradient is (p0 - 1, p1), the pull mu * (1/2, -1/2)."""
    mu = 0.4
    sent = FedProx(mu=mu).local_update(make_coin_learner([0], steps=2), Download(("global",), (coin(0, 0),)))
    p0 = 1 / (1 + np.exp(-1.0))
    expected = np.array([0.5 - ((p0 - 1) + mu * 0.5), -0.5 - ((1 - p0) + mu * -0.5)])
    np.testing.assert_allclose(sent.diffs["global"].vector, expected, rtol=1e-6)


def test_fedprox_without_mu_is_fedavg():
    download = Download(("global",), (coin(0, 0),))
    plain = FedAvg().local_update(make_coin_learner([0, 1, 0], steps=3), download)
    prox = FedProx(mu=0.0).local_update(make_coin_learner([0, 1, 0], steps=3), download)
    np.testing.assert_array_equal(plain.diffs["global"].vector, prox.diffs["global"].vector)


def test_finetune_serves_one_more_local_round_and_forgets_it():
    work = make_coin_learner([0])
    served = Finetune().build_predictor(work, Download(("global",), (coin(0, 0),)))
    (model,) = Served.of(served).models
    np.testing.assert_allclose(model.vector, STEP)
    assert work.memory == {}


def test_finetuning_is_held_near_the_global_model():
    """Step 1 starts at the anchor: no pull. At (1/2, -1/2) the gradient is (p0 - 1, 1 - p0), the pull (1/8, -1/8)."""
    work = make_coin_learner([0], steps=2)
    served = Finetune(pull=0.25).build_predictor(work, Download(("global",), (coin(0, 0),)))
    p0 = 1 / (1 + np.exp(-1.0))
    expected = 0.5 - (p0 - 1) - 0.25 * 0.5
    (model,) = Served.of(served).models
    np.testing.assert_allclose(model.vector, [expected, -expected], rtol=1e-6)


def test_training_alone_is_held_near_the_untrained_model():
    work = make_coin_learner([0], steps=2)
    start = work.initial(0).vector.astype(np.float64)
    Local(pull=0.25).local_update(work, Download())
    here = start.copy()
    for _ in range(2):
        p0 = np.exp(here[0]) / np.exp(here).sum()
        here = here - np.array([p0 - 1, 1 - p0]) - 0.25 * (here - start)
    np.testing.assert_allclose(work.memory["model"].vector, here, rtol=1e-5)


def test_local_keeps_its_model_and_sends_nothing():
    method, work = Local(), make_coin_learner([0])
    start = work.initial(0)
    assert method.distribute(method.start(initial), "p").slots == ()
    sent = method.local_update(work, Download())
    assert sent.diffs == {}
    first = work.memory["model"]
    p0 = np.exp(start.vector[0]) / np.exp(start.vector).sum()
    np.testing.assert_allclose(first.vector, start.vector - [p0 - 1, 1 - p0], rtol=1e-6)
    again = method.serve(make_coin_learner([0], memory=work.memory), Download())
    np.testing.assert_array_equal(again.vector, first.vector)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"method": "fedprox", "mu": -1.0}, "mu = -1.0 should be >= 0"),
        ({"method": "fedavg", "weighting": "size"}, "weighting = 'size' should be 'samples' or 'uniform'"),
        ({"method": "fedavgg"}, "method 'fedavgg' is unknown"),
        ({"method": "fedavg", "k": 3}, "unknown setting 'k'"),
    ],
)
def test_refusals(spec, message):
    with pytest.raises(ConfigError, match=message):
        build_method(spec)


# From (0, 0) on label 0 a step of length 1 leads to (1/2, -1/2); there p0 is the logistic of 1.
P0 = 1 / (1 + np.exp(-1.0))
SENT = Download(("global",), (coin(0, 0),))


def test_local_step_goes_by_the_gradient_one_step_ahead():
    sent = PerFedAvg().local_update(make_coin_learner([0], lr=1.0), SENT)  # eta is the run's learning rate
    np.testing.assert_allclose(sent.diffs["global"].vector, [1 - P0, P0 - 1], rtol=1e-6)
    ahead = 1 / (1 + np.exp(-3.0))  # at (3/2, -3/2): eta = 3
    sent = PerFedAvg(inner_lr=3.0).local_update(make_coin_learner([0], lr=0.5), SENT)
    np.testing.assert_allclose(sent.diffs["global"].vector, [0.5 * (1 - ahead), 0.5 * (ahead - 1)], rtol=1e-6)


def test_server_step_is_fedavg_s():
    method = PerFedAvg()
    state = method.start(initial)
    updates = [update("a", 3, "global", 1, 0), update("b", 1, "global", 5, 4)]
    np.testing.assert_array_equal(method.aggregate(state, updates, {}).bank["global"].vector, [2, 1])


def test_serves_the_model_after_its_personal_steps_and_forgets_it():
    work = make_coin_learner([0], lr=1.0)
    np.testing.assert_allclose(PerFedAvg().build_predictor(work, SENT).vector, [0.5, -0.5])
    twice = PerFedAvg(personal_steps=2).build_predictor(work, SENT).vector
    np.testing.assert_allclose(twice, [0.5 + (1 - P0), -0.5 + (P0 - 1)], rtol=1e-6)
    assert PerFedAvg(personal_steps=0).build_predictor(work, SENT) is SENT.models[0]
    assert work.memory == {}


def test_finetuning_starts_from_the_personal_model():
    (tuned,) = Served.of(PerFedAvg(finetune=True).build_predictor(make_coin_learner([0], lr=1.0), SENT)).models
    np.testing.assert_allclose(tuned.vector, [0.5 + (1 - P0), -0.5 + (P0 - 1)], rtol=1e-6)


def test_without_inner_steps_it_is_fedavg_bit_for_bit():
    plain, meta = run_contract_loop(FedAvg()), run_contract_loop(PerFedAvg(inner_lr=0.0))
    assert_same_bank(plain.state.bank, meta.state.bank)


def test_parts_side_by_side_each_serve_what_they_would_alone():
    both = build_method({"method": "ensemble", "parts": [{"method": "per-fedavg"}, {"method": "fedavg"}]})
    beside, alone = play_rounds(both, 2), play_rounds(PerFedAvg(), 2, streams="0.")
    assert_same_bank(beside[-1].after.bank, alone[-1].after.bank, "0.")


def test_the_personal_model_is_better_at_home_than_the_common_one():
    rounds = [play_rounds(PerFedAvg(personal_steps=n), 5, lr=0.3, local_steps=5)[-1] for n in (0, 1, 5)]
    common, one, five = ([a.metrics["served_accuracy"] for a in r.answers.values()] for r in rounds)
    assert np.mean(common) < np.mean(one) < np.mean(five)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inner_lr": -0.1}, "inner_lr = -0.1 should be >= 0 or None"),
        ({"inner_lr": "fast"}, "inner_lr = 'fast' should be float"),
        ({"personal_steps": -1}, "personal_steps = -1 should be >= 0"),
    ],
)
def test_refusals_of_meta_learning(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "per-fedavg", **settings})


START = coin(0, 0)


def tuned(method: Method, *models: Any) -> list[list[float]]:
    served = models[0] if len(models) == 1 else Served(models)
    found = Served.of(method.finetune_served(make_coin_learner([1, 1, 0], lr=0.1), served))
    return [model.vector.tolist() for model in found.models]


def after(epochs: int, frozen: Any = None) -> list[float]:
    one = make_coin_learner([1, 1, 0], lr=0.1)
    view = one if frozen is None else one.beside(frozen)
    return view.train(START, purpose="finetune", epochs=epochs).vector.tolist()


@pytest.mark.parametrize("epochs", [1, 3])
def test_so_many_passes(epochs: int) -> None:
    for method in (WeCFL(k=2, finetune=True, finetune_epochs=epochs), Finetune(finetune_epochs=epochs)):
        assert tuned(method, START) == [after(epochs)]
    together = Ensemble(parts=(FedAvg(), FedAvg()), finetune=True, finetune_epochs=epochs)
    assert tuned(together, START, START) == [after(epochs)] * 2
    cam = CAM(base=WeCFL(k=2), finetune=True, finetune_epochs=epochs)
    assert tuned(cam, START, START) == [after(epochs, START)] * 2
    assert after(1) != after(3)


def test_as_long_as_a_round_unless_given() -> None:
    assert tuned(FedAvg(finetune=True), START) == [after(1)]  # one step, which is one pass here
    assert FedCUAU().finetune_epochs == 5
    parts = (FedAvg(), FedAvg())
    assert tuned(Ensemble(parts=parts, finetune=True), START, START) == [after(1)] * 2


def test_a_combination_s_setting_is_the_whole_s() -> None:
    for name in ("fedavg+", "fesem-cam"):
        method = build_method({"method": name, "k": 2, "finetune": True, "finetune_epochs": 4})
        assert method.finetune_epochs == 4
    with pytest.raises(ConfigError, match="finetune_epochs = 4 does nothing without finetune = True"):
        build_method({"method": "fedavg+ifca", "k": 2, "finetune_epochs": 4})


def test_refusals_of_fine_tuning() -> None:
    with pytest.raises(ConfigError, match=r"finetune_epochs = 0 should be in .1, 1000. or None"):
        FedAvg(finetune=True, finetune_epochs=0)
    with pytest.raises(ConfigError, match=r"finetune_epochs = 2\.5 should be int \| None, not float"):
        FedAvg(finetune=True, finetune_epochs=2.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="method local: finetune_epochs = 2 does nothing without finetune = True"):
        Local(finetune_epochs=2)
    assert np.isfinite(tuned(FedCUAU(finetune_epochs=2, finetune=True), START)).all()


# c has no label.
LABELS = {"a": "nl", "b": "nl", "d": "gr"}
SAMPLES = {"a": 3, "b": 1, "c": 2, "d": 4}


def start_unclipped_server(method: Groups, **settings: Any) -> Server:
    people = [Participant(name, f"site-{name}", n) for name, n in SAMPLES.items()]
    return start_server(method, people, num_rounds=4, clip_norm=0, **settings)


def play_ends(running: Server, ends: dict[str, float]) -> dict[str, tuple[str, ...]]:
    """A round after which each participant's model is at its number; what each that trained was sent."""
    tasks = {name: task for name, task in running.tasks().items() if task.train}

    def move(name: str, task: Task) -> Update:
        start = running.bank[task.slots[0]].vector[0]
        return update(name, SAMPLES[name], task.slots[0], ends[name] - start, 0)

    answer_round(running, move)
    return {name: task.slots for name, task in tasks.items()}


def read_rounded_ends(running: Server) -> dict[str, float]:
    return {slot: round(float(model.vector[0]), 5) for slot, model in running.state.bank.items()}


def test_after_the_warmup_each_group_goes_on_by_itself_and_the_common_model_stays():
    running = start_unclipped_server(Groups(groups=LABELS, warmup=1))
    sent = play_ends(running, {"a": 10, "b": 0, "c": 5, "d": 1})
    assert sent == dict.fromkeys("abcd", ("global",))
    mean = (3 * 10 + 0 + 2 * 5 + 4 * 1) / 10
    assert read_rounded_ends(running) == {"global": mean, "cluster-0": mean, "cluster-1": mean}
    assert running.state.assignment == {}
    sent = play_ends(running, {"a": 8, "b": 0, "d": -1})
    assert sent == {"a": ("cluster-1",), "b": ("cluster-1",), "d": ("cluster-0",)}  # gr is before nl
    assert read_rounded_ends(running) == {"global": mean, "cluster-0": -1, "cluster-1": (3 * 8 + 0) / 4}
    assert running.state.assignment == {"a": 1, "b": 1, "d": 0}
    assert running.tasks()["c"].slots == ("global",) and not running.tasks()["c"].train  # it is measured


def test_without_a_warmup_the_groups_begin_at_the_start():
    running = start_unclipped_server(Groups(groups=LABELS, weighting="uniform"))
    assert "c" not in running.tasks()
    play_ends(running, {"a": 8, "b": 0, "d": -1})
    assert read_rounded_ends(running) == {"global": 0, "cluster-0": -1, "cluster-1": 4}


def test_a_group_of_few_is_held_back_and_is_not_mixed_with_another():
    running = start_unclipped_server(Groups(groups=LABELS), hold_small_clusters=True, min_sites_per_cluster=2)
    play_ends(running, {"a": 8, "b": 0, "d": -1})
    assert read_rounded_ends(running) == {"global": 0, "cluster-0": 0, "cluster-1": 6}
    assert running.state.assignment == {"a": 1, "b": 1, "d": 0}
    assert running.progress.record["held_back"] == ["d"]


def naming(method: Groups, labels: dict[str, str], **settings: Any) -> Server:
    """A server whose participants name their groups at check-in."""
    people = [Participant(name, f"site-{name}", n, label=labels.get(name)) for name, n in SAMPLES.items()]
    return start_server(method, people, num_rounds=4, clip_norm=0, **settings)


def test_groups_that_sites_name_are_those_of_a_mapping_and_other_labels_have_the_common_model():
    floor = {"hold_small_clusters": True, "min_sites_per_cluster": 2}
    for settings in ({}, floor):
        given = start_unclipped_server(Groups(groups=LABELS, warmup=1), **settings)
        named = naming(Groups(groups=["nl", "gr"], warmup=1), {**LABELS, "c": "x" * 50}, **settings)
        for ends in ({"a": 10, "b": 0, "c": 5, "d": 1}, {"a": 8, "b": 0, "d": -1}, {"a": 1, "b": 2, "d": 3}):
            assert play_ends(given, ends) == play_ends(named, ends)
            assert (
                read_rounded_ends(given) == read_rounded_ends(named)
                and given.state.assignment == named.state.assignment
            )
        assert named.state.labels == LABELS
        assert named.progress.record.get("held_back") == (["d"] if settings else None)


def test_a_label_that_was_named_first_stays_after_a_checkpoint_and_for_those_who_join():
    method = Groups(groups=["nl", "gr"])
    running = naming(method, LABELS)
    play_ends(running, {"a": 8, "b": 0, "d": -1})
    state = state_of(running.state.bank, json.loads(json.dumps(state_metadata(running.state))))
    people = [Participant(name, f"site-{name}", n, label="gr") for name, n in SAMPLES.items()]
    resumed = Server(method, LAYOUT, people[:3], ServerSettings(4), state)
    assert resumed.state.labels == {**LABELS, "c": "gr"}
    resumed.admit([*people, Participant("e", "site-e", 9, label="nl")])
    assert resumed.tasks()["e"].slots == ("cluster-1",) and resumed.tasks()["a"].slots == ("cluster-1",)
    with pytest.raises(ConfigError, match=r"nobody named one of the groups .'gr', 'nl'.; set CFL_GROUP at the sites"):
        naming(method, {"a": "NL"})


def test_the_pull_is_towards_the_common_model():
    """From (2, 0) on label 0, lr 1: the gradient is (p - 1, 1 - p) + 0.5 * ((2, 0) - (1, 1)), p = softmax of 2."""
    method = Groups(groups={"p": "x"}, pull=0.5)
    state = method.start(initial)
    assert method.distribute(state, "p") == Download(("cluster-0",), to_train=("global",))
    sent = Download(("cluster-0", "global"), (coin(2, 0), coin(1, 1)))
    wrong = 1 - 1 / (1 + np.exp(-2.0))
    moved = method.local_update(make_coin_learner([0]), sent).diffs
    assert moved.keys() == {"cluster-0"}
    np.testing.assert_allclose(moved["cluster-0"].vector, [wrong - 0.5, 0.5 - wrong], rtol=1e-5)


def test_a_model_of_one_without_a_label_counts_nowhere_wherever_it_comes_from():
    method = Groups(groups=LABELS)
    state = method.start(initial)
    assert method.counts_in(state, update("c", 2, "global", 1, 1), {}) == {}
    moved = Update("a", 3, {"cluster-1": coin(1, 1)})
    assert method.counts_in(state, moved, {"a": 1}) == {"cluster-1": ("cluster-1", 3.0)}


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ("nl", r"groups = 'nl' should be a label for each name"),
        ({}, r"groups have 0 labels, not 1 to 1000"),
        ({"a": ""}, r"'a': '' should be a name and a label of 1 to 200 printable characters"),
        ({"a": "x" * 201}, r"should be a name and a label of 1 to 200 printable characters"),
        ({"a": None}, r"'a': None should be a name and a label"),
        ({7: "x"}, r"7: 'x' should be a name and a label"),
        ({str(i): str(i) for i in range(1001)}, r"have 1001 labels"),
        ([], r"groups have 0 labels, not 1 to 1000"),
        (["nl", None], r"'None': None should be a name and a label"),
        (["nl\n"], r"should be a name and a label of 1 to 200 printable characters"),
    ],
)
def test_labels_are_checked(groups, says):
    with pytest.raises(ConfigError, match=says):
        Groups(groups=groups)


def test_numbers_are_labels_in_their_order_and_a_warmup_leaves_rounds():
    method = Groups(groups={"a": 10, "b": 9, "c": 10})
    assert (method.labels, method.clusters) == (["9", "10"], 2)
    assert [method.find_cluster(ServerState({}), name) for name in "abz"] == [1, 0, None]
    with pytest.raises(ConfigError, match="warmup = 3 leaves the groups none of 3 rounds; lower it"):
        Groups(groups=LABELS, warmup=3).check(LAYOUT, 3)


@needs_extension("aftercare")
def test_groups_of_a_file_and_of_the_data_and_newcomers_by_their_label(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("groups.json").write_text(json.dumps(LABELS))
    assert build_named("groups:groups=groups.json,warmup=2") == Groups(groups=LABELS, warmup=2)
    with pytest.raises(ConfigError, match="only a simulation knows them; name a JSON file"):
        build_named("groups:groups=data")
    words = ["run", "--loop", "--rounds", "3", "--participants", "6", "--out", "out"]
    words += ["--method", "groups:groups=data,warmup=1", "--method", "fedavg"]
    assert main([*words, "--partition", "label_permutation:groups=2"]) == 0
    run = load_run(Path("out", "groups-k2"))
    assert run.summary["method"]["groups"] == {f"p{i}": str(i // 3) for i in range(6)}
    assert run.summary["final"]["ari"] == 1
    better = load_run(Path("out", "fedavg")).summary["final"]["served_accuracy"]
    assert run.summary["final"]["served_accuracy"] > better
    named = ["run", "--loop", *words[2:6], "--out", "named", "--method", "groups:groups=[1,0],warmup=1"]
    assert main([*named, "--partition", "label_permutation:groups=2"]) == 0
    of_sites = load_run(Path("named", "groups-k2"))
    assert of_sites.assignments == run.assignments
    assert [p["label"] for p in of_sites.summary["participants"]] == ["0"] * 3 + ["1"] * 3
    write_digits_npz(Path("ward.npz"))
    assert main(["onboard", "named/groups-k2", "--data", "ward.npz", "--group", "1", "--name", "known"]) == 0
    assert "known 1" in " ".join(capfd.readouterr().out.split())
    onboard = ["onboard", "out/groups-k2", "--data", "ward.npz"]
    assert main([*onboard, "--name", "known", "--group", "1"]) == 0
    assert main([*onboard, "--name", "unknown"]) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines() if line.startswith(("known", "unknown"))]
    assert [row[:2] for row in rows] == [["known", "1"], ["unknown", "no"]]
    assert main([*onboard, "--name", "other", "--group", "2"]) == 2
    assert "no group '2' was trained; there are '0', '1'" in capfd.readouterr().err
    assert main(["onboard", "out/fedavg", *onboard[2:], "--group", "1"]) == 2
    assert "method fedavg places newcomers itself; leave --group out" in capfd.readouterr().err
    assert isinstance(Finished("out/fedavg").method, FedAvg)
