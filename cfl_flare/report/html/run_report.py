# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a run: its sections, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cfl_flare.report.html.clusters import quality, sizes
from cfl_flare.report.html.cross_site import cross_site
from cfl_flare.report.html.head import head
from cfl_flare.report.html.measures import convergence, discrimination, traffic
from cfl_flare.report.html.moves import moves
from cfl_flare.report.html.number_of_clusters import number_of_clusters
from cfl_flare.report.html.page import page
from cfl_flare.report.html.participants import participants
from cfl_flare.report.html.section import Section, attempt
from cfl_flare.report.html.settings import failures, settings
from cfl_flare.report.html.text import cut
from cfl_flare.report.html.view import View
from cfl_flare.report.html.who import who

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run

SECTIONS: Sequence[Callable[[View], Section | None]] = (
    head,
    participants,
    who,
    convergence,
    moves,
    sizes,
    quality,
    number_of_clusters,
    cross_site,
    discrimination,
    traffic,
    failures,
    settings,
)


def run_report(run: Run) -> str:
    """The report of one run, as HTML."""
    view = View(run)
    found = [attempt(make.__name__, partial(make, view)) for make in SECTIONS]
    subtitle = f"{len(view.people)} participants, {run.summary['rounds']} rounds; folder {cut(run.folder.name)}"
    return page(cut(run.name, 120), subtitle, [one for one in found if one is not None])
