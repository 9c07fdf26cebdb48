# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Transforms that are refused: when they are named, when they are built, or when a site has its data."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from cfl_flare.core.errors import ConfigError
from cfl_flare.data import ParticipantData, Samples
from cfl_flare.data.samples import normalised
from cfl_flare.engine.site import Site
from cfl_flare.methods import FedAvg
from cfl_flare.models import MLP
from cfl_flare.training.augment import Augment
from cfl_flare.training.runtime import Runtime
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.transforms import ALLOWED, REQUIRED
from tests.training.test_augment import FLIP, JITTER, MAYBE, SHAPE, Pixels, tensors

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Lambda", "'Lambda' is none of the transforms that a job may name; there are RandomHorizontalFlip, "),
        ("RandomFlip", "'RandomFlip' is none of the transforms that a job may name; did you mean Random"),
        ("os.system", "'os.system' is none of the transforms that a job may name; there are "),
        ("RandomHorizontalFlip:q=1", "unknown setting 'q'; it has p"),
        ("RandomChannelPermutation:p=1", "unknown setting 'p'; it has none"),
        ("RandomHorizontalFlip:p=2", "p = 2 should be a number in [0, 1]"),
        ("RandomHorizontalFlip:p=True", "p = True should be a number in [0, 1]"),
        ("RandomHorizontalFlip:p=often", "p = 'often' should be a number in [0, 1]"),
        ("RandomRotation:degrees=1e999", "degrees = inf should be a number in [-10000, 10000], or a list of up to 4"),
        (
            "RandomRotation:degrees=9,expand=True",
            "unknown setting 'expand'; it has degrees, center, interpolation, fill",
        ),
        (
            "RandomRotation:degrees=9,interpolation=lanczos",
            "interpolation = 'lanczos' should be one of 'nearest', 'bil",
        ),
        ("RandomCrop", "'size' is missing; write RandomCrop:size=..."),
        ("RandomCrop:size=[8,8,8]", "size = [8, 8, 8] should be a whole number in [1, 4096], or a list of up to 2"),
        ("RandomCrop:size=8.5", "size = 8.5 should be a whole number in [1, 4096], or a list of up to 2"),
        ("Resize:size=100000", "size = 100000 should be a whole number in [1, 4096], or a list of up to 2"),
        ("RandomErasing:inplace=True", "unknown setting 'inplace'; it has p, scale, ratio, value"),
    ],
)
def test_a_transform_that_is_refused_when_it_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"training: augment = {text!r}: {says}")):
        TrainSettings(augment=[text])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (FLIP, "augment = 'RandomHorizontalFlip:p=1' should be a list of transforms: write ['Ran"),
        ([3], "augment = 3 should be text like 'RandomCrop:size=28,padding=2', of up to 200 characters"),
        (["x" * 201], "should be text like 'RandomCrop:size=28,padding=2', of up to 200 characters"),
        ([FLIP] * 17, "should be a list of transforms, of up to 16; leave some out"),
        (["RandomHorizontalFlip:p"], "'RandomHorizontalFlip:p': 'p' is not key=value; write name:key=value"),
    ],
)
def test_what_is_no_list_of_transforms(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        TrainSettings(augment=given)


def test_what_torchvision_refuses() -> None:
    with pytest.raises(ConfigError, match=r"'GaussianBlur:kernel_size=4': torchvision refuses it \(ValueError: .*odd"):
        Augment(["GaussianBlur:kernel_size=4"])
    with pytest.raises(
        ConfigError, match="'RandomErasing': RandomErasing cannot transform masks with their images; le"
    ):
        Runtime(Pixels, TrainSettings(augment=["RandomErasing"], task="segmentation"), seed=0)


def test_a_transform_that_this_torchvision_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torchvision.transforms.v2.GaussianNoise")
    with pytest.raises(
        ConfigError, match=r"'GaussianNoise': torchvision \S+ has no GaussianNoise; install a newer one"
    ):
        Augment(["GaussianNoise"])


def site(x: np.ndarray, augment: list[str]) -> Site:
    """A site to which these samples are added: bytes, or floats as they are."""
    x = normalised(x) if x.dtype == np.uint8 else x
    samples = Samples(x, np.arange(len(x)) % 2)
    made = Site(FedAvg(), partial(MLP, x.shape[1:], 2), TrainSettings(augment=augment), seed=0)
    made.add([ParticipantData("ward", samples, samples)])
    return made


REFUSED = [
    (
        [MAYBE],
        (4,),
        "takes images (channels, height, width), and samples have shape (4,); leave augment out",
    ),
    (
        ["Resize:size=4096"],
        SHAPE,
        "augment = 'Resize:size=4096': size = 4096 is too large for images of shape (1, 8, 8); it may be up to 24",
    ),
    (
        ["Pad:padding=[1,9]", "CenterCrop:size=8"],
        SHAPE,
        "padding = [1, 9] is too large for images of shape (1, 8, 8); it may be up to 8",
    ),
    (["GaussianBlur:kernel_size=4095"], SHAPE, "kernel_size = 4095 is too large for images of shape (1, 8, 8)"),
    (["ElasticTransform:sigma=10000"], SHAPE, "sigma = 10000 is too large for images of shape (1, 8, 8); it may"),
    (["Resize:size=24", "Pad:padding=8"], SHAPE, "'Pad:padding=8' makes images of 40 pixels a side; lower its set"),
    (
        [MAYBE, "Resize:size=9", MAYBE],
        SHAPE,
        "'Resize:size=9' makes images of shape (1, 9, 9) torch.float32 of (1, 8, 8) torch.float32; crop, pad or resize",
    ),
    (["RandomCrop:size=9"], SHAPE, "augment = 'RandomCrop:size=9' fails on images of shape (1, 8, 8) (ValueError: "),
    (["ColorJitter:hue=0.1"], (4, 8, 8), "'ColorJitter:hue=0.1' fails on images of shape (4, 8, 8) (TypeError: "),
    (["RandomGrayscale:p=0.001"], (4, 8, 8), "'RandomGrayscale:p=0.001' fails on images of shape (4, 8, 8) (V"),
]


@pytest.mark.parametrize(("augment", "shape", "says"), REFUSED)
def test_what_a_site_refuses_before_the_first_round(augment: list[str], shape: tuple[int, ...], says: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, (4, *shape), np.uint8)
    with pytest.raises(ConfigError, match=re.escape(says)):
        site(x, augment)


def test_colours_need_values_from_0_to_1() -> None:
    x = np.random.default_rng(0).normal(size=(40, *SHAPE)).astype(np.float32)
    site(x, [MAYBE])  # wherever pixels are moved, their values stay
    with pytest.raises(
        ConfigError, match=r"ward: .*'ColorJitter.* takes images in \[0, 1\], and these are in \[-.*, .*\]"
    ):
        site(x, [JITTER])


def test_a_result_that_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = tensors()
    chain = Augment([FLIP])
    monkeypatch.setattr("torchvision.transforms.v2.RandomHorizontalFlip.transform", lambda self, x, params: x / 0)
    with pytest.raises(
        ConfigError, match=r"RandomHorizontalFlip:p=1'.: a result is not finite; leave out what makes it"
    ):
        chain(x, y, 0)
    with pytest.raises(
        ConfigError, match=r"ward: training: augment = .'RandomHorizontalFlip:p=1'.: a result is not fin"
    ):
        chain.check(x.numpy(), y, "ward")


def test_no_transform_takes_a_function_or_a_file() -> None:
    assert not {"Lambda", "RandomApply", "RandomChoice", "Compose", "MixUp", "CutMix", "FiveCrop"} & ALLOWED.keys()
    assert not {"transforms", "lambd", "inplace", "expand", "path"} & {
        key for known in ALLOWED.values() for key in known
    }
    for name in REQUIRED:
        first = next(iter(ALLOWED[name]))
        assert inspect.signature(getattr(v2, name)).parameters[first].default is inspect.Parameter.empty


def test_settings_are_checked_without_torch() -> None:
    code = (
        "import sys; from cfl_flare.training.settings import TrainSettings\n"
        "TrainSettings(augment=['RandomCrop:size=28,padding=2']); print(*sys.modules)"
    )
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "cfl_flare.training.transforms" in names
    assert not {"torch", "torchvision"} & set(names)
