# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""ROC and reliability curves of a run's last measurement, in all and by cluster: ``curves.json``.

The server makes them of participants' histograms of scores, which nobody keeps. A curve of few sites or of few samples
is nearly a histogram of one of them, so there is none. Nor is there a curve from which such a one follows by
subtraction, or one of a class that few sites have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from cfl_flare.core.files import atomic_write
from cfl_flare.methods import Participant
from cfl_flare.results import pooled, schema
from cfl_flare.training.histograms import list_probabilities

CURVES, VERSION = "curves.json", 1
# The curve of all participants; other names are those of clusters.
ALL = "all"
# The fewest real sites of a curve.
FEWEST_SITES = 3
# Why there is no curve.
NO_SCORES, FEW_SITES, FEW_SAMPLES, DIFFERENCE = (
    "no_scores",
    "few_sites",
    "few_samples",
    "difference",
)
REASONS = (NO_SCORES, FEW_SITES, FEW_SAMPLES, DIFFERENCE)

# A rate, and the ends of its interval.
Rate = tuple[float, float, float]


@dataclass(frozen=True)
class Rates:
    """The shares of right decisions on samples with a class, and on those without it, with intervals of 95 %."""

    label: int
    sensitivity: Rate
    specificity: Rate


@dataclass(frozen=True)
class Curve:
    """A ROC curve and a reliability curve.

    Attributes:
        samples: how many samples they are of; a site with more than its share counts as if it had that.
        classes: how many classes they are of, each against the rest, that enough samples have and others lack.
        auroc: the area below the complete ROC curve.
        roc: false and true positive rates, the mean over the classes.
        calibration: predicted probability, share with the class, and samples, of groups of scores of all the classes.
        by_class: how decisions on each of the classes are right. Of clusters, or where there are none of all: so none
            follows by subtraction.
    """

    participants: int
    sites: int
    samples: int
    classes: int
    auroc: float
    roc: list[tuple[float, float]]
    calibration: list[tuple[float, float, int]]
    by_class: list[Rates] = field(default_factory=list)


@dataclass(frozen=True)
class Curves:
    """The content of ``curves.json``.

    Attributes:
        round: whose models were measured.
        sites: see `Scored`, as for ``samples``.
        of_classes: how many classes there are; 1 if there is one positive class.
        curves: in all and by cluster.
        left_out: for each missing curve, why: one of `REASONS`.
    """

    round: int
    sites: int
    samples: int
    of_classes: int
    curves: dict[str, Curve] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """Which samples histograms of scores are of, and which curves may be made of them.

    Attributes:
        shape: of a participant's, ``(classes, 2, bins)``; the counts of decisions are one number a row more.
        link: what makes predictions of outputs; see `cfl_flare.training.losses.LINKS`.
        sites: fewest of a curve, and with each class and without.
        samples: fewest of a point of a curve, and with each class and without.
    """

    shape: tuple[int, int, int]
    link: str
    sites: int = 1
    samples: int = 1

    @classmethod
    def of(
        cls, shape: tuple[int, int, int] | None, link: str, floor: int, real: bool
    ) -> Scored | None:
        """The histograms of a run whose clusters have at least ``floor`` sites, ``real`` ones or simulated.

        ``shape`` is that of `cfl_flare.training.histograms.read_score_shape`; None if the settings name no histograms.
        """
        if shape is None:
            return None
        return (
            cls(shape, link, max(floor, FEWEST_SITES), pooled.FEWEST)
            if real
            else cls(shape, link, floor)
        )

    @property
    def chosen(self) -> slice:
        """The classes: of two that exclude each other the second alone, as the first one says the same."""
        return (
            slice(1, 2) if (self.link, self.shape[0]) == ("softmax", 2) else slice(None)
        )

    def curves(
        self,
        counts: Mapping[str, np.ndarray | None],
        participants: Mapping[str, Participant],
        assignment: Mapping[str, int],
        number: int,
        share: float | None = None,
    ) -> Curves:
        """The curves of the round ``number``, from histograms; one is None for a participant that sent none.

        ``share`` is the largest one of a site's samples; None for no bound.
        """
        sent = {
            name: histogram[self.chosen]
            for name, histogram in counts.items()
            if histogram is not None
        }
        sites = {name: p.site for name, p in participants.items()}
        groups = pooled.groups_of(sent, assignment, everyone=ALL)
        made = {
            label: self._curve(group, sites, share) for label, group in groups.items()
        }
        drawn = {
            name
            for label in groups
            if label != ALL and isinstance(made[label], Curve)
            for name in groups[label]
        }
        rest = {
            name: histogram for name, histogram in sent.items() if name not in drawn
        }
        if (
            isinstance(made[ALL], Curve)
            and rest
            and not isinstance(self._curve(rest, sites, share), Curve)
        ):
            made[ALL] = DIFFERENCE
        of_all = made[ALL]
        if drawn and isinstance(of_all, Curve):
            made[ALL] = replace(of_all, by_class=[])
        curves = {
            label: curve for label, curve in made.items() if isinstance(curve, Curve)
        }
        left_out = {
            label: reason for label, reason in made.items() if isinstance(reason, str)
        }
        classes = len(range(self.shape[0])[self.chosen])
        return Curves(number, self.sites, self.samples, classes, curves, left_out)

    def _curve(
        self,
        group: Mapping[str, np.ndarray],
        sites: Mapping[str, str],
        share: float | None,
    ) -> Curve | str:
        """The curve of some participants, or why there is none."""
        if not group:
            return NO_SCORES
        of_sites = len({sites[name] for name in group})
        if of_sites < self.sites:
            return FEW_SITES
        raw, total = (
            pooled.bounded_sum(group, sites, most) for most in (1.0, share or 1.0)
        )
        raw, weighted = raw[..., :-1], total[..., :-1]
        enough = (raw.sum(axis=2) >= self.samples) & (
            _sites_of(group, sites) >= self.sites
        )
        classes = np.nonzero(enough.all(axis=1))[0]
        if not len(classes):
            return FEW_SAMPLES
        starts = [pooled.cells(raw[c].sum(axis=0), self.samples) for c in classes]
        of_classes = [
            pooled.roc(np.add.reduceat(weighted[c], begin, axis=1))
            for c, begin in zip(classes, starts)
        ]
        at = list_probabilities(self.shape, self.link)
        points = pooled.reliability(
            weighted[classes].sum(axis=0), raw[classes].sum(axis=(0, 1)), at
        )
        return Curve(
            len(group),
            of_sites,
            int(raw[0].sum()),
            len(classes),
            round(sum(map(pooled.area, of_classes)) / len(classes), 4),
            [
                (round(x, 4), round(y, 4))
                for x, y in pooled.thinned_roc(pooled.mean_roc(of_classes)).tolist()
            ],
            [(round(p, 4), round(s, 4), n) for p, s, n in points],
            [
                Rates(label, _rate(right, having), _rate(lacking - wrong, lacking))
                for label, (lacking, having), (wrong, right) in zip(
                    np.arange(self.shape[0])[self.chosen][classes].tolist(),
                    weighted[classes].sum(axis=2).tolist(),
                    total[classes, :, -1].tolist(),
                )
            ],
        )


def _rate(right: float, samples: float) -> Rate:
    """A share of samples, and its interval by Wilson (1927)."""
    from scipy.stats import binomtest

    count = max(1, round(samples))
    ends = binomtest(round(right), count).proportion_ci(0.95, "wilson")
    return (
        round(right / samples, 3),
        round(float(ends.low), 3),
        round(float(ends.high), 3),
    )


def _sites_of(group: Mapping[str, np.ndarray], sites: Mapping[str, str]) -> np.ndarray:
    """How many sites have samples without each class and with it, ``(classes, 2)``."""
    there: dict[str, np.ndarray] = {}
    for name, counts in group.items():
        there[sites[name]] = there.get(
            sites[name], np.zeros(counts.shape[:2], bool)
        ) | counts[..., :-1].any(axis=2)
    total: np.ndarray = np.stack([*there.values()]).sum(axis=0)
    return total


def save_curves(folder: Path, curves: Curves) -> None:
    atomic_write(folder / CURVES, json.dumps({"version": VERSION, **asdict(curves)}))


RATE = schema.row(schema.share, schema.share, schema.share)
OF_CLASS = schema.object_with(label=schema.count, sensitivity=RATE, specificity=RATE)
RATES = schema.list_of(lambda value: OF_CLASS(value) and len(value) == 3)
NEEDED = schema.object_with(
    **dict.fromkeys(("participants", "sites", "samples", "classes"), schema.count),
    auroc=schema.share,
    roc=schema.list_of(schema.row(schema.share, schema.share), 1, pooled.POINTS),
    calibration=schema.list_of(
        schema.row(schema.share, schema.share, schema.count), 1, 2 * pooled.GROUPS
    ),
    by_class=RATES,
)


FACTS = ("round", "sites", "samples", "of_classes")


def _label(value: str) -> bool:
    return value == ALL or (value.startswith("cluster-") and value[8:].isdecimal())


FIELDS: schema.Fields = {
    "version": schema.version(VERSION),
    **dict.fromkeys(FACTS, schema.count),
    "curves": schema.described(
        "an object of curves, in all and by cluster", schema.dict_of(NEEDED, _label)
    ),
    "left_out": schema.described(
        "an object of reasons, in all and by cluster",
        schema.dict_of(lambda reason: reason in REASONS, _label),
    ),
}


def load_curves(folder: Path) -> Curves | None:
    """The curves of a run; None if it kept none. A `ConfigError` says that the file is damaged."""
    path = folder / CURVES
    if not path.is_file():
        return None
    content = schema.read(path, FIELDS)
    names = Curve.__dataclass_fields__.keys() - {"by_class"}
    curves = {
        label: Curve(
            **{n: curve[n] for n in names},
            by_class=[Rates(**rates) for rates in curve["by_class"]],
        )
        for label, curve in content["curves"].items()
    }
    return Curves(
        **{name: content[name] for name in FACTS},
        curves=curves,
        left_out=content["left_out"],
    )
