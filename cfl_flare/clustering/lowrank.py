# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Low-rank cosine similarity of models (FedAC Alg. 2)."""

from __future__ import annotations

import numpy as np
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances


def directions(models: np.ndarray, dimensions: int) -> np.ndarray:
    """The map M: the leading principal directions of some models.

    Args:
        models: ``(s, d)``, one row a model.
        dimensions: D; at most ``s - 1`` are there.

    Returns:
        ``(min(D, s - 1, d), d)`` float32, orthonormal rows.
    """
    kept = min(dimensions, len(models) - 1, models.shape[1])
    pca = PCA(kept, svd_solver="full").fit(models.astype(np.float64))
    return pca.components_.astype(np.float32)


def mapped(models: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Models in those directions, ``(m, D)`` float64, without centring: a mean of models maps to the mean of their maps.

    >>> mapped(np.array([[1.0, 2.0, 3.0]]), np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    array([[1., 3.]])
    """
    return np.asarray(models.astype(np.float64) @ along.T.astype(np.float64))


def similarity(models: np.ndarray, centres: np.ndarray, kind: str = "lrcos") -> np.ndarray:
    """How alike mapped models and mapped centres are, ``(m, K)``; the largest is the nearest.

    Args:
        models: ``(m, D)``.
        centres: ``(K, D)``.
        kind: ``"lrcos"``, the cosine (FedAC Eq. 4), or ``"l2"``, minus the Euclidean distance (its ablation).

    >>> similarity(np.array([[2.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [[1.0, 0.0]]
    """
    return np.asarray(cosine_similarity(models, centres) if kind == "lrcos" else -euclidean_distances(models, centres))
