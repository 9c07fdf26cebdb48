# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The package's code becomes no denser: a ratchet on the figures of `tests/style.json`.

A change may lower a figure, by ``python -m tests.helpers.style``, and never raise it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.helpers.style import FIGURES, ROOT, lower_figures, measure_style, read_figures

MEASURED = measure_style()

SAMPLE = '''"""A module
of two lines."""

# why


def trained(a, b=1):
    """Adds."""
    x, y = a, b
    rows = [[i for i in range(a)] for _ in range(b)]
    return x if y else rows


def _add_numbers(a):
    return a


class Adder:
    def add_numbers(self, a):
        """Add numbers.

        Args:
            a: a number.
        """
        return a
'''


@pytest.mark.parametrize("name", MEASURED)
def test_the_code_becomes_no_denser(name: str) -> None:
    kept = read_figures()[name]
    hint = "write one thing a line, or document the arguments: see CONTRIBUTING.md"
    assert MEASURED[name] <= kept, f"{name}: {MEASURED[name]} is more than {kept}\nhint: {hint}"


def test_the_kept_figures_are_the_measured_names() -> None:
    assert read_figures().keys() == MEASURED.keys()


def test_figures_of_a_package_by_hand(tmp_path: Path) -> None:
    folder = tmp_path / "methods"
    folder.mkdir()
    (folder / "sample.py").write_text(SAMPLE)
    found = measure_style(tmp_path)
    lines = 9  # def, three statements; def, return; class, def, return
    assert found["conditional expressions in 1,000 lines"] == round(1000 / lines, 2)
    assert found["parallel assignments in 1,000 lines"] == round(1000 / lines, 2)
    assert found["nested comprehensions in 1,000 lines"] == round(1000 / lines, 2)
    assert found["percent of functions named by one word"] == round(100 / 3, 2)  # trained
    assert found["percent of public functions without Args"] == 50  # trained of trained and add_numbers
    assert found["lines of algorithms in 100 without a comment"] == round(100 - 100 / lines, 2)
    assert found["nodes a line in the densest file"] == 0  # the file is small


def test_a_figure_is_lowered_and_never_raised() -> None:
    assert lower_figures({"a": 5.0, "b": 5.0}, {"a": 4.0, "b": 6.0}) == {"a": 4.0, "b": 5.0}


def test_the_last_commit_raised_no_figure() -> None:
    command = ["git", "show", f"HEAD~1:{FIGURES.relative_to(ROOT).as_posix()}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("the commit before has no figures, or this is no clone with its history")
    before = json.loads(done.stdout)
    raised = {name for name, figure in read_figures().items() if figure > before.get(name, figure)}
    assert not raised
