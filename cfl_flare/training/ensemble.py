# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Predictions of several models: each one's for the same samples, and those of an ensemble together.

Networks that are plain chains of common layers are stacked: the models become one network whose convolutions have K
groups, with each BatchNorm folded into the convolution before it. On a CPU this is 1.5 to 2 times as fast as one model
after the other. First layers that are the same in all models are computed once. Models of any other module are loaded
and called one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfl_flare.core.config import require
from cfl_flare.core.params import Params
from cfl_flare.models import Network
from cfl_flare.training.losses import LINKS
from cfl_flare.training.resident import ResidentModel

VOTES = ("logits", "probabilities")
PLAIN = (nn.MaxPool2d, nn.ReLU, nn.Dropout, nn.Flatten)
# Samples per batch: small enough that the layers' outputs of all models fit into a CPU's cache together.
BATCH = 64
SMALLEST_BATCH = 8

Step = Callable[[Tensor], Tensor]


def combine_outputs(
    outputs: Tensor,
    vote: str,
    link: str = "softmax",
) -> Tensor:
    """Combines the outputs of several models.

    Args:
        outputs: ``(parts, n, classes)``, or ``(parts, n, classes, height, width)`` for masks.
        vote: ``"logits"`` adds them (Fed-CAM Eq. 1, thesis Eq. 7.36); ``"probabilities"`` is soft voting, the mean of
            the parts' predictions: of softmax outputs in FedAvg+ (thesis sec. 3.5.2).
        link: what makes predictions of outputs, one of `LINKS`.

    Returns:
        Outputs of one model, ``(n, classes, ...)``: through the link they are the sum's or the mean's predictions.
    """
    if vote == "logits":
        return outputs.sum(dim=0)
    if link == "identity":
        return outputs.mean(dim=0)
    if link == "exp":
        return _log_mean(outputs)
    if link == "sigmoid":
        return _log_mean(F.logsigmoid(outputs)) - _log_mean(F.logsigmoid(-outputs))
    return _log_mean(outputs.log_softmax(dim=2))


def _log_mean(logarithms: Tensor) -> Tensor:
    return logarithms.logsumexp(dim=0) - torch.tensor(float(len(logarithms))).log()


class Ensemble(nn.Module):
    """Modules that predict together, as one module: they take the same samples.

    `combine_outputs` makes one output of theirs.
    """

    def __init__(
        self,
        parts: Iterable[nn.Module],
        vote: str = "logits",
        link: str = "softmax",
    ):
        super().__init__()
        require(vote in VOTES, f"ensemble: vote = {vote!r} should be one of {VOTES}")
        require(link in LINKS, f"ensemble: link = {link!r} should be one of {LINKS}")
        self.parts = nn.ModuleList(parts)
        self.vote = vote
        self.link = link

    def forward(self, x: Tensor) -> Tensor:
        """Outputs ``(n, classes)`` of samples ``(n, *input_shape)``.

        Args:
            x: samples ``(n, *input_shape)`` float32.
        """
        return combine_outputs(
            torch.stack([part(x) for part in self.parts]), self.vote, self.link
        )


class InUnits(nn.Module):
    """A module that learned a scaled outcome, with outputs in the outcome's unit: ``deviation * network(x) + mean``.

    Args:
        network: the module, or an ensemble.
        mean: of the outcome.
        deviation: of the outcome, above 0.
    """

    def __init__(
        self,
        network: nn.Module,
        mean: float,
        deviation: float,
    ):
        super().__init__()
        self.network = network
        self.mean = mean
        self.deviation = deviation
        first = network.parts[0] if isinstance(network, Ensemble) else network
        self.input_shape = getattr(first, "input_shape", None)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs ``(n, 1)`` of samples ``(n, *input_shape)``.

        Args:
            x: samples ``(n, *input_shape)`` float32.
        """
        outputs: Tensor = self.network(x)
        return outputs * self.deviation + self.mean


@dataclass(frozen=True)
class Served:
    """The model, or the ensemble, with which a participant predicts.

    Attributes:
        models: of the ensemble, or the only one.
        vote: how an ensemble combines them; see `combine_outputs`.
        parts: for each, the part of the participant (see `Learner.part`) whose private layers it predicts with; empty
            where all have the participant's own.
        untrained: arrays, by their names in a model, that are as the run began with them: each participant has trained
            its own, without which this does not predict.
    """

    models: tuple[Params, ...]
    vote: str = "logits"
    parts: tuple[str, ...] = field(default=(), compare=False)
    untrained: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, model: Params | Served) -> Served:
        """Wrap a model that predicts alone.

        Args:
            model: a model.
        """
        return model if isinstance(model, Served) else cls((model,))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, constants included: of one model, or as in the `state_dict` of an `Ensemble`."""
        if len(self.models) == 1:
            return self.models[0].state()
        return {
            f"parts.{i}.{key}": a
            for i, part in enumerate(self.models)
            for key, a in part.state().items()
        }

    @property
    def of_parts(self) -> tuple[str, ...]:
        return self.parts or ("",) * len(self.models)


def list_chain(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """The named layers of a chain: a `Network` whose body is a Sequential of plain layers; None for other modules.

    Args:
        module: the network.
    """
    if type(module).forward is not Network.forward or not isinstance(
        module.body, nn.Sequential
    ):
        return None
    assert isinstance(module, Network)
    layers: list[tuple[str, nn.Module]] = [
        (f"body.{name}", layer) for name, layer in module.body.named_children()
    ]
    layers.append(("head", module.head))
    before: nn.Module | None = None
    for _, layer in layers:
        folds = (
            type(layer) is nn.BatchNorm2d
            and type(before) is nn.Conv2d
            and layer.affine
            and layer.track_running_stats
        )
        convolves = type(layer) is nn.Conv2d and layer.padding_mode == "zeros"
        if not (folds or convolves or type(layer) in (nn.Linear, *PLAIN)):
            return None
        before = layer
    return layers


def ignores_mode(module: nn.Module) -> bool:
    """Whether a module is known to compute the same in training and in evaluation mode.

    Args:
        module: the network.
    """
    layers = list_chain(module)
    return layers is not None and not any(
        isinstance(layer, (nn.BatchNorm2d, nn.Dropout)) for _, layer in layers
    )


class Predictor:
    """Logits of several models.

    Args:
        features: return the backbone's outputs in place of logits; the models may then be backbones alone.
        training: predict in training mode, all samples as one batch. The models' own statistics do not change.
    """

    def __init__(
        self,
        resident: ResidentModel,
        models: Sequence[Params],
        features: bool = False,
        training: bool = False,
    ):
        self._resident = resident
        self._models = list(models)
        self._features = features
        self._training = training
        layers = None if training else list_chain(resident.module)
        self._steps = (
            None
            if layers is None
            else self._stacked(layers[:-1] if features else layers)
        )
        self.batch = (
            BATCH
            if self._steps is None
            else max(SMALLEST_BATCH, BATCH // len(self._models))
        )

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Logits ``(K, n, classes)`` or features ``(K, n, d)`` of samples ``(n, *input_shape)``."""
        self._resident.module.train(
            self._training
        )  # another participant may have trained since this was built
        batch = len(x) if self._training else self.batch
        out = [self._logits(x[i : i + batch]) for i in range(0, len(x), batch)]
        return torch.cat(out, dim=1)

    def _logits(self, x: Tensor) -> Tensor:
        if self._steps is not None:
            for step in self._steps:
                x = step(x)
            return x
        out = []
        for model in self._models:
            self._resident.load(self._complete(model))
            if self._features:
                with self._resident.watching_head() as seen:
                    self._resident.module(x)
                out.append(seen[0])
            else:
                out.append(self._resident.module(x))
        return torch.stack(out)

    def _complete(self, model: Params) -> Params:
        """The model; a backbone alone gets a head of zeros, whose outputs are not used."""
        layout = self._resident.layout
        if model.layout == layout:
            return model
        head = layout.head
        return layout.join(model, Params(head, np.zeros(head.size, np.float32)))

    def _stacked(self, layers: list[tuple[str, nn.Module]]) -> list[Step]:
        """The chain's layers as functions of activations ``(n, K * channels, h, w)`` or ``(K, n, d)``."""
        steps: list[Step] = []
        shared = True  # so far, all models have the same activations
        for i, (name, layer) in enumerate(layers):
            if isinstance(layer, nn.Conv2d):
                follows = (
                    layers[i + 1]
                    if isinstance(layers[i + 1][1], nn.BatchNorm2d)
                    else None
                )
                same = shared and self._same(name, *(follows or ())[:1])
                if (
                    shared and not same and layer.groups > 1
                ):  # each model's groups need channels of their own
                    steps.append(lambda h: h.repeat(1, len(self._models), 1, 1))
                    shared = False
                steps.append(self._convolution(name, layer, follows, shared, same))
                shared = same
            elif isinstance(layer, nn.Linear):
                same = shared and self._same(name)
                steps.append(self._linear(name, shared, same))
                shared = same
            elif isinstance(layer, nn.Flatten) and not shared:
                steps.append(
                    lambda h: h.reshape(len(h), len(self._models), -1).transpose(0, 1)
                )
            elif isinstance(layer, nn.ReLU):
                steps.append(torch.relu if shared else torch.relu_)
            elif not isinstance(layer, nn.BatchNorm2d):
                steps.append(layer)
        if (
            shared
        ):  # the backbone of a linear model: its samples are every model's features
            steps.append(lambda h: h.expand(len(self._models), *h.shape))
        return steps

    def _same(self, *layers: str) -> bool:
        """Whether there are several models, and these layers are the same in all of them."""
        first, *others = self._models
        entries = [
            e for e in first.layout.entries if e.name.rpartition(".")[0] in layers
        ]
        return bool(others) and all(
            m.layout == first.layout
            and all(
                np.array_equal(first.vector[e.slice], m.vector[e.slice])
                for e in entries
            )
            for m in others
        )

    def _stack(
        self,
        name: str,
        models: Sequence[Params],
    ) -> Tensor:
        """One parameter of some models, ``(models, *shape)``."""
        entries = [next(e for e in m.layout.entries if e.name == name) for m in models]
        views = [
            entry.view(torch.from_numpy(m.vector)) for entry, m in zip(entries, models)
        ]
        return torch.stack(views).to(self._resident.flat.device)

    def _convolution(
        self,
        name: str,
        layer: nn.Conv2d,
        follows: tuple[str, nn.Module] | None,
        shared: bool,
        same: bool,
    ) -> Step:
        models = self._models[: 1 if same else None]
        weight = self._stack(f"{name}.weight", models)
        if layer.bias is not None:
            bias = self._stack(f"{name}.bias", models)
        else:
            bias = torch.zeros(weight.shape[:2])
        if follows is not None:
            names = ("weight", "bias", "running_mean", "running_var")
            norm = {key: self._stack(f"{follows[0]}.{key}", models) for key in names}
            scale = norm["weight"] / torch.sqrt(norm["running_var"] + follows[1].eps)  # type: ignore[operator]
            weight = weight * scale[:, :, None, None, None]
            bias = (bias - norm["running_mean"]) * scale + norm["bias"]
        # Copied into new memory: with one input channel torch considers any order channels-last, and would then compute
        # and pool in the slow one.
        last = weight.flatten(0, 1).permute(0, 2, 3, 1)
        kernel = (
            torch.empty(last.shape, device=last.device).copy_(last).permute(0, 3, 1, 2)
        )
        groups = layer.groups * (1 if shared else len(models))
        flat = bias.flatten().to(kernel.device)
        return lambda h: F.conv2d(
            h, kernel, flat, layer.stride, layer.padding, layer.dilation, groups
        )

    def _linear(
        self,
        name: str,
        shared: bool,
        same: bool,
    ) -> Step:
        models = self._models[: 1 if same else None]
        weight = self._stack(f"{name}.weight", models).transpose(1, 2).contiguous()
        has_bias = any(
            entry.name == f"{name}.bias" for entry in self._resident.layout.entries
        )
        if has_bias:
            bias = self._stack(f"{name}.bias", models)[:, None]
        else:
            bias = torch.zeros(1, device=weight.device)
        if same:
            return lambda h: torch.matmul(h, weight[0]) + bias[0]
        if shared:
            return lambda h: torch.matmul(h, weight) + bias
        return lambda h: torch.baddbmm(bias, h, weight)
