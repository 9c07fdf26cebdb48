# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``curves.json``: whose samples are in a curve, which curves there are not, and that the area is the one reported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cfl_flare.core.config import parse_spec
from cfl_flare.core.errors import ConfigError
from cfl_flare.data import Digits
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import Participant, build_method
from cfl_flare.results.curves import CURVES, Curve, Curves, Scored, load_curves, save_curves
from cfl_flare.results.pooled import auroc_of_counts, bounded_sum
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.learner import Learner
from cfl_flare.training.settings import TrainSettings
from tests.loop import run_loop
from tests.play import DATA, MODEL

SHAPE = (1, 2, 10)
REAL = Scored.of(SHAPE, "sigmoid", 1, real=True)
SIMULATED = Scored.of(SHAPE, "sigmoid", 1, real=False)


def people(*names: str) -> dict[str, Participant]:
    """Participants; the site is the name's first letter."""
    return {name: Participant(name, f"site-{name[0]}", 10) for name in names}


def counts(seed: int, samples: int = 40, classes: int = 1, bins: int = 10) -> np.ndarray:
    """Histograms of a model that ranks well, of so many samples."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % 2)
    found = np.zeros((classes, 2, bins), np.int32)
    for c in range(classes):
        places = np.clip(rng.normal(3 + 3 * labels, 2), 0, bins - 1).astype(int)
        np.add.at(found[c], (labels, places), 1)
    return found


def complete(sent: Mapping[str, np.ndarray | None]) -> dict[str, np.ndarray | None]:
    """The same with counts of decisions, which no curve depends on."""
    ends = ((0, 0), (0, 0), (0, 1))
    return {name: None if own is None else np.pad(own, ends, constant_values=7) for name, own in sent.items()}


def curves(scored: Scored, sent: Mapping[str, np.ndarray | None], *of_run: Any) -> Curves:
    return scored.curves(complete(sent), *of_run)


def test_two_participants_of_unequal_size_by_hand():
    """a has 3 samples, b 1: the curve is of the sum, not the mean of two curves."""
    a = np.array([[[0, 2], [0, 1]]], np.int32)
    b = np.array([[[0, 0], [1, 0]]], np.int32)
    scored = Scored((1, 2, 2), "sigmoid")
    found = curves(scored, {"a": a, "b": b}, people("a", "b"), {"a": 0, "b": 0}, 4)
    own = found.curves["cluster-0"]
    assert own.roc == [(0, 0), (1, 0.5), (1, 1)]  # with the class: one of two in the highest bin
    assert own.auroc == 0.25 == auroc_of_counts(a + b)
    assert (own.participants, own.sites, own.samples, own.classes) == (2, 2, 4, 1)
    assert found.round == 4 and found.curves["all"] == own and found.left_out == {}
    (group,) = own.calibration
    assert group[1:] == (0.5, 4)


def test_at_real_sites_a_curve_is_of_three_sites_not_of_three_participants():
    who = people("a1", "a2", "b1", "c1", "d1", "e1")
    sent = {name: counts(i) for i, name in enumerate(who)}
    assignment = {"a1": 0, "a2": 0, "b1": 0, "c1": 1, "d1": 1, "e1": 1}
    found = curves(REAL, sent, who, assignment, 0, 1 / 3)
    assert set(found.curves) == {"cluster-1"} and found.left_out["cluster-0"] == "few_sites"
    assert set(curves(SIMULATED, sent, who, assignment, 0).curves) == {"all", "cluster-0", "cluster-1"}
    floor = Scored.of(SHAPE, "sigmoid", 4, real=True)
    assert floor.sites == 4 and curves(floor, sent, who, assignment, 0).left_out["cluster-1"] == "few_sites"
    assert Scored.of(SHAPE, "sigmoid", 2, real=True).sites == 3


def test_no_curve_is_the_difference_of_two_others():
    """All less cluster-1 would be the two sites of cluster-0; if those are three, all three curves are there."""
    who = people("a", "b", "c", "d", "e", "f")
    sent = {name: counts(i) for i, name in enumerate(who)}
    assignment = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1, "f": 1}
    assert curves(REAL, sent, who, assignment, 0).left_out == {"all": "difference", "cluster-0": "few_sites"}
    three = {**assignment, "c": 0}
    assert set(curves(REAL, sent, who, three, 0).curves) == {"all", "cluster-0", "cluster-1"}
    lacking = {name: own for name, own in sent.items() if name != "a"} | {"a": None}
    found = curves(REAL, lacking, who, three, 0)
    assert found.left_out == {"all": "difference", "cluster-0": "few_sites"}
    nobody = {k: None if three[k] == 0 else own for k, own in sent.items()}
    found = curves(REAL, nobody, who, three, 0)
    assert found.left_out == {"cluster-0": "no_scores"} and found.curves["all"] == found.curves["cluster-1"]


def test_at_real_sites_a_point_is_of_ten_samples_and_a_class_of_ten_with_it():
    who = people("a", "b", "c")
    sent = {name: counts(i) for i, name in enumerate(who)}
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
    who = people("a", "b", "c")
    healthy = {name: np.stack([own[:, 0] + own[:, 1], 0 * own[:, 1]], axis=1) for name, own in
               ((name, counts(i)) for i, name in enumerate(who))}  # fmt: skip
    sent = {**healthy, "a": counts(0, 80)}
    assert curves(REAL, sent, who, {}, 0).left_out == {"all": "few_samples"}
    assert set(curves(SIMULATED, sent, who, {}, 0).curves) == {"all"}
    two = {name: np.concatenate([own, counts(9 + i)]) for i, (name, own) in enumerate(sent.items())}
    scored = Scored.of((2, 2, 10), "sigmoid", 1, real=True)
    assert curves(scored, two, who, {}, 0).curves["all"].classes == 1


def test_a_site_that_says_it_has_10_to_the_9_samples_does_not_make_the_curve():
    good, bad = np.zeros(SHAPE, np.int64), np.zeros(SHAPE, np.int64)
    good[0, 0, 0] = good[0, 1, 9] = 20
    bad[0, 0, 9] = bad[0, 1, 0] = 5 * 10**8
    who = people("a", "b", "c", "d")
    found = curves(REAL, {"a": good, "b": good, "c": good, "d": bad}, who, {}, 0, 1 / 3)
    assert found.curves["all"].auroc == pytest.approx(auroc_of_counts(3 * good + bad * 6e-8), abs=1e-4)
    assert found.curves["all"].auroc > 0.6
    assert curves(SIMULATED, {"a": good, "d": bad}, who, {}, 0).curves["all"].auroc < 0.001


def test_of_two_classes_that_exclude_each_other_the_curve_is_the_second_one_s():
    scored = Scored((2, 2, 10), "softmax")
    second = counts(1)[0]
    both = np.stack([second[::-1, ::-1], second])
    found = curves(scored, {"a": both}, people("a"), {}, 0)
    assert found.of_classes == 1 and found.curves["all"].auroc == pytest.approx(auroc_of_counts(both), abs=1e-4)
    assert sum(share * n for _, share, n in found.curves["all"].calibration) == pytest.approx(second[1].sum(), abs=0.01)
    assert curves(Scored((2, 2, 10), "sigmoid"), {"a": both}, people("a"), {}, 0).of_classes == 2


def run(folder: Path, method: str) -> None:
    name, values = parse_spec(method)
    run_loop(
        method=build_method({"method": name, **values}),
        model=MODEL,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(3),
        training=TrainSettings(lr=0.1, local_steps=10, score_bins=200),
        folder=folder,
    )


@pytest.mark.parametrize("method", ["fedavg", "wecfl:k=2"])
def test_the_area_of_a_run_s_curves_is_its_pooled_auroc(tmp_path, method):
    run(tmp_path, method)
    kept, last = load_curves(tmp_path), load_run(tmp_path).rounds[-1]
    assert kept.round == last["round"] == 2 and kept.of_classes == 10
    assert kept.curves["all"].auroc == pytest.approx(last["pooled_auroc"], abs=5e-5)
    assert len(kept.curves) == 1 + len(last["clusters"])
    for label, own in last["clusters"].items():
        assert kept.curves[label].auroc == pytest.approx(own["pooled_auroc"], abs=5e-5)
        points = np.array(kept.curves[label].roc)
        assert np.trapezoid(points[:, 1], points[:, 0]) == pytest.approx(own["pooled_auroc"], abs=2e-3)
    assert (tmp_path / CURVES).stat().st_size < 3000 * len(kept.curves)


def test_withheld_histograms_leave_no_curve_and_no_score_bins_no_file(tmp_path, monkeypatch):
    run(tmp_path / "a", "wecfl:k=2")
    monkeypatch.setattr(Learner, "score_counts", lambda self, outputs: None)
    run(tmp_path / "a", "wecfl:k=2")  # the earlier file goes
    kept = load_curves(tmp_path / "a")
    assert kept.curves == {} and set(kept.left_out.values()) == {"no_scores"}
    assert load_curves(tmp_path) is None


def test_a_foreign_file_is_checked_before_it_is_used(tmp_path):
    scored = Scored(SHAPE, "sigmoid")
    save_curves(tmp_path, curves(scored, {"a": counts(0)}, people("a"), {"a": 0}, 3))
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
    who = people("a", "b", "c")
    sent = {"a": counts(0, 30), "b": counts(1, 300), "c": counts(2, 90)}
    own = curves(REAL, sent, who, {}, 0, 1 / 3).curves["all"]
    assert isinstance(own, Curve) and own.samples == 420
    together = bounded_sum(complete(sent), {n: n for n in who}, 1 / 3)[..., :-1]
    assert own.auroc == pytest.approx(auroc_of_counts(together), abs=0.01)
    assert all(n >= 10 for *_, n in own.calibration)
