# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""From a source to a site's participants, those that are held back, and rules that alter what a group sees."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rich.console import Console

from cfl_flare.cli.simulate import Simulation, check_simulation
from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import (
    DataConfig,
    DataSource,
    Deal,
    Digits,
    Npz,
    ParticipantData,
    Pool,
    Samples,
    build_partition,
    dealt,
    report_of,
)
from cfl_flare.data.deal import split
from cfl_flare.data.federate import taken
from cfl_flare.data.groups import LabelPermutation, Scanner
from cfl_flare.data.splits import draw_indicator, read_indicator
from cfl_flare.data.summary import participant_names
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.methods import Local, WeCFL
from cfl_flare.results.tables import partition_table
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop

# What sites host, and the report of who got what


SPECS = [
    {"partition": "cluster_n_class", "groups": 4},
    {"partition": "lda", "alpha": 0.5},
    {"partition": "quantity", "lo": 10, "hi": 40, "rule": "dirichlet", "alpha": 1.0},
    {"partition": "scanner", "groups": 3},
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["partition"])
def test_the_report_counts_what_the_sites_host(spec):
    config = DataConfig(12, spec, seed=3, min_samples=5)
    report = config.report(Digits())
    hosted = [p for i in range(3) for p in config.host(Digits(), f"site-{i}", i, 3)]
    assert [p.name for p in hosted] == report.names == [f"p{i:02d}" for i in range(12)]
    for p, train, test, group in zip(hosted, report.train, report.test, report.truth):
        assert np.array_equal(np.bincount(p.train.y, minlength=10), train)
        assert np.array_equal(np.bincount(p.test.y, minlength=10), test)
        assert p.group == group and p.train.x.dtype == np.float32 and p.train.key is None
    assert report.disjoint
    assert report.train.sum() + report.train_unused + report.test.sum() + report.test_unused == 1797


def test_a_real_site_is_one_participant():
    config = DataConfig()
    (only,) = config.host(Digits(), "clinic", 0, 3)
    assert only.name == "clinic" and only.group is None and len(only.train) > 1000
    with pytest.raises(ConfigError, match="without a partition there is nothing to report"):
        config.report(Digits())


def test_natural_participants_come_from_the_key(tmp_path):
    rng = np.random.default_rng(0)
    contents = {}
    for part, n in (("train", 200), ("test", 100)):
        contents[f"{part}_images"] = rng.integers(0, 255, (n, 4, 4)).astype(np.uint8)
        contents[f"{part}_labels"] = rng.integers(0, 3, n)
        contents[f"{part}_clinic"] = rng.integers(0, 4, n)
    np.savez(tmp_path / "a.npz", **contents)
    config = DataConfig(4, {"partition": "natural"}, min_samples=10)
    report = config.report(Npz(str(tmp_path / "a.npz"), key="clinic"))
    assert report.train.sum(axis=1).tolist() == np.bincount(contents["train_clinic"]).tolist()
    assert report.test_unused == 0
    with pytest.raises(DataError, match="set key in the data source"):
        config.report(Npz(str(tmp_path / "a.npz")))


def test_a_sample_that_is_dealt_twice_is_seen():
    samples = Samples(np.zeros((4, 1), np.float32), np.array([0, 1, 0, 1]))
    # Of the test samples, counted from 4, the last two stay unused.
    deals = {
        "soundly": ([[0, 1], [2]], [[4], [5]], True),
        "to two": ([[0, 1], [1, 2]], [[4], [5]], False),
        "to train and to test": ([[0, 1], [2]], [[4], [2, 5]], False),
    }
    for train, test, sound in deals.values():
        deal = Deal([np.array(own) for own in train], [np.array(own) for own in test], [None, None])
        report = report_of(samples, samples, deal, "hand-made")
        assert report.disjoint == sound
        assert (report.train_unused, report.test_unused) == (1, 2)
        assert ("samples were dealt twice" in str(partition_table(report).title)) != sound


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["partition"])
def test_the_table_of_a_partition(spec):
    report = DataConfig(12, spec, seed=3, min_samples=5).report(Digits())
    out = io.StringIO()
    Console(width=200, file=out, color_system=None).print(partition_table(report))
    text = out.getvalue()
    assert all(name in text for name in report.names)
    assert f"{report.train.sum()}" in text and f"{report.train_unused}" in text


class Broken(DataSource):
    """Not what a source should be."""

    def load(self):
        return None


def test_a_source_of_ones_own_is_checked():
    with pytest.raises(DataError, match=r"data Broken: load.* should return"):
        DataConfig(2, {"partition": "iid"}).host(Broken(), "s", 0, 1)


def test_the_package_needs_no_torch():
    code = "import sys, cfl_flare.data; sys.exit(any(m in sys.modules for m in ('torch', 'torchvision', 'nvflare')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Participants that are held back from the training


PERMUTED = {"partition": "label_permutation", "groups": 3}
MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}


def test_those_held_back_and_the_others_have_what_they_would_have_had_anyway() -> None:
    plain = DataConfig(12, PERMUTED, seed=3, indicator_samples=2)
    config = replace(plain, unseen=0.25)
    everyone = {d.name: d for d in plain.host(Digits(), "local", 0, 1)}
    seen, unseen = config.host(Digits(), "local", 0, 1), config.newcomers(Digits())
    assert [d.name for d in seen] == config.names
    assert (len(seen), len(unseen)) == (9, 3)
    assert sorted(d.name for d in (*seen, *unseen)) == participant_names(12)
    for one in (*seen, *unseen):
        for part in ("train", "test"):
            np.testing.assert_array_equal(getattr(one, part).x, getattr(everyone[one.name], part).x)
            np.testing.assert_array_equal(getattr(one, part).y, getattr(everyone[one.name], part).y)
        assert one.group == everyone[one.name].group


@pytest.mark.parametrize("sites", [1, 2, 4])
def test_the_sites_share_those_that_train(sites: int) -> None:
    config = DataConfig(12, PERMUTED, unseen=5)
    hosted = [[d.name for d in config.host(Digits(), "site", i, sites)] for i in range(sites)]
    assert [name for names in hosted for name in names] == config.names
    assert max(map(len, hosted)) - min(map(len, hosted)) <= 1


@settings(deadline=None)
@given(participants=st.integers(2, 60), share=st.floats(0.01, 0.5), seed=st.integers(0, 9))
def test_a_share_is_rounded_and_the_seed_alone_decides(participants: int, share: float, seed: int) -> None:
    config = DataConfig(participants, {"partition": "iid"}, seed, unseen=share)
    held = set(participant_names(participants)) - set(config.names)
    assert len(held) == max(1, round(share * participants))
    assert replace(config, unseen=len(held)).names == config.names
    more = replace(config, unseen=len(held) + 1) if len(config.names) > 1 else config
    assert set(more.names) <= set(config.names)


def test_participants_left_out_change_no_other_s_samples() -> None:
    plain = DataConfig(12, PERMUTED, seed=3, indicator_samples=2)
    config = replace(plain, without=("p01", "p10"))
    everyone = {d.name: d for d in plain.host(Digits(), "local", 0, 1)}
    hosted = config.host(Digits(), "local", 0, 1)
    assert [d.name for d in hosted] == config.names == [n for n in participant_names(12) if n not in ("p01", "p10")]
    for one in hosted:
        for part in ("train", "test"):
            np.testing.assert_array_equal(getattr(one, part).x, getattr(everyone[one.name], part).x)
            np.testing.assert_array_equal(getattr(one, part).y, getattr(everyone[one.name], part).y)


def test_participants_left_out_change_no_other_s_model(tmp_path: Path) -> None:
    """Local training shares no numbers, so each model has the bits that it has in a run with all participants."""
    plain = DataConfig(4, PERMUTED, seed=3)
    models = []
    for config in (plain, replace(plain, without=("p2",))):
        folder = tmp_path / str(len(models))
        training = TrainSettings(lr=0.1, local_steps=2)
        given = {"model": MODEL, "source": Digits(), "data": config, "settings": ServerSettings(2)}
        run_loop(method=Local(), training=training, folder=folder, **given)
        models.append({path.stem: path.read_bytes() for path in sorted((folder / "served").glob("*.safetensors"))})
    assert models[1] == {name: model for name, model in models[0].items() if name != "p2"} != {}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"participants": 3, "without": ("p3",)},
            "there is no such participant; the participants are p0, p1, p2$",
        ),
        ({"participants": 2, "without": ("p0", "p1")}, "without leaves no participant to train; leave out fewer"),
        ({"partition": None, "without": ("p0",)}, "participants can be left out in a simulation only"),
    ],
)
def test_participants_that_cannot_be_left_out(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(**{"partition": {"partition": "iid"}, **config})


def test_nobody_is_held_back_unless_asked_for() -> None:
    config = DataConfig(12, PERMUTED)
    assert config.names == participant_names(12)
    assert config.newcomers(Digits()) == []
    assert DataConfig().names == []
    with pytest.raises(ConfigError, match="in a simulation only; a site that was not in training joins by 'cfl-flare"):
        DataConfig(unseen=1)


@pytest.mark.parametrize(
    ("unseen", "message"),
    [
        (1.0, r"unseen = 1.0 should be a share in \[0.0, 1.0\) or a count"),
        (-0.1, "unseen = -0.1 should be a share"),
        (float("nan"), "unseen = nan should be a share"),
        (-1, "unseen = -1 should be a share"),
        (12, "unseen = 12 leaves none of 12 participants to train; hold back fewer"),
        (99, "unseen = 99 leaves none"),
        (0.99, "unseen = 0.99 leaves none"),
        (True, "unseen = True should be float | int, not bool"),
    ],
)
def test_impossible_numbers_of_those_held_back(unseen: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(12, PERMUTED, unseen=unseen)


def test_everything_that_counts_participants_counts_those_that_train() -> None:
    run = {"model": MODEL, "data": Digits(), "participants": 8, "partition": PERMUTED, "unseen": 5, "num_rounds": 1}
    with pytest.raises(ConfigError, match="k = 4 is more than the 3 of participants = 8 that train"):
        check_plans([RunPlan.of(method=WeCFL(k=4), **run, min_clients=1)])
    with pytest.raises(ConfigError, match="sample = 4 is more than the 3 of participants = 8 that train"):
        check_plans([RunPlan.of(method=WeCFL(k=2), **run, min_clients=1, sample=4)])
    plan = RunPlan.of(method=WeCFL(k=3), **run, min_clients=1, sample=3)
    check_plans([plan])
    with pytest.raises(ConfigError, match="sites = 4 is more than the 3 of participants = 8 that train"):
        check_simulation(plan, Simulation(sites=4))
    with pytest.raises(ConfigError, match="min_clients = 4 is more than the 3 of participants = 8 that train"):
        ClusteredRecipe(method="fedavg", **run, min_clients=4)
    assert ClusteredRecipe(method="fedavg", **run, min_clients=3).plan.data == DataConfig(8, PERMUTED, unseen=5)


# Samples of each class that are taken out, or read from a file


RULE = {"partition": "class_groups", "groups": 3, "alpha": 1.0}


class Numbered(DataSource):
    """Each sample's only feature is its number, in thousands; 20, 30 and 40 of three classes."""

    def load(self) -> tuple[Samples, Samples]:
        y = np.repeat([0, 1, 2], [20, 30, 40])
        return tuple(Samples(np.arange(n, n + 90, dtype=np.float32)[:, None] / 1000, y) for n in (0, 1000))


def numbers(samples: Samples) -> set[int]:
    return {round(1000 * (v + 1) / 2) for v in samples.x[:, 0].tolist()}


@pytest.mark.parametrize("rule", [{"partition": "iid"}, RULE, {"partition": "label_permutation", "groups": 2}])
def test_no_participant_has_them_and_nothing_else_is_lost(rule):
    data = DataConfig(4, rule, seed=3, min_samples=1, indicator_samples=6)
    held = data.indicator(Numbered(), 6)
    assert np.bincount(held.y).tolist() == [6, 6, 6]
    given = [v for p in data.host(Numbered(), "s", 0, 1) for s in (p.train, p.test) for v in s.x[:, 0].tolist()]
    assert len(given) == len(set(given)) == 90 - 18 + 90
    assert not set(given) & set(held.x[:, 0].tolist())


def test_the_draw_depends_on_the_seed_alone_and_larger_ones_hold_smaller_ones():
    data = DataConfig(4, RULE, seed=3, indicator_samples=10)
    first = numbers(data.indicator(Numbered(), 10))
    assert first == numbers(DataConfig(7, {"partition": "iid"}, seed=3).indicator(Numbered(), 10))
    assert first != numbers(DataConfig(4, RULE, seed=4).indicator(Numbered(), 10))
    assert numbers(data.indicator(Numbered(), 4)) < first


def test_sites_and_reports_leave_the_same_ones_out():
    data = DataConfig(6, RULE, indicator_samples=5)
    whole = data.host(Digits(), "s", 0, 1)
    shared = [p for i in range(3) for p in data.host(Digits(), "s", i, 3)]
    for one, other in zip(whole, shared):
        np.testing.assert_array_equal(one.train.x, other.train.x)
    report = data.report(Digits())
    assert report.train.sum(axis=1).tolist() == [len(p.train) for p in whole]
    assert report.train.sum() + report.test.sum() == 1797 - 5 * 10


def test_without_them_all_is_dealt_as_it_always_was():
    plain, none = DataConfig(4, RULE), DataConfig(4, RULE, indicator_samples=0)
    for one, other in zip(plain.host(Numbered(), "s", 0, 1), none.host(Numbered(), "s", 0, 1)):
        np.testing.assert_array_equal(one.train.x, other.train.x)
    assert len(draw_indicator(np.array([0, 1]), 0, 0, "data")) == 0


def test_a_class_with_too_few_is_refused():
    message = "class 0 has 20 training samples, too few for indicator_samples = 20 .* and others to train on; lower"
    with pytest.raises(ConfigError, match=message):
        DataConfig(4, RULE, indicator_samples=20).host(Numbered(), "s", 0, 1)
    with pytest.raises(ConfigError, match="indicator_samples = -1 should be >= 0"):
        DataConfig(4, RULE, indicator_samples=-1)
    with pytest.raises(ConfigError, match=r"simulation's data only; .* give the method an indicator_file"):
        DataConfig(indicator_samples=3)


def write_grid_npz(path: Path, **changes) -> str:
    arrays = {
        "train_images": np.arange(24, dtype=np.uint8).reshape(6, 2, 2),
        "train_labels": np.array([[0], [0], [0], [1], [1], [1]]),
    }
    np.savez(path, **{**arrays, **changes})
    return str(path)


def test_a_server_reads_them_from_a_file(tmp_path, monkeypatch):
    path = write_grid_npz(tmp_path / "few.npz")
    samples = read_indicator(path, 2, 0)
    assert samples.x.shape == (4, 1, 2, 2)
    assert samples.y.tolist() == [0, 0, 1, 1]
    assert len(read_indicator(path, 3, 0)) == 6  # nobody trains on what is left
    monkeypatch.setenv("CFL_DATA_ROOT", str(tmp_path))
    np.testing.assert_array_equal(read_indicator("few.npz", 2, 0).x, samples.x)


def test_files_that_will_not_do_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"few.npz: class 0 has 3 training samples, too few .* = 4 of each class; "):
        read_indicator(write_grid_npz(tmp_path / "few.npz"), 4, 0)
    with pytest.raises(DataError, match=r"indicator_file: path = 'none.npz' is not a file"):
        read_indicator("none.npz", 1, 0)
    with pytest.raises(DataError, match=r"half.npz: labels are numbers to predict, .* are drawn of each class; name"):
        read_indicator(write_grid_npz(tmp_path / "half.npz", train_labels=np.full(6, 0.5)), 1, 0)
    np.savez(tmp_path / "test.npz", test_images=np.zeros((2, 2, 2)))
    with pytest.raises(DataError, match="no array 'train_images'"):
        read_indicator(str(tmp_path / "test.npz"), 1, 0)


# ---- Rules that alter what a group sees ----


# Images, or their names, are altered


def make_patch_images(n=6, channels=1, size=12, dtype=np.uint8):
    """Bright bars that no turn leaves alone."""
    x = np.zeros((n, channels, size, size))
    x[:, :, 1:4, 2:] = 200 / 255
    x[:, :, 6:8, 2:5] = 120 / 255
    y = np.arange(n) % 3
    return Samples(np.round(x * 255).astype(dtype) if dtype == np.uint8 else x.astype(dtype), y, np.arange(n))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_scanner_groups_see_differently_in_the_same_format(dtype, channels):
    rule, samples = Scanner(groups=8), make_patch_images(channels=channels, dtype=dtype)
    seen = [rule.alter(samples, g, 3, seed=0) for g in range(8)]
    assert seen[0] is samples
    for one in seen:
        assert one.x.dtype == dtype and one.x.shape == samples.x.shape
        assert np.array_equal(one.y, samples.y) and np.array_equal(one.key, samples.key)
        assert one.x.min() >= 0 and one.x.max() <= (255 if dtype == np.uint8 else 1)
    scale = 255 if dtype == np.uint8 else 1
    for i in range(8):
        for j in range(i):
            assert np.abs(seen[i].x / scale - seen[j].x / scale).mean() > 0.05
    again = rule.alter(samples, 5, 3, seed=0)
    assert np.array_equal(again.x, seen[5].x)
    assert not np.array_equal(rule.alter(samples, 5, 3, seed=1).x, seen[5].x)


def test_bytes_and_floats_are_altered_alike():
    rule = Scanner(groups=4)
    from_bytes, from_floats = (rule.alter(make_patch_images(dtype=d), 3, 3, 0).x for d in (np.uint8, np.float32))
    assert np.abs(from_bytes / 255 - from_floats).max() < 0.01


def test_one_shift_at_a_time():
    samples = make_patch_images(dtype=np.float32)
    off = {"rotation": False, "contrast": False, "inversion": False, "blur": False}
    assert np.allclose(Scanner(2, **{**off, "inversion": True}).alter(samples, 1, 3, 0).x, 1 - samples.x)
    graded = Scanner(2, **{**off, "contrast": True}).alter(samples, 1, 3, 0).x
    assert len(np.unique(graded.round(5))) == len(np.unique(samples.x)) and not np.allclose(graded, samples.x)
    turned = Scanner(3, **{**off, "rotation": True}).alter(samples, 1, 3, 0).x
    assert np.abs(turned - np.rot90(samples.x, 1, axes=(2, 3))).mean() < np.abs(turned - samples.x).mean()
    blurred = Scanner(2, **{**off, "blur": True}).alter(samples, 1, 3, 0).x
    assert blurred.sum() == pytest.approx(samples.x.sum(), rel=0.05) and not np.allclose(blurred, samples.x)


def test_scanner_turns_by_given_angles_and_leaves_the_first_group():
    samples = make_patch_images(dtype=np.uint8)
    rule = Scanner(4, contrast=False, inversion=False, blur=False, angles=[90, 195.0, -90])
    turned = [rule.alter(samples, g, 3, seed=0).x for g in range(4)]
    for group, quarters in ((0, 0), (1, 1), (3, 3)):
        assert np.array_equal(turned[group], np.rot90(samples.x, quarters, axes=(2, 3)))
    # Quarters and the rest turn the same way round, so that 89.99 degrees are nearly 90.
    nearly = Scanner(2, contrast=False, inversion=False, blur=False, angles=[89.99]).alter(samples, 1, 3, 0).x
    assert np.abs(nearly.astype(int) - turned[1]).max() <= 1 < np.abs(turned[2].astype(int) - turned[1]).max()


def test_scanner_refusals():
    with pytest.raises(ConfigError, match=r"angles = \[90\] should be 2 for groups = 3"):
        Scanner(3, angles=[90])
    with pytest.raises(ConfigError, match="angles belong to rotation = True"):
        Scanner(2, angles=[90], rotation=False)
    with pytest.raises(ConfigError, match=r"angles = \['90'\] should be degrees such as"):
        Scanner(2, angles=["90"])
    flat = Samples(np.zeros((3, 4), np.float32), np.arange(3))
    with pytest.raises(DataError, match=r"samples have shape \(4,\); it needs images \(channels, h, w\)"):
        Scanner().alter(flat, 0, 3, 0)
    wide = Samples(np.zeros((3, 1, 4, 5), np.uint8), np.arange(3))
    with pytest.raises(DataError, match="images are 4x5; to turn them, square them first"):
        Scanner().alter(wide, 1, 3, 0)
    assert Scanner(rotation=False).alter(wide, 1, 3, 0).x.shape == wide.x.shape
    with pytest.raises(DataError, match=r"images go from -1 to 0; it needs \[0, 1\]"):
        Scanner().alter(Samples(np.array([[[[-1.0, 0], [0, 0]]]], np.float32), np.zeros(1, int)), 1, 3, 0)
    with pytest.raises(ConfigError, match="rotation, contrast, inversion and blur are all off"):
        Scanner(2, rotation=False, contrast=False, inversion=False, blur=False)
    with pytest.raises(ConfigError, match="groups = 3 cannot differ by inversion alone"):
        Scanner(3, rotation=False, contrast=False, blur=False)


@settings(deadline=None, max_examples=25)
@given(classes=st.integers(2, 6), groups=st.integers(1, 6), seed=st.integers(0, 1000))
def test_no_two_groups_name_alike(classes, groups, seed):
    rule, pool = LabelPermutation(groups), Pool(np.full(classes, 9), np.full(classes, 9), 1)
    if classes == 2 and groups > 2:
        with pytest.raises(ConfigError, match="is more than the 2 orders of 2 classes"):
            rule.shares(6, pool, np.random.default_rng(0))
        return
    samples = Samples(np.zeros((classes, 1), np.float32), np.arange(classes), np.arange(classes))
    orders = [rule.alter(samples, g, classes, seed) for g in range(groups)]
    assert len({tuple(o.y) for o in orders}) == groups
    assert np.array_equal(orders[0].y, samples.y) and all(sorted(o.y) == list(range(classes)) for o in orders)
    assert np.array_equal(orders[-1].key, samples.key)


# Each participant's own samples are split


GROUP_RULE = {"partition": "class_groups", "groups": 2, "alpha": 0.5}
# 270 training samples, 0 to 269, and 70 test samples, 270 to 339; class 3 is in the test split alone.
TRAIN, TEST = np.repeat([0, 1, 2], [150, 80, 40]), np.repeat([0, 1, 3], [20, 10, 40])


class NumberedImages(DataSource):
    """Each sample's only feature is its number."""

    def load(self) -> tuple[Samples, Samples]:
        x = np.arange(len(TRAIN) + len(TEST), dtype=np.float32)[:, None] / 1000
        return Samples(x[: len(TRAIN)], TRAIN), Samples(x[len(TRAIN) :], TEST)


def image_numbers(samples: Samples) -> list[int]:
    """The numbers of normalised samples."""
    return [round(1000 * (v + 1) / 2) for v in samples.x[:, 0].tolist()]


def host_numbered_images(config: DataConfig, sites: int = 1) -> list[ParticipantData]:
    """All participants, from all sites."""
    return [one for i in range(sites) for one in config.host(NumberedImages(), f"site-{i}", i, sites)]


@settings(deadline=None, max_examples=40)
@given(alpha=st.floats(0.05, 10), participants=st.integers(2, 10), seed=st.integers(0, 10_000))
def test_every_sample_is_dealt_once_and_a_fifth_of_ones_own_are_for_testing(alpha, participants, seed):
    config = DataConfig(participants, {**GROUP_RULE, "alpha": alpha}, seed, min_samples=3)
    try:
        people = host_numbered_images(config)
    except DataError:
        assume(False)
    every = [number for one in people for own in (one.train, one.test) for number in image_numbers(own)]
    assert sorted(every) == list(range(340))
    labels = np.concatenate((TRAIN, TEST))
    for one in people:
        whole = len(one.train) + len(one.test)
        assert len(one.train) >= 3
        assert len(one.test) == max(1, round(whole / 5))
        for own in (one.train, one.test):
            assert own.y.tolist() == labels[image_numbers(own)].tolist()
    report = config.report(NumberedImages())
    assert report.disjoint
    assert report.train_unused == report.test_unused == 0
    assert report.train.sum(axis=1).tolist() == [len(one.train) for one in people]
    assert report.test.sum(axis=1).tolist() == [len(one.test) for one in people]


def test_the_sources_own_split_plays_no_part():
    people = host_numbered_images(DataConfig(3, {**GROUP_RULE, "alpha": 10.0}))
    trained = [number for one in people for number in image_numbers(one.train)]
    assert sum(number >= 270 for number in trained) == pytest.approx(0.8 * 70, abs=12)
    assert {3} < {label for one in people for label in one.train.y.tolist()}


def test_the_seed_alone_decides_on_any_number_of_sites():
    config = DataConfig(7, GROUP_RULE, seed=5, min_samples=3)
    once = host_numbered_images(config)
    for sites in (1, 2, 3, 7):
        for one, other in zip(once, host_numbered_images(config, sites), strict=True):
            assert (one.name, one.group) == (other.name, other.group)
            for own, others in ((one.train, other.train), (one.test, other.test)):
                np.testing.assert_array_equal(own.x, others.x)
                np.testing.assert_array_equal(own.y, others.y)
    assert [image_numbers(one.test) for one in once] != [
        image_numbers(one.test) for one in host_numbered_images(replace(config, seed=6))
    ]


def test_indicator_samples_are_neither_trained_nor_tested_on():
    config = DataConfig(4, GROUP_RULE, seed=1, min_samples=3, indicator_samples=7)
    held = {*image_numbers(config.indicator(NumberedImages(), 7))}
    assert len(held) == 21
    every = [
        number for one in host_numbered_images(config) for own in (one.train, one.test) for number in image_numbers(own)
    ]
    assert sorted(every) == sorted(set(range(340)) - held)


def test_those_held_back_have_what_they_would_have_had_anyway():
    plain = DataConfig(6, GROUP_RULE, min_samples=3)
    everyone = {one.name: one for one in host_numbered_images(plain)}
    config = replace(plain, unseen=2)
    for one in (*host_numbered_images(config), *config.newcomers(NumberedImages())):
        assert image_numbers(one.train) == image_numbers(everyone.pop(one.name).train)
    assert not everyone


def test_a_higher_minimum_gives_more_to_test_on():
    """24 to train on are 30 in all, of which 6 are for testing."""
    y = np.repeat(np.arange(10), 600)
    samples, tests = Samples(np.zeros((6000, 1), np.float32), y), Samples(np.zeros((1000, 1), np.float32), y[::6])
    rule = build_partition("class_groups:groups=3,alpha=0.05")
    few, more = (dealt(samples, tests, rule, 60, 0, least) for least in (8, 24))
    assert min(map(len, few.train)) >= 8
    assert min(map(len, few.test)) < 6
    assert min(map(len, more.train)) >= 24
    assert min(map(len, more.test)) >= 6


def test_as_the_label_rule_of_another_one_it_deals_the_sources_split():
    spec = {"partition": "quantity", "lo": 10, "hi": 30, "rule": "class_groups", "alpha": 10.0, "groups": 2}
    people = host_numbered_images(DataConfig(5, spec))
    assert all(max(image_numbers(one.train)) < 270 <= min(image_numbers(one.test)) for one in people)
    assert all(10 <= len(one.train) <= 30 for one in people)


def test_a_fifth_rounded_and_at_least_one():
    counts = np.array([[7, 0], [3, 10], [1, 0], [0, 0], [2, 2], [0, 28]])
    train, test = split(counts, np.random.default_rng(0))
    assert test.sum(axis=1).tolist() == [1, 3, 1, 0, 1, 6]
    assert (train + test == counts).all()
    assert (train >= 0).all()
    assert (test >= 0).all()


def test_the_split_is_at_random_and_not_by_class():
    """20 of 80 + 20: 16 of the first class on average, with the deviation of drawing without replacement, 1.61."""
    rng = np.random.default_rng(0)
    drawn = np.array([split(np.array([[80, 20]]), rng)[1][0, 0] for _ in range(2000)])
    assert drawn.mean() == pytest.approx(16, abs=0.15)
    assert drawn.std() == pytest.approx(np.sqrt(20 * 0.8 * 0.2 * 80 / 99), rel=0.06)


def test_samples_are_taken_from_both_splits():
    train = Samples(np.array([[0], [51], [255]], np.uint8), np.array([4, 5, 6]), np.array([1, 2, 3]))
    test = Samples(np.array([[0.5], [0.75]], np.float32), np.array([7, 8]), np.array([4, 5]))
    both = taken(train, test, np.array([1, 2, 4]))
    np.testing.assert_allclose(both.x, [[0.2], [1], [0.75]])  # bytes are brought to the scale of the others
    assert both.x.dtype == np.float32
    assert both.y.tolist() == [5, 6, 8]
    assert both.key is not None
    assert both.key.tolist() == [2, 3, 5]
    one = taken(train, test, np.array([0, 2]))
    assert one.x.dtype == np.uint8
    assert one.x.tolist() == [[0], [255]]
    other = taken(train, test, np.array([3]))
    assert other.x.tolist() == [[0.5]]
    assert other.y.tolist() == [7]
