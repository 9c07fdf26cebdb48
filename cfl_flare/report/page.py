# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a report consists of, and the file that is made of it. The page loads nothing and allows its own two scripts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cfl_flare.core import __version__
from cfl_flare.core.config import one_line
from cfl_flare.report import vega
from cfl_flare.report.text import cut

T = TypeVar("T")

# Rows of a table; a table with more shows the first ones, and says how many are left out.
ROWS = 500


@dataclass(frozen=True)
class Table:
    """A table of text. Numbers are text here, as a reader should see them.

    Attributes:
        columns: the headings.
        rows: each with as many cells as there are columns; the first cell is the row's heading.
        most: how many rows the page shows.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    most: int = ROWS


@dataclass(frozen=True)
class Plot:
    """A plot, and the same in words and as a table, for those who do not see it.

    Attributes:
        title: what it shows.
        text: how to read it; it is the plot's description for a screen reader too.
        spec: in Vega-Lite.
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


def sections(subject: T, makers: Iterable[Callable[[T], Section | None]]) -> list[Section]:
    """The sections of a run or study. Where its files hold what one cannot show, the others are shown all the same.

    Args:
        subject: the run or study, as the sections look at it.
        makers: a function for each section, which returns None where there is nothing to show.
    """
    parts = []
    for make in makers:
        try:
            part = make(subject)
        except Exception as error:  # whatever another program's numbers and names do to it
            reason = cut(one_line(error), 300)
            name = make.__name__.replace("_", " ").capitalize()
            part = Section(name, [f"The run's files do not allow this part: {reason}"])
        if part is not None:
            parts.append(part)
    return parts


def page(title: str, subtitle: str, parts: Sequence[Section]) -> str:
    """The HTML of a report.

    Names and texts may be anybody's: the template escapes them, and the page's policy lets no other script run.

    Args:
        title: its heading.
        subtitle: a line below it.
        parts: its sections; the first one's first paragraph is the result.

    Raises:
        ConfigError: there are plots, and the library that draws them is not installed.
    """
    plots = any(part.plots for part in parts)
    environment = Environment(
        loader=PackageLoader("cfl_flare.report", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, boot, library = vega.file("style.css"), vega.file("boot.js"), vega.script() if plots else ""
    # What Vega writes on its elements is style alone, and styles cannot act: there is no address they may load.
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(boot)}; style-src {_hash(style)}; "
        "style-src-attr 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )
    return environment.get_template("page.html.j2").render(
        title=title,
        subtitle=subtitle,
        sections=parts,
        plots=plots,
        policy=Markup(policy),
        style=Markup(style),
        boot=Markup(boot),
        library=Markup(library),
        config=Markup(vega.as_json(vega.CONFIG)),
        spec=_spec,
        notice=vega.notice() if plots else "",
        version=__version__,
    )


def _spec(plot: Plot) -> Markup:
    """A plot's JSON, with what all plots have in common."""
    fitted = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return Markup(vega.as_json({**fitted, "description": plot.title, **plot.spec}))


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
