# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Models from which a run starts, and the module that a finished run of a method with several models leaves."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout, Params
from cfl_flare.data import Digits
from cfl_flare.engine.initial_models import check_initial, initial_models, named_arrays, read_checkpoint
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.engine.server import Server
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import build_method
from cfl_flare.models import MLP, NamedArrays
from cfl_flare.results.model_file import read_model
from cfl_flare.results.run_dir import Run, load_run
from cfl_flare.results.served import load_model
from cfl_flare.training.ensemble import Ensemble
from cfl_flare.training.resident import ResidentModel, build_untrained
from cfl_flare.training.runtime import Split
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import build_from_spec, run_loop
from tests.helpers.play import DATA, MODEL, host_people, make_model
from tests.helpers.tiny import LAYOUT, Coin

WEIGHT = {"head.weight": torch.tensor([[3.0], [4.0]])}


@pytest.mark.parametrize(
    "content",
    [
        WEIGHT,
        OrderedDict(WEIGHT),
        {"model": WEIGHT, "train_conf": {"lr": 1}},
        {"state_dict": WEIGHT, "epoch": 3},
        {"head.weight": WEIGHT["head.weight"].bfloat16()},
    ],
)
def test_what_torch_save_wrote(tmp_path, content):
    torch.save(content, tmp_path / "model.pt")
    np.testing.assert_array_equal(read_checkpoint(tmp_path / "model.pt", LAYOUT).vector, [3, 4])


def test_a_safetensors_file_and_a_run_s_own_models(tmp_path):
    save_file(WEIGHT, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(read_checkpoint(tmp_path / "model.safetensors", LAYOUT).vector, [3, 4])


def test_arrays_that_numpy_wrote(tmp_path):
    np.savez(tmp_path / "model.npz", **{"head.weight": np.array([[3], [4]])})
    np.save(tmp_path / "model.npy", np.array([[3.0], [4.0]]))  # the model has one array, whose name is known
    for name in ("model.npz", "model.npy"):
        np.testing.assert_array_equal(read_checkpoint(tmp_path / name, LAYOUT).vector, [3, 4])


def test_arrays_that_are_pickled_many_or_larger_than_their_file(tmp_path):
    np.save(tmp_path / "pickled.npy", np.array([{}], object), allow_pickle=True)
    np.savez(tmp_path / "pickled.npz", **{"head.weight": np.array([{}], object)})
    np.save(tmp_path / "large.npy", np.zeros((2, 1)))
    written = (tmp_path / "large.npy").read_bytes()
    (tmp_path / "large.npy").write_bytes(written.replace(b"(2, 1), }        ", b"(2, 1000000000), "))
    for name in ("pickled.npy", "pickled.npz", "large.npy"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_checkpoint(tmp_path / name, LAYOUT)
    np.save(tmp_path / "one.npy", np.zeros((2, 1)))
    with pytest.raises(ConfigError, match=r"is a single array, the model has \d+; save them with np\.savez"):
        read_checkpoint(tmp_path / "one.npy", Layout.of(make_model()))


BAD = {
    "another model's": ({"body.weight": torch.zeros(1)}, r"it has 'body.weight'; it lacks 'head.weight'"),
    "another shape": ({"head.weight": torch.zeros(3, 1)}, r"has shape \(3, 1\), not \(2, 1\)"),
    "not finite": ({"head.weight": torch.full((2, 1), float("nan"))}, "holds NaN"),
    "a module": (Coin(), "cannot be read without unpickling"),
    "a list": ([1, 2], "it holds a list"),
    "more than arrays": ({**WEIGHT, "epoch": 3}, "'epoch' is a int"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_started_from(tmp_path, case):
    content, says = BAD[case]
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(ConfigError, match=says):
        read_checkpoint(tmp_path / "model.pt", LAYOUT)


def test_no_file_and_a_damaged_one(tmp_path):
    with pytest.raises(ConfigError, match="is not a file here"):
        read_checkpoint(tmp_path / "none.pt", LAYOUT)
    for name in ("broken.pt", "broken.safetensors"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(ConfigError, match="cannot be read"):
            read_checkpoint(tmp_path / name, LAYOUT)


@pytest.mark.parametrize(
    "spec",
    ["fedavg", "fesem:k=2", "wecfl:k=2", "cfl:eps1=9,eps2=0", "fl-hc:k=2,rounds_before=1", "fedgroup:k=2", "fedac:k=2"],
)
def test_methods_that_begin_with_one_model(spec):
    check_initial(build_from_spec(spec), Layout.of(make_model()))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("ifca:k=3", "begins with 3 different models"),
        ("ifca-cam:k=2", "begins with 3 different models"),
        ("feddsmic:k=2", "begins with 3 different models"),
        ("fedavg+ifca:k=2", "begins with 3 different models"),
        ("local", "its site builds from the seed"),
        ("fedper", "its site builds from the seed"),
        ("ditto", "its site builds from the seed"),
        ("fedcuau:k=2", "its site builds from the seed"),
    ],
)
def test_methods_that_cannot_start_from_one_checkpoint(spec, says):
    with pytest.raises(ConfigError, match=says):
        check_initial(build_from_spec(spec), Layout.of(make_model()))


def run_wecfl(folder: Path, **more):
    values = {"settings": ServerSettings(1), "training": TrainSettings(lr=0.1, local_steps=3), "folder": folder}
    return run_loop(method=build_from_spec("wecfl:k=2"), model=MODEL, source=Digits(), data=DATA, **{**values, **more})


class CoinOfOnes(Coin):
    """Its constructor draws nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.nn.init.ones_(self.head.weight)


@pytest.mark.parametrize("spec", ["ifca:k=2", "ifca:k=3", "feddsmic:k=2"])
def test_several_models_that_a_constructor_makes_equal_are_refused(spec):
    def start(make):
        return build_from_spec(spec).start(
            initial_models(build_from_spec(spec), make, LAYOUT, 0, None), ["a", "b", "c"]
        )

    assert len(start(Coin).bank) > 1
    with pytest.raises(ConfigError, match="begins with several different models, and the model's constructor makes"):
        start(CoinOfOnes)
    assert build_from_spec("fedavg").start(initial_models(build_from_spec("fedavg"), CoinOfOnes, LAYOUT, 0, None)).bank


def test_a_run_goes_on_from_another_one_s_model(tmp_path):
    run_wecfl(tmp_path / "a", settings=ServerSettings(2))
    left = tmp_path / "a" / "clusters" / "cluster-0.safetensors"
    still = {"training": TrainSettings(lr=1e-30, momentum=0.0, local_steps=1)}
    server = run_wecfl(tmp_path / "b", initial_ckpt=left, **still)
    for slot in ("cluster-0", "cluster-1"):
        np.testing.assert_array_equal(server.state.bank[slot].vector, read_checkpoint(left, server.layout).vector)


def test_a_job_is_checked_before_it_starts(tmp_path):
    torch.save(WEIGHT, tmp_path / "model.pt")
    run = {"method": "wecfl:k=2", "model": MODEL, "data": Digits(), "num_rounds": 2, "min_clients": 1}
    run |= {"participants": DATA.participants, "partition": DATA.partition}
    with pytest.raises(ConfigError, match="is not of the job's model"):
        check_plans([RunPlan.of(**run, initial_ckpt=str(tmp_path / "model.pt"))])
    with pytest.raises(ConfigError, match="both say where to start"):
        check_plans([RunPlan.of(**run, resume_from="earlier", initial_ckpt=str(tmp_path / "model.pt"))])
    check_plans([RunPlan.of(**run, initial_ckpt="/only/at/the/server.pt")])


RUN: dict[str, Any] = {"num_rounds": 1, "min_clients": 1, "train_script": "client.py", "method": "fedavg"}


@pytest.mark.parametrize(
    ("model", "name"),
    [([[1, 2], [3, 4]], "numpy_key"), (np.array([[1, 2], [3, 4]]), "numpy_key"), ({"w": ((1, 2), (3, 4))}, "w")],
)
def test_one_array_has_the_name_of_flare_s_recipe_and_others_have_their_own(model, name):
    found = named_arrays(model)
    assert found is not None and list(found) == [name] and found[name].dtype == np.float32
    np.testing.assert_array_equal(found[name], [[1, 2], [3, 4]])


def test_what_is_a_module_or_names_one_is_left_to_others():
    assert named_arrays(MLP((1, 2, 2), 2)) is None
    assert named_arrays({"class_path": "a.B"}) is None
    assert named_arrays("a.B") is None


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({}, r"model = \{\} has no arrays"),
        ({"coef": [0.0], "loss": "log_loss"}, r"'loss' = 'log_loss' is no array\..*train_args"),
        ({"n_clusters": 3}, r"'n_clusters' = 3 is no array.*a single number as \[0\.0\]"),
        ({"fit_intercept": True}, "'fit_intercept' = True is no array"),
        ({"coef": None}, "'coef' = None is no array"),
        ({"coef": {"a": [1.0]}}, "'coef' = {'a': .* is no array"),
        ({1: [1.0]}, "model: 1 should be a name"),
        ({"": [1.0]}, "model: '' should be a name"),
        ([[1, 2], [3]], "model is no array of numbers"),
        (["a"], "model should be an array of numbers, not of <U1"),
        ({"coef": [1j]}, "'coef' should be an array of numbers, not of complex128"),
        (np.zeros((0, 3)), r"model has shape \(0, 3\), without a single number"),
        ([1.0, float("nan")], "model holds NaN or infinity"),
        ({"coef": [1e300]}, "model: 'coef' holds NaN or infinity, as float32"),
    ],
)
def test_what_is_no_model(model, says):
    with pytest.raises(ConfigError, match=says):
        named_arrays(model)


def test_names_that_a_module_could_not_have_itself():
    module = NamedArrays({"layers.0/w": (2, 3), "type": (), "a": (1,), "a.b": (1,)})
    assert [(e.name, e.shape, e.kind, e.fc) for e in Layout.of(module).entries] == [
        ("layers.0/w", (2, 3), "parameter", False),
        ("type", (), "parameter", False),
        ("a", (1,), "parameter", False),
        ("a.b", (1,), "parameter", False),
    ]
    assert not build_untrained(lambda: module, 0, 0).vector.any()


def test_a_script_s_arrays_are_numpy_s_if_the_model_is_arrays():
    assert RunPlan.of(**RUN, model=[1.0]).script.framework == "numpy"
    assert RunPlan.of(**RUN, model=[1.0], framework="pytorch").script.framework == "pytorch"
    assert RunPlan.of(**RUN, model=MLP((1, 2, 2), 2)).script.framework is None


def test_arrays_are_refused_where_they_do_not_fit():
    with pytest.raises(ConfigError, match="arrays by name need a training script"):
        RunPlan.of(**{**RUN, "train_script": None}, model=[1.0], data={"class_path": "cfl_flare.data.sources.Digits"})
    with pytest.raises(
        ConfigError, match=r"model: method ifca begins with 2 .*or give a torch\.nn\.Module as the model"
    ):
        check_plans([RunPlan.of(**{**RUN, "method": "ifca:k=2"}, model=[1.0])])
    with pytest.raises(ConfigError, match="framework = 'tensorflow' should be 'pytorch' or 'numpy'"):
        RunPlan.of(**RUN, model=[1.0], framework="tensorflow")
    assert torch.equal(NamedArrays({"w": [2]}).state_dict()["w"], torch.zeros(2))


# ---- Served sums ----


SPECS = {
    "ifca-cam": {"method": "ifca-cam", "k": 2, "warmup": 1},
    "fesem-cam": {"method": "fesem-cam", "k": 2, "warmup": 1},
    "fedavg+": {"method": "fedavg+", "k": 3},
    "fedavg+ifca": {"method": "fedavg+ifca", "k": 2},
}


class ForeignMLP(MLP):
    """A model that is not the package's own."""


@pytest.fixture(scope="module", params=SPECS)
def finished_method(request, tmp_path_factory) -> tuple[Run, Server]:
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
    data = next(p for p in host_people() if p.name == name)
    return Split.of(data.train.x, data.train.y), Split.of(data.test.x, data.test.y)


def slots(run: Run) -> list[str]:
    return sorted(path.stem for path in (run.folder / "clusters").glob("*"))


def single(params: Params) -> nn.Module:
    resident = ResidentModel(MLP(**MODEL["args"]))
    resident.load(params)
    return resident.module.eval()


@torch.no_grad()
def test_it_predicts_as_the_participants_did(finished_method):
    run, _ = finished_method
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
def test_it_is_one_module_whose_parts_vote(finished_method):
    run, server = finished_method
    x = splits("p0")[1].x
    whole = server.method.list_models(server.state, server.layout)
    assert slots(run) == sorted(whole)
    for slot, served in whole.items():
        model = load_model(run.folder, slot)
        assert isinstance(model, Ensemble) and not any(part.training for part in model.modules())
        logits = torch.stack([single(params)(x) for params in served.models])
        if run.summary["label"] == "fedavg+":
            torch.testing.assert_close(model(x).exp(), logits.softmax(-1).mean(0))
        else:
            torch.testing.assert_close(model(x), logits.sum(0))


def test_its_state_goes_into_another_one(finished_method):
    run, _ = finished_method
    slot = slots(run)[0]
    model, x = load_model(run.folder, slot), splits("p0")[1].x
    other = Ensemble([MLP(**MODEL["args"]) for _ in model.parts], model.vote).eval()
    assert not torch.equal(other(x), model(x))
    assert other.load_state_dict(model.state_dict()) is not None
    assert torch.equal(other(x), model(x))


@torch.no_grad()
def test_it_is_exported(finished_method):
    run, _ = finished_method
    model, x = load_model(run.folder, slots(run)[0]), splits("p0")[1].x
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


def test_a_class_of_ones_own_is_given_once(tmp_path):
    model = {"class_path": "tests.engine.test_saved_models.ForeignMLP", "args": MODEL["args"]}
    run, server = finish(SPECS["ifca-cam"], tmp_path, model)
    with pytest.raises(
        ConfigError, match=r"holds a tests\.engine\.test_saved_models\.ForeignMLP; import its module first, or"
    ):
        read_model(run.folder / "clusters" / "cluster-1.safetensors")
    assert load_model(run.folder, "cluster-1")  # this program has imported it
    loaded = load_model(run.folder, "cluster-1", model=ForeignMLP(**MODEL["args"]))
    assert isinstance(loaded, Ensemble) and all(isinstance(part, ForeignMLP) for part in loaded.parts)
    x = splits("p0")[1].x
    models = server.state.bank["shared"], server.state.bank["cluster-1"]
    torch.testing.assert_close(loaded(x), sum(single(params)(x) for params in models))
