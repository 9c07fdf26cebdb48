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
VARIANCE = "running_var"
MEAN = "running_mean"

# A model (the main one of an update, or a slot's name), and a part of it.
Kind = tuple[str, str]
# By participant, how many times further than allowed it moved.
Excess = dict[Kind, dict[str, float]]
# By participant and slot: the lowest and the highest difference of arrays that would leave their bounds.
Ranges = Mapping[tuple[str, str], Mapping[str, tuple[np.ndarray, np.ndarray]]]


@cache
def list_layers(layout: Layout) -> dict[str, slice]:
    """The slices of the float vector by layer: a module's parameters lie together, each float buffer is its own.

    An array whose name has no module before it is a layer of its own, and running statistics are, whatever their kind.

    Args:
        layout: the names and shapes of a model's arrays.
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
        """Notes the norms of an update's models: of all parameters, of all float buffers, and of each layer.

        Args:
            update: an update.
        """
        for slot, diff in update.diffs.items():
            vector = diff.vector if self._statistics else _without_statistics(diff)
            end = diff.layout.parameter_size
            halves = [("parameters", slice(0, end)), ("buffers", slice(end, None))]
            for part, place in (*halves, *_list_parts(diff)):
                # No value is so large that its square is not finite.
                norm = float(np.linalg.norm(vector[place]))
                # A site's filter may have removed the layer. Then it has no norm.
                if norm or diff.present is None:
                    norms = self._norms.setdefault(_kind(update, slot, part), {})
                    norms[update.participant] = norm

    def excess(
        self,
        bound: float,
        of_statistics: float,
    ) -> Excess:
        """How many times further than ``bound`` medians some participants moved; others are not in it.

        Of an even number the lower median is taken: among two, the honest one may be the one that moved less.

        Args:
            bound: of parameters, as a multiple of the median.
            of_statistics: of float buffers and running statistics, which differ more between honest participants.
        """
        excess: Excess = {}
        for kind, norms in self._norms.items():
            part = kind[1]
            is_statistic = part == "buffers" or part.endswith((VARIANCE, MEAN))
            limit = of_statistics if is_statistic else bound
            most = limit * sorted(norms.values())[(len(norms) - 1) // 2]
            far = {name: norm / most for name, norm in norms.items() if norm > most > 0}
            if far:
                excess[kind] = far
        return excess


class Statistics:
    """BatchNorm's running statistics, as sent to participants and as their training left them."""

    def __init__(self) -> None:
        self._seen: dict[
            Kind, dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
        ] = {}

    def add(
        self,
        update: Update,
        bank: Mapping[str, Params],
    ) -> None:
        """Notes an update's running statistics; ``bank`` holds the models that it is a difference from.

        Args:
            update: an update.
            bank: the models that were sent, by slot.
        """
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

        Args:
            bound: how many times the median a norm may be.
        """
        ranges: dict[tuple[str, str], dict[str, tuple[np.ndarray, np.ndarray]]] = {}
        excess: Excess = {}
        medians = {}
        for kind, rows in self._seen.items():
            medians[kind] = _lower_median([new for _, new in rows.values()])
        for kind, rows in self._seen.items():
            model, name = kind
            of_variance = (model, name.removesuffix(MEAN) + VARIANCE)
            for key, (sent, new) in rows.items():
                least = np.minimum(sent, medians[kind])
                most = np.maximum(sent, medians[kind])
                if name.endswith(VARIANCE):
                    low, high, times = _of_variance(least, most, new, max(bound, 1.0))
                elif key in self._seen.get(of_variance, {}):
                    sent_variance = self._seen[of_variance][key][0]
                    variance = np.maximum(sent_variance, medians[of_variance])
                    margin = bound * np.sqrt(np.maximum(variance, 0) + EPSILON)
                    low = least - margin
                    high = most + margin
                    times = np.maximum(least - new, new - most) / margin
                else:
                    continue  # without a variance, the mean has no unit
                if ((new < low) | (new > high)).any():
                    ranges.setdefault(key, {})[name] = (low - sent, high - sent)
                    excess.setdefault(kind, {})[key[0]] = max(1.0, float(times.max()))
        return ranges, excess


def _of_variance(
    least: np.ndarray,
    most: np.ndarray,
    new: np.ndarray,
    bound: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lowest and the highest variance, and how many times lower or higher it is."""
    low = np.maximum((np.maximum(least, 0) + EPSILON) / bound - EPSILON, 0)
    high = (np.maximum(most, 0) + EPSILON) * bound - EPSILON
    positive = np.maximum(new, 0) + EPSILON
    lower = (low + EPSILON) / positive
    higher = positive / (high + EPSILON)
    return low, high, np.maximum(lower, higher)


def clip_updates(
    updates: Sequence[Update],
    excess: Excess,
    ranges: Ranges,
) -> Sequence[Update]:
    """The updates, layers that moved too far scaled down to the bound, running statistics set to theirs.

    Args:
        updates: the updates of the round.
        excess: by how many times the bound a part of an update is too long.
        ranges: the range of each running statistic.
    """

    far = {name for name, _ in ranges}
    for names in excess.values():
        far |= names.keys()
    if not far:
        return updates

    def clip_update(update: Update) -> Update:
        if update.participant not in far:
            return update
        diffs = {}
        for slot, diff in update.diffs.items():
            diffs[slot] = _clip_model(update, slot, diff, excess, ranges)
        return replace(update, diffs=diffs)

    return Mapped(updates, clip_update)


def _clip_model(
    update: Update,
    slot: str,
    diff: Params,
    excess: Excess,
    ranges: Ranges,
) -> Params:
    """Scale the layers of a difference that moved too far, and put its running statistics into their ranges."""
    vector = diff.vector.copy()
    for part, place in _list_parts(diff):
        is_parameter = place.start < diff.layout.parameter_size
        half = "parameters" if is_parameter else "buffers"
        times = 1.0
        for kind in (_kind(update, slot, half), _kind(update, slot, part)):
            times = max(times, excess.get(kind, {}).get(update.participant, 1.0))
        vector[place] /= np.float32(times)
    bounds = ranges.get((update.participant, slot), {})
    for entry in diff.layout.entries:
        if entry.name in bounds:
            low, high = bounds[entry.name]
            vector[entry.slice] = np.clip(vector[entry.slice], low, high)
    return replace(diff, vector=vector)


def _list_parts(diff: Params) -> Iterator[tuple[str, slice]]:
    """The layers of a difference, with the names under which their norms are noted."""
    for name, place in list_layers(diff.layout).items():
        yield f"layer {name}", place


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


def _kind(
    update: Update,
    slot: str,
    part: str,
) -> Kind:
    return ("main" if slot == update.main else slot, part)
