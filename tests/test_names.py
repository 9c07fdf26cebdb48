# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Names that say nothing are rare: at most one in a hundred of the bindings of the package, benchmarks, examples."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
