# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A folder that takes long to make, made once for all workers of a test run."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first worker makes, and the others wait for and read.

    Args:
        factory: the run's; workers of pytest-xdist have folders of their own beside each other.
        name: of the folder.
        make: fills the folder. If it fails, the next worker tries it again in another folder.
    """
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    done = root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.is_file():
            folder = factory.mktemp(name)
            make(folder)
            done.write_text(str(folder))
    return Path(done.read_text())
