# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents show works."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from cfl_flare.cli.options import parser
from cfl_flare.cli.specs import build_named
from cfl_flare.core.config import parse_spec
from cfl_flare.methods import COMBINATIONS, METHODS, PENALTIES
from tests.tiny import initial, update

ROOT = Path(__file__).parents[1]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


BLOCK = blocks(ROOT / "README.md", "sh")
COMMANDS = [
    line.split("  #")[0].strip()
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for block in blocks(document, "sh")
    for line in block.replace(BLOCK[0], "").splitlines()
    if "cfl-flare run " in line or line.startswith("cfl-flare ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command):
    words = shlex.split(command)
    given = words[words.index("cfl-flare") + 1 :]
    assert given == ["--version"] or parser().parse_args(given).subcommand


def first_column(path: Path) -> list[str]:
    """The specs in the first column of a document's tables."""
    cells = [line.split("|")[1] for line in path.read_text().splitlines() if line.startswith("| `")]
    return [spec for cell in cells for spec in re.findall(r"`([^`]+)`", cell)]


def test_every_method_of_the_readme_is_there():
    specs = [s for s in first_column(ROOT / "README.md") if parse_spec(s)[0] in (*METHODS, *COMBINATIONS)]
    assert {parse_spec(s)[0] for s in specs} >= {"fedavg", "ifca", "wecfl", "ifca-cam", "fedavg+", "fedavg+ifca"}
    for spec in specs:
        build_named(f"{spec}:k=3" if spec == "hypcluster" else spec)


def test_every_penalty_of_the_document_is_there():
    specs = [s for s in first_column(ROOT / "docs" / "penalties-and-cam.md") if parse_spec(s)[0] in PENALTIES]
    assert {parse_spec(s)[0] for s in specs} == set(PENALTIES)
    for spec in specs:
        assert build_named("wecfl:k=3", [spec]).penalties


def test_the_rule_for_newcomers_to_every_method_is_there():
    there = {parse_spec(spec)[0] for spec in first_column(ROOT / "docs" / "newcomers.md")}
    assert there >= {*METHODS, *COMBINATIONS}


def test_the_example_of_penalties_builds_what_it_says():
    names: dict = {}
    exec(blocks(ROOT / "docs" / "penalties-and-cam.md", "python")[0], names)
    assert names["method"].label == "wecfl-con-cks"


def test_the_example_method_does_what_its_text_says():
    names: dict = {"__name__": "example"}
    exec(blocks(ROOT / "docs" / "add-a-method.md", "python")[0], names)
    method = names["Cautious"](share=0.25)
    state = method.start(initial)
    after = method.aggregate(state, [update("a", 1, "global", 4, 8)], {})
    np.testing.assert_allclose(after.bank["global"].vector, [1, 2])


def test_the_first_block_of_the_readme_is_two_lines():
    lines = BLOCK[0].splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("cfl-flare run")
    assert lines[1].endswith("pytest -n 2")
