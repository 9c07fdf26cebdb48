# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedCUAU's cluster layers: the part of a model of which each cluster has a copy, beside the layers that all share."""

from __future__ import annotations

from collections.abc import Sequence

from cfl_flare.core.config import require
from cfl_flare.core.params import Layout, Params


def last_block(layout: Layout, headless: bool) -> list[str]:
    """The backbone's last block with a convolution and all layers after it, the head among them if it travels.

    For ResNet-18 these are its last block and the head, for LEAF's network the last convolution and the fully connected
    layers (sec. 6.3). Without a convolution they are the backbone's last layer and the head, or the head alone where
    nothing else would be shared.

    A block is what the names of the backbone's layers first differ in: ``body.layer4``, ``body.features.18``.
    """
    names = [e.name.split(".") for e in layout.backbone.entries if e.kind == "parameter"]
    depth = next((d for d in range(1, max(map(len, names), default=1)) if len({tuple(n[:d]) for n in names}) > 1), 1)
    blocks = list(dict.fromkeys(".".join(n[:depth]) for n in names))
    convolves = {b for b in blocks for e in layout.entries if len(e.shape) in (4, 5) and _within(e.name, b)}
    last = max((i for i, b in enumerate(blocks) if b in convolves), default=0) or len(blocks) - 1
    head = [] if headless else list(dict.fromkeys(e.name.rpartition(".")[0] for e in layout.entries if e.head))
    return (blocks[last:] if last or headless else []) + head


def split_layers(whole: Layout, names: Sequence[str], where: str) -> tuple[Layout, Layout]:
    """The shared layers and the cluster layers of what travels of a model.

    Args:
        whole: what travels.
        names: the cluster layers, as names or beginnings of names.
        where: the beginning of the error messages.

    Raises:
        ConfigError: a name is unknown, or one of the two parts is empty.
    """
    there = ", ".join(dict.fromkeys(e.name.rpartition(".")[0] or e.name for e in whole.entries))
    unknown = [name for name in names if not any(_within(e.name, name) for e in whole.entries)]
    require(not unknown, f"{where}: no {unknown[:1]} travels; there: {there}")
    copied = {e.name for e in whole.entries if any(_within(e.name, name) for name in names)}
    shared, cluster = whole.restricted({e.name for e in whole.entries} - copied), whole.restricted(copied)
    way_out = "set cluster_layers, or take a model with more layers"
    for part, what in ((shared, "shared"), (cluster, "cluster")):
        require(part.parameter_size > 0, f"{where} leave no {what} layers of {there}; {way_out}")
    return shared, cluster


def parameters_outside(part: Layout, whole: Layout) -> list[str]:
    """The names of a model's parameters that do not belong to a part of it."""
    names = {e.name for e in part.entries}
    return [e.name for e in whole.entries if e.kind == "parameter" and e.name not in names]


def with_part(model: Params, part: Params) -> Params:
    """The model with the arrays of a part in place of its own."""
    return model.layout.pack({**model.arrays(), **part.arrays()})


def _within(name: str, prefix: str) -> bool:
    return f"{name}.".startswith(f"{prefix}.")
