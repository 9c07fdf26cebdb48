# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Two sets of real hospitals that come with the package: a first result needs no download."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from cfl_flare.core.settings import setting
from cfl_flare.data.columns import Column, Columns
from cfl_flare.data.files import reading_within
from cfl_flare.data.preparation import Scaling
from cfl_flare.data.samples import Wrapped
from cfl_flare.data.table import Table

FOLDER = Path(__file__).parent
STROKE, HEART = "stroke.csv.gz", "heart.csv.gz"


@dataclass(frozen=True)
class Hospitals(Wrapped):
    """A table of several hospitals' patients; each hospital is a participant unless a partition says otherwise."""

    prepares: ClassVar[bool] = True
    public: ClassVar[bool] = True

    test_share: float = setting(
        0.25,
        help="share of each hospital's patients that is used for testing",
        gt=0,
        lt=1,
    )
    seed: int = setting(0, help="seed of that split")
    scaling: Scaling = setting("auto", help="as of the source table")

    @property
    def usual_partition(self) -> Mapping[str, Any]:
        return {"partition": "natural"}

    def leave(self) -> AbstractContextManager[None]:
        return reading_within(None)  # a part of the package, not a path of the job's

    @property
    def positive(self) -> str | None:
        with self.leave():
            return self.inner.positive


@dataclass(frozen=True)
class Stroke(Hospitals):
    """International Stroke Trial: 19,435 patients of 466 hospitals in 36 countries, 1991 to 1996.

    Features are the 20 columns that are known when treatment is drawn. The outcome is whether a patient is dead or
    dependent after six months, or, for task survival, the days until death. True groups are the countries.
    """

    name: ClassVar[str] = "stroke"
    paper: ClassVar[str] = (
        "Sandercock, Niewada, Czlonkowska: The International Stroke Trial database, Trials 12:101 (2011), "
        "doi 10.7488/ds/104; licence ODC-By 1.0"
    )

    outcome: Literal["dependent", "death"] = setting(
        "dependent",
        help="dead or dependent after six months; or death, a time with an event, for task survival",
    )
    by_date: bool = setting(
        False, help="a hospital's latest patients are for testing, not random ones"
    )
    first_days: int | None = setting(
        None,
        help="with by_date: the patients of this many days from a hospital's first one train, all later ones test",
    )

    @cached_property
    def inner(self) -> Table:
        dies, dated = (
            self.outcome == "death",
            self.by_date or self.first_days is not None,
        )
        aside = ["dependent"] if dies else ["days", "died"]
        return Table(
            str(FOLDER / STROKE),
            label="days" if dies else "dependent",
            event="died" if dies else None,
            key="HOSPNUM",
            group="COUNTRY",
            time="RDATE" if dated else None,
            first_days=self.first_days,
            columns=STROKE_COLUMNS.to_dict(),
            leave=aside if dated else [*aside, "RDATE"],
            unlabelled="leave",
            test_share=self.test_share,
            seed=self.seed,
            scaling=self.scaling,
        )


@dataclass(frozen=True)
class Heart(Hospitals):
    """Heart disease in Cleveland, Hungary, Switzerland and Long Beach: 920 patients, 13 columns, many values missing.

    The outcome is whether a vessel is narrowed by more than half. Missing values are filled up by each hospital's own
    patients, and that they are missing is a feature.
    """

    name: ClassVar[str] = "heart"
    paper: ClassVar[str] = (
        "Janosi, Steinbrunn, Pfisterer, Detrano: Heart Disease, UCI Machine Learning Repository (1988), "
        "doi 10.24432/C52P4X; licence CC BY 4.0"
    )

    @cached_property
    def inner(self) -> Table:
        return Table(
            str(FOLDER / HEART),
            key="hospital",
            columns=HEART_COLUMNS.to_dict(),
            test_share=self.test_share,
            seed=self.seed,
            scaling=self.scaling,
        )


def _yes(column: str, no: str = "N", yes: str = "Y", missing: bool = False) -> Column:
    return Column(column, "boolean", (no, yes), missing=missing)


# R: at randomisation. Deficits are present (Y), absent (N), or cannot be assessed (C).
STROKE_COLUMNS = Columns(
    (
        Column("RDELAY", range=(0, 48)),
        Column("RCONSC", "category", ("F", "D", "U")),
        _yes("SEX", "F", "M"),
        Column("AGE", range=(15, 110)),
        *(_yes(name) for name in ("RSLEEP", "RCT", "RVISINF")),
        *(_yes(name, missing=True) for name in ("RATRIAL", "RHEP24", "RASP3")),
        Column("RSBP", range=(50, 320)),
        *(Column(f"RDEF{i}", "category", ("N", "Y", "C")) for i in range(1, 9)),
        Column("STYPE", "category", ("LACS", "PACS", "POCS", "TACS", "OTH")),
    )
)
HEART_COLUMNS = Columns(
    (
        Column("age", range=(0, 120)),
        _yes("sex", "0", "1"),
        Column("cp", "category", ("1", "2", "3", "4")),
        Column("trestbps", range=(50, 260), missing=True),
        Column("chol", range=(50, 700), missing=True),
        _yes("fbs", "0", "1", missing=True),
        Column("restecg", "category", ("0", "1", "2"), missing=True),
        Column("thalach", range=(50, 250), missing=True),
        _yes("exang", "0", "1", missing=True),
        Column("oldpeak", range=(-5, 10), missing=True),
        Column("slope", "category", ("1", "2", "3"), missing=True),
        Column("ca", range=(0, 9), missing=True),
        Column("thal", "category", ("3", "6", "7"), missing=True),
    ),
    label="num",
    positive=0,
)
