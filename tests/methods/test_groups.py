# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Groups that were given before the run, by numbers computed by hand."""

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
from cfl_flare.engine.task import Result
from cfl_flare.methods import Download, FedAvg, Groups, Participant, Update
from cfl_flare.results.run_dir import load_run
from tests.cli.test_predict import npz
from tests.tiny import LAYOUT, coin, initial, learner, update

# c has no label.
LABELS = {"a": "nl", "b": "nl", "d": "gr"}
SAMPLES = {"a": 3, "b": 1, "c": 2, "d": 4}


def server(method: Groups, **settings: Any) -> Server:
    people = [Participant(name, f"site-{name}", n) for name, n in SAMPLES.items()]
    return Server(method, LAYOUT, people, ServerSettings(4, clip_norm=None, **settings), method.start(initial))


def one_round(running: Server, ends: dict[str, float]) -> dict[str, tuple[str, ...]]:
    """A round after which each participant's model is at its number; what each that trained was sent."""
    tasks = {name: task for name, task in running.tasks().items() if task.train}
    for name, task in running.tasks().items():
        answers = {"metrics": {"served_accuracy": 0.5}} if task.evaluate else {}
        moved = None
        if task.train:
            start = running.bank[task.slots[0]].vector[0]
            moved = update(name, SAMPLES[name], task.slots[0], ends[name] - start, 0)
        running.accept(Result(name, moved, answers), f"site-{name}")
    running.finish_round()
    return {name: task.slots for name, task in tasks.items()}


def ends_of(running: Server) -> dict[str, float]:
    return {slot: round(float(model.vector[0]), 5) for slot, model in running.state.bank.items()}


def test_after_the_warmup_each_group_goes_on_by_itself_and_the_common_model_stays():
    running = server(Groups(groups=LABELS, warmup=1))
    sent = one_round(running, {"a": 10, "b": 0, "c": 5, "d": 1})
    assert sent == dict.fromkeys("abcd", ("global",))
    mean = (3 * 10 + 0 + 2 * 5 + 4 * 1) / 10
    assert ends_of(running) == {"global": mean, "cluster-0": mean, "cluster-1": mean}
    assert running.state.assignment == {}
    sent = one_round(running, {"a": 8, "b": 0, "d": -1})
    assert sent == {"a": ("cluster-1",), "b": ("cluster-1",), "d": ("cluster-0",)}  # gr is before nl
    assert ends_of(running) == {"global": mean, "cluster-0": -1, "cluster-1": (3 * 8 + 0) / 4}
    assert running.state.assignment == {"a": 1, "b": 1, "d": 0}
    assert running.tasks()["c"].slots == ("global",) and not running.tasks()["c"].train  # it is measured


def test_without_a_warmup_the_groups_begin_at_the_start():
    running = server(Groups(groups=LABELS, weighting="uniform"))
    assert "c" not in running.tasks()
    one_round(running, {"a": 8, "b": 0, "d": -1})
    assert ends_of(running) == {"global": 0, "cluster-0": -1, "cluster-1": 4}


def test_a_group_of_few_is_held_back_and_is_not_mixed_with_another():
    running = server(Groups(groups=LABELS), hold_small_clusters=True, min_sites_per_cluster=2)
    one_round(running, {"a": 8, "b": 0, "d": -1})
    assert ends_of(running) == {"global": 0, "cluster-0": 0, "cluster-1": 6}
    assert running.state.assignment == {"a": 1, "b": 1, "d": 0}
    assert running.progress.record["held_back"] == ["d"]


def test_the_pull_is_towards_the_common_model():
    """From (2, 0) on label 0, lr 1: the gradient is (p - 1, 1 - p) + 0.5 * ((2, 0) - (1, 1)), p = softmax of 2."""
    method = Groups(groups={"p": "x"}, pull=0.5)
    state = method.start(initial)
    assert method.distribute(state, "p") == Download(("cluster-0",), to_train=("global",))
    sent = Download(("cluster-0", "global"), (coin(2, 0), coin(1, 1)))
    wrong = 1 - 1 / (1 + np.exp(-2.0))
    moved = method.local_update(learner([0]), sent).diffs
    assert moved.keys() == {"cluster-0"}
    np.testing.assert_allclose(moved["cluster-0"].vector, [wrong - 0.5, 0.5 - wrong], rtol=1e-5)


def test_a_model_of_one_without_a_label_counts_nowhere_wherever_it_comes_from():
    method = Groups(groups=LABELS)
    state = method.start(initial)
    assert method.counts_in(state, update("c", 2, "global", 1, 1), {}) == {}
    moved = Update("a", 3, {"cluster-1": coin(1, 1)})
    assert method.counts_in(state, moved, {"a": 1}) == {"cluster-1": {"cluster-1": 3.0}}


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ("nl", r"groups = 'nl' should be a label for each name"),
        ({}, r"groups have 0 labels, not 1 to 1000"),
        ({"a": ""}, r"'a': '' should be a name and a label of 1 to 200 characters"),
        ({"a": "x" * 201}, r"should be a name and a label of 1 to 200 characters"),
        ({"a": None}, r"'a': None should be a name and a label"),
        ({7: "x"}, r"7: 'x' should be a name and a label"),
        ({str(i): str(i) for i in range(1001)}, r"have 1001 labels"),
    ],
)
def test_labels_are_checked(groups, says):
    with pytest.raises(ConfigError, match=says):
        Groups(groups=groups)


def test_numbers_are_labels_in_their_order_and_a_warmup_leaves_rounds():
    method = Groups(groups={"a": 10, "b": 9, "c": 10})
    assert (method.labels, method.clusters, method.cluster_of("a"), method.cluster_of("z")) == (["9", "10"], 2, 1, None)
    assert method.traits.given_groups and not Groups(groups={"a": "x"}, warmup=1).traits.given_groups
    with pytest.raises(ConfigError, match="warmup = 3 leaves the groups none of 3 rounds; lower it"):
        Groups(groups=LABELS, warmup=3).check(LAYOUT, 3)


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
    npz(Path("ward.npz"))
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
