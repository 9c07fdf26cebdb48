# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The columns that all sites can use, of what each site's table has: their categories, and a common scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.shares import capped
from cfl_flare.core.text import shown
from cfl_flare.data.columns import Column, Columns, in_order
from cfl_flare.data.frames import READING

# A category of fewer rows at a site is not named to the others.
FEWEST_ROWS = 5
# Of three files or more, one has at most this share of the rows by which a common scale is computed.
SHARE = 0.5
# Without an agreed range, a file's numbers may spread this many times as far as the widest deviation of the others.
FAR = 10.0


def agreed(sites: Mapping[str, Columns]) -> Columns:
    """The columns that all sites can use: their categories together, a common mean and deviation of all sites' rows.

    ``sites`` has each site's by a name for messages. A ConfigError if a site lacks a column, or has it of another kind.
    """
    require(bool(sites), "columns: no site's; name at least one file")
    first, model = next(iter(sites.items()))
    by_site = {site: {c.column: c for c in columns.columns} for site, columns in sites.items()}
    names = by_site[first]
    for site, theirs in by_site.items():
        for name in (name for name in (*names, *theirs) if name not in names or name not in theirs):
            has, lacks = (first, site) if name in names else (site, first)
            way_out = "add it there, or let all sites leave it out"
            raise ConfigError(f"columns: {shown(name)} is at {has} and not at {lacks}; {way_out}")
    _check_equal(sites, ("label", "positive", "absent"), "columns")  # how a file is written is a site's own matter
    merged = tuple(_together({site: columns[name] for site, columns in by_site.items()}) for name in names)
    leave = tuple(dict.fromkeys(name for columns in sites.values() for name in columns.leave))
    classes = _all_of([columns.classes for columns in sites.values()])
    alike = {name: {getattr(columns, name) for columns in sites.values()} for name in READING}  # else each site's own
    reading: dict[str, Any] = {name: values.pop() if len(values) == 1 else None for name, values in alike.items()}
    return replace(model, columns=merged, classes=classes, leave=leave, **reading)


def _check_equal(sites: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    (first, model), *others = sites.items()
    for site, other in others:
        for name in names:
            mine, theirs = getattr(model, name), getattr(other, name)
            values = f"{shown(mine)} at {first} and {shown(theirs)} at {site}"
            require(mine == theirs, f"{where}: {name} is {values}; agree on one")


def _together(sites: Mapping[str, Column]) -> Column:
    every = list(sites.values())
    kind, categories, where = every[0].kind, every[0].categories, f"columns: {shown(every[0].column)}"
    ordered = ("categories",) if kind in ("boolean", "ordinal") else ()
    _check_equal(sites, ("kind", "range", "unit", *ordered), where)
    if kind == "category":
        categories = _all_of([column.categories for column in every])
        require(bool(categories), f"{where}: no site has a category of enough rows; let all sites leave it out")
    mean, deviation = _scale(sites, where) if every[0].is_scaled else (None, None)
    rows, missing = sum(column.rows for column in every), any(column.missing for column in every)
    return replace(every[0], categories=categories, missing=missing, rows=rows, mean=mean, deviation=deviation)


def _scale(sites: Mapping[str, Column], where: str) -> tuple[float | None, float | None]:
    """The mean and the deviation of a column over all sites' rows, in which no file has the majority.

    Without an agreed range, a file is refused whose numbers are far from all others.
    """
    scales = {
        site: (column.rows, column.mean, column.deviation or 0.0)
        for site, column in sites.items()
        if column.rows and column.mean is not None
    }
    for site, (_, mean, deviation) in scales.items():
        others = [(m, d) for name, (_, m, d) in scales.items() if name != site]
        reach = FAR * max((d for _, d in others), default=0.0)
        near = min((abs(mean - m) for m, _ in others), default=0.0)
        is_near = len(others) < 2 or not reach or sites[site].range is not None or max(near, deviation) <= reach
        far = f"{site} has mean {mean:g} and deviation {deviation:g}, far from all others"
        require(is_near, f"{where}: {far}; correct its file, or agree on a range in all files")
    if not scales:
        return None, None
    weights = {site: float(rows) for site, (rows, _, _) in scales.items()}
    weights = capped(weights, SHARE) if len(weights) > 2 else weights
    return pooled((weights[site], mean, deviation) for site, (_, mean, deviation) in scales.items())


def pooled(parts: Iterable[tuple[float, float, float]]) -> tuple[float, float]:
    """Mean and deviation of all rows, from the count, mean and deviation of each part.

    >>> pooled([(1, 0.0, 0.0), (3, 4.0, 0.0)])
    (3.0, 1.7320508075688772)
    """
    counts, means, deviations = np.array(list(parts), np.float64).T
    mean = float(np.average(means, weights=counts))
    variance = float(np.average(deviations**2 + (means - mean) ** 2, weights=counts))
    return mean, math.sqrt(variance)


def _all_of(named: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What any site names; in their order if all name the same, as from a study's protocol, else sorted."""
    if len({*named}) == 1:
        return named[0]
    return tuple(sorted({name for names in named for name in names}, key=in_order))
