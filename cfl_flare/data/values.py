# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the texts of a table say: numbers, booleans and dates, by rules that are the same for every format of file.

A text is a number only if it is written as a number. It is never made one: 0744 is a code, and 8,170 is refused, as it
may be 8170 or 8.17. In these functions ``where`` names the file, or the file and the column, for an error.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.data.hints import explain_codes, explain_texts, name_list

if TYPE_CHECKING:
    import pandas as pd

# Characters of numbers that Python reads as they are.
NOT_PLAIN = re.compile(r"[^0-9eE.+\n-]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Thousands with spaces of any width, or with apostrophes: no other number is written so.
GROUPED = re.compile(
    r"[+-]?(?:0|[1-9]\d{0,2})(?:(['\u2019 \u00a0\u202f\u2009])\d{3})(?:\1\d{3})*(\.\d+)?"
)
LEADING_ZERO = re.compile(r"(?:^|\n)[+-]?0(?:\d|[eE]\d)")
INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
# The words of a boolean, in small letters.
FALSE_WORDS = ("n", "no", "false", "f")
TRUE_WORDS = ("y", "yes", "true", "t")
PAIRS = tuple(zip(FALSE_WORDS, TRUE_WORDS))
# In the company of such words, 0 and 1 mean the same.
MEANINGS = dict.fromkeys((*FALSE_WORDS, "0"), 0.0) | dict.fromkeys(
    (*TRUE_WORDS, "1"), 1.0
)
# A letter alone may be something else, such as F for a woman.
FULL_WORDS = {"no", "false", "yes", "true"}
# Dates of ISO 8601: a year, a month, a day, perhaps with a time and its distance from UTC.
DATE = r"(\d{4})(?:-(\d\d)(?:-(\d\d))?|(\d\d)(\d\d))?"
TIME = r"(\d\d):?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?"
ISO = re.compile(
    rf"{DATE}(?:[T ]\s*{TIME}\s*(Z|UTC|[+-]\d\d(?::?\d\d)?)?)?", re.IGNORECASE
)
EPOCH = datetime(1970, 1, 1)
DAY = timedelta(days=1)


def texts(values: pd.Series) -> pd.Series:
    """Returns the values as text, whole numbers without decimals; None where there is none."""

    def written(value: object) -> str:
        if isinstance(value, (float, np.floating)) and float(value).is_integer():
            return str(int(value))
        text = str(value).strip()
        is_whole = (
            text.endswith(".0") and text[:-2].lstrip("-").isdigit()
        )  # as another site may have written it
        return text[:-2] if is_whole else text

    as_text = values.map(written, na_action="ignore").astype(object)
    return as_text.where(values.notna() & (as_text != ""), None)


def parse_numbers(written: Sequence[str]) -> np.ndarray:
    """Reads texts that are numbers.

    Args:
        written: texts without spaces at their ends, none of them empty.

    Returns:
        ``(n,)`` float64, NaN for each text that is no number.

    >>> parse_numbers(["1.5", "8'170", "8,170", "yes"]).tolist()
    [1.5, 8170.0, nan, nan]
    """
    if not written:
        return np.empty(0)
    if not NOT_PLAIN.search("\n".join(written)):
        try:
            return np.array(list(map(float, written)), np.float64)
        except ValueError:  # such as 1-2, which has these characters only
            pass
    known = {text: _parse_number(text) for text in set(written)}
    return np.array([known[text] for text in written], np.float64)


def _parse_number(text: str) -> float:
    number = text.replace("\u2212", "-").replace(
        "\u066b", "."
    )  # a minus, and the decimal mark of Arabic digits
    if GROUPED.fullmatch(number):
        number = re.sub(r"[^\d.+-]", "", number)
    if NUMBER.fullmatch(number) or INFINITE.fullmatch(number):
        return float(number)
    return float("nan")


def are_percentages(written: Sequence[str]) -> bool:
    """Tells whether all of some texts are numbers with a percent sign."""
    if not len(written) or not all(text.endswith("%") for text in written):
        return False
    return not np.isnan(parse_numbers(_without_percent(written))).any()


def _without_percent(written: Sequence[str]) -> list[str]:
    return [text.removesuffix("%").rstrip() or "%" for text in written]


def has_codes(written: Sequence[str]) -> bool:
    """Tells whether a text begins with 0 as codes do, such as 0744: a number would lose that 0."""
    return LEADING_ZERO.search("\n".join(written)) is not None


def numbers(values: pd.Series, where: str) -> np.ndarray:
    """Reads a column of numbers.

    Args:
        values: numbers, or texts that should be numbers.
        where: names file and column in an error.

    Returns:
        ``(n,)`` float64, NaN where there is none. A percentage is the number before the sign.

    Raises:
        DataError: a text is no number, or begins with 0 as codes do, or a number is infinite.
    """
    if values.dtype.kind in "iufb":
        amounts = values.to_numpy(np.float64, na_value=np.nan)
    else:
        amounts = _numbers_of_texts(values, where)
    infinite = np.flatnonzero(np.isinf(amounts))
    if len(infinite):
        raise DataError(
            f"{where}: row {_row(values, infinite[0])} is infinite; fix it or leave the row out"
        )
    return amounts


def _numbers_of_texts(values: pd.Series, where: str) -> np.ndarray:
    written = texts(values)
    places = np.flatnonzero(written.notna())
    there = written.iloc[places].tolist()
    amounts = np.full(len(written), np.nan)
    amounts[places] = parse_amounts(there)
    wrong = places[np.isnan(amounts[places])]
    if len(wrong):
        others = written.iloc[wrong]
        reason = f"row {_row(values, wrong[0])} holds {others.iloc[0]!r} among numbers; fix it, leave the row out, set"
        reason += f" {name_list('absent', others.unique())} if it means that a value is missing, or replace with its"
        reason += " number; a column of codes belongs in categories"
        raise DataError(f"{where}: {explain_texts(written) or reason}")
    if has_codes(there):
        raise DataError(f"{where}: {explain_codes(written)}")
    return amounts


def _row(values: pd.Series, place: int) -> int:
    """The number of a row in its file, from 1."""
    return int(values.index[place]) + 1


def hint_at_gaps(odd: Sequence[str]) -> str:
    """A hint for texts that may mean that a value is missing; empty if they are numbers, which other columns have."""
    words = [text for text in odd if np.isnan(parse_numbers([text])[0])]
    return (
        f", or set {name_list('absent', words)} if it means that a value is missing"
        if words
        else ""
    )


def parse_amounts(written: Sequence[str]) -> np.ndarray:
    """Reads texts that are numbers, or percentages if most are.

    Args:
        written: texts without spaces at their ends, none of them empty.

    Returns:
        ``(n,)`` float64, NaN for each text that is no number, or is no percentage among percentages.
    """
    have_sign = np.array([text.endswith("%") for text in written], bool)
    if have_sign.sum() <= len(written) / 2:
        return parse_numbers(written)
    amounts = parse_numbers(_without_percent(written))
    return np.where(have_sign, amounts, np.nan)


def has_percentages(values: pd.Series) -> bool:
    """Tells whether a column's values have percent signs."""
    if values.dtype.kind in "iufbM":
        return False
    return are_percentages(texts(values).dropna().tolist())


def find_boolean(words: Sequence[str]) -> tuple[str, str] | None:
    """Finds the boolean that a column's texts are.

    Args:
        words: the different texts.

    Returns:
        What stands for no and for yes, as the file writes it. If it writes a word in several ways, such as Yes, YES and
        Y, the word is in small letters. None if the texts are no boolean: both meanings must occur, as F alone may be a
        woman.

    >>> find_boolean(["No", "Yes"]), find_boolean(["Yes", "no", "Y"]), find_boolean(["F"]), find_boolean(["0", "1"])
    (('No', 'Yes'), ('no', 'yes'), None, None)
    """
    written = {_fold_word(word): word for word in words}
    if (
        not written.keys() <= MEANINGS.keys()
        or len({MEANINGS[word] for word in written}) < 2
    ):
        return None
    pairs = [pair for pair in reversed(PAIRS) if {*pair} <= written.keys()]
    if not pairs and not written.keys() & FULL_WORDS:
        return None
    if len(pairs) == 1 and len(words) == 2:
        return written[pairs[0][0]], written[pairs[0][1]]
    full = [pair for pair in pairs if len(pair[0]) > 1]
    return (full or pairs or [("no", "yes")])[0]


def _fold_word(word: str) -> str:
    return unicodedata.normalize("NFKC", word).casefold()


def unify_booleans(words: Sequence[str], pair: Sequence[str] | None) -> list[str]:
    """Writes the words of a boolean in one way.

    Args:
        words: texts of any kind.
        pair: the texts for no and for yes; other texts, or None, change nothing.

    Returns:
        The texts, with those of the pair in place of each word for no or yes.

    >>> unify_booleans(["YES", "n"], ("no", "yes")), unify_booleans(["YES", "n"], ("dead", "alive"))
    (['yes', 'no'], ['YES', 'n'])
    """
    if pair is None or not mean_the_same(pair):
        return list(words)
    meanings = [MEANINGS.get(_fold_word(word)) for word in words]
    return [
        word if meaning is None else pair[int(meaning)]
        for word, meaning in zip(words, meanings)
    ]


def mean_the_same(pair: Sequence[str]) -> bool:
    """Tells whether two categories are words for no and yes, in this order."""
    return (
        len(pair) == 2
        and _fold_word(pair[0]) in FALSE_WORDS
        and _fold_word(pair[1]) in TRUE_WORDS
    )


def number_booleans(written: pd.Series, pair: Sequence[str]) -> pd.Series:
    """Reads a column of booleans, in letters of any case.

    Args:
        written: texts; None where there is none.
        pair: the texts for no and for yes that were agreed on. If they are such words, all such words are known.

    Returns:
        0.0 or 1.0; NaN for each text that is neither, or missing.
    """
    known = {_fold_word(pair[0]): 0.0, _fold_word(pair[1]): 1.0}
    if len(known) < 2:  # two texts that differ in their case only, by a study's wish
        return written.map({pair[0]: 0.0, pair[1]: 1.0}).astype(float)
    if mean_the_same(pair):
        known |= MEANINGS
    return written.map(
        lambda text: known.get(_fold_word(text), np.nan), na_action="ignore"
    ).astype(float)


def simplify_labels(labels: pd.Series) -> pd.Series:
    """Returns labels as numbers if they are booleans or percentages, and else as they are.

    Args:
        labels: numbers or texts, none of them missing. True is 1 and False 0, in letters of any case.
    """
    if labels.dtype.kind in "iufbM":
        return labels
    written = texts(labels)
    different = written.unique().tolist()
    if {text.casefold() for text in different} <= {"false", "true"}:
        return number_booleans(written, ("false", "true")).astype(np.int64)
    if are_percentages(different):
        return written.str.removesuffix("%").astype(np.float64)
    return labels


def number_events(values: pd.Series) -> pd.Series:
    """Reads a column of events.

    Args:
        values: 1 or 0, or words such as yes and no: what most values are.

    Returns:
        1.0 where the event happened, 0.0 where not; NaN for each other value.
    """
    written = texts(values)
    by_word = number_booleans(written, ("no", "yes")).where(~written.isin(["0", "1"]))
    if by_word.notna().mean() > 0.5:
        return by_word
    return written.map({"0": 0.0, "1": 1.0}).astype(float)


def parse_day(text: str) -> float | None:
    """Reads a date.

    Args:
        text: a date as ISO 8601 has it, of the years 1 to 9999, perhaps with a time.

    Returns:
        Days since 1970-01-01 in UTC, or None if the text is no such date.

    >>> parse_day("1970-01-02"), parse_day("2265-03-01"), parse_day("1970-01-01T12:00+06:00"), parse_day("1996-02-30")
    (1.0, 107806.0, 0.25, None)
    """
    found = ISO.fullmatch(text)
    if found is None:
        return None
    year, month, day, short_month, short_day, hour, minute, second, fraction, zone = (
        found.groups()
    )
    try:
        moment = datetime(
            int(year),
            int(month or short_month or 1),
            int(day or short_day or 1),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
        )
        return (
            moment
            - EPOCH
            + timedelta(seconds=float(f"0.{fraction or 0}"))
            - _distance(zone)
        ) / DAY
    except (ValueError, OverflowError):  # there is no such day, or no such hour
        return None


def _distance(zone: str | None) -> timedelta:
    """How far a time is from UTC."""
    if zone is None or zone.upper() in ("Z", "UTC"):
        return timedelta(0)
    digits = zone[1:].replace(":", "").ljust(4, "0")
    distance = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -distance if zone[0] == "-" else distance


def parse_days(written: Sequence[str]) -> np.ndarray:
    """Reads texts that are dates: ``(n,)`` float64 days since 1970, NaN for each text that is no date."""
    known = {text: parse_day(text) for text in set(written)}
    return np.array([known[text] for text in written], np.float64)


def days(values: pd.Series, where: str) -> np.ndarray:
    """Reads a column of dates.

    Args:
        values: dates, or texts that should be dates as ISO 8601 has them.
        where: names file and column in an error.

    Returns:
        ``(n,)`` float64 days since 1970, NaN where there is none.

    Raises:
        DataError: a text is no date.
    """
    if values.dtype.kind == "M":
        return _days_of_dates(values)
    written = texts(values)
    places = np.flatnonzero(written.notna())
    since = np.full(len(written), np.nan)
    since[places] = parse_days(written.iloc[places].tolist())
    wrong = places[np.isnan(since[places])]
    if len(wrong):
        others = written.iloc[wrong]
        reason = f"row {_row(values, wrong[0])} holds {others.iloc[0]!r}, no date; write it like 1996-12-31"
        reason += hint_at_gaps(others.unique())
        raise DataError(f"{where}: {explain_texts(written.iloc[wrong]) or reason}")
    return since


def _days_of_dates(values: pd.Series) -> np.ndarray:
    """Days since 1970 of dates with a type of their own, in UTC."""
    if getattr(values.dt, "tz", None) is not None:
        values = values.dt.tz_convert("UTC").dt.tz_localize(None)
    moments = values.to_numpy("datetime64[us]")
    since = moments.astype(np.int64) / (86_400 * 10**6)
    return np.where(np.isnat(moments), np.nan, since)


def show_far_dates(name: str, since: np.ndarray) -> list[str]:
    """A line on dates that probably mean that there is none, such as 9999-12-31; none if there are none.

    Args:
        name: the column's.
        since: ``(n,)`` days since 1970, NaN where there is none.
    """
    years = since / 365.2425 + 1970
    far = np.flatnonzero((years < 1800) | (years > 2400))
    if not len(far):
        return []
    year = int(years[far[0]])
    advice = "name it in absent if it means that there is no date"
    return [
        f"{name}: {len(far)} of {int((~np.isnan(since)).sum())} dates are far away (year {year}); {advice}"
    ]
