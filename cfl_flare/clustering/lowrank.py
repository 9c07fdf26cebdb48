# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Low-rank cosine similarity of models (FedAC Alg. 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cfl_flare.clustering.measures import COLUMNS

# Models projected at a time.
ROWS = 16


def directions(models: Sequence[np.ndarray], dimensions: int) -> np.ndarray:
    """The map M: the leading principal directions of some models.

    Args:
        models: s vectors ``(d,)``, perhaps memory-mapped: a few columns of all of them are read at a time.
        dimensions: D; at most ``s - 1`` exist.

    Returns:
        ``(min(D, s - 1, d), d)`` float32, at least one row. The rows are orthonormal; those along which the models do
        not differ are zero.

    >>> np.abs(directions([np.array([0.0, 5.0]), np.array([2.0, 5.0])], 3)).tolist()
    [[1.0, 0.0]]
    """
    products = sum(part @ part.T for _, part in _centred(models))
    values, vectors = np.linalg.eigh(products)
    kept = max(1, min(dimensions, len(models) - 1, len(models[0])))
    values, vectors = values[::-1][:kept], vectors[:, ::-1][:, :kept]
    there = values > 1e-12 * max(values[0], 1e-300)
    scaled = vectors.T * np.where(there, 1 / np.sqrt(np.where(there, values, 1)), 0)[:, None]
    found = np.empty((kept, len(models[0])), np.float32)
    for columns, part in _centred(models):
        found[:, columns] = scaled @ part
    return found


def _centred(models: Sequence[np.ndarray]) -> Iterator[tuple[slice, np.ndarray]]:
    """The models minus their mean, some columns at a time, float64."""
    for start in range(0, len(models[0]), COLUMNS):
        columns = slice(start, start + COLUMNS)
        part = np.stack([model[columns] for model in models]).astype(np.float64)
        yield columns, part - part.mean(axis=0)


def mapped(models: Sequence[np.ndarray], along: np.ndarray) -> np.ndarray:
    """Models projected on those directions, ``(m, D)`` float64; not centred, so the map is linear.

    >>> mapped([np.array([1.0, 2.0, 3.0])], np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])).tolist()
    [[1.0, 3.0]]
    """
    starts = range(0, len(models), ROWS)
    return np.concatenate([np.stack(models[i : i + ROWS]) @ along.T for i in starts]).astype(np.float64)


def similarity(models: np.ndarray, centres: np.ndarray, kind: str = "lrcos") -> np.ndarray:
    """Similarity of projected models ``(m, D)`` and centres ``(K, D)``, ``(m, K)``; the largest is the nearest.

    It is ``"lrcos"``, the cosine (FedAC Eq. 4), or ``"l2"``, minus the Euclidean distance (its ablation).

    >>> similarity(np.array([[2.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [[1.0, 0.0]]
    """
    from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances

    return np.asarray(cosine_similarity(models, centres) if kind == "lrcos" else -euclidean_distances(models, centres))
