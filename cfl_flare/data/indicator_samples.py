# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Indicator samples: a few of each class, on which a server compares models' predictions (FedDSMIC sec. 4.2)."""

from __future__ import annotations

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import DataError
from cfl_flare.core.seeds import stream
from cfl_flare.data.files import find, read_npz
from cfl_flare.data.labels import FORMS, form_of
from cfl_flare.data.samples import Samples


def drawn(labels: np.ndarray, per_class: int, seed: int, where: str, spare: int = 0) -> np.ndarray:
    """Indices of ``per_class`` samples (N_c) of each class, one class after the other; ``spare`` must be left of each.

    They depend on the labels and the seed alone, and a larger draw contains the smaller ones.

    Raises:
        ConfigError: a class has too few.
        DataError: the labels are no class numbers.
    """
    chosen = [np.zeros(0, np.int64)]
    if per_class and (form := form_of(labels, where)) != "class":
        raise DataError(
            f"{where}: labels are {FORMS[form]}, and indicator_samples = {per_class} are drawn of each class; name "
            "labels that are class numbers, or take a method without indicator samples"
        )
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
    """Draws indicator samples from the training split of a file in MedMNIST's layout, found as by the source npz.

    Raises:
        DataError: the file cannot be read, or its samples are not valid.
        ConfigError: a class has too few.
    """
    file = find(path, "indicator_file")
    arrays, where = read_npz(file, ["train_images", "train_labels"]), f"indicator_file {file}"
    samples = Samples.of_images(where, arrays["train_images"], arrays["train_labels"]).check(where)
    return samples.take(drawn(samples.y, per_class, seed, where))
