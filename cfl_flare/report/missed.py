# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Sentences on who missed rounds, and on whom a floor moved, for below the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cfl_flare.report.labels import in_table
from cfl_flare.results.convergence import IMPROVING
from cfl_flare.results.floor import of_run
from cfl_flare.results.missed import missed_rounds

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run

# So many participants of a run are named.
NAMED = 10


def floor_lines(runs: Sequence[Run]) -> list[str]:
    """What the floor of a cluster's size changed, see `cfl_flare.results.floor`; and which runs were too short."""
    several = len(runs) > 1
    return [
        in_table(f"{run.name}: {line}" if several else line, 500)
        for run in runs
        for line in (*of_run(run.summary, run.rounds), run.summary.get(IMPROVING))
        if line is not None
    ]


def missed_lines(runs: Sequence[Run]) -> list[str]:
    """A sentence for each site that took no part and each participant that missed rounds, who missed most first."""
    lines: list[str] = []
    for run in runs:
        of = f"{run.name}: " if len(runs) > 1 else ""
        for site, reason in run.summary.get("sites_left_out", {}).items():
            lines.append(in_table(f"{of}{site} took no part: {reason}"))
        missed = sorted(missed_rounds(run.rounds).items(), key=lambda one: -one[1].rounds)
        for name, m in missed[:NAMED]:
            lines.append(in_table(f"{of}{name} missed {m.rounds} of {m.asked} rounds: {m.reason}"))
        if len(missed) > NAMED:
            lines.append(in_table(f"{of}{len(missed) - NAMED} more missed rounds; summary.json has them"))
    return lines
