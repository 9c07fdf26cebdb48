# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The reports and pictures of everything that is kept in ``results``: the documentation is built with them.

They are written below ``build/reports``, where each has the path that documents link to, and are not tracked:

    python benchmarks/reports.py

``results/SHA256SUMS`` has the checksums of the kept cells and of their reports. After cells are added, this renews it:

    python benchmarks/reports.py --sums
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fedac_similarity
import fedcuau_order
import feddsmic_bytes
import pictures
import scale
from cells import FILE
from kept import RESULTS
from tables_report import finished, texts, write_report

ROOT = RESULTS.parents[1]
BUILT = ROOT / "build" / "reports"
SUMS = RESULTS / "SHA256SUMS"
PLANS = {folder.parent.name: folder.parent for folder in sorted(RESULTS.glob(f"*/{FILE}"))}


def loaded(name: str) -> Any:
    """The content of a JSON file of results."""
    return json.loads((RESULTS / name).read_text())


def makers() -> dict[str, Callable[[Path], Any]]:
    """What is made, by its path in the repository, and how; beside a plan's report lie its JSON and its pictures."""
    here = RESULTS.relative_to(ROOT)
    of_plans = {f"{here}/{name}/{name}.md": partial(of_plan, cells) for name, cells in PLANS.items()}
    return of_plans | {
        f"{here}/fedac/similarity.md": lambda path: path.write_text(
            fedac_similarity.markdown(loaded("fedac/similarity.json")["rows"])
        ),
        f"{here}/fedcuau/order.md": lambda path: path.write_text(
            fedcuau_order.markdown(loaded("fedcuau/order.json")["rows"])
        ),
        f"{here}/fedcuau/order.png": lambda path: fedcuau_order.draw(loaded("fedcuau/order.json")["results"], path),
        f"{here}/feddsmic/bytes.md": lambda path: path.write_text(
            feddsmic_bytes.markdown(loaded("feddsmic/bytes.json")["rows"])
        ),
        f"{here}/scale.png": lambda path: scale.draw(loaded("scale.json")["methods"], path),
        "docs/images/hospitals.png": pictures.draw_hospitals,
        "docs/images/ifca-starts.png": pictures.draw_deals,
        "docs/images/which-method.png": pictures.draw_which_method,
    }


def of_plan(cells: Path, path: Path) -> None:
    """A plan's report, with its JSON and its pictures beside it."""
    write_report(cells, path.with_suffix(""))


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


def sums() -> str:
    """The checksums, as ``sha256sum`` writes them."""
    content = {f"{name}/{FILE}": (cells / FILE).read_bytes() for name, cells in PLANS.items()}
    for name, cells in PLANS.items():
        content |= {f"{name}/{name}{ending}": text.encode() for ending, text in texts(finished(cells), name).items()}
    return "".join(f"{hashlib.sha256(content[name]).hexdigest()}  {name}\n" for name in sorted(content))


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, default=BUILT, help="folder (%(default)s)")
    options.add_argument("--sums", action="store_true", help="renew the checksums instead")
    given = options.parse_args()
    if given.sums:
        SUMS.write_text(sums())
    else:
        write_all(given.out)


if __name__ == "__main__":
    main()
