# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The CIFAR-10 images of the benchmarks, a data source of their own: JPEGs end to end in an npz file.

It lies in a module of its own, which jobs carry to the sites.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.core.settings import check_types
from cfl_flare.data.files import find, read_npz
from cfl_flare.data.images import decoded
from cfl_flare.data.samples import DataSource, Samples, one_label_each

WHERE = "data jpeg-npz"


@dataclass(frozen=True)
class JpegNpz(DataSource):
    """JPEGs end to end in an npz file: ``{train,test}_jpeg`` (bytes), ``_offsets`` (n + 1) and ``_labels``.

    Image i is the file in bytes ``offsets[i]:offsets[i + 1]``.

    Attributes:
        path: the file, in the working folder or below ``$CFL_DATA_ROOT``.
    """

    path: str

    def __post_init__(self) -> None:
        check_types(self, WHERE)

    def load(self) -> tuple[Samples, Samples]:
        """Both splits, decoded, uint8."""
        path = find(self.path, WHERE)
        arrays = read_npz(path, [f"{s}_{kind}" for s in ("train", "test") for kind in ("jpeg", "offsets", "labels")])
        train, test = (self._split(arrays, split, f"{path}: {split}") for split in ("train", "test"))
        return train, test

    @staticmethod
    def _split(arrays: dict[str, np.ndarray], split: str, where: str) -> Samples:
        data, offsets, labels = (arrays[f"{split}_{kind}"] for kind in ("jpeg", "offsets", "labels"))
        if data.ndim != 1 or data.dtype != np.uint8:
            raise DataError(f"{where}_jpeg is {data.dtype} {data.shape}; should be the files' bytes, uint8 (bytes,)")
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
            raise DataError(f"{where}_offsets is {offsets.dtype} {offsets.shape}; should be whole numbers (n + 1,)")
        offsets = offsets.astype(np.int64)
        if offsets[0] < 0 or offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
            raise DataError(f"{where}_offsets do not rise from 0 to the {len(data)} bytes of {split}_jpeg")
        if len(offsets) - 1 != len(labels):
            raise DataError(f"{where}: {len(offsets) - 1} images but {len(labels)} labels")
        if not len(labels):
            raise DataError(f"{where}: no samples")
        files = [io.BytesIO(data[a:b].tobytes()) for a, b in pairwise(offsets)]
        images = decoded(files, lambda i: f"{where} image {i}")
        return Samples(images, one_label_each(labels)).check(where)
