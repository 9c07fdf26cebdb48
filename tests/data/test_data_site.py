# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Where data lies: sets by name, in the layouts of torchvision and MedMNIST, and a site's own data."""

import logging
import os
import re
import struct
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, DataSource, Npz, ParticipantData, Samples, SiteData, sources
from cfl_flare.data.loading import checked
from cfl_flare.data.named import CIFAR10, CIFAR100, EMNIST, MNIST, FashionMNIST, MedMNIST
from cfl_flare.data.summary import DataSummary
from tests.helpers.files import write_npz


def write_idx(path, array):
    """A file as MNIST's: magic number, sizes, bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def idx_set(raw, prefixes, first_label=0):
    """Five training and four test images; pixel (0, 1) is marked."""
    for (images, labels), n in zip(prefixes, (5, 4)):
        x = np.zeros((n, 28, 28))
        x[:, 0, 1] = 9
        write_idx(raw / images, x)
        write_idx(raw / labels, np.arange(n) + first_label)


MNIST_FILES = [
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
]


@pytest.mark.parametrize("source", [MNIST, FashionMNIST])
def test_mnist_from_idx_files(tmp_path, monkeypatch, source):
    idx_set(tmp_path / source.__name__ / "raw", MNIST_FILES)
    monkeypatch.setenv("CFL_DATA_ROOT", str(tmp_path))
    with pytest.raises(DataError, match=r"looked in \$CFL_DATA_ROOT"):
        source(root="$CFL_DATA_ROOT").load()
    for one in (source(), source(root=str(tmp_path))):
        train, test = checked(one.load(), "data")
        assert train.x.shape == (5, 1, 28, 28) and train.x.dtype == np.uint8
        assert test.y.tolist() == [0, 1, 2, 3] and train.x[0, 0, 0, 1] == 9


@pytest.mark.parametrize(("split", "first"), [("letters", 1), ("balanced", 0)])
def test_emnist_is_turned_upright_and_counted_from_0(tmp_path, split, first):
    names = [
        tuple(f"emnist-{split}-{s}-{kind}" for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
        for s in ("train", "test")
    ]
    idx_set(tmp_path / "EMNIST" / "raw", names, first)
    train, test = checked(EMNIST(root=str(tmp_path), split=split).load(), "data")
    assert train.y.tolist() == [0, 1, 2, 3, 4] and train.x[0, 0, 1, 0] == 9 and train.x[0, 0, 0, 1] == 0
    assert len(test) == 4


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        (MNIST, "MNIST/raw"),
        (FashionMNIST, "FashionMNIST/raw"),
        (CIFAR10, "cifar-10-batches-py"),
        (CIFAR100, "cifar-100-python"),
        (EMNIST, "EMNIST/raw"),
    ],
)
def test_a_set_that_is_not_there(tmp_path, monkeypatch, source, folder):
    monkeypatch.delenv("CFL_DATA_ROOT", raising=False)
    where = f"data {source.name}"
    with pytest.raises(DataError, match=f"{where}: nowhere to look: root is not given and CFL_DATA_ROOT is not set"):
        source().load()
    with pytest.raises(DataError, match=f"{where}: root = '/no/such' is not a folder; looked in /no/such"):
        source(root="/no/such").load()
    with pytest.raises(
        DataError, match=f"{where}: cannot read {re.escape(str(tmp_path / folder))} .*download=True$"
    ) as e:
        source(root=str(tmp_path)).load()
    assert "\n" not in str(e.value)
    (tmp_path / f"{source.name.replace('-', '')}.npz").touch()
    with pytest.raises(DataError, match=f"read it with the source npz, npz:path={re.escape(str(tmp_path))}"):
        source(root=str(tmp_path)).load()


def test_broken_files_are_one_line(tmp_path):
    idx_set(tmp_path / "MNIST" / "raw", MNIST_FILES)
    (tmp_path / "MNIST" / "raw" / MNIST_FILES[0][0]).write_bytes(b"\0\0\x08\x03")
    with pytest.raises(DataError, match=r"data mnist: cannot read .*MNIST/raw"):
        MNIST(root=str(tmp_path)).load()


def test_emnist_split_is_checked():
    with pytest.raises(ConfigError, match="split = 'mixed' should be Literal"):
        EMNIST(split="mixed")


# MedMNIST: the package is stood in for, so that the tests do not need it.


class FakeSet:
    """As medmnist's classes: reads <root>/<flag>[_size].npz."""

    flag = "bloodmnist"

    def __init__(self, split, root, size, download):
        suffix = "" if size == 28 else f"_{size}"
        try:
            file = np.load(f"{root}/{self.flag}{suffix}.npz")
        except FileNotFoundError:
            raise RuntimeError("Dataset not found. ") from None
        self.imgs, self.labels = file[f"{split}_images"], file[f"{split}_labels"]


@pytest.fixture
def medmnist(monkeypatch):
    package = types.ModuleType("medmnist")
    package.INFO = {"bloodmnist": {"python_class": "BloodMNIST"}, "pathmnist": {"python_class": "PathMNIST"}}
    package.dataset = types.SimpleNamespace(BloodMNIST=FakeSet, PathMNIST=FakeSet)
    monkeypatch.setitem(sys.modules, "medmnist", package)


def write_medmnist(path, shape=(28, 28, 3), labels=1):
    x, y = np.zeros((6, *shape), np.uint8), np.zeros((6, labels), np.uint8)
    write_npz(path, x, y, x[:3], y[:3])


def test_medmnist(tmp_path, medmnist):
    write_medmnist(tmp_path / "bloodmnist.npz")
    train, test = checked(MedMNIST("bloodmnist", root=str(tmp_path)).load(), "data")
    assert train.x.shape == (6, 3, 28, 28) and len(test) == 3
    write_medmnist(tmp_path / "bloodmnist_64.npz", (64, 64))
    assert MedMNIST("bloodmnist", root=str(tmp_path), size=64).load()[0].x.shape == (6, 1, 64, 64)


def test_medmnist_refusals(tmp_path, medmnist):
    with pytest.raises(DataError, match="no such set; medmnist has bloodmnist, pathmnist"):
        MedMNIST("nope", root=str(tmp_path)).load()
    with pytest.raises(
        DataError, match=r"cannot read .*bloodmnist.npz \(Dataset not found\); set root, or download=True$"
    ):
        MedMNIST("bloodmnist", root=str(tmp_path)).load()


def test_a_set_with_several_findings(tmp_path, medmnist):
    write_medmnist(tmp_path / "bloodmnist.npz", labels=14)
    train, test = MedMNIST("bloodmnist", root=str(tmp_path)).load()
    assert train.y.shape == (6, 14) and test.y.shape == (3, 14) and train.y.dtype == np.uint8
    write_medmnist(tmp_path / "bloodmnist.npz", shape=(28, 28, 28))
    with pytest.raises(DataError, match=r"images have shape \(6, 28, 28, 28\)"):
        MedMNIST("bloodmnist", root=str(tmp_path)).load()
    (tmp_path / "bloodmnist.npz").write_bytes(b"hello")
    with pytest.raises(DataError, match=r"cannot read .* exists: read it with the source npz"):
        MedMNIST("bloodmnist", root=str(tmp_path)).load()
    with pytest.raises(ConfigError, match=r"flag = '\.\./x' should be a set's name"):
        MedMNIST("../x")
    with pytest.raises(ConfigError, match="size = 0 should be >= 1"):
        MedMNIST("bloodmnist", size=0)


def test_medmnist_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "medmnist", None)
    monkeypatch.setenv("CFL_DATA_ROOT", str(tmp_path))
    with pytest.raises(DataError, match=r"the package medmnist is not installed; pip install medmnist$"):
        MedMNIST("pathmnist").load()
    (tmp_path / "pathmnist.npz").touch()
    with pytest.raises(DataError, match=r"pip install medmnist; .*pathmnist.npz exists: read it with .* npz:path="):
        MedMNIST("pathmnist").load()


# ---- A site's own data ----


@pytest.fixture(autouse=True)
def nothing_said(tmp_path, monkeypatch):
    for name in ("CFL_DATA", "CFL_DATA_ROOT", "CFL_LABEL", "CFL_EVENT", "CFL_PATIENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sources, "MOUNTS", tmp_path / "data")


def write_constant_npz(path: Path, value: int) -> Path:
    return write_npz(path, np.full((4, 3, 3), value, np.uint8), np.arange(4) % 2)


def mount(monkeypatch, *mounted: Path) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) in mounted)


def read_first_pixel(source: SiteData) -> int:
    return int(source.load()[0].x.flat[0])


def test_the_first_place_that_is_given_counts(tmp_path, monkeypatch):
    mounted = tmp_path / "data" / "blood" / "ours"
    mounted.mkdir(parents=True)
    mount(monkeypatch, mounted)
    assert SiteData(study="blood").located() == (mounted, "mounted for study blood")
    monkeypatch.setenv("CFL_DATA", str(write_constant_npz(tmp_path / "env.npz", 2)))
    assert read_first_pixel(SiteData(study="blood")) == 2
    assert read_first_pixel(SiteData(str(write_constant_npz(tmp_path / "given.npz", 3)), study="blood")) == 3


def test_a_folder_with_one_npz_file_stands_for_it(tmp_path, monkeypatch):
    mount(monkeypatch, write_constant_npz(tmp_path / "data" / "blood" / "ours" / "cells.npz", 5).parent)
    assert read_first_pixel(SiteData(study="blood")) == 5


def write_age_table(path: Path, label: str = "diagnosis") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{age},{'ill' if age % 2 else 'well'},{age / 2}" for age in range(20)]
    path.write_text("\n".join([f"age,{label},dose", *rows]) + "\n")
    return path


def test_a_table_whose_label_the_site_names(tmp_path, monkeypatch):
    path = write_age_table(tmp_path / "ward.csv")
    monkeypatch.setenv("CFL_DATA", str(path))
    with pytest.raises(
        DataError, match=r"no column 'label'; it has age, diagnosis, dose; set label, or CFL_LABEL together"
    ):
        SiteData().load()
    monkeypatch.setenv("CFL_LABEL", "diagnosis")
    train, test = SiteData().load()
    assert train.x.shape[1:] == (2,) and len(train) + len(test) == 20 and set(train.y) == {0, 1}
    monkeypatch.setenv("CFL_DATA", str(write_age_table(tmp_path / "mounted" / "ward.csv").parent))
    assert len(SiteData().load()[0]) == len(train)
    monkeypatch.delenv("CFL_LABEL")
    monkeypatch.setenv("CFL_DATA", str(write_age_table(tmp_path / "usual.CSV", "label")))
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


def test_patients_whom_the_site_names(tmp_path, monkeypatch):
    path = tmp_path / "ward.csv"
    path.write_text(
        "\n".join(["age,visit,pid,label", *(f"{i},{i % 3},q{i // 3},{i // 3 % 2}" for i in range(60))]) + "\n"
    )
    monkeypatch.setenv("CFL_DATA", str(path))
    monkeypatch.setenv("CFL_PATIENT", "pid")
    (data,) = DataConfig().host(SiteData(), "site-1", 0, 1)
    assert data.train.x.shape == (48, 2)  # the patient is no feature
    assert len({*data.train.patient}) == 16 and not {*data.train.patient} & {*data.test.patient}
    monkeypatch.setenv("CFL_PATIENT", "id")
    with pytest.raises(
        DataError, match=r"no column 'id'; it has .*; set patient, or CFL_PATIENT together with CFL_DATA"
    ):
        SiteData().load()
    images = np.zeros((4, 3, 3), np.uint8)
    arrays = {
        f"{split}_{kind}": values
        for split in ("train", "test")
        for kind, values in (("images", images), ("labels", np.arange(4) % 2))
    }
    for test_patients, refusal in (
        ([8, 9, 9, 9], None),
        ([8, 7, 7, 9], "1 of 4 patients have training and test samples"),
    ):
        np.savez(tmp_path / "a.npz", **arrays, train_id=np.array([1, 1, 7, 1]), test_id=np.array(test_patients))
        monkeypatch.setenv("CFL_DATA", str(tmp_path / "a.npz"))
        if refusal is None:
            assert SiteData().load()[0].patient.tolist() == [1, 1, 7, 1]
        else:
            with pytest.raises(DataError, match=refusal):
                DataConfig(min_samples=1).host(SiteData(), "site-1", 0, 1)
    (tmp_path / "set" / "a").mkdir(parents=True)
    monkeypatch.setenv("CFL_DATA", str(tmp_path / "set"))
    with pytest.raises(DataError, match=r"CFL_PATIENT = 'id' is set, and .*, a folder of images, names no patients"):
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
    write_age_table(tmp_path / "set" / "facts.csv")
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
    write_npz(path, images, labels, np.zeros((0,)), np.zeros((0,)))
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
