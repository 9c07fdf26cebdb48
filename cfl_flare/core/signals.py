# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Signals that end a program, while it has processes of its own that would go on without it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import psutil

# Ctrl-C, a batch system or `timeout`, a terminal that is closed, Ctrl-\\, and limits on time of a batch system.
STOPS = (
    "SIGINT",
    "SIGTERM",
    "SIGHUP",
    "SIGQUIT",
    "SIGUSR1",
    "SIGUSR2",
    "SIGXCPU",
    "SIGALRM",
)
# Times that processes are listed and suspended, until none has started another one meanwhile.
LISTINGS = 10


class StoppedError(SystemExit):
    """The program was asked to end; its exit status is the one that shells give to the signal."""

    def __init__(self, number: int):
        self.status = 128 + number
        super().__init__(self.status)
        self.name = signal.Signals(number).name


@contextlib.contextmanager
def ending_children() -> Iterator[None]:
    """Inside it, a signal that ends this program ends the processes that it has started, and theirs.

    A signal that the program or its caller handles or ignores, as ``nohup`` does, stays as it is. Outside the main
    thread nothing changes.

    Raises:
        KeyboardInterrupt: Ctrl-C, whatever the code inside made of it.
        StoppedError: another signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = set(psutil.Process().children(recursive=True))
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        _end_all(before)
        raise KeyboardInterrupt  # FLARE stops waiting for its processes

    usual = {number: signal.getsignal(number) for number in _numbers()}
    handled = [
        number
        for number, handler in usual.items()
        if handler in (signal.SIG_DFL, signal.default_int_handler)
    ]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, usual[number])
        if received:
            _end_all(before)
            _raise_for(received[0])


def _numbers() -> list[int]:
    return [getattr(signal, name) for name in STOPS if hasattr(signal, name)]


def _raise_for(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise StoppedError(number)


def _end_all(before: set[psutil.Process]) -> None:
    """Kills the processes below this one except earlier ones; they are suspended first, so that none starts others."""
    suspended: set[psutil.Process] = set()
    for _ in range(LISTINGS):
        new = set(psutil.Process().children(recursive=True)) - before - suspended
        if not new:
            break
        for process in new:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        suspended |= new
    for process in suspended:
        with contextlib.suppress(psutil.Error):
            process.kill()
