# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Signals that end a program end the processes that it has started, and theirs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.deployment import until

PROGRAM = r"""
import subprocess, sys
from pathlib import Path
from cfl_flare.core.signals import ending_children

sleep = "import time; time.sleep(99)"
child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}]); {sleep}"
with ending_children():
    try:
        process = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
        Path(sys.argv[1]).write_text(str(process.pid))
        process.wait()
    except KeyboardInterrupt:
        pass  # as FLARE does
"""


def start_program(folder: Path, *, ignored: bool = False) -> tuple[subprocess.Popen, list[psutil.Process]]:
    def before() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder / "pid")], preexec_fn=before)
    until("its processes", lambda: len(psutil.Process(program.pid).children(recursive=True)) == 2)
    until("the child's number", lambda: (folder / "pid").is_file())
    return program, psutil.Process(program.pid).children(recursive=True)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131), (signal.SIGUSR1, 138)]
)
def test_grandchildren_end_as_well(tmp_path: Path, number: int, status: int) -> None:
    program, below = start_program(tmp_path)
    program.send_signal(number)
    assert program.wait(60) == status
    until("their end", lambda: not any(process.is_running() for process in below))


def test_nohup_is_respected(tmp_path: Path) -> None:
    program, below = start_program(tmp_path, ignored=True)
    program.send_signal(signal.SIGHUP)
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) == 143  # and not of the hang-up, which came first
    until("their end", lambda: not any(process.is_running() for process in below))
