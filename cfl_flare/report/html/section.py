# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a section of the report consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cfl_flare.core.config import one_line
from cfl_flare.report.html.text import cut

# Rows of a table; of more, the first ones are shown and the rest are counted.
ROWS = 500


@dataclass(frozen=True)
class Table:
    """A table of text. Numbers are text here, as a reader should see them.

    Attributes:
        columns: the headings.
        rows: each with as many cells as there are columns; the first cell is the row's heading.
        left_out: rows that the page has no room for.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out: int = 0

    @classmethod
    def of(cls, columns: Sequence[str], rows: Sequence[Sequence[str]], most: int = ROWS) -> Table:
        """A table of at most so many rows."""
        return cls(columns, rows[:most], max(0, len(rows) - most))


@dataclass(frozen=True)
class Plot:
    """A plot, and the same in words and as a table, for those who do not see it.

    Attributes:
        title: what it shows.
        text: how to read it; it is the plot's description for a screen reader too.
        spec: in Vega-Lite, without what `cfl_flare.report.html.specs` adds.
        table: its numbers.
    """

    title: str
    text: str
    spec: dict[str, Any]
    table: Table


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        title: its heading.
        text: paragraphs before the plots.
        plots: its plots.
        tables: shown openly, each with its heading.
        notes: what was left out and why.
    """

    title: str
    text: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[tuple[str, Table]] = ()
    notes: Sequence[str] = ()


def attempt(name: str, make: Callable[[], Section | None]) -> Section | None:
    """A section; where a run's files hold what it cannot show, the others are shown all the same."""
    try:
        return make()
    except Exception as error:  # whatever another program's numbers and names do to it
        why = cut(one_line(error), 300)
        return Section(name.replace("_", " ").capitalize(), [f"The run's files do not allow this part: {why}"])
