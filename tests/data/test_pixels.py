# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The range of pixels: what is refused, and how an agreed range brings numbers to what models see."""

from __future__ import annotations

import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, DataSource, Npz, ParticipantData, Samples, SiteData
from cfl_flare.data.pixels import describe_range, scale_to
from cfl_flare.data.samples import check_values
from cfl_flare.data.summary import DataSummary
from cfl_flare.data.table import Table
from tests.helpers.files import write_npz


def write_images_npz(folder, images: np.ndarray) -> str:
    return str(write_npz(folder / "ward.npz", images, np.arange(len(images)) % 2))


def of_range(low: float, high: float, dtype: type = np.float32) -> np.ndarray:
    """Ten images of 4x4 whose numbers go from low to high."""
    return np.linspace(low, high, 160).reshape(10, 4, 4).astype(dtype)


@pytest.mark.parametrize(("low", "high"), [(0, 255), (-1024, 3071), (0, 4095), (-200, 0), (0, 100)])
def test_numbers_that_are_no_pixels_are_refused(tmp_path, monkeypatch, low, high):
    path = write_images_npz(tmp_path, of_range(low, high))
    found = f"samples go from {low} to {high}: expected 0 to 1; set range of the source to the smallest and the largest"
    with pytest.raises(DataError, match=found):
        DataConfig(2, "iid").report(Npz(path))
    monkeypatch.setenv("CFL_DATA", path)
    with pytest.raises(DataError, match=found):
        DataConfig().host(SiteData(), "s", 0, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.uint16])
def test_a_range_brings_numbers_to_pixels(tmp_path, monkeypatch, dtype):
    """-1000, 1000 and 3000 of a range from -1000 to 3000 are 0, 0.5 and 1, and models see -1, 0 and 1."""
    images = np.array([[[-1000, 1000], [3000, 0]]] * 8)
    shifted = (images - images.min() if dtype == np.uint16 else images).astype(dtype)
    ends = [0, 4000] if dtype == np.uint16 else [-1000, 3000]
    path = write_images_npz(tmp_path, shifted)
    monkeypatch.setenv("CFL_DATA", path)
    for source in (Npz(path, range=ends), SiteData(range=ends)):
        (data,) = DataConfig().host(source, "s", 0, 1)
        np.testing.assert_allclose(data.train.x[0, 0], [[-1, 0], [1, -0.5]])


def test_floats_of_bytes_are_what_bytes_are(tmp_path):
    images = np.arange(160, dtype=np.uint8).reshape(10, 4, 4)
    (data,) = DataConfig().host(Npz(write_images_npz(tmp_path, images)), "s", 0, 1)
    (same,) = DataConfig().host(Npz(write_images_npz(tmp_path, images.astype(np.float32)), range=[0, 255]), "s", 0, 1)
    np.testing.assert_allclose(same.train.x, data.train.x, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, bool])
def test_bytes_of_two_values_have_a_range(dtype):
    images = np.array([0, 1, 1, 0]).astype(dtype)
    assert scale_to(images, [0, 1], "ward").tolist() == [0, 1, 1, 0]


def test_half_precision_overflows_without_a_warning(recwarn):
    check_values(np.full((2, 3), 0.5, np.float16), "ward")
    assert not recwarn.list


def test_a_range_that_is_not_the_images_own_is_refused():
    with pytest.raises(DataError, match=r"images go from 0 to 1, and range is \[0, 255\]; name the range of these"):
        scale_to(of_range(0, 1), [0, 255], "ward")
    with pytest.raises(DataError, match=r"images are bytes, and range is .-1024, 3071.; bytes are from 0 to 255"):
        scale_to(of_range(0, 255, np.uint8), [-1024, 3071], "ward")
    with pytest.raises(DataError, match="an image holds NaN or infinity"):
        scale_to(np.array([0, np.nan]), [0, 1], "ward")
    assert scale_to(np.array([-5000.0, 100, 9000]), [-100, 300], "window").tolist() == [0, 0.5, 1]
    for wrong in ([1, 0], [0], "0,1", [0, np.inf], [True, 2]):
        with pytest.raises(ConfigError, match=r"range = .* should be the smallest and the largest number"):
            Npz("x.npz", range=wrong)


def test_a_range_is_for_images_of_numbers(tmp_path, monkeypatch):
    (tmp_path / "ward.csv").write_text("x,label\n1,0\n2,1\n")
    monkeypatch.setenv("CFL_DATA", str(tmp_path / "ward.csv"))
    with pytest.raises(DataError, match=r"range = \[0, 1\] is of images in an .npz file"):
        SiteData(range=[0, 1]).load()


def test_near_misses_are_remarked():
    def remark(low: float, high: float) -> str:
        x = (of_range(low, high)[:, None] - 0.5) / 0.5
        samples = Samples(x, np.arange(10) % 2)
        return DataSummary.of(ParticipantData("p", samples, samples)).unscaled

    assert remark(0, 1) == remark(0.2, 0.7) == ""
    assert remark(-1, 1).startswith("samples go from -1 to 1 where 0 to 1 is expected; bring them to uint8")
    assert remark(0, 1 / 255).startswith("samples go from 0 to 0.00392 where 0 to 1 is expected; look whether")
    assert describe_range(0, 0) == ""


class Raw(DataSource):
    """Ages, which nobody scaled."""

    def load(self) -> tuple[Samples, Samples]:
        samples = Samples(np.arange(20, 60, dtype=np.float32)[:, None], np.arange(40) % 2)
        return samples, samples


def test_a_source_of_the_user_scales_by_itself():
    with pytest.raises(DataError, match=r"samples go from 20 to 59: expected 0 to 1; scale them in the source's load"):
        DataConfig(2, "iid").host(Raw(), "s", 0, 1)


def test_unscaled_tables_are_refused_in_simulations_only(tmp_path):
    """A job names the absent values, so that refusals at a site would tell it the largest of the others."""
    path = tmp_path / "ward.csv"
    path.write_text("x,label\n" + "".join(f"{20 + i},{i % 2}\n" for i in range(40)))
    (person,) = DataConfig().host(Table(str(path), scaling="none"), "s", 0, 1)
    assert float(person.train.x.max()) > 10
    with pytest.raises(DataError, match=r"p0: samples go from 2. to 5.: expected 0 to 1; set scaling to auto"):
        DataConfig(2, "iid").host(Table(str(path), scaling="none"), "s", 0, 1)
