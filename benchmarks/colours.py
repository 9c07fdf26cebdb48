# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The colours of the benchmarks' figures."""

from __future__ import annotations

from matplotlib import colormaps
from matplotlib.colors import to_hex

# Okabe and Ito's colours, distinguishable by colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


def palette(count: int) -> list[str]:
    """A number of colours; after twenty they repeat.

    >>> palette(2), len(palette(30)), len(set(palette(20)))
    (['#0072B2', '#E69F00'], 30, 20)
    """
    colours = list(COLOURS)
    if count > len(colours):
        twenty = [to_hex(c) for c in colormaps["tab20"](range(20))]
        colours = twenty[::2] + twenty[1::2]  # tab20 alternates strong and pale colours: the strong ones first
    return [colours[i % len(colours)] for i in range(count)]
