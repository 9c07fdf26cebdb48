# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""From a source to a site's participants, and to the report of who got what."""

import io
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, DataSource, Deal, Digits, Npz, Samples, report_of
from cfl_flare.report.figures import draw_partition
from cfl_flare.report.table import partition_table

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
