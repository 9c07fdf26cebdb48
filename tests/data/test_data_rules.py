# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What each partition rule promises, over sizes, settings and seeds."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import PARTITIONS, DataConfig, Samples, build_partition, dealt, report_of
from cfl_flare.data.deal import apportioned, evened, filled, rounded
from cfl_flare.data.groups import Scanner
from cfl_flare.data.label_skew import balanced_choices
from cfl_flare.data.sources import DataSource

some = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 10_000)


def labelled(totals, per_test=5):
    """Train and test samples with so many of each class; the test set has one for each `per_test`."""
    y = np.repeat(np.arange(len(totals)), totals)
    test = np.repeat(np.arange(len(totals)), [max(1, t // per_test) if t else 0 for t in totals])
    made = [Samples(np.arange(len(v), dtype=np.float32)[:, None], v) for v in (y, test)]
    return made[0], made[1]


def draw_deal(spec, participants, seed, totals=(600,) * 10, min_samples=1):
    """The report and the deal of a rule."""
    train, test = labelled(totals)
    rule = build_partition(spec)
    deal = dealt(train, test, rule, participants, seed, min_samples)
    return report_of(train, test, deal, rule.name), deal


def check_sound(report, lossless=True):
    assert report.disjoint
    assert (report.train.sum(axis=1) >= 1).all() and (report.test.sum(axis=1) >= 1).all()
    assert report.train_unused >= 0 and report.test_unused >= 0
    if lossless:
        assert report.train_unused == report.test_unused == 0


def check_same_proportions(report, tolerance=1.0):
    """Each class's test samples are dealt as its training samples are, but for rounding."""
    expected = report.train * (report.test_total / np.maximum(1, report.train_total))
    assert np.abs(report.test - expected).max() <= tolerance + (report.test_total / report.train_total).max()


RULES = [
    {"partition": "iid"},
    {"partition": "dirichlet", "alpha": 0.5},
    {"partition": "n_class", "n": 3},
    {"partition": "cluster_dirichlet", "groups": 4},
    {"partition": "cluster_n_class", "groups": 4},
    {"partition": "class_groups", "groups": 3, "alpha": 0.3},
    {"partition": "class_groups", "groups": 3, "alpha": 1.0, "disjoint": True},
    {"partition": "scanner", "groups": 4},
    {"partition": "label_permutation", "groups": 4},
    {"partition": "lda", "alpha": 0.3},
    {"partition": "heterogeneity_tiers"},
    {"partition": "quantity", "lo": 20, "hi": 90, "rule": "dirichlet", "alpha": 0.5},
    {"partition": "crossed", "scanners": 2, "rule": "cluster_dirichlet", "groups": 2},
]
LOSSY = ("lda", "heterogeneity_tiers", "quantity", "n_class")


@pytest.mark.parametrize("spec", RULES, ids=lambda spec: spec["partition"])
@settings(deadline=None, max_examples=8)
@given(participants=st.integers(8, 24), seed=seeds)
def test_every_rule_deals_each_sample_at_most_once_in_the_same_proportions(spec, participants, seed):
    report, deal = draw_deal(spec, participants, seed)
    check_sound(report, lossless=spec["partition"] not in LOSSY)
    if spec["partition"] in ("lda", "heterogeneity_tiers"):
        # Cut to one size: the mix is kept, up to what the largest had more.
        train, test = (c / c.sum(axis=1, keepdims=True) for c in (report.train, report.test))
        assert np.abs(train - test).max() <= 2 / report.test.sum(axis=1).min() + 0.02
    elif not build_partition(spec).pooled:
        check_same_proportions(report)
    again = draw_deal(spec, participants, seed)[1]
    assert all(np.array_equal(a, b) for a, b in zip(deal.train + deal.test, again.train + again.test))
    assert deal.truth == again.truth and len(deal.truth) == participants


@pytest.mark.parametrize("spec", RULES, ids=lambda spec: spec["partition"])
def test_another_seed_deals_otherwise(spec):
    one, other = draw_deal(spec, 10, 0)[1], draw_deal(spec, 10, 1)[1]
    assert not all(np.array_equal(a, b) for a, b in zip(one.train, other.train))


def test_every_rule_is_covered_here():
    assert {spec["partition"] for spec in RULES} | {"natural"} == set(PARTITIONS)


@some
@given(participants=st.integers(1, 24), seed=seeds, totals=st.lists(st.integers(60, 200), min_size=2, max_size=6))
def test_iid_differs_by_rounding_alone(participants, seed, totals):
    report, _ = draw_deal({"partition": "iid"}, participants, seed, totals)
    check_sound(report)
    assert np.ptp(report.train, axis=0).max() <= 1


@some
@given(n=st.integers(1, 6), participants=st.integers(6, 40), seed=seeds)
def test_n_class_gives_n_classes_and_splits_each_evenly(n, participants, seed):
    report, _ = draw_deal({"partition": "n_class", "n": n}, participants, seed, (500,) * 6)
    check_sound(report, lossless=False)
    assert (np.count_nonzero(report.train, axis=1) == n).all()
    for c in range(6):
        own = report.train[report.train[:, c] > 0, c]
        assert own.sum() in (0, 500)  # unused only if nobody drew it
        assert len(own) == 0 or np.ptp(own) <= 1
    assert report.truth == [None] * participants


@pytest.mark.parametrize(("n", "least", "most"), [(2, 35, 45), (3, 60, 76)])
def test_participants_draw_their_classes_independently(n, least, most):
    """Of 100 draws of 3 of 10 classes, 120 (1 - (119/120)^100) = 68 are different; of 2 classes, 40."""
    different, takers = [], []
    for seed in range(30):
        report, _ = draw_deal({"partition": "n_class", "n": n}, 100, seed, (6000,) * 10)
        different.append(len({tuple(own) for own in report.train > 0}))
        takers.append(np.count_nonzero(report.train, axis=0))
    expected = math.comb(10, n) * (1 - (1 - 1 / math.comb(10, n)) ** 100)
    assert np.mean(different) == pytest.approx(expected, abs=1.5)
    assert least <= min(different) and max(different) <= most
    # How many draw a class is binomial: its deviation is sqrt(100 p (1 - p)), where balanced draws have none.
    assert np.std(takers) == pytest.approx(np.sqrt(100 * n / 10 * (1 - n / 10)), rel=0.15)
    assert np.mean(takers) == 10 * n


def test_a_class_that_nobody_drew_stays_unused():
    report, _ = draw_deal({"partition": "n_class", "n": 1}, 3, 0, (50, 60, 70, 80))
    unused = report.train.sum(axis=0) == 0
    assert unused.any()
    assert report.train_unused == report.train_total[unused].sum()
    assert report.test_unused == report.test_total[unused].sum()


def test_n_class_in_sets_deals_the_same_classes_in_turn():
    report, _ = draw_deal({"partition": "n_class", "n": 3, "sets": 5}, 12, 0, (40, 30, 60, 50, 20))
    # Sets 0 and 1 have three participants, the others two; the last ones go on at class 0.
    has = {0: [0, 1, 2], 1: [1, 2, 3], 2: [2, 3, 4], 3: [0, 3, 4], 4: [0, 1, 4]}
    assert [np.flatnonzero(own).tolist() for own in report.train] == [has[j % 5] for j in range(12)]
    assert report.truth == [j % 5 for j in range(12)]
    # Class 0 is that of sets 0, 3 and 4, of 3 + 2 + 2 participants.
    assert sorted(report.train[report.train[:, 0] > 0, 0]) == [5, 5, 6, 6, 6, 6, 6]
    assert report.train_unused == report.test_unused == 0


def test_fewer_sets_than_classes_leave_classes_unused():
    report, _ = draw_deal({"partition": "n_class", "n": 2, "sets": 3}, 6, 0, (10, 20, 30, 40, 50, 60))
    assert report.train.sum(axis=0).tolist() == [10, 20, 30, 40, 0, 0]


def test_true_groups_are_the_sets_also_where_sizes_are_drawn():
    hosted = DataConfig(20, "n_class:n=2,sets=10", min_samples=1).host(Squares(), "s", 0, 1)
    assert [p.group for p in hosted] == [*range(10), *range(10)]
    assert all(set(p.train.y) == {p.group, (p.group + 1) % 10} for p in hosted)
    spec = {"partition": "quantity", "lo": 10, "hi": 20, "rule": "n_class", "n": 2, "sets": 4}
    assert draw_deal(spec, 8, 0)[0].truth == [0, 1, 2, 3] * 2


def test_sets_are_of_the_classes_that_the_data_has():
    report, _ = draw_deal({"partition": "n_class", "n": 2, "sets": 3}, 3, 0, (10, 0, 20, 30))
    assert [np.flatnonzero(own).tolist() for own in report.train] == [[0, 2], [2, 3], [0, 3]]


@some
@given(
    groups=st.integers(2, 6),
    a_between=st.floats(0.05, 2),
    a_within=st.floats(1, 50),
    each=st.integers(2, 6),
    seed=seeds,
)
def test_cluster_dirichlet_groups_have_30_percent_of_the_mean_size(groups, a_between, a_within, each, seed):
    spec = {"partition": "cluster_dirichlet", "groups": groups, "a_between": a_between, "a_within": a_within}
    try:
        report, _ = draw_deal(spec, groups * each, seed)
    except DataError:
        assume(False)
    check_sound(report)
    assert report.truth == [g for g in range(groups) for _ in range(each)]
    sizes = report.train.sum(axis=1).reshape(groups, each).sum(axis=1)
    # Whole samples may miss the share by half a sample a class.
    assert sizes.min() >= 0.3 * sizes.mean() - 5


def test_cluster_dirichlet_groups_are_alike_inside_and_unlike_outside():
    report, _ = draw_deal({"partition": "cluster_dirichlet", "groups": 5}, 25, 3, (2000,) * 10)
    mixes = report.train / report.train.sum(axis=1, keepdims=True)
    distance = np.abs(mixes[:, None] - mixes[None]).sum(axis=2)
    same = np.equal.outer(report.truth, report.truth)
    assert distance[same].mean() < 0.4 < distance[~same].mean()


@some
@given(sizes=st.lists(st.integers(1, 8), min_size=2, max_size=5), seed=seeds)
def test_skewed_groups_have_the_given_participants(sizes, seed):
    for name in ("cluster_dirichlet", "cluster_n_class"):
        try:
            report, _ = draw_deal({"partition": name, "group_sizes": sizes}, sum(sizes), seed)
        except DataError:
            assume(False)
        assert report.truth == [g for g, size in enumerate(sizes) for _ in range(size)]
        check_sound(report, lossless=name == "cluster_dirichlet")


def test_a_group_of_more_participants_has_more_data():
    shares = []
    for seed in range(30):
        report, _ = draw_deal({"partition": "cluster_dirichlet", "group_sizes": [2, 8], "a_between": 1.0}, 10, seed)
        shares.append(report.train[:2].sum() / report.train.sum())
    assert np.mean(shares) == pytest.approx(0.2, abs=0.06)


@some
@given(groups=st.integers(4, 10), n_group=st.integers(2, 4), each=st.integers(3, 6), seed=seeds)
def test_cluster_n_class_balances_the_classes(groups, n_group, each, seed):
    n_client = n_group - 1
    spec = {"partition": "cluster_n_class", "groups": groups, "n_group": n_group, "n_client": n_client}
    report, _ = draw_deal(spec, groups * each, seed, (800,) * 6)
    check_sound(report)
    assert (np.count_nonzero(report.train, axis=1) == n_client).all()
    of_group = report.train.reshape(groups, each, 6).sum(axis=1) > 0
    assert (of_group.sum(axis=1) == n_group).all()
    assert np.ptp(of_group.sum(axis=0)) <= 1
    for g in range(groups):
        takers = np.count_nonzero(report.train[g * each : (g + 1) * each], axis=0)
        assert np.ptp(takers[takers > 0]) <= 1


def test_cluster_n_class_reports_classes_that_no_group_has():
    report, _ = draw_deal({"partition": "cluster_n_class", "groups": 2}, 6, 0)
    assert report.train_unused == 4 * 600 and report.test_unused == 4 * 120


@some
@given(alpha=st.floats(0.01, 100), participants=st.integers(2, 30), seed=seeds)
def test_lda_gives_everyone_the_same_size(alpha, participants, seed):
    report, _ = draw_deal({"partition": "lda", "alpha": alpha}, participants, seed, (300,) * 8)
    check_sound(report, lossless=False)
    assert (report.train.sum(axis=1) == 2400 // participants).all()
    assert len(set(report.test.sum(axis=1))) == 1
    assert report.train_unused == 2400 % participants


def test_lda_alpha_sets_the_unevenness():
    spread = []
    for alpha in (0.1, 1, 1000):
        report, _ = draw_deal({"partition": "lda", "alpha": alpha}, 20, 0)
        spread.append((report.train / report.train.sum(axis=1, keepdims=True)).max(axis=1).mean())
    assert spread[0] > 0.45 > spread[1] > 0.2 > spread[2]


@some
@given(each=st.integers(2, 8), seed=seeds)
def test_tiers_are_blocks_of_equal_sizes(each, seed):
    report, _ = draw_deal({"partition": "heterogeneity_tiers"}, 4 * each, seed)
    assert report.truth == [t for t in range(4) for _ in range(each)]
    assert len(set(report.train.sum(axis=1))) == 1


def test_tiers_go_from_even_to_uneven():
    report, _ = draw_deal({"partition": "heterogeneity_tiers"}, 40, 0)
    spread = (report.train / report.train.sum(axis=1, keepdims=True)).std(axis=1).reshape(4, 10).mean(axis=1)
    assert (np.diff(spread) > 0).all()


@some
@given(groups=st.integers(1, 5), alpha=st.floats(0.05, 20), participants=st.integers(5, 40), seed=seeds)
def test_class_groups_truth_is_the_largest_group(groups, alpha, participants, seed):
    spec = {"partition": "class_groups", "groups": groups, "alpha": alpha}
    try:
        report, _ = draw_deal(spec, participants, seed, min_samples=4)
    except DataError:
        assume(False)
    check_sound(report)
    division = np.arange(10) * groups // 10
    sums = np.stack([report.train[:, division == g].sum(axis=1) for g in range(groups)], axis=1)
    assert report.truth == sums.argmax(axis=1).tolist()


@some
@given(groups=st.integers(2, 4), each=st.integers(1, 6), seed=seeds)
def test_disjoint_class_groups_stay_with_their_block(groups, each, seed):
    spec = {"partition": "class_groups", "groups": groups, "alpha": 5.0, "disjoint": True}
    report, _ = draw_deal(spec, groups * each, seed)
    check_sound(report)
    division = np.arange(10) * groups // 10
    for own, group in zip(report.train, report.truth):
        assert own[division != group].sum() == 0 and own.sum() > 0


def test_class_groups_can_be_drawn_as_in_the_paper():
    report, _ = draw_deal({"partition": "class_groups", "alpha": 0.05}, 100, 0, (6000,) * 10, min_samples=8)
    check_sound(report)
    assert report.train.sum(axis=1).max() > 50 * report.train.sum(axis=1).min()


@some
@given(lo=st.integers(5, 60), more=st.integers(0, 100), participants=st.integers(2, 20), seed=seeds)
def test_quantity_draws_sizes_and_reports_what_is_left(lo, more, participants, seed):
    spec = {"partition": "quantity", "lo": lo, "hi": lo + more, "rule": "lda", "alpha": 1.0}
    report, _ = draw_deal(spec, participants, seed)
    sizes = report.train.sum(axis=1)
    assert lo <= sizes.min() and sizes.max() <= lo + more
    assert report.train_unused == 6000 - sizes.sum()
    check_sound(report, lossless=False)


@pytest.mark.parametrize("rule", [{"rule": "n_class", "n": 3}, {"rule": {"partition": "n_class", "n": 3}}])
def test_quantity_keeps_the_label_rule(rule):
    report, _ = draw_deal({"partition": "quantity", "lo": 40, "hi": 200, **rule}, 20, 0)
    assert (np.count_nonzero(report.train, axis=1) <= 3).all()
    assert np.ptp(report.train.sum(axis=1)) > 50


def test_quantity_keeps_the_rules_truth_and_alterations():
    spec = {"partition": "quantity", "lo": 40, "hi": 100, "rule": "label_permutation", "groups": 2}
    report, _ = draw_deal(spec, 6, 0)
    assert report.truth == [0, 0, 0, 1, 1, 1]
    samples = Samples(np.zeros((10, 1), np.float32), np.arange(10))
    assert not np.array_equal(build_partition(spec).alter(samples, 1, 10, 0).y, samples.y)
    spec = {"partition": "quantity", "lo": 40, "hi": 100, "rule": "class_groups", "alpha": 10.0}
    assert None not in draw_deal(spec, 6, 0)[0].truth


def test_crossed_groups_are_a_label_group_and_a_device_each():
    rule = build_partition({"partition": "crossed", "scanners": 2, "rule": "label_permutation", "groups": 2})
    assert rule.truth(9) == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    samples = Samples(np.random.default_rng(0).random((10, 1, 8, 8), np.float32), np.arange(10))
    seen = [rule.alter(samples, group, 10, 0) for group in range(4)]
    inner, device = build_partition({"partition": "label_permutation", "groups": 2}), Scanner(groups=2)
    for group, own in enumerate(seen):
        np.testing.assert_array_equal(own.y, inner.alter(samples, group // 2, 10, 0).y)
        np.testing.assert_array_equal(own.x, device.alter(samples, group % 2, 10, 0).x)
    np.testing.assert_array_equal(seen[0].x, samples.x)
    assert not np.allclose(seen[1].x, samples.x)
    sizes = {"partition": "crossed", "scanners": 3, "rule": "cluster_dirichlet", "group_sizes": [2, 6]}
    with pytest.raises(ConfigError, match="scanners = 3 are more than the 2 participants"):
        build_partition(sizes).check(8)


def test_natural_gives_each_participant_one_user():
    rng = np.random.default_rng(0)
    parts = []
    for n in (400, 200):
        key = rng.choice(np.array(["anna", "ben", "cem", "dora", "eva"]), n)
        parts.append(Samples(np.zeros((n, 1), np.float32), rng.integers(0, 3, n), key))
    rule = build_partition({"partition": "natural"})
    everyone = dealt(*parts, rule, 5, 0, 8)
    for samples, deals, before in zip(parts, (everyone.train, everyone.test), (0, 400)):
        users = [set(samples.key[own - before]) for own in deals]
        assert users == [{"anna"}, {"ben"}, {"cem"}, {"dora"}, {"eva"}]
        assert sum(map(len, deals)) == len(samples)
    some_of_them = dealt(*parts, rule, 3, 0, 8)
    report = report_of(*parts, some_of_them, "natural")
    assert report.disjoint and report.train_unused > 0 and report.truth == [None] * 3


def test_natural_passes_over_users_with_too_few_and_says_when_too_few_are_left():
    x, y = np.zeros((21, 1), np.float32), np.zeros(21, np.int64)
    train = Samples(x, y, np.array([1] * 10 + [2] * 10 + [3]))
    test = Samples(x[:3], y[:3], np.array([1, 2, 3]))
    rule = build_partition({"partition": "natural"})
    assert [len(own) for own in dealt(train, test, rule, 2, 0, 8).train] == [10, 10]
    with pytest.raises(DataError, match=r"2 of 3 keys have 8 training samples .* participants = 3"):
        dealt(train, test, rule, 3, 0, 8)
    with pytest.raises(DataError, match="the samples have no key; set key in the data source"):
        dealt(Samples(x, y), Samples(x, y), rule, 2, 0, 8)


@some
@given(
    m=st.integers(1, 12),
    totals=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    share=st.floats(0, 1),
    seed=seeds,
)
def test_filled_draws_the_sizes_from_what_there_is(m, totals, share, seed):
    rng, totals = np.random.default_rng(seed), np.array(totals)
    size = int(share * totals.sum()) // m
    odds = np.maximum(rng.dirichlet(np.full(len(totals), 0.1), size=m), 1e-12)
    counts = filled(odds, np.full(m, size), totals, rng)
    assert (counts.sum(axis=1) == size).all() and (counts.sum(axis=0) <= totals).all() and (counts >= 0).all()


def test_filled_gives_up_where_nothing_wanted_is_left():
    assert filled(np.array([[1.0, 0], [1, 0]]), np.array([3, 3]), np.array([5, 9]), np.random.default_rng(0)) is None


@some
@given(
    counts=st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=6), cut=st.floats(0, 1)
)
def test_apportioned_rows_have_the_size_and_never_grow(counts, cut):
    counts = np.array(counts)
    assume(counts.sum(axis=1).min() > 0)
    size = int(cut * counts.sum(axis=1).min())
    rows = apportioned(counts, size)
    assert (rows.sum(axis=1) == size).all() and (rows <= counts).all() and (rows >= 0).all()


@some
@given(m=st.integers(1, 20), totals=st.lists(st.integers(0, 300), min_size=1, max_size=5), seed=seeds)
def test_rounded_shares_lose_nothing(m, totals, seed):
    shares = np.random.default_rng(seed).dirichlet(np.ones(m), size=len(totals)).T
    counts = rounded(shares, np.array(totals))
    assert (counts >= 0).all() and (counts.sum(axis=0) == totals).all()
    assert np.abs(counts - shares * totals).max() <= 1


@some
@given(items=st.integers(1, 9), times=st.integers(1, 30), seed=seeds, data=st.data())
def test_balanced_choices_use_all_alike(items, times, seed, data):
    n = data.draw(st.integers(1, items))
    chosen = balanced_choices(np.arange(items), n, times, np.random.default_rng(seed))
    assert all(len(set(c)) == n for c in chosen)
    assert np.ptp(np.bincount(np.concatenate(chosen), minlength=items)) <= 1


class Squares(DataSource):
    """Ten classes of squares."""

    def load(self):
        train, test = labelled((60,) * 10)
        return Samples(np.zeros((600, 1, 2, 2), np.uint8), train.y), Samples(np.zeros((120, 1, 2, 2), np.uint8), test.y)


@some
@given(sites=st.integers(1, 7), seed=seeds, index=st.integers(0, len(RULES) - 1))
def test_who_has_what_does_not_depend_on_the_number_of_sites(sites, seed, index):
    spec = RULES[index]
    config = DataConfig(9, spec, seed, 1)
    try:
        together = config.host(Squares(), "all", 0, 1)
    except DataError:
        assume(False)
    apart = [hosted for i in range(sites) for hosted in config.host(Squares(), f"site-{i}", i, sites)]
    assert [p.name for p in apart] == [p.name for p in together] == [f"p{i}" for i in range(9)]
    for one, other in zip(apart, together):
        assert one.group == other.group
        assert np.array_equal(one.train.y, other.train.y) and np.array_equal(one.test.y, other.test.y)


def test_partition_is_the_deal_without_the_truth():
    train, test = labelled((50,) * 4)
    rule = build_partition({"partition": "dirichlet", "alpha": 1.0})
    deal = dealt(train, test, rule, 5, 0, 1)
    mine, tests = deal.train, deal.test
    deal = dealt(train, test, rule, 5, 0, 1)
    assert all(np.array_equal(a, b) for a, b in zip(mine + tests, deal.train + deal.test))


def test_the_same_deal_in_every_release():
    """Published runs must stay repeatable: the first participant's labels under a few rules and seed 7."""
    found = {spec["partition"]: draw_deal(spec, 10, 7)[0].train[0].tolist() for spec in RULES[:4]}
    assert found == SEED_7


SEED_7 = {
    "iid": [60] * 10,
    "dirichlet": [124, 3, 53, 2, 42, 259, 0, 1, 125, 49],
    "n_class": [0, 0, 0, 0, 150, 0, 300, 200, 0, 0],
    "cluster_dirichlet": [213, 0, 6, 0, 7, 9, 1, 0, 1, 134],
}


REFUSED = [
    ({"partition": "nope"}, "partition 'nope' is unknown; there are iid"),
    ({"partition": "dirichlet", "beta": 1}, "partition dirichlet: unknown setting 'beta'; it has: alpha"),
    ({"partition": "dirichlet", "alpha": 0}, "alpha = 0 should be > 0"),
    ({"partition": "dirichlet", "alpha": "x"}, "alpha = 'x' should be float"),
    ({"partition": "lda", "alpha": float("nan")}, "alpha = nan should be > 0"),
    ({"partition": "class_groups", "alpha": -1.0}, "alpha = -1.0 should be > 0"),
    ({"partition": "cluster_dirichlet", "a_within": 0.0}, "a_within = 0.0 should be > 0"),
    ({"partition": "heterogeneity_tiers", "alphas": []}, r"alphas = \[\] should be a list of finite numbers"),
    (
        {"partition": "heterogeneity_tiers", "alphas": [1, "a"]},
        r"alphas = \[1, .a.\] should be a list of finite numbers",
    ),
    ({"partition": "heterogeneity_tiers", "alphas": [1.0] * 21}, "21 tiers need at least as many participants, not 20"),
    ({"partition": "n_class", "n": 0}, "n = 0 should be >= 1"),
    ({"partition": "n_class", "n": 11}, "n = 11 is more than the data's 10 classes"),
    ({"partition": "n_class", "sets": 0}, "sets = 0 should be >= 1"),
    ({"partition": "n_class", "sets": 11}, "sets = 11 should be <= 10: of n = 2 classes in a row, the data's 10 cl"),
    ({"partition": "n_class", "n": 10, "sets": 2}, "sets = 2 should be <= 1: of n = 10 classes in a row"),
    ({"partition": "n_class", "sets": 21}, "sets = 21 need at least as many participants, not 20"),
    ({"partition": "cluster_n_class", "n_client": 4}, "n_client = 4 should be between 1 and n_group = 3"),
    ({"partition": "cluster_n_class", "n_group": 11}, "n_group = 11 is more than the data's 10 classes"),
    ({"partition": "cluster_n_class", "groups": 21}, "groups = 21 need at least as many participants, not 20"),
    ({"partition": "cluster_dirichlet", "group_sizes": [3, 4]}, r"group_sizes = \[3, 4\] add up to 7, not to"),
    ({"partition": "cluster_dirichlet", "group_sizes": [0, 20]}, "group_sizes = .* should be whole numbers >= 1"),
    ({"partition": "cluster_dirichlet", "group_sizes": 20}, "group_sizes = 20 should be whole numbers >= 1"),
    ({"partition": "class_groups", "groups": 11}, "groups = 11 is more than the data's 10 classes"),
    ({"partition": "quantity", "lo": 9, "hi": 3}, "lo = 9, hi = 3 should be 1 <= lo <= hi"),
    ({"partition": "quantity", "rule": "natural"}, "rule = 'natural' is not a rule for labels"),
    ({"partition": "quantity", "rule": "quantity"}, "rule = 'quantity' is not a rule for labels"),
    ({"partition": "quantity", "rule": "nope"}, "partition 'nope' is unknown"),
    ({"partition": "quantity", "rule": 3}, "rule = 3 should be a rule's name"),
    ({"partition": "quantity", "rule": "dirichlet", "n": 3}, "partition dirichlet: unknown setting 'n'"),
    ({"partition": "crossed", "scanners": 0}, "scanners = 0 should be >= 1"),
    ({"partition": "crossed", "rule": "dirichlet"}, "rule = 'dirichlet' has no groups by labels"),
    ({"partition": "crossed", "rule": "scanner"}, "rule = 'scanner' has no groups by labels"),
    ({"partition": "crossed", "rule": "crossed"}, "rule = 'crossed' is not a rule for labels"),
    ({"partition": "scanner", "groups": 0}, "groups = 0 should be >= 1"),
]


@pytest.mark.parametrize(("spec", "message"), REFUSED, ids=lambda v: str(v)[:40])
def test_refused_settings(spec, message):
    with pytest.raises(ConfigError, match=message):
        draw_deal(spec, 20, 0)


def test_too_few_samples_are_refused():
    with pytest.raises(DataError, match=r"no draw of 1 gave each of 50 participants 200 .* \(best: 1\d\d\); take"):
        draw_deal({"partition": "iid"}, 50, 0, min_samples=200)
    with pytest.raises(
        DataError, match="50 participants of lo = 500 training samples or more need 25000, the data has 6000"
    ):
        draw_deal({"partition": "quantity", "lo": 500, "hi": 600}, 50, 0)
    with pytest.raises(DataError, match="the drawn sizes may be more than the rule's classes hold"):
        draw_deal({"partition": "quantity", "lo": 90, "hi": 120, "rule": "n_class", "n": 1}, 60, 0)


@pytest.mark.parametrize(
    "spec",
    [
        {"partition": "iid"},
        {"partition": "dirichlet", "alpha": 1.0},
        {"partition": "n_class", "n": 2},
        {"partition": "cluster_dirichlet", "groups": 2},
        {"partition": "cluster_n_class", "groups": 2},
        {"partition": "class_groups", "groups": 3, "alpha": 1.0},
        {"partition": "lda", "alpha": 1.0},
        {"partition": "quantity", "lo": 10, "hi": 40},
    ],
    ids=lambda spec: spec["partition"],
)
def test_a_class_that_is_only_in_one_split_is_no_trouble(spec):
    train, _ = labelled((90, 90, 90))
    _, test = labelled((90, 90, 0, 90))
    deal = dealt(train, test, build_partition(spec), 4, 1, 1)
    assert all(len(own) for own in deal.train + deal.test)
    assert report_of(train, test, deal, "").disjoint


def test_fewer_samples_of_a_class_than_participants():
    """Rounding class by class would leave the same few without anything."""
    report, _ = draw_deal({"partition": "iid"}, 20, 0, (20,) * 10)
    assert report.test.sum(axis=1).tolist() == [2] * 20


@some
@given(m=st.integers(1, 20), totals=st.lists(st.integers(0, 30), min_size=1, max_size=6), seed=seeds)
def test_evened_shares_lose_nothing_and_are_fair(m, totals, seed):
    totals = np.array(totals)
    shares = np.random.default_rng(seed).dirichlet(np.ones(m), size=len(totals)).T
    counts = evened(shares, totals)
    assert (counts >= 0).all() and (counts.sum(axis=0) == totals).all()
    assert np.abs(counts - shares * totals).max() < 1
    equal = evened(np.full((m, len(totals)), 1 / m), totals)
    assert np.ptp(equal.sum(axis=1)) <= 1
