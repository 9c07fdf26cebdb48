# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Indicator samples: a few of each class, on which a server compares what models predict (FedDSMIC sec. 4.2)."""

from __future__ import annotations

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.seeds import stream
from cfl_flare.data.files import find, read_npz
from cfl_flare.data.samples import Samples, channels_first, one_label_each


def drawn(labels: np.ndarray, per_class: int, seed: int, where: str, spare: int = 0) -> np.ndarray:
    """Indices of so many samples of each class, one class after the other.

    They depend on the labels and the seed alone, and a larger draw holds the smaller ones.

    Args:
        labels: ``(n,)``.
        per_class: N_c.
        seed: of the draw.
        where: whose samples they are, for the error.
        spare: how many must be left of each class.

    Raises:
        ConfigError: a class has too few.
    """
    chosen = [np.zeros(0, np.int64)]
    for c in np.unique(labels) if per_class else ():
        own = np.flatnonzero(labels == c)
        require(
            len(own) >= per_class + spare,
            f"{where}: class {c} has {len(own)} training samples, too few for indicator_samples = {per_class} of each "
            f"class{' and others to train on' * bool(spare)}; lower indicator_samples, or give more samples",
        )
        chosen.append(stream(seed, "indicator samples", int(c)).permutation(own)[:per_class])
    return np.concatenate(chosen)


def read_indicator(path: str, per_class: int, seed: int) -> Samples:
    """Indicator samples of a file in MedMNIST's layout: so many of each class of its ``train_images, train_labels``.

    Args:
        path: the file; ``$NAME`` and ``~`` are expanded. A relative path that is not found is looked for in
            ``$CFL_DATA_ROOT``.
        per_class: N_c.
        seed: of the draw.

    Raises:
        DataError: it cannot be read, or its samples are not sound.
        ConfigError: a class has too few.
    """
    where = "indicator_file"
    file = find(path, where)
    arrays = read_npz(file, ["train_images", "train_labels"])
    images = channels_first(arrays["train_images"], f"{file}: train_images")
    images = images.astype(np.float32) if images.dtype == np.float64 else images
    samples = Samples(images, one_label_each(arrays["train_labels"])).check(f"{where} {file}")
    return samples.take(drawn(samples.y, per_class, seed, f"{where} {file}"))
