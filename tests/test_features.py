# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' figures of the participants' features, from what a run left on disk."""

import sys
from pathlib import Path

import numpy as np
import pytest

from cfl_flare.methods import IFCA, FeSEM, WeCFL
from cfl_flare.results.run_dir import load_run
from tests.report.test_figures import is_an_image
from tests.tiny import rounds

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import features
from features import embedding


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
