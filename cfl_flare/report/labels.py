# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Names from a run's files, which may be anybody's, as a terminal and matplotlib may show them."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from cfl_flare.core.text import plain

LIMIT = 60


def in_table(name: Any, limit: int = 200) -> str:
    r"""A name for a table of rich: one line, cut, and no markup.

    >>> in_table("[red]a\x1b")
    '\\[red]a\\x1b'
    """
    return escape(plain(str(name), limit))


def in_figure(name: Any) -> str:
    r"""A name for a figure of matplotlib: one line, cut, and no formula.

    >>> in_figure("$x$")
    '\\$x\\$'
    """
    return plain(str(name), LIMIT).replace("$", r"\$")
