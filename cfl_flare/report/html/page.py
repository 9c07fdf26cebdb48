# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the file: everything in it, nothing loaded, and no script allowed but its own two."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from cfl_flare.core import __version__
from cfl_flare.report.html import bundle
from cfl_flare.report.html.section import Plot, Section
from cfl_flare.report.html.specs import CONFIG
from cfl_flare.report.html.text import as_json


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The HTML of a report.

    Names and texts may be anybody's: the template escapes them, and the page's policy lets no other script run.

    Args:
        title: its heading.
        subtitle: a line below it.
        sections: in their order; the first one's first paragraph is the result.

    Raises:
        ConfigError: there are plots, and the library that draws them is not installed.
    """
    plots = any(section.plots for section in sections)
    style, boot, library = part("style.css"), part("boot.js"), bundle.script() if plots else ""
    # What Vega writes on its elements is style alone, and styles cannot act: there is no address they may load.
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(boot)}; style-src {_hash(style)}; "
        "style-src-attr 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )
    return _template().render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        plots=plots,
        policy=Markup(policy),
        style=Markup(style),
        boot=Markup(boot),
        library=Markup(library),
        config=Markup(as_json(CONFIG)),
        spec=_spec,
        notice=bundle.notice() if plots else "",
        version=__version__,
    )


def _spec(plot: Plot) -> Markup:
    """A plot's JSON, with what all plots have in common."""
    fitted = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return Markup(as_json({**fitted, "description": plot.title, **plot.spec}))


def part(name: str) -> str:
    """A file of this package."""
    return files("cfl_flare.report.html").joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(part("page.html.j2"))


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
