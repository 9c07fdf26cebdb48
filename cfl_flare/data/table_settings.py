# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of a table: its file, the meaning of its columns, and the split; with the checks of what was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, Literal

from cfl_flare.core.config import require
from cfl_flare.core.settings import setting
from cfl_flare.core.text import shown
from cfl_flare.data.classes import CLASS_NAMES, CLASSES_HELP, as_names
from cfl_flare.data.columns import Columns, as_texts
from cfl_flare.data.files import find
from cfl_flare.data.preparation import Scaling
from cfl_flare.data.reading import Reading
from cfl_flare.data.samples import NamedSource

# Settings that name columns of different meaning.
PURPOSES = ("label", "key", "patient", "event", "group", "time", "split")
# Settings that are lists of text.
LISTS = ("take", "leave", "categories", "absent")


@dataclass(frozen=True)
class TableSettings(Reading, NamedSource):
    """What a user says of a table, checked, before a file is opened."""

    path: str = setting(
        help="the file, found as by the source npz; read by its ending, else as CSV"
    )
    label: str | None = setting(
        None,
        help="the column of classes, numbers, or times if event is set; default label",
    )
    key: str | None = setting(
        None,
        help="the column with each row's owner, which is a participant (partition natural); it is not a feature",
    )
    patient: str | None = setting(
        None,
        help="the column that says whose row it is, where a patient has several: they train together, or test, and dp "
        "protects all of them at once; it is not a feature",
    )
    test_share: float = setting(
        0.25,
        help="share of each class that is used for testing; with key, of each owner's rows",
        gt=0,
        lt=1,
    )
    seed: int = setting(0, help="seed of that split")
    event: str | None = setting(
        None,
        help="the column that is 1 where the event happened, 0 where the row was censored; the label is then the time, "
        "for task survival",
    )
    group: str | None = setting(
        None,
        help="the column with the true group of each row's owner, to compare clusters with, or which a site names for "
        "method groups; it is not a feature",
    )
    time: str | None = setting(
        None,
        help="a column of dates: each owner's latest rows are for testing, not random ones; it is not a feature",
    )
    first_days: int | None = setting(
        None,
        help="with time: the rows of this many days from an owner's first one train, and all later ones test",
        ge=1,
    )
    columns: Mapping[str, Any] | str | None = setting(
        None,
        help="what the columns mean: the file that 'cfl-flare columns' wrote, or what is in it",
    )
    take: Sequence[str] | None = setting(
        None, help="the columns that become features, as [age,sex]; default all"
    )
    leave: Sequence[str] | None = setting(
        None, help="columns that are left out, as [id,note]"
    )
    categories: Sequence[str] | None = setting(
        None, help="columns of numbers that are codes of categories"
    )
    absent: Sequence[str | float] | None = setting(
        None, help="texts and numbers that mean that a value is missing, as [?,NA,-1]"
    )
    missing: bool = setting(
        False,
        help="add whether a value is missing as a feature, where a column lacks some",
    )
    unlabelled: Literal["refuse", "leave"] = setting(
        "refuse", help="what happens to rows that have no label"
    )
    scaling: Scaling = setting(
        "auto",
        help="numbers are scaled by a mean and deviation that all agree on (federation), by the participant's own "
        "training rows (site), or not at all (none): they should then be in about [0, 1]; auto: by the common ones if "
        "there are some, else by its own, shrunk to bounds, and what is far outside is clipped",
    )

    classes: Sequence[str] | None = setting(None, help=CLASSES_HELP, bounds=CLASS_NAMES)

    def __post_init__(self) -> None:
        if isinstance(self.classes, (list, tuple)):
            object.__setattr__(self, "classes", as_names(self.classes))
        for name in LISTS:
            object.__setattr__(self, name, self._read_list(name))
        super().__post_init__()
        self._check_purposes()
        self._check_pairs()
        # A job carries the content of the file, because its sites do not have the file.
        if self.agreed_columns is not None:
            object.__setattr__(self, "columns", self.agreed_columns.to_dict())

    def _read_list(self, name: str) -> Any:
        """The texts of a setting that is a list; a single text is a list of one."""
        value = getattr(self, name)
        values = [value] if isinstance(value, str) else value
        if values is None:
            return None
        is_list = isinstance(values, (list, tuple))
        if is_list and name == "absent":
            values = as_texts(values)
        valid = is_list and all(isinstance(text, str) for text in values)
        wanted = f"{name} = {shown(values)} should be a list of text, as [a,b]"
        require(valid, f"data table: {wanted}")
        return values

    def _check_purposes(self) -> None:
        """Refuses a column that is named for two purposes; an owner may be a group of one."""
        purposes = {name: getattr(self, name) for name in PURPOSES}
        for (purpose, name), (other, same) in combinations(purposes.items(), 2):
            if name is None or {purpose, other} == {"key", "group"}:
                continue
            require(
                name != same,
                f"data table: {purpose} and {other} are both {same!r}; they are different columns",
            )

    def _check_pairs(self) -> None:
        """Refuses settings that contradict each other, or need another one."""
        both = f"split = {self.split!r} and time = {self.time!r} both say which rows test; leave one out"
        require(self.split is None or self.time is None, f"data table: {both}")
        require(
            self.take is None or self.leave is None,
            "data table: take and leave are both given; give one of them",
        )
        chosen = [
            name for name in ("take", "categories", "missing") if getattr(self, name)
        ]
        both = f"columns says what the columns mean, and so does {', '.join(chosen)}; leave one out"
        require(self.columns is None or not chosen, f"data table: {both}")
        alone = f"first_days = {self.first_days} counts from a date; name its column with time"
        require(
            self.first_days is None or self.time is not None, f"data table: {alone}"
        )

    @property
    def usual_partition(self) -> Mapping[str, Any] | None:
        return None if self.key is None else {"partition": "natural"}

    @cached_property
    def agreed_columns(self) -> Columns | None:
        where = "data table: columns"
        return (
            None
            if self.columns is None
            else columns_of(self.columns, where).usable(where)
        )

    @property
    def agreed_classes(self) -> tuple[str, ...]:
        if self.classes is not None:
            return tuple(self.classes)
        agreed = self.agreed_columns
        return () if agreed is None else agreed.classes

    @cached_property
    def _read(self) -> Reading:
        """How the file is written, and which rows are used: as this table says, else as the columns do."""
        return self.over(self.agreed_columns)


def columns_of(columns: Mapping[str, Any] | str, where: str) -> Columns:
    """What a setting ``columns`` says: the path of a file that a job may name, or what is in it."""
    return (
        Columns.read(find(columns, where))
        if isinstance(columns, str)
        else Columns.of(columns, where)
    )
