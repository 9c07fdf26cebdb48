# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cfl_flare.models import FashionCNN
from cfl_flare.params import Layout, Params
from cfl_flare.training.penalties import Proximal

LAYOUT = Layout.of(nn.Linear(2, 1))


def test_the_proximal_term_by_hand() -> None:
    penalty = Proximal(0.5, Params(LAYOUT, np.array([1, 2, 3], np.float32)))
    parameters = torch.tensor([1.0, 0.0, 6.0], requires_grad=True)
    value = penalty(parameters)
    value.backward()
    assert value.shape == ()
    assert value.item() == pytest.approx(0.25 * (0 + 4 + 9))
    assert parameters.grad is not None
    assert parameters.grad.tolist() == pytest.approx([0, -1, 1.5])


@pytest.mark.parametrize("mu", [0.0, 0.001, 3.0])
def test_its_gradient_is_that_of_finite_differences(mu: float) -> None:
    rng = np.random.default_rng(0)
    penalty = Proximal(mu, Params(LAYOUT, rng.normal(size=3).astype(np.float32)))
    parameters = torch.tensor(rng.normal(size=3), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(penalty, (parameters,), eps=1e-6, atol=1e-8)


def test_it_holds_parameters_and_no_buffers() -> None:
    layout = Layout.of(FashionCNN((1, 8, 8), 3))
    anchor = np.zeros(layout.size, np.float32)
    anchor[layout.parameter_size :] = 1e6
    penalty = Proximal(2.0, Params(layout, anchor, np.zeros(2, np.int64)))
    assert penalty(torch.ones(layout.parameter_size)).item() == pytest.approx(layout.parameter_size)


def test_the_anchor_is_not_changed() -> None:
    anchor = np.array([1, 2, 3], np.float32)
    parameters = torch.zeros(3, requires_grad=True)
    Proximal(1.0, Params(LAYOUT, anchor))(parameters).backward()
    assert anchor.tolist() == [1, 2, 3]
