# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Divergence of the predictions of different models on the same samples."""

from __future__ import annotations

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the predicted probabilities over the last axis, float64; finite for all finite logits."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def divergences(models: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Kullback-Leibler divergence from each centre's predictions to each model's, summed over samples (FedDSMIC Eq. 6).

    ``sum_samples sum_classes p_model log(p_model / p_centre)``, in log space; not symmetric. A model that predicts
    infinity or NaN is infinitely far from every centre.

    Args:
        models: logits ``(m, samples, classes)``.
        centres: logits ``(K, samples, classes)``.

    Returns:
        ``(m, K)`` float64.

    >>> import numpy as np
    >>> models, centres = np.log([[[0.5, 0.5]]]), np.log([[[0.5, 0.5]], [[0.25, 0.75]]])
    >>> divergences(models, centres).round(4)  # 0.5 log(0.5/0.25) + 0.5 log(0.5/0.75)
    array([[0.    , 0.1438]])
    """
    with np.errstate(invalid="ignore", over="ignore"):
        own, others = log_softmax(models), log_softmax(centres)
        probabilities = np.exp(own)
        found = np.stack([(probabilities * (own - other)).sum(axis=(1, 2)) for other in others], axis=1)
        return np.nan_to_num(found, nan=np.inf, posinf=np.inf)
