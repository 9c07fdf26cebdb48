# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""ROC and reliability curves of a run's last measurement, in all and by cluster: ``curves.json``.

The server makes them of participants' histograms of scores, which nobody keeps. A curve of few sites or of few samples
is nearly a histogram of one of them, so there is none; nor one that others would give by subtraction. So it is with a
class that few sites have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import atomic_write, read_json
from cfl_flare.methods import Participant
from cfl_flare.results.pooled import bounded_sum
from cfl_flare.results.roc import FEWEST, GROUPS, POINTS, area, cells, mean_roc, reliability, roc, thinned_roc
from cfl_flare.results.schema import Fits, checked, record, whole
from cfl_flare.training.histograms import probabilities

CURVES, VERSION = "curves.json", 1
# The curve of everyone; other names are those of clusters.
ALL = "all"
# At real sites, a curve is of so many.
FEWEST_SITES = 3
# Why there is no curve.
NO_SCORES, FEW_SITES, FEW_SAMPLES, DIFFERENCE = "no_scores", "few_sites", "few_samples", "difference"
REASONS = (NO_SCORES, FEW_SITES, FEW_SAMPLES, DIFFERENCE)


@dataclass(frozen=True)
class Curve:
    """A ROC curve and a reliability curve.

    Attributes:
        participants: whose samples they are of.
        sites: of so many.
        samples: how many; a site with more than its share counts as if it had that.
        classes: of so many classes, each against the rest, that enough samples have and others lack.
        auroc: the area below the whole ROC curve.
        roc: false and true positive rates, the mean over the classes.
        calibration: predicted probability, share with the class, and samples, of groups of scores of all the classes.
    """

    participants: int
    sites: int
    samples: int
    classes: int
    auroc: float
    roc: list[tuple[float, float]]
    calibration: list[tuple[float, float, int]]


@dataclass(frozen=True)
class Curves:
    """What ``curves.json`` holds.

    Attributes:
        round: whose models were measured.
        sites: fewest of a curve, and with each class and without.
        samples: fewest of a point of a curve, and with each class and without.
        of_classes: how many classes there are; 1 if there is one positive class.
        curves: in all and by cluster.
        left_out: of others, why: one of `REASONS`.
    """

    round: int
    sites: int
    samples: int
    of_classes: int
    curves: dict[str, Curve] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """What histograms of scores are of, and what may be made of them.

    Attributes:
        shape: of a participant's, ``(classes, 2, bins)``; the counts of decisions are one number a row more.
        link: what makes predictions of outputs; see `cfl_flare.training.ensemble.LINKS`.
        sites: fewest of a curve, and with each class and without.
        samples: fewest of a point of a curve, and with each class and without.
    """

    shape: tuple[int, int, int]
    link: str
    sites: int = 1
    samples: int = 1

    @classmethod
    def of(cls, shape: tuple[int, int, int] | None, link: str, floor: int, real: bool) -> Scored | None:
        """Those of a run; None if it asks for none.

        Args:
            shape: see `cfl_flare.training.histograms.score_shape`.
            link: the task's.
            floor: sites of which a cluster has to be.
            real: whether the sites are real ones.
        """
        if shape is None:
            return None
        return cls(shape, link, max(floor, FEWEST_SITES), FEWEST) if real else cls(shape, link, floor)

    @property
    def chosen(self) -> slice:
        """The classes: of two that exclude each other the second alone, as the first one says the same."""
        return slice(1, 2) if (self.link, self.shape[0]) == ("softmax", 2) else slice(None)

    def curves(
        self,
        counts: Mapping[str, np.ndarray | None],
        participants: Mapping[str, Participant],
        assignment: Mapping[str, int],
        number: int,
        share: float | None = None,
    ) -> Curves:
        """The curves of a round.

        Args:
            counts: participants' histograms; None of those that sent none.
            participants: all of them.
            assignment: the cluster of each that has one.
            number: the round's.
            share: the largest share of one site's samples; None for no bound.
        """
        sent = {name: own[self.chosen] for name, own in counts.items() if own is not None}
        sites = {name: p.site for name, p in participants.items()}
        of_cluster: dict[str, dict[str, np.ndarray]] = {f"cluster-{k}": {} for k in sorted({*assignment.values()})}
        for name in (name for name in sent if name in assignment):
            of_cluster[f"cluster-{assignment[name]}"][name] = sent[name]
        made = {label: self._curve(own, sites, share) for label, own in {ALL: sent, **of_cluster}.items()}
        kept = [label for label in of_cluster if isinstance(made[label], Curve)]
        rest = {name: own for name, own in sent.items() if not any(name in of_cluster[label] for label in kept)}
        if isinstance(made[ALL], Curve) and rest and not isinstance(self._curve(rest, sites, share), Curve):
            made[ALL] = DIFFERENCE
        return Curves(
            number,
            self.sites,
            self.samples,
            len(range(self.shape[0])[self.chosen]),
            {label: own for label, own in made.items() if isinstance(own, Curve)},
            {label: own for label, own in made.items() if isinstance(own, str)},
        )

    def _curve(self, own: Mapping[str, np.ndarray], sites: Mapping[str, str], share: float | None) -> Curve | str:
        """The curve of some participants, or why there is none."""
        if not own:
            return NO_SCORES
        of_sites = len({sites[name] for name in own})
        if of_sites < self.sites:
            return FEW_SITES
        raw, weighted = (bounded_sum(own, sites, most)[..., :-1] for most in (1.0, share or 1.0))
        enough = (raw.sum(axis=2) >= self.samples) & (_sites_of(own, sites) >= self.sites)
        both = np.nonzero(enough.all(axis=1))[0]
        if not len(both):
            return FEW_SAMPLES
        found = []
        for c in both:
            starts = cells(raw[c].sum(axis=0), self.samples)
            found.append(roc(np.add.reduceat(weighted[c], starts, axis=1)))
        at = probabilities(self.shape, self.link)
        groups = reliability(weighted[both].sum(axis=0), raw[both].sum(axis=(0, 1)), at)
        return Curve(
            len(own),
            of_sites,
            int(raw[0].sum()),
            len(both),
            round(sum(map(area, found)) / len(found), 4),
            [(round(x, 4), round(y, 4)) for x, y in thinned_roc(mean_roc(found)).tolist()],
            [(round(p, 4), round(s, 4), n) for p, s, n in groups],
        )


def _sites_of(own: Mapping[str, np.ndarray], sites: Mapping[str, str]) -> np.ndarray:
    """How many sites have samples without each class and with it, ``(classes, 2)``."""
    there: dict[str, np.ndarray] = {}
    for name, counts in own.items():
        there[sites[name]] = there.get(sites[name], np.zeros(counts.shape[:2], bool)) | counts[..., :-1].any(axis=2)
    found: np.ndarray = np.stack([*there.values()]).sum(axis=0)
    return found


def save_curves(folder: Path, curves: Curves) -> None:
    """Writes them into a run's folder.

    Raises:
        FileError: they cannot be written.
    """
    atomic_write(folder / CURVES, json.dumps({"version": VERSION, **asdict(curves)}))


def _share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _points(most: int, *parts: Fits) -> Fits:
    def point(value: Any) -> bool:
        fits = isinstance(value, list) and len(value) == len(parts)
        return fits and all(part(own) for part, own in zip(parts, value))

    return lambda value: isinstance(value, list) and 0 < len(value) <= most and all(map(point, value))


CURVE = record(
    **dict.fromkeys(("participants", "sites", "samples", "classes"), whole),
    auroc=_share,
    roc=_points(POINTS, _share, _share),
    calibration=_points(2 * GROUPS, _share, _share, whole),
)


def _label(value: Any) -> bool:
    return value == ALL or (isinstance(value, str) and value.startswith("cluster-") and value[8:].isdecimal())


def curves(value: Any) -> bool:
    """An object of curves, in all and by cluster."""
    return isinstance(value, dict) and all(_label(key) and CURVE(own) for key, own in value.items())


def left_out(value: Any) -> bool:
    """An object of reasons, in all and by cluster."""
    return isinstance(value, dict) and all(_label(key) and own in REASONS for key, own in value.items())


def version(value: Any) -> bool:
    """The number of this format, 1; a later version of cfl_flare reads others."""
    return bool(value == VERSION)


def load_curves(folder: Path) -> Curves | None:
    """The curves of a run; None if it kept none.

    Raises:
        ConfigError: the file is damaged.
    """
    path = folder / CURVES
    if not path.is_file():
        return None
    facts = ("round", "sites", "samples", "of_classes")
    try:
        content = checked(read_json(path), str(path), {"version": version})
        content = checked(content, str(path), {**dict.fromkeys(facts, whole), "curves": curves, "left_out": left_out})
    except FileError as error:
        raise ConfigError(f"{error}; copy it again from its run") from error
    names = Curve.__dataclass_fields__
    read = {label: Curve(**{name: own[name] for name in names}) for label, own in content["curves"].items()}
    return Curves(**{name: content[name] for name in facts}, curves=read, left_out=content["left_out"])
