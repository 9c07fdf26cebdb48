# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report on the cells that tables.py measured: a table a partition, the published figures beside ours."""

from __future__ import annotations

import dataclasses
import json
import shlex
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from plans import PLANS, Plan

from cfl_flare.report.colours import COLOURS
from cfl_flare.results.run_dir import Run, load_run

Cell = tuple[dict[str, Any], Run]

AFTER = "after.json"  # what a plan measured of a finished run, beside its rounds
# Figures of a row: their key in rounds.jsonl or in after.json, their unit, their title and their digits.
FIGURES: dict[str, tuple[str, float, str, int]] = {
    "accuracy": ("served_accuracy", 100, "accuracy", 2),
    "macro_f1": ("served_macro_f1", 100, "macro-F1", 2),
    "worst_accuracy": ("served_worst_accuracy", 100, "worst", 2),
    "bottom_accuracy": ("served_bottom_accuracy", 100, "bottom", 2),
    "unseen": ("unseen", 100, "unseen", 2),
    "initial": ("initial", 100, "initial", 2),
    "sound": ("sound", 100, "sound labels", 2),
    "sound_ari": ("sound_ari", 1, "ARI of sound", 2),
    "personalised": ("personalised", 100, "personalised", 2),
    **{tier: (tier, 100, tier.upper(), 2) for tier in ("c1", "c2", "c3", "c4")},
    "ari": ("ari", 1, "ARI", 2),
    "nmi": ("nmi", 1, "NMI", 2),
    "stable": ("stable", 1, "rounds to stable", 1),
    "clusters_in_use": ("clusters_in_use", 1, "clusters", 1),
}


def plan_of(cell: Mapping[str, Any]) -> Plan:
    """The plan of a cell; the first ones did not say it."""
    return PLANS[cell.get("plan", "family")]


def chosen_rounds(one: Run, averaged: tuple[str, int]) -> list[dict[str, Any]]:
    """The measured rounds over which a run's figures are averaged: the last ones, or those of the best accuracy."""
    which, count = averaged
    measured = [r for r in one.rounds if "served_accuracy" in r]
    ranked = measured if which == "last" else sorted(measured, key=lambda r: r["served_accuracy"])
    return ranked[-count:]


def figure_of(one: Run, key: str, averaged: tuple[str, int]) -> float | None:
    """A figure of a run, from its rounds or from what was measured after them; None where neither has it."""
    values = [r[key] for r in chosen_rounds(one, averaged) if r.get(key) is not None]
    if values:
        return statistics.fmean(values)
    after = one.folder / AFTER
    return json.loads(after.read_text()).get(key) if after.exists() else None


def over_seeds(values: Sequence[float | None], scale: float = 1.0) -> dict[str, float | None]:
    """Mean and sample standard deviation over seeds; a single seed has no deviation."""
    there = [scale * v for v in values if v is not None]
    return {
        "mean": statistics.fmean(there) if there else None,
        "std": statistics.stdev(there) if len(there) > 1 else None,
    }


def units(ours: Mapping[str, float | None], theirs: Sequence[float | None]) -> float | None:
    """How far our mean is above theirs, in units of the larger of the two deviations; None without any."""
    deviation = max(ours["std"] or 0.0, theirs[1] or 0.0)
    if not deviation or ours["mean"] is None or theirs[0] is None:
        return None
    return (ours["mean"] - theirs[0]) / deviation


def finished(cells: Path) -> list[Cell]:
    """The finished cells, in the order of the table.

    Raises:
        SystemExit: there are none, they are of several plans, or they were not trained the same way.
    """
    found = [(json.loads(path.read_text()), load_run(path.parent)) for path in sorted(cells.rglob("cell.json"))]
    plans = {plan_of(cell).name: plan_of(cell) for cell, _ in found}
    if len(plans) > 1:
        raise SystemExit(f"{cells}: cells of the plans {', '.join(plans)}; keep each plan's in a folder of its own")
    ways = {json.dumps(way(cell, one), sort_keys=True) for cell, one in found}
    if len(ways) != 1:
        raise SystemExit(f"{cells}: {len(found)} finished cells, trained in {len(ways)} ways; one way is expected")
    (plan,) = plans.values()
    order = list(dict.fromkeys([*next(iter(plan.published["figures"].values()), {}), *plan.named_rows]))
    return sorted(found, key=lambda f: (order.index(f[0]["row"]) if f[0]["row"] in order else len(order), f[0]["seed"]))


def way(cell: Mapping[str, Any], one: Run) -> dict[str, Any]:
    """How a cell was trained, but for the settings that it says are its own."""
    own, plan = cell.get("settings", {}), plan_of(cell)
    usual = {key: value for key, value in dataclasses.asdict(plan.training).items() if key in own}
    model = plan.model if "model" in own else one.summary["model"]
    scheduled = one.summary.get("run", {})
    run = {k: getattr(plan, k) if k in own else scheduled.get(k) for k in ("sample", "evaluate_every")}
    if unseen := one.summary["data"].get("unseen"):
        run["unseen"] = unseen
    known = {"precision": "float32", **one.summary["training"]}  # the first cells did not say it
    return {"model": model, "training": {**known, **usual}, "run": run}


def table_rows(found: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row for the seeds of a method on a partition, with the same participants, rounds and settings."""
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell, one in found:
        what = [cell[k] for k in ("partition", "row", "method", "participants", "rounds")]
        groups[json.dumps([*what, cell.get("settings", {}), cell.get("flare")])].append((cell, one))
    return [table_row([cell for cell, _ in members], [one for _, one in members]) for members in groups.values()]


def table_row(cells: Sequence[dict[str, Any]], runs: Sequence[Run]) -> dict[str, Any]:
    """What the cells of all seeds amount to, beside what is published."""
    first, plan = cells[0], plan_of(cells[0])
    published = plan.published["figures"].get(first["partition"], {}).get(first["row"], [])
    figures = {
        name: over_seeds([figure_of(one, key, plan.averaged) for one in runs], scale)
        for name, (key, scale, _, _) in FIGURES.items()
        if name in plan.columns
    }
    compared = {k: published[0].get(k, (None, None)) for k in plan.compared} if published else {}
    if plan.published.get("other_data"):
        compared = {}
    # A round that was done again after a stop has cost its time twice, and counts twice.
    attempts = [attempt for cell in cells for attempt in cell.get("attempts", [cell])]
    return {
        "plan": plan.name,
        **{key: first[key] for key in ("partition", "row", "method", "participants", "rounds")},
        "settings": first.get("settings", {}),
        "flare": first.get("flare", 0),
        "rule": runs[0].summary["data"]["partition"],
        "seeds": [cell["seed"] for cell in cells],
        **figures,
        "gigabytes_down": statistics.fmean(one.summary["bytes_down"] / 1e9 for one in runs),
        "gigabytes_up": statistics.fmean(one.summary["bytes_up"] / 1e9 for one in runs),
        **{
            f"{kind}_seconds_a_round": sum(a[f"{kind}_seconds"] for a in attempts) / sum(a["rounds"] for a in attempts)
            for kind in ("cpu", "wall")
        },
        "published": published,
        "units": {k: units(figures[k], theirs) for k, theirs in compared.items()},
        "commits": sorted({attempt["commit"] for attempt in attempts}),
    }


def label(cell: Mapping[str, Any]) -> str:
    """A row's name with what is not as in the plan."""
    changes = [f"{key}={value}" for key, value in cell.get("settings", {}).items()]
    return " ".join([cell["row"], *changes, *(["through FLARE"] if cell.get("flare") else [])])


def commands(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The commands that measure these rows and no others."""
    together: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for r in rows:
        changes = tuple(f"{key}={value}" for key, value in r["settings"].items())
        key = (r["plan"], r["partition"], r["participants"], r["rounds"], tuple(r["seeds"]), changes, r["flare"])
        together[key].append(r["row"])
    return [
        f"CFL_DATA_ROOT=... python benchmarks/tables.py run --plan {plan} --out cells "
        f"--rows {shlex.join(dict.fromkeys(names))} --partitions {partition} "
        f"--seeds {' '.join(map(str, seeds))} --participants {participants} --rounds {rounds}"
        + (f" --set {shlex.join(changes)}" if changes else "")
        + (f" --flare {flare}" if flare else "")
        for (plan, partition, participants, rounds, seeds, changes, flare), names in together.items()
    ]


def shown(mean: float | None, std: float | None = None, digits: int = 2) -> str:
    """A figure with its deviation, where it has one."""
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" + ("" if std is None else f"±{std:.{digits}f}")


def head(plan: Plan) -> list[str]:
    """The titles of the Markdown table."""
    figures = [FIGURES[name][2] for name in plan.columns]
    ends = ("GB down / up", "s a round: CPU / wall", "published", "difference", "commit")
    return ["row", "rounds", "participants", "seeds", *figures, *ends]


def markdown_row(r: Mapping[str, Any]) -> str:
    """A row of the Markdown table."""
    plan, published = PLANS[r["plan"]], r["published"]
    theirs = quoted(published[0], plan) if published else "-"
    distance = " / ".join("-" if v is None else f"{v:+.1f}" for v in r["units"].values()) or "-"
    cells = [
        *(label(r), str(r["rounds"]), str(r["participants"]), ", ".join(map(str, r["seeds"]))),
        *(shown(**r[name], digits=FIGURES[name][3]) for name in plan.columns),
        f"{r['gigabytes_down']:.3f} / {r['gigabytes_up']:.3f}",
        f"{r['cpu_seconds_a_round']:.1f} / {r['wall_seconds_a_round']:.1f}",
        theirs + ("†" if len(published) > 1 else ""),
        distance,
        ", ".join(r["commits"]),
    ]
    return "| " + " | ".join(cells) + " |"


def notes(plan: Plan) -> str:
    """What the table's figures are."""
    which, count = plan.averaged
    rounds = {"last": f"the last {count} measured rounds", "best": f"the {count} measured rounds of the best accuracy"}
    compared = " / ".join(FIGURES[name][2] for name in plan.compared)
    text = f"""
Accuracies and macro-F1 are in percent, of the served models on the participants' own test splits, weighted by their
training samples: the mean over seeds of the mean of {rounds[which]}, ± the sample standard deviation over seeds; so are
the accuracy of the worst participant, that of the five worst (bottom), ARI and the clusters in use. What is measured of
the models once a run is done (initial, personalised, unseen) is of its end alone. Bytes are those of a whole run in one
process, where a model goes down once a round for all participants (through FLARE: for all of a site's). The difference
is ours less the published figure ({compared}; its table in brackets), in units of the larger of the two standard
deviations; a single seed has none, nor have some published figures, and where those are of other data, no difference is
given."""
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


def sweep_of(cell: Mapping[str, Any]) -> str:
    """The sweep to which a cell belongs; empty for the main table."""
    if cell.get("settings"):
        return ", ".join(cell["settings"])
    plan = plan_of(cell)
    return next((name for name, rows in plan.sweeps.items() if cell["row"] in rows), "")


def over_rounds(runs: Sequence[Run], key: str) -> dict[int, float]:
    """The mean over seeds of a figure in the rounds in which all of them have it."""
    values: dict[int, list[float]] = defaultdict(list)
    for one in runs:
        for r in one.rounds:
            if r.get(key) is not None:
                values[r["round"]].append(r[key])
    return {number: statistics.fmean(there) for number, there in values.items() if len(there) == len(runs)}


def draw(found: Sequence[Cell], figure_name: str, path: Path) -> None:
    """A figure over rounds: a column a partition, a line of panels a sweep, a line a row, the mean over its seeds."""
    key, scale, title, _ = FIGURES[figure_name]
    panels: dict[tuple[str, str], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    sizes: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
    for cell, _ in found:
        sizes[sweep_of(cell), cell["partition"]].add((cell["participants"], cell["rounds"]))
    for cell, one in found:
        place = sweep_of(cell), cell["partition"]
        size = f" (m = {cell['participants']}, {cell['rounds']} rounds)" if len(sizes[place]) > 1 else ""
        panels[place][label(cell) + size].append(one)
    sweeps, partitions = (list(dict.fromkeys(key[i] for key in panels)) for i in (0, 1))
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    figure = Figure(figsize=(7 * len(partitions), 4 * len(sweeps)), layout="constrained")
    grid = figure.subplots(len(sweeps), len(partitions), sharey=True, squeeze=False)
    for (sweep, partition), panel in panels.items():
        axes = grid[sweeps.index(sweep)][partitions.index(partition)]
        for name, runs in panel.items():
            i = names.index(name)
            means = over_rounds(runs, key)
            style = ("-", "--", ":", "-.")[i // len(COLOURS) % 4]
            rounds, values = [number + 1 for number in means], [scale * mean for mean in means.values()]
            axes.plot(rounds, values, style, color=COLOURS[i % len(COLOURS)], label=name)
        axes.set(title=f"{partition}: {sweep}" if sweep else partition, xlabel="round")
        axes.legend(fontsize="x-small" if len(panel) > 20 else "small", loc="upper left", bbox_to_anchor=(1, 1))
    for line in grid:
        there = [axes for axes in line if axes.has_data()]
        for axes in line:
            axes.set_visible(axes in there)
        there[0].set_ylabel(f"{title} of the served models (%)")
        there[0].tick_params(labelleft=True)
    figure.savefig(path, dpi=150)


def keep(cells: Path, to: Path) -> None:
    """Copies what the report needs of the finished cells, so that they can be kept: ``run`` takes them for done."""
    needed = {"round", *(key for key, *_ in FIGURES.values())}
    for cell, one in finished(cells):
        folder = to / one.folder.relative_to(cells)
        folder.mkdir(parents=True, exist_ok=True)
        summary = {k: one.summary[k] for k in ("model", "training", "data", "run", "bytes_down", "bytes_up")}
        (folder / "summary.json").write_text(json.dumps(summary) + "\n")
        rounds = [{k: v for k, v in line.items() if k in needed} for line in one.rounds]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
        (folder / "cell.json").write_text(json.dumps(cell, indent=1) + "\n")
        if (one.folder / AFTER).exists():
            (folder / AFTER).write_text((one.folder / AFTER).read_text() + "\n")


def write_report(cells: Path, out: Path) -> None:
    """Writes ``<out>.json``, ``<out>.md`` and figures: ``<out>.png`` of the accuracy, and of what else is compared."""
    found = finished(cells)
    plan, rows, settings = plan_of(found[0][0]), table_rows(found), way(*found[0])
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {"plan": plan.name, "commands": commands(rows), **settings, "rows": rows}
    Path(f"{out}.json").write_text(json.dumps(content, indent=1) + "\n")
    Path(f"{out}.md").write_text(markdown(rows, plan, settings, out.name))
    draw(found, "accuracy", Path(f"{out}.png"))
    for name in plan.compared:
        if name != "accuracy" and any(FIGURES[name][0] in r for _, one in found for r in one.rounds):
            draw(found, name, Path(f"{out}-{name.replace('_', '-')}.png"))
