# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import csv
import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from cfl_flare.cli import main
from cfl_flare.core.errors import ConfigError
from cfl_flare.data.columns import Column, Columns
from cfl_flare.data.preparation import Preparation
from cfl_flare.extensions.aftercare.onnx_graph import Portable, onnx_of, write_onnx
from cfl_flare.models import MODELS
from cfl_flare.training.ensemble import Ensemble
from cfl_flare.training.losses import predict_from
from cfl_flare.training.tasks import Classification, Multilabel, Regression, Segmentation, Survival

IMAGE = (1, 28, 28)
FAST = ("mlp", "logistic", "fashion-cnn")


def run_onnx(content, samples):
    """What onnxruntime computes: predictions and outputs."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(["predictions", "outputs"], {"samples": np.asarray(samples)})


@pytest.fixture(scope="module")
def onnx_runs(tmp_path_factory):
    """Two runs: of images, in which a participant's ensemble votes; of tables, in which each has its own biases."""
    folder = tmp_path_factory.mktemp("runs")
    few = ["--loop", "--rounds", "2", "--lr", "0.05"]
    cam = ["--method", "ifca-cam:k=2,warmup=1", "--participants", "4"]
    assert main(["run", *few, *cam, "--out", str(folder / "images")]) == 0
    private = ["--data", "heart", "--method", "fedavg", "--private", "bias"]
    assert main(["run", *few, *private, "--out", str(folder / "tables")]) == 0
    return folder


# ---- Graphs ----


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in MODELS])
def test_each_network_computes_the_same_in_onnxruntime(name):
    torch.manual_seed(0)
    network = MODELS[name](IMAGE, 3)
    for module in network.modules():  # as after training: statistics that are not those of a new network
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1), module.running_var.uniform_(0.5, 2)
    task = Segmentation() if name == "unet" else Classification()
    content, _ = onnx_of(Portable(network.eval(), task, IMAGE))
    x = torch.rand(4, *IMAGE)
    with torch.no_grad():
        outputs = network((x - 0.5) / 0.5)
    predictions, raw = run_onnx(content, x)
    np.testing.assert_allclose(raw, outputs.numpy(), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(predictions, outputs.softmax(1).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "task, vote",
    [
        (Classification(), "logits"),
        (Classification(), "probabilities"),
        (Multilabel(), "probabilities"),
        (Regression(), "probabilities"),
        (Survival(), "probabilities"),
    ],
)
def test_several_voting_models_are_one_graph(task, vote):
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval() for _ in range(3)]
    content, _ = onnx_of(Portable(Ensemble(parts, vote, task.link), task, (1, 2, 2)))
    x = torch.rand(5, 1, 2, 2)
    with torch.no_grad():
        each = torch.stack([part((x - 0.5) / 0.5) for part in parts])
    voted = predict_from(each.sum(0), task.link)
    if vote == "probabilities":
        voted = torch.stack([predict_from(one, task.link) for one in each]).mean(0)
    np.testing.assert_allclose(run_onnx(content, x)[0], voted.numpy(), atol=1e-5, rtol=1e-5)


def test_the_graph_fills_up_scales_and_clips_a_table():
    columns = Columns((Column("age"), Column("sex", "boolean", ("f", "m"))))
    preparation = Preparation(columns, np.array([40.0, 1.0]), np.array([50.0, 0.5]), np.array([10.0, 0.5]), clip=5.0)
    network = nn.Linear(2, 2, bias=False)
    network.weight.data = torch.eye(2)
    portable = Portable(network, Regression(), (2,), preparation)
    rows = np.array([[60.0, 1.0], [np.nan, np.nan], [900.0, 0.0]])
    wanted = [[1, 1], [-1, 1], [5, -1]]  # (60 - 50) / 10; 40 stands for a missing age; 85 deviations are clipped to 5
    np.testing.assert_array_equal(run_onnx(onnx_of(portable)[0], rows)[1], wanted)
    features = portable.description(torch.zeros(1, 2))["input"]["features"]
    assert [feature["name"] for feature in features] == ["age", "sex"]
    assert features[1]["codes"] == {"f": 0, "m": 1}


def test_bytes_that_nobody_divided_by_255_give_nan_and_no_prediction():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()
    content, _ = onnx_of(Portable(network, Classification(), (1, 2, 2)))
    x = np.full((2, 1, 2, 2), 0.4, np.float32)
    x[1, 0, 0, 0] = 102.0
    predictions, outputs = run_onnx(content, x)
    assert np.isfinite(predictions[0]).all() and np.isnan(predictions[1]).all() and np.isnan(outputs[1]).all()


def test_a_graph_names_no_path_of_this_machine(tmp_path):
    network = MODELS["mlp"](IMAGE, 3).eval()
    graph, _ = write_onnx(tmp_path, "m", Portable(network, Classification(), IMAGE))
    assert b".py" not in graph.read_bytes() and str(tmp_path.parent).encode() not in graph.read_bytes()
    assert not any(node.metadata_props or node.doc_string for node in onnx.load(graph).graph.node)


# ---- Refusals ----


class Branching(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :2] if float(x.sum()) > 0 else x.flatten(1)[:, 2:4]


def test_a_model_without_a_graph_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match="does not write Branching as ONNX") as refusal:
        write_onnx(tmp_path / "out", "m", Portable(Branching(), Regression(), (1, 2, 2)))
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


class Unsteady(nn.Module):
    """It computes something else each time that Python calls it, which no graph does."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x.flatten(1) + float(self.calls)


def test_a_graph_that_computes_something_else_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"does not write Unsteady|from torch's, more than 1e-05"):
        write_onnx(tmp_path, "m", Portable(Unsteady(), Regression(), (1, 2, 2)))
    assert not [*tmp_path.iterdir()]


def test_without_the_packages_the_error_names_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"onnxscript is not installed.*pip install 'cfl-flare\[onnx\]'"):
        write_onnx(tmp_path, "m", Portable(nn.Flatten(), Regression(), (1, 2, 2)))


# ---- Runs ----


def predictions_of(run, data, folder, *options):
    path = folder / "predictions.csv"
    assert main(["predict", str(run), "--data", str(data), "--out", str(path), *options]) == 0
    return list(csv.DictReader(path.open()))


def test_a_participants_voting_models_predict_as_predict_does(onnx_runs, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    run = onnx_runs / "images" / "ifca-cam-k2"
    assert main(["convert", str(run), "--participant", "p1", "--out", str(tmp_path / "out")]) == 0
    ours = predictions_of(run, tmp_path / "images.npz", tmp_path, "--participant", "p1")
    predictions, _ = run_onnx((tmp_path / "out/p1.onnx").read_bytes(), images[:, None].astype(np.float32) / 255)
    written = np.array([[float(row[f"p{k}"]) for k in range(10)] for row in ours])
    np.testing.assert_allclose(predictions, written, atol=1e-5)
    about = json.loads((tmp_path / "out/p1.json").read_text())
    assert about["input"]["shape"] == ["n", 1, 8, 8] and about["classes"] == [str(k) for k in range(10)]
    assert (tmp_path / "out").stat().st_mode & 0o077 == 0  # a participant's model is its own


def test_a_participants_private_layers_and_its_tables_scaling_are_in_the_graph(onnx_runs, tmp_path):
    run = onnx_runs / "tables" / "fedavg"
    assert main(["convert", str(run), "--participant", "cleveland", "--out", str(tmp_path / "out")]) == 0
    about = json.loads((tmp_path / "out/cleveland.json").read_text())
    features = about["input"]["features"]
    ages = [61.0, None, 44.0]
    columns = list(dict.fromkeys(feature["column"] for feature in features))
    lines = [",".join(columns)] + [",".join(["" if age is None else str(age)] + [""] * 12) for age in ages]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    ours = predictions_of(run, tmp_path / "rows.csv", tmp_path, "--participant", "cleveland")
    x = np.full((3, len(features)), np.nan)
    x[:, 0] = [np.nan if age is None else age for age in ages]
    x[:, [i for i, feature in enumerate(features) if feature.get("is") == "missing"]] = 1.0
    predictions, _ = run_onnx((tmp_path / "out/cleveland.onnx").read_bytes(), x)
    names = [name for name in ours[0] if name.startswith("p(")]
    np.testing.assert_allclose(predictions, [[float(row[name]) for name in names] for row in ours], atol=1e-5)
    assert [f"p(num{name})" for name in about["classes"]] == names


def test_a_common_model_of_tables_is_refused_without_someone_who_predicts(onnx_runs, tmp_path, capsys):
    model = onnx_runs / "tables" / "fedavg" / "clusters" / "global.safetensors"
    assert main(["convert", str(model), "--out", str(tmp_path / "out")]) == 2
    assert "untrained" in capsys.readouterr().err
