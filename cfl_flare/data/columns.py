# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the columns of a table mean: the part of a table that sites agree on, without showing each other a row.

It is a small JSON file that a person can read before it leaves a hospital. It has names of columns, what each holds,
and the categories that enough patients have. A common scale needs counts, means and deviations as well. A wrong file
raises a ConfigError.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from cfl_flare.core.config import from_dict, require
from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import read_json
from cfl_flare.core.settings import check_settings
from cfl_flare.core.shares import capped
from cfl_flare.core.text import shown
from cfl_flare.data.classes import check_spelling_of_sites
from cfl_flare.data.frames import READING, Reading
from cfl_flare.data.labels import LARGEST

KINDS = ("number", "boolean", "category", "ordinal", "date")
# A column of text with more categories than this is no category but a name, an identifier or free text.
MOST_CATEGORIES = 64
MOST_COLUMNS = 100_000
MOST_TEXT = 500
MOST_ROWS = 10**9
# A category of fewer rows at a site is not named to the others.
FEWEST_ROWS = 5
# Of three files or more, one has at most this share of the rows by which a common scale is computed.
SHARE = 0.5
# Without an agreed range, a file's numbers may spread this many times as far as the widest deviation of the others.
FAR = 10.0
A_NAME, TEXTS = f"name, of 1 to {MOST_TEXT} characters", f"texts of 1 to {MOST_TEXT} characters"
NUMBERS = f"numbers of at most {LARGEST:g} in size"


@dataclass(frozen=True)
class Column:
    """A column that becomes features.

    Attributes:
        kind: ``number``; ``boolean``, the second of two categories is 1; ``category``, each of them a feature of 0 or
            1; ``ordinal``, the place in their order; or ``date``, days since 1970.
        categories: as text, in their order; whole numbers without decimals.
        range: the smallest and the largest number that may occur, so that other units are noticed.
        unit: of its numbers, as ``mg/dL``; it must be the same at all sites.
        missing: a feature is added that is 1 where the column has no value.
        rows: how many rows had a value; 0 if that is not known.
        mean: of these.
        deviation: of these, divided by n.
    """

    column: str
    kind: str = "number"
    categories: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    unit: str | None = None
    missing: bool = False
    rows: int = 0
    mean: float | None = None
    deviation: float | None = None

    def __post_init__(self) -> None:
        for name in ("categories", "range"):
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)
        if not _is_name(self.column):
            raise ConfigError(f"columns: {shown(self.column)} should be a column's {A_NAME}")
        pair = self.range if isinstance(self.range, tuple) and len(self.range) == 2 else (1, 0)
        is_range = self.range is None or (all(map(_is_number, pair)) and pair[0] <= pair[1])
        is_count = isinstance(self.rows, int) and not isinstance(self.rows, bool) and 0 <= self.rows <= MOST_ROWS
        self._check("kind", isinstance(self.kind, str) and self.kind in KINDS, f"one of {', '.join(KINDS)}")
        self._check("missing", isinstance(self.missing, bool), "true or false")
        are_names = isinstance(self.categories, tuple) and all(map(_is_name, self.categories))
        self._check("categories", are_names and len({*self.categories}) == len(self.categories), f"different {TEXTS}")
        self._check("range", is_range, f"the smallest and the largest of {NUMBERS}")
        is_unit = self.unit is None or (_is_name(self.unit) and self.kind == "number")
        self._check("unit", is_unit, f"one of {TEXTS}, of a column of kind number")
        self._check("rows", is_count, f"a whole number from 0 to {MOST_ROWS:,}")
        count, most = len(self.categories), {"boolean": 2, "number": 0, "date": 0}.get(self.kind, MOST_CATEGORIES)
        if count > most or (self.kind == "boolean" and count < most):
            wanted = {2: "two", 0: "none; leave them out"}.get(most, f"up to {most}")
            what = f"{count} categories; a column of kind {self.kind} has {wanted}"
            raise ConfigError(f"columns: {shown(self.column)}: {what}")
        if self.mean is not None or self.deviation is not None:
            self._check_scale()

    def _check(self, name: str, holds: bool, wanted: str) -> None:
        if not holds:  # a table of genes has many columns, and a message for each would take long
            value = shown(getattr(self, name))
            raise ConfigError(f"columns: {shown(self.column)}: {name} = {value} should be {wanted}")

    def _check_scale(self) -> None:
        mean, deviation = self.mean, self.deviation
        where = f"columns: {shown(self.column)}: mean = {shown(mean)} and deviation = {shown(deviation)}"
        if not (_is_number(mean) and _is_number(deviation) and deviation >= 0):
            raise ConfigError(f"{where} belong together; they should be {NUMBERS}, and the deviation >= 0")
        low, high = self.range or (-math.inf, math.inf)
        possible = low <= mean <= high and 2 * deviation <= high - low
        require(possible, f"{where} cannot be of numbers in range = {shown(self.range)}; correct one of them")

    @property
    def features(self) -> tuple[str, ...]:
        names = [f"{self.column}={c}" for c in self.categories] if self.kind == "category" else [self.column]
        return (*names, f"{self.column} missing") if self.missing else tuple(names)

    @property
    def is_scaled(self) -> bool:
        """Whether it is a number, which is scaled, and not 0 or 1."""
        return self.kind in ("number", "ordinal", "date")

    @property
    def line(self) -> str:
        of = f" of {' < '.join(self.categories)}" if self.kind == "ordinal" else ""
        of = f", 1 for {self.categories[1]}" if self.kind == "boolean" else of
        of = f" of {', '.join(self.categories)}" if self.kind == "category" else of
        inside = "" if self.range is None else f", from {self.range[0]:g} to {self.range[1]:g}"
        inside += "" if self.unit is None else f", in {self.unit}"
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
        absent: texts that mean that a value is missing, apart from nothing at all; numbers are taken as their text.

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
            values = getattr(self, name)
            require(isinstance(values, (list, tuple)), f"columns: {name} = {shown(values)} should be a list")
            require(len(values) <= MOST_COLUMNS, f"columns: {name} has {len(values):,}, more than {MOST_COLUMNS:,}")
            values = tuple(as_texts(values) if name == "absent" else values)
            object.__setattr__(self, name, values)
            wrong = [value for value in values if name != "columns" and not _is_name(value)]
            require(not wrong, f"columns: {name} has {shown(wrong[:1])}; it should be a list of {TEXTS}")
        are_columns = all(isinstance(column, Column) for column in self.columns)
        require(are_columns and bool(self.columns), "columns: there are none; name some")
        features = [column.column for column in self.columns]
        for what, names in (("columns", features), ("names", self.names), ("classes", self.classes)):
            twice = [name for name, times in Counter(names).items() if times > 1]
            require(not twice, f"columns: {what} has {shown(twice[:1])} twice; leave one out")
        is_name = self.label is None or _is_name(self.label)
        require(is_name, f"columns: label = {shown(self.label)} should be a {A_NAME}")
        is_number = self.positive is None or _is_number(self.positive)
        require(is_number, f"columns: positive = {shown(self.positive)} should be a number")
        check_settings(self, "columns")
        both = [name for name in (*self.leave, self.label, self.split) if name in {*features}]
        require(not both, f"columns: {shown(both[:1])} is a feature, and left out or the label; make it one of these")

    @classmethod
    def of(cls, value: Mapping[str, Any], where: str = "columns") -> Columns:
        """From what `to_dict` made, or a person wrote."""
        require(isinstance(value, Mapping), f"{where} should be a dictionary of columns, label, ...")
        listed = value.get("columns")
        is_list = isinstance(listed, (list, tuple)) and all(isinstance(column, Mapping) for column in listed)
        require(is_list, f'{where}: columns should be a list such as [{{"column": "age", "kind": "number"}}]')
        columns = tuple(from_dict(Column, dict(column), where) for column in listed or ())
        return from_dict(cls, {**value, "columns": columns}, where)

    @classmethod
    def read(cls, path: Path) -> Columns:
        try:
            return cls.of(read_json(path))
        except FileError as error:
            raise ConfigError(f"columns: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        settings = {**_changed(self), "columns": [_changed(column) for column in self.columns]}
        return {"columns": settings.pop("columns"), **settings}

    @property
    def features(self) -> list[str]:
        return [name for column in self.columns for name in column.features]

    @property
    def places(self) -> Iterator[tuple[Column, slice]]:
        """Each column, and where its features are among all."""
        start = 0
        for column in self.columns:
            stop = start + len(column.features)
            yield column, slice(start, stop)
            start = stop

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
        """Returns itself if each column of categories has some; a single site's file may have none."""
        of_categories = ("boolean", "category", "ordinal")
        empty = [c.column for c in self.columns if c.kind in of_categories and not c.categories]
        require(not empty, f"{where}: {shown(empty[:1])} has no categories; name them, or leave the column out")
        return self

    def measured(self, x: np.ndarray, fewest: int = 1, patient: np.ndarray | None = None) -> Columns:
        """With rows, mean and deviation of features ``(n, d)`` that at least ``fewest`` patients have; NaN is missing.

        ``patient (n,)`` says whose rows they are; None if each is of a patient of its own.
        """
        columns, patient = [], np.arange(len(x)) if patient is None else patient
        for column, place in self.places:
            rows, mean, deviation = 0, None, None
            if column.is_scaled:
                values = x[:, place.start]
                there = ~np.isnan(values)
                values = values[there]
                if len(np.unique(patient[there])) >= fewest:
                    rows, mean, deviation = len(values), float(values.mean()), float(values.std())
            columns.append(replace(column, rows=rows, mean=mean, deviation=deviation))
        return replace(self, columns=tuple(columns))


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
    check_spelling_of_sites({site: columns.classes for site, columns in sites.items()})
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
    sites = {site: _widen_single(column, sites.values()) for site, column in sites.items()}
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


def _widen_single(column: Column, others: Iterable[Column]) -> Column:
    """A column with one value, or none, as the boolean that it is at another site: all patients there may be women."""
    if column.kind != "category" or len(column.categories) > 1:
        return column
    for other in others:
        if other.kind == "boolean" and {*column.categories} <= {*other.categories}:
            return replace(column, kind="boolean", categories=other.categories)
    return column


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


def _changed(settings: Column | Columns) -> dict[str, Any]:
    """What differs from the defaults, for JSON."""
    values = {field.name: (getattr(settings, field.name), field.default) for field in fields(settings)}
    changed = {name: value for name, (value, default) in values.items() if value != default}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}


def as_texts(values: Iterable[Any]) -> list[Any]:
    """Values with numbers as their text, whole ones without decimals, as a user may write what is missing: [-1, "?"].

    >>> as_texts([-1, 99.0, "?"])
    ['-1', '99', '?']
    """
    return [f"{value:.15g}" if _is_number(value) else value for value in values]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_TEXT


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def in_order(category: str) -> tuple[bool, float, str]:
    """The key by which categories are sorted: numbers first, by their size."""
    try:
        return False, float(category), category
    except ValueError:
        return True, 0.0, category
