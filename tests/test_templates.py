# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The job templates are what the generator writes, and hang together."""

import importlib.util
import json
from pathlib import Path

import pytest

from cfl_flare.core.config import unmarked
from cfl_flare.flare.compatibility import SHARED, check_settings
from cfl_flare.methods import build_method

FOLDER = Path(__file__).parents[1] / "job_templates"
spec = importlib.util.spec_from_file_location("generate", FOLDER / "generate.py")
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)
NAMES = list(generate.TEMPLATES)


def test_templates_are_current(tmp_path):
    generate.main(tmp_path)
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    there = {path.relative_to(FOLDER): path.read_bytes() for path in FOLDER.glob("cfl_*/*")}
    assert written.keys() == there.keys()
    stale = [str(path) for path, content in written.items() if content != there[path]]
    assert not stale, "run python job_templates/generate.py"


def config(name: str, side: str) -> dict:
    return json.loads((FOLDER / name / f"config_fed_{side}.conf").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_the_two_files_of_a_template_agree(name):
    controller, aggregator, persistor = (c["args"] for c in generate.components(config(name, "server")))
    (executor,) = (c["args"] for c in generate.components(config(name, "client")))
    server = {**controller, **controller["facts"], **aggregator, **persistor}
    assert set(SHARED) <= server.keys() & executor.keys()
    check_settings(server, executor, "site-1")
    assert build_method(unmarked(executor["method"]))
    assert config(name, "server")["components"][2]["id"] == "aggregator"  # the long names of info.md
    assert config(name, "server")["model_class"] == config(name, "client")["model_class"]


@pytest.mark.parametrize("name", NAMES)
def test_a_key_means_one_thing(name):
    """``key=value`` sets all keys of that name in a file: they must be of one kind."""
    for side in ("server", "client"):
        seen: dict = {}
        for key, value in generate.leaves(config(name, side)):
            assert seen.setdefault(key, value) == value, key


@pytest.mark.parametrize("name", NAMES)
def test_what_flare_lists_of_a_template(name):
    info = json.loads((FOLDER / name / "info.conf").read_text())
    assert len(info["description"]) <= 60 and len(name) <= 20  # what it shows
    text = (FOLDER / name / "info.md").read_text()
    for key in ("num_rounds=20", "min_clients=2", "lr=0.001", "input_shape=[1, 28, 28]", "data_class="):
        assert f"| `{key}" in text
    assert ("| `k=" in text) == (name != "cfl_fedavg_pt")
