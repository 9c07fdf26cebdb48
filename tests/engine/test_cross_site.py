# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""In the end every model is measured on every participant's test split."""

import csv
from pathlib import Path

import pytest

from cfl_flare.core.config import parse_spec
from cfl_flare.data import Digits
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import build_method
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings
from tests.loop import run_loop
from tests.play import DATA, MODEL


def table(folder: Path, method: str, **settings) -> list[dict[str, str]]:
    name, values = parse_spec(method)
    run_loop(
        method=build_method({"method": name, **values}),
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
    lines = table(tmp_path, method)
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
    lines = table(tmp_path / "a", "wecfl:k=2")
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


def test_the_figure(tmp_path):
    from cfl_flare.report.figures import draw

    table(tmp_path, "wecfl:k=2")
    assert tmp_path / "cross_site.png" in draw(load_run(tmp_path))
    assert (tmp_path / "cross_site.png").stat().st_size > 5000
