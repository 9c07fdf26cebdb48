# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Job folders by FLARE's own command, models that are not one class, tasks and tracking, in the simulator."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.utils import add_experiment_tracking
from torch import nn

from cfl_flare import (
    ClusteredRecipe,
    DataConfig,
    RunPlan,
    ServerSettings,
    Table,
    TrainSettings,
    __version__,
    load_model,
    run_loop,
)
from cfl_flare.cli import main
from cfl_flare.data import Digits
from cfl_flare.flare.allowed import CLASSES
from cfl_flare.flare.job.recipe import allow
from cfl_flare.methods import build_method
from cfl_flare.models import MLP, Logistic
from cfl_flare.results.run_dir import Run, find_runs, load_run
from tests.e2e.deployment import cache_home
from tests.e2e.plugin import Hinge, Parity

pytestmark = pytest.mark.slow

# ---- Job folders, from a template or by ``cfl-flare export`` ----


ROOT = Path(__file__).parents[2]


@pytest.fixture
def nvflare(tmp_path):
    """FLARE's command, with a home of its own; every site has the same data."""
    train, test = Digits().load()
    arrays = {"train_images": train.x[:, 0], "train_labels": train.y, "test_images": test.x[:, 0]}
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "site.npz", **arrays, test_labels=test.y)
    places = {"HOME": tmp_path, "CFL_DATA": tmp_path / "data" / "site.npz", "CFL_STATE_ROOT": tmp_path / "state"}
    places |= {"XDG_CACHE_HOME": cache_home()}
    command = [sys.executable, "-c", "from nvflare.cli import main; main()"]

    def run(*words: str) -> str:
        env = {**os.environ, **{key: str(place) for key, place in places.items()}, "PYTHONPATH": str(ROOT)}
        options = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True, "timeout": 300}
        done = subprocess.run([*command, *words], **options)
        return done.stdout + done.stderr

    return run


def load_only_run(workspace: Path) -> Run:
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
    run = load_only_run(tmp_path / "flare")
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
    run = load_only_run(tmp_path / "flare")
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


# ---- Adapters sent as tensors, and a sequence of modules ----


MODEL = """
    import torch
    from torch import nn


    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(3, 3).requires_grad_(False)
            nn.init.eye_(self.base.weight)
            self.adapter = nn.Linear(3, 2, bias=False)
            self.tied = self.adapter

        def forward(self, x):
            return self.adapter(self.base(x))

        def state_dict(self, *args, **kwargs):
            return {"a.weight": self.adapter.weight.detach(), "b.weight": self.tied.weight.detach()}

        def load_state_dict(self, state, strict=True, assign=False):
            assert state.keys() == {"a.weight", "b.weight"}
            self.adapter.weight.data.copy_(state["a.weight"])
"""
SCRIPT = """
    import nvflare.client as flare
    import torch
    from adapted import Adapted

    flare.init()
    sign = 1 if flare.get_site_name() == "site-1" else -1
    model = Adapted()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        assert all(isinstance(value, torch.Tensor) for value in received.params.values())
        model.load_state_dict(received.params)
        with torch.no_grad():
            model.adapter.weight.add_(sign)
        state = {name: value.bfloat16() for name, value in model.state_dict().items()}
        flare.send(flare.FLModel(params=state, metrics={"accuracy": 0.5}, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
"""


def test_adapters_alone_travel_as_tensors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "adapted.py").write_text(textwrap.dedent(MODEL))
    (tmp_path / "client.py").write_text(textwrap.dedent(SCRIPT))
    from adapted import Adapted  # type: ignore[import-not-found]

    recipe = ClusteredRecipe(
        name="adapters",
        method="wecfl:k=2",
        model=Adapted(),
        train_script="client.py",
        server_expected_format="pytorch",
        num_rounds=2,
        min_clients=2,
    )
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare")))
    (run,) = find_runs(tmp_path / "flare")
    assert [r["trained"] for r in run.rounds[:2]] == [["site-1", "site-2"]] * 2
    one, other = (load_model(run.folder, f"cluster-{k}", Adapted()).adapter.weight.detach() for k in range(2))
    assert ((one - other).abs() - 4).abs().max() < 0.1  # two rounds of +1 and of -1; bfloat16 has three digits


def test_a_sequence_of_modules_is_built_at_the_sites(tmp_path):
    recipe = ClusteredRecipe(
        name="sequence",
        method="fedavg",
        model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        data=Digits(),
        participants=2,
        partition="iid",
        num_rounds=1,
        min_clients=1,
    )
    recipe.execute(SimEnv(num_clients=1, workspace_root=str(tmp_path / "flare")))
    (run,) = find_runs(tmp_path / "flare")
    assert len(run.rounds[0]["trained"]) == 2 and not run.rounds[0]["failed"]


# ---- Tasks: the same numbers as without FLARE ----


PATIENTS = 240


def patients(path):
    """A table of patients whose hazard depends on two of three columns, and from which hospital they are."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(PATIENTS, 3))
    time = rng.exponential(np.exp(-x @ [1.0, -0.5, 0.0]))
    rows = [
        f"{a:.3f},{b:.3f},{c:.3f},{max(t, 1e-3):.3f},{int(i % 3 > 0)},ward/{i % 4}"
        for i, ((a, b, c), t) in enumerate(zip(x, time))
    ]
    path.write_text("\n".join(["a,b,c,days,died,hospital", *rows]))
    return Table(str(path), label="days", event="died", key="hospital")


@pytest.mark.parametrize("kind", ["survival", "own"])
def test_a_task_has_the_same_numbers_through_flare(kind, tmp_path):
    if kind == "survival":
        model, source, partition = Logistic((3,), 1), patients(tmp_path / "ward.csv"), "natural"
        training = TrainSettings(lr=0.1, local_steps=3, task="survival:ties=breslow")
    else:
        model, source, partition = MLP((1, 8, 8), 1, hidden=[8]), Parity(), "iid"
        more = {"measures": ("auroc", "ece"), "augment": ("RandomRotation:degrees=10",)}
        training = TrainSettings(lr=0.1, local_steps=3, task=Hinge(margin=2.0), **more)
    recipe = ClusteredRecipe(
        name="job", method="ifca:k=2", model=model, data=source, training=training,
        participants=4, partition=partition, num_rounds=2, min_clients=2,
    )  # fmt: skip
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare")))
    (through,) = find_runs(tmp_path / "flare" / "job" / "server")
    plan = RunPlan(
        method=build_method({"method": "ifca", "k": 2}), model=model, reader=source, training=training,
        data=DataConfig(4, partition), server=ServerSettings(2),
    )  # fmt: skip
    run_loop(plan, tmp_path / "loop")
    alone = load_run(tmp_path / "loop")
    measures = {"c_index", "loss"} if kind == "survival" else {"accuracy", "auroc", "loss", "ece"}
    own = [{k: v for k, v in one.items() if k.startswith("served_")} for one in through.summary["participants"]]
    assert own == [{k: v for k, v in one.items() if k.startswith("served_")} for one in alone.summary["participants"]]
    assert own[0].keys() == {f"served_{name}" for name in measures}
    names = [f"ward_{i}" if kind == "survival" else f"p{i}" for i in range(4)]
    for run in (through, alone):
        assert [one["name"] for one in run.summary["participants"]] == names
    for slot in ("cluster-0", "cluster-1"):
        pair = [load_model(run.folder, slot).state_dict() for run in (through, alone)]
        assert all((pair[0][name] == pair[1][name]).all() for name in pair[0])


# ---- Experiment tracking with MLflow and Weights & Biases ----


def test_the_clusters_series_are_a_run_of_the_server(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow's store is looked at")
    pytest.importorskip("wandb", reason="so is that of Weights & Biases")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    recipe = ClusteredRecipe(
        name="job",
        method="wecfl:k=2",
        model=Logistic((1, 8, 8), 10),
        data=Digits(),
        participants=2,
        partition={"partition": "label_permutation", "groups": 2},
        num_rounds=2,
        min_clients=2,
    )
    add_experiment_tracking(recipe, "mlflow")
    told = {"name": "own", "project": "digits", "group": "all", "job_type": "train", "dir": str(tmp_path)}
    add_experiment_tracking(recipe, "wandb", {"wandb_args": told})
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path)))
    folder = tmp_path / "job" / "server" / "simulate_job"
    rounds = load_run(folder / "cfl").rounds

    store = mlflow.tracking.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = store.search_experiments(filter_string="name = 'job-experiment'")
    runs = store.search_runs([experiment.experiment_id])
    assert len(runs) == 3  # two of the sites, opened by FLARE
    (own,) = [run for run in runs if run.data.metrics]
    assert own.info.run_name.startswith("simulator_server-") and own.info.status == "FINISHED"
    for name in ("accuracy", "loss"):
        history = store.get_metric_history(own.info.run_id, f"served/{name}")
        assert {point.step: point.value for point in history} == {r["round"]: r[f"served_{name}"] for r in rounds}
    assert {"cluster-0/served/accuracy", "cluster-1/size", "clustering/ari"} <= own.data.metrics.keys()

    written = [path.read_bytes() for path in tmp_path.glob("wandb/offline-run-*/*.wandb")]
    assert len(written) == 3
    (own,) = [content for content in written if b"cluster-1/served/accuracy" in content]
    assert b"simulator_server-" in own
