# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import runpy
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import cfl_flare.models
from cfl_flare.core.config import build, describe
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout
from cfl_flare.models import MLP, MODELS, CifarCNN, FashionCNN, LeafCNN, Logistic, MobileNetV2, ResNet18, UNet
from cfl_flare.training.resident import ResidentModel, build_untrained

torch.set_num_threads(1)  # as in a run: such small work only waits for a second thread

SMALLEST = {
    "fashion-cnn": 4,
    "tissue-cnn": 4,
    "leaf-cnn": 4,
    "resnet18": 8,
    "mobilenet-v2": 8,
    "cifar-cnn": 16,
    "path-cnn": 16,
    "fedac-cnn": 16,
}


def count_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("resnet18", "mobilenet-v2", "unet")])
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 4), st.integers(0, 9), st.integers(0, 9), st.integers(1, 7))
def test_gives_one_logit_a_class_for_any_image(name: str, channels: int, taller: int, wider: int, classes: int) -> None:
    smallest = SMALLEST.get(name, 1)
    shape = (channels, smallest + taller, smallest + wider)
    module = MODELS[name](shape, classes).eval()
    logits = module(torch.randn(3, *shape))
    assert logits.shape == (3, classes)
    assert torch.isfinite(logits).all()
    assert (module.input_shape, module.num_classes) == (shape, classes)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet-v2"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 9, 17), (4, 64, 65)])
def test_torchvision_networks_take_any_channels_and_size(name: str, shape: tuple[int, int, int]) -> None:
    with torch.device("meta"):  # shapes alone
        assert MODELS[name](shape, 3)(torch.empty(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize(("cls", "last"), [(ResNet18, "layer4"), (MobileNetV2, "features")])
@pytest.mark.parametrize(("side", "left"), [(32, 4), (63, 8), (64, 2)])
def test_small_images_are_shrunk_less(cls: type[nn.Module], last: str, side: int, left: int) -> None:
    with torch.device("meta"):
        body = cls((1, side, side), 2).body
        cut = list(dict(body.named_children())).index(last) + 1
        assert body[:cut](torch.empty(2, 1, side, side)).shape[2:] == (left, left)


@pytest.mark.parametrize(("cls", "name"), [(ResNet18, "resnet18"), (MobileNetV2, "mobilenet_v2")])
def test_large_images_get_torchvisions_own_network(cls: type[nn.Module], name: str) -> None:
    import torchvision.models

    theirs = getattr(torchvision.models, name)(num_classes=5).eval()
    ours = cls((3, 64, 64), 5).eval()
    own = ours.state_dict()
    assert [tuple(t.shape) for t in own.values()] == [tuple(t.shape) for t in theirs.state_dict().values()]
    ours.load_state_dict(dict(zip(own, theirs.state_dict().values())))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (FashionCNN((1, 28, 28), 10), (16 * 25 + 16) + 2 * 16 + (32 * 16 * 25 + 32) + 2 * 32 + (7 * 7 * 32 * 10 + 10)),
        (FashionCNN((1, 28, 28), 8), (16 * 25 + 16) + 2 * 16 + (32 * 16 * 25 + 32) + 2 * 32 + (7 * 7 * 32 * 8 + 8)),
        (CifarCNN((3, 32, 32), 10), 456 + 2_416 + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)),
        (CifarCNN((3, 28, 28), 9), 456 + 2_416 + (256 * 120 + 120) + (120 * 84 + 84) + (84 * 9 + 9)),
        (LeafCNN((1, 28, 28), 62), 832 + 51_264 + (7 * 7 * 64 * 2048 + 2048) + (2048 * 62 + 62)),
        (Logistic((1, 28, 28), 10), 784 * 10 + 10),
        (MLP((5,), 3, hidden=(7, 4)), (5 * 7 + 7) + (7 * 4 + 4) + (4 * 3 + 3)),
        (ResNet18((3, 32, 32), 10), 11_689_512 - (512 * 1000 + 1000) + (512 * 10 + 10) - 64 * 3 * (7 * 7 - 3 * 3)),
        (MobileNetV2((3, 32, 32), 10), 3_504_872 - (1280 * 1000 + 1000) + (1280 * 10 + 10)),
    ],
)
def test_has_the_published_number_of_parameters(module: nn.Module, expected: int) -> None:
    assert count_parameters(module) == expected


def test_the_published_totals() -> None:
    assert count_parameters(FashionCNN((1, 28, 28), 10)) == 29_034
    assert count_parameters(CifarCNN((3, 32, 32), 10)) == 62_006
    assert count_parameters(LeafCNN((1, 28, 28), 62)) == 6_603_710


def test_the_second_batchnorm_has_as_many_channels_as_the_convolution_before_it() -> None:
    assert [m.num_features for m in FashionCNN((1, 28, 28), 10).modules() if isinstance(m, nn.BatchNorm2d)] == [16, 32]


def test_the_flatten_size_follows_from_the_image() -> None:
    linear = [m.in_features for m in CifarCNN((3, 28, 28), 9).modules() if isinstance(m, nn.Linear)]
    assert linear == [16 * 4 * 4, 120, 84]
    assert FashionCNN((1, 28, 28), 10).head.in_features == 7 * 7 * 32


@pytest.mark.parametrize(
    ("cls", "block"),
    [
        (FashionCNN, [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d]),
        (CifarCNN, [nn.Conv2d, nn.ReLU, nn.MaxPool2d]),
        (LeafCNN, [nn.Conv2d, nn.ReLU, nn.MaxPool2d]),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_pooling_before_relu_gives_the_printed_networks_numbers(
    cls: type[nn.Module], block: list[type[nn.Module]], training: bool
) -> None:
    torch.manual_seed(0)
    module = cls((2, 17, 18), 3).train(training)
    printed = list(module.body)
    for i, (first, second) in enumerate(pairwise(list(module.body))):
        if isinstance(first, nn.MaxPool2d):
            printed[i], printed[i + 1] = second, first
    assert [type(layer) for layer in printed[: 2 * len(block)]] == block * 2
    x = torch.randn(4, 2, 17, 18)
    assert torch.equal(nn.Sequential(*printed)(x), module.body(x))


@pytest.mark.parametrize("name", [n for n in MODELS if n != "unet"])
def test_the_head_is_the_last_linear_layer(name: str) -> None:
    with torch.device("meta"):
        layout = Layout.of(MODELS[name]((1, 16, 16), 3))
    assert [e.name for e in layout.entries if e.head] == ["head.weight", "head.bias"]
    assert [e.shape[0] for e in layout.entries if e.head] == [3, 3]


@pytest.mark.parametrize("name", list(MODELS))
def test_a_registered_class_can_be_named_in_a_job(name: str) -> None:
    cls = MODELS[name]
    assert getattr(cfl_flare.models, cls.__name__) is cls
    spec = {"class_path": f"cfl_flare.models.{cls.__name__}", "args": {"input_shape": [1, 16, 16], "num_classes": 3}}
    with torch.device("meta"):
        module = build(spec, nn.Module, "model")
        again = build(describe(module, "model"), nn.Module, "model")
    assert Layout.of(again) == Layout.of(module)
    assert again.input_shape == (1, 16, 16)


def test_describe_keeps_the_hidden_layers() -> None:
    args = describe(MLP((2, 3), 4, hidden=(5, 6)), "model")["args"]
    assert args == {"input_shape": [2, 3], "num_classes": 4, "hidden": [5, 6]}


def test_logistic_regression_is_affine() -> None:
    module = Logistic((2, 2), 3)
    x = torch.randn(5, 2, 2)
    expected = x.flatten(1) @ module.head.weight.T + module.head.bias
    torch.testing.assert_close(module(x), expected)
    with pytest.raises(ConfigError, match="no 'backbone' part"):
        Layout.of(module).select("backbone")


@pytest.mark.parametrize("name", ["resnet18", "mobilenet-v2"])
def test_torchvision_networks_live_in_a_flat_vector(name: str) -> None:
    def make() -> nn.Module:
        return MODELS[name]((1, 8, 8), 2)

    params = build_untrained(make, 3, 0)
    resident = ResidentModel(make())
    resident.load(params)
    np.testing.assert_array_equal(resident.read().vector, params.vector)
    nn.functional.cross_entropy(resident.module.train()(torch.randn(4, 1, 8, 8)), torch.tensor([0, 1, 0, 1])).backward()
    for entry in resident.layout.entries:
        assert entry.kind != "parameter" or entry.view(resident.gradient).any(), entry.name


@pytest.mark.parametrize("name", list(SMALLEST))
def test_refuses_what_is_no_image_or_too_small_a_one(name: str) -> None:
    smallest = SMALLEST[name]
    for shape in ((28, 28), (28,), (1, 1, 28, 28)):
        with pytest.raises(ConfigError, match=r"should be \(channels, height, width\)"):
            MODELS[name](shape, 2)
    for shape in ((1, smallest - 1, 28), (1, 28, smallest - 1)):
        with pytest.raises(ConfigError, match=f"{smallest}x{smallest}"):
            MODELS[name](shape, 2)
    with pytest.raises(ConfigError, match="whole numbers >= 1"):
        MODELS[name]((0, 28, 28), 2)


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("classes", [0, -1, 2.0, "3", True])
def test_refuses_a_number_of_classes_below_one(name: str, classes: object) -> None:
    with pytest.raises(ConfigError, match=r"num_classes = .* should be a whole number >= 1"):
        MODELS[name]((1, 28, 28), classes)


@pytest.mark.parametrize("hidden", [(0,), (-3,), (2.5,), ("8",)])
def test_refuses_widths_that_are_none(hidden: tuple[object, ...]) -> None:
    with pytest.raises(ConfigError, match="hidden"):
        MLP((4,), 2, hidden=hidden)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.sampled_from([1, 4, 6, 16]))
def test_unet_gives_each_pixel_one_logit_a_class(channels: int, tall: int, wide: int, classes: int, width: int) -> None:
    shape = (channels, 4 * tall, 4 * wide)
    module = UNet(shape, classes, width)
    logits = module(torch.randn(2, *shape))
    assert logits.shape == (2, classes, *shape[1:])
    assert torch.isfinite(logits).all()
    assert (module.input_shape, module.num_classes, module.width) == (shape, classes, width)


def test_unet_has_the_parameters_of_its_layers() -> None:
    convolutions = 9 * (1 * 2 + 2 * 2 + 2 * 4 + 4 * 4 + 4 * 8 + 8 * 8 + 8 * 4 + 4 * 4 + 4 * 2 + 2 * 2)
    norms = 2 * 2 * (2 + 4 + 8 + 4 + 2)
    rises = (4 * 8 * 4 + 4) + (4 * 4 * 2 + 2)
    assert count_parameters(UNet((1, 8, 8), 3, width=2)) == convolutions + norms + rises + (2 * 3 + 3)


def test_unet_sees_one_image_at_a_time() -> None:
    module = UNet((1, 8, 8), 2, width=4).train()
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(module(x)[:1], module(x[:1]))


def test_unet_has_no_head_and_travels_whole() -> None:
    def make() -> nn.Module:
        return UNet((1, 8, 8), 2, width=4)

    resident = ResidentModel(make())
    layout = resident.layout
    assert not layout.head.entries and layout.backbone == layout and not layout.counter_size
    params = build_untrained(make, 3, 0)
    resident.load(params)
    np.testing.assert_array_equal(resident.read().vector, params.vector)
    targets = torch.randint(0, 2, (4, 8, 8))
    nn.functional.cross_entropy(resident.module.train()(torch.randn(4, 1, 8, 8)), targets).backward()
    for entry in layout.entries:
        assert entry.view(resident.gradient).any(), entry.name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1, 30, 28), 2), r"model unet: images of 30x28 cannot be halved twice; pad or resize them to 32x28"),
        (((1, 2, 8), 2), r"model unet: images of 2x8 cannot be halved twice; pad or resize them to 4x8"),
        (((64,), 2), r"model unet: input_shape = \(64,\) should be \(channels, height, width\)"),
        (((1, 8, 8), 2, 0), r"model unet: width = 0 should be a whole number >= 1"),
        (((1, 8, 8), 2, True), r"model unet: width = True should be a whole number >= 1"),
    ],
)
def test_unet_refuses(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        UNet(*arguments)


def test_torchvision_is_imported_only_where_its_networks_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"] + ["torchvision"]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it now fails
    fresh = runpy.run_path(cfl_flare.models.__file__)
    assert count_parameters(fresh["CifarCNN"]((3, 32, 32), 10)) == 62_006
    for name in ("resnet18", "mobilenet-v2"):
        with pytest.raises(ImportError):
            fresh["MODELS"][name]((3, 32, 32), 10)
