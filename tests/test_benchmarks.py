# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: sources, figures of features and of hospitals, and those that are no tables of cells."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import features
import kept
import numpy as np
import paper_figures
import pytest
import tables
import torch
import torch.nn.functional as F
import traffic
from common import Cell, read_cells
from features import embedding
from PIL import Image
from plans import PLANS, hospitals, later
from plans.plan import model, own_training
from sources import FLambyHeart, JpegNpz, Years

from cfl_flare.cli.specs import build_named
from cfl_flare.core.config import build, describe
from cfl_flare.core.errors import DataError
from cfl_flare.data import DataSource, Digits
from cfl_flare.data.sources import checked
from cfl_flare.engine.newcomers import onboard_unseen
from cfl_flare.methods import IFCA, FeSEM, WeCFL
from cfl_flare.methods.cuau import AU
from cfl_flare.results.run_dir import ASSIGNMENTS, load_run
from cfl_flare.results.served import load_model
from cfl_flare.training.learner import Learner
from cfl_flare.training.runtime import Runtime, Split
from tests.report.test_sections import is_an_image
from tests.tiny import rounds

# JPEG files in an npz archive


def jpegs(n):
    """Files end to end, and where each begins."""
    files = []
    for i in range(n):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 6), (10 * i, 0, 255 - 10 * i)).save(buffer, "JPEG")
        files.append(buffer.getvalue())
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)])


def saved(folder, **changes):
    """A file of five images in both splits."""
    data, offsets = jpegs(5)
    arrays = {}
    for split in ("train", "test"):
        arrays |= {f"{split}_jpeg": data, f"{split}_offsets": offsets, f"{split}_labels": np.arange(5)[:, None]}
    path = folder / "a.npz"
    np.savez(path, **{k: v for k, v in {**arrays, **changes}.items() if v is not None})
    return str(path)


def test_jpeg_npz(tmp_path):
    train, test = checked(JpegNpz(saved(tmp_path)).load(), "data")
    assert train.x.shape == (5, 3, 6, 8) and train.x.dtype == np.uint8 and test.y.tolist() == [0, 1, 2, 3, 4]
    assert abs(int(train.x[3, 0, 2, 2]) - 30) < 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_offsets": None}, "no array 'train_offsets'"),
        ({"train_labels": np.arange(4)}, "train: 5 images but 4 labels"),
        ({"train_labels": np.full((5, 2), -1)}, r"labels of shape \(5, 2\) say .* sample 0 has -1; write 1"),
        ({"train_offsets": jpegs(5)[1][::-1]}, "train_offsets do not rise from 0"),
        ({"train_offsets": jpegs(5)[1] + 10}, "train_offsets do not rise from 0 to the"),
        ({"train_offsets": jpegs(5)[1] * 0.5}, "train_offsets is float64"),
        ({"train_jpeg": jpegs(5)[0].astype(int)}, "train_jpeg is int64"),
        ({"train_jpeg": np.zeros_like(jpegs(5)[0])}, "train image 0: cannot be read as an image"),
        ({"test_offsets": np.zeros(1, int), "test_labels": np.zeros(0, int)}, "test: no samples"),
    ],
)
def test_jpeg_npz_refusals(tmp_path, changes, message):
    with pytest.raises(DataError, match=message) as caught:
        checked(JpegNpz(saved(tmp_path, **changes)).load(), "data")
    assert "\n" not in str(caught.value)


def test_it_is_given_to_a_job_as_any_class_of_a_user_s_own(tmp_path):
    source = JpegNpz(saved(tmp_path))
    said = describe(source, "data")
    assert said == {"class_path": "sources.JpegNpz", "args": {"path": source.path}}
    assert build(said, DataSource, "data") == source


@pytest.mark.slow
def test_real_jpeg_npz(data_root):
    if not (data_root / "cifar10_jpeg.npz").is_file():
        pytest.skip("cifar10_jpeg.npz is not in CFL_DATA_ROOT")
    train, test = checked(JpegNpz("cifar10_jpeg.npz").load(), "data")
    assert train.x.shape == (50_000, 3, 32, 32) and np.bincount(test.y).tolist() == [1000] * 10


# Figures of features


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("method", [WeCFL(k=2), IFCA(k=14), FeSEM(k=1)], ids=lambda m: m.name)
def test_each_run_below_a_folder_is_drawn_if_it_kept_its_features(tmp_path, method, truth, count, monkeypatch, capsys):
    """With fourteen clusters some are empty, and their centres have no participants."""
    for name, features_kept in (("kept", True), ("other", False)):
        rounds(tmp_path / name, method, truth=truth, count=count, keep_features=features_kept)
    monkeypatch.setattr(sys, "argv", ["features.py", str(tmp_path)])
    features.main()
    drawn = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert drawn == [tmp_path / "kept" / "participants.png", tmp_path / "kept" / "cosines.png"]
    assert all(is_an_image(path) for path in drawn)


@pytest.mark.parametrize(("made", "message"), [(True, "no run kept its features"), (False, "holds no finished run")])
def test_what_cannot_be_drawn_is_said_in_one_line(tmp_path, made, message, monkeypatch):
    if made:
        rounds(tmp_path)
        assert load_run(tmp_path).feature_files == []
    monkeypatch.setattr(sys, "argv", ["features.py", str(tmp_path)])
    with pytest.raises(SystemExit, match=message) as caught:
        features.main()
    assert "\n" not in str(caught.value)


def test_few_participants_lie_as_far_apart_as_their_models():
    points = np.array([[0, 0, 1], [3, 0, 1], [0, 4, 1], [3, 4, 1]], float)
    places = embedding(points @ points.T)
    distances = [np.linalg.norm(p[:, None] - p[None], axis=2) for p in (points, places)]
    np.testing.assert_allclose(*distances, atol=1e-9)
    assert embedding(np.ones((1, 1))).shape == (1, 2)
    assert embedding(np.ones((7, 7))).tolist() == np.zeros((7, 2)).tolist()  # all the same


def test_many_participants_lie_with_their_cluster_and_the_same_every_time():
    rng = np.random.default_rng(0)
    points = np.repeat(np.eye(2) * 5, 6, axis=0) + 0.1 * rng.normal(size=(12, 2))
    places = embedding(points @ points.T)
    np.testing.assert_array_equal(places, embedding(points @ points.T))
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    assert distances[:6, :6].max() < distances[:6, 6:].min()


# ---- Real hospitals: FLamby's data, patients by date, calibration, and who gains ----

needs_files = pytest.mark.skipif(
    not (Path(os.environ.get("CFL_DATA_ROOT", "")) / "heart/processed.va.data").exists(), reason="no files of patients"
)


# ---- What a row's training has of its own ----


def test_a_row_says_its_own_training_and_the_plan_keeps_its_own() -> None:
    plan = PLANS["stroke"]
    row = plan.of_row("ifca:k=2 + private=bias + train:lr=0.05,rounds=7,hidden=3")
    assert (row.training.lr, row.rounds) == (0.05, 7)
    assert row.model["args"]["hidden"] == [3] and plan.model["args"]["hidden"] == []
    assert plan.method("fedavg + train:lr=0.05 + proximal:mu=1") == ("fedavg", "proximal:mu=1")
    assert own_training(("fedavg", "private=bias")) == {}


def test_the_seed_draws_the_patients_of_the_test_split_too() -> None:
    plan = PLANS["stroke"]
    assert [plan.source_of(seed).seed for seed in (0, 4)] == [0, 4]  # type: ignore[attr-defined]
    assert PLANS["blood"].source_of(4) is PLANS["blood"].source
    config = plan.altered({"measured_on": "validation"}).data("natural", 100)
    assert (config.validation, config.measured_on, config.seed) == (0.25, "validation", 100)


def test_a_servers_optimizer_may_belong_to_a_row() -> None:
    plan = PLANS["flamby-heart"]
    settings = plan.of_row("fedadagrad").scheduled(42)
    assert (settings.server_optimizer, settings.server_lr, settings.num_rounds) == ("adagrad", 0.316228, 15)
    assert plan.of_row("fedavg").scheduled(42).server_optimizer is None
    pooled = plan.of_row("pooled")
    assert pooled.source.pooled and pooled.rounds == 1 and pooled.training.local_epochs == 50  # type: ignore[attr-defined]


# ---- Data ----


@needs_files
def test_flambys_patients_are_as_many_as_it_says() -> None:
    train, test = FLambyHeart().load()
    assert train.key is not None and test.key is not None
    assert np.bincount(train.key).tolist() == [199, 172, 30, 85]
    assert np.bincount(test.key).tolist() == [104, 89, 16, 45]
    # Its constant predictions are right at so many of each hospital's test patients.
    shares = [test.y[test.key == k].mean() for k in range(4)]
    assert np.round(shares, 4).tolist() == [0.4615, 0.3708, 0.9375, 0.7778]


@needs_files
def test_flambys_features_are_scaled_by_each_hospitals_own_training_patients() -> None:
    train, _ = FLambyHeart().load()
    assert train.x.shape[1] == 13 and train.key is not None
    seen = 2 * train.x[train.key == 0] - 1  # as the network sees them
    assert np.allclose(seen.mean(axis=0), 0, atol=1e-5) and np.allclose(seen.std(axis=0, ddof=1), 1, atol=1e-5)
    pooled, _ = FLambyHeart(pooled=True).load()
    assert pooled.key is not None and np.bincount(pooled.key).tolist() == [486] * 4
    assert np.allclose((2 * pooled.x[:486] - 1).mean(axis=0), 0, atol=1e-5)


def test_a_missing_folder_of_patients_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CFL_DATA_ROOT", str(tmp_path))
    with pytest.raises(DataError, match=r"processed\.cleveland\.data"):
        FLambyHeart().load()


def test_random_parts_have_the_sizes_of_those_by_date_and_all_their_patients() -> None:
    by_date, at_random = Years().load(), Years(parts="random", seed=3).load()
    for one, other in zip(by_date, at_random):
        assert one.key is not None and other.key is not None
        for a, b in zip(np.unique(one.key, return_counts=True), np.unique(other.key, return_counts=True)):
            assert (a == b).all() and (len(a) == 89)
    assert by_date[0].y.sum() + by_date[1].y.sum() == at_random[0].y.sum() + at_random[1].y.sum()
    assert by_date[0].y.tolist() != at_random[0].y.tolist()
    swapped = Years(swapped=True).load()
    assert np.array_equal(swapped[0].y, by_date[1].y) and np.array_equal(swapped[1].y, by_date[0].y)


# ---- Later methods ----


def test_the_first_images_are_those_of_a_file_that_has_no_others(tmp_path: Path) -> None:
    images, labels = np.arange(10 * 4, dtype=np.uint8).reshape(10, 2, 2), np.arange(10)
    arrays = {"train_images": images, "train_labels": labels, "test_images": images[::-1], "test_labels": labels[::-1]}
    loaded = []
    for name, count in (("all.npz", 10), ("cut.npz", 4)):
        np.savez(tmp_path / name, **{key: array[:count] for key, array in arrays.items()})
        loaded.append(later.FirstImages(str(tmp_path / name), train=4, test=3).load())
    for full, cut in zip(*loaded):
        assert np.array_equal(full.x, cut.x) and np.array_equal(full.y, cut.y)
    assert loaded[0][0].y.tolist() == [0, 1, 2, 3] and loaded[0][1].y.tolist() == [9, 8, 7]
    with pytest.raises(DataError, match="has 10 and 10 images, fewer than train = 11 and test = 3"):
        later.FirstImages(str(tmp_path / "all.npz"), train=11, test=3).load()


def test_cloves_network_has_as_many_numbers_as_the_paper_says() -> None:
    assert sum(p.numel() for p in later.LeNet([1, 28, 28], 10).parameters()) == 5142


def test_agreement_is_of_those_who_have_a_cluster_first_and_last(tmp_path: Path) -> None:
    rounds(tmp_path, count=1)  # a and b are of one group, c and d of another
    assert later.agreement(tmp_path).keys() == {"first_ari", "last_ari"}
    clusters = ([None] * 4, [0, None, 1, 1], [0, 0, 0, 1])
    lines = [
        json.dumps({"round": number, "participant": name, "cluster": cluster})
        for number, of_all in enumerate(clusters)
        for name, cluster in zip("abcd", of_all)
    ]
    (tmp_path / ASSIGNMENTS).write_text("\n".join(lines) + "\n")
    # Last: of 6 pairs 1 is together in both, 2 in the groups and 3 in the clusters, and 2 * 3 / 6 are so by chance.
    assert later.agreement(tmp_path) == {"first_ari": 1.0, "last_ari": 0.0}
    assert later.agreement(tmp_path, merged=2) == {"first_ari": 0.0, "last_ari": 0.0}
    (tmp_path / ASSIGNMENTS).write_text(lines[0] + "\n")
    assert later.agreement(tmp_path) == {}


TURNED = replace(
    later.ROTATIONS, source=Digits(), model=model("mlp", (1, 8, 8), 10), participants=16, unseen=4, evaluate_every=6
)


@pytest.mark.parametrize("row", ["clove:k=3,stable=None", "fedavg"])
def test_newcomers_are_placed_by_the_rule_and_by_their_losses(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "commit", lambda: "abc")
    plan = replace(TURNED, rounds=6)
    tables.run_cell(tmp_path, plan, row, "four", 0, {})
    measured = json.loads((tmp_path / "after.json").read_text())
    people = onboard_unseen(tmp_path, plan.source)["participants"]
    assert len(people) == 4
    assert measured["unseen"] == pytest.approx(np.mean([person["served_accuracy"] for person in people]))
    names = sorted(path.stem for path in (tmp_path / "clusters").glob("cluster-*"))
    assert ("unseen_by_loss" in measured) == bool(names) == (row != "fedavg")
    if names:
        accuracies = []
        for person in plan.data("four", 0).newcomers(plan.source):
            (x, y), (test_x, test_y) = (map(torch.from_numpy, (s.x, s.y)) for s in (person.train, person.test))
            models = [load_model(tmp_path, name) for name in names]
            with torch.no_grad():
                losses = [float(F.cross_entropy(m(x), y)) for m in models]
                guess = models[int(np.argmin(losses))](test_x).argmax(1)
            accuracies.append(float((guess == test_y).float().mean()))
        assert measured["unseen_by_loss"] == pytest.approx(np.mean(accuracies))
    served = [person["served_accuracy"] for person in load_run(tmp_path).summary["participants"]]
    assert measured["tenth_accuracy"] == pytest.approx(np.sort(served)[:2].mean())  # of twelve


def test_each_hospital_of_the_stroke_trial_is_in_the_group_of_its_country() -> None:
    plan, method = PLANS["stroke-groups"], later.Countries()
    source = plan.source_of(3)
    people = plan.data("natural", 3).resolved(source).host(source, "local", 0, 1)
    assert {person.name for person in people} == set(method.groups) and len(people) == 187
    pairs = {(person.group, method.labels.index(method.groups[person.name])) for person in people}
    assert len(pairs) == len({group for group, _ in pairs}) == len(method.labels) == 31


def test_cells_in_one_process_need_neither_flare_nor_the_repository(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["nvflare"] = None
import common, tables
common.git = None
tables.main()
"""
    command = ["run", "--plan", "later-digits", "--rows", "fedavg", "--rounds", "1", "--set", "evaluate_every=1"]
    environment = {**os.environ, "CFL_COMMIT": "abc", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = [sys.executable, "-c", script, *command, "--out", str(tmp_path)]
    subprocess.run(done, check=True, env=environment, capture_output=True)
    (cell_of,) = read_cells(tmp_path)
    assert cell_of.facts["commit"] == "abc" and cell_of.after.keys() == {"tenth_accuracy"}


# ---- Figures ----


def test_calibration_error_by_hand() -> None:
    counts = np.zeros((1, 2, 200))
    chance = hospitals.probabilities(200)
    low, high = (int(np.abs(chance - p).argmin()) for p in (0.25, 0.75))
    counts[0, :, low], counts[0, :, high] = (3, 1), (2, 2)  # 1 of 4 at 0.25, and 2 of 4 at 0.75
    expected = (abs(1 - 4 * chance[low]) + abs(2 - 4 * chance[high])) / 8
    assert hospitals.calibration_error(counts) == pytest.approx(expected)
    assert hospitals.calibration_error(counts) == pytest.approx(0.125, abs=0.02)
    opposite = counts[:, ::-1, ::-1]  # the other class, whose probabilities are 1 - p
    assert hospitals.calibration_error(opposite) == pytest.approx(expected)


def cell(losses: list[float | None]) -> Cell:
    after: dict[str, Any] = {"hospitals": {"served_loss": losses}}
    return Cell("a", {}, {}, [], after)


def test_hospitals_gain_by_the_mean_of_all_seeds() -> None:
    mine = kept.losses({0: cell([0.2, 0.5, None]), 1: cell([0.5, 0.3, None])})
    theirs = kept.losses({1: cell([0.3, 0.5, None]), 0: cell([0.3, 0.4, None])})
    assert kept.gaining(mine, theirs) == (1, 2)  # 0.35 against 0.3, and 0.4 against 0.45
    assert kept.gaining(mine, mine) == (0, 2)


# ---- Figures of the papers ----


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


# The league table


def fashion(folder: Path) -> Path:
    """A small file in the layout of Fashion-MNIST; each image has one bright corner, which turns with it."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 96), ("test", 24)):
        images = rng.integers(0, 100, (count, 28, 28), np.uint8)
        images[:, 0, 0] = 255
        arrays |= {f"{split}_images": images, f"{split}_labels": np.arange(count)[:, None] % 10}
    np.savez(folder / "fashionmnist.npz", **arrays)
    return folder


def test_the_shares_of_the_league_are_equal_and_turned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    league = import_module("league")
    monkeypatch.setenv("CFL_DATA_ROOT", str(fashion(tmp_path)))
    league.write_shares(tmp_path / "shares.npz", 4, (20, 6))
    shares = league.shares_of(tmp_path / "shares.npz")
    assert [(len(share.y), len(share.test_y)) for share in shares] == [(20, 6)] * 4
    assert shares[1].y.tolist() == [i % 10 for i in range(20, 40)]
    for share, (row, column) in zip(shares, [(0, 0), (27, 0), (27, 27), (0, 27)], strict=True):  # against the clock
        assert (share.x[:, 0, row, column] == 1).all() and (share.test_x[:, 0, row, column] == 1).all()
    with pytest.raises(SystemExit, match="100 train samples are asked for; there are 96"):
        league.write_shares(tmp_path / "more.npz", 5, (20, 6))


def test_a_network_of_another_size_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    import_module("league")  # which makes its peers' work importable
    work = import_module("work")
    assert work.size(work.Net()) == work.PARAMETERS == 8 * 26 + 16 * (8 * 25 + 1) + 10 * (16 * 49 + 1)
    work.tell([0.5, 0.25], work.PARAMETERS, "torch")
    said = json.loads(capsys.readouterr().out.removeprefix(work.MARK))
    assert said == {"accuracy": 0.375, "versions": {"torch": version("torch")}}
    with pytest.raises(ValueError, match="has 7 parameters"):
        work.tell([0.5], 7)


@pytest.mark.slow
def test_the_league_keeps_rows_and_names_who_is_missing(tmp_path: Path) -> None:
    league = import_module("league")
    broken = tmp_path / "envs" / "pfl" / "bin" / "python"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho 'Traceback'\necho 'ImportError: no pfl here'\nexit 1\n")
    broken.chmod(0o755)
    (tmp_path / "envs" / "pfl" / "pfl.installed").write_text("\n".join(league.PEERS["pfl"].packages))
    command = [sys.executable, league.__file__, "--envs", str(tmp_path / "envs"), "--out", str(tmp_path / "a.json")]
    command += ["--rows", "pfl-fedavg", "loop-fedavg", "--participants", "3", "--samples", "32", "8", "--rounds", "1"]
    cold = {key: value for key, value in os.environ.items() if key != "CFL_WARM"}  # a fork's time counts elsewhere
    env = {**cold, "CFL_DATA_ROOT": str(fashion(tmp_path))}
    run = partial(subprocess.run, capture_output=True, text=True, env=env)
    assert run([*command, "2"]).returncode == 0
    result = json.loads((tmp_path / "a.json").read_text())
    assert result["missing"] == {"pfl-fedavg": "ImportError: no pfl here"} and [*result["rows"]] == ["loop-fedavg"]
    row = result["rows"]["loop-fedavg"]
    short, long = row["runs"]["1"], row["runs"]["2"]
    assert row["a_round"]["cpu_seconds"] == pytest.approx(long["cpu_seconds"] - short["cpu_seconds"])
    assert row["start"]["wall_seconds"] == pytest.approx(2 * short["wall_seconds"] - long["wall_seconds"])
    assert row["accuracy"] == long["accuracy"] and row["peak_MB"] > 50
    assert run([*command, "2"]).returncode == 0  # nothing is measured again
    assert json.loads((tmp_path / "a.json").read_text()) == result
    refused = run([*command, "3"])
    assert refused.returncode == 1 and "was measured with" in refused.stderr
