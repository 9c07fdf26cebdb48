# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report on the cells that tables.py measured: a table a partition, the published figures beside ours."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cfl_flare.report.colours import COLOURS
from cfl_flare.results import Run, load_run

Cell = tuple[dict[str, Any], Run]

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
MEASURED_ROUNDS = 3  # the published figures are means of the last three rounds
FIGURES: dict[str, tuple[str, float]] = {  # of a row: their key in rounds.jsonl, and their unit
    "accuracy": ("served_accuracy", 100),
    "macro_f1": ("served_macro_f1", 100),
    "worst_accuracy": ("served_worst_accuracy", 100),
    "ari": ("ari", 1),
    "clusters_in_use": ("clusters_in_use", 1),
}


def last_rounds(one: Run, key: str) -> float | None:
    """The mean over the last measured rounds; None where the run does not measure it."""
    measured = [r for r in one.rounds if "served_accuracy" in r][-MEASURED_ROUNDS:]
    values = [r[key] for r in measured if r.get(key) is not None]
    return statistics.fmean(values) if values else None


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
        SystemExit: there are none, or they were not trained the same way.
    """
    found = [(json.loads(path.read_text()), load_run(path.parent)) for path in sorted(cells.rglob("cell.json"))]
    settings = {json.dumps([one.summary["model"], one.summary["training"]], sort_keys=True) for _, one in found}
    if len(settings) != 1:
        raise SystemExit(f"{cells}: {len(found)} finished cells, trained in {len(settings)} ways; one way is expected")
    order = list(next(iter(PUBLISHED["figures"].values())))
    return sorted(found, key=lambda f: (order.index(f[0]["row"]) if f[0]["row"] in order else len(order), f[0]["seed"]))


def table_rows(found: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row for the seeds of a method on a partition, with so many participants and rounds."""
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell, one in found:
        groups[json.dumps([cell[k] for k in ("partition", "row", "method", "participants", "rounds")])].append(
            (cell, one)
        )
    return [table_row([cell for cell, _ in members], [one for _, one in members]) for members in groups.values()]


def table_row(cells: Sequence[dict[str, Any]], runs: Sequence[Run]) -> dict[str, Any]:
    """What the cells of all seeds amount to, beside what is published."""
    published = PUBLISHED["figures"].get(cells[0]["partition"], {}).get(cells[0]["row"], [])
    figures = {
        name: over_seeds([last_rounds(one, key) for one in runs], scale) for name, (key, scale) in FIGURES.items()
    }
    # A round that was done again after a stop has cost its time twice, and counts twice.
    attempts = [attempt for cell in cells for attempt in cell.get("attempts", [cell])]
    return {
        **{key: cells[0][key] for key in ("partition", "row", "method", "participants", "rounds")},
        "rule": runs[0].summary["data"]["partition"],
        "seeds": [cell["seed"] for cell in cells],
        **figures,
        "gigabytes_down": statistics.fmean(one.summary["bytes_down"] / 1e9 for one in runs),
        "gigabytes_up": statistics.fmean(one.summary["bytes_up"] / 1e9 for one in runs),
        "cpu_seconds_a_round": sum(a["cpu_seconds"] for a in attempts) / sum(a["rounds"] for a in attempts),
        "published": published,
        "units": {k: units(figures[k], published[0][k]) for k in ("accuracy", "macro_f1")} if published else {},
        "commits": sorted({attempt["commit"] for attempt in attempts}),
    }


def commands(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The commands that measure these rows and no others."""
    together: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for r in rows:
        together[r["partition"], r["participants"], r["rounds"], tuple(r["seeds"])].append(r["row"])
    return [
        "CFL_DATA_ROOT=... python benchmarks/tables.py run --out cells "
        f"--rows {' '.join(dict.fromkeys(names))} --partitions {partition} "
        f"--seeds {' '.join(map(str, seeds))} --participants {participants} --rounds {rounds}"
        for (partition, participants, rounds, seeds), names in together.items()
    ]


def shown(mean: float | None, std: float | None = None, digits: int = 2) -> str:
    """A figure with its deviation, where it has one."""
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" + ("" if std is None else f"±{std:.{digits}f}")


def markdown_row(r: Mapping[str, Any]) -> str:
    """A row of the Markdown table."""
    figures = [shown(**r[k]) for k in ("accuracy", "macro_f1", "worst_accuracy", "ari")]
    published = r["published"]
    theirs = quoted(published[0]) if published else "-"
    distance = " / ".join("-" if v is None else f"{v:+.1f}" for v in r["units"].values()) or "-"
    cells = [
        *(r["row"], str(r["rounds"]), str(r["participants"]), ", ".join(map(str, r["seeds"])), *figures),
        shown(**r["clusters_in_use"], digits=1),
        f"{r['gigabytes_down']:.3f} / {r['gigabytes_up']:.3f}",
        f"{r['cpu_seconds_a_round']:.1f}",
        theirs + ("†" if len(published) > 1 else ""),
        distance,
        ", ".join(r["commits"]),
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "row | rounds | participants | seeds | accuracy | macro-F1 | worst | ARI | clusters | GB down / up | CPU s a round "
    "| published | difference | commit"
)
NOTES = """
Accuracy and macro-F1 are in percent, of the served models on the participants' own test splits, weighted by their
training samples: the mean over seeds of the mean of the last three measured rounds, ± the sample standard deviation
over seeds; so are the worst participant's accuracy, ARI and the clusters in use. Bytes are those of a whole run in one
process, where a model goes down once a round for all participants. The difference is ours less the published figure
(accuracy / macro-F1; its table in brackets), in units of the larger of the two standard deviations; a single seed has
none, nor have some published figures.
"""


def markdown(rows: Sequence[dict[str, Any]], settings: Mapping[str, Any], name: str) -> str:
    """The report: commands, settings, a table a partition."""
    lines = ["# Measured beside published: Fashion-MNIST", "", "```", *commands(rows)]
    lines += [f"python benchmarks/tables.py report --cells cells --out benchmarks/results/{name}", "```", ""]
    lines += [f"- {key}: `{json.dumps(value)}`" for key, value in settings.items()]
    lines += dict.fromkeys(f"- {r['row']}: `{r['method']}`" for r in rows)
    lines += [NOTES, "Published: " + " ".join(PUBLISHED["about"])]
    for partition in dict.fromkeys(r["partition"] for r in rows):
        here = [r for r in rows if r["partition"] == partition]
        lines += ["", f"## {partition}", "", f"`{json.dumps(here[0]['rule'])}`", ""]
        lines += [f"| {HEAD} |", "|---" * HEAD.count("|") + "|---|", *map(markdown_row, here)]
        lines += dict.fromkeys(note for r in here for note in contradictions(r))
    return "\n".join(lines) + "\n"


def contradictions(r: Mapping[str, Any]) -> list[str]:
    """What other published tables say of the same cell, where they say something else."""
    return [f"\n† {r['row']}: another published figure is {quoted(other)}." for other in r["published"][1:]]


def quoted(published: Mapping[str, Any]) -> str:
    """A published figure with its table."""
    return " / ".join(shown(*published[k]) for k in ("accuracy", "macro_f1")) + f" ({published['tables'][0]})"


def draw(found: Sequence[Cell], path: Path) -> None:
    """Accuracy over rounds: a panel a partition, a line a row, the mean over its seeds."""
    lines: dict[str, dict[tuple[str, int, int], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for cell, one in found:
        lines[cell["partition"]][cell["row"], cell["participants"], cell["rounds"]].append(one)
    labels = list(dict.fromkeys(label for panel in lines.values() for label in panel))
    sizes = {label[1:] for label in labels}
    figure = Figure(figsize=(5 * len(lines), 4), layout="constrained")
    for axes, (partition, panel) in zip(figure.subplots(1, len(lines), sharey=True, squeeze=False)[0], lines.items()):
        for label, runs in panel.items():
            i = labels.index(label)
            accuracy = np.mean(
                [[100 * r["served_accuracy"] for r in one.rounds if "served_accuracy" in r] for one in runs], 0
            )
            rounds = [r["round"] + 1 for r in runs[0].rounds if "served_accuracy" in r]
            name = label[0] + (f" (m = {label[1]}, {label[2]} rounds)" if len(sizes) > 1 else "")
            style = ("-", "--", ":")[i // len(COLOURS) % 3]
            axes.plot(rounds, accuracy, style, color=COLOURS[i % len(COLOURS)], label=name)
        axes.set(title=partition, xlabel="round")
        axes.legend(fontsize="small")
    figure.axes[0].set_ylabel("accuracy of the served models (%)")
    figure.savefig(path, dpi=150)


def keep(cells: Path, to: Path) -> None:
    """Copies what the report needs of the finished cells, so that they can be kept: ``run`` takes them for done."""
    needed = {"round", *(key for key, _ in FIGURES.values())}
    for cell, one in finished(cells):
        folder = to / one.folder.relative_to(cells)
        folder.mkdir(parents=True, exist_ok=True)
        summary = {k: one.summary[k] for k in ("model", "training", "data", "run", "bytes_down", "bytes_up")}
        (folder / "summary.json").write_text(json.dumps(summary) + "\n")
        rounds = [{k: v for k, v in line.items() if k in needed} for line in one.rounds]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
        (folder / "cell.json").write_text(json.dumps(cell, indent=1) + "\n")


def write_report(cells: Path, out: Path) -> None:
    """Writes ``<out>.json``, ``<out>.md`` and ``<out>.png``."""
    found = finished(cells)
    rows, settings = table_rows(found), {k: found[0][1].summary[k] for k in ("model", "training")}
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {"commands": commands(rows), **settings, "rows": rows}
    Path(f"{out}.json").write_text(json.dumps(content, indent=1) + "\n")
    Path(f"{out}.md").write_text(markdown(rows, settings, out.name))
    draw(found, Path(f"{out}.png"))
