# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The papers' data: FEMNIST by its writers, subsets of a size, sizes of groups, and tiers that do not train."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, Digits
from cfl_flare.data.femnist import FEMNIST
from cfl_flare.data.named import subset
from cfl_flare.data.samples import Samples


def write_leaf(folder: Path, users: dict[str, list[int]], pixel: float = 1.0) -> None:
    """A file as LEAF writes it: each user's images are blank but for the first pixel."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": [[pixel] + [0.0] * 783] * len(y), "y": y} for user, y in users.items()}
    counts = [len(y) for y in users.values()]
    content = {"users": [*users], "num_samples": counts, "user_data": data}
    (folder / f"all_data_{len(users)}.json").write_text(json.dumps(content))


def test_femnist_is_dealt_by_writers(tmp_path):
    """One writer has 9 training and 2 test samples, the other one 12 and 3."""
    write_leaf(tmp_path / "femnist" / "train", {"f0_1": [3] * 9, "f0_2": [61] * 12})
    write_leaf(tmp_path / "femnist" / "test", {"f0_1": [3] * 2, "f0_2": [61] * 3})
    source = FEMNIST(root=str(tmp_path))
    train, _ = source.load()
    assert train.x.shape == (21, 1, 28, 28) and train.x.max() == 255
    config = DataConfig(partition="natural").resolved(source)
    people = config.host(source, "local", 0, 1)
    assert [(p.name, len(p.train), len(p.test)) for p in people] == [("f0_1", 9, 2), ("f0_2", 12, 3)]
    assert {*people[1].train.y.tolist()} == {1}  # the codes 3 and 61 are the classes 0 and 1 of these two writers


def test_files_that_leaf_did_not_write_are_refused(tmp_path):
    source = FEMNIST(root=str(tmp_path))
    with pytest.raises(DataError, match=r"has no .json files.*\nhint: copy LEAF's"):
        source.load()
    write_leaf(tmp_path / "femnist" / "train", {"f0_1": [3]}, pixel=255.0)
    with pytest.raises(DataError, match="pixels from 0 to 255 are invalid: expected 0 to 1"):
        source.load()


def test_a_subset_keeps_the_ratio_of_the_splits():
    """12 of 40 training and 20 test samples: 8 and 4. Each is drawn once, and the draw depends on the seed alone."""
    splits = [Samples(np.arange(n).reshape(-1, 1, 1, 1), np.arange(n) % 2) for n in (40, 20)]
    train, test = subset((splits[0], splits[1]), 12, 0, "data cifar10")
    assert (len(train), len(test)) == (8, 4)
    assert len({*train.x.ravel().tolist()}) == 8
    again, _ = subset((splits[0], splits[1]), 12, 0, "data cifar10")
    assert (again.x == train.x).all()
    with pytest.raises(ConfigError, match="samples = 61 exceeds the 60 samples"):
        subset((splits[0], splits[1]), 61, 0, "data cifar10")


def test_only_some_tiers_train():
    """Of 8 participants in four tiers, the first two tiers train; the other four join afterwards."""
    config = DataConfig(8, "heterogeneity_tiers", train_groups=(0, 1))
    assert config.names == ["p0", "p1", "p2", "p3"]
    assert [p.name for p in config.newcomers(Digits())] == ["p4", "p5", "p6", "p7"]


@pytest.mark.parametrize(
    ("partition", "groups", "reason"),
    [
        ("heterogeneity_tiers", (4,), "train_groups = .4.*: the groups are 0, 1, 2, 3"),
        ("iid", (0,), "train_groups = .0.*partition has no groups that are known in advance"),
    ],
)
def test_groups_that_are_not_there_are_refused(partition, groups, reason):
    with pytest.raises(ConfigError, match=reason):
        DataConfig(8, partition, train_groups=groups)
