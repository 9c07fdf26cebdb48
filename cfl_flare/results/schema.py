# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the files of a run must hold before anything else reads them: they may be another program's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cfl_flare.clustering.gap import NUMBER
from cfl_flare.core.errors import FileError
from cfl_flare.core.text import plain, shown
from cfl_flare.results.convergence import IMPROVING
from cfl_flare.results.floor import HELD, MOVED, POSSIBLE, SMALL

Fits = Callable[[Any], bool]

LARGEST = 2**53
LONGEST = 1000


def whole(value: Any) -> bool:
    """A whole number from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def number(value: Any) -> bool:
    """A number."""
    return isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
    )


def flag(value: Any) -> bool:
    """True or false."""
    return isinstance(value, bool)


def text(value: Any) -> bool:
    """Text of a name's length."""
    return isinstance(value, str) and len(value) <= LONGEST


def settings(value: Any) -> bool:
    """A JSON object."""
    return isinstance(value, dict)


def maybe(fits: Fits) -> Fits:
    """That, or null."""
    return lambda value: value is None or fits(value)


def each(fits: Fits) -> Fits:
    """A list of such values."""
    return lambda value: isinstance(value, list) and all(map(fits, value))


def named(fits: Fits) -> Fits:
    """An object with such values."""
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def metric(value: Any) -> bool:
    """A metric's name, with its mode, min or max."""
    fields = isinstance(value, dict) and value.keys() == {"name", "mode"}
    return fields and text(value["name"]) and value["mode"] in ("min", "max")


def ends(value: Any) -> bool:
    """Two numbers, the ends of an interval."""
    return isinstance(value, list) and len(value) == 2 and all(map(number, value))


def participant(value: Any) -> bool:
    """A participant: its name, its group, and the intervals of its measures, if there are some."""
    own = record(name=text, group=maybe(whole))
    return own(value) and named(ends)(value.get("intervals", {}))


def record(**fields: Fits) -> Fits:
    """An object that has these fields, perhaps among others."""
    return lambda value: isinstance(value, dict) and all(k in value and fits(value[k]) for k, fits in fields.items())


def clusters_found(value: Any) -> bool:
    """A number of clusters, with what it was chosen by."""
    of_k = record(gap=number, deviations=number)
    if not record(k=whole, by_k=named(of_k))(value) or str(value["k"]) not in value["by_k"]:
        return False
    draws, stability = value.get("draws", {}), [of.get("stability", 0.0) for of in value["by_k"].values()]
    return each(number)(stability) and named(whole)(draws) and all(len(k) < 10 and k.isdecimal() for k in draws)


SUMMARY: dict[str, Fits] = {
    "method": settings,
    "label": text,
    "clusters": whole,
    "rounds": whole,
    "final": named(number),
    "bytes_down": number,
    "bytes_up": number,
    "seconds": number,
    "participants": each(participant),
}
STARTED: dict[str, Fits] = {"label": text, "rounds": whole, "metrics": each(metric)}
# What only a run through FLARE has.
THROUGH_FLARE: dict[str, Fits] = {"sites_left_out": named(text)}
ROUND: dict[str, Fits] = {"round": whole, "cluster_sizes": each(whole)}
# What a summary need not have.
ADDED: dict[str, Fits] = {
    **{"metric": metric, "intervals": named(ends), "majority": number, "positive": text},
    **{POSSIBLE: whole, SMALL: each(whole), NUMBER: clusters_found, IMPROVING: text},
}
# What a round's record need not have.
MEASURED: dict[str, Fits] = {
    **dict.fromkeys(("served_", "clusters_in_use"), number),
    **dict.fromkeys(("objective", "intra_cosine", "inter_cosine", "size_entropy"), maybe(number)),
    **dict.fromkeys(("largest_share", "moved_share", "ari"), maybe(number)),
    "defined": named(whole),
    "pooled_": number,
    "worst_participants": named(named(number)),
    "trained": each(text),
    "failed": named(text),
    MOVED: named(whole),
    HELD: each(text),
    SMALL: each(whole),
    "clusterability": each(maybe(number)),
    "dispersion": maybe(named(maybe(number))),
    NUMBER: clusters_found,
}
ASSIGNMENT: dict[str, Fits] = {"round": whole, "participant": text, "cluster": maybe(whole)}
NEWCOMERS: dict[str, Fits] = {"served_": maybe(number)}


def checked(
    content: Any, where: str, needed: Mapping[str, Fits], others: Mapping[str, Fits] | None = None
) -> dict[str, Any]:
    """The content.

    Args:
        content: what a file holds.
        where: the file, for the error.
        needed: what it must have.
        others: what it may have; a name that ends in ``_`` is how several begin.

    Raises:
        FileError: it is not an object, lacks something, or has a value of another type; it is named.
    """
    way_out = "it is damaged or another program's"
    if not isinstance(content, dict):
        raise FileError(f"{where}: is a {type(content).__name__}, not an object; {way_out}")
    known = {**needed, **(others or {})}
    for key in needed:
        if key not in content:
            raise FileError(f"{where}: has no {key!r}; {way_out}")
    for key, value in content.items():
        fits = known.get(key) or known.get(key.partition("_")[0] + "_")
        if fits is not None and not fits(value):
            what = (fits.__doc__ or "such a value").rstrip(".")
            raise FileError(f"{where}: {plain(key, 100)} = {shown(value)} is not {what.lower()}; {way_out}")
    return content
