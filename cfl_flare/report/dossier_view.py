# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A model of a run, as the sections of its dossier look at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cfl_flare.data.columns import Columns
from cfl_flare.report.page import View
from cfl_flare.results.bootstrap import Draws
from cfl_flare.results.run_dir import Run


@dataclass(frozen=True)
class Dossier:
    """What a dossier is made of.

    Attributes:
        run: the run, under pseudonyms unless names are wanted.
        slot: the model's name.
        study: what a study found; None if the run is not of one.
        files: by name, size and SHA-256 of each file that goes with the model.
        software: by name, the versions of what is installed where the dossier was written.
        plan: what `cfl_flare.cli.dossier.read_plan` read.
        columns: what the columns of its tables mean; None for other data, or where nobody said it.
        draws: what hospitals measured on draws of their test splits; None if the run drew none.
        withdrawal: what `cfl_flare.results.withdrawal.read_withdrawal` read, under the run's names; None for none.
        formats: the description of the model in other formats; None if it was written in none.
        lineage: what a check of the run's lineage said, in lines; none if it has none.
        names: hospitals have their own names, and numbers of samples are exact.
    """

    run: Run
    slot: str
    study: Mapping[str, Any] | None = None
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    columns: Columns | None = None
    draws: Draws | None = None
    withdrawal: Mapping[str, Any] | None = None
    formats: Mapping[str, Any] | None = None
    lineage: Sequence[str] = ()
    names: bool = False

    @cached_property
    def members(self) -> list[dict[str, Any]]:
        """The participants whose model it is."""
        cluster = self.slot.removeprefix("cluster-")
        people = View(self.run).people
        return people if cluster == self.slot else [p for p in people if str(p.get("cluster")) == cluster]

    @cached_property
    def view(self) -> View:
        """The run with these participants alone."""
        return View(replace(self.run, summary={**self.run.summary, "participants": self.members}))

    def setting(self, part: str, name: str) -> Any:
        values = self.run.summary.get(part)
        return values.get(name) if isinstance(values, dict) else None
