# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tables as hospitals have them: one row per sample, a column of labels, and numbers, categories or dates in others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import CFLError, ColumnsError, DataError
from cfl_flare.core.settings import check_settings, setting
from cfl_flare.core.text import shown
from cfl_flare.data.columns import Columns, as_texts
from cfl_flare.data.features import check_columns, days, encoded, gaps, inferred, names_of, shared, texts
from cfl_flare.data.files import find
from cfl_flare.data.frames import Reading, read_frame
from cfl_flare.data.outcomes import Outcomes, outcomes
from cfl_flare.data.preparation import UNSAID, Preparation, Scaling
from cfl_flare.data.samples import DataSource, Samples, split_as_named, split_by_class, split_by_time

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table(Reading, DataSource):
    """Rows of a .csv, .csv.gz or .parquet file, or of an .npz file with one array per column.

    All columns but those named for another purpose are features: numbers, which each participant scales by its own
    training rows; booleans; text as categories, each a feature of 0 or 1; dates as days. A missing value is filled by
    the participant's own training rows. What each column became is printed. ``columns`` says it beforehand, as real
    sites must agree on categories: see ``cfl-flare site columns``.

    Labels are class numbers from 0, or names, which are numbered in sorted order. A label column with decimals, or with
    a number below 0, holds numbers to predict, for task regression.
    """

    name: ClassVar[str] = "table"
    prepares: ClassVar[bool] = True
    unsaid: ClassVar[Mapping[str, Any]] = UNSAID

    path: str = setting(help="the file, found as by the source npz; read by its ending, else as CSV")
    label: str | None = setting(
        None, help="the label's column: classes, numbers to predict, or times if event is set; default label"
    )
    key: str | None = setting(
        None, help="the column with each row's owner, which is a participant (partition natural); it is not a feature"
    )
    test_share: float = setting(
        0.25, help="share of each class that is used for testing; with key, of each owner's rows", gt=0, lt=1
    )
    seed: int = setting(0, help="seed of that split")
    event: str | None = setting(
        None,
        help="the column that is 1 where the event happened, 0 where the row was censored; the label is then the time, "
        "for task survival",
    )
    group: str | None = setting(
        None, help="the column with the true group of each row's owner, to compare clusters with; it is not a feature"
    )
    time: str | None = setting(
        None, help="a column of dates: each owner's latest rows are for testing, not random ones; it is not a feature"
    )
    first_days: int | None = setting(
        None, help="with time: the rows of so many days from an owner's first one train, and all later ones test", ge=1
    )
    columns: Mapping[str, Any] | str | None = setting(
        None, help="what the columns mean: the file that 'cfl-flare columns' wrote, or what is in it"
    )
    take: Sequence[str] | None = setting(None, help="the columns that become features, as [age,sex]; default all")
    leave: Sequence[str] | None = setting(None, help="columns that are left out, as [id,note]")
    categories: Sequence[str] | None = setting(None, help="columns of numbers that are codes of categories")
    absent: Sequence[str | float] | None = setting(
        None, help="texts and numbers that mean that a value is missing, as [?,NA,-1]"
    )
    missing: bool = setting(False, help="add whether a value is missing as a feature, where a column lacks some")
    unlabelled: Literal["refuse", "leave"] = setting("refuse", help="what happens to rows that have no label")
    scaling: Scaling = setting(
        "auto",
        help="numbers are scaled by a mean and deviation that all agree on (federation), by the participant's own "
        "training rows (site), or not at all (none): they should then be in about [0, 1]; auto: by the common ones if "
        "there are some, else by its own, shrunk to bounds, and what is far outside is clipped",
    )

    def __post_init__(self) -> None:
        for name in ("take", "leave", "categories", "absent"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, [getattr(self, name)])
            if name == "absent" and isinstance(self.absent, (list, tuple)):
                object.__setattr__(self, name, as_texts(self.absent))
            given = getattr(self, name)
            fits = isinstance(given, (list, tuple)) and all(isinstance(text, str) for text in given)
            require(fits or given is None, f"data table: {name} = {shown(given)} should be a list of text, as [a,b]")
        check_settings(self, "data table")
        named = {name: getattr(self, name) for name in ("label", "key", "event", "group", "time", "split")}
        for (one, name), (other, same) in combinations(named.items(), 2):
            differ = name is None or name != same or {one, other} == {"key", "group"}
            require(differ, f"data table: {one} and {other} are both {same!r}; they are different columns")
        require(
            self.split is None or self.time is None,
            f"data table: split = {self.split!r} and time = {self.time!r} both say which rows test; leave one out",
        )
        require(self.take is None or self.leave is None, "data table: take and leave are both given; give one of them")
        chosen = [name for name in ("take", "categories", "missing") if getattr(self, name)]
        require(
            self.columns is None or not chosen,
            f"data table: columns says what the columns mean, and so does {', '.join(chosen)}; leave one out",
        )
        require(
            self.first_days is None or self.time is not None,
            f"data table: first_days = {self.first_days} counts from a date; name its column with time",
        )
        if self._agreed is not None:  # what is in the file, as a job's sites do not have it
            object.__setattr__(self, "columns", self._agreed.to_dict())

    @property
    def usual_partition(self) -> Mapping[str, Any] | None:
        """Each owner is a participant, where rows have owners."""
        return None if self.key is None else {"partition": "natural"}

    @property
    def agreed_columns(self) -> Columns | None:
        """What the sites agreed on."""
        return self._agreed

    @cached_property
    def _agreed(self) -> Columns | None:
        """What the sites agreed on; None if that is not given."""
        where = "data table: columns"
        return None if self.columns is None else columns_of(self.columns, where).usable(where)

    @cached_property
    def _read(self) -> Reading:
        """How the file is written, and which rows are used: as this table says, else as the columns do."""
        return self.over(self._agreed)

    def load(self) -> tuple[Samples, Samples]:
        """Both splits: features ``(n, d)`` float64, as `preparation` takes them, NaN where a value is missing."""
        path, frame, columns, labels = self._whole
        frame = frame[labels.kept]
        x, _ = encoded(frame, columns, str(path))
        samples = Samples(x, labels.y, self._owners(frame, path), self._groups(frame))
        samples.check(str(path), missing=True)
        if self._read.split is not None:
            train, test = split_as_named(
                samples, texts(frame[self._read.split]), f"{path}: column {self._read.split!r}"
            )
        elif self.time is None:
            train, test = split_by_class(samples, self.test_share, self.seed)
        else:
            when = days(frame[self.time], f"{path}: column {self.time!r}")
            train, test = split_by_time(samples, when, self.test_share, self.first_days, str(path))
        return train.check(f"{path}: training", missing=True), test.check(f"{path}: test", missing=True, fewest=0)

    def _label(self) -> str:
        return self.label or (self._agreed.label if self._agreed is not None else None) or "label"

    @cached_property
    def _whole(self) -> tuple[Path, pd.DataFrame, Columns, Outcomes]:
        """The file, its table, what the columns mean, and the labels; read once, for all participants."""
        path = find(self.path, "data table")
        frame, columns = self._frame(path)
        leave = self.unlabelled == "leave"
        how = self._label(), self.event, columns.positive, columns.classes, leave, self._read.zero_times
        return path, frame, columns, outcomes(frame, path, *how)

    def _frame(self, path: Path) -> tuple[pd.DataFrame, Columns]:
        """The table, and what its columns mean.

        Raises:
            DataError: it cannot be read, or lacks a column.
        """
        agreed = self._agreed
        absent = [*map(str, self.absent or ()), *(agreed.absent if agreed is not None else ())]
        frame = read_frame(path, agreed.names if agreed is not None else (), absent, self._read)
        ways_out = {self._label(): "label, or CFL_LABEL", self.key: "key", self.event: "event, or CFL_EVENT"}
        ways_out |= {self.group: "group", self.time: "time", self._read.split: "split"}
        known = [name for name in ways_out if name]
        others = dict.fromkeys((*(self.take or ()), *(self.leave or ())), "take and leave")
        for name, way_out in {**others, **{name: ways_out[name] for name in known}}.items():
            if name not in frame:
                beside = " beside CFL_DATA" if "CFL" in way_out else ""
                raise ColumnsError(f"{path}: no column {shown(name)}; it has {names_of(frame)}; set {way_out}{beside}")
        if agreed is not None:
            check_columns(frame, agreed, str(path), [*known, *(self.leave or ())])
            return frame, replace(agreed, leave=tuple(dict.fromkeys((*agreed.leave, *(self.leave or ())))))
        features = [name for name in self.take or frame if name not in known and name not in (self.leave or ())]
        if not features:
            raise DataError(
                f"{path}: no column besides {self._label()!r} that could be a feature; it has {names_of(frame)}"
            )
        columns = inferred(frame[features], str(path), self.categories or (), self.missing)
        return frame, replace(columns, leave=tuple(self.leave or ()))

    def _owners(self, frame: pd.DataFrame, path: Path) -> np.ndarray | None:
        if self.key is None:
            return None
        key, missing = frame[self.key].to_numpy(), np.flatnonzero(texts(frame[self.key]).isna())
        if len(missing):
            row = frame.index[missing[0]] + 1
            raise DataError(f"{path}: column {self.key!r}: row {row} has no owner; fill it in or leave the row out")
        if key.dtype.kind == "f":
            raise DataError(f"{path}: column {self.key!r} holds {key.dtype}; a key is whole numbers or text")
        return key if key.dtype.kind in "iu" else key.astype(str)

    def _groups(self, frame: pd.DataFrame) -> np.ndarray | None:
        if self.group is None:
            return None
        return np.unique(frame[self.group].to_numpy().astype(str), return_inverse=True)[1].astype(np.int64)

    @property
    def positive(self) -> str | None:
        """What class 1 is: ``died = yes``, or ``num above 0``; of a table that is not here, as far as sites agreed."""
        columns, names = self._agreed, () if self._agreed is None else self._agreed.classes
        if self.event is not None:
            return None
        if columns is not None and columns.positive is not None:
            return f"{self._label()} above {columns.positive:g}"
        if not names:
            try:
                _, _, _, labels = self._whole
            except CFLError:
                return None
            names = labels.names
            if not names and labels.y.dtype.kind == "i" and labels.y.max() == 1:
                return f"{self._label()} = 1"
        return f"{self._label()} = {shown(names[1])}" if len(names) == 2 else None

    def described(self) -> list[str]:
        """What each column became, and which rows are left out."""
        path, frame, columns, labels = self._whole
        _, others = encoded(frame[labels.kept], columns, str(path))
        used = {c.column for c in columns.columns} | {self._label(), self.key, self.event, self.group, self.time}
        used |= {self._read.split}
        aside = [name for name in frame if name not in used]
        lines = [f"{len(frame.columns)} columns, {len(columns.features)} features", *(c.line for c in columns.columns)]
        lines += gaps(frame[labels.kept], columns)
        if aside:
            lines.append(f"left out: {', '.join(aside)}")
        why = ", or a time that is not above 0" if self._read.zero_times == "leave" else ""
        if not labels.kept.all():
            lines.append(f"left out: {int((~labels.kept).sum())} of {len(frame)} rows, which have no label{why}")
        lines += [f"{name}: {rows} rows have a category that no other site named" for name, rows in others.items()]
        lines += [] if self.positive is None else [f"class 1, the positive one: {self.positive}"]
        return lines

    def own_columns(self, fewest: int, scale: bool = False) -> Columns:
        """What this site's table has, for the sites to agree on: no row, and no category of fewer rows than this.

        Categories and classes that ``columns`` names are the study's, and stay, whether this site has them or not.

        Args:
            fewest: rows of a category, or with a number.
            scale: with mean and deviation of each number, for the scaling ``federation``: of the training rows, as by
                the scale that comes of them no test row is seen.

        Raises:
            ConfigError: ``fewest`` is not above 0.
            DataError: the table cannot be read, or has fewer rows.
        """
        require(fewest > 0, f"--min-rows = {fewest} should be > 0")
        path, frame, columns, labels = self._whole
        if len(frame) < fewest:
            raise DataError(f"{path}: has {len(frame)} rows, and says nothing of fewer than {fewest}; lower --min-rows")
        train, _ = self.load()  # each value is read, and is what its column holds
        columns = replace(columns.measured(train.x, fewest) if scale else columns, label=self._label())
        columns = replace(columns, **asdict(self._read))
        if self._agreed is None:
            columns = shared(columns, frame, fewest)
        if not columns.classes:
            named = texts(frame[self._label()]).value_counts()
            columns = replace(columns, classes=tuple(name for name in labels.names if named[name] >= fewest))
        return columns

    def preparation(self, train: Samples, federation: Samples | None = None) -> Preparation:
        """Fits to a participant's training rows; see `Preparation.fitted`.

        Args:
            train: its training samples, as `load` gives them.
            federation: those of all participants that train, in a simulation; None at a real site.

        Raises:
            DataError: at a real site, nothing says what the sites agreed on.
        """
        _, _, columns, labels = self._whole
        others = (*columns.leave, *filter(None, (self.key, self.event, self.group, self.time, self._read.split)))
        columns = replace(columns, **{**asdict(self._read), "split": None}, leave=tuple(dict.fromkeys(others)))
        columns = replace(columns, label=self._label(), classes=columns.classes or labels.names)
        if federation is None:
            self._check_alone(columns)
        elif self.scaling in ("auto", "federation") and not columns.common:
            columns = columns.measured(federation.x)
        return Preparation.fitted(train.x, columns, self.scaling)

    def _check_alone(self, columns: Columns) -> None:
        """Whether a real site has what it needs to make the same features as all others."""
        way_out = "let each site run 'cfl-flare site columns', put the files together with 'cfl-flare columns', and "
        way_out += "give the result as columns"
        agreed = self._agreed
        texts = [c.column for c in columns.columns if c.kind == "category"] if agreed is None else []
        if columns.classes and (agreed is None or not agreed.classes):
            texts.append(self._label())
        if texts:
            raise DataError(f"data table: the sites must agree on the categories of {texts[0]!r}; {way_out}")
        if self.scaling == "federation" and not columns.common:
            way_out = way_out.replace("site columns'", "site columns --scale'")
            raise DataError(f"data table: scaling = 'federation' needs a mean and deviation of all sites; {way_out}")


def columns_of(columns: Mapping[str, Any] | str, where: str) -> Columns:
    """What a setting ``columns`` says: a file's path, or what is in it.

    Raises:
        ConfigError: it is something else.
        DataError: there is no such file.
        PathError: the operator does not allow a job to name it.
    """
    return Columns.read(find(columns, where)) if isinstance(columns, str) else Columns.of(columns, where)
