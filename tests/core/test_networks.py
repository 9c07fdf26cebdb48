# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A network's arguments, found in the network: what is found builds the same one, everything else is refused."""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
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


class Listed(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))


class Alters(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.width = 2 * width
        self.layer = nn.Linear(3, width)


class Fetches(nn.Module):
    fetched: ClassVar[list[int]] = []

    def __init__(self, classes: int, pretrained: bool = False):
        super().__init__()
        self.fetched.extend([classes] * pretrained)
        self.layer = nn.Linear(3, classes)


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


@pytest.mark.parametrize(
    "args",
    [
        {"features": 7, "hidden": 5, "classes": 2, "layers": 3},
        {"features": 7, "hidden": 5, "classes": 2, "layers": 4, "dropout": 0.1, "bias": False},
    ],
)
def test_arguments_that_are_not_kept_are_found(args):
    assert rebuilt(Forgetful(**args))[0]["args"] == args


def test_a_sequence_is_described_by_its_modules():
    layers = [nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)]
    network = nn.Sequential(*layers)
    spec, again = rebuilt(network)
    assert repr(again) == repr(network)
    assert "torch.nn.modules.activation.ReLU" in class_paths(spec)
    named = nn.Sequential(OrderedDict(first=nn.Linear(3, 4), last=nn.Linear(4, 2)))
    assert repr(rebuilt(named)[1]) == repr(named)


def test_modules_given_as_arguments_are_described_too():
    network = Joined(nn.Linear(3, 4), Forgetful(4, 5, 2, 2, dropout=0.2))
    assert repr(rebuilt(network)[1]) == repr(network)


def test_a_network_that_a_function_built_is_described_by_the_function():
    assert rebuilt(of_tanh(classes=3))[0] == {"class_path": f"{HERE}.of_tanh", "args": {"classes": 3}}
    assert isinstance(build({"class_path": f"{HERE}.of_relu"}, nn.Module, "model").block, nn.ReLU)


@pytest.mark.parametrize("name", ["unannotated", "elsewhere", "rebuilt"])
def test_a_function_that_does_not_return_a_module_of_its_own_is_not_called(name):
    with pytest.raises(ConfigError, match="is not a torch"):
        build({"class_path": f"{HERE}.{name}"}, nn.Module, "model")


def test_an_argument_that_may_fetch_a_file_is_not_tried():
    network = Fetches(4)
    assert rebuilt(network)[0]["args"] == {"classes": 4}
    network.extra = 1  # nothing builds this
    with pytest.raises(ConfigError):
        describe_network(network)
    assert not Fetches.fetched


@pytest.mark.parametrize(
    ("network", "wanted"),
    [
        (Listed([3, 4, 2]), "'args': {'widths': ...}"),
        (Alters(4), "'args': {'width': ...}"),
        (Joined(nn.Linear(3, 4), nn.Linear(4, 2).requires_grad_(False)), "'args': {'backbone': ..., 'head': ...}"),
        (Of(nn.GELU), "'args': {'block': ..., 'classes': ...}"),
    ],
)
def test_what_is_not_found_is_refused_with_the_dictionary_to_write(network, wanted):
    path = f"'class_path': '{HERE}.{type(network).__name__}'"
    with pytest.raises(ConfigError, match="no arguments were found that build the same network") as caught:
        describe_network(network)
    assert path in str(caught.value) and wanted in str(caught.value)


def test_the_search_leaves_the_random_streams_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    network = Forgetful(7, 5, 2, 3)
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


def test_monai_s_networks_are_taken():
    nets = pytest.importorskip("monai.networks.nets", reason="MONAI is not installed")
    for network, found in (
        (
            nets.UNet(3, 1, 2, (4, 8), (2,), num_res_units=1),
            {"spatial_dims": 3, "channels": [4, 8], "num_res_units": 1},
        ),
        (nets.SegResNet(2, 8, 3, 4, dropout_prob=0.2), {"spatial_dims": 2, "out_channels": 4, "dropout_prob": 0.2}),
    ):
        spec, again = rebuilt(network)
        assert found.items() <= spec["args"].items()
        assert repr(again) == repr(network)


def test_torchvision_s_networks_are_taken():
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    network = models.resnet18()
    network.fc = nn.Linear(512, 3)
    assert rebuilt(network)[0] == {"class_path": "torchvision.models.resnet.resnet18", "args": {"num_classes": 3}}
