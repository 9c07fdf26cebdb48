# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Experiment tracking with MLflow and Weights & Biases: what is in their stores after a job."""

from pathlib import Path

import pytest
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.utils import add_experiment_tracking

from cfl_flare.data import Digits
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.models import Logistic
from cfl_flare.results.run_dir import load_run

pytestmark = pytest.mark.slow


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
