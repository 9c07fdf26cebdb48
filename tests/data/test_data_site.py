# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Where a site finds its own data."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, DataSource, Npz, ParticipantData, Samples, SiteData, sources
from cfl_flare.data.samples import checked
from cfl_flare.data.summary import DataSummary


@pytest.fixture(autouse=True)
def nothing_said(tmp_path, monkeypatch):
    for name in ("CFL_DATA", "CFL_DATA_ROOT", "CFL_LABEL", "CFL_EVENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sources, "MOUNTS", tmp_path / "data")


def npz(path: Path, value: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    images, labels = np.full((4, 3, 3), value, np.uint8), np.arange(4) % 2
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return path


def mount(monkeypatch, *mounted: Path) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) in mounted)


def first(source: SiteData) -> int:
    return int(source.load()[0].x.flat[0])


def test_the_first_place_that_is_given_counts(tmp_path, monkeypatch):
    mounted = tmp_path / "data" / "blood" / "ours"
    mounted.mkdir(parents=True)
    mount(monkeypatch, mounted)
    assert SiteData(study="blood").located() == (mounted, "mounted for study blood")
    monkeypatch.setenv("CFL_DATA", str(npz(tmp_path / "env.npz", 2)))
    assert first(SiteData(study="blood")) == 2
    assert first(SiteData(str(npz(tmp_path / "given.npz", 3)), study="blood")) == 3


def test_a_folder_with_one_npz_file_stands_for_it(tmp_path, monkeypatch):
    mount(monkeypatch, npz(tmp_path / "data" / "blood" / "ours" / "cells.npz", 5).parent)
    assert first(SiteData(study="blood")) == 5


def table(path: Path, label: str = "diagnosis") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{age},{'ill' if age % 2 else 'well'},{age / 2}" for age in range(20)]
    path.write_text("\n".join([f"age,{label},dose", *rows]) + "\n")
    return path


def test_a_table_whose_label_the_site_names(tmp_path, monkeypatch):
    path = table(tmp_path / "ward.csv")
    monkeypatch.setenv("CFL_DATA", str(path))
    with pytest.raises(
        DataError, match=r"no column 'label'; it has age, diagnosis, dose; set label, or CFL_LABEL together"
    ):
        SiteData().load()
    monkeypatch.setenv("CFL_LABEL", "diagnosis")
    train, test = SiteData().load()
    assert train.x.shape[1:] == (2,) and len(train) + len(test) == 20 and set(train.y) == {0, 1}
    monkeypatch.setenv("CFL_DATA", str(table(tmp_path / "mounted" / "ward.csv").parent))
    assert len(SiteData().load()[0]) == len(train)
    monkeypatch.delenv("CFL_LABEL")
    monkeypatch.setenv("CFL_DATA", str(table(tmp_path / "usual.CSV", "label")))
    assert len(SiteData().load()[0]) == len(train)


def test_a_table_whose_event_the_site_names(tmp_path, monkeypatch):
    path = tmp_path / "ward.csv"
    path.write_text("\n".join(["age,months,died", *(f"{i},{i + 1},{i % 2}" for i in range(20))]) + "\n")
    for name, value in (("CFL_DATA", str(path)), ("CFL_LABEL", "months"), ("CFL_EVENT", "died")):
        monkeypatch.setenv(name, value)
    train, _ = SiteData().load()
    assert train.x.shape[1:] == (1,) and train.y.shape[1:] == (2,) and set(train.y[:, 1]) == {0, 1}
    monkeypatch.setenv("CFL_EVENT", "dead")
    with pytest.raises(DataError, match=r"no column 'dead'; it has .*; set event, or CFL_EVENT together with CFL_DATA"):
        SiteData().load()


def test_arrays_whose_labels_the_site_names(tmp_path, monkeypatch):
    images = np.zeros((4, 3, 3), np.uint8)
    masks = np.ones((4, 3, 3), np.uint8)
    np.savez(tmp_path / "a.npz", train_images=images, test_images=images, train_masks=masks, test_masks=masks)
    monkeypatch.setenv("CFL_DATA", str(tmp_path / "a.npz"))
    with pytest.raises(DataError, match="no array 'train_labels'; it has train_images, "):
        SiteData().load()
    monkeypatch.setenv("CFL_LABEL", "masks")
    assert SiteData().load()[0].y.shape == (4, 3, 3)


def test_a_folder_of_images_beside_a_table_is_a_folder_of_images(tmp_path, monkeypatch):
    for i in range(4):
        for name in "ab":
            (tmp_path / "set" / name).mkdir(parents=True, exist_ok=True)
            Image.new("L", (3, 3), i).save(tmp_path / "set" / name / f"{i}.png")
    table(tmp_path / "set" / "facts.csv")
    monkeypatch.setenv("CFL_DATA", str(tmp_path / "set"))
    assert SiteData(size=3).load()[0].x.shape[1:] == (1, 3, 3)


def test_what_is_named_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("CFL_DATA", "$WARD/none.npz")
    monkeypatch.setenv("WARD", str(tmp_path))
    with pytest.raises(DataError, match=f"CFL_DATA: path = '{tmp_path}/none.npz' is not a file or folder"):
        SiteData().load()
    with pytest.raises(DataError, match="data site: path = 'gone' is not a file or folder"):
        SiteData("gone").load()


def test_one_error_lists_all_places(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"tried path \(not given\), CFL_DATA \(not set\), no study; set"):
        SiteData().load()
    for dataset in ("a", "b"):
        (tmp_path / "data" / "blood" / dataset).mkdir(parents=True)
    with pytest.raises(DataError, match=r"for study blood \(0 datasets\); set CFL_DATA to an .npz file"):
        SiteData(study="blood").load()  # plain folders
    mount(monkeypatch, *(tmp_path / "data" / "blood" / d for d in "ab"))
    with pytest.raises(DataError, match=r"\(2 datasets\)"):
        SiteData(study="blood").load()


def test_a_folder_of_images_by_class(tmp_path, monkeypatch, caplog):
    for i in range(10):
        (tmp_path / "cells" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 6 + i)).save(tmp_path / "cells" / "ab"[i % 2] / f"{i}.png")
    monkeypatch.setenv("CFL_DATA", str(tmp_path / "cells"))
    with caplog.at_level(logging.INFO):
        train, test = SiteData(size=4, channels=1).load()
    assert train.x.shape == (8, 1, 4, 4) and test.x.shape == (2, 1, 4, 4)
    assert f"data: {tmp_path / 'cells'} (CFL_DATA)" in caplog.text


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="channels = 2"):
        SiteData(channels=2)
    with pytest.raises(ConfigError, match="path = ''"):
        SiteData("")


def test_a_site_may_have_no_test_samples_and_is_told(tmp_path):
    path = tmp_path / "ward.npz"
    images, labels = np.full((8, 3, 3), 7, np.uint8), np.arange(8) % 2
    np.savez(path, train_images=images, train_labels=labels, test_images=np.zeros((0,)), test_labels=np.zeros((0,)))
    (own,) = DataConfig().host(Npz(str(path)), "ward", 0, 1)
    assert (own.test.x.shape, own.test.y.shape, own.test.y.dtype) == ((0, 1, 3, 3), (0,), own.train.y.dtype)
    found = DataSummary.of(own)
    assert (found.train, found.test) == ((4, 4), (0, 0))
    assert found.remarks[0].startswith("no test samples: it trains, and no figure says how good its model is")


def test_a_site_without_training_samples_is_refused():
    some, none = Samples(np.ones((2, 3), np.float32), np.array([0, 1])), Samples(np.ones((0, 3)), np.zeros(0, int))
    with pytest.raises(DataError, match="ward: training: no samples; it needs some"):
        checked((none, some), "ward")
    with pytest.raises(DataError, match="ward: test: 2 samples but 0 labels"):
        checked((some, Samples(some.x, none.y)), "ward")


@pytest.mark.parametrize("y", [[[0, 1], [1, 1]], [0.5, 1.5], [[1.0, 1], [2.0, 0]]])
def test_an_empty_test_split_has_the_form_of_the_training_split(y):
    some = Samples(np.ones((2, 3), np.float32), np.array(y), np.array([3, 4]))
    train, test = checked((some, Samples(np.zeros(0), np.zeros(0))), "ward")
    assert (test.x.shape, test.y.shape, test.y.dtype) == ((0, 3), (0, *train.y.shape[1:]), train.y.dtype)
    assert len(test.key) == 0
    own = DataSummary.of(ParticipantData("ward", train, test))
    assert own.samples == (2, 0)
    assert sum(own.test) == 0


def test_a_pooled_source_needs_test_samples_to_deal_out():
    class Untested(DataSource):
        def load(self):
            return Samples(np.ones((40, 3), np.float32), np.arange(40) % 2), Samples(np.zeros(0), np.zeros(0))

    with pytest.raises(DataError, match="there are no test samples to deal out; put some into the source's test split"):
        DataConfig(2, "iid").host(Untested(), "local", 0, 1)
