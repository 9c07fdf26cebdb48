# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A network's trial at check-in: what is refused, what is remarked on, and what is left alone."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfl_flare.core.errors import ConfigError, FitError
from cfl_flare.core.networks import describe_network
from cfl_flare.data import ParticipantData, Samples
from cfl_flare.engine.site import Site
from cfl_flare.methods import FedAvg
from cfl_flare.training.resident import ResidentModel
from cfl_flare.training.settings import TrainSettings


class Plain(nn.Module):
    """Two classes of four features; each network below differs from it in one point."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.relu(self.first(x)))


class OneOutput(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 1)


class EndsInLayer(nn.Sequential):
    def __init__(self, end: nn.Module | None = None) -> None:
        super().__init__(nn.Linear(4, 2), nn.Softmax(dim=1) if end is None else end)


class EndsInTanh(EndsInLayer):
    def __init__(self) -> None:
        super().__init__(nn.Tanh())


class EndsInFunction(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(super().forward(x), dim=1)


class EndsByHand(Plain):
    def forward(self, x: Tensor) -> Tensor:
        raised = super().forward(x).exp()
        return raised / raised.sum(dim=1, keepdim=True)


class EndsInSigmoid(OneOutput):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(super().forward(x)).reshape(-1, 1)


class EndsInRelu(OneOutput):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


class EndsInEvaluation(Plain):
    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        return outputs if self.training else outputs.softmax(dim=1)


class EndsInLogarithms(Plain):
    """A second log_softmax changes nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(super().forward(x), dim=1)


class HeadFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.body = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)))


class SecondHead(Plain):
    """A head of an earlier task that is in no output."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(3, 5)


class Renamed(Plain):
    """A state_dict with other names, as of adapters."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return OrderedDict((f"base.{name}", value) for name, value in super().state_dict(*args, **kwargs).items())


class OverSamples(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - super().forward(x).mean(dim=0)


class RandomAlways(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(torch.relu(self.first(x)) + 1))


class Reducing(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mean(dim=0, keepdim=True)


class FewAtOnce(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 5:
            raise RuntimeError("too many")
        return super().forward(x)


class FewInTraining(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) > 3:
            raise RuntimeError("too many")
        return super().forward(x)


class InPlace(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


class ComplexOutputs(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return torch.complex(super().forward(x), super().forward(x))


class InfiniteGradient(Plain):
    """Its loss is finite."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (self.last.bias * 0).sqrt()


class NoStatistics(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)))


class WantsMask(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x * mask)


class EndsProgram(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise SystemExit(3)
        return super().forward(x)


class ReplacesParameter(Plain):
    def forward(self, x: Tensor) -> Tensor:
        self.last.weight.data = F.normalize(self.last.weight.data)
        return super().forward(x)


class MakesLayer(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(2, 2)
        return self.late(super().forward(x))


class GrowingNetwork(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.zeros(0, 4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.bank = torch.cat([self.bank, x])
        return super().forward(x)


class ReplacesBuffers(Plain):
    """A mean and a number of steps that forward() assigns and does not change in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = (self.mean + x.mean(dim=0)) / 2
            self.steps = self.steps + 1
        return super().forward(x - self.mean)


class FailsByChance(Plain):
    """It fails in its first step alone."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = False

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.failed:
            self.failed = True
            raise RuntimeError("unlucky")
        return super().forward(x)


class SharesMemory(Plain):
    """A weight that is another one's transpose, in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.decode = nn.Parameter(self.first.weight.T)


class Hashed(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hash", torch.tensor(2**60))


class WeightNormed(Plain):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.weight_norm(self.first)
        nn.utils.spectral_norm(self.last)


class Pruned(Plain):
    def __init__(self) -> None:
        super().__init__()
        from torch.nn.utils import prune

        prune.l1_unstructured(self.first, "weight", amount=0.5)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.LSTM(1, 3, batch_first=True)
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.reader(x[:, :, None])[0][:, -1])


def draw_samples(seed: int = 0, number: int = 13) -> Samples:
    x = np.random.default_rng(seed).normal(size=(number, 4)).astype(np.float32)
    return Samples(x, (x[:, 0] > 0).astype(np.int64))


def check_in(cls: type, task: str = "classification", samples: Samples | None = None, name: str = "a") -> Site:
    samples = samples or draw_samples()
    training = TrainSettings(batch_size=5, lr=0.1, local_steps=3, task=task)
    site = Site(FedAvg(), cls, training, seed=0)
    site.add([ParticipantData(name, samples, samples)])
    return site


@pytest.mark.parametrize(
    ("cls", "task", "remark"),
    [
        (EndsInLayer, "classification", "ends with Softmax in its layer '1', and .* logits.*; leave Softmax out"),
        (EndsInTanh, "classification", "ends with Tanh in its layer '1'"),
        (EndsInFunction, "classification", r"ends with Softmax in forward\(\)"),
        (EndsInEvaluation, "classification", r"ends with Softmax in forward\(\)"),
        (EndsByHand, "classification", "ends with probabilities"),
        (EndsInSigmoid, "binary", r"ends with Sigmoid in forward\(\), and .* logits"),
        (EndsInRelu, "regression:mean=3,deviation=2", "ends with Relu .*scaled"),
        (HeadFirst, "classification", "'body', computes before other layers, and .*'head'"),
        (SecondHead, "classification", "'other', computes in no output"),
        (OverSamples, "classification", "depend on the other samples"),
        (RandomAlways, "classification", "random in evaluation"),
        (InfiniteGradient, "classification", "not finite before any training"),
    ],
)
def test_remark_names_place_and_hint(cls: type, task: str, remark: str) -> None:
    (said,) = check_in(cls, task).remarks
    assert re.search(remark, said)
    assert said.count("; ") == 1


@pytest.mark.parametrize(
    ("cls", "task"),
    [
        (Plain, "classification"),
        (EndsInLogarithms, "classification"),
        (EndsInRelu, "regression"),
        (OneOutput, "binary"),
        (Recurrent, "classification"),
        (Renamed, "classification"),
        (ReplacesBuffers, "classification"),
    ],
)
def test_usual_networks_have_no_remark(cls: type, task: str) -> None:
    assert check_in(cls, task).remarks == []


@pytest.mark.parametrize(
    ("cls", "refusal"),
    [
        (Reducing, r"shape \(1, 2\) for 13 samples, where \(13, 2\)"),
        (FewAtOnce, r"not 13 at once \(RuntimeError: too many\)"),
        (FewInTraining, r"in training on 5 samples"),
        (InPlace, r"changes its samples in place.*; .*clone"),
        (ComplexOutputs, r"torch.complex64.*: .*real"),
        (NoStatistics, r"; .*track_running_stats=True"),
        (WantsMask, r"; .*its only argument"),
        (EndsProgram, r"SystemExit.*; "),
        (ReplacesParameter, r"'last.weight'.*; .*copy_"),
        (MakesLayer, r"'late.weight' when it computes.*; .*constructor"),
        (GrowingNetwork, r"buffer 'bank' of shape \(0, 4\).*; "),
    ],
)
def test_refused_with_reason_and_hint(cls: type, refusal: str) -> None:
    with pytest.raises(FitError, match=refusal):
        check_in(cls)


@pytest.mark.parametrize(
    ("cls", "refusal"),
    [
        (SharesMemory, r"'first.weight' and 'decode' have numbers in common|'decode' and 'first.weight' have"),
        (Hashed, r"'hash' holds a whole number beyond 2\*\*53.*; "),
    ],
)
def test_refused_before_data_is_read(cls: type, refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        ResidentModel(cls())


def test_samples_stay_as_they_are() -> None:
    samples = draw_samples()
    before = samples.x.copy()
    with pytest.raises(FitError):
        check_in(InPlace, samples=samples)
    assert np.array_equal(samples.x, before)


def test_failure_by_chance_is_no_refusal() -> None:
    assert check_in(FailsByChance).remarks == []


def test_replaced_buffers_travel() -> None:
    site = check_in(ReplacesBuffers)
    learner = site.learner("a", {}, 0)
    trained = learner.train(learner.initial(0)).arrays()
    assert trained["steps"] == 3  # one in each local step
    assert np.abs(trained["mean"]).min() > 0


def test_replaced_buffers_stay_with_their_participant() -> None:
    site = check_in(ReplacesBuffers)
    other = draw_samples(seed=1)
    site.add([ParticipantData("b", other, other)])
    alone = check_in(ReplacesBuffers, samples=other, name="b")
    start = site.learner("a", {}, 0).initial(0)
    site.learner("a", {}, 0).train(start)
    after = site.learner("b", {}, 0).train(start)
    expected = alone.learner("b", {}, 0).train(start)
    assert np.array_equal(after.vector, expected.vector)
    assert after.counters.tolist() == expected.counters.tolist() == [3]


def test_head_of_renamed_state_is_found() -> None:
    site = check_in(Renamed)
    with site.runtime.resident.watching_head() as seen:
        site.runtime.resident.module(torch.zeros(2, 4))
    assert seen[0].shape == (2, 3)


@pytest.mark.parametrize("cls", [WeightNormed, Pruned, Recurrent])
def test_recipe_takes_computed_weights(cls: type) -> None:
    describe_network(cls())
