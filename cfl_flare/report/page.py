# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a report consists of, and the file that is made of it. The page loads nothing and allows its own two scripts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
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
    """A table of text, of which the page shows ``most`` rows. A row's first cell is its heading."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    most: int = ROWS


@dataclass(frozen=True)
class Plot:
    """A plot in Vega-Lite, with how to read it, also for a screen reader, and its numbers as a table."""

    title: str
    text: str
    spec: dict[str, Any]
    table: Table


@dataclass(frozen=True)
class Section:
    """A part of the report: paragraphs, plots, tables that are shown openly, and notes on what was left out and why."""

    title: str
    text: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[tuple[str, Table]] = ()
    notes: Sequence[str] = ()


def sections(subject: T, makers: Iterable[Callable[[T], Section | None]]) -> list[Section]:
    """The sections of a run or study. Where its files hold what one cannot show, the others are shown all the same.

    There is a maker for each section; it returns None where there is nothing to show.
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
    """The HTML of a report; the first section's first paragraph is the result.

    Names and texts may be anybody's: the template escapes them, and the page's policy lets no other script run.

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
    environment.filters |= {"json": lambda value: Markup(vega.as_json(value)), "sha256": _sha256}
    return environment.get_template("page.html.j2").render(
        title=title,
        subtitle=subtitle,
        sections=parts,
        style=Markup(file("style.css")),
        boot=Markup(file("boot.js")),
        library=Markup(vega.script() if plots else ""),
        notice=f"{file('notice.txt').strip()}\n\nFrom vl-convert-python {version('vl-convert-python')}."
        if plots
        else "",
        config=vega.CONFIG,
        version=__version__,
    )


def file(name: str) -> str:
    return files("cfl_flare.report").joinpath(f"html/{name}").read_text(encoding="utf-8")


def _sha256(text: str) -> Markup:
    """The hash of a script or style, as the page's policy names it."""
    return Markup(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")
