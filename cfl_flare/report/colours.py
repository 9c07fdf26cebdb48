# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Colours that all figures share."""

from __future__ import annotations

from matplotlib import colormaps
from matplotlib.colors import to_hex

# Okabe and Ito's colours, distinguishable by colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


def palette(count: int) -> list[str]:
    """So many colours; beyond twenty they come again.

    >>> palette(2), len(palette(30)), len(set(palette(20)))
    (['#0072B2', '#E69F00'], 30, 20)
    """
    colours = list(COLOURS)
    if count > len(colours):
        twenty = [to_hex(c) for c in colormaps["tab20"](range(20))]
        colours = twenty[::2] + twenty[1::2]  # it pairs a strong colour with a pale one: those that stand out first
    return [colours[i % len(colours)] for i in range(count)]
