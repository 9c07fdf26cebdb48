# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A network's arguments, read as FLARE reads them; a network that they would not build again is refused."""

from __future__ import annotations

import ast
import itertools
import json
import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from cfl_flare.core.config import build, class_paths
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.networks import describe_network
from cfl_flare.results.model_file import is_ours

HERE = __name__


class Forgetful(nn.Module):
    """Keeps none of its arguments."""

    def __init__(self, features, hidden, classes, layers, dropout=0.5, bias=True):
        super().__init__()
        widths = [features, *[hidden] * (layers - 1), classes]
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in itertools.pairwise(widths))
        self.drop = nn.Dropout(dropout)


class Joined(nn.Module):
    def __init__(self, backbone: nn.Module, head: nn.Module):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


class Alters(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.width = 2 * width
        self.layer = nn.Linear(3, width)


class Small(nn.Module):
    """What the small networks below have in common: one layer, and something that their argument decides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)


class Activated(Small):
    def __init__(self, activation: Callable[..., Any] = torch.relu):
        super().__init__()
        self.act = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.layer(x))


class Pooled(nn.Module):
    def __init__(self, pool: str = "max"):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2) if pool == "max" else nn.AvgPool2d(2))
        self.head = nn.Linear(4 * 13 * 13, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).flatten(1))


class SmallScaled(Small):
    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.factor = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * self.layer(x)


class Buffered(Small):
    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.register_buffer("factor", torch.tensor(scale), persistent=False)


class SmallWithDropout(Small):
    def __init__(self, rate: float = 0.5):
        super().__init__()
        self.drop = nn.Dropout(rate)


class SmallFrozen(Small):
    def __init__(self, frozen: bool = False):
        super().__init__()
        self.layer.requires_grad_(not frozen)


class Closed(Small):
    def __init__(self, power: int = 1):
        super().__init__()
        self.raised = lambda x: x**power


class Hooked(Small):
    def __init__(self, hooked: bool = False):
        super().__init__()
        if hooked:
            self.register_forward_hook(lambda module, given, out: -out)


class Sign:
    """Of any sign, it says that it is equal."""

    def __init__(self, negative: bool):
        self.negative = negative

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sign)

    __hash__ = None  # type: ignore[assignment]


class Rule:
    """Without attributes."""


class Ruled(Small):
    def __init__(self, order: int = 1):
        super().__init__()
        self.rule, self.order = Rule(), order


class Signed(Small):
    def __init__(self, negative: bool = False):
        super().__init__()
        self.sign = Sign(negative)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -self.layer(x) if self.sign.negative else self.layer(x)


class Windowed(nn.Module):
    """As MONAI's SwinUNETR: its constructor looks at values, and the wrong window needs all memory that there is."""

    built: ClassVar[list[int]] = []

    def __init__(self, channels: int, window: int = 10**9):
        super().__init__()
        self.channels = channels
        self.rates = [float(x) for x in torch.linspace(0, 1, 3)]
        self.built.append(window)
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("index", torch.zeros(window, window), persistent=False)


class Loud(Windowed):
    def __init__(self, channels: int, window: int = 2):
        super().__init__(channels, window)
        self._window = window


class Norm(Enum):
    BATCH = "batch"


@dataclass
class Widths:
    hidden: tuple[int, ...] = (4,)
    dropout: float = 0.5


class Configured(nn.Module):
    def __init__(self, config: Widths, norm: Norm | str = Norm.BATCH):
        super().__init__()
        self.config, self._norm = config, Norm(norm)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise((3, *config.hidden)))
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(nn.Sequential(*self.layers)(x))


class HFConfig:
    """A configuration as Hugging Face's: what differs from the defaults is what it says of itself."""

    def __init__(self, width: int = 4, **others: Any):
        self.width, self.labels = width, others.get("labels", 2)

    def to_diff_dict(self) -> dict[str, Any]:
        return {"width": self.width, "labels": self.labels, "model_type": "hf", "transformers_version": "5"}

    def to_dict(self) -> dict[str, Any]:
        return self.to_diff_dict()


class HFModel(nn.Module):
    def __init__(self, config: HFConfig):
        super().__init__()
        self.config = config
        self.layer = nn.Linear(config.width, config.labels)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.layer(x)}


class Of(nn.Module):
    """Built by a function, from what cannot be written to a job."""

    def __init__(self, block: type[nn.Module], classes: int = 10):
        super().__init__()
        self.block, self.head = block(), nn.Linear(4, classes)


def of_relu(**settings: Any) -> Of:
    return Of(nn.ReLU, **settings)


def of_tanh(**settings: Any) -> Of:
    return Of(nn.Tanh, **settings)


def unannotated(**settings):
    return Of(nn.ReLU, **settings)


def elsewhere() -> nn.Linear:
    return nn.Linear(1, 1)


def rebuilt(network: nn.Module) -> tuple[dict[str, Any], nn.Module]:
    spec = json.loads(json.dumps(describe_network(network)))
    again = build(spec, nn.Module, "model")
    assert type(again) is type(network)
    assert {n: t.shape for n, t in again.state_dict().items()} == {n: t.shape for n, t in network.state_dict().items()}
    return spec, again


def refuse_network(network: nn.Module) -> str:
    with pytest.raises(ConfigError, match="as a site would build it is not this one") as caught:
        describe_network(network)
    return str(caught.value)


def test_arguments_that_are_kept_are_taken():
    network = Loud(3, window=4)
    assert rebuilt(network)[0] == {"class_path": f"{HERE}.Loud", "args": {"channels": 3, "window": 4}}


@pytest.mark.parametrize(
    ("network", "difference"),
    [
        (Activated(torch.tanh), "act is <built-in method tanh"),
        (Activated(lambda x: -x), "act is <function"),
        (Pooled("avg"), "features.1 is AvgPool2d("),
        (SmallScaled(5.0), "factor is 5.0 here, 1.0 there"),
        (Buffered(5.0), "factor is tensor(5.) here, tensor(1.) there"),
        (SmallWithDropout(0.1), "drop.p is 0.1 here, 0.5 there"),
        (SmallFrozen(True), "layer.bias.requires_grad is False here, True there"),
        (Closed(2), "raised is"),
        (Hooked(True), "_forward_hooks is 1 here, 0 there"),
        (Signed(True), "with the same parameters its outputs for an input of (2, 3) are others there"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_network_that_is_silently_another_one_is_refused(network, difference):
    text = refuse_network(network)
    assert difference in text
    (name,) = [n for n in vars(type(network))["__init__"].__annotations__ if n != "return"]
    assert f"it does not keep its argument {name!r}" in text
    assert f"pass {{'class_path': '{HERE}.{type(network).__name__}', 'args': {{{name!r}: ...}}}}" in text


@pytest.mark.parametrize(
    "cls", [Activated, Pooled, SmallScaled, Buffered, SmallWithDropout, SmallFrozen, Closed, Hooked, Signed, Ruled]
)
def test_the_same_network_as_by_default_is_taken(cls):
    network = cls().train()
    next(iter(network.children())).eval()
    modes, before = [m.training for m in network.modules()], [p.clone() for p in network.parameters()]
    assert rebuilt(network)[0] == {"class_path": f"{HERE}.{cls.__name__}", "args": {}}
    assert [m.training for m in network.modules()] == modes
    assert all(map(torch.equal, network.parameters(), before))


def test_nothing_is_built_of_which_the_memory_is_not_known():
    network = Windowed(3, window=2)
    Windowed.built.clear()
    text = refuse_network(network)
    assert Windowed.built in ([], [10**9])  # at most without memory, before its constructor looked at a value
    assert "does not keep its argument 'window'" in text and "'args': {'channels': 3, 'window': ...}" in text


def test_a_network_is_built_at_most_once_with_memory(monkeypatch):
    devices = []
    monkeypatch.setattr(
        Small, "forward", lambda self, x: x, raising=False
    )  # any forward: what counts here is where the parameters lie
    init = Small.__init__
    monkeypatch.setattr(Small, "__init__", lambda self: (init(self), devices.append(self.layer.weight.device.type))[0])
    network = SmallScaled()
    devices.clear()
    describe_network(network)
    assert devices == ["meta", "cpu"]


def test_the_dictionary_of_a_refusal_has_what_is_known():
    text = refuse_network(Forgetful(7, 5, 2, 3))
    wanted = "{'features': ..., 'hidden': ..., 'classes': ..., 'layers': ..., 'dropout': ..., 'bias': ...}"
    assert f"'args': {wanted}" in text
    pasted = re.search(r"pass (\{.*?\}\})", text)
    assert pasted is not None and ast.literal_eval(pasted[1])["class_path"] == f"{HERE}.Forgetful"


@pytest.mark.parametrize(
    ("network", "wanted"),
    [
        (Alters(4), "layer.weight has (4, 3) here, (8, 3) there"),
        (Joined(nn.Linear(3, 4), nn.Linear(4, 2).requires_grad_(False)), "head.bias.requires_grad is False here"),
        (
            Joined(nn.Linear(3, 4), Forgetful(4, 5, 2, 2)),
            "'head' is a Forgetful, does not keep its argument 'features'",
        ),
    ],
)
def test_what_is_kept_and_builds_another_network_is_refused(network, wanted):
    assert wanted in refuse_network(network)


def test_an_argument_that_cannot_be_written_is_named():
    class_ = Of(nn.GELU)
    text = refuse_network(class_)
    assert "does not keep its argument 'block'" in text
    assert (
        f"the function that made it (of_relu, of_tanh), such as {{'class_path': '{HERE}.of_relu', 'args': {{}}}}"
        in text
    )


def test_a_sequence_is_described_by_its_modules():
    layers = [nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)]
    network = nn.Sequential(*layers)
    spec, again = rebuilt(network)
    assert repr(again) == repr(network)
    assert "torch.nn.modules.activation.ReLU" in class_paths(spec)
    named = nn.Sequential(OrderedDict(first=nn.Linear(3, 4), last=nn.Linear(4, 2)))
    assert repr(rebuilt(named)[1]) == repr(named)


def test_modules_given_as_arguments_are_described_too():
    network = Joined(nn.Linear(3, 4, bias=False), Configured(Widths((5,), 0.2)))
    network.head.layers[0] = nn.Linear(3, 5)
    assert repr(rebuilt(network)[1]) == repr(network)


def test_configurations_are_arguments():
    spec, again = rebuilt(Configured(Widths((4, 5), 0.1)))
    assert spec["args"]["config"] == {"class_path": f"{HERE}.Widths", "args": {"hidden": [4, 5], "dropout": 0.1}}
    assert again.drop.p == 0.1
    spec, again = rebuilt(HFModel(HFConfig(3, labels=5)))
    assert spec["args"]["config"] == {"class_path": f"{HERE}.HFConfig", "args": {"width": 3, "labels": 5}}
    assert again.layer.out_features == 5
    asked: list[str] = []
    build(spec, nn.Module, "model", asked.append)
    assert asked == [f"{HERE}.HFModel", f"{HERE}.HFConfig"]
    with pytest.raises(ConfigError, match="is not a torch"):  # an argument alone, never the model
        build(spec["args"]["config"], nn.Module, "model")
    with pytest.raises(ConfigError, match="is not a torch"):
        build({**spec, "args": {"config": {"class_path": "subprocess.Popen", "args": {}}}}, nn.Module, "model")


@pytest.mark.parametrize("name", ["unannotated", "elsewhere", "rebuilt"])
def test_a_function_that_does_not_return_a_module_of_its_own_is_not_called(name):
    with pytest.raises(ConfigError, match="is not a torch"):
        build({"class_path": f"{HERE}.{name}"}, nn.Module, "model")


def test_a_function_may_be_named():
    assert isinstance(build({"class_path": f"{HERE}.of_relu"}, nn.Module, "model").block, nn.ReLU)


def test_the_proof_leaves_the_random_streams_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    network = SmallWithDropout()
    torch.manual_seed(3)
    describe_network(network)
    assert torch.equal(torch.rand(2), expected)


def test_the_policy_is_asked_for_every_class():
    spec, asked = rebuilt(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))[0], []
    build(spec, nn.Module, "model", asked.append)
    assert sorted(asked) == sorted(class_paths(spec)) and len(asked) == 3

    def refuse(path: str) -> None:
        if path.endswith("ReLU"):
            raise PermissionError(path)

    with pytest.raises(PermissionError):
        build(spec, nn.Module, "model", refuse)


def test_a_model_s_file_cannot_smuggle_a_class_into_the_arguments_of_ours():
    ours = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [2], "num_classes": 2}}
    assert is_ours(ours)
    inner = {"class_path": "os.system", "args": {}}
    assert not is_ours({**ours, "args": {**ours["args"], "hidden": [inner]}})


def test_monai_s_networks_say_what_to_write():
    nets = pytest.importorskip("monai.networks.nets", reason="MONAI is not installed")
    text = refuse_network(nets.UNet(3, 1, 2, (4, 8), (2,), num_res_units=1))
    known = "'in_channels': 1, 'out_channels': 2, 'channels': [4, 8], 'strides': [2], 'num_res_units': 1"
    assert f"'args': {{{known}, 'spatial_dims': ...}}" in text


def test_torchvision_s_networks_say_what_to_write():
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    network = models.resnet18(num_classes=3)
    assert "resnet18" in refuse_network(network) and "torchvision.models.resnet." in refuse_network(network)
    spec = {"class_path": "torchvision.models.resnet.resnet18", "args": {"num_classes": 3}}
    assert repr(build(describe_network(spec), nn.Module, "model")) == repr(network)


def test_hugging_face_s_networks_are_taken():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    small = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 16,
    }
    network = transformers.BertForSequenceClassification(transformers.BertConfig(**small, num_labels=3))
    spec, again = rebuilt(network)
    assert sys.modules[type(network).__module__].__name__ in spec["class_path"]
    assert again.num_labels == 3
