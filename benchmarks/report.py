# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report on the cells that tables.py measured: a table a partition, with the published figures."""

from __future__ import annotations

import dataclasses
import json
import shlex
import statistics
import textwrap
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Cell, read_cells
from plans import PLANS, Plan
from plans.plan import FIGURES, own_training

# ---- Tables ----


def label(row: Mapping[str, Any]) -> str:
    """A row's name with what is not as in the plan."""
    return " ".join([row["row"], *(f"{key}={value}" for key, value in row.get("settings", {}).items())])


def chosen_rounds(cell: Cell) -> list[dict[str, Any]]:
    """The measured rounds over which a cell's figures are averaged: the last ones, or those of the best accuracy."""
    which, count = cell.plan.averaged
    measured = [r for r in cell.rounds if "served_accuracy" in r]
    ranked = measured if which == "last" else sorted(measured, key=lambda r: r["served_accuracy"])
    return ranked[-count:]


def figure_of(cell: Cell, key: str) -> float | None:
    """A figure of a cell, from its rounds or from what was measured after them; None where neither has it."""
    values = [r[key] for r in chosen_rounds(cell) if r.get(key) is not None]
    return statistics.fmean(values) if values else cell.after.get(key)


def over_seeds(values: Sequence[float | None], scale: float = 1.0) -> dict[str, float | None]:
    """Mean and sample standard deviation over seeds; a single seed has no deviation."""
    there = [scale * v for v in values if v is not None]
    return {
        "mean": statistics.fmean(there) if there else None,
        "std": statistics.stdev(there) if len(there) > 1 else None,
    }


def units(ours: Mapping[str, float | None], theirs: Sequence[float | None]) -> float | None:
    """How far our mean is above theirs, in units of the larger of the two deviations.

    None without any, and for a single seed: how far another one would be from it is not known.
    """
    mean, std = ours["mean"], ours["std"]
    if mean is None or std is None or theirs[0] is None:
        return None
    deviation = max(std, theirs[1] or 0.0)
    return (mean - theirs[0]) / deviation if deviation else None


def finished(cells: Path | zipfile.Path) -> list[Cell]:
    """The finished cells, in the order of the table.

    Raises:
        SystemExit: there are none, they are of several plans, or they were not trained the same way.
    """
    unordered = read_cells(cells)
    plans = {cell.plan.name: cell.plan for cell in unordered}
    if len(plans) > 1:
        raise SystemExit(f"{cells}: cells of the plans {', '.join(plans)}; keep each plan's in a folder of its own")
    ways = {json.dumps(way(cell), sort_keys=True) for cell in unordered}
    if len(ways) != 1:
        raise SystemExit(f"{cells}: {len(unordered)} finished cells, trained in {len(ways)} ways; one way is expected")
    (plan,) = plans.values()
    order = list(dict.fromkeys([*next(iter(plan.published["figures"].values()), {}), *plan.named_rows]))
    place = {row: i for i, row in enumerate(order)}
    return sorted(unordered, key=lambda cell: (place.get(cell.facts["row"], len(place)), cell.facts["seed"]))


def way(cell: Cell) -> dict[str, Any]:
    """How a cell was trained, but for the settings that it says are its own."""
    own, plan, summary = {**cell.facts.get("settings", {}), **of_row(cell)}, cell.plan, cell.summary
    usual = {key: value for key, value in dataclasses.asdict(plan.training).items() if key in own}
    model = plan.model if {"model", "hidden"} & own.keys() else summary["model"]
    scheduled = summary.get("run", {})
    run = {k: getattr(plan, k) if k in own else scheduled.get(k) for k in ("sample", "evaluate_every")}
    if unseen := summary["data"].get("unseen"):
        run["unseen"] = unseen
    known = {"precision": "float32", **summary["training"]}  # the first cells did not say it
    return {"model": model, "training": {**known, **usual}, "run": run}


def of_row(cell: Cell) -> dict[str, Any]:
    """What a cell's row said of its training."""
    return own_training(cell.facts["method"].split(" + "))


def table_rows(found: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row for the seeds of a method on a partition, with the same participants, rounds and settings."""
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in found:
        what = [cell.facts[k] for k in ("partition", "row", "method", "participants", "rounds")]
        groups[json.dumps([*what, cell.facts.get("settings", {})])].append(cell)
    return [table_row(cells) for cells in groups.values()]


def table_row(cells: Sequence[Cell]) -> dict[str, Any]:
    """What the cells of all seeds amount to, beside what is published."""
    first, plan = cells[0].facts, cells[0].plan
    published = plan.published["figures"].get(first["partition"], {}).get(first["row"], [])
    figures = {
        name: over_seeds([figure_of(cell, figure.key) for cell in cells], figure.scale)
        for name, figure in FIGURES.items()
        if name in plan.columns
    }
    compared = {k: published[0].get(k, (None, None)) for k in plan.compared} if published else {}
    if plan.published.get("other_data"):
        compared = {}
    # A round that was done again after a stop has cost its time twice, and counts twice.
    attempts = [attempt for cell in cells for attempt in cell.facts.get("attempts", [cell.facts])]
    return {
        "plan": plan.name,
        **{key: first[key] for key in ("partition", "row", "method", "participants", "rounds")},
        "settings": first.get("settings", {}),
        "rule": cells[0].summary["data"]["partition"],
        "seeds": [cell.facts["seed"] for cell in cells],
        **figures,
        "gigabytes_down": statistics.fmean(cell.summary["bytes_down"] / 1e9 for cell in cells),
        "gigabytes_up": statistics.fmean(cell.summary["bytes_up"] / 1e9 for cell in cells),
        **{
            f"{kind}_seconds_a_round": sum(a[f"{kind}_seconds"] for a in attempts) / sum(a["rounds"] for a in attempts)
            for kind in ("cpu", "wall")
        },
        "published": published,
        "units": {k: units(figures[k], theirs) for k, theirs in compared.items()},
        "commits": sorted({attempt["commit"] for attempt in attempts}),
    }


def commands(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The commands that measure these rows and no others."""
    together: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for r in rows:
        changes = tuple(f"{key}={value}" for key, value in r["settings"].items())
        key = (r["plan"], r["partition"], r["participants"], r["rounds"], tuple(r["seeds"]), changes)
        together[key].append(r["row"])
    return [
        f"CFL_DATA_ROOT=... python benchmarks/tables.py run --plan {plan} --out cells "
        f"--rows {shlex.join(dict.fromkeys(names))} --partitions {partition} "
        f"--seeds {' '.join(map(str, seeds))} --participants {participants} --rounds {rounds}"
        + (f" --set {shlex.join(changes)}" if changes else "")
        for (plan, partition, participants, rounds, seeds, changes), names in together.items()
    ]


def shown(mean: float | None, std: float | None = None, digits: int = 2) -> str:
    """A figure with its deviation, where it has one."""
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" + ("" if std is None else f"±{std:.{digits}f}")


# Commits that cells name and the history does not have: nobody could check them out.
UNREACHABLE = (
    *("3b5e09214a", "54d08dcd8c", "41a925e92c"),  # stroke and heart
    *("11c521274a", "b4835b8e73"),  # attacks; rewritten as 49ca065 and dd27918
    *("29258f46af", "13a3bea78c", "7ddb096d05", "d08765f800"),  # minimum sizes, one liar
)


def head(plan: Plan) -> list[str]:
    """The titles of the Markdown table."""
    figures = [FIGURES[name].title for name in plan.columns]
    ends = ("GB down / up", "s a round: CPU / wall", "published", "difference", "commit")
    return ["row", "rounds", "participants", "seeds", *figures, *ends]


def markdown_row(r: Mapping[str, Any]) -> str:
    """A row of the Markdown table."""
    plan, published = PLANS[r["plan"]], r["published"]
    theirs = quoted(published[0], plan) if published else "-"
    distance = " / ".join("-" if v is None else f"{v:+.1f}" for v in r["units"].values()) or "-"
    cells = [
        *(label(r), str(r["rounds"]), str(r["participants"]), ", ".join(map(str, r["seeds"]))),
        *(shown(**r[name], digits=FIGURES[name].digits) for name in plan.columns),
        f"{r['gigabytes_down']:.3f} / {r['gigabytes_up']:.3f}",
        f"{r['cpu_seconds_a_round']:.1f} / {r['wall_seconds_a_round']:.1f}",
        theirs + ("†" if len(published) > 1 else ""),
        distance,
        ", ".join(c for c in r["commits"] if c not in UNREACHABLE) or "-",
    ]
    return "| " + " | ".join(cells) + " |"


def notes(plan: Plan) -> str:
    """What the table's figures are."""
    which, count = plan.averaged
    rounds = {"last": f"the last {count} measured rounds", "best": f"the {count} measured rounds of the best accuracy"}
    compared = " / ".join(FIGURES[name].title for name in plan.compared)
    text = f"""
Accuracies and macro-F1 are in percent, of the served models on the participants' own test splits, weighted by their
training samples: the mean over seeds of the mean of {rounds[which]}, ± the sample standard deviation over seeds; so are
the accuracy of the worst participant, that of the five worst (bottom), ARI and the clusters in use. What is measured of
the models once a run is done (initial, personalised, unseen) is of its end alone. Bytes are those of a whole run in one
process, where a model goes down once a round for all participants. The difference
is ours less the published figure ({compared}; its table in brackets), in units of the larger of the two standard
deviations; a single seed has none, and no difference is given for it, nor where the published figures are of other
data."""
    return f"\n{textwrap.fill(text.strip(), 120)}\n"


def markdown(rows: Sequence[dict[str, Any]], plan: Plan, settings: Mapping[str, Any], name: str) -> str:
    """The report: commands, settings, a table a partition."""
    lines = [f"# Measured beside published: {plan.title}", "", "```", *commands(rows)]
    lines += [f"python benchmarks/tables.py report --cells cells --out benchmarks/results/{name}/{name}", "```", ""]
    lines += [f"- {key}: `{json.dumps(value)}`" for key, value in settings.items()]
    lines += dict.fromkeys(f"- {r['row']}: `{r['method']}`" for r in rows)
    lines += [notes(plan), "Published: " + " ".join(plan.published["about"])]
    titles = head(plan)
    for partition in dict.fromkeys(r["partition"] for r in rows):
        here = [r for r in rows if r["partition"] == partition]
        lines += ["", f"## {partition}", "", f"`{json.dumps(here[0]['rule'])}`", ""]
        lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *map(markdown_row, here)]
        lines += dict.fromkeys(note for r in here for note in contradictions(r))
    return "\n".join(lines) + "\n"


def contradictions(r: Mapping[str, Any]) -> list[str]:
    """What other published tables say of the same cell, where they say something else."""
    plan = PLANS[r["plan"]]
    return [f"\n† {r['row']}: another published figure is {quoted(other, plan)}." for other in r["published"][1:]]


def quoted(published: Mapping[str, Any], plan: Plan) -> str:
    """A published figure with its table."""
    return " / ".join(shown(*published.get(k, (None,))) for k in plan.compared) + f" ({published['tables'][0]})"


def texts(cells: Sequence[Cell], name: str) -> dict[str, str]:
    """A report of that name as JSON and as Markdown, by the endings of the files."""
    plan, rows, settings = cells[0].plan, table_rows(cells), way(cells[0])
    content = {"plan": plan.name, "commands": commands(rows), **settings, "rows": rows}
    return {".json": json.dumps(content, indent=1) + "\n", ".md": markdown(rows, plan, settings, name)}


def write_report(cells: Path | zipfile.Path, out: Path) -> None:
    """Writes ``<out>.json`` and ``<out>.md``."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for ending, text in texts(finished(cells), out.name).items():
        Path(f"{out}{ending}").write_text(text)
