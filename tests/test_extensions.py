# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Extensions: the registry, and the deletion test: the package works without the folder of any extension."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from cfl_flare import extensions
from cfl_flare.cli import main
from cfl_flare.core.errors import ConfigError
from cfl_flare.data import Digits
from cfl_flare.engine.observers import Observer, list_answering
from cfl_flare.engine.plan import RunPlan
from cfl_flare.extensions import Extension, list_extensions, sort_by_need
from cfl_flare.models import MLP
from cfl_flare.training.settings import TrainSettings

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(
    path.name for path in (ROOT / "cfl_flare" / "extensions").iterdir() if (path / "__init__.py").is_file()
)

# ---- The registry ----


def make_extension(name: str, *requires: str) -> Extension:
    return type(name, (Extension,), {"name": name, "requires": requires})()


@pytest.fixture
def entry_points(monkeypatch):
    """Makes the registry read these entry points, as those of installed packages; see `importlib.metadata`."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(extensions, "entry_points", lambda group: [p for p in points if p.group == group])
    list_extensions.cache_clear()
    yield points
    list_extensions.cache_clear()


COUNTING = make_extension("counting")
UNNAMED = make_extension("another")


def test_each_folder_is_an_extension():
    assert {*FOLDERS} <= {extension.name for extension in list_extensions()}
    assert all(
        len((type(e).__module__ and sys.modules[type(e).__module__].__doc__).splitlines()) <= 16
        for e in list_extensions()
    )


@pytest.mark.parametrize("name", FOLDERS)
def test_an_extension_says_what_it_adds(name):
    text = sys.modules[f"cfl_flare.extensions.{name}"].__doc__ or ""
    assert all(f"\n{word}: " in text for word in ("Adds", "Hooks", "Requires"))
    assert len(text.splitlines()) <= 14


def test_an_entry_point_adds_an_extension(entry_points):
    entry_points.append(EntryPoint("counting", f"{__name__}:COUNTING", extensions.GROUP))
    entry_points.append(EntryPoint("counting", f"{__name__}:NOTHING", "another.group"))
    assert [e.name for e in list_extensions()] == [*FOLDERS, "counting"]


@pytest.mark.parametrize(
    ("point", "says"),
    [
        (("gone", "no_such_package:EXTENSION"), "gone = 'no_such_package:EXTENSION' cannot be imported"),
        (("counting", f"{__name__}:UNNAMED"), "is invalid: expected an Extension whose name is counting"),
        (("FOLDERS", f"{__name__}:FOLDERS"), "is invalid: expected an Extension whose name is FOLDERS"),
        (("taken", f"{__name__}:COUNTING"), "is invalid: expected an Extension whose name is taken"),
    ],
)
def test_a_broken_entry_point_is_named(entry_points, point, says):
    entry_points.append(EntryPoint(*point, extensions.GROUP))
    with pytest.raises(ConfigError, match=says):
        list_extensions()


def test_two_extensions_have_two_names(entry_points):
    entry_points.extend([EntryPoint("counting", f"{__name__}:COUNTING", extensions.GROUP)] * 2)
    with pytest.raises(ConfigError, match="the name is taken"):
        list_extensions()


def test_an_extension_stands_after_its_needs():
    a, b, c = make_extension("a", "c", "b"), make_extension("b", "c"), make_extension("c")
    assert sort_by_need({"a": a, "b": b, "c": c}) == (c, b, a)
    assert sort_by_need({"b": b, "c": c}) == (c, b)


def test_a_missing_need_is_named():
    with pytest.raises(ConfigError, match="b is invalid: it requires c, which is not installed\nhint: install"):
        sort_by_need({"b": make_extension("b", "c")})


def test_a_circle_of_needs_is_refused():
    circle = {"a": make_extension("a", "b"), "b": make_extension("b", "a")}
    with pytest.raises(ConfigError, match="extensions: a is invalid: it requires itself"):
        sort_by_need(circle)


def test_the_registry_knows_each_command_of_a_folder():
    stated = {name: {*names} for name, names in extensions.COMMANDS_OF.items()}
    assert stated == {e.name: {*e.commands} for e in list_extensions() if e.name in FOLDERS and e.commands}


@pytest.mark.parametrize("command", ["report", "predict"])
def test_a_missing_command_names_its_extension(command, monkeypatch, capsys):
    monkeypatch.setattr(extensions, "list_extensions", lambda: ())
    assert main([command, "somewhere"]) == 2
    names = {name for name, commands in extensions.COMMANDS_OF.items() if command in commands}
    assert f"the command {command} is of the extension {names.pop()}, which is not installed" in capsys.readouterr().err


# ---- The example of docs/extend.md ----


@pytest.fixture
def example(entry_points, tmp_path, monkeypatch):
    """Installs the page's extension: its module, and its entry point as the page states it."""
    page = (ROOT / "docs" / "extend.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (name, value) = re.findall(r'^(\w+) = "(.*)"$', page, re.MULTILINE)[0]
    (tmp_path / "confidence.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    entry_points.append(EntryPoint(name, value, extensions.GROUP))
    list_answering.cache_clear()
    yield code
    list_answering.cache_clear()
    sys.modules.pop("confidence", None)


WORDS = ["run", "--loop", "--participants", "4", "--partition", "iid", "--rounds", "2", "--method", "fedavg"]


def test_the_page_s_extension_is_short(example):
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 45


def test_the_page_s_extension_measures_and_has_a_column(example, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    out = tmp_path / "out"
    assert main([*WORDS, "--confidence-threshold", "0.3", "--out", str(out)]) == 0
    summary = json.loads((out / "fedavg" / "summary.json").read_text())
    assert summary["training"]["extensions"] == {"confidence": {"threshold": 0.3}}
    assert 0.1 < summary["confidence"] < 1
    printed = capfd.readouterr().out
    (head,) = [line.split() for line in printed.splitlines() if line.startswith("method ")]
    row = [line for line in printed.splitlines() if line.startswith("fedavg ")][-1]  # after the progress bars
    assert "confidence" in head and f"{summary['confidence']:.3f}" in row


@pytest.mark.parametrize(("threshold", "share"), [("0", 1), ("1", 0)])
def test_the_page_s_setting_reaches_the_sites(example, threshold, share, tmp_path):
    out = tmp_path / "out"
    assert main([*WORDS, "--confidence-threshold", threshold, "--out", str(out)]) == 0
    assert json.loads((out / "fedavg" / "summary.json").read_text())["confidence"] == share


def test_an_extension_s_setting_has_bounds(example, tmp_path, capsys):
    assert main([*WORDS, "--confidence-threshold", "2", "--out", str(tmp_path / "out")]) == 2
    assert "training: extensions: confidence: threshold = 2.0 should be in [0, 1]" in capsys.readouterr().err


def test_an_extension_s_setting_is_repeated(example, tmp_path):
    out = tmp_path / "out"
    assert main([*WORDS, "--confidence-threshold", "0.3", "--out", str(out)]) == 0
    text = (out / "run.toml").read_text()
    assert "confidence_threshold = 0.3" in text
    assert main(["run", "--config", str(out / "run.toml"), "--out", str(tmp_path / "again")]) == 0
    both = [json.loads((path / "fedavg" / "summary.json").read_text()) for path in (out, tmp_path / "again")]
    assert both[0]["confidence"] == both[1]["confidence"]


RECIPE = {"method": "fedavg", "model": MLP((1, 8, 8), 10), "data": Digits(), "num_rounds": 1, "min_clients": 2}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            {"confidence": {}},
            "training: extensions names 'confidence', which is not installed here; install",
        ),
        ({"report": {}}, "training: extensions: report has no settings; leave it out"),
    ],
)
def test_a_missing_extension_s_setting_is_refused(asked, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        TrainSettings(extensions=asked)
    with pytest.raises(ConfigError, match=says):
        RunPlan.of(**RECIPE, training={"extensions": asked})


def test_with_dp_a_site_answers_no_extension(example, tmp_path):
    out = tmp_path / "out"
    assert main([*WORDS, "--dp", "epsilon=8", "--out", str(out)]) == 0
    assert "confidence" not in json.loads((out / "fedavg" / "summary.json").read_text())


def test_a_key_that_is_taken_is_refused(entry_points, monkeypatch):
    taken = type("Taken", (Observer,), {"key": "metrics"})
    extension = make_extension("counting")
    monkeypatch.setattr(extension, "list_answering", lambda: [taken], raising=False)
    monkeypatch.setattr("cfl_flare.engine.observers.list_extensions", lambda: [extension])
    list_answering.cache_clear()
    with pytest.raises(ConfigError, match="counting is invalid: its key 'metrics' is taken"):
        list_answering()
    list_answering.cache_clear()


# ---- The deletion test ----

# A main job, in process and through FLARE's simulator. It prints the final figures and each round's.
JOB = ["--participants", "4", "--partition", "label_permutation:groups=2", "--rounds", "2", "--local-steps", "2"]
JOB += ["--method", "wecfl:k=2", "--bootstrap", "50"]
# The main house's fast tests that run in each copy: the rooms, the contract of methods, server, command line, results.
SUBSET = (
    "tests/test_boundaries.py",
    "tests/methods/test_contract.py",
    "tests/engine/test_server.py",
    "tests/cli/test_options.py",
    "tests/results/test_run_dir.py",
    "tests/results/test_terminal.py",
    "tests/flare/test_aggregator.py",
)
DESCRIBE = """
import json
from cfl_flare.cli import parser

commands = parser().commands()
options = {name: [o for a in known._actions for o in a.option_strings] for name, known in commands.items()}
helps = {name: known.full_help() for name, known in commands.items()}
print(json.dumps({"first": parser().format_help(), "options": options, "helps": helps}))
"""


def pick_figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """The measures of a round or a participant, and the sizes of clusters: all that no transport changes."""
    return {key: value for key, value in record.items() if key.startswith("served_") or key in ("ari", "cluster_sizes")}


@dataclass
class House:
    """A copy of the package.

    Attributes:
        folder: it holds the package, its tests, its documentation, and what these read.
        without: the extensions whose folders are deleted.
    """

    folder: Path
    without: Collection[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str, timeout: float = 600) -> str:
        """Run Python with these words in the copy, and return what it printed."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "100"}
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
        return done.stdout

    def run_job(self, name: str, *words: str) -> dict[str, Any]:
        """Run the main job, and return its figures."""
        out = self.folder / name
        self.run("-m", "cfl_flare.cli", "run", *JOB, *words, "--out", str(out))
        (summary,) = out.glob("*/summary.json")
        rounds = [json.loads(line) for line in (summary.parent / "rounds.jsonl").read_text().splitlines()]
        people = json.loads(summary.read_text())["participants"]
        by_name = {person["name"]: {**pick_figures(person), "cluster": person["cluster"]} for person in people}
        return {"participants": by_name, "rounds": [pick_figures(record) for record in rounds]}

    def describe_commands(self) -> dict[str, Any]:
        return json.loads(self.run("-c", DESCRIBE))


def list_deleted(names: Collection[str]) -> set[str]:
    """These extensions, and those that require one of them."""
    deleted = {*names}
    for extension in list_extensions():  # each stands after its needs
        if {*extension.requires} & deleted:
            deleted.add(extension.name)
    return deleted


def copy_house(folder: Path, names: Collection[str] = ()) -> House:
    """Copy the package without these extensions, their tests, and those that require them."""
    deleted = list_deleted(names)
    skip = shutil.ignore_patterns("__pycache__", "*.pyc", "*.safetensors", "images")
    for part in ("cfl_flare", "tests", "tools", "docs", "benchmarks", "examples", "job_templates"):
        shutil.copytree(ROOT / part, folder / part, ignore=skip)
    for file in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        shutil.copy(ROOT / file, folder / file)
    for name in deleted:
        shutil.rmtree(folder / "cfl_flare" / "extensions" / name)
        shutil.rmtree(folder / "tests" / "extensions" / name, ignore_errors=True)
    return House(folder, deleted)


@pytest.fixture(scope="module")
def complete_house(tmp_path_factory):
    return copy_house(tmp_path_factory.mktemp("complete"))


@pytest.fixture(scope="module")
def expected_figures(complete_house):
    """The figures of the main job with all extensions, in process."""
    return complete_house.run_job("loop", "--loop")


@pytest.fixture(scope="module")
def commands(complete_house):
    return complete_house.describe_commands()


CASES = [[name] for name in FOLDERS] + [FOLDERS]


@pytest.fixture(scope="module", params=CASES, ids=["-".join(case) if len(case) == 1 else "all" for case in CASES])
def house(request, tmp_path_factory):
    """A copy without one extension, or without all of them."""
    return copy_house(tmp_path_factory.mktemp("house"), request.param)


@pytest.mark.slow
def test_without_it_the_job_has_the_same_figures(house, expected_figures):
    assert house.run_job("loop", "--loop") == expected_figures
    assert house.run_job("flare") == expected_figures


@pytest.mark.slow
def test_without_it_the_main_house_s_tests_pass(house):
    deselected = "test_every_file_has_its_licence_and_fits_a_head"  # it says nothing of imports
    house.run("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", f"not {deselected}", *SUBSET)


def list_gone(before: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """The options that a copy has no more, by command; all of a command that is gone."""
    return {name: {*options} - {*now.get(name, ())} for name, options in before.items()}


@pytest.mark.slow
def test_without_it_help_and_reference_name_nothing_of_it(house, commands):
    now = house.describe_commands()
    gone = commands["options"].keys() - now["options"].keys()
    assert gone == {name for e in list_extensions() if e.name in house.without for name in e.commands}
    house.run("tools/hooks.py")
    reference = (house.folder / "docs" / "reference" / "command-line.md").read_text()
    texts = {"first help": now["first"], "reference": reference.partition("<!-- help: all -->")[2], **now["helps"]}
    for place, text in texts.items():
        for command in gone:
            assert f"cfl-flare {command}" not in text, f"{place} names the command {command}"
            assert f"\n    {command} " not in text, f"{place} lists the command {command}"
    for command, options in list_gone(commands["options"], now["options"]).items():
        for option in options - {"-h", "--help"} if command not in gone else ():
            assert option not in now["helps"][command], f"the help of {command} names {option}"
