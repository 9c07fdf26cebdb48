# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks that are no tables of cells: CUAU's order, similarityes of models, traffic, personalised accuracy."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import paper_figures
import pytest
import tables
import torch
import traffic
from plans import PLANS
from plans.plan import model

from cfl_flare.cli.specs import build_named
from cfl_flare.core.config import build
from cfl_flare.data import Digits
from cfl_flare.methods.cuau import AU
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.served import load_model
from cfl_flare.training.learner import Learner
from cfl_flare.training.runtime import Runtime, Split

SMALL = replace(
    PLANS["fedcuau"], source=Digits(), model=model("mlp", (1, 8, 8), 10), participants=8, rounds=3, sample=1.0
)


def test_stage_one_is_the_methods_own() -> None:
    data = SMALL.data("tiers", 0).host(SMALL.source, "local", 0, 1)[0]
    work = Runtime(partial(build, SMALL.model, torch.nn.Module, "model"), SMALL.training, 0)
    learner = Learner(work, data.name, *(Split.of(s.x, s.y) for s in (data.train, data.test)), {})
    theirs = build_named("fedcuau").client_update(learner)  # type: ignore[attr-defined]
    ours = paper_figures.stage_one(learner, 1)
    assert (ours.diffs[AU].vector == theirs.diffs[AU].vector).all()
    assert (paper_figures.stage_one(learner, 2).diffs[AU].vector != theirs.diffs[AU].vector).any()


def test_distances_of_label_distributions() -> None:
    labels = [np.array([0, 0]), np.array([0, 1])]
    assert paper_figures.label_distances(labels).tolist() == [0.5, 0.5]  # of (1, 0) and (1/2, 1/2) to (3/4, 1/4)
    p, q = (np.array([1.0, 0.0]) + 0.5) / 2, (np.array([0.5, 0.5]) + 0.5) / 2
    kl = (float((p * np.log(p / q)).sum()) + float((q * np.log(q / p)).sum())) / 2
    found = paper_figures.label_divergences(labels, smoothing=0.5)
    assert found == pytest.approx(np.array([[0, kl], [kl, 0]]))


def test_the_order_of_the_tiers_is_measured() -> None:
    people = SMALL.data("tiers", 0).host(SMALL.source, "local", 0, 1)
    one = paper_figures.order(SMALL, people, 0, 1)
    assert -1 <= one["with_tiers"] <= 1 and 0 <= one["in_own_tier"] <= 1
    cuau = [p["cuau"] for p in one["participants"]]
    assert one["mean_by_tier"] == pytest.approx([np.mean(cuau[i : i + 2]) for i in (0, 2, 4, 6)])
    (row,) = paper_figures.over_seeds([one, {**one, "seed": 1, "with_tiers": one["with_tiers"] + 0.5}])
    assert row["seeds"] == 2 and row["with_tiers"] == pytest.approx(one["with_tiers"] + 0.25)
    assert paper_figures.order_table([row]).count("\n") == 3


def test_correlations_are_over_pairs() -> None:
    divergences = np.array([[0.0, 1, 2], [1, 0, 3], [2, 3, 0]])
    found = paper_figures.correlations({"same": divergences**2, "opposite": -divergences}, divergences)
    assert found == pytest.approx({"same": 1, "opposite": -1})


def test_similarityes_of_models() -> None:
    found = paper_figures.distances(np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 0.0, 0.0]]))
    assert found["cosine"][0] == pytest.approx([0, 1, 0])
    assert found["L2"][0] == pytest.approx([0, math.sqrt(5), 0])
    assert found["LrCos"][0][2] == pytest.approx(0)


def test_traffic_is_what_the_methods_send() -> None:
    network = model("logistic", (1, 2, 2), 2)
    one = 4 * (4 * 2 + 2)
    assert traffic.bytes_of("fedavg", network) == (one, one)
    assert traffic.bytes_of("ifca:k=3", network) == (3 * one, one)
    assert traffic.bytes_of("feddsmic:k=3", network) == (one, one)


@pytest.mark.parametrize(
    ("script", "given", "message"),
    [
        ("speed", "--rounds 1", r"--rounds 1 should be at least 2"),
        ("flare_speed", "rounds --rounds 1 4", r"--rounds 1 4 should be at least 3 4"),
        ("flare_speed", "rounds --rounds 1 4 --rows fedavg", r"--rounds 1 4 should be at least 2 3"),
        (
            "flare_speed",
            "rounds --rounds 3 3 --rows wecfl",
            r"--rounds 3 3 should be at least 2 3, and the second",
        ),
    ],
)
def test_too_few_rounds_to_time_one_are_refused_in_one_line(
    script: str, given: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *given.split()])
    with pytest.raises(SystemExit, match=message) as caught:
        import_module(script).main()
    assert "\n" not in str(caught.value)


def test_the_fewest_rounds_are_enough() -> None:
    flare_speed = import_module("flare_speed")
    for rows, few, more in ((["ifca-cam"], 3, 4), (["fedavg"], 2, 3), (["ordinary"], 1, 1)):
        flare_speed.check_rounds(rows, few, more)


@pytest.mark.parametrize(("row", "first"), [("fedavg-cuau", "cluster-0"), ("fedavg", "global"), ("fedbabu", "global")])
def test_both_accuracies_of_a_finished_run(
    row: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "commit", lambda: "abc")
    partition = "C1+C2" if row == "fedavg" else "tiers"
    tables.run_cell(tmp_path, SMALL, row, partition, 0, {})
    found = json.loads((tmp_path / "after.json").read_text())
    people = SMALL.data("tiers", 0).host(SMALL.source, "local", 0, 1)  # also those that did not train
    x, y = (np.concatenate([getattr(data.test, what) for data in people]) for what in "xy")
    with torch.no_grad():
        guess = load_model(tmp_path, first)(torch.from_numpy(x)).argmax(1).numpy()
    assert found["initial"] == pytest.approx((guess == y).mean())
    tiers = [found[f"c{t}"] for t in (1, 2, 3, 4)]
    assert found["personalised"] == pytest.approx(np.mean(tiers))  # two participants each
    assert found["personalised"] != found["initial"]
    if partition == "tiers":  # then the run has measured the same models
        served = load_run(tmp_path).rounds[-1]["served_accuracy_unweighted"]
        assert found["initial"] == pytest.approx(served, abs=0.02)  # test splits differ by a sample
