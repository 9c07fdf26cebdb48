# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""K-means, agglomerative clustering and the gap statistic, by hand and against scikit-learn and scipy."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering, KMeans

from cfl_flare.clustering import agglomerative, gap, kmeans, measures
from cfl_flare.clustering.agglomerative import LINKAGES, METRICS, compute_decomposed_cosines, join_nearest
from cfl_flare.clustering.gap import (
    ClusterCount,
    compute_directions,
    describe_count,
    describe_note,
    estimate_clusters,
    is_clear,
)
from cfl_flare.clustering.kmeans import find_nearest, run_first_kmeans, run_lloyd
from cfl_flare.clustering.measures import compute_points, measure_agreement
from cfl_flare.core.errors import ConfigError
from tests.helpers.tiny import compute_objective


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(6, 14), st.sampled_from([40, 3000]))
def test_long_rows_are_clustered_as_by_kmeans_on_the_rows_themselves(seed, k, m, d):
    """Rows differ little compared with their size, as trained models do; the counts of participants are unequal."""
    rng = np.random.default_rng(seed)
    groups, weights = rng.permutation(np.arange(m) % k), rng.integers(1, 50, size=m).astype(np.float64)
    centres = rng.normal(size=d) * 10 + rng.normal(size=(k, d)) * 0.05
    features = (centres[groups] + rng.normal(size=(m, d)) * 0.01).astype(np.float32)
    exact = KMeans(k, n_init=10, random_state=seed % 1000).fit(features.astype(np.float64), sample_weight=weights)
    labels = run_first_kmeans(compute_points(features), k, weights, seed=seed % 1000)
    assert measure_agreement(exact.labels_.tolist(), labels.tolist())["ari"] == 1.0
    noise = rng.normal(size=(m, d))  # without groups many partitions are as good as each other: the same is reached
    exact = KMeans(k, n_init=10, random_state=0).fit(noise, sample_weight=weights / weights.mean())
    labels = run_first_kmeans(compute_points(noise), k, weights)
    found = np.stack([np.average(noise[labels == j], axis=0, weights=weights[labels == j]) for j in range(k)])
    inertia = (weights / weights.mean() * ((noise - found[labels]) ** 2).sum(axis=1)).sum()
    assert inertia == pytest.approx(exact.inertia_, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 12), st.sampled_from([30, 3000]), st.booleans())
def test_later_rounds_of_long_rows_are_those_of_the_rows_themselves(seed, k, m, d, on_disk):
    """Centres are rows as well; one participant sends numbers a billion times as large, and two send the same."""
    rng = np.random.default_rng(seed)
    centres, weights = rng.normal(size=(k, d)), rng.integers(1, 50, size=m).astype(np.float64)
    rows = centres[rng.integers(0, k, m)] + rng.normal(size=(m, d)) * rng.choice([0.01, 2.0])
    rows[m // 2], rows[-1] = rows[0], rows[-1] * 1e9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "IN_MEMORY", 1 if on_disk else 2**28)
        at, centres_at = np.split(compute_points(np.concatenate([rows, centres])), [m])
    assert at.shape[1] <= m + k
    apart, exact = (((a[:, None] - b[None]) ** 2).sum(axis=2) for a, b in ((at, centres_at), (rows, centres)))
    np.testing.assert_allclose(apart, exact, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(run_lloyd(at, centres_at, weights), run_lloyd(rows, centres, weights))
    assert (at[m // 2] == at[0]).all() or m < 3  # else it is the long one


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float64)[:, None]


def means(features: np.ndarray, labels: np.ndarray, weights: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The M-step: weighted means, an empty cluster where it was."""
    moved = centres.copy()
    for j in set(labels.tolist()):
        own = weights[labels == j, None]
        moved[j] = (own * features[labels == j]).sum(axis=0) / own.sum()
    return moved


def draw_problem(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, centres and weights without ties."""
    rng = np.random.default_rng(seed)
    m, k, d = rng.integers(2, 12), rng.integers(1, 5), rng.integers(1, 4)
    return rng.normal(size=(m, d)), rng.normal(size=(k, d)), rng.uniform(0.1, 5, m)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 0, 3, 1, 4, 2], [2, 3, 0, 5, 1, 4]])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_first_labels_are_numbered_as_they_occur(order: list[int], seed: int) -> None:
    points, groups = column(0, 0.1, 5, 5.1, 9, 9.1)[order], np.array([0, 0, 1, 1, 2, 2])[order]
    labels = run_first_kmeans(points, 3, np.ones(6), seed=seed).tolist()
    number = {group: i for i, group in enumerate(dict.fromkeys(groups.tolist()))}
    assert labels == [number[group] for group in groups.tolist()]


def test_more_clusters_than_participants_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"k = 3 clusters need at least 3 participants.* 2 answered"):
        run_first_kmeans(column(0, 1), 3, np.ones(2))


def test_as_many_clusters_as_participants() -> None:
    assert run_first_kmeans(column(3, 1, 2), 3, np.ones(3)).tolist() == [0, 1, 2]


def test_first_weights_matter() -> None:
    points = column(0, 10, 19)  # to join the first two costs 50, the last two 40.5; with the weights 99 and 4050
    assert run_first_kmeans(points, 2, np.ones(3)).tolist() == [0, 1, 1]
    assert run_first_kmeans(points, 2, np.array([1.0, 100, 100])).tolist() == [0, 0, 1]
    assert run_first_kmeans(points, 2, np.array([1.0, 100, 100]) * 1e-5).tolist() == [0, 0, 1]


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32))
def test_nearest_is_the_smallest_distance(seed: int) -> None:
    features, centres, _ = draw_problem(seed)
    distances = np.square(features[:, None] - centres[None]).sum(axis=2)
    np.testing.assert_array_equal(find_nearest(features, centres), distances.argmin(axis=1))


def test_ties_go_to_the_lowest() -> None:
    assert find_nearest(column(1, 7), column(5, 5, -3)).tolist() == [0, 0]
    assert find_nearest(column(1), column(3, -1)).tolist() == [0]
    assert find_nearest(column(1), column(-1, 3)).tolist() == [0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nearest_beside_a_large_common_offset(dtype: type) -> None:
    # The squares of what all share, 1e8 * 64, have a float32 spacing of 512: without the shift, all would be noise.
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 64))
    truth = rng.integers(0, 4, 30)
    features = centres[truth] + 0.1 * rng.normal(size=(30, 64))
    shifted, origins = (features + 1e4).astype(dtype), (centres + 1e4).astype(dtype)
    np.testing.assert_array_equal(find_nearest(shifted, origins), truth)
    np.testing.assert_array_equal(run_lloyd(shifted, origins, np.ones(30)), truth)


def test_nearest_beside_one_far_centre() -> None:
    assert find_nearest(column(0.1, 0.9), column(1e9, 0, 1)).tolist() == [1, 2]


def test_lloyd_by_hand() -> None:
    points = column(0, 2, 5, 9, 10)
    # {0, 2, 5} | {9, 10} with centres 7/3 and 9.5: 5 stays (2.67 against 4.5), and so do all.
    assert run_lloyd(points, column(1, 10), np.ones(5)).tolist() == [0, 0, 0, 1, 1]
    # {0} | {2, 5, 9, 10} with centres 0 and 6.5: 2 moves; then centres 1 and 8: 5 stays (4 against 3).
    assert run_lloyd(points, column(0, 3), np.ones(5)).tolist() == [0, 0, 1, 1, 1]


def test_lloyd_ends_after_max_steps() -> None:
    points, centres = column(0, 2, 5, 9, 10), column(0, 3)
    assert run_lloyd(points, centres, np.ones(5), max_steps=0).tolist() == [0, 1, 1, 1, 1]
    assert run_lloyd(points, centres, np.ones(5), max_steps=1).tolist() == [0, 0, 1, 1, 1]


def test_weights_move_the_border() -> None:
    points, centres = column(0, 4, 6, 10), column(1, 9)
    assert run_lloyd(points, centres, np.ones(4)).tolist() == [0, 0, 1, 1]
    # Centres 3.33 and 9.81 in place of 2 and 8: 6 moves (2.67 against 3.81).
    assert run_lloyd(points, centres, np.array([1.0, 5, 1, 20])).tolist() == [0, 0, 0, 1]


def test_an_empty_cluster_stays_where_it_is() -> None:
    assert run_lloyd(column(0, 1, 9), column(8, 2, 99), np.ones(3)).tolist() == [1, 1, 0]
    # 6 starts with 5, whose centre then goes to 0.6; the empty centre is still at 8 and takes it over.
    assert run_lloyd(column(0, 6), column(5, 8), np.array([9.0, 1])).tolist() == [0, 1]


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32))
def test_neither_step_raises_the_objective(seed: int) -> None:
    features, centres, weights = draw_problem(seed)
    labels = run_lloyd(features, centres, weights, max_steps=0)
    start = centres
    for steps in range(1, 5):
        moved = means(features, labels, weights, centres)
        after_m = compute_objective(features, labels, moved, weights)
        assert after_m <= compute_objective(features, labels, centres, weights) + 1e-9
        labels, centres = run_lloyd(features, start, weights, max_steps=steps), moved
        assert compute_objective(features, labels, centres, weights) <= after_m + 1e-9


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32))
def test_lloyd_ends_where_nothing_moves(seed: int) -> None:
    features, centres, weights = draw_problem(seed)
    labels = run_lloyd(features, centres, weights)
    np.testing.assert_array_equal(run_lloyd(features, means(features, labels, weights, centres), weights), labels)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32))
def test_lloyd_follows_the_order_of_participants_and_of_centres(seed: int) -> None:
    features, centres, weights = draw_problem(seed)
    rng = np.random.default_rng(seed + 1)
    rows, numbers = rng.permutation(len(features)), rng.permutation(len(centres))
    labels = run_lloyd(features, centres, weights)
    np.testing.assert_array_equal(run_lloyd(features[rows], centres, weights[rows]), labels[rows])
    np.testing.assert_array_equal(numbers[run_lloyd(features, centres[numbers], weights)], labels)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32))
def test_a_whole_weight_is_so_many_participants(seed: int) -> None:
    features, centres, _ = draw_problem(seed)
    counts = np.random.default_rng(seed).integers(1, 4, len(features))
    weighted = run_lloyd(features, centres, counts.astype(float))
    repeated = run_lloyd(features.repeat(counts, axis=0), centres, np.ones(counts.sum()))
    np.testing.assert_array_equal(weighted.repeat(counts), repeated)


def test_lloyd_changes_nothing_that_it_is_given() -> None:
    features, centres, weights = draw_problem(0)
    copies = features.copy(), centres.copy(), weights.copy()
    run_lloyd(features, centres, weights)
    for given_array, copy in zip((features, centres, weights), copies):
        np.testing.assert_array_equal(given_array, copy)


COMBINATIONS = [(m, j) for m in METRICS for j in LINKAGES if j != "ward" or m == "euclidean"]


def column32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


@pytest.mark.parametrize(
    ("joining", "joined_at"),
    [("single", 3), ("average", 3.5), ("complete", 4), ("ward", np.sqrt(4 / 3) * 3.5)],
)
def test_the_last_join_is_at_the_distance_of_the_linkage(joining: str, joined_at: float) -> None:
    """0 and 1 are joined first; 4 is 4 and 3 away from them, and 3.5 from their mean."""
    points = column32(0, 1, 4)
    assert join_nearest(points, "euclidean", joining, threshold=joined_at + 0.01).tolist() == [0, 0, 0]
    assert join_nearest(points, "euclidean", joining, threshold=joined_at - 0.01).tolist() == [0, 0, 1]
    assert join_nearest(points, "euclidean", joining, threshold=0.5).tolist() == [0, 1, 2]


def test_the_metric_matters() -> None:
    points = np.array([[1, 0], [10, 0], [0.5, 0.5]], np.float32)
    assert join_nearest(points, "cosine", "complete", k=2).tolist() == [0, 0, 1]
    assert join_nearest(points, "euclidean", "complete", k=2).tolist() == [0, 1, 0]
    corner = np.array([[0, 0], [3, 3], [0, 5]], np.float32)  # the first two are 4.24 apart, or 6; the others 3.6, or 5
    assert join_nearest(corner, "euclidean", "complete", threshold=3.7).tolist() == [0, 1, 1]
    assert join_nearest(corner, "manhattan", "complete", threshold=3.7).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("metric", "joining"), COMBINATIONS)
def test_as_scikit_learn_s(metric: str, joining: str) -> None:
    points = np.random.default_rng(0).normal(size=(15, 4)).astype(np.float32)
    for k in (1, 4, 15):
        theirs = AgglomerativeClustering(k, metric=metric, linkage=joining).fit(points.astype(np.float64)).labels_
        assert join_nearest(points, metric, joining, k=k).tolist() == kmeans.number_labels(theirs).tolist()


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), k=st.integers(1, 5), which=st.sampled_from(COMBINATIONS))
def test_the_order_of_the_rows_does_not_matter(seed: int, k: int, which: tuple[str, str]) -> None:
    rng = np.random.default_rng(seed)
    points, order = rng.normal(size=(8, 3)).astype(np.float32), rng.permutation(8)
    labels = join_nearest(points, *which, k=k)
    assert join_nearest(points[order], *which, k=k).tolist() == kmeans.number_labels(labels[order]).tolist()
    assert len(set(labels.tolist())) == k


def test_one_row_and_rows_of_zeros() -> None:
    assert join_nearest(column32(3), "cosine", "complete", threshold=1).tolist() == [0]
    assert set(join_nearest(column32(0, 0, 0), "euclidean", "ward", k=2).tolist()) == {0, 1}
    mixed = np.array([[0, 0], [1, 0], [2, 0]], np.float32)
    assert join_nearest(mixed, "cosine", "complete", threshold=0.5).tolist() == [0, 1, 1]


def test_more_clusters_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"k = 3 clusters need at least 3 participants.* 2 answered; lower k"):
        join_nearest(column32(1, 2), "euclidean", "ward", k=3)


def test_decomposed_cosines_by_hand() -> None:
    """The axes are the singular vectors, since x and y do not go together: the sum of their products is 6 - 6."""
    rows = np.array([[3, 2], [3, -2], [-1, 0], [1, 0]], np.float32)
    found = np.abs(compute_decomposed_cosines(rows, 2))
    np.testing.assert_allclose(found, [[3 / 13**0.5, 2 / 13**0.5]] * 2 + [[1, 0]] * 2, atol=1e-7)
    assert compute_decomposed_cosines(rows, 1).shape == (4, 1)
    signed = compute_decomposed_cosines(rows, 1)[:, 0]
    assert signed[0] * signed[2] < 0 < signed[0] * signed[3]


def test_decomposed_cosines_are_those_with_the_singular_vectors() -> None:
    rows = np.random.default_rng(1).normal(size=(6, 40))
    _, _, directions = np.linalg.svd(rows, full_matrices=False)
    wanted = (rows / np.linalg.norm(rows, axis=1, keepdims=True)) @ directions[:3].T
    np.testing.assert_allclose(np.abs(compute_decomposed_cosines(rows, 3)), np.abs(wanted), atol=1e-10)


def test_a_row_of_zeros_has_no_direction() -> None:
    found = compute_decomposed_cosines(np.array([[0, 0], [0, 2]], np.float32), 2)
    np.testing.assert_allclose(np.abs(found), [[0, 0], [1, 0]], atol=1e-7)


@pytest.mark.parametrize("module", [agglomerative, kmeans, measures], ids=lambda m: m.__name__)
def test_examples(module) -> None:
    assert doctest.testmod(module, extraglobs={"np": np}).failed == 0


# ---- The gap statistic ----


def blobs(sizes: list[int], noise: float = 0.3, seed: int = 0, dimensions: int = 300) -> np.ndarray:
    """Rows around the centre of their group, each of which is near a common one."""
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(len(sizes), dimensions)), sizes, axis=0)
    return centres + 2 * rng.normal(size=dimensions) + noise * rng.normal(size=centres.shape)


def find_number_of_clusters(rows: np.ndarray, most: int = 10, **more: int) -> ClusterCount:
    return estimate_clusters(rows @ rows.T, most, **more)


@pytest.mark.parametrize("sizes", [[12], [40], [3, 3], [6, 6], [20, 20], [4, 5, 3], [14, 13, 13], [3] * 6, [4] * 10])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_finds_as_many_clusters_as_there_are(sizes: list[int], seed: int) -> None:
    given = find_number_of_clusters(blobs(sizes, seed=seed))
    assert given.k == len(sizes)
    assert given.labels.tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()


def test_groups_that_come_back_in_draws_are_clear() -> None:
    note = describe_count(find_number_of_clusters(blobs([14, 13, 13])))
    assert note["draws"] == {"3": gap.DRAWS} and is_clear(note)
    assert note["by_k"]["3"]["stability"] == 1 > gap.STABLE > note["by_k"]["4"]["stability"]
    assert describe_note(note).startswith("3 clusters found (clear): ")
    assert is_clear(describe_count(find_number_of_clusters(blobs([40])))) and describe_note(
        describe_count(find_number_of_clusters(blobs([40])))
    ).startswith("one cluster found (c")


@pytest.mark.parametrize("seed", range(5))
def test_skew_without_groups_is_never_clear(seed: int) -> None:
    """Each participant is a mixture of ten directions, as labels dealt by a Dirichlet distribution are."""
    rng = np.random.default_rng(seed)
    mixtures = rng.dirichlet(np.full(10, 0.3), 40)
    note = describe_count(
        find_number_of_clusters(mixtures @ rng.normal(size=(10, 300)) + 0.02 * rng.normal(size=(40, 300)))
    )
    assert not is_clear(note)
    low, high = note["set"]
    assert low < high and f"90 % set {low} to {high}" in describe_note(note)
    assert describe_note(note).startswith("about ")


def test_groups_go_before_what_is_finer_and_comes_back_in_no_draw() -> None:
    """Four groups, in each of which participants differ in two directions: more clusters are tighter, and unstable."""
    rng = np.random.default_rng(0)
    inside = np.concatenate([rng.normal(size=(10, 2)) @ rng.normal(size=(2, 300)) for _ in range(4)])
    given = find_number_of_clusters(blobs([10] * 4, noise=0.02) + 0.4 * inside)
    assert int(np.argmax(given.gap)) + 1 > 4  # the gap alone would take
    low, high = given.k_set
    assert given.k == low == 4 < high and not is_clear(describe_count(given))  # what is inside may be groups


def test_groups_inside_clusters_that_are_far_apart_are_in_the_set() -> None:
    """Two clusters of two groups each: draws of all have two, those of each cluster two."""
    far, near = np.repeat(np.eye(2, 300), 16, axis=0), np.repeat(np.eye(4, 300, 10), 8, axis=0)
    noise = 0.02 * np.random.default_rng(0).normal(size=(32, 300))
    number = find_number_of_clusters(far + 0.2 * near + noise)
    assert number.k_set == (2, 4) and not is_clear(describe_count(number))
    assert find_number_of_clusters(far + noise).k_set == (2, 2)


def test_who_changes_sides_is_named() -> None:
    """One participant between two of three groups; all others are in the same cluster in each draw."""
    points = np.concatenate([np.repeat(np.eye(3, 300), 8, axis=0), [[0.5, 0.5, 0.0]] @ np.eye(3, 300)])
    number = find_number_of_clusters(points + 0.1 * np.random.default_rng(1).normal(size=points.shape))
    assert number.k == 3 and len(number.steadiness) == 25
    assert min(number.steadiness[:24]) == 1.0 > gap.AGREEING > number.steadiness[24]
    note = describe_count(number, [f"h{i}" for i in range(25)])
    assert note["unsteady"] == {"h24": number.steadiness[24]} and describe_note(note).endswith("; 1 change sides: h24")


def test_the_set_has_the_number_without_prevalence() -> None:
    """Two groups in the direction along which a bias moves; beside it, there is only noise."""
    rng = np.random.default_rng(0)
    bias = np.repeat([[-1.0], [1.0]], 12, axis=0)
    rows = rng.normal(0, 0.3, (24, 20))
    rows[:, :1] += 2 * bias
    products = rows @ rows.T
    count, apart = (estimate_clusters(p, 6) for p in (products, gap.remove_explained(products, bias)))
    assert (count.k, apart.k) == (2, 1)
    note = describe_count(count, apart=apart)
    assert note["set"][0] == 1 and note["apart"] == 1 and not is_clear(note)
    assert "apart" not in describe_count(count, apart=count)


def test_the_words_for_what_is_not_clear() -> None:
    def note(k: int, gaps: list[float], stability: float, draws: dict[str, int], *ends: int) -> dict[str, object]:
        by_k = {
            str(i): {"gap": g, "deviations": 10 * g, "stability": 1.0 if i == 1 else stability}
            for i, g in enumerate(gaps, 1)
        }
        return {"k": k, "by_k": by_k, "draws": draws, "set": list(ends), "unsteady": {}}

    two = note(2, [0, 0.5, 0.4], 0.95, {"1": 30, "2": 70}, 1, 2)
    assert describe_note(two) == (
        "about 2 clusters found (90 % set 1 to 2): 5.0 standard deviations tighter than data without clusters"
    )
    hidden = note(2, [0, 0.5, 0.4], 0.95, {"2": 100}, 2, 4)  # groups inside the clusters
    assert not is_clear(hidden) and "(90 % set 2 to 4)" in describe_note(hidden)
    other = note(2, [0, 0.5, 0.4], 0.5, {"2": 100}, 2, 2)
    assert "(90 % set 2, with other members without a fifth of the participants)" in describe_note(other)
    sides = describe_note({**other, "unsteady": {f"h{i}\n": i / 10 for i in range(8, -1, -1)}})
    assert sides.endswith("; 9 change sides: h0, h1, h2, h3, h4, h5 and 3 others")
    prevalence = describe_note({**other, "apart": 1})
    assert prevalence.endswith("prevalence explains it is 1, so that clusters cannot be told from prevalence")
    weak = note(1, [0, 0.1, 0.05], 0.5, {"1": 50, "3": 50}, 1, 3)
    assert describe_note(weak) == (
        "about one cluster found (90 % set 1 to 3): "
        "with 2, the updates are only 1.0 standard deviations tighter than data without clusters"
    )


def test_the_noise_of_small_participants_makes_no_cluster() -> None:
    """Steps and noise of participants with little data differ much from the others'."""
    rng = np.random.default_rng(3)
    scales = rng.permutation(np.geomspace(0.1, 10, 24))[:, None]
    rows = scales * (2 * rng.normal(size=300) + rng.normal(size=(24, 300)) * rng.uniform(0.5, 2, (24, 1)))
    assert find_number_of_clusters(rows).k == 1


def test_small_groups_beside_a_large_one_are_seen() -> None:
    given = find_number_of_clusters(blobs([17, 3]))
    assert (given.k, np.bincount(given.labels).tolist()) == (2, [17, 3])


def test_the_gap_is_that_of_the_reference_sets_computed_by_hand() -> None:
    """Two pairs at right angles, seen from their mean: W_1 = 4 and W_2 = 0, as for no reference set."""
    rows = np.array([[1.0, 0, 0.1], [1, 0, -0.1], [0, 1, 0.1], [0, 1, -0.1]])
    points = compute_directions(rows @ rows.T)
    np.testing.assert_allclose(np.square(points).sum(axis=1), 1)
    # The normalised rows less their mean are (+-1/2, -+1/2, +-0.1) / 1.00499; squares 0.5 and 0.01 before the division.
    cosines = np.array([[1, 0.49 / 0.51], [0.49 / 0.51, 1]])
    np.testing.assert_allclose((points @ points.T)[:2, :2], cosines)
    given = estimate_clusters(rows @ rows.T, 2, references=3, seed=5)
    # W_1 = 4 as the points are of length 1 around 0; in each pair, half the squared distance 2 (1 - 0.49 / 0.51).
    inside = 2 * (1 - 0.49 / 0.51)
    from scipy.cluster.hierarchy import linkage

    from cfl_flare.core.seeds import stream

    logs = []
    for i in range(3):
        drawn = stream(5, "reference", i).standard_normal(points.shape) * points.std(axis=0)
        heights = linkage(drawn / np.linalg.norm(drawn, axis=1)[:, None], "ward")[:, 2]
        logs.append(np.log((heights[:2] ** 2).sum() / (heights**2).sum()))
    assert given.gap[0] == 0
    assert given.gap[1] == pytest.approx(np.mean(logs) - np.log(inside / 4))
    assert given.deviations[1] == pytest.approx(given.gap[1] / np.std(logs))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_too_few_to_compare_are_one_cluster(rows: int) -> None:
    given = find_number_of_clusters(np.eye(rows, 5))
    assert given.gap == given.deviations == (0.0,)
    assert given.labels.tolist() == [0] * rows


def test_equal_vectors_and_zeros_are_one_cluster() -> None:
    for row in (np.full(7, 0.1), np.zeros(7)):
        assert find_number_of_clusters(np.tile(row, (8, 1))).k == 1
    scaled = np.arange(1.0, 9)[:, None] * np.full(7, 0.1)  # one direction
    assert find_number_of_clusters(scaled).k == 1


def test_copies_are_found_and_one_that_did_not_move_does_no_harm() -> None:
    rows = np.repeat(np.eye(3), 4, axis=0)
    assert find_number_of_clusters(rows).labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert len(find_number_of_clusters(np.vstack([rows, np.zeros(3)])).labels) == 13


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    products = np.eye(6)
    products[2, 3] = products[3, 2] = bad
    with pytest.raises(ConfigError, match="not finite; lower lr"):
        estimate_clusters(products, 3)


def test_no_more_than_allowed_and_no_more_than_half() -> None:
    assert len(find_number_of_clusters(blobs([4] * 5), 3).gap) == 3
    assert find_number_of_clusters(blobs([4] * 5), 3).k <= 3
    assert len(find_number_of_clusters(blobs([3, 4]), 10).gap) == 3


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.floats(-8, 8))
def test_neither_order_nor_scale_matter(seed: int, groups: int, power: float) -> None:
    rows = blobs([4, 5, 3, 6][:groups], seed=seed, dimensions=60)
    order = np.random.default_rng(seed).permutation(len(rows))
    one, other = find_number_of_clusters(rows, 5), find_number_of_clusters(10.0**power * rows[order], 5)
    assert one.k == other.k
    assert measure_agreement(one.labels[order].tolist(), other.labels.tolist())["ari"] == 1
    np.testing.assert_allclose(one.gap, other.gap, atol=1e-6)


def test_the_seed_alone_decides_the_reference_sets() -> None:
    rows = blobs([6, 6])
    assert (
        find_number_of_clusters(rows, seed=1).gap
        == find_number_of_clusters(rows, seed=1).gap
        != find_number_of_clusters(rows, seed=2).gap
    )
