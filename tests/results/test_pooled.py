# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measures and curves of all participants' samples, from counts: by hand, by scikit-learn, and in ``curves.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import f1_score, roc_auc_score, roc_curve

from cfl_flare.core.errors import ConfigError
from cfl_flare.data import Digits
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.extensions import present_results
from cfl_flare.methods import Participant
from cfl_flare.results.curves import CURVES, Curve, Curves, Rates, Scored, load_curves, save_curves
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.pooled import (
    GROUPS,
    POINTS,
    RATES,
    area,
    auroc_of_counts,
    bounded_sum,
    cells,
    macro_f1_of_counts,
    mean_roc,
    reliability,
    roc,
    thinned_roc,
    with_pooled,
)
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.tables import results_table
from cfl_flare.training.histograms import compute_log_odds, count_scores
from cfl_flare.training.learner import Learner
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import build_from_spec, run_loop
from tests.helpers.play import DATA, MODEL

PEOPLE = {name: Participant(name, f"site-{name}", 10) for name in "abcd"}
GOOD, BAD = np.array([[[4, 0], [0, 4]]], np.int32), np.array([[[0, 4], [4, 0]]], np.int32)
ONE_CLASS = np.array([[[5, 3], [0, 0]]], np.int32)


def append_decided(counts: np.ndarray, threshold: int = 1) -> np.ndarray:
    """The same with decisions: samples have a class from the second bin on, or from another one."""
    return np.concatenate((counts, counts[..., threshold:].sum(axis=2, keepdims=True)), axis=2)


def make_loss_metrics(names: str = "abcd", clusters: Mapping[str, object] | None = None) -> RoundMetrics:
    record = {"round": 0, "cluster_sizes": [], "clusters": dict(clusters or {})}
    return RoundMetrics(record, {name: {"served_loss": 1.0} for name in names})


def test_ties_count_half_and_classes_that_are_not_both_there_do_not_count():
    assert auroc_of_counts(GOOD) == 1 and auroc_of_counts(BAD) == 0
    assert auroc_of_counts(np.array([[[4, 0], [4, 0]]])) == 0.5
    assert auroc_of_counts(ONE_CLASS) is None
    assert auroc_of_counts(np.concatenate([GOOD, ONE_CLASS])) == 1
    assert auroc_of_counts(np.concatenate([GOOD, BAD, ONE_CLASS])) == 0.5


def test_nothing_is_recorded_where_it_is_not_defined():
    for counts in ({}, {"a": None}):
        found = with_pooled(make_loss_metrics(), counts, PEOPLE, {})
        assert found.record == make_loss_metrics().record and found.steady == {}
    assert "pooled_auroc" not in with_pooled(make_loss_metrics(), {"a": append_decided(ONE_CLASS)}, PEOPLE, {}).record


def test_participants_of_one_class_each_have_a_pooled_one_together():
    positive = np.array([[[0, 0], [1, 3]]], np.int32)
    found = with_pooled(
        make_loss_metrics("ab"), {"a": append_decided(ONE_CLASS), "b": append_decided(positive)}, PEOPLE, {}
    )
    labels, scores = [0] * 8 + [1] * 4, [0] * 5 + [1] * 3 + [0] + [1] * 3
    assert found.record["pooled_auroc"] == pytest.approx(roc_auc_score(labels, scores))
    assert found.record["pooled_macro_f1"] == pytest.approx(f1_score(labels, scores, average="macro"))
    assert "defined" not in found.record


def test_the_macro_f1_of_unequal_participants_is_that_of_their_labels_together():
    """By hand: a has 6 samples and no class 2, b 2; nobody has class 3, and nobody is predicted to have it."""
    labels = {"a": [0, 0, 0, 1, 1, 1], "b": [2, 0]}
    decisions = {"a": [0, 0, 1, 1, 1, 2], "b": [2, 2]}
    counts = {}
    for name in labels:
        outputs = torch.eye(4)[decisions[name]]
        counts[name] = count_scores(outputs, torch.tensor(labels[name]), "softmax", 10)
    found = with_pooled(make_loss_metrics("ab"), counts, PEOPLE, {}).record["pooled_macro_f1"]
    assert found == pytest.approx((2 * 2 / (4 + 2) + 2 * 2 / (3 + 3) + 2 * 1 / (1 + 3)) / 3)
    assert found == pytest.approx(f1_score(*([*of["a"], *of["b"]] for of in (labels, decisions)), average="macro"))


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_the_macro_f1_of_a_finding_is_that_of_both_classes_at_the_task_s_threshold(threshold):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 50)
    outputs = torch.from_numpy(2 * rng.standard_normal(50) + labels)[:, None]
    counts = count_scores(outputs, torch.from_numpy(labels), "sigmoid", 10, threshold)
    said = (outputs[:, 0].sigmoid() >= threshold).numpy()
    assert macro_f1_of_counts(counts) == pytest.approx(f1_score(labels, said, average="macro"))


def test_clusters_have_their_own_and_who_sent_none_is_counted():
    clusters = {"cluster-0": {"served_loss": 1.0}, "cluster-1": {"served_loss": 1.0}, "cluster-2": {}}
    counts = {"a": append_decided(GOOD), "b": None, "c": append_decided(BAD), "d": append_decided(BAD)}
    before = make_loss_metrics(clusters=clusters)
    found = with_pooled(before, counts, PEOPLE, {"a": 0, "b": 0, "c": 1, "d": 1})
    assert found.record["clusters"]["cluster-0"] == {"served_loss": 1.0, "pooled_auroc": 1.0, "pooled_macro_f1": 1.0}
    assert found.record["clusters"]["cluster-1"]["pooled_auroc"] == 0
    assert found.record["clusters"]["cluster-2"] == {}
    assert found.record["defined"] == {"pooled_auroc": 3, "pooled_macro_f1": 3}
    assert found.scalars()["cluster-0/pooled_auroc"] == 1
    assert before.record["clusters"]["cluster-0"] == {"served_loss": 1.0}  # it is not changed


def test_a_site_that_says_that_it_has_10_to_the_9_samples_decides_with_its_share_alone():
    huge = append_decided(BAD.astype(np.int64) * (10**9 // 8))
    counts = {**dict.fromkeys("abc", append_decided(GOOD)), "d": huge}
    found = with_pooled(make_loss_metrics(), counts, PEOPLE, {}, 1 / 3)
    for name in ("pooled_auroc", "pooled_macro_f1"):
        assert found.record[name] > 0.5  # in the record, too
        assert found.deciding()[name] > 0.6
    free = with_pooled(make_loss_metrics(), counts, PEOPLE, {}, None)
    assert free.deciding()["pooled_auroc"] == free.record["pooled_auroc"]
    sites = {name: "one" if name in "cd" else name for name in PEOPLE}
    together = bounded_sum({**counts, "c": append_decided(BAD)}, sites, 1 / 3)
    assert together[0, :, :-1].sum() == pytest.approx(24)  # two participants of one site weigh as each other site


def run_scored(folder: Path, method: str, **more) -> None:
    run_loop(
        method=build_from_spec(method),
        model=MODEL,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(3, **more),
        training=TrainSettings(lr=0.1, local_steps=10, score_bins=200, measures=("auroc",)),
        folder=folder,
    )


@pytest.mark.parametrize("method", ["fedavg", "wecfl:k=2", "ifca-cam:k=2,warmup=1"])
def test_of_a_trained_model_it_is_near_the_exact_one(tmp_path, monkeypatch, method):
    seen: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    counted = Learner.score_counts

    def watched(self: Learner, outputs: torch.Tensor) -> np.ndarray | None:
        seen.setdefault(self.round, []).append((outputs, self._test.y))
        return counted(self, outputs)

    monkeypatch.setattr(Learner, "score_counts", watched)
    run_scored(tmp_path, method, key_metric="pooled_auroc")
    found = load_run(tmp_path)
    assert len(found.rounds) == 3
    for record in found.rounds:
        parts = seen[record["round"] + 1]
        assert len(parts) == 6
        odds = torch.cat([compute_log_odds(outputs, "softmax") for outputs, _ in parts]).numpy()
        labels = np.eye(10)[torch.cat([y for _, y in parts]).numpy()]
        exact = roc_auc_score(labels, odds, average="macro")
        assert record["pooled_auroc"] == pytest.approx(exact, abs=0.002)
        decisions = torch.cat([outputs.argmax(1) for outputs, _ in parts]).numpy()
        f1 = f1_score(labels.argmax(1), decisions, average="macro")
        assert record["pooled_macro_f1"] == pytest.approx(f1)
    values = [record["pooled_auroc"] for record in found.rounds]
    assert found.summary["final"]["pooled_auroc"] == values[-1] > 0.7
    best = {"metric": "pooled_auroc", "mode": "max", "round": int(np.argmax(values)), "value": max(values)}
    assert found.summary["best"] == best
    shown = {str(column.header): list(column.cells) for column in results_table([found]).columns}
    assert shown["pooled AUROC"] == [f"{values[-1]:.3f}"]
    assert shown["pooled macro-F1"] == [f"{f1:.3f}"]
    assert present_results(tmp_path) == []


def test_histograms_change_nothing_else(tmp_path):
    run_scored(tmp_path / "with", "wecfl:k=2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "score_counts", lambda self, outputs: None)
        run_scored(tmp_path / "without", "wecfl:k=2")
    kept = [load_run(tmp_path / name).rounds for name in ("with", "without")]
    for one, other in zip(*kept):
        for record in (one, other):
            record.pop("seconds")
            for own in (record, *record["clusters"].values()):
                own.pop("pooled_auroc", None), own.pop("pooled_macro_f1", None)
        size = 6 * 10 * 2 * 201 * 4
        assert one.pop("bytes_up") == other.pop("bytes_up") + size * (1 + (one["round"] == 2)) * (one["round"] > 0)
        assert json.dumps(one) == json.dumps(other)


COUNTS = arrays(np.int64, st.tuples(st.integers(1, 4), st.just(2), st.integers(2, 30)), elements=st.integers(0, 6))


def test_two_classes_by_hand():
    """Class 0 is ranked without a mistake; of class 1, all scores are ties."""
    counts = np.array([[[2, 0], [0, 4]], [[5, 0], [1, 0]]])
    found = mean_roc([roc(own) for own in counts])
    # At 0 the first goes up to 1 and the second stays; at 1 both are there: the mean goes 0, 1/2, 1.
    assert found.tolist() == [[0, 0], [0, 0.5], [1, 1]]
    assert area(found) == auroc_of_counts(counts) == (1 + 0.5) / 2


def test_the_mean_of_curves_that_bend_at_different_rates():
    steep = np.array([[0, 0], [0.2, 0.8], [1, 1.0]])
    late = np.array([[0, 0], [0.6, 0.6], [0.6, 1.0], [1, 1.0]])
    found = mean_roc([steep, late])
    expected = [[0, 0], [0.2, 0.5], [0.6, (0.9 + 0.6) / 2], [0.6, (0.9 + 1) / 2], [1, 1]]
    np.testing.assert_allclose(found, expected)
    assert area(found) == pytest.approx((area(steep) + area(late)) / 2)


@given(COUNTS)
def test_the_area_is_the_pooled_auroc(counts):
    both = counts.sum(axis=2).min(axis=1) > 0
    if not both.any():
        assert auroc_of_counts(counts) is None
        return
    found = mean_roc([roc(own) for own in counts[both]])
    assert area(found) == pytest.approx(auroc_of_counts(counts))
    assert found[0].tolist() == [0, 0] and found[-1].tolist() == pytest.approx([1, 1])
    assert (np.diff(found, axis=0) >= -1e-12).all()


def test_the_mean_of_many_classes_in_many_bins_is_bounded():
    """A thousand classes that bend at different rates; the curve is that of a few of them."""
    rng = np.random.default_rng(0)
    curves = [np.column_stack([np.sort(np.append(rng.random(40), (0, 1))), np.linspace(0, 1, 42)]) for _ in range(1000)]
    found = mean_roc(curves)
    assert len(found) <= 2 * RATES
    assert area(found) == pytest.approx(np.mean([area(curve) for curve in curves]), abs=1e-4)


def test_a_curve_of_weighted_counts_may_end_just_below_1():
    short = np.array([[0, 0], [0.5, 0.8], [1 - 2**-53, 1 - 2**-53]])
    found = mean_roc([short, np.array([[0, 0], [1.0, 1]])])
    assert found[-1].tolist() == pytest.approx([1, 1]) and area(found) == pytest.approx((area(short) + 0.5) / 2)


def test_one_class_is_scikit_learn_s_curve():
    rng = np.random.default_rng(0)
    places, labels = rng.integers(0, 40, 500), rng.integers(0, 2, 500)
    counts = np.stack([np.bincount(places[labels == c], minlength=40) for c in (0, 1)])
    x, y, _ = roc_curve(labels, places, drop_intermediate=False)
    np.testing.assert_allclose(roc(counts), np.column_stack([x, y]))


@given(st.integers(POINTS + 1, 3000), st.integers(0, 2**32 - 1))
def test_thinning_keeps_the_ends_and_nearly_the_area(points, seed):
    rng = np.random.default_rng(seed)
    steps = rng.random((points, 2)) * np.where(rng.random((points, 1)) < 0.5, [1, 0], [0, 1])
    curve = np.concatenate([np.zeros((1, 2)), steps.cumsum(axis=0) / steps.sum(axis=0)])
    found = thinned_roc(curve)
    assert len(found) == POINTS and found[0].tolist() == [0, 0] and found[-1].tolist() == pytest.approx([1, 1])
    assert area(found) == pytest.approx(area(curve), abs=0.005)
    few = curve[:: len(curve) // 50][:POINTS]
    assert thinned_roc(few) is few


@given(arrays(np.int64, st.integers(1, 30), elements=st.integers(0, 9)), st.integers(1, 15))
def test_cells_have_enough_samples_unless_all_together_have_too_few(samples, fewest):
    starts = cells(samples, fewest)
    assert starts[0] == 0 and (np.diff(starts) > 0).all()
    held = np.add.reduceat(samples, starts)
    assert held.sum() == samples.sum()
    assert held.min() >= fewest or (len(held) == 1 and samples.sum() < fewest)


def test_groups_of_a_rare_class_by_hand():
    """90 samples in the lowest bin, one with the class, and 10 in the highest, 9 with it, in groups of 10 or more."""
    counts = np.array([[89, 0, 0, 1], [1, 0, 0, 9]])
    found = reliability(counts, counts.sum(axis=0), np.array([0.02, 0.4, 0.6, 0.8]))
    assert found == [pytest.approx((0.02, 1 / 90, 90)), pytest.approx((0.8, 0.9, 10))]


def test_a_group_of_fewer_joins_its_neighbour():
    """The two lowest bins have 9 samples: they wait for the third. The highest has 3: it joins that group."""
    counts = np.array([[5, 3, 4, 1], [0, 1, 4, 2]])
    found = reliability(counts, counts.sum(axis=0), np.array([0.1, 0.3, 0.6, 0.9]))
    predicted = (5 * 0.1 + 4 * 0.3 + 8 * 0.6 + 3 * 0.9) / 20
    assert found == [pytest.approx((predicted, 7 / 20, 20))]


@given(COUNTS, st.integers(0, 2**32 - 1))
def test_groups_hold_all_samples_and_are_few(counts, seed):
    own = counts.sum(axis=0)
    if own.sum(axis=1).min() == 0:
        return
    at = np.sort(np.random.default_rng(seed).random(own.shape[1]))
    found = reliability(own, own.sum(axis=0), at)
    assert sum(n for *_, n in found) == own.sum() and len(found) <= GROUPS + 1
    assert sum(share * n for _, share, n in found) == pytest.approx(own[1].sum())
    assert sum(p * n for p, _, n in found) == pytest.approx((own.sum(axis=0) * at).sum())
    assert all(n >= 10 for *_, n in found) or len(found) == 1


# ---- ``curves.json`` ----


SHAPE = (1, 2, 10)
REAL = Scored.of(SHAPE, "sigmoid", 1, real=True)
SIMULATED = Scored.of(SHAPE, "sigmoid", 1, real=False)


def make_participants(*names: str) -> dict[str, Participant]:
    """Participants; the site is the name's first letter."""
    return {name: Participant(name, f"site-{name[0]}", 10) for name in names}


def draw_counts(seed: int, samples: int = 40, classes: int = 1, bins: int = 10) -> np.ndarray:
    """Histograms of a model that ranks well, of so many samples."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % 2)
    found = np.zeros((classes, 2, bins), np.int32)
    for c in range(classes):
        places = np.clip(rng.normal(3 + 3 * labels, 2), 0, bins - 1).astype(int)
        np.add.at(found[c], (labels, places), 1)
    return found


def complete(sent: Mapping[str, np.ndarray | None]) -> dict[str, np.ndarray | None]:
    """The same with counts of decisions, on which no curve depends but shares of right ones by class."""
    return {
        name: None if own is None else np.concatenate((own, own.sum(axis=2, keepdims=True)), axis=2)
        for name, own in sent.items()
    }


def curves(scored: Scored, sent: Mapping[str, np.ndarray | None], *of_run: Any) -> Curves:
    return scored.curves(complete(sent), *of_run)


def test_two_participants_of_unequal_size_by_hand():
    """a has 3 samples, b 1: the curve is of the sum, not the mean of two curves."""
    a = np.array([[[0, 2], [0, 1]]], np.int32)
    b = np.array([[[0, 0], [1, 0]]], np.int32)
    scored = Scored((1, 2, 2), "sigmoid")
    found = curves(scored, {"a": a, "b": b}, make_participants("a", "b"), {"a": 0, "b": 0}, 4)
    own = found.curves["cluster-0"]
    assert own.roc == [(0, 0), (1, 0.5), (1, 1)]  # with the class: one of two in the highest bin
    assert own.auroc == 0.25 == auroc_of_counts(a + b)
    assert (own.participants, own.sites, own.samples, own.classes) == (2, 2, 4, 1)
    assert found.round == 4 and found.curves["all"] == replace(own, by_class=[]) and found.left_out == {}
    (group,) = own.calibration
    assert group[1:] == (0.5, 4)


def test_decisions_by_class_are_of_all_samples_together(tmp_path):
    """Of 10 with the class 6 are right, of 4 without it 3; the ends are Wilson's, computed by hand."""
    a = np.array([[[2, 1, 1], [1, 7, 6]]], np.int32)  # the last number of each row: predicted to have the class
    b = np.array([[[1, 0, 0], [2, 0, 0]]], np.int32)
    scored = Scored((1, 2, 2), "sigmoid")
    found = scored.curves({"a": a, "b": b}, make_participants("a", "b"), {}, 0)
    (rates,) = found.curves["all"].by_class
    assert rates == Rates(0, (0.6, 0.313, 0.832), (0.75, 0.301, 0.954))
    save_curves(tmp_path, found)
    (read,) = load_curves(tmp_path).curves["all"].by_class
    assert (read.label, [*read.sensitivity], [*read.specificity]) == (0, [0.6, 0.313, 0.832], [0.75, 0.301, 0.954])
    text = (tmp_path / "curves.json").read_text()
    (tmp_path / "curves.json").write_text(text.replace("0.832", "8.32"))
    with pytest.raises(ConfigError, match="curves"):
        load_curves(tmp_path)
    two = Scored((2, 2, 2), "softmax").curves({"a": np.concatenate([a[:, ::-1], a])}, make_participants("a"), {}, 0)
    assert [rates.label for rates in two.curves["all"].by_class] == [1]


def test_at_real_sites_a_curve_is_of_three_sites_not_of_three_participants():
    who = make_participants("a1", "a2", "b1", "c1", "d1", "e1")
    sent = {name: draw_counts(i) for i, name in enumerate(who)}
    assignment = {"a1": 0, "a2": 0, "b1": 0, "c1": 1, "d1": 1, "e1": 1}
    found = curves(REAL, sent, who, assignment, 0, 1 / 3)
    assert set(found.curves) == {"cluster-1"} and found.left_out["cluster-0"] == "few_sites"
    assert set(curves(SIMULATED, sent, who, assignment, 0).curves) == {"all", "cluster-0", "cluster-1"}
    floor = Scored.of(SHAPE, "sigmoid", 4, real=True)
    assert floor.sites == 4 and curves(floor, sent, who, assignment, 0).left_out["cluster-1"] == "few_sites"
    assert Scored.of(SHAPE, "sigmoid", 2, real=True).sites == 3


def test_no_curve_is_the_difference_of_two_others():
    """All less cluster-1 would be the two sites of cluster-0; if those are three, all three curves are there."""
    who = make_participants("a", "b", "c", "d", "e", "f")
    sent = {name: draw_counts(i) for i, name in enumerate(who)}
    assignment = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1, "f": 1}
    assert curves(REAL, sent, who, assignment, 0).left_out == {"all": "difference", "cluster-0": "few_sites"}
    three = {**assignment, "c": 0}
    made = curves(REAL, sent, who, three, 0).curves
    assert {label: len(curve.by_class) for label, curve in made.items()} == {"all": 0, "cluster-0": 1, "cluster-1": 1}
    lacking = {name: own for name, own in sent.items() if name != "a"} | {"a": None}
    found = curves(REAL, lacking, who, three, 0)
    assert found.left_out == {"all": "difference", "cluster-0": "few_sites"}
    nobody = {k: None if three[k] == 0 else own for k, own in sent.items()}
    found = curves(REAL, nobody, who, three, 0)
    assert found.left_out == {"cluster-0": "no_scores"} and found.curves["all"].roc == found.curves["cluster-1"].roc


def test_at_real_sites_a_point_is_of_ten_samples_and_a_class_of_ten_with_it():
    who = make_participants("a", "b", "c")
    sent = {name: draw_counts(i) for i, name in enumerate(who)}
    own = curves(REAL, sent, who, {}, 0).curves["all"]
    total = sum(sent.values()).sum(axis=(0, 1))
    merged = (np.add.reduceat(total, [0]) // 10).item()
    assert 2 < len(own.roc) <= merged + 1
    rare = {name: np.stack([own[:, 0] + own[:, 1], np.eye(10, dtype=np.int32)[[i]] * 3], axis=1)
            for i, (name, own) in enumerate(sent.items())}  # fmt: skip
    assert sum(rare.values())[0, 1].sum() == 9
    assert curves(REAL, rare, who, {}, 0).left_out == {"all": "few_samples"}
    assert set(curves(SIMULATED, rare, who, {}, 0).curves) == {"all"}


def test_a_class_that_one_of_three_sites_has_is_in_no_curve():
    """All samples with the class are a's: true positive rates would be those of a alone."""
    who = make_participants("a", "b", "c")
    healthy = {name: np.stack([own[:, 0] + own[:, 1], 0 * own[:, 1]], axis=1) for name, own in
               ((name, draw_counts(i)) for i, name in enumerate(who))}  # fmt: skip
    sent = {**healthy, "a": draw_counts(0, 80)}
    assert curves(REAL, sent, who, {}, 0).left_out == {"all": "few_samples"}
    assert set(curves(SIMULATED, sent, who, {}, 0).curves) == {"all"}
    two = {name: np.concatenate([own, draw_counts(9 + i)]) for i, (name, own) in enumerate(sent.items())}
    scored = Scored.of((2, 2, 10), "sigmoid", 1, real=True)
    assert curves(scored, two, who, {}, 0).curves["all"].classes == 1


def test_a_site_that_says_it_has_10_to_the_9_samples_does_not_make_the_curve():
    good, bad = np.zeros(SHAPE, np.int64), np.zeros(SHAPE, np.int64)
    good[0, 0, 0] = good[0, 1, 9] = 20
    bad[0, 0, 9] = bad[0, 1, 0] = 5 * 10**8
    who = make_participants("a", "b", "c", "d")
    found = curves(REAL, {"a": good, "b": good, "c": good, "d": bad}, who, {}, 0, 1 / 3)
    assert found.curves["all"].auroc == pytest.approx(auroc_of_counts(3 * good + bad * 6e-8), abs=1e-4)
    assert found.curves["all"].auroc > 0.6
    assert curves(SIMULATED, {"a": good, "d": bad}, who, {}, 0).curves["all"].auroc < 0.001


def test_of_two_classes_that_exclude_each_other_the_curve_is_the_second_one_s():
    scored = Scored((2, 2, 10), "softmax")
    second = draw_counts(1)[0]
    both = np.stack([second[::-1, ::-1], second])
    found = curves(scored, {"a": both}, make_participants("a"), {}, 0)
    assert found.of_classes == 1 and found.curves["all"].auroc == pytest.approx(auroc_of_counts(both), abs=1e-4)
    assert sum(share * n for _, share, n in found.curves["all"].calibration) == pytest.approx(second[1].sum(), abs=0.01)
    assert curves(Scored((2, 2, 10), "sigmoid"), {"a": both}, make_participants("a"), {}, 0).of_classes == 2


def run_of_digits(folder: Path, method: str) -> None:
    run_loop(
        method=build_from_spec(method),
        model=MODEL,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(3),
        training=TrainSettings(lr=0.1, local_steps=10, score_bins=200),
        folder=folder,
    )


@pytest.mark.parametrize("method", ["fedavg", "wecfl:k=2"])
def test_the_area_of_a_run_s_curves_is_its_pooled_auroc(tmp_path, method):
    run_of_digits(tmp_path, method)
    kept, last = load_curves(tmp_path), load_run(tmp_path).rounds[-1]
    assert kept.round == last["round"] == 2 and kept.of_classes == 10
    assert kept.curves["all"].auroc == pytest.approx(last["pooled_auroc"], abs=5e-5)
    assert len(kept.curves) == 1 + len(last["clusters"])
    for label, own in last["clusters"].items():
        assert kept.curves[label].auroc == pytest.approx(own["pooled_auroc"], abs=5e-5)
        points = np.array(kept.curves[label].roc)
        assert np.trapezoid(points[:, 1], points[:, 0]) == pytest.approx(own["pooled_auroc"], abs=2e-3)
    assert (tmp_path / CURVES).stat().st_size < 4000 * len(kept.curves)


def test_withheld_histograms_leave_no_curve_and_no_score_bins_no_file(tmp_path, monkeypatch):
    run_of_digits(tmp_path / "a", "wecfl:k=2")
    monkeypatch.setattr(Learner, "score_counts", lambda self, outputs: None)
    run_of_digits(tmp_path / "a", "wecfl:k=2")  # the earlier file goes
    kept = load_curves(tmp_path / "a")
    assert kept.curves == {} and set(kept.left_out.values()) == {"no_scores"}
    assert load_curves(tmp_path) is None


def test_a_foreign_file_is_checked_before_it_is_used(tmp_path):
    scored = Scored(SHAPE, "sigmoid")
    save_curves(tmp_path, curves(scored, {"a": draw_counts(0)}, make_participants("a"), {"a": 0}, 3))
    sound = json.loads((tmp_path / CURVES).read_text())
    kept = load_curves(tmp_path)
    assert json.loads(json.dumps({"version": 1, **asdict(kept)})) == sound

    def altered(**values: object) -> dict[str, object]:
        return {**sound, "curves": {"all": {**sound["curves"]["all"], **values}}}

    for content, why in [
        ([], "is a list, not an object"),
        ({**sound, "version": 2}, "version = 2 is not the number of this format"),
        ({**sound, "round": -1}, "round = -1 is not a whole number"),
        ({**sound, "curves": {"<script>": sound["curves"]["all"]}}, "is not an object of curves"),
        ({**sound, "left_out": {"all": "<b>"}}, "is not an object of reasons"),
        (altered(roc=[[0, 0]] * 102), "is not an object of curves"),
        (altered(roc=[[0, 2]]), "is not an object of curves"),
        (altered(roc=[]), "is not an object of curves"),
        (altered(calibration=[[0.5, 0.5, "n"]]), "is not an object of curves"),
        (altered(auroc=float("nan")), "is not an object of curves"),
        ({key: own for key, own in sound.items() if key != "curves"}, "has no 'curves'"),
    ]:
        (tmp_path / CURVES).write_text(json.dumps(content))
        with pytest.raises(ConfigError, match="copy it again") as refused:
            load_curves(tmp_path)
        assert why in str(refused.value)


def test_rounded_curves_do_not_show_which_site_a_sample_is_from():
    """With a share of a third, weights of sites differ; a point still has ten samples or more of them together."""
    who = make_participants("a", "b", "c")
    sent = {"a": draw_counts(0, 30), "b": draw_counts(1, 300), "c": draw_counts(2, 90)}
    own = curves(REAL, sent, who, {}, 0, 1 / 3).curves["all"]
    assert isinstance(own, Curve) and own.samples == 420
    together = bounded_sum(complete(sent), {n: n for n in who}, 1 / 3)[..., :-1]
    assert own.auroc == pytest.approx(auroc_of_counts(together), abs=0.01)
    assert all(n >= 10 for *_, n in own.calibration)
