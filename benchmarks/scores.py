# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a cell's histograms of scores say: how well probabilities are calibrated over all participants' samples."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from cfl_flare.engine.server import Server
from cfl_flare.training.histograms import NARROW, REACH

FILE = "scores.npy"
BINS = 10  # by probability


def save_scores(folder: Path, server: Server) -> None:
    """Writes the sum of the last round's histograms, ``(classes, 2, bins)``."""
    sent = [result.scores for result in server._round.results.values() if result.scores is not None]
    np.save(folder / FILE, np.sum(sent, axis=0)[..., :-1], allow_pickle=False)


def probabilities(bins: int) -> np.ndarray:
    """The probability in the middle of each bin of log-odds."""
    share = (np.arange(bins) + 0.5) / bins
    return 1 / (1 + np.exp(-NARROW * np.sinh((2 * share - 1) * math.asinh(REACH / NARROW))))


def calibration_error(counts: np.ndarray) -> float:
    """Expected calibration error of a binary task's probabilities, in ten bins of equal width.

    >>> counts = np.zeros((1, 2, 10))
    >>> counts[0, :, 5] = 1, 3  # four samples of probability 0.52, three of them positive
    >>> round(calibration_error(counts), 2)
    0.23

    Args:
        counts: ``(1, 2, bins)``: negative and positive samples by log-odds; see
            `cfl_flare.training.histograms.score_shape`.
    """
    chance = probabilities(counts.shape[-1])
    total, positive = counts[0].sum(axis=0), counts[0, 1]
    place = np.minimum((chance * BINS).astype(int), BINS - 1)
    gaps = np.bincount(place, weights=positive - total * chance, minlength=BINS)
    return float(np.abs(gaps).sum() / total.sum())
