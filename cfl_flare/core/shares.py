# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""No single voice decides: weights of which none is more than a share of all."""

from __future__ import annotations

from collections.abc import Mapping


def capped(weights: Mapping[str, float], share: float) -> dict[str, float]:
    """Weights of which none is more than a share of their sum; those above it are lowered, the others stay.

    Of fewer than 1 / share weights, all become the smallest.

    >>> capped({"a": 10.0, "b": 1.0, "c": 1.0, "d": 2.0}, 0.5)
    {'a': 4.0, 'b': 1.0, 'c': 1.0, 'd': 2.0}
    """
    descending = sorted(weights.values(), reverse=True)
    for above in range(len(descending)):
        rest = sum(descending[above:])
        most = share * rest / (1 - above * share) if above * share < 1 else descending[-1]
        if descending[above] <= most:
            return {name: min(weight, most) if above else weight for name, weight in weights.items()}
    return dict.fromkeys(weights, descending[-1])
