# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A table's labels: classes, numbers to predict, or times with events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.data.features import numbers, texts

if TYPE_CHECKING:
    import pandas as pd

# So many rows are named in a message.
FIRST_ROWS = 5


@dataclass(frozen=True)
class Outcomes:
    """Labels, and the rows that have one.

    Attributes:
        y: the labels of these rows, in one of the forms of `cfl_flare.data.labels`.
        kept: ``(rows,)`` bool.
        names: of the classes, if they are text.
    """

    y: np.ndarray
    kept: np.ndarray
    names: tuple[str, ...] = ()


def outcomes(
    frame: pd.DataFrame,
    path: Path,
    label: str,
    event: str | None,
    positive: float | None = None,
    classes: Sequence[str] = (),
    leave: bool = False,
    zero_times: str | None = None,
) -> Outcomes:
    """The labels of a table.

    Args:
        frame: the table.
        path: names it in errors.
        label: the column of labels; of times, if there is one of events.
        event: the column of events; None if there is none.
        positive: the label is a number, and the class 1 above this one; None to take it as it is.
        classes: the classes' names, in the order of their numbers; none to number those that are there.
        leave: leave out rows without a label.
        zero_times: what happens to rows with a time of 0 or less; see `cfl_flare.data.frames.Reading`.

    Raises:
        DataError: a row has no label, or one that is wrong.
    """
    where = f"{path}: column {label!r}"
    own = frame[label]
    has = texts(own).notna().to_numpy()
    if event is not None:
        has &= texts(frame[event]).notna().to_numpy()
    if not leave:
        has = np.ones(len(frame), bool)
    if not has.any():
        raise DataError(f"{where}: no row has a label; name another column")
    own = own[has]
    if event is not None:
        events = event_values(frame[event][has], f"{path}: column {event!r}")
        times = time_values(own, where, zero_times)
        has[has] = positive_times = times > 0
        return Outcomes(np.stack((times, events), axis=1)[positive_times], has)
    if positive is not None:
        values = numbers(own, where)
        _all_there(own, where)
        return Outcomes((values > positive).astype(np.int64), has)
    if classes:
        return Outcomes(_numbered(own, classes, where), has, tuple(classes))
    y = label_values(own, where, of_whole=not has.all())
    is_text = own.dtype.kind not in "iubf" and y.dtype.kind == "i"
    return Outcomes(y, has, tuple(map(str, np.unique(texts(own).to_numpy().astype(str)))) if is_text else ())


def _numbered(values: pd.Series, classes: Sequence[str], where: str) -> np.ndarray:
    """The numbers of classes that were agreed on.

    Raises:
        DataError: a row has another one, or none.
    """
    _all_there(values, where)
    own = texts(values)
    found = own.map({name: i for i, name in enumerate(classes)})
    if found.isna().any():
        name = own[found.isna()].iloc[0]
        raise DataError(
            f"{where}: {name!r} is none of the {len(classes)} classes that the sites agreed on; add it to classes in "
            "columns, at all sites, or leave its rows out"
        )
    return found.to_numpy(np.int64)


def label_values(values: pd.Series, where: str, of_whole: bool = False) -> np.ndarray:
    """A column of labels ``(n,)``: class numbers as int64, names numbered in sorted order, or numbers as float64.

    Args:
        values: one for each row.
        where: names the column in errors.
        of_whole: floats without decimals are class numbers, as in a column where other rows have no label.

    Raises:
        DataError: a row has no label or an infinite one, or the column holds a word among numbers to predict.
    """
    _all_there(values, where)
    if values.dtype.kind in "iub":
        return values.to_numpy(np.float64 if values.min() < 0 else np.int64)
    if values.dtype.kind != "f":
        own = texts(values)
        if not any(_is_number(text) and not text.lstrip("+-").isdigit() for text in own.unique()):
            return np.unique(own.to_numpy().astype(str), return_inverse=True)[1].astype(np.int64)
    found = numbers(values, where)
    classes = of_whole and bool((found == np.floor(found)).all() and found.min() >= 0)
    return found.astype(np.int64) if classes else found


def time_values(values: pd.Series, where: str, zero_times: str | None = None) -> np.ndarray:
    """A column of times ``(n,)`` as float64.

    Args:
        values: one for each row.
        where: names the column in errors.
        zero_times: ``leave`` to return those that are not above 0 as they are, to be left out; ``shift`` to set those
            of 0 to half of the smallest above 0.

    Raises:
        DataError: a row's is missing, infinite, no number, or not above 0.
    """
    _all_there(values, where, "time")
    times = numbers(values, where)
    if zero_times == "shift" and (times > 0).any():
        times = np.where(times == 0, times[times > 0].min() / 2, times)
    wrong = np.flatnonzero(times <= 0)
    if len(wrong) == len(times) or (len(wrong) and zero_times != "leave"):
        rows = ", ".join(str(values.index[i] + 1) for i in wrong[:FIRST_ROWS]) + ", ..." * (len(wrong) > FIRST_ROWS)
        raise DataError(
            f"{where}: {len(wrong)} of {len(times)} rows have a time that is not above 0 (rows {rows}); correct them, "
            "or set zero_times=leave to leave them out, or zero_times=shift to set those of 0 to half of the smallest"
        )
    return times


def event_values(values: pd.Series, where: str) -> np.ndarray:
    """A column of events ``(n,)`` as float64: 1 where it happened, 0 where the row was censored.

    Raises:
        DataError: a row holds something else.
    """
    own = texts(values.astype(int) if values.dtype == bool else values)
    known = own.isin(("0", "1")).to_numpy()
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        held = "no value" if own.iloc[row] is None else repr(own.iloc[row])
        raise DataError(
            f"{where}: row {row + 1} holds {held}; write 1 where the event happened, 0 where the row was censored"
        )
    return own.to_numpy().astype(np.float64)


def _all_there(values: pd.Series, where: str, what: str = "label") -> None:
    missing = np.flatnonzero(texts(values).isna().to_numpy())
    if len(missing):
        raise DataError(
            f"{where}: row {values.index[missing[0]] + 1} has no {what}; fill it in, leave the row out, or set "
            "unlabelled=leave"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
