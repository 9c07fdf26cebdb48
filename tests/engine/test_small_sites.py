# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Small participants: without test samples, with one class, with a sample or two, with no event."""

import csv
import json
import logging

import numpy as np
import pytest
import torch
from torch import nn

from cfl_flare.core.config import as_spec
from cfl_flare.core.errors import ConfigError, DataError, PayloadError
from cfl_flare.data import DataConfig, Digits, ParticipantData, Samples
from cfl_flare.engine.newcomers import Finished
from cfl_flare.engine.observers import Asked
from cfl_flare.engine.observers.metrics import Metrics
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, Task, check_result
from cfl_flare.extensions import present_results
from cfl_flare.methods import FedAvg, Participant, build_method
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.tables import results_table
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.tiny import Coin

INTERVALS = {"bootstrap": 50, "score_bins": 50}


def person(name: str, y: list, tests: list, seed: int = 0) -> ParticipantData:
    """A participant with random features in [-1, 1]."""
    x = np.random.default_rng(seed).uniform(-1, 1, (len(y) + len(tests), 3)).astype(np.float32)
    whole = np.array([*y, *tests])
    return ParticipantData(name, Samples(x[: len(y)], whole[: len(y)]), Samples(x[len(y) :], whole[len(y) :]))


# By task: one ordinary participant, one without test samples, one of a single class (or event), and a tiny one.
PEOPLE = {
    "classification": [([0, 1, 2] * 6, [0, 1, 2]), ([0, 1] * 5, []), ([1] * 7, [1, 1]), ([0, 2], [2])],
    "binary": [([0, 1] * 9, [0, 1]), ([0, 1] * 5, []), ([0] * 7, [0, 0]), ([1, 0], [1])],
    "multilabel": [
        ([[0, 1], [1, 0]] * 9, [[0, 1], [1, 0]]),
        ([[0, 1], [1, 1]] * 5, []),
        ([[0, 0]] * 7, [[0, 0]] * 2),
        ([[1, 1], [0, 1]], [[1, 1]]),
    ],
    "regression": [
        ([0.5, 1.5, 2.5] * 6, [0.5, 1.5]),
        ([0.5, 1.0] * 5, []),
        ([1.5] * 7, [1.5] * 2),
        ([0.1, 2.0], [0.3]),
    ],
    "survival": [
        ([[1.0, 1], [2.0, 0], [3.0, 1]] * 6, [[1.0, 1], [2.0, 0]]),
        ([[1.0, 1], [2.0, 1]] * 5, []),
        ([[1.0, 0], [2.0, 0]] * 4, [[1.0, 0], [2.0, 0]]),
        ([[1.0, 1], [2.0, 0]], [[3.0, 1]]),
    ],
}
OUTPUTS = {"classification": 3, "multilabel": 2}


def given(people: tuple[ParticipantData, ...]) -> DataConfig:
    """The settings of a run of these participants."""

    class Given(DataConfig):
        def host(self, source, site, index, sites):
            return list(people)

    return Given()


def people_of(task: str) -> tuple[ParticipantData, ...]:
    return tuple(person(n, y, tests, i) for i, (n, (y, tests)) in enumerate(zip("abcd", PEOPLE[task])))


def run_small_sites(folder, task, method="fedavg", people=None, training=None, rounds=2, **server):
    return run_loop(
        method=build_method(as_spec(method, "method")),
        model={
            "class_path": "cfl_flare.models.Logistic",
            "args": {"input_shape": [3], "num_classes": OUTPUTS.get(task, 1)},
        },
        source=Digits(),  # which nobody reads
        data=given(people or people_of(task)),
        settings=ServerSettings(rounds, **server),
        training=TrainSettings(lr=0.1, task=task, **(training or {})),
        at_site=SiteSettings(evaluate_trained=True),
        folder=folder,
    )


def strict(text: str):
    """What JSON's own grammar allows: no NaN, no Infinity."""
    return json.loads(text, parse_constant=pytest.fail)


def summary_of(folder):
    """The summary; every line of JSON in the folder is strict."""
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        strict(line)
    return strict((folder / "summary.json").read_text())


@pytest.mark.parametrize("task", PEOPLE)
def test_every_task_takes_participants_that_are_small(task, tmp_path):
    scored = INTERVALS if task in ("classification", "binary", "multilabel") else {"bootstrap": 50}
    server = run_small_sites(tmp_path, task, "wecfl:k=2", training=scored, cross_site_evaluation=True)
    assert not server.rejected
    found = summary_of(tmp_path)
    assert len(found["final"]) > 5
    without = next(p for p in found["participants"] if p["name"] == "b")
    assert without["tested"] is False
    assert not [key for key in without if key.startswith(("served_", "trained_"))]
    assert without["intervals"] == {}
    table = list(csv.DictReader((tmp_path / "cross_site.csv").open()))
    assert {line["participant"] for line in table} == {"a", "c", "d"}
    loaded = load_run(tmp_path)
    assert present_results(tmp_path) == []
    assert results_table([loaded]).row_count == 1
    assert all("b" not in record["failed"] for record in loaded.rounds)


def test_means_are_of_those_who_are_measured_and_say_of_how_many(tmp_path):
    run_small_sites(tmp_path, "binary", key_metric="accuracy")
    found = load_run(tmp_path)
    by_name = {p["name"]: p for p in found.summary["participants"]}
    own = {n: by_name[n]["served_accuracy"] for n in "acd"}
    assert found.summary["final"]["served_accuracy"] == pytest.approx(
        (18 * own["a"] + 7 * own["c"] + 2 * own["d"]) / 27
    )
    last = found.rounds[-1]["defined"]
    assert (last["served_accuracy"], last["served_auroc"]) == (3, 1)  # c and d have one class each
    assert found.defined("served_accuracy") == (3, 4)
    assert "(3 of 4)" in str([*results_table([found]).columns[2].cells])
    assert found.summary["best"]["metric"] == "accuracy"


def test_most_without_test_samples_leave_the_metric_to_the_others(tmp_path):
    people = (*people_of("binary")[:1], *(person(f"x{i}", [0, 1] * 5, []) for i in range(5)))
    run_small_sites(tmp_path, "binary", people=people, stop_cond="accuracy >= 0", rounds=3)
    found = summary_of(tmp_path)
    assert found["metric"]["name"] == "loss"  # that of two classes
    assert found["best"] is not None
    assert found["stopped"] == "accuracy >= 0 in round 0"


def test_a_run_without_any_test_sample_trains_and_says_so(tmp_path, caplog):
    people = (person("a", [0, 1] * 5, []), person("b", [0, 1] * 3, []))
    with caplog.at_level(logging.WARNING):
        run_small_sites(tmp_path, "binary", "ifca:k=2", people=people, cross_site_evaluation=True, training=INTERVALS)
    assert "no participant has test samples" in caplog.text
    found = load_run(tmp_path)
    summary_of(tmp_path)
    assert not [key for key in found.summary["final"] if "served" in key]
    assert found.summary["best"] is None
    assert sum(found.rounds[-1]["cluster_sizes"]) == 2
    assert present_results(tmp_path) == []
    assert results_table([found]).row_count == 1
    for waits in ({"stop_cond": "accuracy >= 0.9"}, {"patience": 3}):
        with pytest.raises(ConfigError, match="no participant has test samples, and stop_cond or patience waits"):
            run_small_sites(tmp_path / "more", "binary", people=people, **waits)


def test_a_newcomer_without_test_samples_gets_its_model(tmp_path):
    run_small_sites(tmp_path, "classification", "wecfl:k=2")
    newcomer = Finished(tmp_path).join(person("new", [0, 1, 2] * 4, []))
    assert newcomer.metrics == {}
    assert newcomer.cluster in (0, 1)
    assert len(newcomer.served.models) == 1


def test_who_has_no_test_samples_keeps_what_it_predicts_with():
    site = Site(FedAvg(), Coin, TrainSettings(), seed=0)
    site.add(
        [
            ParticipantData(
                "p",
                Samples(np.ones((3, 1), np.float32), np.array([0, 1, 1])),
                Samples(np.ones((0, 1), np.float32), np.zeros(0, np.int64)),
            )
        ]
    )
    model = site.runtime.initial(0)
    seen = {}
    result = site.carry_out("p", Task(("global",), False, True), {"global": model}, 1, seen.__setitem__)
    assert (result.error, result.answers) == (None, {})
    assert seen["p"].models == (model,)


def test_who_said_that_it_has_no_test_samples_measures_nothing():
    task, model = Task(("global",), False, True), Participant("p", "p", 3, tested=False)
    check_result(Result("p"), task, model)
    boasting = Result("p", answers={"metrics": {"served_accuracy": 1.0}})
    with pytest.raises(PayloadError, match="said before that it has no test samples"):
        Metrics(None).check(boasting.metrics, Asked(model, task, boasting))


class NormedLogistic(nn.Module):
    """Batch normalisation of three features, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x))


@pytest.mark.parametrize(("samples", "size", "fits"), [(1, 32, False), (2, 1, False), (2, 32, True), (33, 32, True)])
def test_batch_normalisation_needs_two_samples_a_batch(samples, size, fits):
    data = [person("ward", [0, 1] * 20, [0], 1), person("p", ([0, 1] * 20)[:samples], [1])]
    site = Site(FedAvg(), NormedLogistic, TrainSettings(batch_size=size), 0)
    if not fits:
        with pytest.raises(
            DataError, match=r"p: the model NormedLogistic does not train on one sample alone .*min_samples"
        ):
            site.add(data[1:])
        return
    site.add(data[1:])
    start = site.runtime.initial(0)
    assert site.carry_out("p", Task(("global",), True, True), {"global": start}, 1).error is None


def test_one_sample_is_enough_without_batch_normalisation():
    site = Site(FedAvg(), Coin, TrainSettings(), 0)
    one = Samples(np.ones((1, 1), np.float32), np.array([1]))
    site.add([ParticipantData("p", one, one)])
    result = site.carry_out("p", Task(("global",), True, True), {"global": site.runtime.initial(0)}, 1)
    assert result.error is None
    assert result.update.samples == 1
