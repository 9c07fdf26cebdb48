# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""First-order MAML: a model is trained for what it becomes after one more gradient step on a participant's own data.

One step (FedDSMIC Alg. 2, Eq. 15-16; Fallah et al. 2020, Per-FedAvg (FO)), with two independent batches D and D'::

    w_hat = w - eta grad l(w; D)
    w     = w - eps grad l(w_hat; D')

The second line is the run's optimizer, with its learning rate eps, momentum and weight decay; the first is a plain
gradient step. Penalties are a part of l in both. D' are the batches that plain SGD would have drawn, so that eta = 0 is
plain SGD; D come from a stream of their own. BatchNorm's running statistics are moved by D' alone, once a step as in
ordinary training: those of D are undone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from cfl_flare.training.resident import ResidentModel


def descend(resident: ResidentModel, lr: float) -> None:
    """One plain gradient step, w - lr * grad, with the gradient that was computed last."""
    with torch.no_grad():
        resident.parameters.sub_(resident.gradient, alpha=lr)


@contextlib.contextmanager
def ahead(resident: ResidentModel, lr: float, backward: Callable[[], None]) -> Iterator[None]:
    """Within it, the model is w_hat = w - eta grad l(w; D) (FedDSMIC Eq. 15); after it, w again.

    A gradient that is computed within it is that of Eq. 16, and an optimizer that steps after it steps from w.

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
