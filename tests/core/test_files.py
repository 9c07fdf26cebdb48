# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Files, archives of arrays and text from outside: written wholly or not at all, and read only if small and regular."""

from __future__ import annotations

import doctest
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import nn

from cfl_flare.core import files, text
from cfl_flare.core.arrays import Archive, LatestModels, load_arrays, save_arrays
from cfl_flare.core.errors import ConfigError, DataError, FileError, PayloadError
from cfl_flare.core.files import (
    append,
    atomic_write,
    below,
    check_memory,
    find_open_folders,
    json_lines,
    keep_private,
    make_folder,
    open_regular,
    parse_json,
    read_json,
)
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.seeds import derive, stream
from cfl_flare.core.text import NAME, plain, shown, unique_names
from cfl_flare.data.files import read_npz
from cfl_flare.data.table import Table
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.store import Store, StoreError
from tests.helpers.processes import bomb, odd_files
from tests.helpers.tiny import LAYOUT, coin


@pytest.mark.parametrize("content", ["über\n", "über\n".encode(), lambda file: file.write("über\n".encode())])
def test_text_bytes_and_a_writer_leave_one_file(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_text("old, and longer than the new content")
    atomic_write(path, content)
    assert path.read_bytes() == "über\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_content(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")

    def fails(file):
        file.write(b"half of the n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(path, fails)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_disk_before_it_gets_its_name_and_the_folder_after(tmp_path, monkeypatch):
    path, calls = tmp_path / "a.json", []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    atomic_write(path, "new", durable=True)
    assert calls == [f"{path}.tmp", str(tmp_path)]
    atomic_write(path, "newer")
    assert len(calls) == 2 and path.read_text() == "newer"


def test_what_is_written_below_a_private_folder_is_private_and_elsewhere_as_the_user_has_it(tmp_path):
    def modes(folder):
        return {oct(path.stat().st_mode & 0o777) for path in (folder, *folder.rglob("*"))}

    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        for folder, private in ((tmp_path / "state" / "run", True), (tmp_path / "results" / "run", False)):
            make_folder(folder, private)
            make_folder(folder / "below")
            atomic_write(folder / "a.json", "{}")
            append(folder / "below" / "b.jsonl", "{}\n")
    finally:
        os.umask(before)
    assert modes(tmp_path / "state") == {"0o700", "0o600"}
    assert modes(tmp_path / "results") == {"0o755", "0o644"}


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_all_below_a_private_root_is_its_owners(tmp_path, umask):
    """The operator made the root, for everybody to enter. Whoever makes the first folder in it does not matter."""
    tmp_path.chmod(0o755)
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o755)
    before = os.umask(umask)
    try:
        keep_private(root)
        make_folder(root / "ward" / "hospital-6")
        append(root / "ward" / "hospital-6" / "history.jsonl", "{}\n")
        atomic_write(root / "ward" / "a.json", "{}")
        make_folder(tmp_path / "elsewhere")
    finally:
        os.umask(before)
        files._private_roots.discard(root.resolve())
    made = list(root.rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o600}
    assert root.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o777 & ~umask
    assert find_open_folders(root) == []
    (root / "ward").chmod(0o750)
    assert find_open_folders(root) == [root / "ward"]


def test_a_store_made_by_a_run_is_its_owners_alone(tmp_path):
    store = Store(tmp_path / "root" / "run" / "site-1")
    store.lock()
    store.save(1, {}, {})
    store.unlock()
    folders = [tmp_path / "root", tmp_path / "root" / "run", store.folder]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in store.folder.iterdir()} == {0o600}


READERS = {
    "open": open_regular,
    "json": read_json,
    "lines": lambda path: list(json_lines(path)),
    "npz": read_npz,
    "safetensors": load_arrays,
    "table": lambda path: Table(str(path)).load(),
}


@pytest.mark.parametrize("reader", READERS)
def test_only_regular_files_are_opened(tmp_path, reader):
    for kind, path in odd_files(tmp_path, ".csv").items():
        with pytest.raises((FileError, DataError, PayloadError)) as caught:
            READERS[reader](path)
        said = str(caught.value)
        assert str(path) in said and "\n" not in said and said.count(";") >= 1, (kind, said)
    with pytest.raises((FileError, DataError, PayloadError)):
        READERS[reader](tmp_path / ("a" * 300))


def test_a_pipe_that_replaces_a_file_does_not_block(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("{}")
    stat = os.stat

    def replaced(name, **more):
        found = stat(name, **more)
        if name == path:
            path.unlink()
            os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "stat", replaced)
    with pytest.raises(FileError, match="it is a pipe"):
        open_regular(path)


def test_json_is_bounded_in_size_and_depth(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[" * 100_000)
    with pytest.raises(FileError, match="nested too deeply"):
        read_json(path)
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole
    for read in (read_json, lambda p: list(json_lines(p))):
        with pytest.raises(FileError, match=r"1,099,511,627,776 bytes, more than"):
            read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="not text in UTF-8"):
        read_json(path)
    with pytest.raises(FileError, match="x: it is not JSON"):
        parse_json("{" + "1" * 5000, "x")


def test_a_line_that_is_no_object_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n[]\n')
    with pytest.raises(FileError, match="line 2 is not a JSON object"):
        list(json_lines(path))
    path.write_text('{"a": 1}\n{"b"\n')
    with pytest.raises(FileError, match="line 2: it is not JSON"):
        list(json_lines(path))


def test_a_walk_ends(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    for i in range(5):
        (tmp_path / f"{i}").write_text("")
    assert len(list(below(tmp_path))) == 5
    monkeypatch.setattr("cfl_flare.core.files.MOST_ENTRIES", 3)
    with pytest.raises(FileError, match="holds more than 3 files"):
        list(below(tmp_path))


def test_what_would_not_fit_into_memory_is_refused_before_it_is_read(tmp_path):
    with pytest.raises(FileError, match=r"10,000,000,000,000 bytes of memory.*use a smaller one"):
        check_memory(10**13, "it")
    for name, read, error in (
        ("a.safetensors", load_arrays, PayloadError),
        ("a.csv", lambda p: Table(str(p)).load(), DataError),
    ):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**43)  # a hole
        with pytest.raises(error, match="bytes of memory"):
            read(tmp_path / name)


def test_an_archive_is_measured_before_it_is_unpacked(tmp_path):
    path = bomb(tmp_path / "bomb.npz")
    assert path.stat().st_size < 2**25
    with pytest.raises(DataError, match=r"2,147,483,648 bytes, which no images"):
        read_npz(path)
    np.savez_compressed(tmp_path / "sound.npz", images=np.zeros((2000, 100, 100), np.uint8))  # 20 MB of zeros
    assert read_npz(tmp_path / "sound.npz")["images"].shape == (2000, 100, 100)


def lying(path, shape, dtype="|u1", payload=b"\0" * 64, version=(1, 0)):
    """An npz file whose array's header says what is not there."""
    import zipfile

    with zipfile.ZipFile(path, "w") as archive, archive.open("images.npy", "w") as member:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        write = np.lib.format.write_array_header_1_0 if version == (1, 0) else np.lib.format.write_array_header_2_0
        write(member, header)
        member.write(payload)
    return path


@pytest.mark.parametrize(
    "shape", [(10**12,), (2**62, 4), (10**10, 10**10, 10**10), (-1, -64), (8, -8), (65,), (63,)], ids=str
)
def test_a_header_must_agree_with_the_archive(tmp_path, shape):
    with pytest.raises(DataError, match="has shape"):
        read_npz(lying(tmp_path / "a.npz", shape))
    assert read_npz(lying(tmp_path / "b.npz", (8, 8)))["images"].shape == (8, 8)
    assert read_npz(lying(tmp_path / "c.npz", (8, 8), version=(2, 0)))["images"].shape == (8, 8)


def test_pickles_are_not_read(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"without pickled objects .*holds objects"):
        read_npz(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(b"\x80\x04]\x94.")
    with pytest.raises(DataError, match="not an archive of arrays"):
        read_npz(tmp_path / "b.npz")


def test_foreign_safetensors(tmp_path):
    path = tmp_path / "a.safetensors"
    save_arrays(path, {"w": np.zeros(1000, np.float32)}, {"a": 1})
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    damaged = {
        "empty": b"",
        "short": whole[: len(whole) // 2],
        "header": whole[:20],
        "huge header": (2**60).to_bytes(8, "little") + whole[8:],
        "no header": bytes(4000),
        "other type": whole.replace(b'"F32"', b'"X32"'),
        "bf16": whole[:8] + whole[8 : 8 + size].replace(b'"F32"', b'"F8"') + whole[8 + size :],
        "deep": _with_meta("[" * 60_000),
        "list": _with_meta("[]"),
        "text": b"model" * 1000,
    }
    for what, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(PayloadError) as caught:
            load_arrays(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value), what


def _with_meta(text: str) -> bytes:
    header = json.dumps({"__metadata__": {"cfl_flare": text}}).encode()
    return len(header).to_bytes(8, "little") + header


def test_a_half_foreign_store_is_no_store(tmp_path):
    (tmp_path / "round-0abc.json").write_text("{}")
    assert Store(tmp_path).versions() == []
    os.mkfifo(tmp_path / "round-000001.json")
    with pytest.raises(PayloadError, match="it is a pipe"):
        Store(tmp_path).load(1, None)
    (tmp_path / "round-000002.json").write_text("[1]")
    (tmp_path / "round-000002.safetensors").write_text("")
    with pytest.raises(PayloadError, match="cannot be read"):
        Store(tmp_path).load(2, None)


def test_a_summary_that_is_a_pipe_is_none(tmp_path):
    os.mkfifo(tmp_path / "summary.json")
    with pytest.raises(ConfigError, match="no finished run"):
        load_run(tmp_path)


# ---- Arrays ----


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
def test_files_of_other_programs_need_no_checksum(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file(ARRAYS, tmp_path / "m.safetensors", metadata)
    arrays, meta = load_arrays(tmp_path / "m.safetensors")
    assert sorted(arrays) == sorted(ARRAYS) and meta == {}


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


# ---- Text from outside, and seeds of random streams ----


JUNK = st.recursive(
    st.none() | st.floats() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


def test_examples():
    assert doctest.testmod(text).failed == 0


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("as it is: é, 漢字, [b]x[/b]", "as it is: é, 漢字, [b]x[/b]"),
        ("a\r\nb\tc\u2028d\x0be", "a b c d e"),
        ("\x1b]0;title\x07\x9b31m\x00\x7f", r"\x1b]0;title\x07\x9b31m\x00\x7f"),
        ("\u202eright to left\u200b\ufeff", r"\u202eright to left\u200b\ufeff"),
        ("\ud800", r"\ud800"),
        ("", ""),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_an_escape(given_text, expected):
    assert plain(given_text) == expected


def test_long_text_is_cut():
    assert plain("x" * 501) == "x" * 497 + "..."
    assert plain("x" * 500) == "x" * 500
    assert plain(" " * 10**6 + "x", 10).endswith("...")
    assert plain("abc\n" * 10**6, 8) == "abc a..."


@given(st.text(), st.integers(3, 50))
def test_any_text_is_one_printable_line_within_the_limit(some, limit):
    line = plain(some, limit)
    assert len(line) <= limit and line.isprintable()
    line.encode()


@given(JUNK)
def test_any_value_can_be_shown(value):
    line = shown(value)
    assert len(line) <= 200 and line.isprintable()


def test_values_that_are_too_deep_or_large_are_shown_shortly():
    deep: list = []
    for _ in range(10**5):
        deep = [deep]
    assert shown(deep) == "[[[...]]]"
    assert len(shown({str(i): "x" * 10**5 for i in range(10**4)})) <= 200
    assert len(shown(10**5000)) <= 200

    class Odd:
        def __repr__(self) -> str:
            raise KeyError("no")

    assert "Odd" in shown(Odd())


@given(
    st.lists(st.text() | st.sampled_from(["p00", "cluster-0", "GLOBAL", "global", "../..", "=cmd", "a" * 10_000, ""]))
)
def test_any_texts_become_as_many_names_of_files_that_stay_as_they_are(texts):
    names = unique_names(texts)
    assert len({name.casefold() for name in names}) == len(texts)
    assert unique_names(names) == names
    for name in names:
        assert 0 < len(name) <= NAME and len(f"{name}.safetensors.tmp".encode()) < 255
        assert not {*name} & {*"/\\<>&|#:;,*?\"'`$\n\t"} and name[0] not in ".-+=@ "
        assert name.lower() != "global" and not name.lower().startswith("cluster-")


KEYS = st.lists(st.integers(0, 99) | st.text("abc", min_size=1), max_size=3)


@given(st.integers(0, 2**40), KEYS)
def test_a_seed_is_the_same_whenever_it_is_derived(seed: int, keys: list[str | int]) -> None:
    first = derive(seed, *keys)
    stream(seed, "another").random(5)
    assert derive(seed, *keys) == first
    assert 0 <= first < 2**63
    assert stream(seed, *keys).random() == np.random.default_rng(first).random()


def test_seeds_stay_the_same_from_release_to_release() -> None:
    assert derive(0) == 4761921975702974394
    assert derive(7, "p-3", 12, "train") == 3622037646861510404


def test_different_keys_give_different_seeds() -> None:
    keys = [(s, n, r, p) for s in (0, 1) for n in ("a", "b", "1") for r in (0, 1, 11) for p in ("train", "assign")]
    assert len({derive(*key) for key in keys}) == len(keys)
    assert derive(1, 1) != derive(11)


def test_streams_are_not_correlated() -> None:
    draws = np.array([stream(0, "p", r, "train").random(400) for r in range(8)])
    correlation = np.corrcoef(draws) - np.eye(8)
    assert np.abs(correlation).max() < 0.2


@pytest.mark.parametrize("keys", [(), ("a",), ("a", 0)])
def test_a_longer_key_is_another_stream(keys: tuple[str | int, ...]) -> None:
    assert derive(3, *keys) != derive(3, *keys, "train")
