# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The file that goes with a model: what it is, who trained it on what, what it reaches where. Facts, and no claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cfl_flare.report import dossier_view as parts
from cfl_flare.report.dossier_view import ALWAYS, ANNEX_IV, CHANGES, FEW, LEAVES, NOWHERE, Dossier
from cfl_flare.report.facts import participants, settings_table
from cfl_flare.report.measures import cross_site, discrimination
from cfl_flare.report.page import Section, Table, View, page, pairs, sections
from cfl_flare.report.text import cut, interval, is_finite, number
from cfl_flare.results.gate import gate_lines
from cfl_flare.results.pseudonyms import DIGITS
from cfl_flare.results.remarks import listed

PARTS = ("method", "model", "training", "run", "private", "seed", "resumed_at")
LONG = 2000
NOT_SAID = "not stated; the file of --plan can say it"
FLOORS = ("min_sites_per_cluster", "min_samples_per_cluster", "max_weight_share", "hold_small_clusters")


def dossier_page(of: Dossier) -> str:
    """The dossier as one HTML file that loads nothing."""
    makers = (
        *(what_it_is, data, who_trained, figures, parts.by_class, everywhere, calibration, parts.not_chosen),
        *(parts.clusters, settings, software, egress, privacy, limits, licence, changes, parts.withdrawn, annex),
        *(lineage, parts.other_formats, files),
    )
    title = f"{of.slot} of {cut(of.run.name)}"
    subtitle = f"Dossier of a model: {of.run.summary['rounds']} rounds, {len(of.members)} hospitals"
    return page(title, subtitle, sections(of, makers))


def what_it_is(of: Dossier) -> Section:
    summary, model = of.run.summary, of.run.summary.get("model")
    network = model if isinstance(model, dict) else {}
    rows = [
        ("model", of.slot),
        ("intended purpose", of.plan.get("purpose", NOT_SAID)),
        ("task", of.setting("training", "task") or "as its training script says"),
        ("class 1, the positive one", summary.get("positive")),
        ("network", network.get("class_path")),
        ("arguments of the network", network.get("args")),
        ("method", cut(of.run.name, 120)),
        ("rounds", summary["rounds"]),
        ("layers that each hospital has for itself", summary.get("private")),
    ]
    text = [f"{of.slot} is a model that {len(of.members)} of {len(View(of.run).people)} hospitals trained."]
    if of.slot == "global" and summary["clusters"]:
        text.append("Hospitals predict with their clusters' models. Their figures below are of those, not of this one.")
    return Section("What it is", text, tables=[("The model", pairs(rows))])


def data(of: Dossier) -> Section:
    if of.columns is None:
        shape = (of.run.summary.get("model") or {}).get("args") or {}
        rows = [(key.replace("_", " "), shape.get(key)) for key in ("input_shape", "num_classes") if key in shape]
        text = "The run's folder does not say what columns mean; at hospitals the file of agreed columns does."
        return Section("Data", [text], tables=[("What the network takes", pairs(rows))] if rows else [])
    lines = []
    for column in of.columns.columns:
        limits = "-" if column.range is None else f"{column.range[0]:g} to {column.range[1]:g}"
        missing = "filled up, and the model sees where" if column.missing else "filled up"
        categories = cut(", ".join(column.categories), 200) or "-"
        lines.append([cut(column.column), column.kind, categories, limits, cut(column.unit or "-"), missing])
    label = [
        ("label", of.columns.label),
        ("class 1 is a label above", of.columns.positive),
        ("classes", ", ".join(of.columns.classes) or None),
        ("texts that mean a missing value", ", ".join(of.columns.absent) or None),
        ("columns that are left out", ", ".join(of.columns.leave) or None),
    ]
    text = "The columns that the hospitals agreed on. A value outside its range is refused, so that other units show."
    headings = ("column", "kind", "categories", "range", "unit", "missing values")
    return Section("Data", [text], tables=[("Columns", Table(headings, lines)), ("The label", pairs(label))])


def who_trained(of: Dossier) -> Section:
    people, view = of.members, of.view
    sizes = [size for person in people if isinstance(size := view.weight(person), (int, float))]
    ends = f"{number(min(sizes))} and {number(max(sizes))}" if sizes else None
    left_out, missed = (of.run.summary.get(key) or {} for key in ("sites_left_out", "missed"))
    rows = [
        ("hospitals", len(people)),
        ("sites of the federation that they are at", len({person.get("site") for person in people})),
        (f"{view.unit}, together", number(sum(sizes)) if sizes else None),
        ("the fewest and the most of one hospital", ends),
        ("hospitals of the run", len(View(of.run).people)),
        ("sites that took no part", len(left_out) or None),
        ("hospitals that missed rounds", len(missed) or None),
    ]
    floors = [(name.replace("_", " "), of.setting("run", name)) for name in FLOORS]
    notes = ["One hospital trained this model alone: its figures are that hospital's."] if len(people) == 1 else []
    notes += [] if of.names else [f"Numbers of samples of each hospital are rounded to {DIGITS} digits."]
    tables = [("Who", pairs(rows)), ("Floors that held in the run", pairs(floors))]
    return Section("Who trained it", tables=tables, notes=notes)


def figures(of: Dossier) -> Section:
    part, summary = participants(of.view), of.run.summary
    label = f"{of.slot}/" if of.slot != "global" else ""
    means = {key: value for key, value in summary["final"].items() if key.startswith(f"{label}served_")}
    rows = [
        (key.removeprefix(label).removeprefix("served_"), number(value), interval(_interval_of_mean(of, key)))
        for key, value in means.items()
        if not key.endswith("_unweighted")
    ]
    if part is None:
        return Section("Figures", ["Nothing was measured of it."])
    table = ("Means over its hospitals", Table(("measure", "mean", "95 % interval"), rows))
    text = f"Each hospital measures the model that it is served {of.view.measured_on}, after the last round."
    return replace(part, title="Figures", text=[text, *part.text], tables=[table] if rows else [])


def _interval_of_mean(of: Dossier, key: str) -> Sequence[float] | None:
    """Of all hospitals, as the run has it; of a cluster's, from the draws of its hospitals' test splits."""
    if "/" not in key:
        return (of.run.summary.get("intervals") or {}).get(key)
    measure = key.rpartition("/")[2]
    points = {p["name"]: p[measure] for p in of.members if is_finite(p.get(measure))}
    return None if of.draws is None else of.draws.of_mean(measure, points)


def everywhere(of: Dossier) -> Section:
    none = Section("Every model everywhere", ["Not measured: the run had no cross_site_evaluation."])
    return cross_site(View(of.run)) or none


def calibration(of: Dossier) -> Section:
    none = Section("Discrimination and calibration", ["Not measured: the run had no score_bins."])
    return discrimination(View(of.run)) or none


def settings(of: Dossier) -> Section:
    values = {part: of.run.summary[part] for part in PARTS if of.run.summary.get(part) is not None}
    return Section("Settings", tables=[("Settings and seeds", settings_table(values))])


def software(of: Dossier) -> Section:
    versions = of.run.summary.get("versions")
    at_server = versions.items() if isinstance(versions, Mapping) else ()
    text = "sbom.json beside this file lists the latter in CycloneDX 1.6. Hospitals' own versions are not recorded."
    tables = [("Where the run was", pairs(at_server)), ("Where this file was written", pairs(of.software.items()))]
    return Section("Software", [text], tables=tables)


def egress(of: Dossier) -> Section:
    method = str(of.setting("method", "method"))
    if of.run.script is not None:
        unknown = "A training script trained at the hospitals. It can send anything; what it sent is not known here."
        return Section("What left each site", [unknown])
    text = [f"Models that left a hospital in a round, by {cut(method)}: {LEAVES.get(method, NOWHERE)}.", *ALWAYS]
    if of.setting("training", "score_bins"):
        text.append("With score_bins: histograms of test scores by class.")
    if of.setting("training", "bootstrap"):
        text.append("With bootstrap: measures on draws of tests.")
    if of.run.summary.get("private"):
        text.append(f"Layers that never left a hospital: {cut(of.run.summary['private'], 200)}.")
    text.append("A hospital's own filter may have withheld, rounded or changed some of it; the run does not say so.")
    return Section("What left each site", text)


def privacy(of: Dossier) -> Section:
    """What the run promised, and what attacks reached; or that cfl_flare used no differential privacy."""
    none = (
        [] if of.setting("training", "dp") else ["No differential privacy was used by cfl_flare: there is no epsilon"]
    )
    text = [f"{cut(line, 500)}." for line in (*none, *gate_lines(of.run.summary))]
    return Section("Differential privacy", [*text, "Filters of single sites are not known."])


def limits(of: Dossier) -> Section:
    summary, known = of.run.summary, of.run.summary.get("test_classes") or {}
    few = [p["name"] for p in of.members if None in (known.get(p["name"]) or ())]
    untested = [p["name"] for p in of.members if p.get("tested") is False]
    lines = [
        *(cut(line, LONG) for line in of.plan.get("limits", ())),
        *([f"{len(of.members)} hospitals say little of others."] if len(of.members) < FEW else []),
        *(["No interval was measured."] if not summary.get("intervals") else []),
        *(["Intervals are of test samples: another seed would change the model."] if summary.get("intervals") else []),
        *([f"Fewer than {FEW} test samples of a class: {listed(few, 20)}."] if few else []),
        *([f"No test samples: {listed(untested, 20)}."] if untested else []),
        *([f"The run ended early: {cut(summary['stopped'], 200)}."] if summary.get("stopped") else []),
        *(["Layers that each hospital has for itself are untrained in its file."] if summary.get("private") else []),
        "It was measured on hospitals that took part in training, and on no others.",
    ]
    return Section("Known limits", lines)


def licence(of: Dossier) -> Section:
    of_model = cut(of.plan.get("licence", NOT_SAID), LONG)
    return Section("Licence", [f"Of the model: {of_model}. Of cfl_flare: Apache-2.0."])


def changes(of: Dossier) -> Section:
    planned = of.plan.get("change", [])
    text = [] if planned else ["No changes are planned in this file. A plan answers of each change:", *CHANGES.values()]
    rows = [[f"{i}", *(cut(change.get(key, NOT_SAID), LONG) for key in CHANGES)] for i, change in enumerate(planned, 1)]
    headings = ("description of the modification", "modification protocol", "acceptance criterion", "impact assessment")
    return Section("Planned changes", text, tables=[("Changes", Table(("", *headings), rows))] if rows else [])


def annex(of: Dossier) -> Section:
    law = "Annex IV of Regulation (EU) 2024/1689"
    text = f"Questions after {law}, with the section of this file that has facts on each."
    table = Table(("point", "question", "where"), ANNEX_IV)
    return Section("Questions of Annex IV", [text], tables=[("Questions", table)])


def lineage(of: Dossier) -> Section:
    return Section("Lineage", [cut(line, LONG) for line in of.lineage] or ["The run has no lineage."])


def files(of: Dossier) -> Section:
    rows = [[cut(name), f"{size:,}", digest] for name, (size, digest) in of.files.items()]
    return Section("Files", tables=[("Beside this file", Table(("file", "bytes", "SHA-256"), rows))])
