# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What is set aside of samples: for testing, by class, owner, patient, date or a column; and indicator samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import DataError
from cfl_flare.core.seeds import stream
from cfl_flare.core.text import shown
from cfl_flare.data.files import find, read_npz
from cfl_flare.data.labels import FORMS, form_of, strata
from cfl_flare.data.pixels import check_range
from cfl_flare.data.samples import Samples, normalised

if TYPE_CHECKING:
    import pandas as pd


def split_by_class(
    samples: Samples, test_share: float, seed: int
) -> tuple[Samples, Samples]:
    """Splits off the same share of each class, or of each other stratum of the labels, for testing.

    If samples have owners, it is the same share of each one's samples, spread over its classes. If they have patients,
    these are split instead, each by the label and the owner of its first sample.
    """
    if samples.patient is not None:
        _, first, number = np.unique(
            samples.patient, return_index=True, return_inverse=True
        )
        owners = None if samples.key is None else samples.key[first]
        patients = Samples(np.arange(len(first)), samples.y[first], owners)
        _, tests = split_by_class(patients, test_share, seed)
        return _split(samples, np.isin(number, tests.x))
    rng, stratum, owner = stream(seed, "test split"), strata(samples.y), samples.key
    if owner is None:
        train, test = [], []
        for c in np.unique(stratum):
            order = rng.permutation(np.flatnonzero(stratum == c))
            count = round(len(order) * test_share)
            test.append(order[:count])
            train.append(order[count:])
        return samples.take(np.concatenate(train)), samples.take(np.concatenate(test))
    tested = np.zeros(len(samples), bool)
    for rows in _by_owner(
        owner, np.lexsort((rng.permutation(len(samples)), stratum, owner))
    ):
        count = round(
            len(rows) * test_share
        )  # equally spaced rows, sorted by their classes
        places = (np.arange(count) + rng.random()) * len(rows) / max(1, count)
        tested[rows[places.astype(np.int64)]] = True
    return _split(samples, tested)


def _split(samples: Samples, tested: np.ndarray) -> tuple[Samples, Samples]:
    return samples.take(np.flatnonzero(~tested)), samples.take(np.flatnonzero(tested))


def _by_owner(owner: np.ndarray, order: np.ndarray) -> list[np.ndarray]:
    """The rows of each owner, from an order that sorts by owners first."""
    return np.split(order, np.flatnonzero(owner[order][1:] != owner[order][:-1]) + 1)


def split_by_time(
    samples: Samples,
    when: np.ndarray,
    test_share: float,
    first_days: int | None,
    where: str,
) -> tuple[Samples, Samples]:
    """Splits each owner's samples by their days ``when (n,)``: the earlier ones train, the later ones are for testing.

    Samples without owners are split as one's. The first ``first_days`` days of an owner train; if it is None,
    ``test_share`` of its samples are for testing.
    """
    if len(undated := np.flatnonzero(np.isnan(when))):
        raise DataError(
            f"{where}: sample {undated[0]} has no date; fill it in or leave it out"
        )
    owner = np.zeros(len(samples)) if samples.key is None else samples.key
    tested = np.zeros(len(samples), bool)
    for rows in _by_owner(owner, np.lexsort((when, owner))):
        if first_days is None:
            tested[rows[len(rows) - round(len(rows) * test_share) :]] = True
        else:
            tested[rows] = when[rows] >= when[rows[0]] + first_days
    return _split(samples, tested)


def split_as_named(
    samples: Samples, says: pd.Series, where: str
) -> tuple[Samples, Samples]:
    """Splits samples as a column says of each: ``train`` or ``test``, in any case; a DataError for anything else."""
    splits = says.str.lower().replace({"training": "train", "testing": "test"})
    if len(wrong := np.flatnonzero(~splits.isin(("train", "test")).to_numpy(bool))):
        row = says.index[wrong[0]] + 1
        raise DataError(
            f"{where}: row {row} says {shown(says.iloc[wrong[0]])}; write train or test in each row"
        )
    return _split(samples, (splits == "test").to_numpy(bool))


def draw_indicator(
    labels: np.ndarray, per_class: int, seed: int, where: str, spare: int = 0
) -> np.ndarray:
    """Indices of ``per_class`` samples (N_c) of each class, one class after the other (FedDSMIC sec. 4.2).

    A server compares models' predictions on these. They depend on the labels and the seed alone, and a larger draw
    contains the smaller ones. ``spare`` samples must be left of each class. A ConfigError if a class has too few, a
    DataError if the labels are no class numbers.
    """
    chosen = [np.zeros(0, np.int64)]
    if per_class and (form := form_of(labels, where)) != "class":
        reason = f"labels are {FORMS[form]}, and indicator_samples = {per_class} are drawn of each class"
        way_out = "name labels that are class numbers, or take a method without indicator samples"
        raise DataError(f"{where}: {reason}; {way_out}")
    for c in np.unique(labels) if per_class else ():
        members = np.flatnonzero(labels == c)
        wanted = f"indicator_samples = {per_class} of each class{' and others to train on' * bool(spare)}"
        few = f"class {c} has {len(members)} training samples, too few for {wanted}"
        enough = len(members) >= per_class + spare
        require(
            enough, f"{where}: {few}; lower indicator_samples, or give more samples"
        )
        chosen.append(
            stream(seed, "indicator samples", int(c)).permutation(members)[:per_class]
        )
    return np.concatenate(chosen)


def read_indicator(path: str, per_class: int, seed: int) -> Samples:
    """Draws indicator samples, as models see them, from the training split of a file in MedMNIST's layout.

    The file is found as by the source npz.
    """
    file = find(path, "indicator_file")
    arrays, where = (
        read_npz(file, ["train_images", "train_labels"]),
        f"indicator_file {file}",
    )
    samples = Samples.of_images(
        where, arrays["train_images"], arrays["train_labels"]
    ).check(where)
    check_range(samples.x, where, "bring the images to uint8, or to floats in [0, 1]")
    chosen = samples.take(draw_indicator(samples.y, per_class, seed, where))
    return Samples(normalised(chosen.x), chosen.y)
