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
        self.count = 0
        self.length = 0
        self._dtype = np.dtype(np.float32)
        for row in rows:
            self.count += 1
            self.length = len(row)
            self._dtype = row.dtype
            self._file.write(np.ascontiguousarray(row).data)

    def read_columns(
        self,
        start: int,
        stop: int,
    ) -> np.ndarray:
        """Read some columns of all rows.

        Args:
            start: the first column.
            stop: the column after the last one.

        Returns:
            ``(n, stop - start)``, in the dtype of the rows.
        """
        size = self._dtype.itemsize
        part = np.empty((self.count, stop - start), self._dtype)
        for row in range(self.count):
            self._file.seek((row * self.length + start) * size)
            data = self._file.read((stop - start) * size)
            part[row] = np.frombuffer(data, self._dtype)
        return part

    def compute_inner_products(self) -> np.ndarray:
        """Compute the inner products of all pairs, ``(n, n)`` float64, in one pass over the columns."""
        from threadpoolctl import threadpool_limits

        products = np.zeros((self.count, self.count))
        # Small products are computed in one thread, because in a simulation all sites
        # share the cores.
        threads = 1 if self._file.tell() <= IN_MEMORY else None
        with threadpool_limits(threads):
            for start in range(0, self.length, COLUMNS):
                stop = min(start + COLUMNS, self.length)
                part = self.read_columns(start, stop).astype(np.float64)
                products += part @ part.T
        return products


def compute_inner_products(rows: Iterable[np.ndarray]) -> np.ndarray:
    """Compute the inner products of all pairs of rows.

    Args:
        rows: n vectors of one length.

    Returns:
        ``(n, n)`` float64.

    >>> compute_inner_products(np.array([[1, 2], [3, 4]], np.float32)).tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    """
    return Rows(rows).compute_inner_products()


def compute_points(rows: Iterable[np.ndarray]) -> np.ndarray:
    """Compute points that have the inner products of rows, so their lengths, distances and cosines.

    A point is as precise as its row's length allows, however long another row is. Equal
    rows have equal points.

    Args:
        rows: n vectors ``(d,)``.

    Returns:
        ``(n, min(n, d))``. Rows that are not longer than there are rows are returned
        as they are.

    >>> points = compute_points(np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0]]))
    >>> (points @ points.T).round(6).tolist()
    [[25.0, 0.0], [0.0, 4.0]]
    """
    waiting = Rows(rows)
    if waiting.length <= waiting.count:
        return waiting.read_columns(0, waiting.length)

    # The rows are scaled to length 1 first, so that a long row costs a short one no digits.
    products = waiting.compute_inner_products()
    squares = np.diag(products)
    scale = np.sqrt(np.where(squares > 0, squares, 1.0))
    cosines = products / scale / scale[:, None]
    values, vectors = np.linalg.eigh(cosines)
    directions = vectors * np.sqrt(np.maximum(values, 0))
    lengths = np.sqrt(squares)
    points = directions * lengths[:, None]

    # Each row takes the point of the first row that equals it.
    distances = squares[:, None] + squares - 2 * products
    shorter = np.minimum(squares[:, None], squares)
    equal = distances <= ROUNDING * shorter
    return np.asarray(points[equal.argmax(axis=1)])


def compute_leading(
    products: np.ndarray,
    count: int,
) -> np.ndarray:
    """Compute the leading columns of Q S, by the inner products of the columns of G = P S Q'.

    Args:
        products: ``(m, m)``, G'G.
        count: how many columns; they have the largest singular values S.

    Returns:
        ``(m, count)``.

    >>> abs(compute_leading(np.diag([1.0, 9.0]), 1)).tolist()
    [[0.0], [3.0]]
    """
    values, vectors = np.linalg.eigh(products)
    columns = vectors * np.sqrt(np.maximum(values, 0))
    largest_first = columns[:, ::-1]
    return np.ascontiguousarray(largest_first[:, :count])


def compute_before_gap(
    products: np.ndarray,
    fewest: int = 3,
) -> np.ndarray:
    """Compute the `compute_leading` columns up to the largest gap of the singular values (Kim et al.'s code).

    Args:
        products: ``(m, m)``, G'G.
        fewest: the columns that are kept at least.

    Returns:
        ``(m, count)``.

    >>> compute_before_gap(np.diag([1.0, 1.0, 81.0, 100.0]), 1).shape
    (4, 2)
    """
    columns = compute_leading(products, len(products))
    values = np.linalg.norm(columns, axis=0)
    gaps = -np.diff(values, append=values[-1:])
    count = max(fewest, 1 + int(gaps.argmax()))
    return columns[:, :count]


def measure_agreement(
    truth: Sequence[int],
    labels: Sequence[int],
) -> dict[str, float]:
    """Adjusted Rand index and normalised mutual information of a clustering with the true groups.

    Args:
        truth: the true group of each participant.
        labels: the cluster of each participant.

    >>> measure_agreement([0, 0, 1, 1], [1, 1, 0, 0])
    {'ari': 1.0, 'nmi': 1.0}
    """
    from sklearn.metrics import adjusted_rand_score as ari
    from sklearn.metrics import normalized_mutual_info_score as nmi

    return {
        "ari": float(ari(truth, labels)),
        "nmi": float(nmi(truth, labels)),
    }


def measure_size_entropy(sizes: Sequence[int]) -> float:
    """Entropy of the cluster sizes, divided by its maximum: 1 for equal sizes, 0 where all are in one cluster.

    Args:
        sizes: the number of members of each cluster.

    >>> round(measure_size_entropy([3, 3, 3]), 6), measure_size_entropy([9, 0, 0])
    (1.0, 0.0)
    """
    from scipy.stats import entropy

    if len(sizes) < 2 or not any(sizes):
        return 0.0
    return float(entropy(sizes, base=len(sizes)))


def bin_by_rank(
    values: Mapping[str, float],
    k: int,
) -> dict[str, int]:
    """The bin of each participant: the r-th smallest of m values, r from 0, is in bin floor(r k / m).

    Bin sizes differ by one at most. Equal values are ordered by the participants' names.

    Args:
        values: the value of each participant.
        k: the number of bins.

    >>> bin_by_rank({"a": 5.0, "b": 1.0, "c": 3.0}, 2)
    {'b': 0, 'c': 0, 'a': 1}
    """
    ranked = sorted(values, key=lambda name: (values[name], name))
    bins = {}
    for rank, name in enumerate(ranked):
        bins[name] = rank * k // len(ranked)
    return bins


def list_thresholds(
    values: Mapping[str, float],
    bins: Mapping[str, int],
    k: int,
) -> list[float]:
    """The largest value of each bin but the last, P_{1/k}, ..., P_{(k-1)/k}; an empty bin has the previous bin's.

    A new value is in the first bin whose threshold is not below it, as `bisect.bisect_left` finds it.

    Args:
        values: the value of each participant.
        bins: the bin of each participant.
        k: the number of bins.

    >>> list_thresholds({"a": 5.0, "b": 1.0, "c": 3.0}, {"b": 0, "c": 0, "a": 1}, 2)
    [3.0]
    """
    return [
        max((values[name] for name, bin_ in bins.items() if bin_ <= i), default=0.0)
        for i in range(k - 1)
    ]


def compute_divergences(
    models: np.ndarray,
    centres: np.ndarray,
) -> np.ndarray:
    """Kullback-Leibler divergence from each centre's predictions to each model's, summed over samples (FedDSMIC Eq. 6).

    It is ``sum_samples sum_classes p_model log(p_model / p_centre)``, in log space, ``(m, K)`` float64, of logits
    ``(m, samples, classes)`` and ``(K, samples, classes)``; not symmetric. A model that predicts infinity or NaN is
    infinitely far from every centre.

    Args:
        models: logits ``(m, samples, classes)``.
        centres: logits ``(K, samples, classes)``.

    >>> import numpy as np
    >>> models, centres = np.log([[[0.5, 0.5]]]), np.log([[[0.5, 0.5]], [[0.25, 0.75]]])
    >>> compute_divergences(models, centres).round(4)  # 0.5 log(0.5/0.25) + 0.5 log(0.5/0.75)
    array([[0.    , 0.1438]])
    """
    from scipy.special import log_softmax

    with np.errstate(invalid="ignore", over="ignore"):
        log_models = log_softmax(models.astype(np.float64), axis=-1)
        log_centres = log_softmax(centres.astype(np.float64), axis=-1)
        probabilities = np.exp(log_models)
        distances = np.empty((len(models), len(centres)))
        for number, log_centre in enumerate(log_centres):
            terms = probabilities * (log_models - log_centre)
            distances[:, number] = terms.sum(axis=(1, 2))
        return np.nan_to_num(distances, nan=np.inf, posinf=np.inf)


def fit_directions(
    models: Sequence[np.ndarray],
    dimensions: int,
) -> np.ndarray:
    """The map M: the leading principal directions of some models.

    The models are s vectors ``(d,)``, perhaps memory-mapped: a few columns of all of them are read at a time.

    Args:
        models: m vectors ``(d,)``.
        dimensions: D, how many directions at most.

    Returns:
        ``(min(D, s - 1, d), d)`` float32, at least one row, orthonormal; zero where the models do not differ.

    >>> np.abs(fit_directions([np.array([0.0, 5.0]), np.array([2.0, 5.0])], 3)).tolist()
    [[1.0, 0.0]]
    """
    products = sum(part @ part.T for _, part in _read_centred(models))
    values, vectors = np.linalg.eigh(products)
    most = min(dimensions, len(models) - 1, len(models[0]))
    count = max(1, most)
    values = values[::-1]
    values = values[:count]
    vectors = vectors[:, ::-1]
    vectors = vectors[:, :count]

    # The directions are the models' combinations by the eigenvectors, of length 1.
    # A direction in which the models do not differ is zero.
    is_present = values > 1e-12 * max(values[0], 1e-300)
    lengths = np.sqrt(np.where(is_present, values, 1))
    factors = np.where(is_present, 1 / lengths, 0)
    scaled = vectors.T * factors[:, None]
    shape = (count, len(models[0]))
    map_ = np.empty(shape, np.float32)
    for columns, part in _read_centred(models):
        map_[:, columns] = scaled @ part
    return map_


def _read_centred(models: Sequence[np.ndarray]) -> Iterator[tuple[slice, np.ndarray]]:
    """The models minus their mean, some columns at a time, float64."""
    for start in range(0, len(models[0]), COLUMNS):
        columns = slice(start, start + COLUMNS)
        rows = [model[columns] for model in models]
        part = np.stack(rows).astype(np.float64)
        yield columns, part - part.mean(axis=0)


def map_models(
    models: Sequence[np.ndarray],
    along: np.ndarray,
) -> np.ndarray:
    """Models projected on those directions, ``(m, D)`` float64; not centred, so the map is linear.

    Args:
        models: m vectors ``(d,)``.
        along: the directions ``(D, d)``.

    >>> map_models([np.array([1.0, 2.0, 3.0])], np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])).tolist()
    [[1.0, 3.0]]
    """
    parts = []
    for start in range(0, len(models), ROWS):
        rows = np.stack(models[start : start + ROWS])
        parts.append(rows @ along.T)
    return np.concatenate(parts).astype(np.float64)
