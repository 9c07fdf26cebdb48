# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a source, and checks and numbers what it returns."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import Any

import numpy as np

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import CFLError, DataError
from cfl_flare.data.labels import of_one_form
from cfl_flare.data.numbering import name_labels, number_codes
from cfl_flare.data.samples import DataSource, Samples


def read(
    source: DataSource, where: str = "", alone: bool = False
) -> tuple[Samples, Samples]:
    """Loads a source, perhaps the user's own.

    Args:
        source: what reads the samples.
        where: names the source in an error.
        alone: these are the samples of one site among others, so that whole numbers stay as they are. Otherwise they
            are all samples of a simulation: codes such as 1 and 2 are then numbered from 0 and keep their names.

    Returns:
        Training and test samples.

    Raises:
        DataError: the source fails, or returns something that is not valid.
    """
    where = where or f"data {type(source).__name__}"
    try:
        loaded = source.load()
    except CFLError:
        raise
    except Exception as error:  # a source of the user's may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason = (
            f"load() failed with {one_line(error)} at {frame.filename}:{frame.lineno}"
        )
        raise DataError(
            f"{where}: {reason}; fix it there, or raise a DataError that says what to do"
        ) from error
    train, test = checked(loaded, where, source.prepares)
    if alone:
        return train, test
    return number_codes(train, test)


def checked(load: Any, where: str, missing: bool = False) -> tuple[Samples, Samples]:
    """What a source's ``load`` returned: two valid sample sets with equal shapes and labels of one form.

    The test set may be empty: it then has the training set's shape and form. ``missing`` is as for `Samples.check`.
    """
    if not (
        isinstance(load, tuple)
        and len(load) == 2
        and all(isinstance(part, Samples) for part in load)
    ):
        raise DataError(
            f"{where}: load() should return (train, test) as two Samples, not {type(load).__name__}"
        )
    train, test = name_labels(*load, where)
    train = train.check(f"{where}: training", missing)
    test = test.check(f"{where}: test", missing, fewest=0)
    test = test if len(test) else train.take(np.arange(0))
    if train.x.shape[1:] != test.x.shape[1:]:
        reason = (
            f"training samples are {train.x.shape[1:]}, test samples {test.x.shape[1:]}"
        )
        raise DataError(f"{where}: {reason}; give them the same shape")
    for what, in_train, in_test in (
        ("keys", train.key, test.key),
        ("patients", train.patient, test.patient),
    ):
        if (in_train is None) != (in_test is None):
            raise DataError(
                f"{where}: only one of training and test samples has {what}; give both or neither"
            )
    if train.classes != test.classes:
        reason = f"training samples have the classes {train.classes}, test samples {test.classes}"
        raise DataError(f"{where}: {reason}; give both the same")
    y, test_y = of_one_form(train.y, test.y, where)
    return replace(train, y=y), replace(test, y=test_y)
