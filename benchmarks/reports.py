# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The reports of everything that is kept in ``results``: the documentation is built with them.

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
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import FILE, packed_cells, read_cells, write
from kept import CELLS, COMPUTED, MEASURED, RESULTS, folder_of, measured, packed, results
from report import finished, texts, write_report

ROOT = RESULTS.parents[1]
BUILT = ROOT / "build" / "reports"
SUMS = RESULTS / "SHA256SUMS"


def makers() -> dict[str, Callable[[Path], Any]]:
    """What is made, by its path in the repository, and how; beside a plan's report lies its JSON."""
    made: dict[str, Callable[[Path], Any]]
    made = {f"{name}/{name}.md": partial(of_plan, folder_of(name)) for name in results()}
    made |= {name: partial(write_content, name) for name in (*packed(), *COMPUTED)}
    return {(RESULTS.relative_to(ROOT) / name).as_posix(): make for name, make in made.items()}


def of_plan(cells: zipfile.Path, path: Path) -> None:
    """A plan's report, with its JSON beside it."""
    write_report(cells, path.with_suffix(""))


def write_content(name: str, path: Path) -> None:
    """The JSON of a name, a line an entry if it is named so."""
    content = measured(name)
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
    content = {name: (folder_of(name) / FILE).read_bytes() for name in results()}
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
    for name in results():
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
