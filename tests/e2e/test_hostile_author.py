# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of an author without code, at kits that are prepared as documented; and one that leaves a hospital out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from cfl_flare.cli import main
from cfl_flare.data import SiteData
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.models import Logistic
from tests.e2e.deployment import SERVER, TRUSTING, Deployment, deployed, find_blood_images, write_hospitals

pytestmark = pytest.mark.slow

# ---- What gets in, and what comes out ----


PASSWORD = "hunter2-of-the-archive"
CLEAN = "hospital-1"  # it is started in a clean environment, as the guide says
Configs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def author_trial(tmp_path_factory) -> Iterator[Deployment]:
    """A deployment whose processes have a password in their environment, but for one."""
    source = find_blood_images()
    folder = tmp_path_factory.mktemp("hostile")
    deployment = Deployment(folder, write_hospitals(source, folder / "data"))
    for name in (SERVER, *deployment.sites):
        deployment.settings[name] = {"DB_PASSWORD": PASSWORD}
    needed = ("PATH", "HOME", "PYTHONPATH", "CFL_DATA", "CFL_STATE_ROOT")
    clean = [f"{key}={value}" for key, value in deployment.env(CLEAN).items() if key in needed]
    try:
        deployment.start(SERVER, *(site for site in deployment.sites if site != CLEAN))
        deployment.start(CLEAN, inside=("env", "-i", *clean))
        deployment.until_connected()
        yield deployment
    finally:
        deployment.stop()


def export_changed_job(
    trial: Deployment, name: str, change: Callable[[Configs], object] = lambda configs: None
) -> Path:
    """An exported job, changed by hand."""
    settings = {"num_rounds": 1, "min_clients": 3, "task_timeout": 120, **TRUSTING}
    recipe = ClusteredRecipe(name=name, method="fedavg", model=Logistic((3, 14, 14), 8), data=SiteData(), **settings)
    recipe.export(str(trial.folder / "jobs"))
    folder = trial.folder / "jobs" / name
    files = {side: folder / "app" / "config" / f"config_fed_{side}.json" for side in ("client", "server")}
    configs = {side: json.loads(file.read_text()) for side, file in files.items()}
    change(configs)
    for side, file in files.items():
        file.write_text(json.dumps(configs[side]))
    return folder


def outcome(trial: Deployment, folder: Path) -> tuple[str, str, str]:
    """How a job ended, what its author reads of the reason, and all that the author can download."""
    with trial.session() as session:
        job_id = session.submit_job(str(folder))
        status = str(session.wait_for_job(job_id, timeout=240, poll_interval=0.5)["status"])
        meta = session.get_job_meta(job_id)
        results = Path(session.download_job_result(job_id))
    files = [path for path in results.rglob("*") if path.is_file()]
    held = "".join(path.name + path.read_bytes().decode("latin-1") for path in files)
    shutil.rmtree(results)
    return status, json.dumps(meta.get("job_deploy_detail")), held


def component(path: str, **args: Any) -> dict[str, Any]:
    return {"id": path.rpartition(".")[2].lower(), "path": path, "args": args}


def test_no_variable_of_the_environment_reaches_the_author(author_trial):
    def named(configs: Configs, name: str) -> None:
        configs["server"]["components"][-1]["args"]["run_name"] = name
        configs["client"]["executors"][0]["executor"]["args"]["run_name"] = name

    def direct(configs: Configs) -> None:
        named(configs, "{$DB_PASSWORD}")

    def composed(configs: Configs) -> None:
        for config in configs.values():
            config |= {"A": 123, "B": 36, "C": 125}
        named(configs, "{A:c}{B:c}DB_PASSWORD{C:c}")

    for name, change in (("direct", direct), ("composed", composed)):
        status, reason, held = outcome(author_trial, export_changed_job(author_trial, name, change))
        assert PASSWORD not in held and PASSWORD not in reason, (name, status)
        assert status == "FINISHED:FAILED_TO_RUN" and "refers to a variable" in reason
    log = (author_trial.kits / SERVER / "log.txt").read_text()
    assert "job refused: config_fed_client.json" in log and PASSWORD not in log
    meta = export_changed_job(author_trial, "hocon") / "meta.json"
    content = json.loads(meta.read_text())
    meta.with_suffix(".conf").write_text(json.dumps(content)[:-1].replace('"hocon"', "${DB_PASSWORD}") + "}")
    meta.unlink()
    with author_trial.session() as session, pytest.raises(Exception, match="is replaced when it is read"):
        raise AssertionError(session.get_job_meta(session.submit_job(str(meta.parent)))["name"])


def test_a_job_s_components_call_nobody_and_read_no_file(author_trial):
    calls: list[str] = []

    class Author(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            calls.append(self.path)
            self.send_error(404)

        do_POST = do_GET

    listener = HTTPServer(("localhost", 0), Author)
    Thread(target=listener.serve_forever, daemon=True).start()
    address = f"http://localhost:{listener.server_port}"
    tracker = "nvflare.app_opt.tracking.mlflow.mlflow_receiver.MLflowReceiver"
    secret = author_trial.folder / "patients.npy"
    np.save(secret, np.frombuffer(PASSWORD.encode(), np.uint8))
    columns = author_trial.folder / "private.json"
    columns.write_text(json.dumps({"columns": [{"column": "hiv", "kind": "number"}]}))

    def at_sites(configs: Configs) -> None:
        configs["client"]["components"].append(component(tracker, tracking_uri=address))

    def inside(configs: Configs) -> None:
        args = configs["client"]["executors"][0]["executor"]["args"]
        args["made_by"] = {"path": tracker, "args": {"tracking_uri": address}}

    def at_server(configs: Configs) -> None:
        configs["server"]["components"].append(component(tracker, tracking_uri=address))

    def warnings(configs: Configs) -> None:
        configs["client"]["components"][0]["args"]["events_to_convert"].append("_warning_log_available")

    def locator(configs: Configs) -> None:
        located = component("nvflare.app_common.np.np_model_locator.NPModelLocator", model_name={"x": str(secret)})
        configs["server"]["components"].append(located)
        workflow = "nvflare.app_common.workflows.cross_site_model_eval.CrossSiteModelEval"
        args = {"model_locator_id": located["id"], "submit_model_task_name": "", "validation_timeout": 5}
        configs["server"]["workflows"].append(component(workflow, **args))

    def source(configs: Configs) -> None:
        configs["client"]["components"].append(component("cfl_flare.data.sources.SiteData", columns=str(columns)))

    def source_at_server(configs: Configs) -> None:
        configs["server"]["components"].append(component("cfl_flare.data.sources.SiteData", columns=str(columns)))

    ended = {}
    attacks = (at_sites, inside, at_server, warnings, locator, source, source_at_server)
    for attack in attacks:
        status, reason, held = outcome(author_trial, export_changed_job(author_trial, attack.__name__, attack))
        ended[attack.__name__] = status, reason, PASSWORD in held, len(calls)
    listener.shutdown()
    for name, (status, reason, leaked, called) in ended.items():
        assert not leaked and not called, ended
        assert status.startswith("F") and status != "FINISHED:COMPLETED", ended
        if name not in ("at_server", "locator"):  # of FLARE's classes, the allow-list decides
            assert (status == "FINISHED:FAILED_TO_RUN" and "sites take" in reason) or "is no component" in reason, ended


def test_a_site_refuses_by_itself_what_its_server_takes(author_trial):
    """The server never sees the sites' part where a job has one app for it and another for them."""

    def changed(configs: Configs) -> None:
        configs["client"]["components"].append(component("cfl_flare.data.sources.Digits"))
        configs["client"]["executors"][0]["executor"]["args"]["device"] = "{$DB_PASSWORD}"

    folder = export_changed_job(author_trial, "apart", changed)
    shutil.copytree(folder / "app", folder / "app_sites")
    (folder / "app" / "config" / "config_fed_client.json").unlink()
    (folder / "app_sites" / "config" / "config_fed_server.json").unlink()
    meta = json.loads((folder / "meta.json").read_text())
    apps = {"app": {"sites": ["server"]}, "app_sites": {"sites": author_trial.sites}}
    (folder / "meta.json").write_text(json.dumps({**meta, "deploy_map": apps}))
    status, reason, held = outcome(author_trial, folder)
    assert status == "FINISHED:FAILED_TO_RUN" and PASSWORD not in reason + held
    for site in author_trial.sites:
        assert f"{site}: " in reason and "job refused: " in (author_trial.kits / site / "log.txt").read_text()
        assert PASSWORD not in (author_trial.kits / site / "log.txt").read_text()


def test_an_honest_job_and_one_with_tensorboard_run_as_before(author_trial):
    def tracked(configs: Configs) -> None:
        configs["server"]["components"].append(component("nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver"))

    for name, change in (("honest", lambda configs: None), ("tracked", tracked)):
        status, reason, held = outcome(author_trial, export_changed_job(author_trial, name, change))
        assert status == "FINISHED:COMPLETED", (status, reason)
        assert "served_accuracy" in held and ("tfevents" in held or name == "honest")


# ---- A floor of three, and a job that leaves one of four hospitals out ----


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> Iterator[Deployment]:
    source = find_blood_images()
    folder = tmp_path_factory.mktemp("four")
    yield from deployed(folder, write_hospitals(source, folder / "data", count=4, train=60, test=40))


def submit_to_sites(trial: Deployment, name: str, sites: list[str], seed: int = 0) -> tuple[str, Path]:
    """How a job ended that its author sends to these sites, and the server's run directory."""
    model = Logistic((3, 14, 14), 8)
    common = {"num_rounds": 1, "min_clients": len(sites), "training": {"lr": 0.05}, "task_timeout": 240, "seed": seed}
    recipe = ClusteredRecipe(name=name, method="fedavg", model=model, data=SiteData(), **common)
    recipe.export(str(trial.folder / "jobs"))
    meta = trial.folder / "jobs" / name / "meta.json"
    content = json.loads(meta.read_text())
    (app,) = content["deploy_map"]
    meta.write_text(json.dumps({**content, "deploy_map": {app: ["server", *sites]}}))
    return trial.run(trial.folder / "jobs" / name)


def operator(trial: Deployment, site: str, *words: str) -> str:
    """What a command prints that an operator types beside the kit."""
    command = [sys.executable, "-c", "import sys; from cfl_flare.cli import main; sys.exit(main())", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=trial.env(site), cwd=trial.kits / site)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_job_without_one_of_the_sites_runs_once_the_operators_allow_it(four):
    for site in four.sites:
        assert main(["site", "prepare", str(four.kits / site), "--no-keep-logs", "--min-sites-per-cluster", "3"]) == 0
    ended, _ = submit_to_sites(four, "heart", four.sites)
    assert ended == "FINISHED:COMPLETED"
    left = four.sites[:3]
    ended, results = submit_to_sites(four, "lungs", left)
    assert ended != "FINISHED:COMPLETED" and not list((results / "cfl").glob("**/*.safetensors"))
    said = (results / "log.txt").read_text()
    assert "difference: its earlier jobs had almost the same sites" in said
    assert "hospital-4" not in said  # a site that is not in the job, and no site of it says who it was
    for site in left:
        log = "".join(path.read_text() for path in (four.kits / site).glob("*/log.txt"))
        (command,) = set(re.findall(r"the model of hospital-4 alone follows .*run 'cfl-flare (site allow \S+)'", log))
        assert "lungs" in operator(four, site, "site", "runs") and "allowed" in operator(four, site, *command.split())
        assert "heart" in operator(four, site, "site", "runs")
    ended, _ = submit_to_sites(four, "lungs", left, seed=1)
    assert ended == "FINISHED:COMPLETED"
    assert (four.state_root(SERVER) / "lungs").is_dir()
