# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The card of a run's model: facts from the run's files as JSON values, and the same facts as Markdown.

The headings are those of Hugging Face's model cards. A card names no participant. When the template is filled, each
value becomes one line of limited length, and everything that means something in Markdown or HTML is escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cfl_flare.core import __version__
from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.files import file_sha256
from cfl_flare.data.columns import Columns
from cfl_flare.extensions.report.facts import flattened
from cfl_flare.extensions.report.page import View, cluster_label
from cfl_flare.results.ancestry import ANCESTRY, Ancestry
from cfl_flare.results.bootstrap import read_draws
from cfl_flare.results.gate import why_not
from cfl_flare.results.run_dir import MODELS, Run
from cfl_flare.results.wording import cut, interval, is_finite, number

Facts = Mapping[str, Any]

LONGEST = 500
GLOBAL = "global"
NO_CLUSTER = cluster_label(None)
# Parts of the summary that a card repeats, and settings of the data. Other parts name participants.
REPEATED = (
    "rounds",
    "stopped",
    "improving",
    "model",
    "training",
    "run",
    "private",
    "seed",
    "positive",
    "metric",
)
OF_DATA = ("partition", "seed", "min_samples", "validation", "measured_on")
OF_COLUMN = ("column", "kind", "unit", "range", "categories", "missing")
# How files of results end.
RESULTS = (".json", ".jsonl", ".safetensors", ".csv")
# Characters that begin something in Markdown. An underscore inside a word does not.
SPECIAL = re.compile(r"[\\`*\[\]~$#]|(?<![^\W_])_|_(?![^\W_])")


def build_card(
    run: Run, slot: str, comparison: Sequence[Facts], columns: Columns | None = None
) -> dict[str, Any]:
    """Collect the facts on one of a run's models.

    Args:
        run: the run that left the model.
        slot: the model's name: ``global`` or ``cluster-0``.
        comparison: the rows of `compare_runs` or `compare_candidates`.
        columns: what the columns of the tables mean; None for other data, or if nobody named their file.

    Returns:
        The content of ``card.json``.

    Raises:
        PayloadError: the file of the model or of the intervals is damaged.
    """
    summary = run.summary
    _, meta = load_arrays(run.folder / MODELS / f"{slot}.safetensors")
    data = summary.get("data") or {}
    membership = summary.get("membership") or {"bound": None, "models": {}}
    attacked = membership["models"].get(slot) or {"attacks": {}}
    rates = {
        name: {"mean": of["tpr"], "interval": of["interval"]}
        for name, of in attacked["attacks"].items()
    }
    majority = {"accuracy": {"mean": summary.get("majority"), "interval": None}}
    card = {name: summary.get(name) for name in REPEATED}
    card |= {
        "format": 1,
        "name": slot,
        "title": run.name,
        "method": remove_groups(summary["method"]),
        "data": {name: data.get(name) for name in OF_DATA},
        "untrained": meta.get("untrained"),
        "label": columns and columns.label,
        "classes": columns and columns.classes,
        "columns": list_columns(columns),
        "clusters": count_members(run),
        "results": list_figures(run, slot),
        "comparison": [
            *comparison,
            {"method": "the most frequent class", "run": None, "figures": majority},
        ],
        "privacy": describe_privacy(summary),
        "membership": {
            "bound": membership["bound"],
            "attacks": rates,
            "refusal": why_not(summary, slot),
        },
        "versions": {
            **summary.get("versions", {}),
            "cfl-flare of this card": __version__,
        },
        "sha256": hash_files(run, slot),
    }
    return card


def describe_privacy(summary: Facts) -> Facts | None:
    """Describe the differential privacy of the models; None unless each run in which they were trained had it."""
    privacy = Ancestry.of(summary.get(ANCESTRY)).privacy
    return None if privacy is None else {"epsilon": privacy[0], "delta": privacy[1]}


def remove_groups(value: Any) -> Any:
    """Remove given groups, which are names of participants, from a method and from the methods inside it."""
    if isinstance(value, Mapping):
        return {
            name: remove_groups(part)
            for name, part in value.items()
            if name != "groups"
        }
    if isinstance(value, list):
        return [remove_groups(part) for part in value]
    return value


def list_columns(columns: Columns | None) -> Sequence[Facts]:
    """List the columns without their means and deviations, which are sums over patients."""
    rows = []
    for column in columns.columns if columns else ():
        rows.append({name: getattr(column, name) for name in OF_COLUMN})
    return rows


def hash_files(run: Run, slot: str) -> dict[str, str]:
    """Compute the SHA-256 of the model's file and of the run's files of results."""
    results = sorted(
        path.name for path in run.folder.iterdir() if path.suffix in RESULTS
    )
    names = [f"{MODELS}/{slot}.safetensors", *results]
    return {name: file_sha256(run.folder / name) for name in names}


# ---- Figures ----


def list_members(run: Run, slot: str) -> list[dict[str, Any]]:
    """List the participants that predict with a model. With clusters, nobody predicts with the common model."""
    view = View(run)
    if not run.summary["clusters"]:
        return view.people
    return [
        person
        for person in view.people
        if cluster_label(view.clusters[person["name"]]) == slot
    ]


def count_members(run: Run) -> Facts:
    """Count the members of each model; without any count if one model has fewer than the run's minimum.

    A small count would otherwise follow from the others and a known total.
    """
    view = View(run)
    settings = run.summary.get("run") or {}
    fewest_sites = settings.get("min_sites_per_cluster") or 1
    fewest_samples = settings.get("min_samples_per_cluster") or 1
    rows: list[Facts] = []
    for slot in sorted(
        {cluster_label(cluster) for cluster in view.clusters.values()} | {GLOBAL}
    ):
        members = list_members(run, slot)
        sites = len({member.get("site") for member in members})
        weight = sum(view.weight(member) or 0 for member in members)
        if members and (sites < fewest_sites or weight < fewest_samples):
            rows = []
            break
        if members and slot != NO_CLUSTER:
            rows.append(
                {
                    "model": slot,
                    "participants": len(members),
                    "sites": sites,
                    "samples": weight,
                }
            )
    return {
        "minimum_sites": fewest_sites,
        "minimum_samples": fewest_samples,
        "rows": rows,
    }


def list_figures(run: Run, slot: str) -> dict[str, Any]:
    """List the means over the participants that predict with a model; none if nobody does.

    Args:
        run: the run that measured them.
        slot: the model's name.

    Returns:
        By measure, the ``mean`` and its 95 % ``interval``, which is None if there is none.
    """
    members = list_members(run, slot)
    prefix = f"{slot}/" if run.summary["clusters"] else ""
    return measure_members(run, members, prefix) if members else {}


def measure_members(run: Run, members: Sequence[Facts], prefix: str) -> dict[str, Any]:
    """List the means over some participants, with intervals from their bootstrap resamples."""
    draws = read_draws(run.folder)
    figures = {}
    for measure in dict.fromkeys([run.metric.name, *run.reported]):
        key = f"served_{measure}"
        points = {
            member["name"]: member[key]
            for member in members
            if is_finite(member.get(key))
        }
        ends = draws.of_mean(key, points) if draws else None
        figures[measure] = {
            "mean": run.summary["final"].get(prefix + key),
            "interval": ends,
        }
    return figures


def compare_runs(run: Run, others: Sequence[Run]) -> Sequence[Facts]:
    """List the figures of each run with the same participants.

    Args:
        run: the run whose card is written.
        others: the runs of the same command or job, this run among them.

    Returns:
        A row for each run.
    """
    rows = []
    for other in others:
        if other.values("samples") == run.values("samples"):
            figures = measure_members(other, other.summary["participants"], "")
            rows.append(
                {"method": other.name, "run": other.folder.name, "figures": figures}
            )
    return rows


def compare_candidates(study: Facts) -> Sequence[Facts]:
    """List the mean of a study's candidates on test samples, and the gain of each pair that the study compared."""
    verdict = study["verdict"]
    titles = study["titles"]
    rows = []
    for name, title in titles.items():
        figure = {"mean": verdict["tested"].get(name), "interval": None}
        rows.append(
            {"method": title, "run": name, "figures": {verdict["metric"]: figure}}
        )
    for pair in verdict["compared"]:
        title = f"{titles[pair['one']]} against {titles[pair['other']]}"
        gain = {
            "mean": pair["found"]["gain"],
            "interval": (pair["found"]["low"], pair["found"]["high"]),
        }
        rows.append({"method": title, "run": None, "figures": {"gain": gain}})
    return rows


# ---- Markdown ----


def render_card(card: Facts) -> str:
    """Write the facts of `build_card` as Markdown with YAML front matter."""
    measures = dict.fromkeys(
        measure for row in card["comparison"] for measure in row["figures"]
    )
    loader = PackageLoader("cfl_flare.extensions.report", "html")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, finalize=show_value, trim_blocks=True
    )
    return (
        environment.get_template("card.md.j2").render(
            card, measures=measures, flatten=flattened
        )
        + "\n"
    )


def show_value(value: Any) -> str:
    """Write a value as Markdown in which nothing is a command.

    >>> show_value("<b>|*x*\\n# y"), show_value({"mean": 0.5, "interval": [0.25, 0.75]}), show_value([True, None])
    ('&lt;b&gt;&#124;\\\\*x\\\\* \\\\# y', '0.500 (0.250 to 0.750)', 'yes, -')
    """
    if isinstance(value, Markup):
        return value
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if is_finite(value):
        return number(value)
    if isinstance(value, list):
        return ", ".join(map(show_value, value)) or "-"
    if isinstance(value, Mapping) and "mean" in value:
        return f"{number(value['mean'])} ({interval(value['interval'])})".replace(
            " (-)", ""
        )
    text = SPECIAL.sub(r"\\\g<0>", cut(value, LONGEST))
    text = html.escape(text, quote=False).replace("|", "&#124;")
    return text.replace("://", "&#58;//").replace(
        "www.", "www&#46;"
    )  # a renderer would make links of them
