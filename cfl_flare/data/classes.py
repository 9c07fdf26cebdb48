# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Names of classes, and the numbers that stand for them.

A file has labels: words, folders' names, or codes such as 1 and 2. A model has outputs 0, 1, ... A class keeps its
name. So a reader sees which output it is, and sites can compare how they number their classes.

Three rules say which number a class has:

1. Names that were agreed on (``classes`` of a source, or of the columns' file) are numbered in their order.
2. Words are numbered in sorted order, whatever the case of their letters.
3. Whole numbers from 0 are class numbers by themselves. Other numbers are codes, and numbered in sorted order: two
   values are two classes, whatever they are. See `name_codes` and `close_gaps`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.core.settings import Bounds
from cfl_flare.core.text import plain, shown
from cfl_flare.data.hints import list_gap_words
from cfl_flare.data.spelling import SPELLED_ALIKE, find_near, group_alike
from cfl_flare.data.values import find_boolean, unify_booleans

# A label from this number on is no class number, but a code or an identifier.
MOST_CLASSES = 100_000
# The most characters of a name, and the most names, that a source may have and a site may state.
LONGEST_NAME = 100
MOST_NAMES = 1000
# Whole numbers written as 0.0, 1.0, ... are classes if they are at most this many, and numbers to predict otherwise.
MOST_FLOAT_CLASSES = 20
# A message has this many names.
FIRST_NAMES = 8
# Numbers of at most this many different values may be codes of classes.
FEW_CODES = 20


def _are_names(values: Any) -> bool:
    if not isinstance(values, (list, tuple)) or not 0 < len(values) <= MOST_NAMES:
        return False
    names = as_names(values)
    return all(map(is_class_name, names)) and len({*names}) == len(names)


CLASS_NAMES = Bounds(
    f"1 to {MOST_NAMES} different names of 1 to {LONGEST_NAME} printable characters, such as [benign,malignant]",
    _are_names,
)
CLASSES_HELP = "the names of all classes, in the order of their numbers; needed where some site may lack a class"


def is_class_name(name: Any) -> bool:
    """Whether a value may name a class: it is short, in one line, and without spaces at its ends."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        return False
    return name.isprintable() and name == name.strip()


def as_name(value: Any) -> str:
    """A label as the name of its class: numbers without needless decimals, text without spaces at its ends.

    >>> as_name(1.0), as_name(-1), as_name(0.5), as_name(" benign ")
    ('1', '-1', '0.5', 'benign')
    """
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    return unicodedata.normalize("NFC", str(value)).strip()


def as_names(values: Iterable[Any]) -> tuple[str, ...]:
    """Labels as names; see `as_name`."""
    return tuple(as_name(value) for value in values)


def number_of(name: str) -> float | None:
    """The number that a name is, or None if it is a word.

    >>> number_of("-1"), number_of("benign"), number_of("nan")
    (-1.0, None, None)
    """
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", name, re.ASCII):
        return None
    number = float(name)
    if not math.isfinite(number):
        return None
    return number


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names in the order of their classes: numbers by their size, then words by alphabet, whatever their case.

    >>> sort_names(["malignant", "Benign", "10", "2"])
    ('2', '10', 'Benign', 'malignant')
    """

    def place_of(name: str) -> tuple[bool, float, str, str]:
        number = number_of(name)
        if number is None:
            return True, 0.0, name.casefold(), name
        return False, number, "", name

    return tuple(sorted(names, key=place_of))


def list_names(names: Sequence[str]) -> str:
    """Names in one line, for a message: the first ones of many, without control characters."""
    listed = ", ".join(plain(name, LONGEST_NAME) for name in names[:FIRST_NAMES])
    if len(names) > FIRST_NAMES:
        return f"{listed}, ... ({len(names)} in all)"
    return listed


def check_names(names: Sequence[str], where: str) -> None:
    """Checks names of classes.

    Args:
        names: the names.
        where: names the source in the error.

    Raises:
        DataError: there are too many, one is no name for a message, or two are the same.
    """
    if len(names) > MOST_NAMES:
        reason = f"labels have {len(names):,} different names, more than {MOST_NAMES:,}"
        raise DataError(f"{where}: {reason}; name another column or array as the label")
    for name in names:
        if not is_class_name(name):
            wanted = f"1 to {LONGEST_NAME} printable characters"
            raise DataError(
                f"{where}: {shown(name)} is no name for a class: expected {wanted}; rename it"
            )
    if len({*names}) < len(names):
        raise DataError(
            f"{where}: two classes have one name among {list_names(names)}; rename one"
        )


def check_spelling(names: Sequence[str], where: str) -> None:
    """Raises a DataError if two names that a file has differ in their spelling only."""
    for first, second, *_ in group_alike(names):
        both = f"the classes {shown(first)} and {shown(second)} {SPELLED_ALIKE}"
        way_out = "write one class in one way, or list both in classes if they are different classes"
        raise DataError(f"{where}: {both}; {way_out}")


def number_words(
    labels: np.ndarray, classes: Sequence[str], where: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers labels by their names.

    The words of a boolean are two classes, however they are spelled: yes, Yes and Y are one.

    Args:
        labels: ``(n,)`` words or numbers.
        classes: the agreed names in the order of their numbers; none if nothing was agreed on.
        where: names the source in the error.

    Returns:
        ``(n,)`` int64 numbers, and the names in the order of their numbers.

    Raises:
        DataError: a label is none of the agreed names, or a name is not valid.
    """
    values, places = np.unique(labels, return_inverse=True)
    found = as_names(values.tolist())
    found = tuple(unify_booleans(found, classes or find_boolean(found)))
    names = tuple(classes)
    if not names:
        names = sort_names({*found})
        check_names(names, where)
        check_spelling(names, where)
    number_by_name = {name: number for number, name in enumerate(names)}
    for name in found:
        if name not in number_by_name:
            raise DataError(refuse_name(name, names, where))
    numbers = np.array([number_by_name[name] for name in found], np.int64)
    return numbers[places.reshape(-1)], names


def refuse_name(name: str, classes: Sequence[str], where: str) -> str:
    """The message for a label that is none of the classes that were agreed on."""
    reason = f"label {shown(name)} is none of the {len(classes)} classes that were agreed on ({list_names(classes)})"
    near = find_near(name, classes)
    if near is not None:
        return (
            f"{where}: {reason}; did you mean {shown(near)}? Write it in the same way"
        )
    return f"{where}: {reason}; correct it, leave its samples out, or add it to classes at all sites"


def name_codes(values: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]] | None:
    """Tells classes from numbers to predict.

    Args:
        values: ``(n,)`` all labels of a source, training and test: whole numbers or floats.

    Returns:
        None if the labels stay as they are. Else ``(n,)`` int64 class numbers and their names. There are no names if
        the numbers are whole and not below 0, as these name themselves.
    """
    different = np.unique(values)
    if not len(different) or not np.isfinite(different.astype(np.float64)).all():
        return None
    are_whole = bool((different == np.floor(different)).all())
    are_counted = are_whole and bool(different[0] >= 0)
    if values.dtype.kind in "iu" and are_counted and different[-1] < MOST_CLASSES:
        return None
    if are_counted and different[-1] >= MOST_CLASSES:
        return _name_large_codes(values, different)
    are_few = are_counted and different[0] <= 1 and len(different) <= MOST_FLOAT_CLASSES
    has_no_gap = bool(are_few and different[-1] - different[0] + 1 == len(different))
    if len(different) != 2 and not has_no_gap:
        return None
    if are_counted and different[-1] < 2**53:
        return values.astype(np.int64), ()
    places = np.searchsorted(different, values)
    return places.astype(np.int64), as_names(different.tolist())


def _name_large_codes(
    values: np.ndarray, different: np.ndarray
) -> tuple[np.ndarray, tuple[str, ...]] | None:
    """Names codes that are too large to be class numbers; None for identifiers, of which nearly each is another one."""
    are_few = len(different) <= MOST_NAMES and len(different) <= len(values) / 2
    are_codes = len(different) == 2 or (are_few and values.dtype.kind in "iu")
    if not are_codes:
        return None
    return np.searchsorted(different, values).astype(np.int64), as_names(
        different.tolist()
    )


def close_gaps(numbers: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]] | None:
    """Numbers codes anew if they are not 0, 1, 2, ..., so that there is no class without a sample.

    Only the labels of all participants together can be numbered so: a site alone does not know the others' codes.

    Args:
        numbers: ``(n,)`` whole numbers from 0, of all participants, training and test.

    Returns:
        None if there is no gap, or if there are too many codes to be classes. Else the new numbers and the codes as
        names.
    """
    different = np.unique(numbers)
    has_no_gap = (
        len(different) > 0 and different[0] == 0 and different[-1] == len(different) - 1
    )
    if not len(different) or has_no_gap or len(different) > MOST_NAMES:
        return None
    if (
        len(different) == 1 and different[0] <= 1
    ):  # one class of two, of a set in which the other is missing
        return None
    places = np.searchsorted(different, numbers)
    return places.astype(np.int64), as_names(different.tolist())


def order_of(names: Sequence[str], classes: Sequence[str], where: str) -> np.ndarray:
    """The agreed number of each class of a file that names its class numbers.

    Args:
        names: the file's names, in the order of its numbers.
        classes: the agreed names.
        where: names the source in the error.

    Returns:
        ``(len(names),)`` int64.

    Raises:
        DataError: a name is none of those that were agreed on.
    """
    places = {name: number for number, name in enumerate(classes)}
    for name in names:
        if name not in places:
            raise DataError(refuse_name(name, classes, where))
    return np.array([places[name] for name in names], np.int64)


def numbers_of(names: Sequence[str]) -> np.ndarray | None:
    """The numbers that names are, ``(classes,)`` float64; None if one is a word."""
    numbers = [number_of(name) for name in names]
    if any(number is None for number in numbers):
        return None
    return np.array(numbers, np.float64)


def describe_classes(names: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Lines on a source's classes: their numbers, classes without a sample, and codes that may mark missing labels.

    Args:
        names: of the classes in the order of their numbers; none if they are called by their numbers.
        counts: ``(classes,)`` samples of each class.

    Returns:
        The lines; none if classes are plain numbers and each has samples.
    """
    lines = []
    if names:
        listed = ", ".join(
            f"{number}: {plain(name, LONGEST_NAME)}"
            for number, name in enumerate(names[:FIRST_NAMES])
        )
        more = f", ... ({len(names)} in all)" if len(names) > FIRST_NAMES else ""
        lines.append(f"classes by number: {listed}{more}")
    empty = [
        names[c] if names else str(c) for c, count in enumerate(counts) if not count
    ]
    if empty:
        lines.append(f"classes without a sample: {list_names(empty)}")
    if len(names) > MOST_FLOAT_CLASSES and len(names) > sum(counts) / 2:
        lines.append(
            f"{len(names)} classes for {sum(counts)} samples: to predict numbers, set task to 'regression'"
        )
    gaps = list_gap_words(names)
    if gaps:
        lines.append(
            f"class {list_names(gaps)} may mean that there is no label: if so, leave its samples out"
        )
    codes = numbers_of(names)
    if codes is not None and len(codes) > 2:
        steps = np.diff(codes)
        if steps[-1] > 10 * max(1.0, float(steps[:-1].max())):
            lines.append(
                f"class {names[-1]} is far from the others: if it means that there is no label, leave it out"
            )
    return lines


def hint_at_codes(y: np.ndarray) -> str:
    """A hint for numbers ``(n,)`` that may be codes of classes, as they are few and whole; else empty."""
    codes = np.unique(y)
    if len(codes) > FEW_CODES or (codes != np.floor(codes)).any():
        return ""
    names = ",".join(as_names(codes.tolist()))
    return (
        f"if they are classes, set classes=[{names}] of the source; if one means that there is no label, leave its "
        "rows out (of a table: absent=[-1],unlabelled=leave); to predict them as numbers, "
    )
