# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The reports and pictures of everything that is kept in ``results``: the documentation is built with them.

They are written below ``build/reports``, where each has the path that documents link to, and are not tracked:

    python benchmarks/reports.py

Cells are kept in ``cells.zip``, in a file a plan, what other scripts measured in ``measured.json.xz``. This adds files
to them, and renews ``results/SHA256SUMS``, which has the checksums of both and of the plans' reports:

    python benchmarks/reports.py --keep benchmarks/results/speed.json benchmarks/results/blood/cells.jsonl.xz
    python benchmarks/reports.py --sums
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import shutil
import statistics
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attacks_report
import numpy as np
import paper_figures
import scale
import traffic
from common import COLOURS, FILE, packed_cells, read_cells, save, write
from kept import (
    CELLS,
    MEASURED,
    RESULTS,
    folder_of,
    gaining,
    group,
    interval,
    kept,
    losses,
    measured,
    packed,
    paired,
    places,
    rows_of,
    signed,
    value,
)
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from plans.plan import FIGURES
from report import finished, texts, write_report

# ---- Pictures ----


BASE, FIGURE, SEEDS = "fedavg", "pooled_auroc", 3
PANELS = {"stroke": "Stroke, 187 hospitals", "heart": "Heart disease, 4 hospitals"}
SHOWN = ("accuracy", "macro_f1", "ari", "clusters_in_use")
COMPARED = ("digits", "shared-sets", "paired")


def differences(result: str) -> dict[str, list[float]]:
    """Of each row with enough seeds, by the mean, to FedAvg."""
    seeds: dict[str, set[int]] = {}
    for cell in kept(result):
        seeds.setdefault(cell.facts["row"], set()).add(cell.facts["seed"])
    shown = (row for row in seeds if row not in (BASE, "majority"))  # the latter would be far to the left
    rows = [row for row in shown if seeds[row] == seeds[BASE] and len(seeds[row]) >= SEEDS]
    base = group(result, "natural", BASE)
    to_base = {row: paired(group(result, "natural", row), base, FIGURE) for row in rows}
    return dict(sorted(to_base.items(), key=lambda item: sum(item[1])))


def forest(axes: Axes, result: str) -> None:
    """A line a row: the mean difference and its interval, in blue with a private bias; how many hospitals gain."""
    gains = differences(result)
    base = losses(group(result, "natural", BASE))
    for i, (row, values) in enumerate(gains.items()):
        mean, low, high = interval(values)
        axes.plot([low, high], [i, i], color=COLOURS[0 if "bias" in row else 1], linewidth=1.5)
        axes.plot(mean, i, "o", color=COLOURS[0 if "bias" in row else 1], markersize=4)
        gain, of = gaining(losses(group(result, "natural", row)), base)
        axes.annotate(f"{gain} of {of}", (1.01, i), xycoords=("axes fraction", "data"), va="center", fontsize="x-small")
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(gains)), list(gains), fontsize="small")
    axes.set(title=PANELS[result], xlabel="points of pooled AUROC above FedAvg, 95 % interval")
    axes.annotate("hospitals\nthat gain", (1.01, 1.01), xycoords="axes fraction", fontsize="x-small")


def draw_hospitals(path: Path) -> None:
    """What each method gains over FedAvg at the hospitals: a panel a set."""
    drawn = Figure(figsize=(12, 7.5), layout="constrained")
    for axes, result in zip(drawn.subplots(1, 2), PANELS):
        forest(axes, result)
    save(drawn, path, dpi=110)


def draw_deals(path: Path) -> None:
    """IFCA over deals of the data and starts: a panel a figure, a point a start, a colour a method."""
    cells = kept("starts")
    rows = list(dict.fromkeys(cell.facts["row"] for cell in cells))
    figure = Figure(figsize=(4 * len(SHOWN), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(SHOWN)), SHOWN):
        for i, row in enumerate(rows):
            dealt = [cell for cell in cells if cell.facts["row"] == row]
            deals = [cell.facts["settings"]["data_seed"] + 0.25 * i for cell in dealt]
            axes.plot(deals, [value(cell, name) for cell in dealt], "ox"[i % 2], color=COLOURS[i], label=row, alpha=0.8)
        axes.set(title=FIGURES[name].title, xlabel="deal of the data")
    axes.legend(fontsize="small")
    save(figure, path)


def draw_which_method(path: Path) -> None:
    """The table of `kept.which_table` as colours; places at which a row was not measured stay white."""
    laid_out = places(COMPARED, "accuracy")
    rows = rows_of(laid_out)
    table = [[statistics.fmean(d) if (d := place.differences(row)) else np.nan for place in laid_out] for row in rows]
    drawn = Figure(figsize=(1.1 * len(laid_out) + 3, 0.3 * len(rows) + 2), layout="constrained")
    axes = drawn.subplots()
    image = axes.imshow(np.array(table), cmap="RdBu", vmin=-30, vmax=30, aspect="auto")
    axes.set_xticks(range(len(laid_out)), [place.name for place in laid_out], rotation=40, ha="right", fontsize="small")
    axes.set_yticks(range(len(rows)), rows, fontsize="small")
    for i, line in enumerate(table):
        for j, number in enumerate(line):
            if not np.isnan(number):
                axes.text(j, i, signed(number, 1), ha="center", va="center", fontsize="x-small")
    drawn.colorbar(image, label="points of accuracy above the better of local and fedavg")
    save(drawn, path)


# ---- Everything ----


ROOT = RESULTS.parents[1]
BUILT = ROOT / "build" / "reports"
SUMS = RESULTS / "SHA256SUMS"
COMPUTED = ("stroke-years/agreement.json", "attacks-adaptive/paired.json")


def kept_results() -> list[str]:
    """The names of the results whose cells are kept."""
    return sorted(folder.name for folder in zipfile.Path(CELLS).iterdir())


def content_of(name: str) -> Any:
    """What a JSON file of results holds: one that was measured, or one that follows from what was."""
    if name == "attacks-adaptive/paired.json":
        return attacks_report.paired(measured("attacks-adaptive/attacks.jsonl"))
    plan = name.partition("/")[0]
    if plan in kept_results() and name == f"{plan}/{plan}.json":
        return json.loads(texts(finished(folder_of(plan)), plan)[".json"])
    return measured(name)


def makers() -> dict[str, Callable[[Path], Any]]:
    """What is made, by its path in the repository, and how; beside a plan's report lie its JSON and its pictures."""
    reports: dict[str, Callable[[], str]] = {
        "fedac/similarity.md": lambda: paper_figures.similarity_table(measured("fedac/similarity.json")["rows"]),
        "fedcuau/order.md": lambda: paper_figures.order_table(measured("fedcuau/order.json")["rows"]),
        "feddsmic/bytes.md": lambda: traffic.run_table(measured("feddsmic/bytes.json")["rows"]),
        "attacks/attacks.md": lambda: attacks_report.markdown(measured("attacks/attacks.jsonl")),
        "attacks-adaptive/paired.md": lambda: attacks_report.paired_markdown(
            content_of("attacks-adaptive/paired.json")
        ),
    }
    pictures: dict[str, Callable[[Path], Any]] = {
        "fedcuau/order.png": lambda path: paper_figures.draw_order(measured("fedcuau/order.json")["results"], path),
        "scale.png": lambda path: scale.draw(measured("scale.json")["methods"], path),
    }
    made = {f"{name}/{name}.md": partial(of_plan, folder_of(name)) for name in kept_results()}
    made |= {name: partial(write_text, make) for name, make in reports.items()} | pictures
    made |= {name: partial(write_content, name) for name in (*packed(), *COMPUTED)}
    return {(RESULTS.relative_to(ROOT) / name).as_posix(): make for name, make in made.items()} | {
        "docs/images/hospitals.png": draw_hospitals,
        "docs/images/ifca-starts.png": draw_deals,
        "docs/images/which-method.png": draw_which_method,
    }


def of_plan(cells: zipfile.Path, path: Path) -> None:
    """A plan's report, with its JSON and its pictures beside it."""
    write_report(cells, path.with_suffix(""))


def write_text(make: Callable[[], str], path: Path) -> None:
    """A report in Markdown."""
    path.write_text(make())


def write_content(name: str, path: Path) -> None:
    """The JSON of a name, a line an entry if it is named so."""
    content = content_of(name)
    lines = path.suffix == ".jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in content) if lines else json.dumps(content, indent=1))


def write_all(folder: Path = BUILT) -> None:
    """Writes everything, unless the folder has it of the same code and results."""
    state = hashlib.sha256()
    for path in sorted(path for path in RESULTS.parent.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        state.update(str(path).encode() + path.read_bytes())
    stamp = folder / "state"
    if stamp.exists() and stamp.read_text() == state.hexdigest():
        return
    shutil.rmtree(folder, ignore_errors=True)
    for name, make in makers().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        make(folder / name)
    stamp.write_text(state.hexdigest())


def keep_cells(folders: Sequence[Path]) -> None:
    """Adds the cells of some folders to those that are kept by the folders' names."""
    content = {name: (folder_of(name) / FILE).read_bytes() for name in kept_results()}
    for folder in folders:
        content[folder.name] = packed_cells([*read_cells(folder_of(folder.name)), *read_cells(folder)])
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        for name in sorted(content, key="{}/".format):
            files.writestr(zipfile.ZipInfo(f"{name}/{FILE}"), content[name])  # of no date: the same bytes each time
    write(CELLS, archive.getvalue())


def keep_measured(paths: Sequence[Path]) -> None:
    """Packs what scripts wrote below ``results`` into one file."""
    content = packed() if (RESULTS / MEASURED).exists() else {}
    for path in paths:
        text, name = path.read_text(), path.resolve().relative_to(RESULTS.resolve()).as_posix()
        content[name] = list(map(json.loads, text.splitlines())) if path.suffix == ".jsonl" else json.loads(text)
    ordered = {name: content[name] for name in sorted(content)}
    write(RESULTS / MEASURED, lzma.compress(json.dumps(ordered).encode()))


def sums() -> str:
    """The checksums, as ``sha256sum`` writes them."""
    content = {path.name: path.read_bytes() for path in (CELLS, RESULTS / MEASURED)}
    for name in kept_results():
        made = texts(finished(folder_of(name)), name)
        content |= {f"{name}/{name}{ending}": text.encode() for ending, text in made.items()}
    return "".join(f"{hashlib.sha256(content[name]).hexdigest()}  {name}\n" for name in sorted(content))


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, default=BUILT, help="folder (%(default)s)")
    options.add_argument("--keep", type=Path, nargs="+", default=[], help="files below results to be packed instead")
    options.add_argument("--sums", action="store_true", help="renew the checksums instead")
    given = options.parse_args()
    if given.keep:
        cells = [path for path in given.keep if path.name == FILE]
        keep_cells([path.parent for path in cells])
        keep_measured([path for path in given.keep if path not in cells])
        for path in given.keep:
            path.unlink()
    if given.sums or given.keep:
        SUMS.write_text(sums())
    else:
        write_all(given.out)


if __name__ == "__main__":
    main()
