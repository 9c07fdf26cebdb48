# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A damaged model is one clear error: each bit of a file counts, whether in its header or in its arrays."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import nn

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.errors import PayloadError
from cfl_flare.core.params import Layout, Params
from cfl_flare.results.store import Store, StoreError

ARRAYS = {"b": np.arange(3, dtype=np.float32), "a": np.array([[1, 2]]), "empty": np.zeros((0, 2), np.float32)}


def flipped(path: Path, content: bytes, bit: int) -> None:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)


def test_each_flipped_bit_of_a_model_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "cluster-0.safetensors"
    save_arrays(path, ARRAYS, {"class_path": "cfl_flare.models.MLP"})
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        flipped(path, content, bit)
        with pytest.raises(PayloadError, match=r"cluster-0\.safetensors") as caught:
            load_arrays(path)
        assert caught.value.code == "damaged_file" and "\n" not in str(caught.value)
    path.write_bytes(content)
    arrays, meta = load_arrays(path)
    assert meta == {"class_path": "cfl_flare.models.MLP"}
    assert {name: a.tolist() for name, a in arrays.items()} == {name: a.tolist() for name, a in ARRAYS.items()}
    with safe_open(str(path), framework="numpy") as file:  # other programs read it as any safetensors file
        assert file.get_tensor("b").tolist() == [0, 1, 2]


def test_each_flipped_bit_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    layout = Layout.of(nn.Linear(2, 1))
    store = Store(tmp_path)
    store.save(7, {"global": Params(layout, np.ones(layout.size, np.float32))}, {"assignment": {"p0": 1}})
    for suffix in (".safetensors", ".json"):
        path = tmp_path / f"round-000007{suffix}"
        content = path.read_bytes()
        for bit in range(8 * len(content)):
            flipped(path, content, bit)
            with pytest.raises(PayloadError, match="round-000007"):
                store.load(7, layout)
        path.write_bytes(content)
    assert store.load(7, layout)[1] == {"assignment": {"p0": 1}}


def test_two_checkpoints_are_not_mixed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in (1, 2):
        store.save(number, {}, {"assignment": {"p0": number}})
    (tmp_path / "round-000001.json").replace(tmp_path / "round-000002.json")
    with pytest.raises(StoreError, match="no intact version"):
        store.latest(Layout.of(nn.Linear(2, 1)))


@pytest.mark.parametrize("metadata", [None, {"cfl_flare": "{}"}, {"format": "pt"}])
def test_files_of_0_2_and_of_other_programs_need_no_checksum(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file(ARRAYS, tmp_path / "m.safetensors", metadata)
    arrays, meta = load_arrays(tmp_path / "m.safetensors")
    assert sorted(arrays) == sorted(ARRAYS) and meta == {}


def test_a_checkpoint_of_0_2_is_read_by_the_checksum_that_it_has(tmp_path: Path) -> None:
    layout, path = Layout.of(nn.Linear(2, 1)), tmp_path / "round-000003.safetensors"
    save_file({"global|weight": np.ones((1, 2), np.float32), "global|bias": np.ones(1, np.float32)}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".json").write_text(json.dumps({"version": 1, "round": 3, "sha256": digest, "facts": {"a": 1}}))
    models, facts = Store(tmp_path).load(3, layout)
    assert models["global"].vector.tolist() == [1, 1, 1] and facts == {"a": 1}
    content = path.read_bytes()
    flipped(path, content, 8 * len(content) - 1)
    with pytest.raises(PayloadError, match="do not match"):
        Store(tmp_path).load(3, layout)
