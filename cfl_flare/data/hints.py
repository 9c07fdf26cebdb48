# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What texts look like that are no numbers and no dates, with the setting that reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from cfl_flare.core.config import parse_spec
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.text import plain, shown

if TYPE_CHECKING:
    import pandas as pd

PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
WITH_POINT = r"[+-]?\d*\.\d+"
SPACES = " '\u00a0\u2009\u2019\u202f"
GROUPED = rf"[+-]?\d{{1,3}}([{SPACES}]\d{{3}})+(\.\d+)?"
DECIMAL_COMMA = rf"[+-]?(\d*|\d{{1,3}}([{SPACES}]\d{{3}})+),\d+"
COMMA_THOUSANDS = (
    r"[+-]?(0|[1-9]\d{0,2})(,\d{2,3})*,\d{3}(\.\d+)?"  # also 1,23,456 as in India
)
# Commas that are between thousands beyond doubt.
SURE_THOUSANDS = (
    r"[+-]?[1-9]\d{0,2}(,\d{2,3})+,\d{3}(\.\d+)?|[+-]?[1-9]\d{0,2}(,\d{3})+\.\d+"
)
# Points that are between thousands beyond doubt.
POINT_THOUSANDS = r"[+-]?[1-9]\d{0,2}((\.\d{3}){2,}(,\d+)?|(\.\d{3})+,\d+)"
DAY_OR_MONTH_FIRST = r"(\d{1,2})[./-](\d{1,2})[./-](\d{4})(?=$|\D)"
SHORT_YEAR = r"\d{1,2}[./-]\d{1,2}[./-]\d{2}(\D.*)?"
YEAR_FIRST = r"\d{4}[./]\d{1,2}[./]\d{1,2}(\D.*)?|\d{4}-\d{1,2}-\d{1,2}(\D.*)?"
MONTH_NAME = r"(\d{1,2}[-/. ]*)?[A-Za-zÀ-ž]{3,10}[-/., ]+(\d{1,2}(st|nd|rd|th)?[-/., ]+)?\d{2,4}(\D.*)?"
A_MONTH = r"(?i).*(jan|feb|mar|mär|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz]).*"
# A number of which only a bound is known.
BOUND = r"([<>≤≥=~]{1,2}|&[lg]t;)\s*([+-]?\d+\.?\d*|\.\d+|\d*,\d{1,2})|([+-]?\d+\.?\d*)\s*\+"
PERCENT = r"[+-]?\d+([.,]\d+)?\s*%"
# Whole numbers of up to three digits, and numbers of three digits behind a point: 950 beside 8.170.
SHORT_WHOLE = re.compile(r"[+-]?\d{1,3}")
THREE_DECIMALS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
WITH_UNIT = r"[$€£¥]?\s*[+-]?\d+([.,]\d+)*\s*[^\d\s]{1,20}|[$€£¥]\s*[+-]?\d+([.,]\d+)*"
TWO_NUMBERS = r"\d+([.,]\d+)?\s*[/x×-]\s*\d+([.,]\d+)?"
# Texts that most often mean that a value is missing, in small letters.
GAP_WORDS = {
    "na",
    "n/a",
    "#n/a",
    "n.a.",
    "nan",
    "null",
    "missing",
    "not available",
    "?",
    ".",
    "--",
    "'--",
}
# A hint names this many texts.
FIRST_TEXTS = 8


def name_setting(name: str, value: str) -> str:
    """How a user sets something that says how a file is written, for a message."""
    written = value.lower() if value in ("True", "False") else f'"{value}"'
    return f'set {name}={value}, or "{name}": {written} in the columns\' file'


def name_list(name: str, texts: Iterable[str]) -> str:
    """How a user sets a list of texts, for a message: quoted where the command line would read something else.

    >>> name_list("absent", ["NA", "?"]), name_list("leave", ["note, free"]), name_list("absent", ["(5)"])
    ('absent=[NA,?]', 'leave=["note, free"]', 'absent=["(5)"]')
    """
    first = [plain(text) for text in islice(texts, FIRST_TEXTS)]
    bare = f"{name}=[{','.join(first)}]"
    try:
        is_read_back = parse_spec(f"table:{bare}")[1] == {name: first}
    except ConfigError:
        is_read_back = False
    return bare if is_read_back else f"{name}={json.dumps(first, ensure_ascii=False)}"


def list_gap_words(texts: Iterable[str]) -> list[str]:
    """The texts that most often mean that a value is missing."""
    return [text for text in texts if text.casefold() in GAP_WORDS]


def are_gap_words(values: pd.Series) -> pd.Series:
    """For each text, whether it most often means that a value is missing."""
    return values.isin(list_gap_words(values.unique()))


def explain_points(numbers: Sequence[str]) -> str:
    """Says that the points of numbers may stand between thousands, as in 8.170 beside 950; else empty.

    Numbers with three digits behind the point are no sign of it. Programs that write three digits always write them
    behind whole numbers as well, and others leave out a 0 at the end.

    Args:
        numbers: texts that are numbers.
    """
    example = ""
    have_whole = False
    for number in numbers:
        if "." not in number:
            if not SHORT_WHOLE.fullmatch(number):
                return ""
            have_whole = True
        elif not THREE_DECIMALS.fullmatch(number):
            return ""
        elif number.endswith("0"):
            example = number
    if not example or not have_whole:
        return ""
    both = f"{example.replace('.', '')} or {float(example):g}"
    first = f"{name_setting('thousands', 'point')}, and {name_setting('decimal', 'comma')} for the first"
    return f"holds {shown(example)}, which is ambiguous: it may be {both}; {first}, decimal=point for the second"


def explain_units(values: pd.Series) -> str:
    """Says what to do if most of many texts are numbers with something else; else empty."""
    alike = _most(values, TWO_NUMBERS)
    if alike is not None:
        return f"if {shown(alike.iloc[0])} stands for two numbers, write them in two columns"
    alike = _most(values, WITH_UNIT)
    if alike is not None:
        return f"if {shown(alike.iloc[0])} stands for a number, write it without the other characters"
    return ""


def explain_texts(values: pd.Series) -> str:
    """Says what most texts of a column look like that are no numbers and no ISO dates.

    Args:
        values: all values of the column.

    Returns:
        What they are, with an example and the setting that reads them; empty if nothing is known of them.
    """
    sample = values.dropna().astype(str)
    odd = sample[~sample.str.fullmatch(f"{PLAIN}|{GROUPED}") & ~are_gap_words(sample)]
    if not len(odd):
        return ""
    for explain in (
        _explain_commas,
        _explain_dates,
        _explain_bounds,
        _explain_percentages,
    ):
        reason = explain(sample, odd)
        if reason:
            return reason
    return ""


def explain_codes(written: pd.Series) -> str:
    """Says that a column of numbers holds codes with leading zeros, and what to do."""
    codes = written[written.str.fullmatch(r"[+-]?0[\deE].*", na=False)]
    where = f"row {int(codes.index[0]) + 1} holds {shown(codes.iloc[0])}, a code that would lose its leading zeros as a"
    way_out = "name the column in categories, let its kind be category in the columns' file, leave it out, or write"
    return f"{where} number; {way_out} numbers without leading zeros"


def _most(odd: pd.Series, pattern: str) -> pd.Series | None:
    """The texts of a pattern if they are more than half; else None."""
    alike = odd[odd.str.fullmatch(pattern)]
    return alike if len(alike) > len(odd) / 2 else None


def _explain_commas(sample: pd.Series, odd: pd.Series) -> str:
    points = odd[odd.str.fullmatch(POINT_THOUSANDS)]
    if len(points) and _most(odd, f"{DECIMAL_COMMA}|{POINT_THOUSANDS}") is not None:
        settings = f"{name_setting('thousands', 'point')}, and {name_setting('decimal', 'comma')}"
        return f"holds numbers with points between thousands, such as {shown(points.iloc[0])}; {settings}"
    alike = _most(odd, f"{DECIMAL_COMMA}|{COMMA_THOUSANDS}")
    if alike is None:
        return ""
    grouped = alike.str.fullmatch(COMMA_THOUSANDS)
    decimal = name_setting("decimal", "comma")
    thousands = name_setting("thousands", "comma")
    are_sure = (
        alike.str.fullmatch(SURE_THOUSANDS).any()
        or sample.str.fullmatch(WITH_POINT).any()
    )
    if not grouped.any() or not (grouped.all() or are_sure):
        example = shown(alike[~grouped].iloc[0])
        read = (
            f", which reads {shown(alike[grouped].iloc[0])} as a decimal number"
            if grouped.any()
            else ""
        )
        return f"holds numbers with a decimal comma, such as {example}; {decimal}{read}"
    example = alike[grouped].iloc[0]
    if not grouped.all():
        other = shown(alike[~grouped].iloc[0])
        return f"holds commas of two kinds, such as {shown(example)} and {other}; write the numbers without commas"
    if are_sure:
        sure = alike[alike.str.fullmatch(SURE_THOUSANDS)]
        example = sure.iloc[0] if len(sure) else example
        return f"holds numbers with commas between thousands, such as {shown(example)}; {thousands}"
    both = f"{float(example.replace(',', '')):.15g} or {float(example.replace(',', '.', 1)):.15g}"
    reason = f"holds {shown(example)}, which is ambiguous: it may be {both}"
    return f"{reason}; {thousands} for the first, {decimal} for the second"


def _explain_dates(sample: pd.Series, odd: pd.Series) -> str:
    alike = _most(odd, f"{DAY_OR_MONTH_FIRST}.*")
    if alike is not None:
        first = f"holds dates, such as {shown(alike.iloc[0])}; {name_setting('dayfirst', 'True')}"
        return f"{first}; False where the month is first"
    alike = _most(odd, SHORT_YEAR)
    if alike is not None:
        return f"holds dates of a year with two digits, such as {shown(alike.iloc[0])}; write them like 1996-12-31"
    alike = _most(odd, f"{MONTH_NAME}|{YEAR_FIRST}")
    is_date = (
        alike is not None
        and (alike.str.fullmatch(A_MONTH) | alike.str.fullmatch(YEAR_FIRST)).all()
    )
    is_iso = alike is not None and alike.str.fullmatch(r"\d{4}-\d\d-\d\d(\D.*)?").any()
    if alike is not None and is_date and not is_iso:
        return (
            f"holds dates, such as {shown(alike.iloc[0])}; write them like 1996-12-31"
        )
    return ""


def _explain_bounds(sample: pd.Series, odd: pd.Series) -> str:
    alike = _most(odd, BOUND)
    if alike is None:
        return ""
    others = sample.drop(alike.index)
    are_numbers = len(others) > 0 and others.str.fullmatch(PLAIN).all()
    if len(alike) > len(sample) / 2 and not are_numbers:
        return ""
    example = str(alike.iloc[0])
    row = int(alike.index[0]) + 1
    reason = f"row {row} holds {example!r}, a bound and no number, as {len(alike)} of {len(sample)} values are"
    replaced = ", ".join(
        f'"{text}": {suggest_number(text)}'
        for text in islice(alike.unique(), FIRST_TEXTS)
    )
    way_out = f"set replace={{{replaced}}} to read it as a number, or {name_list('absent', alike.unique())} to"
    return (
        f"{reason}; {way_out} take it for missing; both may stand in the columns' file"
    )


def suggest_number(bound: str) -> str:
    """A number in the place of a bound: next to it where it is whole and not meant itself.

    >>> suggest_number("> 89"), suggest_number("<0,5"), suggest_number("90+")
    ('90', '0.5', '90')
    """
    number = re.sub(r"[^\d.+-]|(?<=\d)\+", "", bound.replace(",", "."))
    if not re.fullmatch(r"[+-]?\d+", number):
        return number
    if bound.startswith(">") and not bound.startswith(">="):
        return str(int(number) + 1)
    if bound.startswith("<") and not bound.startswith("<="):
        return str(int(number) - 1)
    return number


def _explain_percentages(sample: pd.Series, odd: pd.Series) -> str:
    alike = _most(odd, PERCENT)
    if alike is None:
        return ""
    commas = alike[alike.str.contains(",")]
    if len(commas):
        example = shown(commas.iloc[0])
        return f"holds numbers with a decimal comma, such as {example}; {name_setting('decimal', 'comma')}"
    plain = sample[sample.str.fullmatch(PLAIN)]
    if not len(plain):
        return ""
    both = f"{shown(alike.iloc[0])} and {shown(plain.iloc[0])}"
    return f"holds numbers with and without a percent sign, such as {both}; write all in one way"
