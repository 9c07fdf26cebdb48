# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tables as hospitals have them: one row per sample, a column of labels, and numbers, categories or dates in others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.errors import CFLError, ColumnsError, DataError
from cfl_flare.core.text import shown
from cfl_flare.data import features
from cfl_flare.data.classes import name_codes
from cfl_flare.data.columns import Columns
from cfl_flare.data.files import find
from cfl_flare.data.frames import is_unnamed, read_frame
from cfl_flare.data.kinds import FEW, describe_oddities, infer_columns
from cfl_flare.data.labels import form_of
from cfl_flare.data.numbering import name_labels, number_codes
from cfl_flare.data.preparation import Preparation, is_agreed_only
from cfl_flare.data.samples import Samples
from cfl_flare.data.spelling import find_near
from cfl_flare.data.splits import split_as_named, split_by_class, split_by_time
from cfl_flare.data.table_settings import TableSettings

if TYPE_CHECKING:
    import pandas as pd

# A name that is a whole number, and would be written in the same way again: 007 is another name than 7.
WHOLE_NUMBER = r"0|-?[1-9]\d{0,17}"


@dataclass(frozen=True)
class Table(TableSettings):
    """Rows of a text file such as .csv, a Parquet, Excel or Stata file, or an .npz file with one array per column.

    All columns but those named for another purpose are features: numbers, which each participant scales by its own
    training rows; booleans; text as categories, each a feature of 0 or 1; dates as days. A missing value is filled by
    the participant's own training rows. A run prints what each column became. ``columns`` says it beforehand, as real
    sites must agree on categories: see ``cfl-flare site columns``.

    Labels are class numbers from 0, or names and codes, which are numbered in sorted order: two values are two classes.
    A label column with decimals, or with a number below 0, of more than two values holds numbers to predict, for task
    regression.
    """

    name: ClassVar[str] = "table"
    prepares: ClassVar[bool] = True

    def load(self) -> tuple[Samples, Samples]:
        """Both splits: features ``(n, d)`` float64, as `preparation` takes them, NaN where a value is missing."""
        path, frame, columns, labels = self._contents
        frame = frame[labels.rows]
        x, _ = features.encoded(frame, columns, str(path))
        features.check_unknown(frame, columns, str(path))
        owners = self._names(frame, path, self.key, "owner")
        patients = self._names(frame, path, self.patient, "patient")
        notes = owners, self._groups(frame), patients
        samples = Samples(x, labels.y, *notes, labels.names)
        samples, _ = name_labels(samples, samples.take(np.arange(0)), str(path))
        samples.check(str(path), missing=True)
        split = self._read.split
        if split is not None:
            train, test = split_as_named(
                samples, features.texts(frame[split]), f"{path}: column {split!r}"
            )
        elif self.time is None:
            train, test = split_by_class(samples, self.test_share, self.seed)
        else:
            when = features.days(frame[self.time], f"{path}: column {self.time!r}")
            train, test = split_by_time(
                samples, when, self.test_share, self.first_days, str(path)
            )
        return train.check(f"{path}: training", missing=True), test.check(
            f"{path}: test", missing=True, fewest=0
        )

    def _label(self) -> str:
        agreed = self.agreed_columns
        return self.label or (agreed.label if agreed else None) or "label"

    def _others(self) -> list[str]:
        """The columns that are neither features nor the label."""
        columns = (
            self.key,
            self.patient,
            self.event,
            self.group,
            self.time,
            self._read.split,
        )
        return [name for name in columns if name]

    @cached_property
    def _contents(self) -> tuple[Path, pd.DataFrame, Columns, features.Outcomes]:
        """The file, its table, what the columns mean, and the labels; read once, for all participants."""
        path = find(self.path, "data table")
        frame, columns = self._frame(path)
        return (
            path,
            frame,
            columns,
            features.outcomes(
                frame, path, columns, self.event, self.unlabelled == "leave"
            ),
        )

    def _frame(self, path: Path) -> tuple[pd.DataFrame, Columns]:
        """The table, and what its columns mean, with all that this source says of them."""
        agreed, leave = self.agreed_columns, tuple(self.leave or ())
        absent = tuple(
            dict.fromkeys(
                (
                    *map(str, self.absent or ()),
                    *(agreed.absent if agreed is not None else ()),
                )
            )
        )
        header = agreed.names if agreed is not None else ()
        frame = read_frame(path, header, absent, self._read, self._names_read(agreed))
        ways_out = dict.fromkeys((*(self.take or ()), *leave), "take and leave")
        settings = {
            "label, or CFL_LABEL": self._label(),
            "key": self.key,
            "event, or CFL_EVENT": self.event,
        }
        settings |= {"group": self.group, "time": self.time, "split": self._read.split}
        settings["patient, or CFL_PATIENT"] = self.patient
        ways_out |= {name: setting for setting, name in settings.items() if name}
        for name, way_out in ways_out.items():
            if name not in frame:
                there = f"it has {features.names_of(frame)}; set {way_out}"
                variable = " together with CFL_DATA" if "CFL" in way_out else ""
                near = find_near(name, list(map(str, frame)))
                hint = "" if near is None else f"; did you mean {shown(near)}?"
                raise ColumnsError(
                    f"{path}: no column {shown(name)}; {there}{variable}{hint}"
                )
        known = [self._label(), *self._others()]
        if agreed is not None:
            features.check_columns(frame, agreed, str(path), [*known, *leave])
            columns = agreed
        else:
            unnamed = [name for name in frame if is_unnamed(name)]
            names = [
                name
                for name in self.take or frame
                if name not in known and name not in leave
            ]
            names = [
                name for name in names if self.take is not None or name not in unnamed
            ]
            if not names:
                there = features.names_of(frame)
                raise DataError(
                    f"{path}: no column besides {known[0]!r} that could be a feature; it has {there}"
                )
            columns = infer_columns(
                frame[names], str(path), self.categories or (), self.missing
            )
        leave = tuple(dict.fromkeys((*columns.leave, *leave)))
        columns = replace(
            columns,
            label=self._label(),
            leave=leave,
            absent=absent,
            classes=self.agreed_classes,
        )
        return frame, replace(columns, **asdict(self._read))

    def _names_read(self, agreed: Columns | None) -> list[str]:
        """The columns whose values are names or codes, and so are read as text from every file."""
        columns = [
            self.key,
            self.patient,
            self.group,
            self._read.split,
            *(self.categories or ()),
        ]
        if agreed is not None:
            columns += agreed.named
            columns += [self._label()] if self.agreed_classes else []
        return [name for name in columns if name is not None]

    @staticmethod
    def _names(
        frame: pd.DataFrame, path: Path, column: str | None, who: str
    ) -> np.ndarray | None:
        """The name of each row's owner, or patient, which is ``who``; None without a column."""
        if column is None:
            return None
        names = features.texts(frame[column])
        missing = np.flatnonzero(names.isna())
        if len(missing):
            row = frame.index[missing[0]] + 1
            raise DataError(
                f"{path}: column {column!r}: row {row} has no {who}; fill it in or leave the row out"
            )
        if names.str.fullmatch(WHOLE_NUMBER).all():
            return names.to_numpy().astype(
                np.int64
            )  # sorted by their size, and not as text
        return names.to_numpy().astype(str)

    def _groups(self, frame: pd.DataFrame) -> np.ndarray | None:
        if self.group is None:
            return None
        groups = features.texts(frame[self.group]).to_numpy().astype(str)
        return np.unique(groups, return_inverse=True)[1].astype(np.int64)

    @property
    def group_label(self) -> str | None:
        """What all rows have in the column ``group``; a DataError if they differ."""
        if self.group is None:
            return None
        path, frame, _, labels = self._contents
        names = sorted({*features.texts(frame[labels.rows][self.group]).dropna()})
        several = f"{path}: column {self.group!r} names {len(names)} groups; a site has one: leave group out"
        require(len(names) == 1, several, DataError)
        return str(names[0])

    @property
    def positive(self) -> str | None:
        """What class 1 is: ``died = yes``, or ``num above 0``; of a table that is not here, as far as sites agreed."""
        agreed = self.agreed_columns
        if self.event is not None:
            return None
        if agreed is not None and agreed.positive is not None:
            return f"{self._label()} above {agreed.positive:g}"
        names = self.agreed_classes
        if not names:
            try:
                train, _ = self._named
            except CFLError:
                return None
            names = train.classes
            if (
                not names
                and form_of(train.y, self.path) == "class"
                and train.outputs <= 2
            ):
                return f"{self._label()} = 1"
        return f"{self._label()} = {shown(names[1])}" if len(names) == 2 else None

    @cached_property
    def _named(self) -> tuple[Samples, Samples]:
        """Labels without samples, as `samples.read` numbers those of all participants; the second are none."""
        _, _, _, labels = self._contents
        every = Samples(np.zeros((len(labels.y), 1)), labels.y, classes=labels.names)
        train, test = name_labels(every, every.take(np.arange(0)), self.path)
        return number_codes(train, test)

    def described(self) -> list[str]:
        path, frame, columns, labels = self._contents
        labelled = frame[labels.rows]
        x, _ = features.encoded(labelled, columns, str(path))
        used = {*(c.column for c in columns.columns), self._label(), *self._others()}
        aside = [name for name in frame if name not in used]
        lines = [
            f"{len(frame.columns)} columns, {len(columns.features)} features",
            *(c.line for c in columns.columns),
        ]
        lines += features.gaps(labelled, columns)
        if self.patient is not None:
            lines.append(
                f"{self.patient}: {labelled[self.patient].nunique()} patients, of {len(labelled)} rows"
            )
        if aside:
            lines.append(f"left out: {', '.join(aside)}")
        names = [name for name in (self.key, self.patient) if name is not None]
        lines += describe_oddities(labelled, columns, x, names)
        why = (
            ", or a time that is not above 0"
            if self._read.zero_times == "leave"
            else ""
        )
        if not labels.rows.all():
            lines.append(
                f"left out: {int((~labels.rows).sum())} of {len(frame)} rows, which have no label{why}"
            )
        lines += features.describe_unknown(labelled, columns)
        lines += self._describe_numbers(labels.y)
        return (
            [*lines, f"class 1, the positive one: {self.positive}"]
            if self._is_numbered_for_all
            else lines
        )

    def _describe_numbers(self, y: np.ndarray) -> list[str]:
        """A line that says so if the labels are numbers to predict."""
        coded = y.ndim == 1 and name_codes(y) is not None
        if coded or form_of(y, self.path) != "number":
            return []
        span = f"numbers to predict, from {y.min():g} to {y.max():g}"
        return [
            f"{self._label()}: {span}; if they are codes of classes, name all by classes"
        ]

    @property
    def _is_numbered_for_all(self) -> bool:
        """Whether class 1 of two is known from this table alone: its labels are words, 0 and 1, or were agreed on."""
        _, _, columns, labels = self._contents
        is_known = (
            bool(self.agreed_classes or labels.names) or columns.positive is not None
        )
        return self.positive is not None and (
            is_known or {*np.unique(labels.y).tolist()} <= {0, 1}
        )

    def own_columns(self, fewest: int, scale: bool = False) -> Columns:
        """What this site's table has, for the sites to agree on: no row, and no category of fewer rows than ``fewest``.

        Where the table names patients, so many patients must have it. Categories and classes that ``columns`` names are
        the study's, and stay, whether this site has them or not. With ``scale``, numbers that as many have get their
        mean and deviation, for the scaling ``federation``. Both are of the training rows, so that no test row has a
        part in the common scale.
        """
        require(fewest > 0, f"--min-rows = {fewest} should be > 0")
        path, frame, columns, _ = self._contents
        rows, what = (
            (len(frame), "rows")
            if self.patient is None
            else (frame[self.patient].nunique(), "patients")
        )
        if rows < fewest:
            raise DataError(
                f"{path}: has {rows} {what}, and says nothing of fewer than {fewest}; lower --min-rows"
            )
        train, _ = self.load()  # each value is read, and is what its column holds
        columns = columns.measured(train.x, fewest, train.patient) if scale else columns
        if self.agreed_columns is None:
            columns = features.shared(columns, frame, fewest, self.patient)
        if columns.classes:
            return columns
        counts = features.counted(frame, self._label(), self.patient)
        return replace(
            columns,
            classes=tuple(
                name for name in self._shared_names() if counts.get(name, 0) >= fewest
            ),
        )

    def _shared_names(self) -> tuple[str, ...]:
        """The names of classes for the sites to agree on: words, and codes that may well be classes."""
        _, _, _, labels = self._contents
        if labels.names or self.event is not None:
            return labels.names
        every, _ = self._named
        are_few = form_of(every.y, self.path) == "class" and len(every.classes) <= FEW
        return every.classes if are_few else ()

    def preparation(
        self, train: Samples, federation: Samples | None = None
    ) -> Preparation:
        """Fits to a participant's training rows; at a real site only if something says what the sites agreed on."""
        _, _, columns, labels = self._contents
        leave = tuple(dict.fromkeys((*columns.leave, *self._others())))
        columns = replace(
            columns, split=None, leave=leave, classes=columns.classes or train.classes
        )
        if federation is None:
            self._check_alone(columns, labels.names)
        elif self.scaling in ("auto", "federation") and not columns.common:
            columns = columns.measured(federation.x)
        return Preparation.fitted(train.x, columns, self.scaling)

    def _check_alone(self, columns: Columns, words: Sequence[str]) -> None:
        """Whether a real site has what it needs to make the same features as all others; its classes may be words."""
        way_out = "let each site run 'cfl-flare site {command}', put the files together with 'cfl-flare columns', and "
        way_out += "give the result as columns"
        agreed = self.agreed_columns
        if agreed is None and is_agreed_only():
            raise ColumnsError(
                "data table: with dp, no row may decide what the columns mean, and the sites agreed on no columns\n"
                f"hint: {way_out.format(command='columns --scale')}"
            )
        unknown = (
            [c.column for c in columns.columns if c.kind == "category"]
            if agreed is None
            else []
        )
        if words and not self.agreed_classes:
            unknown.append(self._label())
        if unknown:
            way_out = way_out.format(command="columns")
            raise DataError(
                f"data table: the sites must agree on the categories of {unknown[0]!r}; {way_out}"
            )
        if self.scaling == "federation" and not columns.common:
            way_out = way_out.format(command="columns --scale")
            raise DataError(
                f"data table: scaling = 'federation' needs a mean and deviation of all sites; {way_out}"
            )
