# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays on disk: safetensors files, and the archive of what a method keeps."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import nn

from cfl_flare.core.arrays import Archive, LatestModels, load_arrays, save_arrays
from cfl_flare.core.errors import PayloadError
from cfl_flare.core.params import Layout, Params
from cfl_flare.results.store import Store, StoreError
from tests.tiny import LAYOUT, coin

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


def there(archive: Archive) -> set[str]:
    return {path.name for path in archive.folder.glob("*")}


def test_what_is_put_is_read_from_disk_in_every_version(tmp_path):
    archive = Archive(tmp_path / "a")
    archive.put("ward 3/b@x", 0, np.float32([1, 2]))
    archive.put("ward 3/b@x", 1, np.float32([3, 4]))
    found = archive.get("ward 3/b@x", 0)
    assert isinstance(found, np.memmap)
    assert found.tolist() == [1, 2]
    assert archive.get("ward 3/b@x", 1).tolist() == [3, 4]
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 5


def test_it_keeps_what_a_state_from_some_round_on_names(tmp_path):
    archive = Archive(tmp_path)
    for name, versions in {"a": (0, 1, 4), "b": (0,), "c": (2, 3)}.items():
        for version in versions:
            archive.put(name, version, np.zeros(1))
    archive.prune(3)  # a state of round 3 has the newest of rounds 0 to 2; later states may have later ones
    assert there(archive) == {f"{n}@{v:06d}.npy" for n, v in (("a", 1), ("a", 4), ("b", 0), ("c", 2), ("c", 3))}
    archive.rewind(3)
    assert there(archive) == {f"{n}@{v:06d}.npy" for n, v in (("a", 1), ("b", 0), ("c", 2))}


def test_a_resumed_run_of_another_name_has_a_copy_of_its_own(tmp_path):
    one, two = Archive(tmp_path / "one"), Archive(tmp_path / "two")
    one.put("a", 0, np.float32([1]))
    two.adopt(one)
    one.rewind(0)
    assert there(one) == set()
    assert two.get("a", 0).tolist() == [1]


def test_a_damaged_or_missing_file_is_named(tmp_path):
    archive = Archive(tmp_path)
    archive.put("a", 7, np.float32([1, 2, 3]))
    (tmp_path / "a@000007.npy").write_bytes((tmp_path / "a@000007.npy").read_bytes()[:-4])
    for name in ("a", "b"):
        with pytest.raises(PayloadError, match=f"{name}@000007.npy cannot be read"):
            archive.get(name, 7)


def test_a_temporary_archive_goes_with_its_owner():
    archive = Archive()
    archive.put("a", 0, np.zeros(1))
    folder = archive.folder
    assert folder.is_dir()
    del archive
    assert not folder.exists()


def test_the_latest_models_of_participants(tmp_path):
    known = LatestModels(Archive(tmp_path), LAYOUT, {"a": (0, 3), "b": (4, 1)})
    known.keep("a", coin(1, 0))
    known.keep("b", coin(5, 4))
    assert there(Archive(tmp_path)) == {"model%20of%20a@000000.npy", "model%20of%20b@000004.npy"}
    assert isinstance(known.parameters("a"), np.memmap)
    assert known.mean(["a", "b"], "uniform", coin(9, 9)).vector.tolist() == [3, 2]
    assert known.mean(["a", "b"], "samples", coin(9, 9)).vector.tolist() == [2, 1]
    assert known.mean([], "samples", coin(9, 9)).vector.tolist() == [9, 9]
    assert known.spread(["a", "b"], coin(1, 1)) == pytest.approx((1 + 16 + 9) / 2)


def test_counters_are_kept_beside_the_vector(tmp_path):
    from torch import nn

    from cfl_flare.core.params import Layout

    layout = Layout.of(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)))
    known = LatestModels(Archive(tmp_path), layout, {"a": (0, 1)})
    known.keep("a", Params(layout, np.arange(layout.size, dtype=np.float32), np.array([7])))
    assert known.model("a").counters.tolist() == [7]
    assert len(known.parameters("a")) == layout.parameter_size < layout.size
