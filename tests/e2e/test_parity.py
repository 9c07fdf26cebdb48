# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of FLARE's FedAvgRecipe in real jobs, with cfl_flare's own training and with a script."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.utils import set_per_site_config

from cfl_flare.core.arrays import load_arrays
from cfl_flare.data import Digits
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.kit import allow
from cfl_flare.models import MLP
from cfl_flare.results.bootstrap import paired_difference
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.served import load_model
from tests.e2e.plugin import Series

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SCRIPT = """
import argparse

import numpy as np
import nvflare.client as flare
import torch
from cfl_flare.models import MLP
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

parser = argparse.ArgumentParser()
parser.add_argument("--turn", type=int)
turn = parser.parse_args().turn
flare.init()
digits = load_digits()
x = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
y = torch.tensor((digits.target + turn) % 10)
model = MLP((1, 8, 8), 10)
while flare.is_running():
    model.load_state_dict(flare.receive().params)
    accuracy = float((model(x[900:]).argmax(1) == y[900:]).float().mean())
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"accuracy": 100 * accuracy}))
        continue
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i in range(0, 900, 30):
        optimizer.zero_grad()
        cross_entropy(model(x[i : i + 30]), y[i : i + 30]).backward()
        optimizer.step()
    steps = {"NUM_STEPS_CURRENT_ROUND": 30}
    flare.send(flare.FLModel(params=model.state_dict(), metrics={"accuracy": 100 * accuracy}, meta=steps))
"""


def cross_site(folder: Path) -> list[dict[str, str]]:
    with (folder / "cross_site.csv").open(newline="") as f:
        return list(csv.DictReader(f))


def test_a_job_stops_early_and_measures_every_model_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    recipe = ClusteredRecipe(
        name="job",
        method="wecfl:k=2",
        model=MLP((1, 8, 8), 10),
        data=Digits(),
        participants=4,
        partition={"partition": "label_permutation", "groups": 2},
        training={"lr": 0.05, "bootstrap": 50},
        num_rounds=9,
        min_clients=2,
        stop_cond="accuracy > 0.1",
        cross_site_evaluation=True,
        server_memory_gc_rounds=1,
        client_memory_gc_rounds=1,
    )
    recipe._job.to_server(Series(str(tmp_path / "series.jsonl")), "receiver")  # as add_experiment_tracking does
    allow(tmp_path / "job" / "local" / "resources.json", ["tests.e2e.plugin."])
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path)))
    folder = tmp_path / "job" / "server" / "simulate_job" / "cfl"
    run = load_run(folder)
    assert "accuracy > 0.1 in round" in run.summary["stopped"]
    assert run.summary["rounds"] == len(run.rounds) < 9
    assert load_model(folder / "best", f"cluster-{run.summary['participants'][0]['cluster']}")
    lines = cross_site(folder)
    assert len(lines) == 4 * 2 and (folder / "cross_site.png").is_file()
    own = {p["name"]: p for p in run.summary["participants"]}
    for line in lines:
        if line["model"] == f"cluster-{own[line['participant']]['cluster']}":
            assert float(line["accuracy"]) == pytest.approx(own[line["participant"]]["served_accuracy"])
        low, high = own[line["participant"]]["intervals"]["served_accuracy"]
        assert low <= own[line["participant"]]["served_accuracy"] <= high
    apart = paired_difference(run, run, "accuracy")
    assert apart.mean == apart.low == apart.high == 0 and len(apart.by_participant) == 4
    assert len(list(tmp_path.rglob("served/*.safetensors"))) == 4  # sites keep what they serve, as at any end
    sent = [json.loads(line) for line in (tmp_path / "series.jsonl").read_text().splitlines()]
    assert {"served/accuracy", "served/loss", "cluster-0/served/accuracy", "cluster-1/size"} <= {
        line["tag"] for line in sent
    }
    accuracy = {line["step"]: line["value"] for line in sent if line["tag"] == "served/accuracy"}
    assert accuracy == {r["round"]: r["served_accuracy"] for r in run.rounds}


def test_scripts_start_from_a_checkpoint_with_arguments_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("client.py").write_text(SCRIPT)
    start = MLP((1, 8, 8), 10).state_dict()
    torch.save(start, "start.pt")
    recipe = ClusteredRecipe(
        name="job",
        method="wecfl:k=2",
        model=MLP((1, 8, 8), 10),
        train_script="client.py",
        num_rounds=2,
        min_clients=2,
        initial_ckpt="start.pt",
        exclude_vars="head.bias",
        cross_site_evaluation=True,
    )
    set_per_site_config(recipe, {f"site-{i}": {"train_args": f"--turn {5 * (i % 2)}"} for i in (1, 2)})
    recipe.execute(SimEnv(clients=["site-1", "site-2"], workspace_root=str(tmp_path / "flare")))
    folder = tmp_path / "flare" / "job" / "server" / "simulate_job" / "cfl"
    one, other = (p["cluster"] for p in load_run(folder).summary["participants"])
    assert one != other
    found = {(line["participant"], line["model"]): float(line["accuracy"]) for line in cross_site(folder)}
    assert found["site-1", f"cluster-{one}"] > 50 > found["site-1", f"cluster-{other}"]
    assert found["site-2", f"cluster-{other}"] > 50 > found["site-2", f"cluster-{one}"]
    left, _ = load_arrays(folder / "clusters" / "cluster-0.safetensors")
    np.testing.assert_array_equal(left["head.bias"], start["head.bias"])
    assert np.abs(left["head.weight"] - start["head.weight"].numpy()).max() > 0
