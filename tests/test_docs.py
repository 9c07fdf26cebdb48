# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents show works, and they are complete. `mkdocs build --strict` checks the site too."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import cited
import numpy as np
import pytest
import reports
import yaml

from cfl_flare.cli import main, parser
from cfl_flare.cli.specs import build_named
from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.config import parse_spec
from cfl_flare.core.errors import FAILURES
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import COMBINATIONS, METHODS, PENALTIES, build_method
from cfl_flare.models import MLP
from cfl_flare.results.store import Store
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import MODEL, run_loop
from tests.helpers.resumed import Stopped
from tests.helpers.tiny import initial, update

ROOT = Path(__file__).parents[1]

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
EVERY_METHOD = {*METHODS, *COMBINATIONS}
SECTIONS = ("Use cases", "Settings", "Messages", "Measured")


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
            assert build_named(spec, penalties, groups=lambda: {"a": "x"}).label


# Commands that this machine cannot run as they stand, by what is in them, and why.
NOT_RUN = {
    "/srv/": "files of a hospital",
    "KIT": "a kit of a provisioned system: `tests/e2e/test_guides.py` types the operator guide",
    "hospital-": "the same",
    "cleveland": "the same",
    "site ": "the same",
    "results": "what is downloaded of a job: the same",
    "cfl-runs/": "a run of the reader's",
    "runs/": "a run of another command of the page: `tests/e2e/test_guides.py` types the user guide in its order",
    "downloaded/": "what is downloaded of a job",
    "cfl_state/": "a hospital's state root",
    "ward.csv": "the reader's own table",
    "columns.json": "what sites agreed on",
    "mine.": "the reader's own module: `test_the_example_method_does_what_its_text_says`",
    "--job": "jobs of a study: `tests/flare/test_study.py`",
    "--resume-from": "a job of an earlier run",
    "templates": "`tests/cli/test_options.py`",
    "--version": "`tests/cli/test_cli.py`",
    "stroke": "minutes on two cores",
}
# Each once, wherever its results go.
RUN_HERE = dict.fromkeys(
    re.sub(r" --out \S+", "", command) for command in COMMANDS if not any(part in command for part in NOT_RUN)
)


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN_HERE)
def test_commands_do_what_they_say(command, tmp_path, monkeypatch, capfd):
    """In the loop, and with ten rounds at most."""
    monkeypatch.chdir(tmp_path)
    write_blood_cells(tmp_path / "bloodmnist.npz")
    given = shlex.split(command)[1:]
    if given[0] == "run":
        given = [word for word in given if word != "--loop"] + ["--loop"]
        if "--sites" in given:
            del given[given.index("--sites") : given.index("--sites") + 2]
    if given[0] in ("run", "study"):
        rounds = min(10, int(given[given.index("--rounds") + 1])) if "--rounds" in given else 10
        given += ["--rounds", str(rounds), "--out", "out"]
    assert main(given) == 0, capfd.readouterr().err


def test_what_is_not_run_says_why():
    assert all(any(part in command for command in COMMANDS) for part in NOT_RUN)
    assert len(RUN_HERE) > 40


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_examples_are_python(document):
    for block in blocks(document, "python"):
        ast.parse(block)


def write_blood_cells(path: Path) -> None:
    """A file in MedMNIST's layout, of noise."""
    rng = np.random.default_rng(0)
    splits = {"train": 480, "test": 120}
    images = {f"{s}_images": rng.integers(0, 256, (n, 28, 28, 3), dtype=np.uint8) for s, n in splits.items()}
    np.savez(path, **images, **{f"{s}_labels": np.arange(n) % 8 for s, n in splits.items()})


def first_column(path: Path) -> list[str]:
    """The specs in the first column of a document's tables."""
    text = cited.GENERATED.sub("", path.read_text())
    cells = [line.split("|")[1] for line in text.splitlines() if re.match(r"\| \[?`", line)]
    return [spec for cell in cells for spec in re.findall(r"`([^`]+)`", cell)]


def pages(path: Path) -> dict[str, Path]:
    """To which page the first column of a document's tables links each method."""
    found = {}
    for line in path.read_text().splitlines():
        for text, target in re.findall(
            r"\[([^\]]+)\]\(([^)]+)\)", line.split("|")[1] if line.startswith("| [`") else ""
        ):
            page = (path.parent / target.partition("#")[0]).resolve()
            found |= {parse_spec(spec)[0]: page for spec in re.findall(r"`([^`]+)`", text)}
    return found


def test_every_method_has_its_page():
    found = pages(DOCS / "methods" / "index.md")
    assert set(found) == EVERY_METHOD
    for name, page in found.items():
        text = page.read_text()
        assert f"`{name}`" in text or f"--method {name}" in text, f"{page.name} does not name {name}"
        assert [s for s in SECTIONS if f"# {s}\n" not in text] == []
        assert "<!-- settings: " in text and "<!-- measured: " in text
    assert {p.name for p in (DOCS / "methods").glob("*.md")} == {p.name for p in found.values()} | {
        "index.md",
        "penalties.md",
    }


def test_every_page_of_methods_says_where_it_differs_from_the_papers():
    for page in sorted((DOCS / "methods").glob("*.md")):
        if page.name not in ("index.md", "auto-k.md"):
            assert re.search(r"^##+ (Differences from the paper|Gaps in the paper)", page.read_text(), re.MULTILINE)


def test_the_thesis_is_named_with_a_link_at_its_first_use():
    for page in [README, *PAGES]:
        text = cited.GENERATED.sub("", page.read_text())
        text = re.sub(r"```.*?```|<!--.*?-->|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
        first = re.search(r".{0,6}\b[Tt]hesis\b", text, re.DOTALL)
        if first and page.name != "references.md":
            assert "[Ma's thesis" in first[0] or "[Ma 2023" in text[: first.end() + 20], page.name


@pytest.mark.slow  # it makes the reports, and needs what the documentation needs
def test_what_pages_take_from_the_code_and_the_reports_is_current(monkeypatch):
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    hooks = import_module("hooks")
    hooks.write_all()
    for page in PAGES:
        text = page.read_text()
        assert hooks.filled(text).split() == text.split(), f"{page.name}: run python tools/hooks.py"


def test_the_site_leads_to_every_report():
    # The documentation's build would warn of it, and so fail.
    written = [path for path in reports.makers() if path.endswith(".md")]
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert len(written) > 20
    assert [path for path in written if f" {path}\n" not in navigation] == []


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
    method = names["Cautious"](fraction=0.25)
    state = method.start(initial)
    after = method.aggregate(state, [update("a", 1, "global", 4, 8)], {})
    np.testing.assert_allclose(after.bank["global"].vector, [1, 2])


def sentences(text: str) -> list[str]:
    """Of a page's paragraphs and lists, without tables, headings and code."""
    text = cited.GENERATED.sub("", text)
    text = re.sub(r"```.*?```|<!--.*?-->|`[^`]*`", "X", text, flags=re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n|\n(?=[-#|]|\d+\. )", text)]
    prose = " \n".join(" ".join(part.split()) for part in paragraphs if part and part[0] not in "#|<!")
    return [part for part in re.split(r"(?<=[.!?:;])\s+(?=[A-Z*\[(])|\n", prose) if len(part.split()) > 2]


def test_a_sentence_has_at_most_18_words_on_the_average():
    spoken = [(len(part.split()), page.name, part) for page in [README, *PAGES] for part in sentences(page.read_text())]
    longest = "\n".join(f"{words} words, {name}: {part}" for words, name, part in sorted(spoken, reverse=True)[:20])
    assert sum(words for words, *_ in spoken) <= 18 * len(spoken), longest


def test_the_first_block_of_the_readme_is_two_lines():
    lines = BLOCK[0].splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("cfl-flare run")
    assert lines[1].endswith("pytest -n 2")


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 110


def test_the_readme_counts_the_methods():
    methods = EVERY_METHOD - {"cam", "ensemble", "auto-k"}  # under their own names
    assert f"[{len(methods)} methods and baselines]" in README.read_text()


def test_three_lines_turn_a_fedavg_recipe_into_a_clustered_one(tmp_path, monkeypatch):
    (shown,) = blocks(README, "diff")
    (tmp_path / "client.py").write_text("import nvflare.client as flare\n\nflare.init()\n")
    monkeypatch.chdir(tmp_path)
    made = {}
    for sign in "-+":
        code = "\n".join(line[1:] for line in shown.splitlines() if line[:1] in (sign, " "))
        names: dict = {"Net": lambda: MLP((1, 8, 8), 10)}
        exec(code, names)
        made[sign] = names["recipe"]
    assert type(made["-"]).__name__ == "FedAvgRecipe"
    assert made["+"].plan.method.label == "wecfl"


def test_every_code_of_a_failure_has_its_way_out():
    codes = re.findall(r"^\| `([a-z]+)` \|", (DOCS / "help.md").read_text(), re.MULTILINE)
    assert codes == list(FAILURES)


def test_the_messages_of_the_help_are_those_of_the_code():
    rows = (DOCS / "help.md").read_text().partition("## No site can take part")[0]
    source = "".join(path.read_text() for path in (ROOT / "cfl_flare").rglob("*.py"))
    messages = re.findall(r"^\| `([^`]+)` \|", rows, re.MULTILINE)
    assert messages and [m for m in messages if m not in source] == []


def test_the_recipe_of_the_quickstart_is_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_blood_cells(tmp_path / "bloodmnist.npz")
    example, _ = blocks(DOCS / "quickstart.md", "python")[0].split("run = ")
    names: dict = {}
    exec(example, names)
    assert names["recipe"].plan.method.label == "wecfl"
    assert {"SimEnv", "load_model"} <= names.keys()


def test_versions_agree():
    stated = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    cited_as = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert stated and cited_as and stated[1] == cited_as[1]
    assert f"version = {{{stated[1]}}}" in (DOCS / "references.md").read_text()


def test_the_hooks_before_a_commit_are_what_is_checked_everywhere():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    run = (ROOT / ".ci" / "run").read_text()
    assert {hook["entry"] for hook in hooks} == {"ruff format", "ruff check", "mypy"}
    assert all(hook["language"] == "system" for hook in hooks)
    assert all(f"\n    {check}\n" in run for check in ("ruff format --check .", "ruff check .", "mypy"))
    assert "mkdocs build --strict" in run


# ---- A contributor's method, as docs/add-a-method.md has it: a user's file that clusters by label histograms ----


GUIDE = Path(__file__).parents[1] / "docs" / "add-a-method.md"
METHOD = "histograms.ByLabels:k=3,classes=10"
RUN = ["--participants", "9", "--partition", "cluster_n_class:groups=3", "--method", METHOD, "--rounds", "3"]


def code() -> str:
    """The last Python block of the guide."""
    return re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)[-1]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's file, from which modules are imported."""
    (tmp_path / "histograms.py").write_text(code())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "histograms", raising=False)
    return tmp_path


def run_cfl_in(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "cfl_flare.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def the_run(folder: Path) -> Path:
    (found,) = folder.glob("by-labels*")
    return found


def check_results(run: Path) -> None:
    """The groups were found by the histograms; analysis, figures and models are there, and no histogram is a model."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["final"]["ari"] == 1
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert rounds[0]["clusterability"] == [None] * 3  # nobody moved a model in it
    assert rounds[0]["objective"] > 0
    assert rounds[0]["bytes_up"] == 9 * 10 * 4 or rounds[0]["bytes_up"] == 9 * 10 * 8
    assert rounds[1]["intra_cosine"] > rounds[1]["inter_cosine"]
    assert {p.name for p in run.glob("*.png")} == {"accuracy.png", "cluster_sizes.png", "flows.png", "analysis.png"}
    assert {p.stem for p in (run / "clusters").iterdir()} == {"global", *(f"cluster-{k}" for k in range(3))}
    assert "histogram" not in str(load_arrays(run / "clusters" / "cluster-0.safetensors")[0].keys())


def test_it_is_short_and_uses_nothing_private() -> None:
    text = code()
    assert len(text.splitlines()) <= 60
    private = [n.attr for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Attribute) and n.attr.startswith("_")]
    assert private == []


def test_in_the_loop_with_figures_and_newcomers(user: Path) -> None:
    run_cfl_in(user, "run", "--loop", "--keep-features", "--out", "out", *RUN)
    run = the_run(user / "out")
    check_results(run)
    assert len(list((run / "features").iterdir())) == 3
    images = Digits().load()[0]
    few = [i for i in range(len(images.y)) if images.y[i] in (0, 1, 2)][:60]
    splits = {"train": few[:40], "test": few[40:]}
    arrays = {f"{s}_images": (images.x[i][:, 0] * 255).astype(np.uint8) for s, i in splits.items()}
    np.savez(user / "ward.npz", **arrays, **{f"{s}_labels": images.y[i] for s, i in splits.items()})
    run_cfl_in(user, "onboard", str(run), "--data", "ward.npz", "--allow", "histograms.ByLabels")
    assert (run / "newcomers" / "newcomer" / "model.safetensors").is_file()


def test_a_stopped_run_goes_on_to_the_same_end(user: Path) -> None:
    method = build_method({"method": "histograms.ByLabels", "k": 3, "classes": 10})
    settings = {
        "method": method,
        "model": MODEL,
        "source": Digits(),
        "data": DataConfig(9, {"partition": "cluster_n_class", "groups": 3}),
        "settings": ServerSettings(4, sample=5),
        "training": TrainSettings(lr=0.1, local_steps=3),
    }
    whole = run_loop(**settings)

    def stop(measured) -> None:
        if measured.record["round"] == 1:
            raise Stopped

    store = Store(user / "checkpoints")
    with pytest.raises(Stopped):
        run_loop(**settings, checkpoints=store, checkpoint_every=1, on_round=stop, folder=user / "run")
    resumed = run_loop(**settings, checkpoints=store, checkpoint_every=1, folder=user / "run")
    assert resumed.state.assignment == whole.state.assignment
    assert resumed.state.arrays.keys() == whole.state.arrays.keys() != set()
    for name, array in whole.state.arrays.items():
        np.testing.assert_array_equal(resumed.state.arrays[name], array)
    for slot, model in whole.state.bank.items():
        np.testing.assert_array_equal(resumed.state.bank[slot].vector, model.vector)


@pytest.mark.slow
def test_through_flare_it_ends_as_in_the_loop(user: Path) -> None:
    run_cfl_in(user, "run", "--loop", "--out", "loop", *RUN)
    run_cfl_in(user, "run", "--out", "flare", *RUN)
    loop, flare = the_run(user / "loop"), the_run(user / "flare")
    check_results(flare)
    assert (flare / "assignments.jsonl").read_text() == (loop / "assignments.jsonl").read_text()
    for path in (loop / "clusters").iterdir():
        one, other = load_arrays(path)[0], load_arrays(flare / "clusters" / path.name)[0]
        for name, array in one.items():
            np.testing.assert_array_equal(other[name], array)
