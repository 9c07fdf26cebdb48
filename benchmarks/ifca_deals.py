# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""IFCA over deals of the data and starts, with and without CAM: one figure of the cells of ``results/starts``.

python benchmarks/ifca_deals.py --out docs/images/ifca-starts.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from colours import COLOURS
from kept import kept, value
from matplotlib.figure import Figure
from plans.figures import FIGURES
from png import save

SHOWN = ("accuracy", "macro_f1", "ari", "clusters_in_use")


def draw(result: str, path: Path) -> None:
    """A panel a figure: deals side by side, a point a start, a colour a method."""
    cells = kept(result)
    rows = list(dict.fromkeys(cell.facts["row"] for cell in cells))
    figure = Figure(figsize=(4 * len(SHOWN), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(SHOWN)), SHOWN):
        for i, row in enumerate(rows):
            own = [cell for cell in cells if cell.facts["row"] == row]
            deals = [cell.facts["settings"]["data_seed"] + 0.25 * i for cell in own]
            axes.plot(deals, [value(cell, name) for cell in own], "ox"[i % 2], color=COLOURS[i], label=row, alpha=0.8)
        axes.set(title=FIGURES[name].title, xlabel="deal of the data")
    axes.legend(fontsize="small")
    save(figure, path)


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, required=True)
    draw("starts", options.parse_args().out)


if __name__ == "__main__":
    main()
