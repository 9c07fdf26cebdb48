# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A finished run of a method that predicts with several models leaves one module that predicts as they did."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Params
from cfl_flare.data import Digits
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.methods import build_method
from cfl_flare.models import MLP
from cfl_flare.results.model_file import read_model
from cfl_flare.results.run_dir import Run, load_run
from cfl_flare.results.served import load_model
from cfl_flare.training.ensemble import Ensemble
from cfl_flare.training.resident import ResidentModel
from cfl_flare.training.runtime import Split
from cfl_flare.training.settings import TrainSettings
from tests.loop import run_loop
from tests.play import DATA, MODEL, people

SPECS = {
    "ifca-cam": {"method": "ifca-cam", "k": 2, "warmup": 1},
    "fesem-cam": {"method": "fesem-cam", "k": 2, "warmup": 1},
    "fedavg+": {"method": "fedavg+", "k": 3},
    "fedavg+ifca": {"method": "fedavg+ifca", "k": 2},
}


class Foreign(MLP):
    """A model that is not the package's own."""


@pytest.fixture(scope="module", params=SPECS)
def finished(request, tmp_path_factory) -> tuple[Run, Server]:
    """A run of three rounds."""
    return finish(SPECS[request.param], tmp_path_factory.mktemp("run"))


def finish(spec, folder: Path, model=MODEL) -> tuple[Run, Server]:
    server = run_loop(
        method=build_method(spec),
        model=model,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(3),
        training=TrainSettings(lr=0.1, local_steps=3),
        folder=folder,
    )
    return load_run(folder), server


def splits(name: str) -> tuple[Split, Split]:
    data = next(p for p in people() if p.name == name)
    return Split.of(data.train.x, data.train.y), Split.of(data.test.x, data.test.y)


def slots(run: Run) -> list[str]:
    return sorted(path.stem for path in (run.folder / "clusters").glob("*"))


def single(params: Params) -> nn.Module:
    resident = ResidentModel(MLP(**MODEL["args"]))
    resident.load(params)
    return resident.module.eval()


@torch.no_grad()
def test_it_predicts_as_the_participants_did(finished):
    run, _ = finished
    clusters = [slot for slot in slots(run) if slot != "global"]
    for participant in run.summary["participants"]:
        train, test = splits(participant["name"])
        models = [load_model(run.folder, slot) for slot in clusters] or [load_model(run.folder)]
        if run.summary["label"] == "fesem-cam":
            models = [load_model(run.folder, f"cluster-{participant['cluster']}")]
        if run.summary["label"] == "fedavg+ifca":  # IFCA picks by its own loss alone
            losses = [F.cross_entropy(model.parts[1](train.x), train.y).item() for model in models]
        else:
            losses = [F.cross_entropy(model(train.x), train.y).item() for model in models]
        logits = models[losses.index(min(losses))](test.x)
        assert F.cross_entropy(logits, test.y).item() == pytest.approx(participant["served_loss"], rel=1e-5)
        accuracy = (logits.argmax(1) == test.y).double().mean().item()
        assert accuracy == pytest.approx(participant["served_accuracy"])


@torch.no_grad()
def test_it_is_one_module_whose_parts_vote(finished):
    run, server = finished
    x = splits("p0")[1].x
    whole = server.method.models(server.state, server.layout)
    assert slots(run) == sorted(whole)
    for slot, served in whole.items():
        model = load_model(run.folder, slot)
        assert isinstance(model, Ensemble) and not any(part.training for part in model.modules())
        logits = torch.stack([single(params)(x) for params in served.models])
        if run.summary["label"] == "fedavg+":
            torch.testing.assert_close(model(x).exp(), logits.softmax(-1).mean(0))
        else:
            torch.testing.assert_close(model(x), logits.sum(0))


def test_its_state_goes_into_another_one(finished):
    run, _ = finished
    slot = slots(run)[0]
    model, x = load_model(run.folder, slot), splits("p0")[1].x
    other = Ensemble([MLP(**MODEL["args"]) for _ in model.parts], model.vote).eval()
    assert not torch.equal(other(x), model(x))
    assert other.load_state_dict(model.state_dict()) is not None
    assert torch.equal(other(x), model(x))


@torch.no_grad()
def test_it_is_exported(finished):
    run, _ = finished
    model, x = load_model(run.folder, slots(run)[0]), splits("p0")[1].x
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


def test_a_class_of_ones_own_is_given_once(tmp_path):
    model = {"class_path": "tests.engine.test_served_sums.Foreign", "args": MODEL["args"]}
    run, server = finish(SPECS["ifca-cam"], tmp_path, model)
    with pytest.raises(
        ConfigError, match=r"holds a tests\.engine\.test_served_sums\.Foreign; import its module first, or"
    ):
        read_model(run.folder / "clusters" / "cluster-1.safetensors")
    assert load_model(run.folder, "cluster-1")  # this program has imported it
    loaded = load_model(run.folder, "cluster-1", model=Foreign(**MODEL["args"]))
    assert isinstance(loaded, Ensemble) and all(isinstance(part, Foreign) for part in loaded.parts)
    x = splits("p0")[1].x
    models = server.state.bank["shared"], server.state.bank["cluster-1"]
    torch.testing.assert_close(loaded(x), sum(single(params)(x) for params in models))
