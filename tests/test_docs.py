# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents show works, and they are complete. `mkdocs build --strict` checks the site beside this."""

import ast
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import reports
import yaml

from cfl_flare.cli import parser
from cfl_flare.cli.specs import build_named
from cfl_flare.core.config import parse_spec
from cfl_flare.methods import COMBINATIONS, METHODS, PENALTIES
from tests.tiny import initial, update

ROOT = Path(__file__).parents[1]

BUILT = reports.makers().keys()  # with the site
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
EVERY_METHOD = {*METHODS, *COMBINATIONS}
SECTIONS = ("When to take it", "Settings", "What travels", "Measured")


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


BLOCK = blocks(README, "sh")
COMMANDS = [
    line.split("  #")[0].strip()
    for document in DOCUMENTS
    for block in blocks(document, "sh")
    for line in block.replace(BLOCK[0], "").splitlines()
    if "cfl-flare run " in line or line.startswith("cfl-flare ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command):
    words = shlex.split(command)
    given = words[words.index("cfl-flare") + 1 :]
    if given == ["--version"]:
        return
    arguments = parser().parse_args(given)
    assert arguments.subcommand
    for spec, penalties in getattr(arguments, "method", None) or []:
        if "." not in parse_spec(spec)[0]:  # else a class of the reader's own
            assert build_named(spec, penalties).label


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_examples_are_python(document):
    for block in blocks(document, "python"):
        ast.parse(block)


def anchors(path: Path) -> set[str]:
    """The headings of a document, as links name them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *sorted((ROOT / "examples").rglob("README.md"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_lead_somewhere(document):
    for target, anchor in re.findall(r"\]\(([^)\s#]*)#?([^)\s]*)\)", document.read_text()):
        if target.startswith("http"):
            continue
        there = document.parent / target if target else document
        if there.resolve().relative_to(ROOT).as_posix() in BUILT:  # strict MkDocs finds that it is
            assert not anchor
            continue
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def first_column(path: Path) -> list[str]:
    """The specs in the first column of a document's tables."""
    cells = [line.split("|")[1] for line in path.read_text().splitlines() if re.match(r"\| \[?`", line)]
    return [spec for cell in cells for spec in re.findall(r"`([^`]+)`", cell)]


def pages(path: Path) -> dict[str, Path]:
    """To which page the first column of a document's tables links each method."""
    found = {}
    for line in path.read_text().splitlines():
        for text, target in re.findall(
            r"\[([^\]]+)\]\(([^)]+)\)", line.split("|")[1] if line.startswith("| [`") else ""
        ):
            found |= {parse_spec(spec)[0]: (path.parent / target).resolve() for spec in re.findall(r"`([^`]+)`", text)}
    return found


def test_every_method_is_in_the_readme_and_can_be_built_as_it_says():
    specs = first_column(README)
    assert {parse_spec(spec)[0] for spec in specs} == EVERY_METHOD - {"cam", "ensemble", "auto-k"}
    for spec in specs:
        build_named(f"{spec}:k=3" if spec == "hypcluster" else spec)


def test_every_method_has_its_page():
    found = pages(DOCS / "methods" / "index.md")
    assert set(found) == EVERY_METHOD
    for name, page in found.items():
        text = page.read_text()
        assert f"`{name}`" in text or f"--method {name}" in text, f"{page.name} does not name {name}"
        assert [s for s in SECTIONS if f"# {s}\n" not in text] == []
        assert "<!-- settings: " in text and "<!-- measured: " in text
    for name, page in pages(README).items():
        assert page == found[name]
    assert {p.name for p in (DOCS / "methods").glob("*.md")} == {p.name for p in found.values()} | {
        "index.md",
        "penalties.md",
    }


def test_every_penalty_has_its_settings_on_their_page():
    page = DOCS / "methods" / "penalties.md"
    specs = [s for s in first_column(page) if parse_spec(s)[0] in PENALTIES]
    assert {parse_spec(s)[0] for s in specs} == set(PENALTIES)
    for spec in specs:
        assert build_named("wecfl:k=3", [spec]).penalties
    assert all(f"<!-- settings: all {name} -->" in page.read_text() for name in PENALTIES)


def test_the_rule_for_newcomers_to_every_method_is_there():
    there = {parse_spec(spec)[0] for spec in first_column(DOCS / "newcomers.md")}
    assert there >= EVERY_METHOD


def test_the_example_of_penalties_builds_what_it_says():
    names: dict = {}
    exec(blocks(DOCS / "methods" / "penalties.md", "python")[0], names)
    assert names["method"].label == "wecfl-con-cks"


def test_the_example_method_does_what_its_text_says():
    names: dict = {"__name__": "example"}
    exec(blocks(DOCS / "add-a-method.md", "python")[0], names)
    method = names["Cautious"](share=0.25)
    state = method.start(initial)
    after = method.aggregate(state, [update("a", 1, "global", 4, 8)], {})
    np.testing.assert_allclose(after.bank["global"].vector, [1, 2])


def test_the_first_block_of_the_readme_is_two_lines():
    lines = BLOCK[0].splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("cfl-flare run")
    assert lines[1].endswith("pytest -n 2")


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 120


def test_the_recipe_of_the_readme_is_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    splits = {"train": 960, "test": 240}
    images = {f"{s}_images": rng.integers(0, 256, (n, 28, 28, 3), dtype=np.uint8) for s, n in splits.items()}
    np.savez("bloodmnist.npz", **images, **{f"{s}_labels": np.arange(n) % 8 for s, n in splits.items()})
    example, _ = blocks(README, "python")[0].split("run = ")
    names: dict = {}
    exec(example, names)
    assert names["recipe"].plan.method.label == "wecfl"
    assert {"SimEnv", "load_model"} <= names.keys()


def test_the_hooks_before_a_commit_are_what_is_checked_everywhere():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    run = (ROOT / ".ci" / "run").read_text()
    assert {hook["entry"] for hook in hooks} == {"ruff format", "ruff check", "mypy"}
    assert all(hook["language"] == "system" for hook in hooks)
    assert all(f"\n    {check}\n" in run for check in ("ruff format --check .", "ruff check .", "mypy"))
    assert "mkdocs build --strict" in run
