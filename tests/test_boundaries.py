# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The rooms of the package: imports point down one list, in no circle; what each process imports; and its names.

Of the bindings of the package, benchmarks and examples, at most one in a hundred says nothing.
"""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfl_flare.extensions import list_extensions
from tests.helpers.style import count_lines

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cfl_flare"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room may import those after it. ``__init__`` and ``client`` are what users import.
ROOMS = ("__init__", "client", "cli", "testing", "flare", "engine", "results", "methods", "training")
LEAVES = ("clustering", "data", "models")
CORE = "core"
# Extensions may import every room. Every room may import the registry, and no extension by name.
EXTENSIONS, REGISTRY = "extensions", "the registry of extensions"


def room_of(module: str) -> str:
    """``methods`` of ``cfl_flare.methods.ifca``."""
    return REGISTRY if module == "cfl_flare.extensions" else [*module.split("."), "__init__"][1]


def name_module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_module(path): path for path in FILES}


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imported(path: Path) -> set[str]:
    """All modules that a file imports, anywhere in it: for type checking or inside a function, too.

    The registry names types of every room. These imports are no arrows, as the registry only passes the objects on.
    """
    names = set()
    tree = ast.parse(path.read_text())
    if name_module(path) == "cfl_flare.extensions":
        tree.body = [node for node in tree.body if not is_for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: relative imports hide which room they reach"
            own = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            names |= own or {node.module}
    return names


def list_allowed_rooms(room: str) -> set[str]:
    if room == CORE:
        return {CORE}
    if room in (*LEAVES, REGISTRY):
        return {room, CORE}
    below = {*LEAVES, CORE, REGISTRY}
    if room == EXTENSIONS:
        return {EXTENSIONS, *ROOMS, *below} - {"__init__", "client"}
    return {*ROOMS[ROOMS.index(room) :], *below}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    room, names = room_of(name_module(path)), imported(path)
    reached = {room_of(n) for n in names if n.split(".")[0] == "cfl_flare"}
    assert reached <= list_allowed_rooms(room), f"{room} must not import {reached - list_allowed_rooms(room)}"
    foreign = {n.split(".")[0] for n in names}
    assert room in ("flare", EXTENSIONS) or "nvflare" not in foreign
    assert room not in ("clustering", "data") or "torch" not in foreign
    assert not foreign & {"pickle", "joblib", "dill", "cloudpickle"}


@pytest.mark.parametrize("extension", list_extensions(), ids=lambda extension: extension.name)
def test_an_extension_imports_only_what_it_requires(extension):
    allowed = {extension.name, *extension.requires}
    for path in sorted((PACKAGE / EXTENSIONS / extension.name).rglob("*.py")):
        others = {n.split(".")[2] for n in imported(path) if n.startswith("cfl_flare.extensions.")}
        assert others <= allowed, f"{path}: {extension.name} must name {others - allowed} in requires"


TESTS = [path for path in (ROOT / "tests").rglob("*.py") if not path.is_relative_to(ROOT / "tests" / "extensions")]


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_main_house_s_tests_import_no_extension(path):
    names = re.findall(r"cfl_flare\.extensions\.(\w+)", path.read_text())
    assert not {*names} & {extension.name for extension in list_extensions()}


def test_no_circles():
    arrows = {name: imported(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    while leaves := {name for name, targets in arrows.items() if not targets}:
        arrows = {name: targets - leaves for name, targets in arrows.items() if name not in leaves}
    assert not arrows, f"imports run in a circle among {sorted(arrows)}"


def test_the_rooms_are_the_folders():
    there = {
        p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()
    }
    assert there == {*ROOMS, *LEAVES, CORE, EXTENSIONS}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_file_has_its_licence_and_fits_a_head(path):
    text = path.read_text()
    assert text.startswith(
        "# SPDX-FileCopyrightText: 2026 The cfl_flare authors\n# SPDX-License-Identifier: Apache-2.0\n"
    )
    assert count_lines(text, ast.parse(text)) <= 400


# ---- What processes import ----


SITE = """
import sys

import torch

torchs = set(sys.modules)
import cfl_flare.flare.executor
from cfl_flare.data import DataConfig, Digits
from tests.helpers.loop import run_loop
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import FedAvg
from cfl_flare.training.settings import TrainSettings

model = {"class_path": "cfl_flare.models.Logistic", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
run_loop(
    method=FedAvg(),
    model=model,
    source=Digits(),
    data=DataConfig(2, {"partition": "iid"}),
    settings=ServerSettings(1),
    training=TrainSettings(),
)
print(*sorted(sys.modules.keys() - torchs))
"""


def imported_by(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_registry_imports_nothing_but_the_core():
    code = "import sys, cfl_flare.extensions as registry; registry.list_extensions(); print(*sys.modules)"
    names = {name for name in imported_by(code) if name.startswith("cfl_flare.")}
    rooms = {room_of(name) for name in names}
    assert rooms <= {CORE, REGISTRY, EXTENSIONS}, names
    of_extensions = [name for name in names if room_of(name) == EXTENSIONS]
    assert all(name.count(".") == 2 for name in of_extensions), "the __init__ of an extension imports none of its files"


def test_the_package_itself_imports_nothing_heavy():
    names = imported_by("import sys, cfl_flare; print(*sys.modules)")
    assert "cfl_flare" in names
    assert not names & {"numpy", "torch", "sklearn", "nvflare", "vl_convert"}


def test_a_site_imports_only_what_it_trains_with():
    names = imported_by(SITE)
    assert "cfl_flare.flare.executor" in names
    heavy = {"sklearn", "scipy", "pandas", "vl_convert", "torchvision", "rich", "nvflare.recipe"}
    assert not names & {*heavy, "torch._dynamo"}  # torch's compiler


MEASURES = """
import sys

import torch

torchs = set(sys.modules)
from cfl_flare.training.tasks import TASKS

for name, labels in (
    ("classification", torch.tensor([0, 1, 0, 1])),
    ("binary", torch.tensor([0, 1, 0, 1])),
    ("multilabel", torch.tensor([[0], [1], [0], [1]])),
    ("regression", torch.tensor([0.0, 1.0, 0.5, 2.0])),
):
    outputs = torch.arange(8.0).view(4, 2) if name == "classification" else torch.arange(4.0)[:, None]
    assert TASKS[name]().measured(outputs, labels, TASKS[name].measures)
assert TASKS["segmentation"]().measured(torch.ones(1, 2, 2, 2), torch.ones(1, 2, 2).long(), ("iou",))
print(*sorted(sys.modules.keys() - torchs))
"""


def test_what_a_kit_s_process_always_has_needs_no_torch():
    names = imported_by("import sys, cfl_flare.flare.job_check, cfl_flare.flare.rejoin; print(*sys.modules)")
    assert "cfl_flare.flare.allowed" in names
    assert not names & {"torch", "sklearn", "scipy", "pandas"}


def test_measures_need_torch_alone():
    names = imported_by(MEASURES)
    assert "cfl_flare.training.measures" in names
    assert not names & {"torchmetrics", "sklearn", "scipy", "pandas", "torchvision"}


def test_a_server_imports_nothing_of_what_makes_jobs_and_figures():
    names = imported_by("import sys, cfl_flare.flare.controller; print(*sys.modules)")
    assert "cfl_flare.flare.aggregator" in names
    assert not names & {"sklearn", "scipy", "pandas", "vl_convert", "torchvision", "rich", "nvflare.recipe"}


PARSES = """
import contextlib, io, sys
from cfl_flare.cli import main, parser

with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    {}
print(*sys.modules)
"""


@pytest.mark.parametrize("word", ["--help", "--version", "fly"])
def test_the_command_line_imports_nothing_heavy_before_a_command_is_chosen(word):
    names = imported_by(PARSES.format(f"main([{word!r}])"))
    assert "cfl_flare.cli.options" in names
    assert not names & {"torch", "nvflare", "sklearn", "scipy", "pandas", "vl_convert", "torchvision", "rich"}


@pytest.mark.parametrize("words", [["run"], ["show", "x"], ["methods"]])
def test_a_command_imports_neither_flare_nor_figures_before_they_are_needed(words):
    names = imported_by(PARSES.format(f"parser().parse_args({words!r})"))
    assert "cfl_flare.cli.options" in names and "torch" in names
    assert not names & {"nvflare", "sklearn", "pandas", "vl_convert", "torchvision"}


# ---- Names ----


# Names that say nothing.
EMPTY = {"own", "found", "one", "kept", "told", "more", "whole", "begun", "how", "asked", "fits"}
MOST = 0.01


def bindings(tree: ast.AST) -> Iterator[str]:
    """Every name that code gives: variables, arguments, functions, classes, and attributes of ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


@pytest.mark.parametrize("folder", ["cfl_flare", "benchmarks", "examples"])
def test_names_say_what_they_hold(folder: str) -> None:
    names = {path: list(bindings(ast.parse(path.read_text()))) for path in sorted((ROOT / folder).rglob("*.py"))}
    empty = {path: [name for name in given if name.strip("_") in EMPTY] for path, given in names.items()}
    total, count = sum(map(len, names.values())), sum(map(len, empty.values()))
    for path, words in sorted(empty.items(), key=lambda item: -len(item[1]))[:20]:
        if words:
            print(f"{len(words):4}  {path.relative_to(ROOT)}: {dict(Counter(words))}")
    print(f"{count} of {total} bindings, {count / total:.1%}")
    assert count <= MOST * total, f"{count} of {total} bindings say nothing; name them by the noun of what they hold"


def test_bindings_are_counted() -> None:
    code = "def f(own, *more):\n    self.kept = one = [x for x in other.told]\nclass Found: pass\n"
    assert sorted(bindings(ast.parse(code))) == sorted(["f", "own", "more", "kept", "one", "x", "Found"])


# ---- Helpers of tests ----


def list_helper_names(code: str) -> set[str]:
    """The functions and classes at the top of a file of tests that are no tests, fixtures among them."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in ast.parse(code).body if isinstance(node, kinds)}
    return {name for name in names if not name.startswith(("test_", "Test", "pytest_"))}


def test_each_helper_name_stands_once() -> None:
    files = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for name in list_helper_names(path.read_text()):
            files[name].append(str(path.relative_to(ROOT)))
    repeated = {name: paths for name, paths in files.items() if len(paths) > 1}
    assert not repeated, "share a helper in tests/helpers, or name each by what it makes"


def test_helper_names_are_listed() -> None:
    code = "@fixture\ndef site(): ...\nclass Job: ...\nclass TestJob: ...\ndef test_a():\n    def inner(): ...\n"
    assert list_helper_names(code) == {"site", "Job"}
