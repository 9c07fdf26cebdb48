# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One round as the docstring of `drive` spells it."""

import inspect
import sys
from types import FrameType
from typing import Any

from cfl_flare.data import Digits
from cfl_flare.engine.drive import drive
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import WeCFL
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.play import DATA, MODEL

# The subclass that a run has in place of what the docstring names.
BASES = {"Observer": ("begin", "done"), "Transport": ("exchange",)}


def read_steps() -> list[str]:
    """The functions of a round in the docstring's order."""
    text = inspect.getdoc(drive) or ""
    block = text.split("::\n", 1)[1].split("\nArgs:")[0]
    return [line.split()[0] for line in block.splitlines() if line.strip()]


def trace_round(calls: list[str]) -> Any:
    """A profiler that notes each call into the package, by class and function."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or "/cfl_flare/" not in frame.f_code.co_filename:
            return
        this = frame.f_locals.get("self")
        name = frame.f_code.co_name
        classes = () if this is None else type(this).__mro__
        calls.extend([name, *(f"{c.__name__}.{name}" for c in classes)])
        calls.extend(f"{base}.{name}" for base, names in BASES.items() if name in names and this is not None)

    return note


def test_a_round_is_as_its_docstring_says():
    steps = read_steps()
    calls: list[str] = []
    sys.setprofile(trace_round(calls))
    try:
        run_loop(
            method=WeCFL(k=2),
            model=MODEL,
            source=Digits(),
            data=DATA,
            settings=ServerSettings(num_rounds=1),
            training=TrainSettings(),
        )
    finally:
        sys.setprofile(None)
    assert len(steps) == 14 and not set(steps) - set(calls)
    places = [calls.index(step) for step in steps]
    assert places == sorted(places)
