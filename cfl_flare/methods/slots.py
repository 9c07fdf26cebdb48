# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Names of models in the server's bank, ``global``, ``cluster-3``, ``cluster-3:head``, and parts of models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.network_arrays import layer_of
from cfl_flare.core.params import Layout, Params
from cfl_flare.methods.state import Download, Part, ServerState, Update
from cfl_flare.training.ensemble import Served

GLOBAL = "global"
# Names in a method's extras. The first says that there are centres, so that penalties of clusters begin. The second has
# the weights with which the common model is the mean of the clusters' models.
HAS_CENTRES, COMMON_WEIGHTS = "has_centres", "common_weights"
# The clusters' weights w_k (thesis Eq. 5.5), as a participant is sent them for penalties.
CLUSTER_WEIGHTS = "cluster_weights"


def cluster_slot(cluster: int) -> str:
    return f"cluster-{cluster}"


def by_number(slots: Iterable[str]) -> list[str]:
    """Slots in the order of the numbers at their ends."""
    return sorted(slots, key=lambda slot: int(slot.rpartition("-")[2]))


def is_cluster(slot: str) -> bool:
    """True for a cluster's model, also for one of a part of an ensemble, ``1.cluster-0``."""
    return slot.rpartition(".")[2].startswith("cluster-")


def part_slot(slot: str, role: str) -> str:
    """Name under which a part of a model travels; the whole travels under its own."""
    return slot if role == "all" else f"{slot}:{role}"


def whole_slot(slot: str) -> str:
    return slot.partition(":")[0]


def travelling(slots: Iterable[str]) -> list[str]:
    """Each name once, without parts of models that also travel as a whole."""
    every = dict.fromkeys(slots)
    return [
        slot
        for slot in every
        if slot == whole_slot(slot) or whole_slot(slot) not in every
    ]


def with_parts(models: Mapping[str, Params], slots: Iterable[str]) -> dict[str, Params]:
    """The models of these names; parts that are missing are taken from their whole."""
    parts = {}
    for slot in dict.fromkeys(slots):
        name, _, role = slot.partition(":")
        parts[slot] = (
            models[slot]
            if slot in models
            else models[name].take(models[name].layout.of_part(role))
        )
    return parts


BACKBONE = "backbone"
# The help of ``cluster_on``.
COMPARED = (
    "the parameters {} clustered: all, fc (all fully connected layers; all parameters if there is none), head, "
    "backbone, or a list of names"
)


def require_part(layout: Layout, part: Part, refusal: str) -> None:
    """Raises a ConfigError if a model lacks a part; ``refusal`` has a ``{}`` for the reason."""
    try:
        layout.select(part)
    except ConfigError as error:
        raise ConfigError(refusal.format(error)) from error


def shared_backbone(models: Mapping[str, Params]) -> dict[str, Params]:
    """A bank with the models' heads and one backbone for all of them, that of the first model."""
    first = next(iter(models.values()))
    heads = {slot: model.take(model.layout.head) for slot, model in models.items()}
    return {BACKBONE: first.take(first.layout.backbone), **heads}


def on_backbone(sent: Download) -> Download:
    """Adds the shared backbone to a download of heads; every participant trains it and sends it back."""
    joined = dict.fromkeys(sent.slots, BACKBONE)
    return replace(
        sent,
        slots=(BACKBONE, *sent.slots),
        returns=(*sent.returned, BACKBONE),
        joined=joined,
    )


def joined(sent: Download, layout: Layout) -> Download:
    """On the site: puts models that travelled in parts together again, and drops the shared part."""
    if not sent.joined:
        return sent
    parts = dict(zip(sent.slots, sent.models))
    models = {
        s: layout.join(parts[sent.joined[s]], m) if s in sent.joined else m
        for s, m in parts.items()
    }
    left = {s: m for s, m in models.items() if s not in sent.joined.values()}
    return replace(sent, slots=tuple(left), models=tuple(left.values()))


def split(update: Update, sent: Download) -> Update:
    """On the site: turns differences of whole models into differences of the parts that were sent."""
    parts = dict(zip(sent.slots, sent.models))
    diffs = dict(update.diffs)
    for slot in update.diffs.keys() & sent.joined.keys():
        shared = sent.joined[slot]
        diffs[slot] = update.diffs[slot].take(parts[slot].layout)
        diffs[shared] = update.diffs[slot].take(parts[shared].layout)
    return replace(update, diffs=diffs)


def whole_models(
    state: ServerState, layout: Layout, slots: Iterable[str]
) -> dict[str, Served]:
    """The models of a bank in these slots, joined with the shared backbone if there is one."""
    shared = state.bank.get(BACKBONE)
    models = {slot: state.bank[slot] for slot in slots}
    return {
        s: Served((m if shared is None else layout.join(shared, m),))
        for s, m in models.items()
    }


def last_block(layout: Layout, headless: bool) -> list[str]:
    """The backbone's last block with a convolution and all layers after it, the head among them if it travels.

    For ResNet-18 these are its last block and the head, for LEAF's network the last convolution and the fully connected
    layers (sec. 6.3). Without a convolution they are the backbone's last layer and the head, or the head alone where
    nothing else would be shared.

    A block is what the names of the backbone's layers first differ in: ``body.layer4``, ``body.features.18``.
    """
    names = [
        e.name.split(".") for e in layout.backbone.entries if e.kind == "parameter"
    ]
    depth = next(
        (
            d
            for d in range(1, max(map(len, names), default=1))
            if len({tuple(n[:d]) for n in names}) > 1
        ),
        1,
    )
    blocks = list(dict.fromkeys(".".join(n[:depth]) for n in names))
    convolves = {
        b
        for b in blocks
        for e in layout.entries
        if len(e.shape) in (4, 5) and _within(e.name, b)
    }
    last = (
        max((i for i, b in enumerate(blocks) if b in convolves), default=0)
        or len(blocks) - 1
    )
    head = (
        []
        if headless
        else list(dict.fromkeys(layer_of(e.name) for e in layout.entries if e.head))
    )
    return (blocks[last:] if last or headless else []) + head


def split_layers(
    travels: Layout, names: Sequence[str], where: str
) -> tuple[Layout, Layout]:
    """The shared layers and the cluster layers of what travels of a model.

    ``names`` are the cluster layers, as names or beginnings of names, ``where`` begins the message of a ConfigError: a
    name is unknown, or one of the two parts is empty.
    """
    there = ", ".join(
        dict.fromkeys(e.name.rpartition(".")[0] or e.name for e in travels.entries)
    )
    unknown = [
        name
        for name in names
        if not any(_within(e.name, name) for e in travels.entries)
    ]
    require(not unknown, f"{where}: no {unknown[:1]} travels; there: {there}")
    copied = {
        e.name for e in travels.entries if any(_within(e.name, name) for name in names)
    }
    shared, cluster = (
        travels.restricted({e.name for e in travels.entries} - copied),
        travels.restricted(copied),
    )
    way_out = "set cluster_layers, or take a model with more layers"
    for part, what in ((shared, "shared"), (cluster, "cluster")):
        require(
            part.parameter_size > 0,
            f"{where} leave no {what} layers of {there}; {way_out}",
        )
    return shared, cluster


def parameters_outside(part: Layout, layout: Layout) -> list[str]:
    """The names of a model's parameters that do not belong to a part of it."""
    names = {e.name for e in part.entries}
    return [
        e.name for e in layout.entries if e.kind == "parameter" and e.name not in names
    ]


def with_part(model: Params, part: Params) -> Params:
    """The model with the arrays of a part in place of its own."""
    return model.layout.pack({**model.arrays(), **part.arrays()})


def _within(name: str, prefix: str) -> bool:
    return f"{name}.".startswith(f"{prefix}.")
