# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The number of clusters, which may be one: the gap statistic, against random points without clusters.

* Robert Tibshirani, Guenther Walther, Trevor Hastie: Estimating the Number of Clusters in a Data Set via the Gap
  Statistic, 2001.
* Yufeng Liu, David Neil Hayes, Andrew Nobel, J. S. Marron: Statistical Significance of Clustering for High-Dimension,
  Low-Sample Size Data, 2008 (SigClust).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cfl_flare.clustering.kmeans import number_labels
from cfl_flare.core.config import require
from cfl_flare.core.seeds import stream
from cfl_flare.core.text import plain

# Under which key the record of the round that found the number of clusters says so.
NUMBER = "number_of_clusters"
# What is left of a squared length after rounding.
NOTHING = 1e-10
# So many draws, each of this share of the points.
DRAWS = 100
SHARE = 0.8
# A number of clusters is stable if each cluster is this alike in the draws; Hennig (2007) calls 0.85 "highly stable".
STABLE = 0.9
# So many participants that change sides are named in a sentence.
MOST_NAMES = 6
# A number is clear from this number of standard deviations on, if this share of the draws has it too.
CLEAR = 2
# Of the test whether prevalence differs between clusters.
PERMUTATIONS = 399
LEVEL = 0.05
AGREEING = 0.9


@dataclass(frozen=True)
class ClusterCount:
    """A number of clusters, and why.

    Attributes:
        labels: ``(m,)``, the cluster of each row, numbered in the order in which they first occur.
        gap: by K = 1, 2, ...: by how much the logarithm of the dispersion inside K clusters is below its mean over
            the reference sets; 0 for K = 1.
        deviations: the same in standard deviations of the reference sets.
        stability: by K: how alike the clusters of draws of the rows are, see `_stability`; 1 for K = 1.
        draws: the number of clusters in each draw.
        k_set: the smallest and the largest number of a nominal 90 % set, see `_with_those_inside`.
        steadiness: ``(m,)``, in what share of the draws each row is in the same cluster; 1 without draws.
    """

    labels: np.ndarray
    gap: tuple[float, ...]
    deviations: tuple[float, ...]
    stability: tuple[float, ...] = ()
    draws: tuple[int, ...] = ()
    k_set: tuple[int, int] = (1, 1)
    steadiness: tuple[float, ...] = ()

    @property
    def k(self) -> int:
        return int(self.labels.max()) + 1


def estimate_clusters(
    products: np.ndarray,
    most: int,
    references: int = 100,
    seed: int = 0,
) -> ClusterCount:
    """The number of clusters of some vectors by the gap statistic (Tibshirani et al. 2001), 1 if there are none.

    The vectors are compared by their directions from their mean, see `compute_directions`. Ward's linkage clusters
    them; its dispersion W_K is the one that k-means minimises. The reference sets have no clusters. They have the
    lengths of the vectors and the variance along each of their principal axes: the null hypothesis of SigClust (Liu
    et al. 2008) on the sphere. A box (Tibshirani et al., sec. 4) has far less structure than what participants
    without clusters send. A sample's variances are more uneven than those that it was drawn from, and so a reference
    set has a little more structure: an error is towards one cluster.

    K is 1 unless another number has a positive gap. Then it is the smallest one whose gap is as large as the largest
    but for half a standard deviation (Dudoit and Fridlyand 2002 allow a whole one). Only numbers count whose clusters
    come back in draws of the vectors. If no such number has a positive gap, the vectors may still differ without
    forming groups. Then K is the median over the draws, if nearly all have more than one and its gap is clear; else 1.

    Args:
        products: ``(m, m)`` inner products of the vectors; a ConfigError says that one is not finite.
        most: the largest number that is tried, at most half the vectors.

    >>> two = np.repeat([[1.0, 0.0], [0.0, 1.0]], 6, axis=0) + stream(0, "noise").normal(0, 0.1, (12, 2))
    >>> estimate_clusters(two @ two.T, 4).k
    2
    """
    require(
        bool(np.isfinite(products).all()),
        "the features that are to be clustered are not finite; lower lr",
    )
    count = _count_clusters(products, most, references, seed)
    return replace(
        count, k_set=_add_those_inside(count, products, most, references, seed)
    )


def remove_explained(products: np.ndarray, causes: np.ndarray) -> np.ndarray:
    """Inner products of vectors without the differences that other numbers of theirs explain.

    Least squares over the vectors. Of many numbers, the first principal axes are removed, at most one for each four
    vectors, because more would explain anything.

    Args:
        products: ``(m, m)``, of the vectors.
        causes: ``(m, c)``, what may explain their differences, such as the last layer's biases.

    Returns:
        Inner products ``(m, m)``.

    >>> vectors = np.array([[2.0, 1.0], [4.0, 1.0], [2.0, 3.0], [4.0, 3.0]])
    >>> remove_explained(vectors @ vectors.T, vectors[:, :1]).round(6).diagonal().tolist()
    [10.0, 10.0, 18.0, 18.0]
    """
    m = len(products)
    axes, lengths, _ = np.linalg.svd(causes - causes.mean(axis=0), full_matrices=False)
    kept = axes[:, lengths > NOTHING * max(1.0, lengths[0])][:, : m // 4]
    mean = np.full((m, m), 1 / m)
    # What the causes explain of the differences from the mean is left out, and the mean is added again.
    remaining = (np.eye(m) - kept @ kept.T) @ (np.eye(m) - mean) + mean
    return np.asarray(remaining @ products @ remaining.T)


def differ_between(numbers: np.ndarray, labels: np.ndarray, seed: int = 0) -> bool:
    """Whether some numbers differ between clusters by more than chance: a permutation test of level `LEVEL`.

    Args:
        numbers: ``(m, c)``.
        labels: ``(m,)``, the cluster of each row.
        seed: of the permutations.

    >>> halves = np.repeat([0, 1], 6)
    >>> differ_between(halves[:, None] + 0.0, halves), differ_between(np.arange(12.0)[:, None] % 2, halves)
    (True, False)
    """
    centred = numbers - numbers.mean(axis=0)
    members = np.eye(labels.max() + 1)[labels]
    # Each cluster's indicator, so that squared sums are between-cluster sums of squares.
    weights = members / np.sqrt(members.sum(axis=0))
    found = np.square(weights.T @ centred).sum()
    rng = stream(seed, "differ between")
    drawn = [
        np.square(weights.T @ rng.permutation(centred)).sum()
        for _ in range(PERMUTATIONS)
    ]
    as_large = 1 + np.count_nonzero(np.array(drawn) >= found * (1 - NOTHING))
    return bool(as_large <= LEVEL * (1 + PERMUTATIONS))


class Draw(NamedTuple):
    """Some of the points: their ``rows``, and the ``tree`` of Ward's linkage that clusters them."""

    rows: np.ndarray
    tree: np.ndarray


def _count_clusters(
    products: np.ndarray,
    most: int,
    references: int,
    seed: int,
) -> ClusterCount:
    """Find the number of clusters. Its set follows from the draws of all rows."""
    from scipy.cluster.hierarchy import cut_tree, linkage

    points = compute_directions(products)
    most = max(1, min(most, len(points) // 2))
    if most == 1 or not points.any():
        return _one_cluster(len(points), most)

    # How much tighter the clusters are than those of points without clusters.
    tree = linkage(points, "ward")
    draws = _draw_points(points, seed)
    null = _disperse_references(points, len(draws[0].rows), most, references, seed)
    (mean, mean_drawn), (spread, spread_drawn) = null.mean(axis=0), null.std(axis=0)
    gap = mean - _dispersion(tree, most)
    deviations = gap / np.maximum(spread, NOTHING)

    # Only numbers count whose clusters come back in draws of the points.
    labels = cut_tree(tree, range(1, most + 1)).T
    stability = _measure_stability(labels, draws)
    stable = stability >= STABLE
    k = _choose_number(gap, spread, stable)

    # The draws' own numbers give the set, and decide if no stable number has a positive gap.
    considered = stable if k > 1 else np.ones(most, bool)
    gaps_drawn = (mean_drawn - _dispersion(draw.tree, most) for draw in draws)
    numbers = [
        _choose_number(gap_drawn, spread_drawn, considered) for gap_drawn in gaps_drawn
    ]
    if k == 1 and gap.max() > 0 and np.mean(np.array(numbers) > 1) >= AGREEING:
        median = _find_quantile(numbers, 0.5)
        if deviations[median - 1] >= CLEAR:
            k = median
    return ClusterCount(
        labels=number_labels(labels[k - 1]),
        gap=tuple(gap.tolist()),
        deviations=tuple(deviations.tolist()),
        stability=tuple(stability.tolist()),
        draws=tuple(numbers),
        k_set=(
            min(_find_quantile(numbers, 0.05), k),
            max(_find_quantile(numbers, 0.95), k),
        ),
        steadiness=_measure_steadiness(labels[k - 1], draws),
    )


def _one_cluster(
    rows: int,
    most: int,
) -> ClusterCount:
    """The answer for so many rows where no other number is tried."""
    nothing = (0.0,) * most
    return ClusterCount(
        np.zeros(rows, np.int64),
        nothing,
        nothing,
        (1.0,) * most,
        steadiness=(1.0,) * rows,
    )


def _draw_points(
    points: np.ndarray,
    seed: int,
) -> list[Draw]:
    """Draw some of the points ``(m, r)`` again and again, and cluster each draw."""
    from scipy.cluster.hierarchy import linkage

    size = round(SHARE * len(points))
    draws = []
    for i in range(DRAWS):
        rows = np.sort(stream(seed, "draw", i).permutation(len(points))[:size])
        draws.append(Draw(rows, linkage(points[rows], "ward")))
    return draws


def _disperse_references(
    points: np.ndarray,
    size: int,
    most: int,
    references: int,
    seed: int,
) -> np.ndarray:
    """The dispersion of reference sets, each with all its rows and with ``size`` of them, ``(references, 2, most)``."""
    from scipy.cluster.hierarchy import linkage

    dispersions = []
    for reference in _draw_references(points, references, seed):
        whole = _dispersion(linkage(reference, "ward"), most)
        drawn = _dispersion(linkage(reference[:size], "ward"), most)
        dispersions.append([whole, drawn])
    return np.array(dispersions)


def _find_quantile(
    numbers: Sequence[int],
    share: float,
) -> int:
    return int(np.quantile(numbers, share, method="inverted_cdf"))


def _add_those_inside(
    count: ClusterCount,
    products: np.ndarray,
    most: int,
    references: int,
    seed: int,
) -> tuple[int, int]:
    """The set of numbers: of the draws of all rows, and as many as the draws inside each cluster add up to.

    Two clusters that are far apart hide groups inside them: draws of all rows have two then, and none has four. Seen
    from each cluster's mean, they come out.
    """
    low, high = count.k_set
    if count.k == 1:
        return low, max(high, 1)
    inside = 0
    for k in range(count.k):
        rows = np.flatnonzero(count.labels == k)
        inside += _count_clusters(
            products[np.ix_(rows, rows)], most, references, seed
        ).k_set[1]
    return low, max(high, inside)


def describe_count(
    count: ClusterCount,
    names: Sequence[str] = (),
    apart: ClusterCount | None = None,
) -> dict[str, Any]:
    """The record of the round that found the clusters.

    It has ``k``, ``by_k`` how good it is, ``draws`` in how many, the ends of its ``set``, and the ``unsteady`` of the
    named rows: in what share of draws those that often change sides are in the same cluster. ``apart`` is the number
    without what prevalence explains, if it is smaller. Then the set has both numbers' sets.

    Args:
        count: the number that was found.
        names: the names of the rows; none to name none.
        apart: the number without the differences that prevalence explains; None if that is not known.
    """
    ends = list(count.k_set)
    other = {}
    if apart is not None and apart.k < count.k:
        ends += apart.k_set
        other["apart"] = apart.k
    by_k = {
        str(k): {"gap": gap, "deviations": deviations, "stability": stability}
        for k, (gap, deviations, stability) in enumerate(
            zip(count.gap, count.deviations, count.stability), 1
        )
    }
    draws = {str(k): count.draws.count(k) for k in sorted({*count.draws})}
    unsteady = {
        name: share for name, share in zip(names, count.steadiness) if share < AGREEING
    }
    return {
        "k": count.k,
        "by_k": by_k,
        "draws": draws,
        **other,
        "set": [min(ends), max(ends)],
        "unsteady": unsteady,
    }


def is_clear(note: Mapping[str, Any]) -> bool:
    """Whether the number is beyond doubt: its set has no other, draws have it too, and the same clusters.

    Args:
        note: the record, as `describe_count` makes it.
    """
    k = str(note["k"])
    draws = note["draws"]
    found = note["by_k"][k]
    is_alone = len({*note["set"]}) < 2
    agreeing = is_alone and draws.get(k, 0) >= AGREEING * sum(draws.values()) > 0
    if note["k"] == 1:
        return agreeing and all(value["gap"] <= 0 for value in note["by_k"].values())
    return agreeing and found["deviations"] >= CLEAR and found["stability"] >= STABLE


def describe_note(note: Mapping[str, Any]) -> str:
    """One line on what was found, and how sure it is.

    Args:
        note: the record, as `describe_count` makes it.
    """
    k = note["k"]
    by_k = note["by_k"]
    if len(by_k) < 2:
        return "one cluster: fewer than four participants, or no other number to try"
    clusters = "one cluster" if k == 1 else f"{k} clusters"
    text = f"{clusters} found ({_how_sure(note)})"
    if not is_clear(note):
        text = f"about {text}"
    best = max(by_k, key=lambda number: float(by_k[number]["gap"]))
    if by_k[best]["gap"] <= 0:
        return f"{text}: with 2 to {len(by_k)}, the updates are no tighter than data without clusters"
    deviations = by_k[best if k == 1 else str(k)]["deviations"]
    tighter = f"{deviations:.1f} standard deviations tighter than data without clusters{_changing_sides(note)}"
    if k == 1:
        return f"{text}: with {best}, the updates are only {tighter}"
    return f"{text}: {tighter}{_mention_prevalence(note)}"


def _mention_prevalence(note: Mapping[str, Any]) -> str:
    """That clusters may be differences in prevalence, if the number depends on these."""
    if "apart" not in note:
        return ""
    without = f"without the differences that prevalence explains it is {note['apart']}"
    return f"; {without}, so that clusters cannot be told from prevalence"


def _changing_sides(note: Mapping[str, Any]) -> str:
    """``; 3 change sides: a, b, c``, the least steady first."""
    unsteady = note["unsteady"]
    names = [
        plain(name, 60)
        for name in sorted(unsteady, key=lambda name: (unsteady[name], name))
    ]
    if not names:
        return ""
    listed = ", ".join(names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        listed += f" and {len(names) - MOST_NAMES} others"
    return f"; {len(names)} change sides: {listed}"


def _how_sure(note: Mapping[str, Any]) -> str:
    if is_clear(note):
        return "clear"
    low, high = note["set"]
    text = f"90 % set {low}"
    if low < high:
        text += f" to {high}"
    if note["by_k"][str(note["k"])]["stability"] < STABLE:
        text += ", with other members without a fifth of the participants"
    return text


def _choose_number(
    gap: np.ndarray,
    spread: np.ndarray,
    considered: np.ndarray,
) -> int:
    """The smallest number considered whose gap is the largest but for half a deviation; 1 if none is positive.

    Args:
        gap: ``(most,)``, for K = 1, 2, ...
        spread: ``(most,)``, the standard deviation of the reference sets.
        considered: ``(most,)`` bool.
    """
    gap = np.where(considered, gap, -np.inf)
    best = int(gap.argmax())
    if best == 0:
        return 1
    good_enough = gap[1:] >= gap[best] - 0.5 * spread[best]
    return 2 + int(np.argmax(good_enough))


def _measure_stability(
    labels: np.ndarray,
    draws: Sequence[Draw],
) -> np.ndarray:
    """By K, how alike the clusters of draws are: of the least alike cluster its mean Jaccard index (Hennig 2007).

    Args:
        labels: ``(most, m)``, of K = 1 to ``most`` clusters.
        draws: of the points.

    Returns:
        ``(most,)``, 1 for K = 1.
    """
    from scipy.cluster.hierarchy import fcluster

    worst = [1.0]
    for k in range(2, len(labels) + 1):
        alike = []
        for draw in draws:
            labels_drawn = fcluster(draw.tree, k, "maxclust") - 1
            alike.append(
                _compute_jaccard(
                    _count_common(labels[k - 1][draw.rows], labels_drawn, k)
                )
            )
        worst.append(float(np.nanmean(alike, axis=0).min()))
    return np.array(worst)


def _measure_steadiness(
    labels: np.ndarray,
    draws: Sequence[Draw],
) -> tuple[float, ...]:
    """In what share of the draws that have it each row is in the same cluster.

    The clusters of a draw are those of all rows with which they have the most rows in common.
    """
    from scipy.cluster.hierarchy import fcluster
    from scipy.optimize import linear_sum_assignment

    k = int(labels.max()) + 1
    same = np.zeros(len(labels))
    drawn = np.zeros(len(labels))
    for draw in draws:
        labels_drawn = fcluster(draw.tree, k, "maxclust") - 1
        before = labels[draw.rows]
        _, matched = linear_sum_assignment(
            _count_common(before, labels_drawn, k), maximize=True
        )
        same[draw.rows] += matched[before] == labels_drawn
        drawn[draw.rows] += 1
    return tuple((same / np.maximum(drawn, 1)).tolist())


def _count_common(
    labels: np.ndarray,
    others: np.ndarray,
    k: int,
) -> np.ndarray:
    """How many rows two clusterings ``(n,)`` of K clusters have in common, by pair of clusters, ``(k, k)``."""
    return np.bincount(labels * k + others, minlength=k * k).reshape(k, k)


def _compute_jaccard(common: np.ndarray) -> np.ndarray:
    """The largest Jaccard index ``(k,)`` of each cluster, by rows in common ``(k, k)``; NaN without members."""
    sizes = common.sum(axis=1, keepdims=True)
    either = sizes + common.sum(axis=0) - common
    index = (common / np.maximum(either, 1)).max(axis=1)
    return np.where(sizes[:, 0] > 0, index, np.nan)


def compute_directions(products: np.ndarray) -> np.ndarray:
    """Points ``(m, r)`` of length 1 whose inner products are the cosines of the vectors, seen from their mean.

    What all have in common would hide the rest; how far a participant moved depends on how much data it has. A vector
    that is the mean gets a point of zeros.

    Args:
        products: ``(m, m)`` inner products of the vectors.
    """
    cosines = _scaled(products, NOTHING * np.diag(products).max())
    mean = cosines.mean(axis=0)
    values, axes = np.linalg.eigh(
        _scaled(cosines - mean - mean[:, None] + mean.mean(), NOTHING)
    )
    positive = values > NOTHING
    return np.asarray(axes[:, positive] * np.sqrt(values[positive]))


def _scaled(
    products: np.ndarray,
    least: float,
) -> np.ndarray:
    """Inner products of the same vectors with length 1; 0 for those whose square is ``least`` or less."""
    squares = np.diag(products).astype(np.float64)
    nonzero = squares > least
    factors = np.where(nonzero, 1 / np.sqrt(np.where(nonzero, squares, 1.0)), 0.0)
    return np.asarray(products * factors * factors[:, None])


def _draw_references(
    points: np.ndarray,
    count: int,
    seed: int,
) -> Iterator[np.ndarray]:
    """Sets without clusters: Gaussian with the points' variance along their axes, then with the points' lengths."""
    lengths = np.linalg.norm(points, axis=1)
    along = points.std(axis=0)
    for i in range(count):
        drawn = stream(seed, "reference", i).standard_normal(points.shape) * along
        yield drawn * (lengths / np.linalg.norm(drawn, axis=1))[:, None]


def _dispersion(
    tree: np.ndarray,
    most: int,
) -> np.ndarray:
    """log W_K - log W_1 for K = 1 to ``most``: each of Ward's merges adds half its squared height to W."""
    inside = np.cumsum(tree[:, 2] ** 2 / 2)[::-1]
    return np.asarray(
        np.log(np.maximum(inside[:most], NOTHING * inside[0])) - np.log(inside[0])
    )
