# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Files: written wholly or not at all, and read only if they are regular and small enough, whoever wrote them."""

import json
import os

import numpy as np
import pytest

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.errors import ConfigError, DataError, FileError, PayloadError
from cfl_flare.core.files import (
    append,
    atomic_write,
    below,
    check_memory,
    json_lines,
    make_folder,
    open_regular,
    parse_json,
    read_json,
)
from cfl_flare.data.files import read_npz
from cfl_flare.data.table import Table
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.store import Store
from tests.foreign import bomb, odd_files


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
    atomic_write(path, "new")
    assert calls == [f"{path}.tmp", str(tmp_path)]
    atomic_write(path, "newer", durable=False)
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
