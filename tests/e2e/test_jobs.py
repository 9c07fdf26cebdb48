# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Job folders, from a template or by ``cfl-flare export``, in the simulator of FLARE's own command."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cfl_flare import __version__
from cfl_flare.cli import main
from cfl_flare.data import Digits
from cfl_flare.flare.allowed import CLASSES
from cfl_flare.flare.job.recipe import allow
from cfl_flare.results.run_dir import Run, load_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def nvflare(tmp_path):
    """FLARE's command, with a home of its own; every site has the same data."""
    train, test = Digits().load()
    arrays = {"train_images": train.x[:, 0], "train_labels": train.y, "test_images": test.x[:, 0]}
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "site.npz", **arrays, test_labels=test.y)
    places = {"HOME": tmp_path, "CFL_DATA": tmp_path / "data" / "site.npz", "CFL_STATE_ROOT": tmp_path / "state"}
    command = [sys.executable, "-c", "from nvflare.cli import main; main()"]

    def run(*words: str) -> str:
        env = {**os.environ, **{key: str(place) for key, place in places.items()}, "PYTHONPATH": str(ROOT)}
        options = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True, "timeout": 300}
        done = subprocess.run([*command, *words], **options)
        return done.stdout + done.stderr

    return run


def results(workspace: Path) -> Run:
    return load_run(next(workspace.rglob("summary.json")).parent)


def test_a_template_becomes_a_job(nvflare, tmp_path):
    assert main(["templates", str(tmp_path / "templates")]) == 0
    nvflare("config", "-jt", str(tmp_path / "templates"))
    assert "cfl_ifca_pt" in nvflare("job", "list_templates")
    both = ["k=2", "lr=0.05", "momentum=0e0", "local_epochs=1", "lr_milestones=[2]", "input_shape=[1,8,8]"]
    both += ["seed=4", "run_name=ward"]
    server = ["-f", "config_fed_server.conf", "num_rounds=3", "evaluate_every=3", *both]
    client = ["-f", "config_fed_client.conf", "evaluate_trained=true", *both]
    meta = ["-f", "meta.conf", "min_clients=1"]
    nvflare("job", "create", "-w", "cfl_ifca_pt", "-j", str(tmp_path / "job"), "-force", *server, *client, *meta)
    said = nvflare("simulator", "job", "-w", "flare", "-n", "2", "-t", "2")
    assert (tmp_path / "flare").is_dir(), said
    run = results(tmp_path / "flare")
    assert run.summary["rounds"] == 3
    assert run.summary["name"] == "ward" and (tmp_path / "state" / "ward").is_dir()
    assert run.summary["method"]["method"] == "ifca" and run.summary["method"]["k"] == 2
    trained = run.summary["training"]
    assert [trained[key] for key in ("lr", "momentum", "local_epochs", "lr_milestones")] == [0.05, 0, 1, [2]]
    assert run.summary["seed"] == run.summary["data"]["seed"] == 4
    assert {p["site"]: p["name"] for p in run.summary["participants"]} == {"site-1": "site-1", "site-2": "site-2"}
    assert run.rounds[-1]["served_accuracy"] > 0.8
    assert "min_clients = 1\n" in (tmp_path / "job" / "meta.conf").read_text()


def test_a_setting_that_was_changed_in_one_file_only_stops_the_job(nvflare, tmp_path):
    assert main(["templates", str(tmp_path)]) == 0
    template = str(tmp_path / "cfl_cam_pt")
    nvflare("job", "create", "-w", template, "-j", "job", "-force", "-f", "config_fed_server.conf", "k=4")
    nvflare("simulator", "job", "-w", "flare", "-n", "2", "-t", "2")
    log, own = ((tmp_path / "flare" / place / "log.txt").read_text() for place in ("server", "site-1"))
    assert "no site can take part: site-1: settings" in log and "Traceback" not in log
    assert "job: method.base.k = 4 at the server, 3 at site-1; set it to" in own


def test_an_exported_job_uses_the_installed_package(nvflare, tmp_path):
    model = "mlp:input_shape=[1,8,8],num_classes=10"
    export = ["export", "--out", str(tmp_path), "--name", "ward", "--model", model, "--rounds", "2", "--method"]
    assert main([*export, "wecfl:k=2", "--penalty", "contrastive:scope=head"]) == 0
    assert not (tmp_path / "ward" / "app" / "custom").exists()
    nvflare("simulator", "ward", "-w", "refused", "-n", "2", "-t", "2")
    assert not list((tmp_path / "refused").rglob("summary.json"))
    allow(tmp_path / "flare" / "local" / "resources.json", [*CLASSES])
    nvflare("simulator", "ward", "-w", "flare", "-n", "2", "-t", "2")
    run = results(tmp_path / "flare")
    assert (run.summary["rounds"], run.summary["method"]["k"], len(run.summary["participants"])) == (2, 2, 2)


@pytest.mark.parametrize("side, place", [("server", "the server"), ("client", "site-1")])
def test_an_installed_copy_that_is_not_the_job_s_refuses_it(side, place, nvflare, tmp_path):
    assert main(["export", "--out", str(tmp_path), "--data", "digits", "--byoc", "--method", "fedavg"]) == 0
    app = tmp_path / "clustered" / "app"
    for path in (app / "custom" / "cfl_flare" / "__init__.py", app / "config" / f"config_fed_{side}.json"):
        path.write_text(path.read_text().replace(f'"{__version__}"', '"99.9.0"'))
    nvflare("simulator", "clustered", "-w", "flare", "-n", "2", "-t", "2")
    log, own = ((tmp_path / "flare" / place / "log.txt").read_text() for place in ("server", "site-1"))
    assert side == "server" or "no site can take part: site-1: software" in log
    assert "Traceback" not in log
    log = log if side == "server" else own
    assert f"the job was made by cfl_flare 99.9.0, but {place} runs {__version__}: the first two numbers must" in log
    assert f"the job carries cfl_flare, but the copy that is installed here runs: {__version__} in " in log
    assert not list((tmp_path / "flare").rglob("summary.json"))
