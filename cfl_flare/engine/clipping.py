# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How far one participant may move a model in a round: as a whole, in each layer, and in its running statistics.

The measure is the round's median, of everyone whose update has the layer. BatchNorm's running statistics depend on a
participant's data alone: participants with rare data are honest and far from the median. So running statistics are
bounded only where strangers or attackers are expected, see `ServerSettings.clips_statistics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from cfl_flare.core.params import Entry, Layout, Params
from cfl_flare.methods import Update
from cfl_flare.methods.state import Mapped

# What BatchNorm adds to a variance before it takes the root.
EPSILON = 1e-5
VARIANCE, MEAN = "running_var", "running_mean"

# A model (the main one of an update, or a slot's name), and a part of it.
Kind = tuple[str, str]
# By participant, how many times further than allowed it moved.
Excess = dict[Kind, dict[str, float]]
# By participant and slot: the lowest and the highest difference of arrays that would leave their bounds.
Ranges = Mapping[tuple[str, str], Mapping[str, tuple[np.ndarray, np.ndarray]]]


@cache
def layer_slices(layout: Layout) -> dict[str, slice]:
    """The slices of the float vector by layer: a module's parameters lie together, each float buffer is its own.

    An array whose name has no module before it is a layer of its own, and running statistics are, whatever their kind.
    """
    slices: dict[str, slice] = {}
    for entry in (entry for entry in layout.entries if entry.kind != "counter"):
        module = entry.name.rpartition(".")[0]
        before = slices.get(module, slice(entry.offset, entry.offset))
        if (
            entry.kind == "parameter"
            and module
            and not _is_statistic(entry)
            and before.stop == entry.offset
        ):
            slices[module] = slice(before.start, entry.slice.stop)
        else:
            slices[entry.name] = entry.slice
    return slices


class Norms:
    """How far a round's updates moved, and which of them moved too far.

    Args:
        statistics: also measure running statistics.
    """

    def __init__(self, statistics: bool = True) -> None:
        self._statistics = statistics
        self._norms: dict[Kind, dict[str, float]] = {}

    def add(self, update: Update) -> None:
        """Notes the norms of an update's models: of all parameters, of all float buffers, and of each layer."""
        for slot, diff in update.diffs.items():
            vector = diff.vector if self._statistics else _without_statistics(diff)
            end = diff.layout.parameter_size
            for part, place in (
                ("parameters", slice(0, end)),
                ("buffers", slice(end, None)),
                *_layers(diff),
            ):
                norm = float(
                    np.linalg.norm(vector[place])
                )  # no value is so large that its square is not finite
                if (
                    norm or diff.present is None
                ):  # a site's filter may have removed the layer
                    self._norms.setdefault(_kind(update, slot, part), {})[
                        update.participant
                    ] = norm

    def excess(self, bound: float, of_statistics: float) -> Excess:
        """How many times further than ``bound`` medians some participants moved; others are not in it.

        Of an even number the lower median is taken: among two, the honest one may be the one that moved less.

        Args:
            bound: of parameters, as a multiple of the median.
            of_statistics: of float buffers and running statistics, which differ more between honest participants.
        """
        excess: Excess = {}
        for kind, norms in self._norms.items():
            part = kind[1]
            of_part = (
                of_statistics
                if part == "buffers" or part.endswith((VARIANCE, MEAN))
                else bound
            )
            most = of_part * sorted(norms.values())[(len(norms) - 1) // 2]
            far = {name: norm / most for name, norm in norms.items() if norm > most > 0}
            excess |= {kind: far} if far else {}
        return excess


class Statistics:
    """BatchNorm's running statistics, as sent to participants and as their training left them."""

    def __init__(self) -> None:
        self._seen: dict[
            Kind, dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
        ] = {}

    def add(self, update: Update, bank: Mapping[str, Params]) -> None:
        """Notes an update's running statistics; ``bank`` holds the models that it is a difference from."""
        for slot, diff in update.diffs.items():
            for entry in filter(_is_statistic, diff.layout.entries):
                sent = bank[slot].vector[entry.slice]
                rows = self._seen.setdefault(_kind(update, slot, entry.name), {})
                rows[update.participant, slot] = (sent, sent + diff.vector[entry.slice])

    def excess(self, bound: float) -> tuple[Ranges, Excess]:
        """The ranges of what leaves its bounds, and by how many times that does.

        A variance may be ``bound`` times smaller or larger than the model's that was sent, and than the round's median.
        A mean may be ``bound`` standard deviations from both. The farther of the two counts: all participants may move
        far from a new model.
        """
        ranges: dict[tuple[str, str], dict[str, tuple[np.ndarray, np.ndarray]]] = {}
        excess: Excess = {}
        medians = {
            kind: _lower_median([new for _, new in rows.values()])
            for kind, rows in self._seen.items()
        }
        for kind, rows in self._seen.items():
            model, name = kind
            of_variance = (model, name.removesuffix(MEAN) + VARIANCE)
            for key, (sent, new) in rows.items():
                least, most = (
                    np.minimum(sent, medians[kind]),
                    np.maximum(sent, medians[kind]),
                )
                if name.endswith(VARIANCE):
                    low, high, times = _of_variance(least, most, new, max(bound, 1.0))
                elif key in self._seen.get(of_variance, {}):
                    variance = np.maximum(
                        self._seen[of_variance][key][0], medians[of_variance]
                    )
                    margin = bound * np.sqrt(np.maximum(variance, 0) + EPSILON)
                    low, high, times = (
                        least - margin,
                        most + margin,
                        np.maximum(least - new, new - most) / margin,
                    )
                else:
                    continue  # nothing says in what unit
                if ((new < low) | (new > high)).any():
                    ranges.setdefault(key, {})[name] = (low - sent, high - sent)
                    excess.setdefault(kind, {})[key[0]] = max(1.0, float(times.max()))
        return ranges, excess


def _of_variance(
    least: np.ndarray, most: np.ndarray, new: np.ndarray, bound: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lowest and the highest variance, and how many times lower or higher it is."""
    low = np.maximum((np.maximum(least, 0) + EPSILON) / bound - EPSILON, 0)
    high = (np.maximum(most, 0) + EPSILON) * bound - EPSILON
    positive = np.maximum(new, 0) + EPSILON
    return (
        low,
        high,
        np.maximum((low + EPSILON) / positive, positive / (high + EPSILON)),
    )


def clipped(
    updates: Sequence[Update], excess: Excess, ranges: Ranges
) -> Sequence[Update]:
    """The updates, layers that moved too far scaled down to the bound, running statistics set to theirs."""

    def seen(update: Update) -> Update:
        diffs = dict(update.diffs)
        for slot, diff in update.diffs.items():
            vector = diff.vector.copy()
            for part, place in _layers(diff):
                half = (
                    "parameters"
                    if place.start < diff.layout.parameter_size
                    else "buffers"
                )
                kinds = (_kind(update, slot, half), _kind(update, slot, part))
                times = max(
                    excess.get(kind, {}).get(update.participant, 1.0) for kind in kinds
                )
                vector[place] /= np.float32(times)
            for entry in diff.layout.entries:
                if entry.name in (bounds := ranges.get((update.participant, slot), {})):
                    vector[entry.slice] = np.clip(
                        vector[entry.slice], *bounds[entry.name]
                    )
            diffs[slot] = replace(diff, vector=vector)
        return replace(update, diffs=diffs)

    far = {name for names in excess.values() for name in names} | {
        name for name, _ in ranges
    }
    return (
        Mapped(updates, lambda u: seen(u) if u.participant in far else u)
        if far
        else updates
    )


def _layers(diff: Params) -> Iterator[tuple[str, slice]]:
    return (
        (f"layer {name}", place) for name, place in layer_slices(diff.layout).items()
    )


def _is_statistic(entry: Entry) -> bool:
    """By its name: the arrays of a training script do not say which of them are buffers."""
    return entry.kind != "counter" and entry.name.endswith((VARIANCE, MEAN))


def _without_statistics(diff: Params) -> np.ndarray:
    """The vector of a difference, ``(d,)`` float32, with zeros in the place of running statistics."""
    statistics = [entry.slice for entry in diff.layout.entries if _is_statistic(entry)]
    if not statistics:
        return diff.vector
    vector = diff.vector.copy()
    for place in statistics:
        vector[place] = 0
    return vector


def _lower_median(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.sort(rows, axis=0)[(len(rows) - 1) // 2]


def _kind(update: Update, slot: str, part: str) -> Kind:
    return ("main" if slot == update.main else slot, part)
