# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A study as the sections of its report look at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cfl_flare.report.html.text import measure_name, told_apart
from cfl_flare.results.run_dir import SUMMARY, load_run

if TYPE_CHECKING:
    from cfl_flare.results.run_dir import Run


@dataclass(frozen=True)
class StudyView:
    """A study, with what several sections need of it.

    Attributes:
        study: what `cfl_flare.results.study.load_study` read.
        folder: the study's.
    """

    study: Mapping[str, Any]
    folder: Path

    @property
    def verdict(self) -> dict[str, Any] | None:
        """The verdict; None if the study is not finished."""
        found: dict[str, Any] | None = self.study["verdict"]
        return found

    @property
    def measure_name(self) -> str:
        """What candidates are compared by, as it is called on the page."""
        return "the metric" if self.verdict is None else measure_name(self.verdict["metric"])

    @cached_property
    def names(self) -> list[str]:
        """The candidates that were compared, in their order."""
        rungs = self.study["rungs"]
        return [*dict.fromkeys(name for rung in rungs for name in (*rung["means"], *rung["dropped"]))]

    @cached_property
    def shown(self) -> dict[str, str]:
        """Each candidate's title as it is shown."""
        titles = self.study["titles"]
        return dict(zip(self.names, told_apart(titles.get(name, name) for name in self.names)))

    @property
    def rounds(self) -> dict[str, int]:
        """How many rounds each candidate trained."""
        return {name: rung["rounds"] for rung in self.study["rungs"] for name in (*rung["means"], *rung["dropped"])}

    def run(self, name: str) -> Run | None:
        """A run in the study's folder; None if there is none. A name may be anybody's: it is looked for, not opened.

        Raises:
            ConfigError: the run is damaged.
        """
        there = [own.name for own in self.folder.iterdir() if own.is_dir() and not own.is_symlink()]
        return load_run(self.folder / name) if name in there and (self.folder / name / SUMMARY).is_file() else None
