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
from cfl_flare.core.text import shown
from cfl_flare.data.labels import LARGEST
from cfl_flare.data.reading import Reading

KINDS = ("number", "boolean", "category", "ordinal", "date", "empty")
# A column of text with more categories than this is no category but a name, an identifier or free text.
MOST_CATEGORIES = 64
MOST_COLUMNS = 100_000
MOST_TEXT = 500
MOST_ROWS = 10**9
# A category of fewer rows at a site is not named to the others.
FEWEST_ROWS = 5
A_NAME, TEXTS = (
    f"name, of 1 to {MOST_TEXT} characters",
    f"texts of 1 to {MOST_TEXT} characters",
)
NUMBERS = f"numbers of at most {LARGEST:g} in size"


@dataclass(frozen=True)
class Column:
    """A column that becomes features.

    Attributes:
        kind: ``number``; ``boolean``, the second of two categories is 1; ``category``, each of them a feature of 0 or
            1; ``ordinal``, the place in their order; or ``date``, days since 1970. In a site's file also ``empty``: no
            row has a value, and the other sites say what it is.
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
            object.__setattr__(
                self, name, tuple(value) if isinstance(value, list) else value
            )
        if not _is_name(self.column):
            raise ConfigError(
                f"columns: {shown(self.column)} should be a column's {A_NAME}"
            )
        pair = (
            self.range
            if isinstance(self.range, tuple) and len(self.range) == 2
            else (1, 0)
        )
        is_range = self.range is None or (
            all(map(_is_number, pair)) and pair[0] <= pair[1]
        )
        is_count = (
            isinstance(self.rows, int)
            and not isinstance(self.rows, bool)
            and 0 <= self.rows <= MOST_ROWS
        )
        self._check(
            "kind",
            isinstance(self.kind, str) and self.kind in KINDS,
            f"one of {', '.join(KINDS)}",
        )
        self._check("missing", isinstance(self.missing, bool), "true or false")
        are_names = isinstance(self.categories, tuple) and all(
            map(_is_name, self.categories)
        )
        self._check(
            "categories",
            are_names and len({*self.categories}) == len(self.categories),
            f"different {TEXTS}",
        )
        self._check("range", is_range, f"the smallest and the largest of {NUMBERS}")
        is_unit = self.unit is None or (_is_name(self.unit) and self.kind == "number")
        self._check("unit", is_unit, f"one of {TEXTS}, of a column of kind number")
        self._check("rows", is_count, f"a whole number from 0 to {MOST_ROWS:,}")
        count, most = (
            len(self.categories),
            {"boolean": 2, "number": 0, "date": 0, "empty": 0}.get(
                self.kind, MOST_CATEGORIES
            ),
        )
        if count > most or (self.kind == "boolean" and count < most):
            wanted = {2: "two", 0: "none; leave them out"}.get(most, f"up to {most}")
            what = f"{count} categories; a column of kind {self.kind} has {wanted}"
            raise ConfigError(f"columns: {shown(self.column)}: {what}")
        if self.mean is not None or self.deviation is not None:
            self._check_scale()

    def _check(self, name: str, holds: bool, wanted: str) -> None:
        if (
            not holds
        ):  # a table of genes has many columns, and a message for each would take long
            value = shown(getattr(self, name))
            raise ConfigError(
                f"columns: {shown(self.column)}: {name} = {value} should be {wanted}"
            )

    def _check_scale(self) -> None:
        mean, deviation = self.mean, self.deviation
        where = f"columns: {shown(self.column)}: mean = {shown(mean)} and deviation = {shown(deviation)}"
        if not (_is_number(mean) and _is_number(deviation) and deviation >= 0):
            raise ConfigError(
                f"{where} belong together; they should be {NUMBERS}, and the deviation >= 0"
            )
        low, high = self.range or (-math.inf, math.inf)
        possible = low <= mean <= high and 2 * deviation <= high - low
        require(
            possible,
            f"{where} cannot be of numbers in range = {shown(self.range)}; correct one of them",
        )

    @property
    def features(self) -> tuple[str, ...]:
        names = (
            [f"{self.column}={c}" for c in self.categories]
            if self.kind == "category"
            else [self.column]
        )
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
        inside = (
            ""
            if self.range is None
            else f", from {self.range[0]:g} to {self.range[1]:g}"
        )
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

    How this site's file is written is said by the settings of `cfl_flare.data.reading.Reading`.
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
            require(
                isinstance(values, (list, tuple)),
                f"columns: {name} = {shown(values)} should be a list",
            )
            require(
                len(values) <= MOST_COLUMNS,
                f"columns: {name} has {len(values):,}, more than {MOST_COLUMNS:,}",
            )
            values = tuple(as_texts(values) if name == "absent" else values)
            object.__setattr__(self, name, values)
            wrong = [
                value for value in values if name != "columns" and not _is_name(value)
            ]
            require(
                not wrong,
                f"columns: {name} has {shown(wrong[:1])}; it should be a list of {TEXTS}",
            )
        are_columns = all(isinstance(column, Column) for column in self.columns)
        require(
            are_columns and bool(self.columns), "columns: there are none; name some"
        )
        features = [column.column for column in self.columns]
        for what, names in (
            ("columns", features),
            ("names", self.names),
            ("classes", self.classes),
        ):
            twice = [name for name, times in Counter(names).items() if times > 1]
            require(
                not twice,
                f"columns: {what} has {shown(twice[:1])} twice; leave one out",
            )
        is_name = self.label is None or _is_name(self.label)
        require(is_name, f"columns: label = {shown(self.label)} should be a {A_NAME}")
        is_number = self.positive is None or _is_number(self.positive)
        require(
            is_number, f"columns: positive = {shown(self.positive)} should be a number"
        )
        check_settings(self, "columns")
        both = [
            name
            for name in (*self.leave, self.label, self.split)
            if name in {*features}
        ]
        require(
            not both,
            f"columns: {shown(both[:1])} is a feature, and left out or the label; make it one of these",
        )

    @classmethod
    def of(cls, value: Mapping[str, Any], where: str = "columns") -> Columns:
        """From what `to_dict` made, or a person wrote."""
        require(
            isinstance(value, Mapping),
            f"{where} should be a dictionary of columns, label, ...",
        )
        listed = value.get("columns")
        is_list = isinstance(listed, (list, tuple)) and all(
            isinstance(column, Mapping) for column in listed
        )
        require(
            is_list,
            f'{where}: columns should be a list such as [{{"column": "age", "kind": "number"}}]',
        )
        columns = tuple(
            from_dict(Column, dict(column), where) for column in listed or ()
        )
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
        settings = {
            **_changed(self),
            "columns": [_changed(column) for column in self.columns],
        }
        return {"columns": settings.pop("columns"), **settings}

    @property
    def features(self) -> list[str]:
        return [name for column in self.columns for name in column.features]

    @property
    def named(self) -> list[str]:
        """The columns whose values are names, and so are read as text."""
        return [
            column.column
            for column in self.columns
            if column.kind in ("boolean", "category", "ordinal")
        ]

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
        return np.array(
            [
                c.is_scaled and i == 0
                for c in self.columns
                for i in range(len(c.features))
            ]
        )

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
        empty = [
            c.column
            for c in self.columns
            if c.kind in of_categories and not c.categories
        ]
        require(
            not empty,
            f"{where}: {shown(empty[:1])} has no categories; name them, or leave the column out",
        )
        unsaid = [c.column for c in self.columns if c.kind == "empty"]
        way_out = "name one, put all sites' files together by 'cfl-flare columns', or leave the column out"
        require(
            not unsaid,
            f"{where}: {shown(unsaid[:1])} is empty, and so has no kind; {way_out}",
        )
        return self

    def measured(
        self, x: np.ndarray, fewest: int = 1, patient: np.ndarray | None = None
    ) -> Columns:
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
                    rows, mean, deviation = (
                        len(values),
                        float(values.mean()),
                        float(values.std()),
                    )
            columns.append(replace(column, rows=rows, mean=mean, deviation=deviation))
        return replace(self, columns=tuple(columns))


def _changed(settings: Column | Columns) -> dict[str, Any]:
    """What differs from the defaults, for JSON."""
    values = {
        field.name: (getattr(settings, field.name), field.default)
        for field in fields(settings)
    }
    changed = {
        name: value for name, (value, default) in values.items() if value != default
    }
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in changed.items()
    }


def as_texts(values: Iterable[Any]) -> list[Any]:
    """Values with numbers as their text, whole ones without decimals, as a user may write what is missing: [-1, "?"].

    >>> as_texts([-1, 99.0, "?"])
    ['-1', '99', '?']
    """
    return [f"{value:.15g}" if _is_number(value) else value for value in values]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_TEXT


def _is_number(value: Any) -> TypeGuard[float]:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) <= LARGEST
    )


def in_order(category: str) -> tuple[bool, float, str]:
    """The key by which categories are sorted: numbers first, by their size."""
    try:
        return False, float(category), category
    except ValueError:
        return True, 0.0, category
