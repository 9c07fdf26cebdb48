# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Runs and studies through FLARE's simulator that are those of the loop, and a study at provisioned hospitals."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from markupsafe import escape
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.utils import set_per_site_config

from cfl_flare.cli import main
from cfl_flare.core.arrays import load_arrays
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.study.candidates import StudySettings, first_candidates
from cfl_flare.engine.study.halving import Study
from cfl_flare.engine.study.in_process import InProcess
from cfl_flare.flare import ClusteredRecipe, StudyRecipe
from cfl_flare.flare.kit import allow
from cfl_flare.methods import build_method
from cfl_flare.models import MLP
from cfl_flare.results.bootstrap import paired_difference
from cfl_flare.results.model_file import read_model
from cfl_flare.results.run_dir import Run, load_run
from cfl_flare.results.served import load_model
from cfl_flare.results.study import load_study
from cfl_flare.training.settings import TrainSettings
from tests.e2e.plugin import Series
from tests.helpers.kits import TRAINING, of_sites, plan_digits_run
from tests.helpers.loop import run_loop
from tests.helpers.play import DATA, MODEL
from tests.helpers.served import check_reported

pytestmark = pytest.mark.slow

# ---- A run through FLARE's simulator, and the same in the loop ----


def both_ways(
    folder: Path,
    method: dict[str, Any],
    data: DataConfig,
    training: dict[str, Any],
    server: dict[str, Any],
    **private: Any,
) -> tuple[Path, Path]:
    """The results of the loop, and those of two sites of the simulator, whose workspace is ``folder/flare``."""
    dealt = {"participants": data.participants, "partition": data.partition}
    recipe = ClusteredRecipe(
        name="ward", method=method, model=MODEL, data=Digits(), training=training, min_clients=2, **dealt, **server,
        **private,
    )  # fmt: skip
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(folder / "flare"))).get_result()
    run_loop(
        method=build_method(method),
        model=MODEL,
        source=Digits(),
        data=data,
        settings=ServerSettings(**server),
        training=TrainSettings(**training),
        folder=folder / "loop",
        **private,
    )
    return folder / "loop", next((folder / "flare").rglob("simulate_job/cfl"))


def check_same_models(ours: Path, theirs: Path, atol: float = 0.0) -> None:
    """The clusters' models of two runs are equal, or nearly."""
    paths = list((ours / "clusters").iterdir())
    assert paths
    for path in paths:
        one, other = load_arrays(path)[0], load_arrays(theirs / "clusters" / path.name)[0]
        assert one.keys() == other.keys()
        for key, array in one.items():
            np.testing.assert_allclose(other[key], array, rtol=0, atol=atol, err_msg=f"{path.name}: {key}")


# ---- The number of clusters ----


AUTO = {"method": "ifca", "k": "auto", "warmup": 2}
PARTITION = {"partition": "label_permutation", "groups": 3}


def test_a_job_finds_what_the_loop_finds(tmp_path):
    training, server = {"lr": 0.1, "local_steps": 5}, {"num_rounds": 4, "sample": 8}
    loop, through = both_ways(tmp_path, AUTO, DataConfig(12, PARTITION), training, server)
    one, other = load_run(loop), load_run(through)
    assert one.name == other.name and one.name.startswith("ifca-auto (") and "K=3" in one.name
    assert one.rounds[1]["number_of_clusters"] == other.rounds[1]["number_of_clusters"]
    assert [len(r["trained"]) for r in other.rounds] == [8, 12, 8, 8]
    assert one.assignments == other.assignments
    check_same_models(loop, through)


def test_groups_that_participants_name_are_the_loop_s(tmp_path):
    named = {"method": "groups", "groups": ["0", "1", "2"], "warmup": 1}
    loop, through = both_ways(tmp_path, named, DataConfig(6, PARTITION), {"lr": 0.1}, {"num_rounds": 3})
    check_same_models(loop, through)
    for run in (load_run(loop), load_run(through)):
        assert [(p["label"], p["cluster"]) for p in run.summary["participants"]] == [
            (str(i // 2), i // 2) for i in range(6)
        ]


# ---- Private layers: never at the server, and kept at the sites ----


PRIVATE = {"method": "ifca-cam", "k": 2, "warmup": 1}


def cross(folder):
    """The losses of all models at all participants."""
    with (folder / "cross_site.csv").open() as f:
        return {(line["participant"], line["model"]): float(line["loss"]) for line in csv.DictReader(f)}


def test_a_job_with_private_layers_is_the_loop_s_run_and_keeps_them_at_the_sites(tmp_path):
    server = {"num_rounds": 3, "cross_site_evaluation": True}
    loop, through = both_ways(tmp_path, PRIVATE, DATA, {"lr": 0.1}, server, private="bias")
    check_same_models(loop, through, atol=1e-6)
    one, other = load_run(loop), load_run(through)
    assert one.assignments == other.assignments
    assert other.summary["private"] == "bias"
    crossed = [
        sorted((f / "cross_site.csv").read_text().replace("local", "site-1").splitlines())
        for f in (one.folder, other.folder)
    ]
    assert [len(lines) for lines in crossed] == [13, 13]

    stores = {path.name: path for path in (tmp_path / "flare" / "cfl_state" / "ward").iterdir() if path.is_dir()}
    servers = {
        key for path in stores.pop("simulator_server").glob("round-*.safetensors") for key in load_arrays(path)[0]
    }
    assert servers
    assert not [key for key in servers if key.endswith("bias")]
    assert stores.keys() == {"site-1", "site-2"}
    check_reported(through, tmp_path / "flare" / "cfl_state" / "ward")
    assert not list(through.glob("served"))  # at the sites alone
    initial = load_arrays(next((through / "clusters").iterdir()))[0]
    for folder in stores.values():
        kept = load_arrays(sorted(folder.glob("round-*.safetensors"))[-1])[0]
        mine = {key for key in kept if ":private|" in key}
        assert {key.partition("#")[2] for key in mine} >= {":private|head.bias", "shared.:private|head.bias"}
        served = list((folder / "served").glob("*.safetensors"))
        assert len(served) == 3
        for path in served:
            own = load_arrays(path)[0]
            assert not np.array_equal(own["parts.1.head.bias"], initial["parts.1.head.bias"])
            np.testing.assert_array_equal(own["parts.1.head.bias"], kept[f"{path.stem}#:private|head.bias"])
            np.testing.assert_array_equal(own["parts.0.head.bias"], kept[f"{path.stem}#shared.:private|head.bias"])


# ---- Newcomers ----


@pytest.fixture
def cfl_output(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command and returns what it printed."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: str) -> str:
        status, printed = main(words), capfd.readouterr()
        assert status == 0, printed
        return printed.out

    return run


def test_held_back_from_the_simulator_and_onboarded_to_what_it_left(
    cfl_output: Callable[..., str], tmp_path: Path
) -> None:
    words = [
        "--method",
        "wecfl:k=3",
        "--rounds",
        "4",
        "--unseen",
        "0.25",
        "--participants",
        "12",
        "--local-epochs",
        "5",
        "--private",
        "bias",
    ]
    said = cfl_output("run", *words, "--out", str(tmp_path / "flare"))
    cfl_output("run", "--loop", *words, "--out", str(tmp_path / "loop"))
    flare, loop = (load_run(tmp_path / name / "wecfl-k3") for name in ("flare", "loop"))
    assert flare.newcomers == loop.newcomers
    assert flare.newcomers is not None
    assert f"{flare.newcomers['served_accuracy']:.3f}" in said
    assert flare.summary["final"]["ari"] == 1
    assert len(flare.summary["participants"]) == 9
    cluster_of = cluster_of_group(flare)
    check_reported(flare.folder)
    assert [p["cluster"] for p in flare.newcomers["participants"]] == [
        cluster_of[p["group"]] for p in flare.newcomers["participants"]
    ]

    # One of them as a participant of its own, from a file.
    newcomer = DataConfig(**flare.summary["data"]).newcomers(Digits())[0]
    arrays = {}
    for split in ("train", "test"):
        samples = getattr(newcomer, split)
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = (samples.x[:, 0] + 1) / 2, samples.y
    np.savez(tmp_path / "own.npz", **arrays)
    said = cfl_output("onboard", str(flare.folder), "--data", str(tmp_path / "own.npz"), "--name", newcomer.name)
    expected = flare.newcomers["participants"][0]
    row = next(line for line in said.splitlines() if line.startswith(newcomer.name)).split()
    assert row[1] == str(expected["cluster"])
    assert row[-2] == f"{expected['served_accuracy']:.3f}"
    path = flare.folder / "newcomers" / newcomer.name / "model.safetensors"
    model = read_model(path)(torch.from_numpy(newcomer.test.x)).argmax(1).numpy()
    assert np.mean(model == newcomer.test.y) == pytest.approx(expected["served_accuracy"])
    mine = load_arrays(path)[0]
    theirs = load_arrays(flare.folder / "clusters" / f"cluster-{expected['cluster']}.safetensors")[0]
    for name, array in mine.items():
        assert (array == theirs[name]).all() != name.endswith("bias")  # its private layers are its own


def cluster_of_group(run: Run) -> dict[int, int]:
    return {p["group"]: p["cluster"] for p in run.summary["participants"]}


# ---- Settings of FLARE's FedAvgRecipe, with cfl_flare's own training and with a script ----


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


# ---- Studies ----


IFCA = {"method": "ifca", "k": 2}


def simulated(folder: Path, **settings) -> Path:
    """The results of a study in FLARE's simulator."""
    data = {"participants": 6, "partition": "label_permutation:groups=2", "validation": 0.25}
    fixed = {"model": MODEL, "data": Digits(), "training": TRAINING, "more": [IFCA], "num_rounds": 4, "rungs": 2}
    recipe = StudyRecipe(**fixed, **data, min_clients=2, **settings)
    run = recipe.execute(SimEnv(num_clients=2, workspace_root=str(folder)))
    return Path(run.get_result()) / "server" / "simulate_job" / "cfl"


def test_the_simulator_finds_what_the_loop_finds_also_if_it_is_resumed(tmp_path):
    trainer = InProcess(plan_digits_run(), tmp_path / "loop")
    study = Study(trainer, first_candidates(trainer.module, [build_method(IFCA)]), StudySettings(rungs=2))
    study.run()
    loop = json.loads(json.dumps(study.journal.to_dict(4)))
    first = load_study(simulated(tmp_path / "flare", minutes=1e-9))
    assert first["verdict"]["rounds"] == 2 and len(first["rungs"]) == 1
    results = simulated(tmp_path / "flare", resume_from="study")
    found = load_study(results)
    assert found["found"] == loop["found"] and of_sites(found["verdict"]) == of_sites(loop["verdict"])
    for ours, theirs in zip(found["rungs"], loop["rungs"], strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    for name in found["rungs"][-1]["means"]:
        run, other = load_run(results / name), load_run(tmp_path / "loop" / name)
        assert run.assignments == other.assignments and len(run.rounds) == 4


def test_hospitals_take_part_in_a_study_that_is_submitted_once(trial, capsys):
    words = ["study", "--job", str(trial.folder / "jobs"), "--name", "ward-study", "--min-clients", "3"]
    words += ["--model", "logistic:input_shape=[3,14,14],num_classes=8", "--rounds", "4", "--rungs", "2"]
    words += ["--bootstrap", "50", "--task-timeout", "240", "--min-sites-per-cluster", "1"]
    words += ["--min-samples-per-cluster", "1", "--max-weight-share", "1.0"]
    assert main(words) == 0
    assert "submit it with: nvflare job submit -j" in capsys.readouterr().out
    ended, results = trial.run(trial.folder / "jobs" / "ward-study", seconds=500)
    assert ended == "FINISHED:COMPLETED"
    found = load_study(results / "cfl")
    assert {"local", "fedavg", "wecfl-k2"} <= set(found["rungs"][0]["means"])
    assert str(escape(found["verdict"]["sentences"][0])) in (results / "cfl" / "report.html").read_text()
    # hospital-2's own filter rounds what it sends, and sends no draws: it trains, and is in no comparison.
    verdict = found["verdict"]
    assert [one["name"] for one in verdict["hospitals"]] == ["hospital-1", "hospital-3"]
    assert [one["tested"] for one in verdict["hospitals"]] == [80, 80]
    people = load_run(results / "cfl" / "fedavg").summary["participants"]
    assert [one["name"] for one in people] == trial.sites
    assert main(["show", str(results)]) == 0
    assert verdict["sentences"][0] in capsys.readouterr().out
    for site in trial.sites:
        held = trial.state_root(site) / "ward-study" / site
        served = {path.parents[1].name for path in held.glob("*/served/*.safetensors")}
        assert {name.partition("-pull-")[0] for name in served} == set(verdict["tested"])
        assert (
            main(["predict", str(held / "local"), "--data", str(trial.data[site]), "--out", str(held / "a.csv")]) == 0
        )
