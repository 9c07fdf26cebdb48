# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How sites' files of columns become one: their categories together, a common scale, and what they have to agree on.

A difference that no file decides raises a ConfigError that names both sites.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.shares import capped
from cfl_flare.core.text import plain, shown
from cfl_flare.data.columns import Column, Columns, in_order
from cfl_flare.data.reading import READING
from cfl_flare.data.spelling import SPELLED_ALIKE, find_near, group_alike
from cfl_flare.data.values import FALSE_WORDS, TRUE_WORDS, mean_the_same

# Of three files or more, one has at most this share of the rows by which a common scale is computed.
SHARE = 0.5
# Without an agreed range, a file's numbers may spread this many times as far as the widest deviation of the others.
FAR = 10.0


def agreed(sites: Mapping[str, Columns]) -> Columns:
    """Puts together what the sites' tables have.

    Args:
        sites: each site's columns by a name for messages.

    Returns:
        The columns that all sites can use: their categories together, a common mean and deviation of all sites' rows.

    Raises:
        ConfigError: a site lacks a column, has it of another kind, or spells a category or class in another way.
    """
    require(bool(sites), "columns: no site's; name at least one file")
    first, model = next(iter(sites.items()))
    by_site = {
        site: {c.column: c for c in columns.columns} for site, columns in sites.items()
    }
    names = by_site[first]
    for site, theirs in by_site.items():
        for name in (
            name
            for name in (*names, *theirs)
            if name not in names or name not in theirs
        ):
            has, lacks = (first, site) if name in names else (site, first)
            way_out = "add it there, or let all sites leave it out"
            raise ConfigError(
                f"columns: {shown(name)} is at {has} and not at {lacks}; {way_out}"
            )
    _check_equal(
        sites, ("label", "positive", "absent"), "columns"
    )  # how a file is written is a site's own matter
    merged = tuple(
        _together({site: columns[name] for site, columns in by_site.items()})
        for name in names
    )
    leave = tuple(
        dict.fromkeys(name for columns in sites.values() for name in columns.leave)
    )
    by_class = {site: columns.classes for site, columns in sites.items()}
    _check_spellings(by_class, "columns: classes")
    reading = {
        name: _in_common([getattr(columns, name) for columns in sites.values()])
        for name in READING
    }
    return replace(
        model,
        columns=merged,
        classes=_all_of([*by_class.values()]),
        leave=leave,
        **reading,
    )


def _in_common(values: list[Any]) -> Any:
    """What all sites say; None if they say different things, so that each adds its own."""
    return values[0] if all(value == values[0] for value in values) else None


def describe_near(sites: Mapping[str, Columns]) -> list[str]:
    """Lines on categories and classes of different sites that are spelled nearly alike.

    Args:
        sites: each site's columns by a name for messages.
    """
    named: dict[str, dict[str, tuple[str, ...]]] = {}
    for site, columns in sites.items():
        named.setdefault("classes", {})[site] = columns.classes
        for column in columns.columns:
            if column.kind == "category":
                named.setdefault(shown(column.column), {})[site] = column.categories
    lines = []
    for name, by_site in named.items():
        lines += _describe_near_texts(name, by_site)
    unnamed = [site for site, names in named.get("classes", {}).items() if not names]
    if unnamed and len(unnamed) < len(sites):
        reason = f"{plain(', '.join(unnamed))} names none: its labels are numbers from 0, or each has too few rows"
        lines.append(
            f"classes: {reason}; run 'cfl-flare site check' there with the result"
        )
    return lines


def _describe_near_texts(
    name: str, by_site: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """Lines on texts that are spelled nearly alike, and that no site has both."""
    first: dict[str, str] = {}
    company: dict[str, set[str]] = {}
    for site, texts in by_site.items():
        for text in texts:
            first.setdefault(text, site)
            company.setdefault(text, set()).update(texts)
    lines = []
    for text, together in company.items():
        near = find_near(text, [other for other in first if other not in together])
        if near is not None and text < near:
            both = (
                f"{shown(text)} at {first[text]} may be {shown(near)} at {first[near]}"
            )
            lines.append(
                f"{name}: {both}; if they mean the same, write them in one way"
            )
    return lines


def _check_spellings(by_site: Mapping[str, tuple[str, ...]], where: str) -> None:
    """Raises a ConfigError if sites write a category or class in different ways.

    Two texts that differ in their spelling only may be two categories if every file has both: a study wants it so.
    """
    first: dict[str, str] = {}
    for site, texts in by_site.items():
        for text in texts:
            first.setdefault(text, site)
    for group in group_alike(first):
        if all({*group} <= {*texts} for texts in by_site.values()):
            continue
        one, other = group[:2]
        both = f"{shown(one)} at {first[one]} and {shown(other)} at {first[other]}"
        if first[one] == first[other]:
            both = f"{shown(one)} and {shown(other)} at {first[one]}"
        example = f'{{"{plain(one)}": "{plain(other)}"}}'
        way_out = f"write them in one way, as by replace={example} at that site, or name both in all files"
        raise ConfigError(f"{where}: {both} {SPELLED_ALIKE}; {way_out}")


def _check_equal(sites: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    (first, model), *others = sites.items()
    for site, other in others:
        for name in names:
            mine, theirs = getattr(model, name), getattr(other, name)
            values = f"{shown(mine)} at {first} and {shown(theirs)} at {site}"
            require(mine == theirs, f"{where}: {name} is {values}; agree on one")


def _together(sites: Mapping[str, Column]) -> Column:
    """One column of all sites."""
    where = f"columns: {shown(next(iter(sites.values())).column)}"
    filled = {site: column for site, column in sites.items() if column.kind != "empty"}
    require(bool(filled), f"{where}: no site has a value; let all sites leave it out")
    sites = _with_one_kind(filled)
    every = list(sites.values())
    kind, categories = every[0].kind, every[0].categories
    ordered = ("categories",) if kind in ("boolean", "ordinal") else ()
    _check_equal(sites, ("kind", "range", "unit", *ordered), where)
    if kind == "category":
        named = {site: column.categories for site, column in sites.items()}
        _check_spellings(named, where)
        categories = _all_of([*named.values()])
        require(
            bool(categories),
            f"{where}: no site has a category of enough rows; let all sites leave it out",
        )
    mean, deviation = _scale(sites, where) if every[0].is_scaled else (None, None)
    rows, missing = (
        sum(column.rows for column in every),
        any(column.missing for column in every),
    )
    return replace(
        every[0],
        categories=categories,
        missing=missing,
        rows=rows,
        mean=mean,
        deviation=deviation,
    )


def _with_one_kind(sites: Mapping[str, Column]) -> Mapping[str, Column]:
    """Columns of booleans and categories as columns of one kind, if they can be.

    A site where everybody says no has a category, and where nobody says unknown a boolean. Words for no and yes are the
    same in letters of any case.
    """
    kinds = {column.kind for column in sites.values()}
    pairs = {column.categories for column in sites.values() if column.kind == "boolean"}
    if not pairs or not kinds <= {"boolean", "category"}:
        return sites
    if len(pairs) > 1 and not all(map(mean_the_same, pairs)):
        return sites  # which are refused, as a study's own order is not changed
    pair = _common_pair(pairs)
    others = {
        text
        for column in sites.values()
        if column.kind == "category"
        for text in column.categories
    }
    are_words = others <= {*pair}
    if all(map(mean_the_same, pairs)):
        are_words = all(
            text.casefold() in {*FALSE_WORDS, *TRUE_WORDS} for text in others
        )
    if are_words:
        return {
            site: replace(column, kind="boolean", categories=pair)
            for site, column in sites.items()
        }
    return {site: replace(column, kind="category") for site, column in sites.items()}


def _common_pair(pairs: set[tuple[str, ...]]) -> tuple[str, ...]:
    """The texts for no and yes that stand for those of all sites."""
    if len(pairs) == 1:
        return next(iter(pairs))
    folded = {tuple(text.casefold() for text in pair) for pair in pairs}
    return folded.pop() if len(folded) == 1 else ("no", "yes")


def _scale(
    sites: Mapping[str, Column], where: str
) -> tuple[float | None, float | None]:
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
        is_near = (
            len(others) < 2
            or not reach
            or sites[site].range is not None
            or max(near, deviation) <= reach
        )
        far = (
            f"{site} has mean {mean:g} and deviation {deviation:g}, far from all others"
        )
        require(
            is_near,
            f"{where}: {far}; correct its file, or agree on a range in all files",
        )
    if not scales:
        return None, None
    weights = {site: float(rows) for site, (rows, _, _) in scales.items()}
    weights = capped(weights, SHARE) if len(weights) > 2 else weights
    return pooled(
        (weights[site], mean, deviation)
        for site, (_, mean, deviation) in scales.items()
    )


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
