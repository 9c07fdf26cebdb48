# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The two job templates that are tracked are what the command writes, and all that it writes hang together."""

import json
from pathlib import Path

import pytest

from cfl_flare.cli import export as templates
from cfl_flare.cli import main
from cfl_flare.core.config import unmarked
from cfl_flare.flare.policy import SHARED, check_same_settings
from cfl_flare.methods import build_method

TRACKED = Path(__file__).parents[1] / "job_templates"
NAMES = list(templates.TEMPLATES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the command writes."""
    out = tmp_path_factory.mktemp("made") / "templates"
    assert main(["templates", str(out)]) == 0
    return out


def test_templates_are_current(folder):
    written = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    there = {str(path.relative_to(TRACKED)): path.read_bytes() for path in TRACKED.rglob("*") if path.is_file()}
    assert {name.split("/")[0] for name in there} == {"cfl_fedavg_pt", "cfl_wecfl_pt"} < set(NAMES)
    files = ("info.conf", "info.md", "meta.conf", templates.SERVER, templates.CLIENT)
    assert written.keys() == {f"{name}/{file}" for name in NAMES for file in files} > there.keys()
    stale = [name for name, content in there.items() if content != written[name]]
    assert not stale, "run cfl-flare templates, and copy them"


def config(folder: Path, name: str, side: str) -> dict:
    return json.loads((folder / name / f"config_fed_{side}.conf").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_the_two_files_of_a_template_agree(folder, name):
    controller, aggregator, persistor = (c["args"] for c in templates.components(config(folder, name, "server")))
    (executor,) = (c["args"] for c in templates.components(config(folder, name, "client")))
    server = {**controller, **controller["facts"], **aggregator, **persistor}
    assert set(SHARED) <= server.keys() & executor.keys()
    check_same_settings(server, executor, "site-1")
    assert build_method(unmarked(executor["method"]))
    assert config(folder, name, "server")["components"][2]["id"] == "aggregator"  # the long names of info.md
    assert config(folder, name, "server")["model_class"] == config(folder, name, "client")["model_class"]


@pytest.mark.parametrize("name", NAMES)
def test_a_key_means_one_thing(folder, name):
    """``key=value`` sets all keys of that name in a file: they must be of one kind."""
    for side in ("server", "client"):
        seen: dict = {}
        for key, value in templates.leaves(config(folder, name, side)):
            assert seen.setdefault(key, value) == value, key


@pytest.mark.parametrize("name", NAMES)
def test_what_flare_lists_of_a_template(folder, name):
    info = json.loads((folder / name / "info.conf").read_text())
    assert len(info["description"]) <= 60 and len(name) <= 20  # what it shows
    text = (folder / name / "info.md").read_text()
    for key in ("num_rounds=20", "min_clients=2", "lr=0.001", "input_shape=[1, 28, 28]", "data_class="):
        assert f"| `{key}" in text
    assert ("| `k=" in text) == (name != "cfl_fedavg_pt")
