# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Networks with one peculiarity each: they run, or they are refused before the first round, with a hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.errors import CFLError, ConfigError, FitError, PayloadError
from cfl_flare.core.networks import describe_network
from cfl_flare.core.params import Layout
from cfl_flare.data import DataConfig, Digits, ParticipantData, Samples
from cfl_flare.engine.server import ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.methods import FedAvg, WeCFL, build_method
from cfl_flare.results.served import load_model
from cfl_flare.training.resident import ResidentModel, build_untrained
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop

HERE = "tests.test_odd_models"
INF = float("inf")


class PlainNetwork(nn.Module):
    """Ten classes of 8x8 digits; each network below differs from it in one point."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 8)
        self.last = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.relu(self.first(x.flatten(1))))


class Softmaxed(PlainNetwork):
    """It trains, and a remark says that the loss takes logits."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).softmax(dim=1)


class Masked(PlainNetwork):
    """An attention mask as a persistent buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((3, 3), -INF).triu(1))


class Ignoring(PlainNetwork):
    """A number that is not learned as a parameter without gradient, as some libraries keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.ignore = nn.Parameter(torch.tensor([-INF, float("nan")]), requires_grad=False)


class Rotary(PlainNetwork):
    """Complex frequencies as buffers, one of which is not in the state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(64), torch.arange(64.0)))
        self.register_buffer("fleeting", torch.polar(torch.ones(64), torch.arange(64.0)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        turned = x.flatten(1) * self.turns * self.fleeting.conj()
        return super().forward(turned.real)


class Observing(PlainNetwork):
    """A buffer that begins at infinity and that training changes, as observers of quantised networks have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("lowest", torch.tensor(INF))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.lowest.copy_(torch.minimum(self.lowest, x.detach().min()))
        return super().forward(x)


class Complex(PlainNetwork):
    def __init__(self) -> None:
        super().__init__()
        self.spectrum = nn.Parameter(torch.ones(33, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.fft.irfft(torch.fft.rfft(x.flatten(1)) * self.spectrum, n=64))


class Halved(PlainNetwork):
    def __init__(self) -> None:
        super().__init__()
        self.half()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.half()).float()


class DoublePrecision(PlainNetwork):
    """A parameter of the usual type, and an input that is cast."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.double())


class BuiltInDouble(PlainNetwork):
    """Its parameters are float64, and it casts nothing: it runs as float32."""

    def __init__(self) -> None:
        super().__init__()
        self.double()


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 8))
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x.flatten(1))))


class OnMeta(PlainNetwork):
    def __init__(self) -> None:
        with torch.device("meta"):
            super().__init__()


class PartlyOnMeta(PlainNetwork):
    def __init__(self) -> None:
        super().__init__()
        self.last.to("meta")


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LazyLinear(10)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x.flatten(1))


class FrozenNetwork(PlainNetwork):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class FrozenBody(PlainNetwork):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)


class Whole(PlainNetwork):
    """A parameter of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.index = nn.Parameter(torch.arange(3), requires_grad=False)


class NoNumber(PlainNetwork):
    """A parameter that nobody has initialised."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((2,), float("nan")))


class Detached(PlainNetwork):
    """Its outputs have no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class TwoInTraining(PlainNetwork):
    """An auxiliary output in training, as of Inception."""

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return (logits, logits) if self.training else logits


class NamedInTraining(PlainNetwork):
    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return {"logits": logits, "loss": logits.sum()} if self.training else logits


class BreaksInTraining(PlainNetwork):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise KeyError("labels")
        return super().forward(x)


class OtherShapeInTraining(PlainNetwork):
    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits[:, :5] if self.training else logits


RUNNING = (Masked, Ignoring, Rotary, BuiltInDouble, Spectral, FrozenBody)
REFUSED = {
    Complex: r"'spectrum' is of torch.complex64.*; .*view_as_complex",
    OnMeta: r"'first.weight' is on the meta device.*; ",
    PartlyOnMeta: r"'last.weight' is on the meta device.*; ",
    Lazy: r"'first.weight' has no shape yet.*; ",
    FrozenNetwork: r"requires_grad.*; ",
    Whole: r"'index' is of torch.int64.*; .*buffer",
    NoNumber: r"'scale' holds NaN.*; ",
}
UNFIT = {
    Halved: r"Half and Float.*; .*torch.float16.*float32",
    DoublePrecision: r"; .*float32",
    Observing: r"'lowest'.*changes.*; ",
    Detached: r"gradient.*; ",
    TwoInTraining: r"tuple in training; ",
    NamedInTraining: r"dict in training; ",
    BreaksInTraining: r"in training.*KeyError.*; ",
    OtherShapeInTraining: r"\(2, 5\) in training.*; ",
}


def spec(cls: type) -> dict[str, Any]:
    return {"class_path": f"{HERE}.{cls.__name__}", "args": {}}


def run_network(cls: type, folder: Path | None = None, method: Any = None, **training: Any) -> Any:
    return run_loop(
        method=method or WeCFL(k=2),
        model=spec(cls),
        source=Digits(),
        data=DataConfig(partition="iid", participants=4),
        settings=ServerSettings(num_rounds=2),
        training=TrainSettings(**{"lr": 0.1, "local_steps": 2, "batch_size": 8, **training}),
        folder=folder,
    )


@pytest.mark.parametrize("cls", RUNNING)
def test_runs(cls: type, tmp_path: Path) -> None:
    server = run_network(cls, tmp_path)
    assert server.state.round == 2
    assert not server.recorder.last.record.get("failed")
    describe_network(cls())


@pytest.mark.parametrize("cls", REFUSED)
def test_refused_before_data_is_read(cls: type) -> None:
    with pytest.raises(ConfigError, match=REFUSED[cls]):
        run_network(cls)


@pytest.mark.parametrize("cls", [cls for cls in REFUSED if cls is not FrozenNetwork])
def test_recipe_refuses_it(cls: type) -> None:
    with pytest.raises(ConfigError, match=REFUSED[cls]):
        describe_network(cls())


@pytest.mark.parametrize("cls", UNFIT)
def test_refused_at_check_in(cls: type) -> None:
    data = Samples(np.zeros((6, 1, 8, 8), np.float32), np.arange(6))
    site = Site(FedAvg(), cls, TrainSettings(batch_size=2), seed=0)
    before = site.runtime.resident.read()
    with pytest.raises(FitError, match="(?s)" + UNFIT[cls]):
        site.add([ParticipantData("a", data, data)])
    assert np.array_equal(site.runtime.resident.read().vector, before.vector)


def test_check_in_changes_no_statistics() -> None:
    class Normed(PlainNetwork):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(64)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.norm(x.flatten(1)))

    data = Samples(np.ones((6, 1, 8, 8), np.float32), np.arange(6))
    site = Site(FedAvg(), Normed, TrainSettings(batch_size=2), seed=0)
    before = site.runtime.resident.read()
    drawn = torch.random.get_rng_state()
    site.add([ParticipantData("a", data, data)])
    after = site.runtime.resident.read()
    assert np.array_equal(before.vector, after.vector)
    assert np.array_equal(before.counters, after.counters)
    assert torch.equal(drawn, torch.random.get_rng_state())


def test_constants_are_in_no_vector() -> None:
    layout = Layout.of(Masked())
    assert layout == Layout.of(Masked())
    assert layout.size == 64 * 8 + 8 + 8 * 10 + 10
    assert "mask" not in ResidentModel(Masked()).read().arrays()
    assert ResidentModel(Masked()).read().state()["mask"][0].tolist() == [0.0, -INF, -INF]


def test_constants_arrive_unchanged_or_are_refused() -> None:
    layout = Layout.of(Masked())
    arrays = {**ResidentModel(Masked()).read().arrays(), "mask": np.full((3, 3), -INF, np.float32)}
    with pytest.raises(PayloadError, match="'mask'"):
        layout.pack(arrays)
    arrays["mask"] = Masked().mask.numpy()
    layout.pack(arrays)
    with np.errstate(invalid="ignore"):
        arrays["mask"] = arrays["mask"] - arrays["mask"]  # as a script's difference has it: 0, or NaN
    layout.pack(arrays)


def test_saved_model_has_its_constants(tmp_path: Path) -> None:
    run_network(Masked, tmp_path, FedAvg())
    arrays, _ = load_arrays(tmp_path / "clusters" / "global.safetensors")
    module = Masked()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    loaded = load_model(tmp_path, model=Masked())
    assert torch.equal(loaded.mask, module.mask)
    assert torch.equal(loaded.last.weight, module.last.weight)


def test_complex_constants_compute(tmp_path: Path) -> None:
    x = torch.rand(3, 64)
    module = Rotary()
    expected = module(x)
    assert torch.allclose(ResidentModel(module).module(x), expected)


def test_normed_layers_are_in_the_head() -> None:
    layout = Layout.of(Spectral())
    head = {entry.name for entry in layout.head.entries}
    assert head == {
        "last.bias",
        "last.parametrizations.weight.original0",
        "last.parametrizations.weight.original1",
    }
    assert all(entry.fc for entry in layout.entries if entry.kind == "parameter")


@pytest.mark.parametrize("method", ["fedper", "finetune", "ditto", "per-fedavg"])
def test_frozen_layers_stay_as_they_are(method: str) -> None:
    server = run_network(FrozenBody, method=build_method({"method": method}), weight_decay=0.1, momentum=0.9)
    assert not (server.progress.record or {}).get("failed")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weight_decay_spares_frozen_layers(optimizer: str) -> None:
    start = build_untrained(FrozenBody, 0, 0).arrays()["first.weight"]
    server = run_network(FrozenBody, method=FedAvg(), weight_decay=0.5, optimizer=optimizer)
    after = server.bank["global"].arrays()
    assert np.array_equal(after["first.weight"], start)
    assert not np.array_equal(after["last.weight"], build_untrained(FrozenBody, 0, 0).arrays()["last.weight"])


def test_method_that_trains_only_frozen_layers() -> None:
    with pytest.raises(CFLError, match=r"participant_failed.*config"):
        run_network(FrozenBody, method=build_method({"method": "fedbabu"}))
