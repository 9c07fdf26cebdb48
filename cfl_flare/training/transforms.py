# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The transforms of torchvision.transforms.v2 that a job may name, and what it may set of each.

A site does not trust a job. None of these takes a function, reads a file or returns more than one image, and all sizes
are bounded. The table needs neither torch nor torchvision, so that settings are checked without them. A `ConfigError`
names the transform, the value and the way out.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping
from typing import Any

from cfl_flare.core.config import parse_spec, require
from cfl_flare.core.settings import Bounds

# The longest chain, and the longest text of one transform.
MOST_TRANSFORMS = 16
LONGEST = 200
# The largest side of an image, in pixels. `cfl_flare.training.augment` checks what fits an image.
LARGEST_SIDE = 4096
LARGEST_NUMBER = 1e4


def _numbers(
    low: float,
    high: float,
    most: int = 1,
    integer: bool = False,
) -> Bounds:
    """A number in a range, or a list of up to ``most``."""
    text = (
        f"a {'whole ' * integer}number in [{low:g}, {high:g}]"
        + f", or a list of up to {most}" * (most > 1)
    )
    kinds = int if integer else (int, float)

    def hold(value: Any) -> bool:
        values = value if most > 1 and isinstance(value, (list, tuple)) else [value]
        numbers = [
            v for v in values if isinstance(v, kinds) and not isinstance(v, bool)
        ]
        return (
            1 <= len(values) <= most
            and len(numbers) == len(values)
            and all(low <= v <= high for v in numbers)
        )

    return Bounds(text, hold)


def _one_of(*choices: Any) -> Bounds:
    text = f"one of {', '.join(map(repr, choices))}"
    return Bounds(text, lambda v: isinstance(v, type(choices[0])) and v in choices)


SHARE = _numbers(0, 1)
CHANNELS = _numbers(0, 1, 16)
ANY = _numbers(-LARGEST_NUMBER, LARGEST_NUMBER, 4)
RANGE = _numbers(0, LARGEST_NUMBER, 2)
HUE = _numbers(-0.5, 0.5, 2)
FLAG = _one_of(True, False)
SIZE = _numbers(1, LARGEST_SIDE, 2, integer=True)
PADDED = {
    "padding": _numbers(0, LARGEST_SIDE, 4, integer=True),
    "fill": CHANNELS,
    "padding_mode": _one_of("constant", "edge", "reflect", "symmetric"),
}
MOVED = {"interpolation": _one_of("nearest", "bilinear"), "fill": CHANNELS}
SCALED = {"interpolation": _one_of("nearest", "bilinear", "bicubic"), "antialias": FLAG}
CHANCE = {"p": SHARE}
JITTER = {**dict.fromkeys(("brightness", "contrast", "saturation"), RANGE), "hue": HUE}
FEW = _numbers(1, 10, integer=True)
BINS = _numbers(2, 100, integer=True)

GEOMETRY: dict[str, Mapping[str, Bounds]] = {
    "RandomHorizontalFlip": CHANCE,
    "RandomVerticalFlip": CHANCE,
    "RandomRotation": {"degrees": ANY, "center": ANY, **MOVED},
    "RandomAffine": {
        "degrees": ANY,
        "translate": RANGE,
        "scale": RANGE,
        "shear": ANY,
        "center": ANY,
        **MOVED,
    },
    "RandomPerspective": {"distortion_scale": SHARE, **CHANCE, **MOVED},
    "ElasticTransform": {"alpha": RANGE, "sigma": RANGE, **MOVED},
    "RandomCrop": {"size": SIZE, "pad_if_needed": FLAG, **PADDED},
    "RandomResizedCrop": {"size": SIZE, "scale": RANGE, "ratio": RANGE, **SCALED},
    "CenterCrop": {"size": SIZE},
    "Pad": PADDED,
    "Resize": {"size": SIZE, **SCALED},
    "RandomErasing": {**CHANCE, "scale": RANGE, "ratio": RANGE, "value": CHANNELS},
}
# These compute with values in [0, 1], and cut off what is beyond.
COLOUR: dict[str, Mapping[str, Bounds]] = {
    "ColorJitter": JITTER,
    "RandomPhotometricDistort": {**JITTER, **CHANCE},
    "RandomChannelPermutation": {},
    "RandomGrayscale": CHANCE,
    "RandomInvert": CHANCE,
    "RandomPosterize": {"bits": _numbers(0, 8, integer=True), **CHANCE},
    "RandomSolarize": {"threshold": SHARE, **CHANCE},
    "RandomAdjustSharpness": {
        "sharpness_factor": _numbers(0, LARGEST_NUMBER),
        **CHANCE,
    },
    "RandomAutocontrast": CHANCE,
    "RandomEqualize": CHANCE,
    "GaussianBlur": {"kernel_size": SIZE, "sigma": RANGE},
    "GaussianNoise": {"mean": _numbers(-1, 1), "sigma": _numbers(0, LARGEST_NUMBER)},
}
POLICIES: dict[str, Mapping[str, Bounds]] = {
    "AutoAugment": {"policy": _one_of("imagenet", "cifar10", "svhn"), **MOVED},
    "RandAugment": {
        "num_ops": FEW,
        "magnitude": _numbers(0, 99, integer=True),
        "num_magnitude_bins": BINS,
        **MOVED,
    },
    "TrivialAugmentWide": {"num_magnitude_bins": BINS, **MOVED},
    "AugMix": {
        **dict.fromkeys(("severity", "mixture_width", "chain_depth"), FEW),
        "alpha": _numbers(0.01, 100),
        "all_ops": FLAG,
        **MOVED,
    },
}
# torchvision leaves masks out of these.
WITHOUT_MASKS = ("RandomErasing", *POLICIES)
ALLOWED = {**GEOMETRY, **COLOUR, **POLICIES}
# The first setting of these has no default.
REQUIRED = {
    "RandomRotation",
    "RandomAffine",
    "RandomCrop",
    "RandomResizedCrop",
    "CenterCrop",
    "Pad",
    "Resize",
}
REQUIRED |= {
    "RandomPosterize",
    "RandomSolarize",
    "RandomAdjustSharpness",
    "GaussianBlur",
}


def parse_transform(text: str) -> tuple[str, dict[str, Any]]:
    """The name of a transform and its settings, of ``"RandomCrop:size=28,padding=2"``.

    Args:
        text: a transform as a job names it: ``RandomCrop:size=28``.
    """
    wanted = f"should be text like 'RandomCrop:size=28,padding=2', of up to {LONGEST} characters"
    is_short = isinstance(text, str) and len(text) <= LONGEST
    require(is_short, f"training: augment = {reprlib.repr(text)} {wanted}")
    name, settings = parse_spec(text)
    close = difflib.get_close_matches(name, ALLOWED)
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    else:
        hint = f"there are {', '.join(ALLOWED)}"
    require(
        name in ALLOWED,
        f"{name_transform(text)}: {name!r} is none of the transforms that a job may name; {hint}",
    )
    known = ALLOWED[name]
    for key, value in settings.items():
        has = f"it has {', '.join(known)}" if known else "it has none"
        require(key in known, f"{name_transform(text)}: unknown setting {key!r}; {has}")
        require(
            known[key].hold(value),
            f"{name_transform(text)}: {key} = {value!r} should be {known[key].text}",
        )
    needed = next(iter(known), None) if name in REQUIRED else None
    require(
        needed is None or needed in settings,
        f"{name_transform(text)}: {needed!r} is missing; write {name}:{needed}=...",
    )
    return name, settings


def check_augment(given: Any) -> tuple[str, ...]:
    """The transforms of a run, checked by the table.

    Args:
        given: the transforms of a run.
    """
    wanted = f"training: augment = {reprlib.repr(given)} should be a list of transforms"
    require(
        isinstance(given, (list, tuple)),
        f"{wanted}: write ['RandomHorizontalFlip:p=0.5', ...]",
    )
    require(
        len(given) <= MOST_TRANSFORMS,
        f"{wanted}, of up to {MOST_TRANSFORMS}; leave some out",
    )
    for text in given:
        parse_transform(text)
    return tuple(given)


def name_transform(text: str) -> str:
    """The beginning of a message about one transform.

    Args:
        text: a transform as a job names it: ``RandomCrop:size=28``.
    """
    return f"training: augment = {text!r}"
