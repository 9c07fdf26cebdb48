# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Sets by name, read from small files in the layouts of torchvision and MedMNIST."""

import re
import struct
import sys
import types

import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data.named import CIFAR10, CIFAR100, EMNIST, MNIST, FashionMNIST, MedMNIST
from cfl_flare.data.samples import checked


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
    np.savez(path, train_images=x, train_labels=y, test_images=x[:3], test_labels=y[:3])


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
