# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' own data source, and their figures of the participants' features."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cfl_flare.core.config import build, describe
from cfl_flare.core.errors import DataError
from cfl_flare.data import DataSource
from cfl_flare.data.sources import checked
from cfl_flare.methods import IFCA, FeSEM, WeCFL
from cfl_flare.results.run_dir import load_run
from tests.report.test_figures import is_an_image
from tests.tiny import rounds

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import features
from features import embedding
from sources import JpegNpz

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
    for name, kept in (("kept", True), ("other", False)):
        rounds(tmp_path / name, method, truth=truth, count=count, keep_features=kept)
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
