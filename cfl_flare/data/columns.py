# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the columns of a table mean: the part of a table that sites agree on, without showing each other a row.

It is a small JSON file that a person can read before it leaves a hospital: names of columns, what each holds, the
categories that enough patients have, and, for a common scale, counts, means and deviations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from cfl_flare.core.config import from_dict, require
from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import read_json
from cfl_flare.core.settings import check_settings
from cfl_flare.core.shares import capped
from cfl_flare.core.text import shown
from cfl_flare.data.frames import READING, Reading
from cfl_flare.data.labels import LARGEST

KINDS = ("number", "boolean", "category", "ordinal", "date")
OF_CATEGORIES = ("boolean", "category", "ordinal")
# A column of text with more categories than this is no category but a name, an identifier or free text.
MOST_CATEGORIES = 64
MOST_COLUMNS = 100_000
# A name or a category has at most so many characters.
MOST_TEXT = 500
MOST_ROWS = 10**9
# A category of fewer rows at a site is not named to the others.
FEWEST_ROWS = 5
# Of three files or more, one has at most this share of the rows by which a common scale is computed.
SHARE = 0.5
# Without an agreed range, a file's numbers may spread over so many times the widest deviation of the others.
FAR = 10.0


@dataclass(frozen=True)
class Column:
    """A column that becomes features.

    Attributes:
        column: its name.
        kind: ``number``; ``boolean``, the second of two categories is 1; ``category``, each of them a feature of 0 or
            1; ``ordinal``, the place in their order; or ``date``, days since 1970.
        categories: as text, in their order; whole numbers without decimals.
        range: the smallest and the largest number that may occur, so that other units are noticed.
        missing: a feature is added that is 1 where the column has no value.
        rows: how many rows had a value; 0 if that is not known.
        mean: of these.
        deviation: of these, divided by n.
    """

    column: str
    kind: str = "number"
    categories: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    missing: bool = False
    rows: int = 0
    mean: float | None = None
    deviation: float | None = None

    def __post_init__(self) -> None:
        where = f"columns: {shown(self.column)}"
        for name in ("categories", "range"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        require(_is_name(self.column), f"{where} should be a column's name, of 1 to {MOST_TEXT} characters")
        known = isinstance(self.kind, str) and self.kind in KINDS
        require(known, f"{where}: kind = {shown(self.kind)} should be one of {', '.join(KINDS)}")
        require(isinstance(self.missing, bool), f"{where}: missing = {shown(self.missing)} should be true or false")
        texts = isinstance(self.categories, tuple) and all(map(_is_name, self.categories))
        different = texts and len({*self.categories}) == len(self.categories)
        wanted = f"different texts of 1 to {MOST_TEXT} characters"
        require(different, f"{where}: categories = {shown(self.categories)} should be {wanted}")
        if self.kind in OF_CATEGORIES:
            fits = len(self.categories) == 2 if self.kind == "boolean" else len(self.categories) <= MOST_CATEGORIES
            wanted = "two" if self.kind == "boolean" else f"up to {MOST_CATEGORIES}"
            require(fits, f"{where}: {len(self.categories)} categories; a column of kind {self.kind} has {wanted}")
        else:
            require(not self.categories, f"{where}: a column of kind {self.kind} has no categories; leave them out")
        pair = self.range is None or (isinstance(self.range, tuple) and len(self.range) == 2)
        numbers = (*((self.range or ()) if pair else ()), *(v for v in (self.mean, self.deviation) if v is not None))
        finite = all(map(_is_number, numbers))
        wanted = f"numbers of at most {LARGEST:g} in size"
        require(finite, f"{where}: range, mean and deviation are {shown(numbers)}; they should be {wanted}")
        ordered = pair and (self.range is None or self.range[0] <= self.range[1])
        require(ordered, f"{where}: range = {shown(self.range)} should be the smallest and the largest number")
        both = (self.mean is None) == (self.deviation is None) and (self.deviation is None or self.deviation >= 0)
        require(both, f"{where}: mean = {self.mean} and deviation = {self.deviation} >= 0 belong together")
        low, high = self.range or (-math.inf, math.inf)
        inside = self.mean is None or (low <= self.mean <= high and 2 * (self.deviation or 0) <= high - low)
        scale = f"mean = {self.mean} and deviation = {self.deviation}"
        require(inside, f"{where}: {scale} cannot be of numbers in range = {shown(self.range)}; correct one of them")
        counted = isinstance(self.rows, int) and not isinstance(self.rows, bool) and 0 <= self.rows <= MOST_ROWS
        require(counted, f"{where}: rows = {shown(self.rows)} should be a whole number from 0 to {MOST_ROWS:,}")

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its features, in their order."""
        own = [f"{self.column}={c}" for c in self.categories] if self.kind == "category" else [self.column]
        return (*own, *([f"{self.column} missing"] if self.missing else []))

    @property
    def is_scaled(self) -> bool:
        """Whether it is a number, which is scaled, and not 0 or 1."""
        return self.kind in ("number", "ordinal", "date")

    @property
    def line(self) -> str:
        """What it becomes, in one line."""
        of = f" of {' < '.join(self.categories)}" if self.kind == "ordinal" else ""
        of = f", 1 for {self.categories[1]}" if self.kind == "boolean" else of
        of = f" of {', '.join(self.categories)}" if self.kind == "category" else of
        inside = "" if self.range is None else f", from {self.range[0]:g} to {self.range[1]:g}"
        return f"{self.column}: {self.kind}{of}{inside}{', and whether it is missing' if self.missing else ''}"


@dataclass(frozen=True)
class Columns(Reading):
    """What the columns of a table mean.

    Attributes:
        columns: those that become features, in the features' order.
        label: the column of labels; None where it is named elsewhere.
        positive: the label is a number, and the class 1 if it is above this one, else 0; None to take it as it is.
        classes: the label's classes by their names, in the order of their numbers; none if they are numbers.
        leave: columns that are left out on purpose; any other is refused.
        names: all columns' names, for a file without a line of names.
        absent: texts that mean that a value is missing, besides nothing at all; numbers are taken as their text.

    How this site's file is written is said by the settings of `cfl_flare.data.frames.Reading`.
    """

    columns: tuple[Column, ...]
    label: str | None = None
    positive: float | None = None
    classes: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("columns", "classes", "leave", "names", "absent"):
            value = getattr(self, name)
            require(isinstance(value, (list, tuple)), f"columns: {name} = {shown(value)} should be a list")
            value = as_texts(value) if name == "absent" else value
            object.__setattr__(self, name, tuple(value))
            require(len(value) <= MOST_COLUMNS, f"columns: {name} has {len(value):,}, more than {MOST_COLUMNS:,}")
        for name in ("classes", "leave", "names", "absent"):
            wrong = [text for text in getattr(self, name) if not _is_name(text)]
            require(
                not wrong,
                f"columns: {name} has {shown(wrong[:1])}; it should be a list of texts of 1 to {MOST_TEXT} characters",
            )
        kinds = all(isinstance(one, Column) for one in self.columns)
        require(kinds and bool(self.columns), "columns: there are none; name some")
        for what, listed in (
            ("columns", [c.column for c in self.columns]),
            ("names", self.names),
            ("classes", self.classes),
        ):
            twice = [name for name, times in Counter(listed).items() if times > 1]
            require(not twice, f"columns: {what} has {shown(twice[:1])} twice; leave one out")
        named = self.label is None or _is_name(self.label)
        require(named, f"columns: label = {shown(self.label)} should be a name, of 1 to {MOST_TEXT} characters")
        number = self.positive is None or _is_number(self.positive)
        require(number, f"columns: positive = {shown(self.positive)} should be a number")
        check_settings(self, "columns")
        used = {c.column for c in self.columns}
        both = [name for name in (*self.leave, self.label, self.split) if name in used]
        require(not both, f"columns: {shown(both[:1])} is a feature, and left out or the label; make it one of these")

    @classmethod
    def of(cls, value: Mapping[str, Any], where: str = "columns") -> Columns:
        """From what `to_dict` made, or a person wrote.

        Raises:
            ConfigError: it is something else.
        """
        require(isinstance(value, Mapping), f"{where} should be a dictionary of columns, label, ...")
        listed = value.get("columns")
        fits = isinstance(listed, (list, tuple)) and all(isinstance(one, Mapping) for one in listed)
        require(fits, f'{where}: columns should be a list such as [{{"column": "age", "kind": "number"}}]')
        own = tuple(from_dict(Column, dict(one), where) for one in listed or ())
        return from_dict(cls, {**value, "columns": own}, where)

    @classmethod
    def read(cls, path: Path) -> Columns:
        """From a JSON file.

        Raises:
            ConfigError: it cannot be read, or holds something else.
        """
        try:
            return cls.of(read_json(path))
        except FileError as error:
            raise ConfigError(f"columns: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without what is not set."""
        columns = [_set(one) for one in self.columns]
        return {"columns": columns, **{k: v for k, v in _set(self).items() if k != "columns"}}

    @property
    def features(self) -> list[str]:
        """The names of all features, in their order."""
        return [name for column in self.columns for name in column.features]

    @property
    def labels(self) -> np.ndarray | None:
        """A label of each class, ``(classes,)`` int64; None where the labels may be of any form."""
        count = 2 if self.positive is not None else len(self.classes)
        return np.arange(count) if count else None

    @property
    def scaled(self) -> np.ndarray:
        """Which features are numbers to scale, ``(d,)`` bool."""
        return np.array([c.is_scaled and i == 0 for c in self.columns for i in range(len(c.features))])

    @property
    def common(self) -> bool:
        """Whether all its numbers have a common mean and deviation."""
        return all(c.mean is not None for c in self.columns if c.is_scaled)

    @property
    def lines(self) -> list[str]:
        """What each column becomes, and what is left out."""
        left = [f"left out: {', '.join(self.leave)}"] if self.leave else []
        return [*(column.line for column in self.columns), *left]

    def usable(self, where: str) -> Columns:
        """Returns itself.

        Raises:
            ConfigError: a column of categories has none, as a single site's file may say.
        """
        empty = [c.column for c in self.columns if c.kind in OF_CATEGORIES and not c.categories]
        require(not empty, f"{where}: {shown(empty[:1])} has no categories; name them, or leave the column out")
        return self

    def measured(self, x: np.ndarray, fewest: int = 1) -> Columns:
        """With rows, mean and deviation of features ``(n, d)``, NaN where missing, where so many have one."""
        found, place = [], 0
        for column in self.columns:
            own = x[:, place] if column.features else x[:, :0].reshape(-1)
            place += len(column.features)
            there = own[~np.isnan(own)]
            known = column.is_scaled and len(there) >= fewest
            mean, deviation = (float(there.mean()), float(there.std())) if known else (None, None)
            found.append(replace(column, rows=len(there) if known else 0, mean=mean, deviation=deviation))
        return replace(self, columns=tuple(found))


def agreed(sites: Mapping[str, Columns]) -> Columns:
    """The columns that all sites can use: their categories together, a common mean and deviation.

    Mean and deviation are those of all sites' rows, from each site's own.

    Args:
        sites: what each site's table has, by a name for messages.

    Raises:
        ConfigError: a column is missing at a site, or of another kind.
    """
    require(bool(sites), "columns: no site's; name at least one file")
    (first, model), *others = sites.items()
    names = dict.fromkeys(c.column for c in model.columns)
    for site, own in others:
        there = dict.fromkeys(c.column for c in own.columns)
        for name in [name for name in (*names, *there) if name not in names or name not in there]:
            has, lacks = (first, site) if name in names else (site, first)
            way_out = "add it there, or let all sites leave it out"
            raise ConfigError(f"columns: {shown(name)} is at {has} and not at {lacks}; {way_out}")
        for what in ("label", "positive", "absent"):  # names, as how a file is written, are a site's own matter
            mine, theirs = getattr(model, what), getattr(own, what)
            require(
                mine == theirs,
                f"columns: {what} is {shown(mine)} at {first} and {shown(theirs)} at {site}; agree on one",
            )
    by_site = {site: {c.column: c for c in own.columns} for site, own in sites.items()}
    merged = tuple(_together({site: own[name] for site, own in by_site.items()}) for name in names)
    leave = tuple(dict.fromkeys(name for own in sites.values() for name in own.leave))
    classes = _all_of([own.classes for own in sites.values()])
    alike = {name: {getattr(own, name) for own in sites.values()} for name in READING}  # else each site's own
    reading: dict[str, Any] = {name: values.pop() if len(values) == 1 else None for name, values in alike.items()}
    return replace(model, columns=merged, classes=classes, leave=leave, **reading)


def _together(sites: Mapping[str, Column]) -> Column:
    """One column of all sites."""
    (first, model), *others = sites.items()
    where = f"columns: {shown(model.column)}"
    for site, own in others:
        ordered = model.kind in ("boolean", "ordinal")
        for what in ("kind", "range", *(("categories",) if ordered else ())):
            mine, theirs = getattr(model, what), getattr(own, what)
            unequal = f"{where}: {what} is {shown(mine)} at {first} and {shown(theirs)} at {site}; agree on one"
            require(mine == theirs, unequal)
    every = list(sites.values())
    categories = model.categories
    if model.kind == "category":
        categories = _all_of([own.categories for own in every])
        require(bool(categories), f"{where}: no site has a category of enough rows; let all sites leave it out")
    rows, (mean, deviation) = sum(own.rows for own in every), _scale(sites, where) if model.is_scaled else (None, None)
    missing = any(own.missing for own in every)
    return replace(model, categories=categories, missing=missing, rows=rows, mean=mean, deviation=deviation)


def _scale(sites: Mapping[str, Column], where: str) -> tuple[float | None, float | None]:
    """The mean and the deviation of a column over all sites' rows, in which no file has the majority.

    Raises:
        ConfigError: a file's numbers are far from all others, and no range was agreed on.
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
        require(
            len(others) < 2 or not reach or sites[site].range is not None or max(near, deviation) <= reach,
            f"{where}: {site} has mean {mean:g} and deviation {deviation:g}, far from all others; correct its file, or "
            "agree on a range in all files",
        )
    if not scales:
        return None, None
    weights = {site: float(rows) for site, (rows, _, _) in scales.items()}
    weights = capped(weights, SHARE) if len(weights) > 2 else weights
    return pooled((weights[site], mean, deviation) for site, (_, mean, deviation) in scales.items())


def _set(one: Column | Columns) -> dict[str, Any]:
    """What differs from the defaults, for JSON."""
    found = {own.name: getattr(one, own.name) for own in fields(one) if getattr(one, own.name) != own.default}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def _all_of(named: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What any site names; in their order if all name the same, as from a study's protocol, else sorted."""
    if len({*named}) == 1:
        return named[0]
    return tuple(sorted({name for own in named for name in own}, key=in_order))


def pooled(parts: Iterable[tuple[float, float, float]]) -> tuple[float, float]:
    """Mean and deviation of all rows, from the count, mean and deviation of each part.

    >>> pooled([(1, 0.0, 0.0), (3, 4.0, 0.0)])
    (3.0, 1.7320508075688772)
    """
    counts, means, deviations = np.array(list(parts), np.float64).T
    mean = float(np.average(means, weights=counts))
    variance = float(np.average(deviations**2 + (means - mean) ** 2, weights=counts))
    return mean, math.sqrt(variance)


def as_texts(values: Iterable[Any]) -> list[Any]:
    """Values with numbers as their text, whole ones without decimals, as a user may write what is missing: [-1, "?"].

    >>> as_texts([-1, 99.0, "?"])
    ['-1', '99', '?']
    """
    return [f"{value:.15g}" if _is_number(value) else value for value in values]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_TEXT


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def in_order(category: str) -> tuple[bool, float, str]:
    """The key by which categories are sorted: numbers first, by their size."""
    try:
        return False, float(category), category
    except ValueError:
        return True, 0.0, category
