# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: arrows point one way, and nvflare is imported in one place."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "cfl_flare"

# What each part may import of the package, beside itself.
BASICS = {"config", "errors", "seeds"}
MAY = {
    "errors": set(),
    "seeds": set(),
    "config": {"errors"},
    "params": BASICS,
    "files": BASICS,
    "ensemble": BASICS | {"params"},
    "models": BASICS,
    "data": BASICS,
    "clustering": BASICS,
    "training": BASICS | {"params", "models", "ensemble"},
    "goal": {"config"},
    "schedule": BASICS | {"goal"},
    "archive": BASICS | {"params"},
    "methods": BASICS | {"params", "training", "clustering", "ensemble", "archive"},
    "site": BASICS | {"params", "training", "methods", "data", "ensemble"},
    "summary": BASICS | {"clustering", "methods"},
    "analysis": BASICS | {"params", "methods", "clustering"},
    "results": BASICS | {"files", "ensemble", "params", "methods", "summary", "training", "store"},
    "store": BASICS | {"files", "params", "methods"},
    "spool": {"methods"},
    "small": {"methods", "clustering"},
    "sums": {"config", "errors", "methods", "params", "schedule", "site"},
    "checkpoints": BASICS | {"params", "methods", "store", "summary"},
    "server": BASICS
    | {"params", "methods", "site", "results", "summary", "spool", "checkpoints", "analysis"}
    | {"archive", "small", "schedule", "sums"},
    "indicator": BASICS | {"params", "methods", "training", "data"},
    "initial": BASICS | {"files", "methods", "params", "training"},
    "rehearsal": BASICS
    | {"initial"}
    | {"params", "methods", "training", "data", "site", "server", "schedule", "indicator"},
    "onboard": BASICS
    | {"ensemble", "params", "methods", "training", "data", "site", "results", "summary", "store", "indicator"},
    "report": {"errors", "results", "data"},
    "loop": BASICS
    | {"params", "methods", "training", "data", "site", "server", "results", "summary", "checkpoints", "store"}
    | {"indicator", "archive", "initial"},
}
TOP = {"cli", "specs", "arguments", "simulate", "flare", "operate", "client"}
FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The first name under the package: ``methods`` for methods/ifca.py."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "cfl_flare"}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_boundaries(path):
    part, names = part_of(path), imported(path)
    if part != "flare":
        assert not {n for n in names if n.split(".")[0] == "nvflare"}
    if part not in TOP:
        own = {n.split(".")[1] for n in names if n.startswith("cfl_flare.")} - {part, "__version__"}
        assert own <= MAY.get(part, set()), f"{part} must not import {own - MAY.get(part, set())}"
    if part == "report":
        assert not {n for n in names if n.split(".")[0] == "torch"}
    if part in ("data", "clustering"):
        assert not {n for n in names if n.split(".")[0] in ("torch", "pickle", "joblib")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_file_has_its_licence_and_fits_a_head(path):
    text = path.read_text()
    assert text.startswith(
        "# SPDX-FileCopyrightText: 2026 The cfl_flare authors\n# SPDX-License-Identifier: Apache-2.0\n"
    )
    assert len(text.splitlines()) <= 400
