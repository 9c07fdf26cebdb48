# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A disk that is really full: a small file system of a process's own, or else a limit of files."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


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
