# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``cfl-flare export``: a job folder that says what the command line said."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from cfl_flare.cli import main
from cfl_flare.cli.specs import shape_and_outputs
from cfl_flare.data import Npz
from cfl_flare.training.settings import TrainSettings

MODEL = "mlp:input_shape=[1,8,8],num_classes=10"


def exported(folder: Path, *words: str) -> tuple[dict, dict, dict]:
    """meta, the controller's arguments, the executor's."""
    assert main(["export", "--out", str(folder), *words]) == 0
    job = next(path for path in folder.iterdir() if (path / "meta.json").is_file())
    meta, server, client = (
        json.loads((job / name).read_text())
        for name in ("meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json")
    )
    return meta, server["workflows"][0]["args"], client["executors"][0]["executor"]["args"]


def test_a_job_for_real_sites(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--name", "ward", "--min-clients", "3", "--rounds", "7", "--model", MODEL, "--sample", "0.5"]
    words += ["--method", "ifca:k=4", "--penalty", "proximal:mu=0.1", "--lr", "0.2", "--local-epochs", "2"]
    meta, controller, executor = exported(tmp_path / "jobs", *words)
    assert (meta["name"], meta["min_clients"]) == ("ward", 3)
    assert (controller["num_rounds"], controller["sample"]) == (7, 0.5)
    assert executor["method"]["k"] == 4
    assert executor["method"]["penalties"][0]["mu"] == 0.1
    assert (executor["training"]["lr"], executor["training"]["local_epochs"]) == (0.2, 2)
    assert executor["model"]["args"]["input_shape"] == [1, 8, 8]
    assert executor["source"]["class_path"].endswith(".SiteData")
    assert "path" not in executor["source"]["args"] or executor["source"]["args"]["path"] is None
    assert executor["data"]["participants"] is executor["data"]["partition"] is None
    assert executor["run_name"] == "ward"
    assert executor["made_by"] == controller["made_by"]
    assert "source" not in controller["facts"]
    assert not (tmp_path / "jobs" / "ward" / "app" / "custom").exists()
    assert str(tmp_path / "jobs" / "ward") in capsys.readouterr().out


def test_a_job_can_go_on_from_a_run(tmp_path):
    exported(tmp_path, "--name", "ward", "--model", MODEL, "--resume-from", "earlier")
    config = json.loads((tmp_path / "ward" / "app" / "config" / "config_fed_server.json").read_text())
    (persistor,) = (c for c in config["components"] if c["id"] == "persistor")
    assert persistor["args"] == {"run_name": "ward", "resume_from": "earlier"}


def test_shape_and_outputs_come_from_data_that_is_here(tmp_path):
    x, y = np.zeros((20, 20, 24, 3), np.uint8), np.arange(20) % 7
    np.savez(tmp_path / "rgb.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
    executor = exported(tmp_path / "a", "--data", str(tmp_path / "rgb.npz"))[2]
    assert executor["model"]["class_path"] == "cfl_flare.models.CifarCNN"
    assert executor["model"]["args"] == {"input_shape": [3, 20, 24], "num_classes": 7, "config_type": "dict"}
    executor = exported(tmp_path / "b", "--data", str(tmp_path / "rgb.npz"), "--model", "mlp:num_classes=9")[2]
    assert executor["model"]["args"]["num_classes"] == 9


@pytest.mark.parametrize(
    ("task", "y", "outputs"),
    [
        ("classification", np.arange(20) % 7, 7),
        ("binary", np.arange(20) % 2, 1),
        ("multilabel", np.eye(20, 14, dtype=np.uint8), 14),
        ("regression", np.arange(20) / 2, 1),
        ("regression", np.arange(20), 1),
        ("survival", np.ones((20, 2)), 1),
        ("segmentation", np.full((20, 8, 8), 2, np.uint8), 3),
    ],
)
def test_a_model_has_the_outputs_that_the_task_needs(tmp_path, task, y, outputs):
    x = np.zeros((20, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
    found = shape_and_outputs(Npz(str(tmp_path / "a.npz")), "a.npz", TrainSettings(task=task))
    assert found == ((1, 8, 8), outputs, task == "segmentation")


def test_a_simulated_job_says_how_its_data_is_dealt_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 4
    np.savez("pool.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
    words = ["--data", "pool.npz", "--partition", "dirichlet:alpha=0.3", "--participants", "6", "--method", "fedavg"]
    _, controller, executor = exported(tmp_path / "jobs", *words)
    assert executor["data"]["participants"] == 6
    assert executor["data"]["partition"] == {"partition": "dirichlet", "alpha": 0.3, "config_type": "dict"}
    assert executor["source"]["args"]["path"] == str(tmp_path / "pool.npz")  # here, as for cfl-flare run
    assert controller["facts"]["source"] == executor["source"]


def test_a_job_can_carry_the_code(tmp_path):
    exported(tmp_path, "--model", MODEL, "--byoc")
    assert (tmp_path / "clustered" / "app" / "custom" / "cfl_flare" / "flare" / "executor.py").is_file()


@pytest.mark.parametrize(
    "words, says",
    [
        ("", r"input_shape and num_classes are not given, .*CFL_DATA.*; give --model mlp:input_shape="),
        (
            "--model fashion-cnn:num_classes=4",
            r"are not given.*; give --model fashion-cnn:input_shape=",
        ),
        ("--data digits --method fedavg --method ifca:k=2", r"--method is given 2 times; a job has one"),
        ("--data digits --participants 8", r"participants = 8 and partition = None belong together"),
        ("--data digits --partition iid", r"participants = None and partition = .*belong together"),
        ("--data digits --name a/b", r"--name = 'a/b' should be letters"),
        ("--data digits --min-clients 0", r"min_clients = 0 should be >= 1"),
        ("--data digits --method fedds:k=2", r"no file with them; name one .*indicator_file=samples\.npz"),
        (f"--model {MODEL} --data my.Data", r"data: 'my\.Data' cannot be imported here"),
        (f"--model {MODEL},depth=3", r"model MLP: unknown setting 'depth'"),
        (f"--model {MODEL} --name taken", r"taken' is not an empty folder; name a new one"),
    ],
)
def test_export_refuses(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CFL_DATA_ROOT", raising=False)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "meta.json").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", "--out", ".", *words.split()]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1

    assert re.search(says, output.err), output.err
    assert sorted(tmp_path.rglob("*")) == before


# Jobs of tables, whose columns the sites agreed on


@pytest.fixture
def agreed(tmp_path):
    """The file of columns: three features, two classes."""
    file = tmp_path / "columns.json"
    columns = [{"column": "age"}, {"column": "ward", "kind": "category", "categories": ["a", "b"]}]
    file.write_text(json.dumps({"columns": columns, "label": "dx", "classes": ["ill", "well", "unsure"]}))
    return file


def job_of(tmp_path, agreed, *words):
    name = f"job{len(list(tmp_path.glob('jobs/*')))}"
    data = ["--data", f"site:columns={agreed}", "--name", name, "--out", str(tmp_path / "jobs")]
    return main(["export", *data, *words]), tmp_path / "jobs" / name


def test_shape_and_classes_are_those_of_the_columns(tmp_path, agreed, capsys):
    status, folder = job_of(tmp_path, agreed, "--model", "mlp:hidden=[]")
    assert status == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"nvflare job submit -j {folder} --startup-kit <your admin kit>" in said
    (executor,) = json.loads((folder / "app/config/config_fed_client.json").read_text())["executors"]
    model = executor["executor"]["args"]["model"]["args"]
    assert (model["input_shape"], model["num_classes"]) == ([3], 3)
    assert executor["executor"]["args"]["source"]["args"]["scaling"] == "auto"
    content = {**json.loads(agreed.read_text()), "positive": 0}
    agreed.write_text(json.dumps({**content, "classes": []}))
    assert job_of(tmp_path, agreed, "--task", "binary")[0] == 0
    agreed.write_text(json.dumps({**content, "classes": [], "positive": None}))
    assert job_of(tmp_path, agreed)[0] == 2
    assert "the columns of --data name no classes; name its classes there, or give" in capsys.readouterr().err
    assert job_of(tmp_path, agreed, "--model", "mlp:num_classes=2")[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--model", "mlp:input_shape=[15],num_classes=3"],
            "have 3 features, which model MLP does not take .* to \\[3\\]",
        ),
        (["--model", "mlp:num_classes=2"], "label 2 does not fit the model's output of shape \\(1, 2\\)"),
        (["--task", "binary"], "the columns that sites agreed on: .*binary"),
        (["--sites", "a,a"], "--sites = 'a,a' should be different names"),
        (["--sites", "a,b"], "a model needs 3 sites \\(min_sites_per_cluster\\)"),
        (["--sites", "a"], "per-site config"),
    ],
)
def test_what_every_site_would_refuse_is_refused_at_export(tmp_path, agreed, capsys, words, says):
    status, folder = job_of(tmp_path, agreed, *words)
    assert status == 2 and not folder.exists()
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(capsys.readouterr().err)


def test_sites_that_take_part_are_named_in_the_job(tmp_path, agreed):
    status, folder = job_of(tmp_path, agreed, "--sites", "ward-1, ward-2,ward-3", "--method", "fedavg")
    assert status == 0
    deployed = json.loads((folder / "meta.json").read_text())["deploy_map"]
    assert sorted(site for sites in deployed.values() for site in sites) == ["server", "ward-1", "ward-2", "ward-3"]
    trusting = ["--min-sites-per-cluster", "1", "--min-samples-per-cluster", "1"]
    assert job_of(tmp_path, agreed, "--sites", "a,b", "--method", "fedavg", *trusting)[0] == 0
