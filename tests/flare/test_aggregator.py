# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What FLARE's aggregator makes of metrics: the event's metadata, and what is said of metrics that nobody reports."""

import pytest

from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.flare import ClusteringAggregator
from cfl_flare.methods import FedAvg, Participant
from tests.tiny import LAYOUT, initial, update


def run(metrics: dict[str, float], **settings) -> tuple[list[dict], list[str]]:
    """Three rounds of one participant: the key metrics that FLARE is told of, and what was said."""
    component, said = ClusteringAggregator({"method": "fedavg"}, {}), list[str]()
    component.warning = said.append  # it needs FLARE's context only to log
    people = [Participant("a", "site-1", 1)]
    component.server = server = Server(FedAvg(), LAYOUT, people, ServerSettings(3, **settings), FedAvg().start(initial))
    told = []
    for _ in range(4):
        task = server.tasks()["a"]
        moved = update("a", 1, "global", 1, 1) if task.train else None
        found = {f"served_{name}": value for name, value in metrics.items()} if task.evaluate else {}
        server.accept(Result("a", moved, {"metrics": found}), "site-1")
        sent = component.aggregate_model()
        told += [info["key_metric"] for info in sent.meta.values() if "key_metric" in info]
    return told, said


def test_accuracy_is_reported_without_a_word():
    assert run({"accuracy": 0.5, "loss": 1.0}) == ([{"name": "served_accuracy", "mode": "max"}] * 3, [])


def test_another_metric_in_its_place_is_named_once():
    told, (text,) = run({"val/loss": 0.5})
    assert told == [{"name": "served_val/loss", "mode": "min"}] * 3
    assert "sites report no accuracy: the best round is the one with the minimum of 'val/loss'" in text


@pytest.mark.parametrize("settings", [{"key_metric": "dicee"}, {"stop_cond": "dicee >= 0.8"}])
def test_a_metric_that_nobody_reports_is_named_once(settings):
    _, (text,) = run({"accuracy": 0.5, "dice": 0.5}, **settings)
    assert "no round has reported 'dicee' so far" in text and "served_accuracy" in text


def test_a_metric_of_the_settings_is_followed_without_a_word():
    assert run({"dice": 0.5, "hd95": 3.0}, key_metric="worst_hd95") == (
        [{"name": "served_worst_hd95", "mode": "min"}] * 3,
        [],
    )
    assert run({"dice": 0.5}, key_metric="") == ([], [])
