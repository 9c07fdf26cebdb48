# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A model of a run as the sections of its dossier look at it, their fixed texts, and the sections with most tables.

The texts are what leaves a site by method, questions on changes, and those of Annex IV. The sections are on classes,
on what was not chosen, on clusters, withdrawals and other formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cfl_flare.data.columns import Columns
from cfl_flare.report.clusters import moves
from cfl_flare.report.page import Section, Table, View, cluster_label, pairs
from cfl_flare.report.study import candidates_table, hospitals_table
from cfl_flare.report.text import cut, interval, number
from cfl_flare.results.bootstrap import Draws
from cfl_flare.results.curves import ALL, load_curves
from cfl_flare.results.remarks import listed
from cfl_flare.results.run_dir import Run
from cfl_flare.results.schema import count as is_count

# Of a class with fewer test samples, a figure says little.
FEW = 10
# The last rounds begin after this part of all.
LATE = 0.75
# Names that are listed.
NAMED = 20

# What leaves a participant in a round, as the table in docs/egress.md says.
LEAVES: Mapping[str, str] = {
    **dict.fromkeys(("fedavg", "fedprox", "finetune", "ditto", "per-fedavg", "groups"), "one"),
    **dict.fromkeys(("fesem", "wecfl", "fedds", "feddsmic", "cfl", "fl-hc", "fedgroup"), "one"),
    "ifca": "one, which reveals the cluster that the participant picked. With shared_backbone a backbone and a head",
    "cfl-gp": "its model and a gradient in rounds that cluster, in the first one the gradient alone; else one",
    "feddrift": "one; in a period's first round losses and counts in place of a model",
    "flux": "one; in one round a descriptor of its data in place of a model",
    "fedsoft": "one: its personal model, and which cluster it is most in; in every second round its shares, K numbers",
    "clove": "every second round one, and in the others the losses of K models; once clusters are stable one",
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


def by_class(of: Dossier) -> Section:
    """Sensitivity and specificity of each class over the model's hospitals, and test samples by hospital and class."""
    title, tables, text = "Figures by class", [], []
    curves = load_curves(of.run.folder)
    curve = None if curves is None else curves.curves.get(ALL if of.slot == "global" else of.slot)
    if curve is not None and curve.by_class:
        text.append(
            "Sensitivity and specificity are of decisions on all test samples of the model's hospitals together, of "
            "classes with enough of them. Intervals (95 %, Wilson) take samples as independent."
        )
        rows = []
        for rates in curve.by_class:
            cells = [(number(rate), interval(ends)) for rate, *ends in (rates.sensitivity, rates.specificity)]
            rows.append([_name(of, rates.label), *cells[0], *cells[1]])
        headings = ("class", "sensitivity", "95 % interval", "specificity", "95 % interval")
        tables.append(("Decisions by class", Table(headings, rows)))
    else:
        text.append(
            "Decisions by class are not known: the run had no score_bins, or too few samples or sites. Where there are "
            "clusters, they are of each cluster."
        )
    counts = of.run.summary.get("test_classes")
    known = counts if isinstance(counts, dict) else {}
    people = [p["name"] for p in of.members if isinstance(known.get(p["name"]), list)]
    if not people:
        text.append("Test samples by class are not known: the run drew no intervals (bootstrap), or sites withheld it.")
        return Section(title, text, tables=tables)
    width = max(len(known[name]) for name in people)
    classes = [_name(of, i) for i in range(width)]
    few = f"fewer than {FEW}"
    rows = [[of.view.shown[n], *(str(count) if is_count(count) else few for count in known[n])] for n in people]
    text.append(f"Of a class with one to nine test samples, a hospital says that it has fewer than {FEW}.")
    return Section(title, text, tables=[*tables, ("Test samples", Table(("hospital", *classes), rows))])


def _name(of: Dossier, label: int) -> str:
    names = of.columns.classes if of.columns is not None else ()
    return cut(names[label]) if label < len(names) else f"class {label}"


def not_chosen(of: Dossier) -> Section:
    study = of.study
    title = "What was compared and not chosen"
    if study is None or study["verdict"] is None:
        return Section(title, ["This run is of no study: nothing is known of other candidates."])
    chosen = ("What was chosen, at each hospital", hospitals_table(study))
    tables = [(f"Candidates, by {cut(study['verdict']['metric'])}", candidates_table(study)), chosen]
    return Section(title, [cut(s, 500) for s in study["verdict"]["sentences"]], tables=tables)


def clusters(of: Dossier) -> Section | None:
    view = View(of.run)
    part = moves(view)
    if part is None:
        return Section("Clusters", ["The run has no clusters."])
    late = [round(LATE * of.run.summary["rounds"]), 0]
    shares = {name: [_share_there(view, name, since) for since in late] for name in view.by_cluster}
    rows = [
        [view.shown[name], cluster_label(view.clusters[name]), *("-" if s is None else f"{s:.0%}" for s in parts)]
        for name, parts in shares.items()
    ]
    unsure = [view.shown[name] for name, (share, _) in shares.items() if share is not None and share < 1]
    who = f"All hospitals but {listed(unsure, NAMED)}" if unsure else "All hospitals"
    last = of.run.summary["rounds"] - late[0]
    text = f"{who} were in their cluster in each of the last {last} rounds in which they had one."
    table = Table(("hospital", "cluster", "there in the last rounds", "in all rounds"), rows)
    return replace(part, title="Clusters", text=[*part.text, text], tables=[("Who is where", table)])


def _share_there(view: View, name: str, since: int) -> float | None:
    """In which share of the rounds from one on a hospital was in its last cluster; None if it was in none then."""
    there = [k == view.clusters[name] for r, k in view.histories.get(name, {}).items() if r >= since]
    return sum(there) / len(there) if there else None


def withdrawn(of: Dossier) -> Section:
    """Who withdrew, what of them is in the model, and what a run without them would still have of them."""
    report = of.withdrawal
    if report is None:
        return Section("Withdrawals", ["The run's folder has no record of a withdrawal."])
    since, first = report["models"].get(of.slot), report["first_round"]
    text = [f"{listed(report['withdrawn'], NAMED)} withdrew after the run."]
    if first is None:
        text.append("They trained in no round, and touched no model. Figures of theirs may be in the run.")
    else:
        text.append(f"They are in this model from round {since} on." if since is not None else "They never touched it.")
    text += [f"All clusters have to train again: {cut(why, 300)}." for why in report["why_all"] if report["again"]]
    text += [f"A run without them still has of them: {cut(what, 300)}." for what in report["not_zero"]]
    rows = [
        ("the first round in which they trained", "none" if first is None else first),
        ("models that they touched", ", ".join(sorted(report["models"])) or "none"),
        ("models that they did not touch", ", ".join(report["untouched"]) or "none"),
        *((f"{name} that they touched", len(report[name])) for name in ("files", "checkpoints")),
        ("later runs that started from a touched file", len(report["later_runs"])),
        ("hospitals that have to train again", len(report["again"])),
        ("run again without them", "yes" if "rerun" in report else "a job was written" if "job" in report else "no"),
    ]
    return Section("Withdrawals", text, tables=[("What was touched", pairs(rows))])


def other_formats(of: Dossier) -> Section:
    """What a reader of the model's other formats has to know: the description that lies beside them."""
    if of.formats is None:
        return Section("Other formats", ["The model was written in no other format; see --formats."])
    given = of.formats["input"]
    rows = [("input", _tensor(given)), ("values of the input", given.get("values"))]
    rows += [("missing values", given.get("missing")), ("in the graph", given["in_graph"])]
    for output in of.formats["outputs"]:
        rows += [(f"output {output['name']}", _tensor(output)), (f"values of {output['name']}", output["values"])]
    rows += [("classes", ", ".join(of.formats["classes"]))] if of.formats["classes"] else []
    text = f"{of.slot}.json beside this file has the same for programs."
    return Section("Other formats", [text], tables=[("Inputs and outputs", pairs(rows))])


def _tensor(described: dict[str, Any]) -> str:
    return f"{described['name']}, {described['dtype']}, ({', '.join(map(str, described['shape']))})"
