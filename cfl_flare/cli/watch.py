# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command ``cfl-flare watch``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cfl_flare.core.config import require
from cfl_flare.core.text import plain
from cfl_flare.report.watch import BLOCKS, LETTERS, frame, overview
from cfl_flare.results.live import LiveSite, Watched, find_live, live

# So many runs have a line in the overview.
MOST = 20


def add_watch(commands: Any) -> None:
    """Its options."""
    watch = commands.add_parser("watch", help="show a run while it runs, from the files that it writes")
    where = "folder of a run, finished or not; one with several runs below it; or a site's own folder of a run"
    watch.add_argument("run", help=where)
    watch.add_argument("--once", action="store_true", help="print what there is now, and end")
    often = "how often the files are read (%(default)s)"
    watch.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help=often)


def watch(arguments: argparse.Namespace) -> None:
    """Shows a folder until Ctrl-C, or until what there was at the start has ended."""
    every = arguments.every
    require(0.1 <= every <= 3600, f"--every = {every} should be a number of seconds in 0.1..3600")
    console, screen = Console(), Screen(Path(arguments.run))
    screen.refresh()
    if arguments.once:
        require(bool(screen.runs), f"{arguments.run} holds no run yet; wait for its first round, or name its folder")
        console.print(screen.shown(console))
        return
    if not console.is_terminal:  # a log: a frame whenever there is something new
        _follow(screen, every, lambda: console.print(screen.shown(console)), only_new=True)
        return
    with Live(screen.shown(console), console=console, auto_refresh=False, vertical_overflow="crop") as display:
        _follow(screen, every, lambda: display.update(screen.shown(console), refresh=True))


def _follow(screen: Screen, every: float, show: Any, only_new: bool = False) -> None:
    seen: object = None
    try:
        while True:
            state = screen.state()
            if not only_new or state != seen:
                show()
            seen = state
            if screen.ended:
                return
            time.sleep(every)
            screen.refresh()
    except KeyboardInterrupt:  # how one leaves it; the last frame stays
        return


class Screen:
    """What is shown of a folder.

    Args:
        folder: a run's, one with runs below it, or a site's of a run.

    Attributes:
        runs: what was found in it, by folder.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.runs: dict[Path, Watched] = {}
        self._only_these = False

    def refresh(self) -> None:
        """Looks for runs that are new, and reads what has been written."""
        first = not self.runs
        if not self._only_these and (first or self.folder.is_dir()):
            for folder in find_live(self.folder):
                self.runs.setdefault(folder, live(folder))
        for run in self.runs.values():
            run.refresh()
        # More runs may follow beside some that still run; beside a single one's files, or if all have ended, none.
        self._only_these |= [*self.runs] == [self.folder]
        self._only_these |= first and bool(self.runs) and all(run.finished for run in self.runs.values())

    def state(self) -> object:
        """Changes when something new is to be seen."""
        return [(folder, run.changed, run.finished, run.gone) for folder, run in self.runs.items()]

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self._only_these and all(run.finished or run.gone for run in self.runs.values())

    def shown(self, console: Console) -> RenderableType:
        """The frame."""
        now = time.time()
        blocks = BLOCKS if console.encoding.startswith("utf") else LETTERS
        if not self.runs:
            return Text(f"waiting for a run in {plain(str(self.folder), 500)}; Ctrl-C ends this")
        there = {folder: run for folder, run in self.runs.items() if not run.gone} or self.runs
        if len(there) == 1:
            return frame(next(iter(there.values())), now, blocks)
        latest = sorted(there, key=lambda folder: there[folder].changed or 0.0)[-MOST:]
        names = [str(folder.relative_to(self.folder)) for folder in sorted(latest)]
        table = overview([there[folder] for folder in sorted(latest)], names, now, blocks)
        running = [f for f in latest if not there[f].finished and not isinstance(there[f], LiveSite)]
        more = [Text(""), frame(there[running[-1]], now, blocks)] if running else []
        left = [Text(f"and {len(there) - MOST} more runs")] if len(there) > MOST else []
        return Group(table, *left, *more)
