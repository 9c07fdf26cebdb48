# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are not what they are named after, and a process in which to read them: with little memory and time."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np

# The command line, in a process of its own that may take this much memory beyond what its imports took.
COMMAND = """
import resource, sys
import torch, PIL.Image, matplotlib.figure, cfl_flare.cli.predict, cfl_flare.engine.newcomers, cfl_flare.report.figures
from cfl_flare.cli import main

taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**30, taken + 2**30))
sys.exit(main(sys.argv[1:]))
"""


def command(*words: str | Path) -> tuple[int, str, str]:
    """The exit status, the output and the errors of ``cfl-flare``; a hang or a gigabyte too much fails the test."""
    env = {**os.environ, "COLUMNS": "300", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, words)], capture_output=True, text=True, timeout=120, env=env
    )
    return done.returncode, done.stdout, done.stderr


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
