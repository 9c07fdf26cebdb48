# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are written as a whole or not at all."""

import os

import pytest

from cfl_flare.core.files import append, atomic_write, make_folder
from cfl_flare.results.store import Store


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
