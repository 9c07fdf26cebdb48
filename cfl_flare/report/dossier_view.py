# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A model of a run, as the sections of its dossier look at it, and their fixed texts.

These are what leaves a site by method, questions on changes, and those of Annex IV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cfl_flare.data.columns import Columns
from cfl_flare.report.page import View
from cfl_flare.results.bootstrap import Draws
from cfl_flare.results.run_dir import Run

_ONE = "one"
# What leaves a participant in a round, as the table in docs/egress.md says.
LEAVES: Mapping[str, str] = {
    **dict.fromkeys(("fedavg", "fedprox", "finetune", "ditto", "per-fedavg", "groups"), _ONE),
    "ifca": "one, which reveals the cluster that the participant picked. With shared_backbone a backbone and a head",
    "cfl-gp": "its model and a gradient in rounds that cluster, in the first one the gradient alone; else one",
    "feddrift": "one; in a period's first round losses and counts in place of a model",
    "flux": "one; in one round a descriptor of its data in place of a model",
    "fedsoft": "one: its personal model, and which cluster it is most in; in every second round its shares, K numbers",
    "clove": "every second round one, and in the others the losses of K models; once clusters are stable one",
    **dict.fromkeys(("fesem", "wecfl", "fedds", "feddsmic", "cfl", "fl-hc", "fedgroup"), _ONE),
    **dict.fromkeys(("fedper", "fedbabu"), "a backbone"),
    **dict.fromkeys(("cgpfl", "fedac"), "one: its personal model"),
    "cam": "two: the global model's and the cluster model's; in the warm-up one, or none",
    "fedcuau": "in the first round the last layer; then the shared layers, and a copy of the cluster's layers for each "
    "cluster from its own on",
    "auto-k": "one in the warm-up; then those of the method whose clusters it looks for",
    "ensemble": "one for each of their parts",
    "local": "none",
}
# What else leaves a site, whatever the method.
ALWAYS: Sequence[str] = (
    "At check-in: participants' names, and the number of training samples of each.",
    "Each round: differences between models, as said above, and measures of the served model on the test split.",
)

# The headings of a plan of changes, with what each entry answers.
CHANGES: Mapping[str, str] = {
    "description": "Which modification is foreseen: a re-training, another hospital, a hospital in another cluster?",
    "protocol": "How is it made and tested: on which data, by which method, by whom?",
    "criterion": "By which number, with which interval, is it accepted or rolled back?",
    "impact": "Whom does it affect, what can go wrong, and how is that noticed?",
}

# Points of Annex IV of Regulation (EU) 2024/1689 as questions, and the section that has facts on each.
NOWHERE = "not in this file"
ANNEX_IV: Sequence[tuple[str, str, str]] = (
    ("1 (a)", "What is the intended purpose, who provides it, which version is it?", "What it is"),
    ("1 (b)", "How does it interact with hardware and software that are not part of it?", NOWHERE),
    ("1 (c)", "Which versions of software does it need?", "Software"),
    ("1 (d)", "In which forms is it placed on the market?", "Files"),
    ("1 (e)", "On which hardware is it intended to run?", NOWHERE),
    ("1 (f)", "If it is a component of a product: what does the product look like?", NOWHERE),
    ("1 (g), (h)", "What do users see, and what are the instructions for use?", NOWHERE),
    ("2 (a)", "By which methods and steps was it developed? Were trained systems of others used?", "Settings"),
    ("2 (b)", "What are the design choices, the logic, and what is optimised for?", "What was compared and not chosen"),
    ("2 (c)", "What is the architecture, and which computing resources were used?", "Settings"),
    ("2 (d)", "On which data was it trained, where do they come from, how were they selected and labelled?", "Data"),
    ("2 (e)", "Which human oversight is needed?", NOWHERE),
    ("2 (f)", "Which changes are determined in advance?", "Planned changes"),
    ("2 (g)", "How was it validated and tested, with which measures, on whom?", "Figures"),
    ("2 (h)", "Which measures of cybersecurity are in place?", "Lineage"),
    ("3", "How accurate is it for whom, and what are its limits and foreseeable risks?", "Known limits"),
    ("4", "Why are these performance metrics appropriate?", NOWHERE),
    ("5", "What is the risk management system of Article 9?", NOWHERE),
    ("6", "Which changes were made through its life?", NOWHERE),
    ("7", "Which harmonised standards were applied?", NOWHERE),
    ("8", "Where is the EU declaration of conformity?", NOWHERE),
    ("9", "How is performance watched after it is placed on the market?", NOWHERE),
)


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
