# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The rooms of the package: imports point down one list, in no circle, and nvflare is imported in one room."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "cfl_flare"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room may import those after it. ``__init__`` and ``client`` are what users import.
ROOMS = ("__init__", "client", "cli", "flare", "report", "engine", "results", "methods", "training")
LEAVES = ("clustering", "data", "models")
CORE = "core"


def room_of(module: str) -> str:
    """``methods`` of ``cfl_flare.methods.ifca``."""
    return [*module.split("."), "__init__"][1]


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def imported(path: Path) -> set[str]:
    """All modules that a file imports, anywhere in it: for type checking or inside a function, too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: relative imports hide which room they reach"
            own = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            names |= own or {node.module}
    return names


def allowed(room: str) -> set[str]:
    if room == CORE:
        return {CORE}
    if room in LEAVES:
        return {room, CORE}
    return {*ROOMS[ROOMS.index(room) :], *LEAVES, CORE}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    room, names = room_of(module_of(path)), imported(path)
    reached = {room_of(n) for n in names if n.split(".")[0] == "cfl_flare"}
    assert reached <= allowed(room), f"{room} must not import {reached - allowed(room)}"
    foreign = {n.split(".")[0] for n in names}
    assert room == "flare" or "nvflare" not in foreign
    assert room not in ("report", "clustering", "data") or "torch" not in foreign
    assert not foreign & {"pickle", "joblib", "dill", "cloudpickle"}


def test_no_circles():
    arrows = {name: imported(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    while leaves := {name for name, targets in arrows.items() if not targets}:
        arrows = {name: targets - leaves for name, targets in arrows.items() if name not in leaves}
    assert not arrows, f"imports run in a circle among {sorted(arrows)}"


def test_the_rooms_are_the_folders():
    there = {
        p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()
    }
    assert there == {*ROOMS, *LEAVES, CORE}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_file_has_its_licence_and_fits_a_head(path):
    text = path.read_text()
    assert text.startswith(
        "# SPDX-FileCopyrightText: 2026 The cfl_flare authors\n# SPDX-License-Identifier: Apache-2.0\n"
    )
    assert len(text.splitlines()) <= 400
