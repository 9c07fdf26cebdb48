# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Which arrays of a model a setting `private` names."""

import numpy as np
import pytest
from torch import nn

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Params
from cfl_flare.core.private import Division, bounded
from cfl_flare.models import MLP


class OwnNorm(nn.Module):
    """A normalisation layer of somebody's own, around a network as its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inside = nn.Parameter(nn.Linear(1, 3).bias.data), nn.Linear(3, 3)


class Normed(nn.Module):
    """Normalisation layers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3)
        self.own, self.group, self.head = OwnNorm(), nn.GroupNorm(1, 3), nn.Linear(3, 2)


class Tied(nn.Module):
    """The last layer's weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight


BN = {f"bn.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}


@pytest.mark.parametrize(
    ("private", "names"),
    [
        ("norm", {*BN, "own.scale", "group.weight", "group.bias"}),
        ("bias", {"conv.bias", "bn.bias", "own.inside.bias", "group.bias", "head.bias"}),
        ("head", {"head.weight", "head.bias"}),
        ("^conv|tracked", {"conv.weight", "conv.bias", "bn.num_batches_tracked"}),
    ],
)
def test_words_and_patterns(private, names):
    module = Normed()
    found = Division.of(module, private)
    assert set(found.names) == names
    assert {e.name for e in found.public.entries} | names == set(module.state_dict())
    whole = found.layout.pack({name: array.numpy() for name, array in module.state_dict().items()})
    parts = whole.take(found.private), whole.take(found.public)
    again = found.joined(parts[1], parts[0])
    np.testing.assert_array_equal(again.vector, whole.vector)
    np.testing.assert_array_equal(again.counters, whole.counters)


def test_without_the_setting_all_travels():
    found = Division.of(Normed(), None)
    assert found.public is found.layout
    assert (found.private, found.names) == (None, [])


def test_a_tied_weight_stays_by_either_name():
    assert Division.of(Tied(), "last.weight").names == Division.of(Tied(), "first.weight").names == ["first.weight"]


def test_a_part_of_a_model_gets_its_private_layers_too():
    found = Division.of(Normed(), "norm")
    backbone = found.public.backbone
    part = Params(backbone, np.ones(backbone.size, np.float32))
    own = Params(found.private, np.zeros(found.private.size, np.float32), np.zeros(1, np.int64))
    joined = found.joined(part, own)
    assert {e.name for e in joined.layout.entries} == {e.name for e in found.layout.entries if not e.head}
    assert joined.arrays()["bn.weight"].sum() == 0
    assert joined.arrays()["conv.bias"].sum() == 3


@pytest.mark.parametrize(
    ("module", "private", "says"),
    [
        (MLP((1, 2, 2), 2), "norm", "private = 'norm': there is no normalisation layer in the model; name arrays of "),
        (MLP((1, 2, 2), 2), "conv", "private = 'conv': it matches nothing in the model; name arrays of body"),
        (MLP((1, 2, 2), 2), ".", "matches all parameters: nothing would be left to learn together"),
        (nn.Sequential(nn.Linear(2, 2, bias=False)), "head", "matches all parameters"),
        (MLP((1, 2, 2), 2), "(", r"private = '\(' is not a regular expression"),
        (MLP((1, 2, 2), 2), 7, "private = 7 is not a regular expression"),
    ],
)
def test_refusals(module, private, says):
    with pytest.raises(ConfigError, match=says):
        Division.of(module, private)


BACKTRACK = [
    "(a+)+$", "(a|ab)*c", "(.*)*x", ".*.*.*.*.*x", "((ab?)*)*c", "(a?){60}a{60}", "a?" * 60 + "a" * 60, "(?=(a+)+)b",
    "(a*?)*?b", "((a{1,50}){1,50}){1,50}", "(?i:(a+)+)", "(x+x+)+y", r"(\w+\.?)+$", "(a)(?(1)b+|c+)(?(1)(d+)+|e)f",
    "(aa|aaa)" * 60, "a" * 10_000, "(" * 499,
]  # fmt: skip


@pytest.mark.parametrize("pattern", BACKTRACK)
@pytest.mark.parametrize("real_names", [True, False])
def test_a_pattern_that_could_be_searched_for_ever_is_refused_before_it_is_searched(pattern, real_names):
    """The names are an author's as well: of 60 times ``a`` they take ``(a+)+$`` more than a lifetime."""
    names = [f"layer{i}.0.conv1.weight" for i in range(62)] if real_names else ["a" * 60 + "b"] * 62
    with pytest.raises(ConfigError, match=r"^run: private .*(for ever|characters|no regular|not a regular)"):
        bounded(pattern, names, "run: private = 'x'")


@pytest.mark.parametrize("pattern", ["bn|norm", r"(^|\.)head\.", r"^layer.*\.(bn|norm)\d*\.(weight|bias)$", "(a{2}){3}",
                                     r"(?!fc)\w+\.bias", r"(\w+)\.(\w+)\.bn", "(?:layer1\\.)+"])  # fmt: skip
def test_usual_patterns_are_searched_as_they_are(pattern):
    names = [f"layer{i}.{j}.bn{k}.running_mean" for i in range(4) for j in range(4) for k in range(4)]
    assert bounded(pattern, names, "run").pattern == pattern
