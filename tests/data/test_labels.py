# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The forms of labels: how they are told apart, what is refused, and by which strata they are dealt out and split."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cfl_flare.core.errors import DataError
from cfl_flare.data import DataConfig, DataSource, ParticipantData, Samples, build_partition, dealt, report_of
from cfl_flare.data.groups import Scanner
from cfl_flare.data.labels import FORMS, check_labels, form_of, of_one_form, outputs_for, strata
from cfl_flare.data.loading import checked
from cfl_flare.data.splits import draw_indicator, split_by_class
from cfl_flare.data.summary import DataSummary

MASKS = np.zeros((3, 2, 2), np.uint8)
MASKS[1] = [[0, 2], [2, 1]]
MASKS[2] = [[0, 0], [0, 1]]
LABELS = {
    "class": np.array([0, 2, 1]),
    "several": np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1]], np.uint8),
    "number": np.array([0.0, 1.0, 2.0]),
    "time": np.array([[3.5, 1], [1.0, 0], [2.0, 1]]),
    "mask": MASKS,
}


def of_length(form: str, n: int, seed: int = 0) -> np.ndarray:
    """So many labels of a form."""
    rng = np.random.default_rng(seed)
    return {
        "class": rng.integers(0, 4, n),
        "several": (rng.random((n, 3)) < 0.4).astype(np.uint8),
        "number": rng.normal(50, 10, n),
        "time": np.stack((rng.exponential(5, n) + 0.01, rng.integers(0, 2, n)), axis=1),
        "mask": rng.integers(0, 3, (n, 4, 4)).astype(np.uint8) * (rng.random((n, 1, 1)) < 0.8),
    }[form]


def make_formed_samples(form: str, n: int, seed: int = 0) -> Samples:
    """Samples that are told apart by their first pixel."""
    x = np.zeros((n, 1, 4, 4), np.float32)
    x[:, 0, 0, 0] = np.arange(n) / n
    return Samples(x, of_length(form, n, seed), np.arange(n) % 4)


# What form labels have


@pytest.mark.parametrize("form", FORMS)
def test_the_form_follows_from_dtype_and_shape(form):
    y = LABELS[form]
    assert form_of(y, "here") == form
    check_labels(y, np.zeros((3, 1, 2, 2), np.uint8), "here")


def test_forms_that_are_close_to_each_other():
    assert form_of(np.array([0, -1, 2]), "") == "number"
    assert form_of(np.array([True, False]), "") == "class"
    assert form_of(np.array([[True], [False]]), "") == "several"
    assert form_of(np.zeros((3, 2), int), "") == "several" and form_of(np.ones((3, 2)), "") == "time"
    assert form_of(np.array([0.0, 1.0], np.float16), "") == "number"
    assert form_of(np.zeros((0, 4, 4), np.uint8), "") == "mask"


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            np.array(["a", "b", "c"]),
            r"labels have dtype <U1 and shape \(3,\); give class numbers or numbers to predict",
        ),
        (
            np.zeros((3, 5)),
            r"labels have dtype float64 and shape \(3, 5\); give .* times and events as floats \(n, 2\)",
        ),
        (np.zeros((3, 0), int), r"labels have dtype int64 and shape \(3, 0\); give"),
        (np.zeros((3, 2, 2)), r"labels have dtype float64 and shape \(3, 2, 2\); give .* masks \(n, h, w\) of class"),
        (np.zeros((3, 1, 2, 2), int), r"labels have dtype int64 and shape \(3, 1, 2, 2\); give"),
        (np.zeros(3, complex), r"labels have dtype complex128 and shape \(3,\); give"),
        (
            np.array([[0, 1], [1, 0], [1, 4]]),
            r"labels of shape \(3, 2\) say which of 2 findings .* sample 2 has 4; write",
        ),
        (
            np.array([[0, 1], [-1, 0], [1, 4]]),
            "labels of shape .* sample 1 has -1; write 1 for a finding that is there and 0 for one",
        ),
        (
            np.array([0, 10**6, 1]),
            "label 1000000 is not a class number; number the classes from 0, and give numbers to",
        ),
        (MASKS.astype(int) - 1, "a mask has the label -1, below 0; number the classes from 1, the rest is 0"),
        (MASKS.astype(int) * 10**6, "label 2000000 is not a class number"),
        (
            np.zeros((3, 2, 3), int),
            r"masks are 2x3, and samples have shape \(1, 2, 2\); give each image .* a mask of its",
        ),
        (np.array([0.5, np.nan, 1]), r"sample 1 has the label nan; labels are finite numbers up to 1e\+16"),
        (np.array([0.5, 1, -1e20]), r"sample 2 has the label -1e\+20; labels are finite"),
        (np.array([[1, 0.0], [np.inf, 1], [2, 1]]), r"sample 1 has the label \[inf +1\.\]; labels are finite"),
        (np.array([[1, 0.0], [2, 1], [0, 1]]), r"sample 2 has the time 0\.0; times are above 0"),
        (
            np.array([[1, 0.0], [2, 0.5], [3, 1]]),
            r"sample 1 has the event 0\.5; write 1 where it happened, 0 where the",
        ),
    ],
)
def test_unsound_labels(y, message):
    with pytest.raises(DataError, match=f"^here: {message}"):
        Samples(np.zeros((3, 1, 2, 2), np.uint8), y).check("here")


def test_masks_belong_to_images():
    with pytest.raises(DataError, match=r"masks are 2x2, and samples have shape \(2, 2\); give each image"):
        check_labels(MASKS, np.zeros((3, 2, 2), np.uint8), "here")


# Both splits


def test_whole_numbers_beside_numbers_are_numbers():
    for train, test in (([0, 1, 2], [0, -1]), ([-3, 1], [5, 6]), ([0.5, 1], [1, 2])):
        both = of_one_form(np.array(train), np.array(test), "here")
        assert [y.dtype for y in both] == [np.float64] * 2
        assert [y.tolist() for y in both] == [train, test]
    assert of_one_form(np.zeros(2, np.float32), np.zeros(2, int), "")[0].dtype == np.float32


def test_bools_are_bytes_and_other_labels_stay_as_they_are():
    assert of_one_form(np.ones((2, 3), bool), np.ones((1, 3), bool), "")[0].dtype == np.uint8
    for y in LABELS.values():
        train, test = of_one_form(y, y, "here")
        assert train is y and test is y


def test_splits_with_different_labels():
    x = np.zeros((3, 1, 2, 2), np.uint8)
    with pytest.raises(
        DataError, match=r"^data: training labels are masks \(3, 2, 2\), test labels class numbers \(3,\); "
    ):
        checked((Samples(x, LABELS["mask"]), Samples(x, LABELS["class"])), "data")
    with pytest.raises(
        DataError, match=r"labels have shape \(3, 3\), test labels \(3, 2\); give both the same findings"
    ):
        checked((Samples(x, LABELS["several"]), Samples(x, LABELS["several"][:, :2])), "data")


def test_joining_keeps_the_form():
    for form, y in LABELS.items():
        part = Samples(np.zeros((3, 1, 2, 2), np.uint8), y)
        both = part.joined(part.take(np.array([2])))
        assert len(both) == 4 and form_of(both.y, "") == form and both.y.dtype == y.dtype
    mixed = Samples(np.zeros((2, 1)), np.array([1, 2])).joined(Samples(np.zeros((1, 1)), np.array([0.5])))
    assert mixed.y.tolist() == [1, 2, 0.5]


@pytest.mark.parametrize(("form", "outputs"), [("class", 3), ("several", 3), ("number", 1), ("time", 1), ("mask", 3)])
def test_outputs(form, outputs):
    y = LABELS[form]
    assert outputs_for(y, y) == outputs
    assert outputs_for(y[:1], y) == outputs  # either split may have the last class


# Strata


@pytest.mark.parametrize(
    ("form", "expected"),
    [("class", [0, 2, 1]), ("several", [0, 2, 1]), ("time", [1, 0, 1]), ("mask", [0, 2, 1])],
)
def test_strata(form, expected):
    found = strata(LABELS[form])
    assert found.tolist() == expected and found.dtype == np.int64


def test_numbers_are_dealt_by_fifths_of_the_training_labels():
    train = np.arange(10.0)[::-1]
    assert strata(train).tolist() == [4, 4, 3, 3, 2, 2, 1, 1, 0, 0]
    assert strata(np.array([-7, 1.9, 2, 5, 99]), train).tolist() == [0, 0, 1, 2, 4]
    assert strata(np.array([0.0] * 6 + [4] * 4)).tolist() == [0] * 6 + [1] * 4
    assert strata(np.full(6, 2.5)).tolist() == [0] * 6


@settings(deadline=None, max_examples=50)
@given(
    train=arrays(np.float64, st.integers(1, 40), elements=st.integers(-9, 9)),
    test=arrays(np.float64, st.integers(1, 40), elements=st.integers(-99, 99)),
)
def test_both_splits_have_the_same_edges(train, test):
    own, other = strata(train), strata(test, train)
    assert own.min() == 0 and other.min() >= 0 and max(own.max(), other.max()) < 5
    assert set(own) == set(range(own.max() + 1))  # none is empty
    values, found = np.concatenate((train, test)), np.concatenate((own, other))
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    for value in np.unique(values):
        assert len(set(found[values == value])) == 1


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None, max_examples=20)
@given(n=st.integers(20, 80), share=st.floats(0.1, 0.6), seed=st.integers(0, 99))
def test_a_split_keeps_each_stratum_s_share(form, n, share, seed):
    whole = replace(make_formed_samples(form, n, seed), key=None)
    train, test = split_by_class(whole, share, seed)
    assert sorted(np.concatenate((train.x, test.x))[:, 0, 0, 0]) == sorted(whole.x[:, 0, 0, 0])
    totals = np.bincount(strata(whole.y))
    tested = np.bincount(strata(test.y, whole.y), minlength=len(totals)) if len(test) else np.zeros_like(totals)
    assert np.abs(tested - totals * share).max() <= 0.5 + 1e-9


# Partitions


RULES = [
    "iid",
    "dirichlet:alpha=0.5",
    "natural",
    "class_groups:groups=2,alpha=1.0",
    "quantity:lo=5,hi=20,rule=iid",
    "scanner:groups=2",
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 99))
def test_every_sample_is_dealt_once(form, rule, seed):
    train, test = make_formed_samples(form, 200, seed), make_formed_samples(form, 80, seed + 1)
    deal = dealt(train, test, build_partition(rule), 4, seed, 4)
    times = np.bincount(np.concatenate((*deal.train, *deal.test)), minlength=280)
    assert times.max() == 1 and (times.min() == 1 or rule.startswith("quantity"))
    report = report_of(train, test, deal, rule)
    assert report.disjoint and report.train.shape[1] == len(report.train_total) == len(report.test_total)
    assert report.train_total.sum() == 200 and report.test_total.sum() == 80
    if not rule.startswith("class_groups"):  # which deals both splits together
        assert report.train.sum() + report.train_unused == 200 and report.test.sum() + report.test_unused == 80


@pytest.mark.parametrize("form", FORMS)
def test_iid_gives_everyone_the_same_of_each_stratum(form):
    train, test = make_formed_samples(form, 400), make_formed_samples(form, 100, 1)
    report = report_of(train, test, dealt(train, test, build_partition("iid"), 4, 0, 8), "iid")
    for own, totals in ((report.train, report.train_total), (report.test, report.test_total)):
        assert np.abs(own - totals / 4).max() <= 1


class FormedLabels(DataSource):
    """Labels of one form."""

    def __init__(self, form: str):
        self.form = form

    def load(self) -> tuple[Samples, Samples]:
        return make_formed_samples(self.form, 120), make_formed_samples(self.form, 40, 1)


@pytest.mark.parametrize("form", FORMS)
def test_participants_have_their_labels(form):
    hosted = DataConfig(4, "dirichlet:alpha=5.0", min_samples=4).host(FormedLabels(form), "s", 0, 1)
    assert sum(len(p.train) for p in hosted) == 120 and sum(len(p.test) for p in hosted) == 40
    every = make_formed_samples(form, 120)
    for one in hosted:
        which = np.round((one.train.x[:, 0, 0, 0] + 1) / 2 * 120).astype(int)
        assert np.array_equal(one.train.y, every.y[which]) and one.train.y.dtype == every.y.dtype


@pytest.mark.parametrize("form", [form for form in FORMS if form != "class"])
def test_what_needs_classes_says_so(form):
    for rule in ("label_permutation", "crossed:rule=label_permutation", "quantity:rule=label_permutation"):
        with pytest.raises(
            DataError, match=f"label_permutation: labels are {FORMS[form]}, and it exchanges class numbers; "
        ):
            DataConfig(6, rule).host(FormedLabels(form), "s", 0, 1)
    message = f"labels are {FORMS[form]}, and indicator_samples = 2 are drawn of each class; name labels that are class"
    with pytest.raises(DataError, match=f"^data: {message}"):
        DataConfig(6, "iid", indicator_samples=2).host(FormedLabels(form), "s", 0, 1)
    assert not len(draw_indicator(of_length(form, 9), 0, 0, "data"))


def test_masks_are_turned_with_their_images():
    masks = np.zeros((4, 16, 16), np.uint8)
    masks[:, 2:7, 3:14] = 1
    masks[:, 10:12, 4:6] = 3
    images = Samples((masks[:, None] * 80).astype(np.uint8), masks)
    off = {"contrast": False, "inversion": False, "blur": False}
    for group in range(4):
        seen = Scanner(4, **off).alter(images, group, 4, seed=0)
        assert seen.y.dtype == np.uint8 and seen.y.shape == masks.shape and set(np.unique(seen.y)) == {0, 1, 3}
        assert np.abs(seen.x[:, 0] / 80 - seen.y).mean() < 0.15  # but for what is between pixels
    graded = Scanner(2, rotation=False).alter(images, 1, 4, seed=0)
    assert graded.y is masks


# Summaries


def summary(y: np.ndarray, test: np.ndarray) -> DataSummary:
    own, other = (np.arange(16.0 * len(v), dtype=np.float32).reshape(-1, 1, 4, 4) / 999 for v in (y, test))
    return DataSummary.of(ParticipantData("p", Samples(own, y), Samples(other, test)))


@pytest.mark.parametrize(
    ("y", "test", "says"),
    [
        ([0, 1, 1], [1], "by class 0: 1+0, 1: 2+1"),
        ([[0, 1], [1, 1], [0, 0]], [[1, 0]], "by finding 0: 1+1, 1: 2+0"),
        ([18.0, 60.25, 97.0], [50.0], "labels of mean 58.42, from 18 to 97"),
        ([[2.0, 1], [4, 0], [6, 0]], [[1.0, 1]], "by event censored: 2+0, event: 1+1; times of mean 4, from 2 to 6"),
        (np.eye(4, dtype=int)[None].repeat(3, 0), np.zeros((1, 4, 4), int), "with pixels of class 0: 3+1, 1: 3+0"),
    ],
)
def test_one_line_for_each_form(y, test, says):
    found = summary(np.array(y), np.array(test))
    assert found.line == f"3 training and 1 test samples of 1x4x4, {says}"
    assert found.remarks == []


@pytest.mark.parametrize(
    ("y", "test", "says"),
    [
        ([[0, 1], [0, 1]], [[1, 0]], "test labels 0 never occur in training; check how the two were split"),
        ([[0, 0], [0, 0]], [[0, 0]], "no training sample has a finding; check the labels"),
        ([2.5, 2.5], [1.0], "all training samples have label 2.5; check the labels"),
        ([[2.0, 0], [4, 0]], [[1.0, 1]], "no training sample has the event; check the column of events"),
        (np.zeros((2, 4, 4), int), np.zeros((1, 4, 4), int), "no training mask has a class besides the background; "),
        (np.ones((2, 4, 4), int), np.full((1, 4, 4), 2), "test labels 2 never occur in training; "),
    ],
)
def test_labels_from_which_little_can_be_learned(y, test, says):
    (found,) = summary(np.array(y), np.array(test)).remarks
    assert found.startswith(says)
