# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""From a source to a site's participants, those that are held back, and samples that are set aside."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from cfl_flare.cli.simulate import Simulation, check_simulation
from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, DataSource, Deal, Digits, Npz, Samples, report_of
from cfl_flare.data.deal import draw_indicator, read_indicator
from cfl_flare.data.summary import participant_names
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.methods import WeCFL
from cfl_flare.report.figures import draw_partition
from cfl_flare.report.table import partition_table

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
    for split, n in (("train", 200), ("test", 100)):
        contents[f"{split}_images"] = rng.integers(0, 255, (n, 4, 4)).astype(np.uint8)
        contents[f"{split}_labels"] = rng.integers(0, 3, n)
        contents[f"{split}_clinic"] = rng.integers(0, 4, n)
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
def test_figure_and_table(tmp_path, spec):
    report = DataConfig(12, spec, seed=3, min_samples=5).report(Digits())
    assert draw_partition(report, tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
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
        for split in ("train", "test"):
            np.testing.assert_array_equal(getattr(one, split).x, getattr(everyone[one.name], split).x)
            np.testing.assert_array_equal(getattr(one, split).y, getattr(everyone[one.name], split).y)
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
    """Each sample's only feature is its number; 20, 30 and 40 of three classes."""

    def load(self) -> tuple[Samples, Samples]:
        y = np.repeat([0, 1, 2], [20, 30, 40])
        return tuple(Samples(np.arange(n, n + 90, dtype=np.float32)[:, None], y) for n in (0, 1000))


def numbers(samples: Samples) -> set[int]:
    return {round((v + 1) / 2) for v in samples.x[:, 0].tolist()}


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


def write(path: Path, **changes) -> str:
    arrays = {
        "train_images": np.arange(24, dtype=np.uint8).reshape(6, 2, 2),
        "train_labels": np.array([[0], [0], [0], [1], [1], [1]]),
    }
    np.savez(path, **{**arrays, **changes})
    return str(path)


def test_a_server_reads_them_from_a_file(tmp_path, monkeypatch):
    path = write(tmp_path / "few.npz")
    samples = read_indicator(path, 2, 0)
    assert samples.x.shape == (4, 1, 2, 2)
    assert samples.y.tolist() == [0, 0, 1, 1]
    assert len(read_indicator(path, 3, 0)) == 6  # nobody trains on what is left
    monkeypatch.setenv("CFL_DATA_ROOT", str(tmp_path))
    np.testing.assert_array_equal(read_indicator("few.npz", 2, 0).x, samples.x)


def test_files_that_will_not_do_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"few.npz: class 0 has 3 training samples, too few .* = 4 of each class; "):
        read_indicator(write(tmp_path / "few.npz"), 4, 0)
    with pytest.raises(DataError, match=r"indicator_file: path = 'none.npz' is not a file"):
        read_indicator("none.npz", 1, 0)
    with pytest.raises(DataError, match=r"half.npz: labels are numbers to predict, .* are drawn of each class; name"):
        read_indicator(write(tmp_path / "half.npz", train_labels=np.full(6, 0.5)), 1, 0)
    np.savez(tmp_path / "test.npz", test_images=np.zeros((2, 2, 2)))
    with pytest.raises(DataError, match="no array 'train_images'"):
        read_indicator(str(tmp_path / "test.npz"), 1, 0)
