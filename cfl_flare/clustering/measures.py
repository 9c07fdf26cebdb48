# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measures of vectors, of predictions and of a clustering; percentile bins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from tempfile import SpooledTemporaryFile

import numpy as np

# Columns of all rows that are in memory at a time.
COLUMNS = 2**14
# Models that are projected at a time.
ROWS = 16
# Rows that take more bytes wait on disk.
IN_MEMORY = 64 * 2**20
# The share of two rows' squared lengths that rounding leaves of the distance between equal rows.
ROUNDING = 1e-12


class Rows:
    """Vectors of one length that arrive one at a time; large ones wait in a temporary file.

    Memory is needed for two of them, and for `IN_MEMORY` bytes.
    """

    def __init__(self, rows: Iterable[np.ndarray]):
        self._file = SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - deleted with these rows
        self.count, self.length, self._dtype = 0, 0, np.dtype(np.float32)
        for row in rows:
            self.count, self.length, self._dtype = self.count + 1, len(row), row.dtype
            self._file.write(np.ascontiguousarray(row).data)

    def columns(self, start: int, stop: int) -> np.ndarray:
        """Some columns ``(n, stop - start)`` of all rows."""
        part, size = (
            np.empty((self.count, stop - start), self._dtype),
            self._dtype.itemsize,
        )
        for i in range(self.count):
            self._file.seek((i * self.length + start) * size)
            part[i] = np.frombuffer(self._file.read((stop - start) * size), self._dtype)
        return part

    def inner_products(self) -> np.ndarray:
        """The inner products of all pairs, ``(n, n)`` float64; one pass over the columns."""
        from threadpoolctl import threadpool_limits

        products, small = (
            np.zeros((self.count, self.count)),
            self._file.tell() <= IN_MEMORY,
        )
        with threadpool_limits(
            1 if small else None
        ):  # in a simulation all sites share the cores
            for start in range(0, self.length, COLUMNS):
                part = self.columns(start, min(start + COLUMNS, self.length)).astype(
                    np.float64
                )
                products += part @ part.T
        return products


def inner_products(rows: Iterable[np.ndarray]) -> np.ndarray:
    """The inner products of all pairs of n rows, ``(n, n)`` float64.

    >>> inner_products(np.array([[1, 2], [3, 4]], np.float32)).tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    """
    return Rows(rows).inner_products()


def points(rows: Iterable[np.ndarray]) -> np.ndarray:
    """Points with the inner products of n rows, so with their lengths, distances and cosines, ``(n, min(n, d))``.

    A row's point is as precise as its length allows, however long another row is. Equal rows have equal points. The
    rows themselves are returned unless they are longer than there are rows.

    >>> at = points(np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0]]))
    >>> (at @ at.T).round(6).tolist()
    [[25.0, 0.0], [0.0, 4.0]]
    """
    waiting = Rows(rows)
    if waiting.length <= waiting.count:
        return waiting.columns(0, waiting.length)
    products = waiting.inner_products()
    squares = np.diag(products)
    scale = np.sqrt(np.where(squares > 0, squares, 1.0))
    values, vectors = np.linalg.eigh(products / scale / scale[:, None])
    at = vectors * np.sqrt(np.maximum(values, 0)) * np.sqrt(squares)[:, None]
    equal = squares[:, None] + squares - 2 * products <= ROUNDING * np.minimum(
        squares[:, None], squares
    )
    return np.asarray(at[equal.argmax(axis=1)])


def leading(products: np.ndarray, count: int) -> np.ndarray:
    """Rows ``(m, count)`` of Q S, with the largest singular values S, by the inner products of columns G = P S Q'.

    >>> abs(leading(np.diag([1.0, 9.0]), 1)).tolist()
    [[0.0], [3.0]]
    """
    values, vectors = np.linalg.eigh(products)
    return np.ascontiguousarray(
        (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1][:, :count]
    )


def before_gap(products: np.ndarray, fewest: int = 3) -> np.ndarray:
    """The `leading` columns up to the largest gap of the singular values, at least so many (Kim et al.'s code).

    >>> before_gap(np.diag([1.0, 1.0, 81.0, 100.0]), 1).shape
    (4, 2)
    """
    columns = leading(products, len(products))
    values = np.linalg.norm(columns, axis=0)
    gaps = -np.diff(values, append=values[-1:])
    return columns[:, : max(fewest, 1 + int(gaps.argmax()))]


def agreement(truth: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """Adjusted Rand index and normalised mutual information of a clustering with the true groups.

    >>> agreement([0, 0, 1, 1], [1, 1, 0, 0])
    {'ari': 1.0, 'nmi': 1.0}
    """
    from sklearn.metrics import adjusted_rand_score as ari
    from sklearn.metrics import normalized_mutual_info_score as nmi

    return {"ari": float(ari(truth, labels)), "nmi": float(nmi(truth, labels))}


def size_entropy(sizes: Sequence[int]) -> float:
    """Entropy of the cluster sizes, divided by its maximum: 1 for equal sizes, 0 where all are in one cluster.

    >>> round(size_entropy([3, 3, 3]), 6), size_entropy([9, 0, 0])
    (1.0, 0.0)
    """
    from scipy.stats import entropy

    if len(sizes) < 2 or not any(sizes):
        return 0.0
    return float(entropy(sizes, base=len(sizes)))


def by_rank(values: Mapping[str, float], k: int) -> dict[str, int]:
    """The bin of each participant: the r-th smallest of m values, r from 0, is in bin floor(r k / m).

    Bin sizes differ by one at most. Equal values are ordered by the participants' names.

    >>> by_rank({"a": 5.0, "b": 1.0, "c": 3.0}, 2)
    {'b': 0, 'c': 0, 'a': 1}
    """
    ranked = sorted(values, key=lambda name: (values[name], name))
    return {name: rank * k // len(ranked) for rank, name in enumerate(ranked)}


def thresholds(
    values: Mapping[str, float], bins: Mapping[str, int], k: int
) -> list[float]:
    """The largest value of each bin but the last, P_{1/k}, ..., P_{(k-1)/k}; an empty bin has the previous bin's.

    A new value is in the first bin whose threshold is not below it, as `bisect.bisect_left` finds it.

    >>> thresholds({"a": 5.0, "b": 1.0, "c": 3.0}, {"b": 0, "c": 0, "a": 1}, 2)
    [3.0]
    """
    return [
        max((values[name] for name, bin_ in bins.items() if bin_ <= i), default=0.0)
        for i in range(k - 1)
    ]


def divergences(models: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Kullback-Leibler divergence from each centre's predictions to each model's, summed over samples (FedDSMIC Eq. 6).

    It is ``sum_samples sum_classes p_model log(p_model / p_centre)``, in log space, ``(m, K)`` float64, of logits
    ``(m, samples, classes)`` and ``(K, samples, classes)``; not symmetric. A model that predicts infinity or NaN is
    infinitely far from every centre.

    >>> import numpy as np
    >>> models, centres = np.log([[[0.5, 0.5]]]), np.log([[[0.5, 0.5]], [[0.25, 0.75]]])
    >>> divergences(models, centres).round(4)  # 0.5 log(0.5/0.25) + 0.5 log(0.5/0.75)
    array([[0.    , 0.1438]])
    """
    from scipy.special import log_softmax

    with np.errstate(invalid="ignore", over="ignore"):
        log_models, log_centres = (
            log_softmax(logits.astype(np.float64), axis=-1)
            for logits in (models, centres)
        )
        probabilities = np.exp(log_models)
        distances = np.stack(
            [
                (probabilities * (log_models - log_centre)).sum(axis=(1, 2))
                for log_centre in log_centres
            ],
            axis=1,
        )
        return np.nan_to_num(distances, nan=np.inf, posinf=np.inf)


def directions(models: Sequence[np.ndarray], dimensions: int) -> np.ndarray:
    """The map M: the leading principal directions of some models.

    The models are s vectors ``(d,)``, perhaps memory-mapped: a few columns of all of them are read at a time.

    Returns:
        ``(min(D, s - 1, d), d)`` float32, at least one row, orthonormal; zero where the models do not differ.

    >>> np.abs(directions([np.array([0.0, 5.0]), np.array([2.0, 5.0])], 3)).tolist()
    [[1.0, 0.0]]
    """
    products = sum(part @ part.T for _, part in _centred(models))
    values, vectors = np.linalg.eigh(products)
    count = max(1, min(dimensions, len(models) - 1, len(models[0])))
    values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count]
    there = values > 1e-12 * max(values[0], 1e-300)
    scaled = (
        vectors.T * np.where(there, 1 / np.sqrt(np.where(there, values, 1)), 0)[:, None]
    )
    map_ = np.empty((count, len(models[0])), np.float32)
    for columns, part in _centred(models):
        map_[:, columns] = scaled @ part
    return map_


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
    return np.concatenate(
        [np.stack(models[i : i + ROWS]) @ along.T for i in starts]
    ).astype(np.float64)
