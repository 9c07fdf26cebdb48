# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The values of a file of any type as numbers, dates or texts, so that one set of rules reads them all."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.core.text import shown

if TYPE_CHECKING:
    import pandas as pd


# From this number on, float64 does not have each whole number: two codes would become one.
LARGEST_WHOLE = 2**53


def simplify_column(
    values: pd.Series, where: str
) -> pd.Series | np.ndarray | list[str]:
    """Brings a column of any type to numbers, dates or texts.

    Args:
        values: as the file has them.
        where: names file and column in an error.

    Returns:
        Numbers ``(n,)`` as an array, NaN where there is none; dates as a series; or texts as a list, empty where there
        is none. Booleans are the texts True and False.

    Raises:
        DataError: the column holds lists, durations or something else that is no value of a table.
    """
    kind = values.dtype.kind
    if kind == "M":
        return values
    if kind in "iu" and values.isna().any():
        amounts = values.to_numpy(np.float64, na_value=np.nan)
        if np.nanmax(np.abs(amounts), initial=0.0) < LARGEST_WHOLE:
            return amounts
        return [
            "" if gap else str(int(value)) for value, gap in zip(values, values.isna())
        ]
    if kind in "iuf":
        numpy_type = getattr(values.dtype, "numpy_dtype", values.dtype)
        return (
            values.to_numpy(numpy_type, na_value=np.nan)
            if kind == "f"
            else values.to_numpy(numpy_type)
        )
    if kind in "mc":
        what = "durations" if kind == "m" else "complex numbers"
        raise DataError(
            f"{where}: holds {what}; write them as numbers, or leave the column out of the file"
        )
    cells = values.astype(object).tolist()
    if all(isinstance(cell, str) for cell in cells):  # as of a text file
        return [cell.strip() for cell in cells]
    missing = values.isna().to_numpy()
    return [
        "" if gap else write_cell(value, row, where)
        for row, (value, gap) in enumerate(zip(cells, missing), 1)
    ]


def write_cell(value: Any, row: int, where: str) -> str:
    """A value as text, as a CSV file would have it.

    Args:
        value: a text, number, boolean, date or time.
        row: its row's number, for an error.
        where: names file and column in an error.

    Raises:
        DataError: it is something else.
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        at_midnight = value.time() == time(0) and value.tzinfo is None
        return value.date().isoformat() if at_midnight else value.isoformat(" ")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode().strip()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where}: row {row} holds bytes that are no text; leave the column out"
            ) from error
    what = f"{shown(value)}, a {type(value).__name__}"
    raise DataError(
        f"{where}: row {row} holds {what}; a table has texts, numbers and dates: leave the column out"
    )
