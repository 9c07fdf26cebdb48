# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are not what they are named after, and processes with little memory, time or disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

# The command line in a process of its own: it may take a gigabyte more than its imports took, and a minute a command.
COMMANDS = """
import contextlib, io, json, resource, signal, sys
import torch, PIL.Image, cfl_flare.engine.newcomers
from importlib import import_module
from cfl_flare.cli import list_all_commands, main

for command in list_all_commands().values():
    import_module(command.module)

taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**30, resource.RLIM_INFINITY))
done = []
for words in json.load(sys.stdin):
    signal.alarm(60)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    done.append((status, out.getvalue(), err.getvalue()))
json.dump(done, sys.stdout)
"""


def run_commands(*words: Sequence[str | Path]) -> list[tuple[int, str, str]]:
    """Each command's exit status, output and errors; a hang, a traceback or a gigabyte too much fails the test."""
    env = {**os.environ, "COLUMNS": "300", "OMP_NUM_THREADS": "1"}
    asked = json.dumps([list(map(str, one)) for one in words])
    done = subprocess.run([sys.executable, "-c", COMMANDS], input=asked, capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return [tuple(one) for one in json.loads(done.stdout)]


def bomb(path: Path, name: str = "images", gigabytes: int = 2) -> Path:
    """An npz file of a few megabytes whose only array has two gigabytes of zeros."""
    block = bytes(2**24)
    header = {"descr": "|u1", "fortran_order": False, "shape": (gigabytes * 2**20, 32, 32)}
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{name}.npy", "w", force_zip64=True) as member,
    ):
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(gigabytes * 64):
            member.write(block)
    return path


def odd_files(folder: Path, ending: str) -> dict[str, Path]:
    """By what they are: things with this ending that are no regular files."""
    found = {kind: folder / f"{kind}{ending}" for kind in ("pipe", "device", "folder", "loop", "nowhere")}
    os.mkfifo(found["pipe"])
    found["device"].symlink_to("/dev/zero")
    found["folder"].mkdir()
    found["loop"].symlink_to(found["loop"].name)
    found["nowhere"].symlink_to("none")
    return found


# ---- A disk that is full ----


ROOT = Path(__file__).parents[2]


@cache
def can_mount() -> bool:
    """Whether this user may mount a file system in a namespace of a process's own."""
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(probe, capture_output=True).returncode == 0
    except OSError:
        return False


def on_small_disk(folder: Path, code: str, kilobytes: int) -> subprocess.CompletedProcess[str]:
    """Runs code in a process for which a folder is a disk of this size; nobody else sees what is in it.

    Without the right to mount, no file of the process can be larger than that: the same error by another number.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CFL_DATA_ROOT": "", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", code, str(folder)]
    if can_mount():
        script = f'mount -t tmpfs -o size={kilobytes}k none "$1" && shift && exec "$@"'
        words = ["unshare", "-m", "bash", "-c", script, "disk", str(folder), *words]
    else:
        limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({kilobytes * 1024},) * 2)\n"
        words[2] = limit + code
    return subprocess.run(words, capture_output=True, text=True, env=env, timeout=300)
