# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of single samples, clipped and summed, by Opacus."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from cfl_flare.core.errors import ConfigError
from cfl_flare.training.privacy import require_opacus
from cfl_flare.training.resident import ResidentModel


def check_network(module: nn.Module) -> None:
    """Raises a ConfigError if Opacus cannot tell the gradients of single samples in a network."""
    require_opacus()
    from opacus.validators import ModuleValidator

    if errors := ModuleValidator.validate(module, strict=False):
        layers = sorted(
            {
                type(m).__name__
                for m in module.modules()
                if "BatchNorm" in type(m).__name__
            }
        )
        reason = (
            f"{layers[0]} mixes the samples of a batch"
            if layers
            else str(errors[0]).splitlines()[0]
        )
        way_out = "take a network with norm=group, as resnet18:norm=group, or one without; private layers do not help"
        raise ConfigError(
            f"model {type(module).__name__}: dp protects single samples, and {reason}; {way_out}"
        )


class SampleGradients:
    """The sum of clipped gradients of single samples of a resident model, by Opacus."""

    def __init__(self, resident: ResidentModel):
        require_opacus()
        from opacus import GradSampleModule

        self._resident = resident
        for layer in (
            resident.module.modules()
        ):  # what a layer with a hook returns may not be changed in place
            if getattr(layer, "inplace", False):
                layer.inplace = False  # type: ignore[assignment]
        self._module = GradSampleModule(resident.module, loss_reduction="mean")
        self._module.GRAD_SAMPLERS = {
            **GradSampleModule.GRAD_SAMPLERS,
            nn.Conv2d: _of_convolution,
        }
        self._module.disable_hooks()

    def add(
        self,
        loss_of: Callable[[], Tensor],
        max_grad_norm: float,
        total: Tensor,
        patient: np.ndarray | None = None,
    ) -> None:
        """Adds to ``total (layout.parameter_size,)`` the gradient of each sample, scaled down to the norm.

        It is that of each patient's mean where ``patient (n,)`` has the number of each sample's patient. ``loss_of``
        computes the mean loss of a batch on the resident module. The norm is C in Abadi et al. 2016, Alg. 1.
        """
        from opacus.optimizers import DPOptimizer

        named = [
            (n.removeprefix("_module."), p)
            for n, p in self._module.named_parameters()
            if p.requires_grad
        ]
        entries = {e.name: e for e in self._resident.layout.entries}
        still = torch.optim.SGD([p for _, p in named], lr=0.0)
        clipping = DPOptimizer(
            still,
            noise_multiplier=0.0,
            max_grad_norm=max_grad_norm,
            expected_batch_size=None,
            loss_reduction="sum",
        )
        self._module.enable_hooks()
        try:
            with warnings.catch_warnings():  # of torch, as the samples need no gradient
                warnings.filterwarnings(
                    "ignore", message="Full backward hook is firing"
                )
                loss_of().backward()
            for (
                _,
                parameter,
            ) in (
                named
            ):  # a sample without a finite gradient would show, and no factor clips it
                gradients = torch.nan_to_num(
                    parameter.grad_sample, nan=0.0, posinf=0.0, neginf=0.0
                )
                parameter.grad_sample = (
                    gradients if patient is None else _means(gradients, patient)
                )
            clipping.clip_and_accumulate()
        finally:
            self._module.disable_hooks()
        for name, parameter in named:
            entries[name].view(total).add_(parameter.summed_grad)
            parameter.summed_grad = parameter.grad_sample = None


def _means(gradients: Tensor, patient: np.ndarray) -> Tensor:
    """The mean over each patient's samples of gradients ``(n, ...)``: ``(patients, ...)``."""
    _, number, counts = np.unique(patient, return_inverse=True, return_counts=True)
    shares = (
        torch.from_numpy(1 / counts[number])
        .to(gradients)
        .view(-1, *(1,) * (gradients.dim() - 1))
    )
    means = gradients.new_zeros((len(counts), *gradients.shape[1:]))
    return means.index_add_(
        0, torch.from_numpy(number).to(gradients.device), gradients * shares
    )


def _of_convolution(
    layer: nn.Conv2d, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Opacus unfolds images as if channels came first in memory. Here they come last."""
    from opacus.grad_sample.conv import compute_conv_grad_sample

    return dict(
        compute_conv_grad_sample(
            layer, [a.contiguous() for a in activations], backprops
        )
    )
