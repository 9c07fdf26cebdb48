# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How sites number their classes: each site states the names at check-in, and the server compares them.

A site without one diagnosis would number the others differently. Its model's outputs would then mean something else,
and a clustering would find that as if it were a difference between patients. So no site takes part that numbers its
classes differently from the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from cfl_flare.core.errors import BudgetError, ColumnsError, ConfigError
from cfl_flare.core.text import plain, shown
from cfl_flare.data import ParticipantData
from cfl_flare.data.classes import list_names
from cfl_flare.data.columns import FEWEST_ROWS

WAY_OUT = (
    "set classes=[...] in the job's data to all names in the order of their numbers"
)
# A message has this many characters of a site's names.
SHOWN = 200


def names_to_state(
    hosted: Mapping[str, ParticipantData],
    agreed: tuple[str, ...],
    has_dp: bool,
    is_simulation: bool,
) -> tuple[str, ...]:
    """The names of classes that a site states at check-in, in the order of their numbers.

    Names that the job or the operator's columns give say nothing of the site's patients. Names that a site has from its
    own folders, arrays or rows say which classes it has. A class of few patients is then not named, nor any class
    with differential privacy, which would not cover it.

    Args:
        hosted: the participants' data.
        agreed: the names that were agreed on before the data was read.
        has_dp: the job has differential privacy.
        is_simulation: the participants are simulated.

    Returns:
        The names; none if classes are called by their numbers.

    Raises:
        BudgetError: with differential privacy, the names would come from the data.
        ColumnsError: a class has fewer than `FEWEST_ROWS` patients.
    """
    data = next(iter(hosted.values()), None)
    if data is None or not data.train.classes:
        return ()
    names = data.train.classes
    if is_simulation or names == agreed:
        return names
    if has_dp:
        reason = "data: with dp, names of classes that folders, arrays or rows give would not be protected"
        raise BudgetError(f"{reason}; {WAY_OUT}")
    for name, count in zip(names, _count_patients(data)):
        if count < FEWEST_ROWS:
            reason = f"data: class {shown(name)} has {count} patients, and its name is not stated of fewer than"
            raise ColumnsError(f"{reason} {FEWEST_ROWS}; {WAY_OUT}")
    return names


def _count_patients(data: ParticipantData) -> list[int]:
    """How many patients of a site have each class, or finding, or a mask with it.

    A patient with training and with test samples is one patient.
    """
    parts = [part for part in (data.train, data.test) if len(part)]
    counts = []
    for number in range(len(data.train.classes)):
        samples = 0
        patients: set[str] = set()
        for part in parts:
            has_class = _has_class(part.y, number)
            if part.patient is None:
                samples += int(has_class.sum())
            else:
                patients.update(map(str, part.patient[has_class]))
        counts.append(samples + len(patients))
    return counts


def _has_class(y: np.ndarray, number: int) -> np.ndarray:
    """Which samples have a class, ``(n,)`` bool: as their label, as a finding, or as a pixel of their mask."""
    if y.ndim == 2:
        return np.asarray(y[:, number] == 1)
    return np.asarray((y == number).reshape(len(y), -1).any(axis=1))


def settle_classes(
    of_job: Sequence[str] | None, of_run: Sequence[str] | None
) -> tuple[str, ...] | None:
    """The names of classes that hold before any site has stated its own.

    Args:
        of_job: the names that the job's author gives; None if there are none.
        of_run: the names of the run that is resumed; None for a new run.

    Returns:
        The names in the order of their numbers; None if the sites decide.

    Raises:
        ConfigError: the job's names are not the run's.
    """
    if of_job and of_run is not None and [*of_job] != [*of_run]:
        both = f"the job has the classes {_show(tuple(of_job))}, and the run that is resumed {_show(tuple(of_run))}"
        raise ConfigError(
            f"run: {both}; resume it with its own classes, or start a new run"
        )
    if of_run is not None:
        return tuple(of_run)
    return tuple(of_job) if of_job else None


def compare_classes(
    stated: Mapping[str, tuple[str, ...]],
    agreed: tuple[str, ...] | None = None,
    is_start: bool = False,
) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """Compares how sites number their classes.

    Args:
        stated: the names of each site's classes in the order of their numbers; none if a site has numbers only.
        agreed: the names of the job, of the run that is resumed, or of the sites that already take part; None if the
            sites decide.
        is_start: no site takes part yet.

    Returns:
        The names that the sites agree on, None if there is no site; and why each other site is left out.

    Raises:
        ConfigError: no names are those of most sites, so that nobody knows which sites are right. Or no site has the
            names of the job or of the run that is resumed.
    """
    if not stated:
        return agreed, {}
    if agreed is None:
        (agreed, times), *_ = Counter(stated.values()).most_common()
        if times <= len(stated) / 2:
            raise ConfigError(f"{_describe_disagreement(stated)}: {WAY_OUT}")
    reasons = {
        site: describe_difference(names, agreed)
        for site, names in stated.items()
        if names != agreed
    }
    if is_start and len(reasons) == len(stated):
        raise ConfigError(
            f"{_describe_disagreement(stated)}: none numbers them {_show(agreed)} as this run: {WAY_OUT}"
        )
    return agreed, reasons


def describe_difference(names: tuple[str, ...], agreed: tuple[str, ...]) -> str:
    """Why a site or its script is left out that numbers its classes differently from the run."""
    difference = f"it numbers its classes {_show(names)}, and the run {_show(agreed)}"
    return f"{difference}; correct the names there, or {WAY_OUT}"


def _describe_disagreement(stated: Mapping[str, tuple[str, ...]]) -> str:
    sites_by_names: dict[tuple[str, ...], list[str]] = {}
    for site, names in sorted(stated.items()):  # whichever site checked in first
        sites_by_names.setdefault(names, []).append(site)
    parts = [
        f"{_show(names)} at {', '.join(sites[:3])}"
        for names, sites in list(sites_by_names.items())[:3]
    ]
    more = ", ..." if len(sites_by_names) > 3 else ""
    return f"run: sites number their classes differently: {'; '.join(parts)}{more}"


def _show(names: tuple[str, ...]) -> str:
    if not names:
        return "by no names"
    return f"[{plain(list_names(names), SHOWN)}]"
