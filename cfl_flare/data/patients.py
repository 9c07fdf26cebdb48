# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Patients with samples at several owners, or in training and in test samples: found, named, and dealt with.

A registry has such patients: they are seen at two clinics, or come again after the date that divides training from
testing. One setting, ``repeated_patients``, says what happens to their samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cfl_flare.core.errors import DataError
from cfl_flare.core.text import plain, shown
from cfl_flare.data.samples import Samples

SETTING = "repeated_patients"
CHOICES_HELP = (
    "what happens to patients with samples at several owners, or in training and test samples: refuse; first (they "
    "stay at the first owner by name, and in training); drop (they are left out); allow (they count at each place: "
    "epsilon and intervals then take them for several patients)"
)
# A message names this many patients, and pairs of owners.
FIRST = 3


@dataclass(frozen=True)
class Repeated:
    """The patients that a data set has at several places.

    Attributes:
        patients: how many patients there are in all.
        owners: the names of those with samples at several owners, each with the owners' names.
        splits: the names of those with training and with test samples of one owner.
    """

    patients: int
    owners: dict[str, tuple[str, ...]]
    splits: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many patients are at several places."""
        return len({*self.owners, *self.splits})

    @property
    def line(self) -> str:
        """How many patients are at several places, in one line, with the first of them by name."""
        parts = []
        every = f"of {self.patients} patients"
        if self.owners:
            pairs = Counter(
                " and ".join(plain(owner, 40) for owner in owners)
                for owners in self.owners.values()
            )
            listed = "; ".join(
                f"{count} at {pair}" for pair, count in pairs.most_common(FIRST)
            )
            names = self._list([*self.owners])
            parts.append(
                f"{len(self.owners)} {every} have samples at several owners ({listed}), such as {names}"
            )
        if self.splits:
            names = self._list(self.splits)
            parts.append(
                f"{len(self.splits)} {every} have training and test samples, such as {names}"
            )
        return " and ".join(parts)

    @staticmethod
    def _list(names: Sequence[str]) -> str:
        return ", ".join(shown(name) for name in names[:FIRST])


@dataclass(frozen=True)
class _Rows:
    """The training samples and then the test samples of a source: of which patient, owner and split each is."""

    patient: np.ndarray
    names: np.ndarray
    owner: np.ndarray
    owners: np.ndarray
    tested: np.ndarray

    @classmethod
    def of(cls, train: Samples, test: Samples, by_owner: bool) -> _Rows:
        assert train.patient is not None
        assert test.patient is not None
        names, patient = np.unique(
            _join(train.patient, test.patient), return_inverse=True
        )
        tested = np.arange(len(patient)) >= len(train)
        if by_owner and train.key is not None and test.key is not None:
            owners, owner = np.unique(_join(train.key, test.key), return_inverse=True)
        else:
            owners = np.array([""])
            owner = np.zeros(len(patient), np.int64)
        return cls(patient, names, owner, owners, tested)

    def find_pairs(self) -> np.ndarray:
        """The different pairs of a patient and an owner, ``(pairs, 2)``, sorted."""
        return np.unique(np.stack((self.patient, self.owner), axis=1), axis=0)

    def count_places(self) -> tuple[np.ndarray, np.ndarray]:
        """For each patient, at how many owners it is; and whether it trains and tests at one of them."""
        at_owners = np.bincount(self.find_pairs()[:, 0], minlength=len(self.names))
        pair = self.patient * len(self.owners) + self.owner
        in_both = np.intersect1d(pair[self.tested], pair[~self.tested])
        is_in_both = np.zeros(len(self.names), bool)
        is_in_both[in_both // len(self.owners)] = True
        return at_owners, is_in_both


def _join(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    if first.dtype.kind != second.dtype.kind:
        return np.concatenate((first.astype(str), second.astype(str)))
    return np.concatenate((first, second))


def find_repeated(train: Samples, test: Samples, by_owner: bool) -> Repeated:
    """Finds the patients with samples at several places.

    Args:
        train: the training samples, with patients.
        test: the test samples, with patients.
        by_owner: each owner is a participant, so that a patient should be at one owner only.

    Returns:
        The patients; none are at several places if all is well.
    """
    rows = _Rows.of(train, test, by_owner)
    at_owners, is_in_both = rows.count_places()
    several = np.flatnonzero(at_owners > 1)
    pairs = rows.find_pairs()
    starts = np.searchsorted(pairs[:, 0], several)
    owners: dict[str, tuple[str, ...]] = {}
    for patient, start in zip(several.tolist(), starts.tolist()):
        places = pairs[start : start + at_owners[patient], 1]
        owners[str(rows.names[patient])] = tuple(map(str, rows.owners[places]))
    splits = tuple(str(name) for name in rows.names[is_in_both])
    return Repeated(len(rows.names), owners, splits)


def settle_patients(
    train: Samples,
    test: Samples,
    rule: Literal["refuse", "first", "drop", "allow"],
    by_owner: bool,
    where: str,
) -> tuple[Samples, Samples, list[str]]:
    """Gives each patient one place, as a rule says.

    Args:
        train: the training samples.
        test: the test samples.
        rule: the setting ``repeated_patients``.
        by_owner: as for `find_repeated`.
        where: names the data in the error.

    Returns:
        Both splits, and lines on the patients at several places; none if there are none.

    Raises:
        DataError: there are such patients, and the rule is ``refuse``.
    """
    if train.patient is None or test.patient is None:
        return train, test, []
    repeated = find_repeated(train, test, by_owner)
    if not repeated.count:
        return train, test, []
    if rule == "refuse":
        choices = "first (keeps each at one place), drop (leaves them out) or allow (counts them at each place)"
        reason = f"{repeated.line}: one patient would count as several"
        raise DataError(
            f"{where}: {reason}; set {SETTING} to {choices}, and give no two patients one name"
        )
    if rule == "allow":
        statement = "they count once at each place: epsilon and intervals take them for several patients"
        in_both = (
            ", and test samples are of patients that trained" if repeated.splits else ""
        )
        return train, test, [f"{repeated.line}: {statement}{in_both}"]
    kept = _choose_rows(_Rows.of(train, test, by_owner), rule)
    left = int((~kept).sum())
    what = (
        "left out"
        if rule == "drop"
        else "kept at the first owner by name, and in training"
    )
    line = f"{repeated.line}: {what}, without {left} of {len(kept)} samples"
    train = train.take(np.flatnonzero(kept[: len(train)]))
    test = test.take(np.flatnonzero(kept[len(kept) - len(test) :]))
    if not len(train):
        raise DataError(
            f"{where}: {line}, and none is left to train; set {SETTING} to first or allow"
        )
    return train, test, [line]


def _choose_rows(rows: _Rows, rule: str) -> np.ndarray:
    """Which rows stay, ``(n,)`` bool."""
    at_owners, is_in_both = rows.count_places()
    if rule == "drop":
        return ~((at_owners > 1) | is_in_both)[rows.patient]
    # The owner that comes first by name keeps a patient: np.unique has sorted the owners.
    first_owner = np.full(len(rows.names), len(rows.owners))
    np.minimum.at(first_owner, rows.patient, rows.owner)
    stays = rows.owner == first_owner[rows.patient]
    # Of the patient's samples there, those for training stay, if there are any.
    trains = np.zeros(len(rows.names), bool)
    trains[rows.patient[stays & ~rows.tested]] = True
    return stays & ~(rows.tested & trains[rows.patient])
