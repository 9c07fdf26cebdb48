# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What travels is what ``state_dict()`` names: adapters under other names, tied weights under both of theirs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.params import Layout
from cfl_flare.training.resident import ResidentModel


class Adapted(nn.Module):
    """Frozen but for an adapter, which alone is in its state, under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 3).requires_grad_(False)
        self.adapter = nn.ModuleDict({"default": nn.Linear(3, 2, bias=False)})

    def state_dict(self, *args, **kwargs):
        return {"model.adapter.weight": self.adapter["default"].weight.detach()}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Linear(3, 4, bias=False)
        self.out.weight = self.embed.weight


def test_only_what_the_state_names_travels():
    module = Adapted()
    layout = Layout.of(module)
    assert [(e.name, e.kind, e.head) for e in layout.entries] == [("model.adapter.weight", "parameter", True)]
    resident = ResidentModel(module)
    np.testing.assert_array_equal(
        resident.read().arrays()["model.adapter.weight"], module.adapter["default"].weight.detach().numpy()
    )
    resident.load(layout.pack({"model.adapter.weight": np.arange(6.0).reshape(2, 3)}))
    assert module.adapter["default"].weight.detach().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_state_of_copies_is_taken_as_parameters():
    class Copies(Adapted):
        def state_dict(self, *args, **kwargs):
            return {name: value.clone() for name, value in super().state_dict().items()}

    assert [e.kind for e in Layout.of(Copies()).entries] == ["parameter"]


def test_a_tied_weight_is_held_once_and_travels_under_both_names():
    module = Tied()
    model = ResidentModel(module).read()
    assert model.layout.tied == (("out.weight", "embed.weight"),)
    assert model.layout.parameter_size == 4 * 3 + 3 + 3
    assert model.arrays().keys() == module.state_dict().keys() == model.layout.shapes.keys()
    Tied().load_state_dict({name: torch.tensor(a) for name, a in model.arrays().items()}, strict=True)


@pytest.mark.parametrize("names", [("embed.weight",), ("out.weight",), ("embed.weight", "out.weight")])
def test_a_tied_weight_arrives_under_any_of_its_names(names):
    layout = Layout.of(Tied())
    new = np.arange(12.0).reshape(4, 3)
    arrays = {n: np.zeros(s) for n, s in layout.shapes.items() if n not in ("embed.weight", "out.weight")}
    packed = layout.pack({**arrays, **dict.fromkeys(names, new)})
    np.testing.assert_array_equal(packed.arrays()["out.weight"], new)
    with pytest.raises(PayloadError, match="is missing"):
        layout.pack(arrays)


def test_a_part_keeps_the_tied_names_of_its_entries():
    layout = Layout.of(Tied())
    assert layout.restricted(["norm.weight"]).tied == ()
    assert layout.restricted(["out.weight"]).tied == layout.tied


def test_a_volume_s_convolution_keeps_its_order():
    module = nn.Sequential(nn.Conv3d(2, 3, (1, 2, 3)), nn.ConvTranspose3d(3, 2, 2))
    before = {n: t.detach().clone() for n, t in module.state_dict().items()}
    model = ResidentModel(module).read()
    assert all(np.array_equal(before[n], a) for n, a in model.arrays().items())
    again = model.layout.pack(model.arrays())
    np.testing.assert_array_equal(again.vector, model.vector)


def test_weights_that_share_their_memory_are_tied():
    module = Tied()
    module.out.weight = nn.Parameter(torch.zeros(4, 3))
    assert not Layout.of(module).tied
    module.out.weight.data = module.embed.weight.data
    assert Layout.of(module).tied == (("out.weight", "embed.weight"),)
