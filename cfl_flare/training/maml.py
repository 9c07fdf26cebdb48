# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""First-order MAML: trains a model to perform well after one more gradient step on a participant's own data.

One step (FedDSMIC Alg. 2, Eq. 15-16; Fallah et al. 2020, Per-FedAvg (FO)), with two independent batches D and D'::

    w_hat = w - eta grad l(w; D)
    w     = w - eps grad l(w_hat; D')

The first line is a plain gradient step; the second is the run's optimizer, with its learning rate eps, momentum and
weight decay. Penalties are part of l in both. D' is the batch that plain SGD would have drawn, so that eta = 0 is plain
SGD; D comes from a random stream of its own. BatchNorm's running statistics are updated by D' alone, once per step as
in ordinary training; the updates by D are undone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from cfl_flare.training.resident import ResidentModel


def descend(resident: ResidentModel, lr: float) -> None:
    """One plain gradient step, w - lr * grad, with the gradient computed last."""
    with torch.no_grad():
        resident.parameters.sub_(resident.gradient, alpha=lr)


@contextlib.contextmanager
def ahead(resident: ResidentModel, lr: float, backward: Callable[[], None]) -> Iterator[None]:
    """Inside it, the model is w_hat = w - eta grad l(w; D) (FedDSMIC Eq. 15); after it, w again.

    A gradient computed inside it is that of Eq. 16, and an optimizer that steps after it steps from w.

    Args:
        resident: holds w.
        lr: eta.
        backward: computes grad l(w; D).
    """
    before = resident.parameters.detach().clone()
    with resident.keeping_statistics():
        backward()
    descend(resident, lr)
    try:
        yield
    finally:
        with torch.no_grad():
            resident.parameters.copy_(before)
