# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The range of pixels: what a source expects, what it refuses, and how other numbers are brought to it.

Models see pixels in [-1, 1]. Bytes and floats in [0, 1] are brought there without a setting. Other numbers, such as
Hounsfield units, have a range that all sites agree on. If each site had a range of its own, the same tissue would be
brighter at one site than at another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.core.settings import Bounds

# Floats beyond this are not in [0, 1], whatever the rounding: 0..255, Hounsfield units, 12-bit numbers.
FARTHEST = 10.0
# Floats within this of [0, 1] are in it.
ROUNDING = 0.01
# Samples that fill a smaller part of a range were divided twice, or are in other units.
LEAST_PART = 0.02


def _is_range(value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return False
    if not all(type(end) in (int, float) and abs(end) <= 1e9 for end in value):
        return False
    return bool(value[0] < value[1])


RANGE = Bounds(
    "the smallest and the largest number of the pixels, such as [0,255] or [-1024,3071]",
    _is_range,
)
RANGE_HELP = (
    "of images of numbers other than bytes and floats in [0, 1]: the smallest and the largest, such as [-1024,3071], "
    "alike at all sites; they become 0 and 1, and what lies outside becomes the nearer one"
)


def pixel_facts(source: object) -> dict[str, Any]:
    """For a run's summary: the range of pixels that a data source names; empty if it names none."""
    ends = getattr(source, "range", None)
    return {} if ends is None else {"range": list(map(float, ends))}


def scale_to(images: np.ndarray, range: Sequence[float], where: str) -> np.ndarray:
    """Brings pixels from an agreed range to [0, 1].

    Args:
        images: ``(n, ...)`` whole numbers or floats.
        range: the two numbers that become 0 and 1.
        where: names the images in the error.

    Returns:
        float32, of the same shape; pixels outside of the range are 0 or 1.

    Raises:
        DataError: the images are no numbers, or lie in a small part of the range, so that it is not theirs.
    """
    low, high = map(float, range)
    if images.dtype.kind not in "biuf":
        raise DataError(f"{where}: images have dtype {images.dtype}; expected numbers")
    if not images.size:
        return images.astype(np.float32)
    smallest, largest = float(images.min()), float(images.max())
    if not np.isfinite([smallest, largest]).all():
        raise DataError(
            f"{where}: an image holds NaN or infinity; fix it or leave it out"
        )
    if images.dtype == np.uint8 and not 0 <= low < high <= 255:
        reason = f"images are bytes, and range is [{low:g}, {high:g}]"
        raise DataError(
            f"{where}: {reason}; bytes are from 0 to 255: give the numbers that they were made of"
        )
    covered = min(largest, high) - max(smallest, low)
    if covered < LEAST_PART * (high - low):
        reason = f"images go from {smallest:.4g} to {largest:.4g}, and range is [{low:g}, {high:g}]"
        raise DataError(
            f"{where}: {reason}; name the range of these numbers, alike at all sites"
        )
    scaled = (images.astype(np.float32) - np.float32(low)) / np.float32(high - low)
    return scaled.clip(0, 1)


def check_range(x: np.ndarray, where: str, hint: str) -> None:
    """Checks that samples are bytes, or floats in about [0, 1].

    Args:
        x: ``(n, ...)`` samples as their source gives them.
        where: names the samples in the error.
        hint: what the user can do.

    Raises:
        DataError: a number is clearly outside of [0, 1].
    """
    if x.dtype.kind != "f" or not x.size:
        return
    smallest, largest = float(np.nanmin(x)), float(np.nanmax(x))
    if smallest >= -FARTHEST and largest <= FARTHEST:
        return
    raise DataError(
        f"{where}: samples go from {smallest:.4g} to {largest:.4g}: expected 0 to 1; {hint}"
    )


def describe_range(smallest: float, largest: float) -> str:
    """A remark on samples that are not quite in [0, 1], or fill a small part of it; empty if they do.

    Args:
        smallest: the smallest number of all samples, where bytes count over 255.
        largest: the largest one.
    """
    found = f"samples go from {smallest:.3g} to {largest:.3g} where 0 to 1 is expected"
    if smallest < -ROUNDING or largest > 1 + ROUNDING:
        return f"{found}; bring them to uint8, or floats in [0, 1], or name their range"
    if smallest >= 0 and 0 < largest < LEAST_PART:
        return f"{found}; look whether they were divided twice, or name their range"
    return ""
