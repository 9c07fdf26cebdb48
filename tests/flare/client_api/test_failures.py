# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the server takes from a site whose script has failed, and what the launcher there needs."""

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.client import api

from cfl_flare.core.errors import PayloadError
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.client_api import cfl_launcher
from cfl_flare.flare.client_api.failures import LONGEST, check_failure
from cfl_flare.models import MLP

LAUNCHER = Path(cfl_launcher.__file__)


@pytest.mark.parametrize(
    "name, said",
    [
        ("ValueError", "ValueError in its script"),
        ("SystemExit", "its script ended before the job"),
        ("E" * LONGEST, "E" * LONGEST + " in its script"),
        ("E" * (LONGEST + 1), "an error in its script"),
        ("no patient 17", "an error in its script"),
        ("Err\x1b[2J", "an error in its script"),
        ("Fehler\N{LATIN SMALL LETTER U WITH DIAERESIS}", "an error in its script"),
        (["ValueError"], "an error in its script"),
        (None, "an error in its script"),
    ],
)
def test_an_error_is_named_by_an_identifier_alone(name, said):
    with pytest.raises(PayloadError) as caught:
        check_failure(FLModel(metrics={}, meta={cfl_launcher.FAILED: name}))
    assert (caught.value.code, str(caught.value)) == ("site_failed", said)


def test_other_results_pass():
    check_failure(FLModel(metrics={"accuracy": 1.0}, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
    check_failure(FLModel(metrics={"accuracy": 1.0}))


def test_the_launcher_needs_nothing_but_flare():
    tree = ast.walk(ast.parse(LAUNCHER.read_text()))
    imports = [n for n in tree if isinstance(n, (ast.Import, ast.ImportFrom))]
    found = {a.name if isinstance(n, ast.Import) else n.module for n in imports for a in n.names}
    found = {name.partition(".")[0] for name in found if name}
    assert found - sys.stdlib_module_names == {"nvflare"}


class Tasks:
    """The Client API of a job with so many tasks left."""

    def __init__(self, left: int):
        self.left, self.sent = left, []

    def is_running(self) -> bool:
        return self.left > 0

    def receive(self, timeout: float | None = None) -> None:
        return None

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        self.left -= 1
        self.sent.append((model.params, model.metrics, model.meta))


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Runs a script under the launcher, in its place of the job's folder."""

    def run(text: str, name: str, *arguments: str, at: str = "", left: int = 2) -> Tasks:
        script = tmp_path / (at or name)
        script.parent.mkdir(exist_ok=True)
        script.write_text(text)
        tasks = Tasks(left)
        monkeypatch.setattr(cfl_launcher, "__file__", str(tmp_path / LAUNCHER.name))
        monkeypatch.setattr(api, "default_context", SimpleNamespace(api=tasks))
        monkeypatch.setattr(sys, "argv", [LAUNCHER.name, name.replace(" ", "%20"), *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        cfl_launcher.main()
        return tasks

    return run


def test_each_task_that_is_left_is_answered_with_the_type(launch, caplog, capsys):
    tasks = launch("raise ValueError('of ward 7')", "client.py")
    assert tasks.sent == [(None, {}, {cfl_launcher.FAILED: "ValueError"})] * 2
    assert "ValueError: of ward 7" in capsys.readouterr().out  # for the site's log
    assert not caplog.records  # lines of level error may leave the site


@pytest.mark.parametrize("text", ["import sys; sys.exit('no data')", "pass"])
def test_a_script_that_ends_too_early_says_so(launch, text):
    assert launch(text, "client.py", left=1).sent == [(None, {}, {cfl_launcher.FAILED: "SystemExit"})]


def test_a_script_that_ends_with_the_job_says_nothing(launch):
    assert launch("pass", "client.py", left=0).sent == []


@pytest.mark.parametrize("name, at", [("a/my client.py", ""), ("client.py", "deep/client.py")])
def test_the_script_sees_its_command_line_and_its_neighbours(launch, tmp_path, name, at):
    folder = (tmp_path / (at or name)).parent
    folder.mkdir()
    (folder / f"neighbour_{folder.name}.py").write_text("")
    text = (
        f"import json, sys, neighbour_{folder.name}\nopen({str(tmp_path / 'argv')!r}, 'w').write(json.dumps(sys.argv))"
    )
    launch(text, name, "--lr", "0.1", at=at, left=0)
    assert json.loads((tmp_path / "argv").read_text()) == [str(tmp_path / (at or name)), "--lr", "0.1"]


def test_other_processes_than_the_first_end_with_their_error(launch, monkeypatch):
    """Then whoever started them ends the first one too."""
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="here"):
        launch("raise ValueError('here')", "client.py")


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_job_carries_the_launcher_and_the_script(tmp_path, monkeypatch, external, absolute):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("import model\n")
    (tmp_path / "model.py").write_text("")
    recipe = ClusteredRecipe(
        name="x",
        method="fedavg",
        model=MLP((1, 2, 2), 2),
        num_rounds=1,
        min_clients=1,
        train_script=str(tmp_path / "client.py") if absolute else "client.py",
        train_args="--lr 0.1",
        launch_external_process=external,
    )
    recipe.export(str(tmp_path / "jobs"))
    app = tmp_path / "jobs" / "x" / "app"
    names = {path.name for path in (app / "custom").iterdir()}
    assert {"client.py", "model.py", LAUNCHER.name} <= names
    (executor,) = json.loads((app / "config" / "config_fed_client.json").read_text())["executors"]
    given = executor["executor"]["args"]
    if external:
        assert given["command"][-4:] == [f"custom/{LAUNCHER.name}", "client.py", "--lr", "0.1"]
    else:
        assert (given["task_script_path"], given["task_script_args"]) == (LAUNCHER.name, "client.py --lr 0.1")
