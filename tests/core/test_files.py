# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are written as a whole or not at all."""

import os

import pytest

from cfl_flare.core.files import atomic_write


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
