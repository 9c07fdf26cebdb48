# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How dense the package's code is, in a few figures. ``python -m tests.helpers.style`` tightens `tests/style.json`."""

from __future__ import annotations

import ast
import io
import json
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "tests" / "style.json"
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Rooms of algorithms, whose comments are counted.
ALGORITHMS = ("methods", "clustering")
# A smaller file says little about its density.
SMALL = 30


def count_lines(source: str, tree: ast.AST) -> int:
    """The lines of a file that are not blank, a comment or part of a docstring."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if ast.get_docstring(node):
                docstring = node.body[0]
                skipped.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    lines = enumerate((line.strip() for line in source.splitlines()), 1)
    return sum(1 for number, text in lines if text and not text.startswith("#") and number not in skipped)


def count_comments(source: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def is_nested(node: ast.AST) -> bool:
    """Whether a comprehension has two loops, or another comprehension inside."""
    if not isinstance(node, COMPREHENSIONS):
        return False
    inner = any(isinstance(child, COMPREHENSIONS) for child in ast.walk(node) if child is not node)
    return inner or len(node.generators) > 1


def is_parallel(node: ast.AST) -> bool:
    """Whether a statement assigns several values to several names."""
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def describe_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """What a function counts as."""
    if function.name.startswith("__"):
        return
    yield "functions"
    if "_" not in function.name.strip("_"):
        yield "one word"
    arguments = [argument.arg for argument in function.args.args + function.args.kwonlyargs]
    if not set(arguments) - {"self", "cls"} or function.name.startswith("_"):
        return
    yield "public"
    if "Args:" in (ast.get_docstring(function) or ""):
        yield "documented"


def count_nodes(path: Path) -> Counter[str]:
    """All that is counted in a file."""
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    counts = Counter({"lines": count_lines(source, tree)})
    if path.parent.name in ALGORITHMS:
        counts["lines of algorithms"] = counts["lines"]
        counts["comments"] = count_comments(source)
    for node in ast.walk(tree):
        counts["nodes"] += 1
        counts["conditional"] += isinstance(node, ast.IfExp)
        counts["parallel"] += is_parallel(node)
        counts["nested"] += is_nested(node)
        if isinstance(node, FUNCTIONS):
            counts.update(describe_function(node))
    return counts


def measure_style(folder: Path = ROOT / "cfl_flare") -> dict[str, float]:
    """The figures of a package; a smaller one is better."""
    by_file = [count_nodes(path) for path in sorted(folder.rglob("*.py"))]
    total: Counter[str] = sum(by_file, Counter())
    densities = [counts["nodes"] / counts["lines"] for counts in by_file if counts["lines"] > SMALL]
    thousands = total["lines"] / 1000
    figures = {
        "nodes": total["nodes"],
        "nodes a line": total["nodes"] / total["lines"],
        "nodes a line in the densest file": max(densities, default=0),
        "conditional expressions in 1,000 lines": total["conditional"] / thousands,
        "parallel assignments in 1,000 lines": total["parallel"] / thousands,
        "nested comprehensions in 1,000 lines": total["nested"] / thousands,
        "percent of functions named by one word": 100 * total["one word"] / max(total["functions"], 1),
        "percent of public functions without Args": 100 - 100 * total["documented"] / max(total["public"], 1),
    }
    if total["lines of algorithms"]:
        uncommented = 100 - 100 * total["comments"] / total["lines of algorithms"]
        figures["lines of algorithms in 100 without a comment"] = uncommented
    return {name: round(figure, 2) for name, figure in figures.items()}


def read_figures() -> dict[str, float]:
    return dict(json.loads(FIGURES.read_text("utf-8")))


def lower_figures(kept: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    """The kept figures, and in place of each one that was undercut the measured one."""
    return {name: min(kept.get(name, figure), figure) for name, figure in measured.items()}


if __name__ == "__main__":
    lowered = lower_figures(read_figures() if FIGURES.exists() else {}, measure_style())
    FIGURES.write_text(json.dumps(lowered, indent=1) + "\n", "utf-8")
