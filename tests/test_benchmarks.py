# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: sources, figures of hospitals, and those that are no tables of cells."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kept
import numpy as np
import pytest
from common import Cell, read_cells
from PIL import Image
from plans import PLANS, hospitals, later
from plans.plan import own_training
from sources import FLambyHeart, JpegNpz

from cfl_flare.core.config import build, describe
from cfl_flare.core.errors import DataError
from cfl_flare.data import DataSource
from cfl_flare.data.sources import checked
from cfl_flare.results.run_dir import ASSIGNMENTS
from tests.helpers.tiny import rounds

# JPEG files in an npz archive


def jpegs(n):
    """Files end to end, and where each begins."""
    files = []
    for i in range(n):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 6), (10 * i, 0, 255 - 10 * i)).save(buffer, "JPEG")
        files.append(buffer.getvalue())
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)])


def save_jpegs(folder, **changes):
    """A file of five images in both splits."""
    data, offsets = jpegs(5)
    arrays = {}
    for split in ("train", "test"):
        arrays |= {f"{split}_jpeg": data, f"{split}_offsets": offsets, f"{split}_labels": np.arange(5)[:, None]}
    path = folder / "a.npz"
    np.savez(path, **{k: v for k, v in {**arrays, **changes}.items() if v is not None})
    return str(path)


def test_jpeg_npz(tmp_path):
    train, test = checked(JpegNpz(save_jpegs(tmp_path)).load(), "data")
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
        checked(JpegNpz(save_jpegs(tmp_path, **changes)).load(), "data")
    assert "\n" not in str(caught.value)


def test_it_is_given_to_a_job_as_any_class_of_a_user_s_own(tmp_path):
    source = JpegNpz(save_jpegs(tmp_path))
    said = describe(source, "data")
    assert said == {"class_path": "sources.JpegNpz", "args": {"path": source.path}}
    assert build(said, DataSource, "data") == source


@pytest.mark.slow
def test_real_jpeg_npz(data_root):
    if not (data_root / "cifar10_jpeg.npz").is_file():
        pytest.skip("cifar10_jpeg.npz is not in CFL_DATA_ROOT")
    train, test = checked(JpegNpz("cifar10_jpeg.npz").load(), "data")
    assert train.x.shape == (50_000, 3, 32, 32) and np.bincount(test.y).tolist() == [1000] * 10


# ---- Real hospitals: FLamby's data, calibration, and who gains ----

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


def make_loss_cell(losses: list[float | None]) -> Cell:
    after: dict[str, Any] = {"hospitals": {"served_loss": losses}}
    return Cell("a", {}, {}, [], after)


def test_hospitals_gain_by_the_mean_of_all_seeds() -> None:
    mine = kept.losses({0: make_loss_cell([0.2, 0.5, None]), 1: make_loss_cell([0.5, 0.3, None])})
    theirs = kept.losses({1: make_loss_cell([0.3, 0.5, None]), 0: make_loss_cell([0.3, 0.4, None])})
    assert kept.gaining(mine, theirs) == (1, 2)  # 0.35 against 0.3, and 0.4 against 0.45
    assert kept.gaining(mine, mine) == (0, 2)


@pytest.mark.parametrize(
    ("script", "given", "message"),
    [
        ("speed", "--rounds 1", r"--rounds 1 should be at least 2"),
        ("flare_speed", "--rounds 1 4", r"--rounds 1 4 should be at least 3 4"),
        ("flare_speed", "--rounds 1 4 --rows fedavg", r"--rounds 1 4 should be at least 2 3"),
        ("flare_speed", "--rounds 3 3 --rows wecfl", r"--rounds 3 3 should be at least 2 3, and the second"),
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
    for rows, few, more in ((["ifca-cam"], 3, 4), (["fedavg"], 2, 3)):
        flare_speed.check_rounds(rows, few, more)


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
