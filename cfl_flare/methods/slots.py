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
# Names in a method's extras. The first states that there are centres, so that penalties of clusters begin. The second
# has the weights with which the common model is the mean of the clusters' models.
HAS_CENTRES = "has_centres"
COMMON_WEIGHTS = "common_weights"
# The clusters' weights w_k (thesis Eq. 5.5), as a participant is sent them for penalties.
CLUSTER_WEIGHTS = "cluster_weights"


def cluster_slot(cluster: int) -> str:
    """Name the model of a cluster.

    Args:
        cluster: the number of a cluster.
    """
    return f"cluster-{cluster}"


def sort_by_number(slots: Iterable[str]) -> list[str]:
    """Slots in the order of the numbers at their ends.

    Args:
        slots: names of models.
    """
    return sorted(slots, key=lambda slot: int(slot.rpartition("-")[2]))


def is_cluster(slot: str) -> bool:
    """True for a cluster's model, also for one of a part of an ensemble, ``1.cluster-0``.

    Args:
        slot: the name of a model in the bank.
    """
    return slot.rpartition(".")[2].startswith("cluster-")


def part_slot(
    slot: str,
    role: str,
) -> str:
    """Name under which a part of a model travels; the whole travels under its own.

    Args:
        slot: the name of a model in the bank.
        role: ``all``, or a part such as ``head``.
    """
    return slot if role == "all" else f"{slot}:{role}"


def whole_slot(slot: str) -> str:
    """Name the whole model to which a part belongs.

    Args:
        slot: the name of a model in the bank.
    """
    return slot.partition(":")[0]


def list_travelling(slots: Iterable[str]) -> list[str]:
    """Each name once, without parts of models that also travel as a whole.

    Args:
        slots: names of models.
    """
    every = dict.fromkeys(slots)
    return [
        slot
        for slot in every
        if slot == whole_slot(slot) or whole_slot(slot) not in every
    ]


def add_parts(
    models: Mapping[str, Params],
    slots: Iterable[str],
) -> dict[str, Params]:
    """The models of these names; parts that are missing are taken from their whole.

    Args:
        models: models by slot.
        slots: names of models.
    """
    found = {}
    for slot in dict.fromkeys(slots):
        if slot in models:
            found[slot] = models[slot]
            continue
        name, _, role = slot.partition(":")
        whole = models[name]
        found[slot] = whole.take(whole.layout.of_part(role))
    return found


BACKBONE = "backbone"
# The help of ``cluster_on``.
COMPARED = (
    "the parameters {} clustered: all, fc (all fully connected layers; all parameters if there is none), head, "
    "backbone, or a list of names"
)


def require_part(
    layout: Layout,
    part: Part,
    refusal: str,
) -> None:
    """Raises a ConfigError if a model lacks a part; ``refusal`` has a ``{}`` for the reason.

    Args:
        layout: the names and shapes of a model's arrays.
        part: a role, or names of parameters.
        refusal: the message, with ``{}`` for the reason.
    """
    try:
        layout.select(part)
    except ConfigError as error:
        raise ConfigError(refusal.format(error)) from error


def share_backbone(models: Mapping[str, Params]) -> dict[str, Params]:
    """A bank with the models' heads and one backbone for all of them, that of the first model.

    Args:
        models: models by slot.
    """
    first = next(iter(models.values()))
    heads = {slot: model.take(model.layout.head) for slot, model in models.items()}
    return {BACKBONE: first.take(first.layout.backbone), **heads}


def add_backbone(sent: Download) -> Download:
    """Adds the shared backbone to a download of heads; every participant trains it and sends it back.

    Args:
        sent: the download so far.
    """
    joined = dict.fromkeys(sent.slots, BACKBONE)
    return replace(
        sent,
        slots=(BACKBONE, *sent.slots),
        returns=(*sent.returned, BACKBONE),
        joined=joined,
    )


def join_parts(
    sent: Download,
    layout: Layout,
) -> Download:
    """On the site: puts models that travelled in parts together again, and drops the shared part.

    Args:
        sent: the download so far.
        layout: the names and shapes of a model's arrays.
    """
    if not sent.joined:
        return sent
    parts = dict(zip(sent.slots, sent.models))
    models = {}
    for slot, model in parts.items():
        if slot in sent.joined:
            models[slot] = layout.join(parts[sent.joined[slot]], model)
        elif slot not in sent.joined.values():
            models[slot] = model
    return replace(sent, slots=tuple(models), models=tuple(models.values()))


def split_parts(
    update: Update,
    sent: Download,
) -> Update:
    """On the site: turns differences of whole models into differences of the parts that were sent.

    Args:
        update: the update of one participant.
        sent: the download so far.
    """
    parts = dict(zip(sent.slots, sent.models))
    diffs = dict(update.diffs)
    for slot in update.diffs.keys() & sent.joined.keys():
        shared = sent.joined[slot]
        diffs[slot] = update.diffs[slot].take(parts[slot].layout)
        diffs[shared] = update.diffs[slot].take(parts[shared].layout)
    return replace(update, diffs=diffs)


def join_whole_models(
    state: ServerState,
    layout: Layout,
    slots: Iterable[str],
) -> dict[str, Served]:
    """The models of a bank in these slots, joined with the shared backbone if there is one.

    Args:
        state: the server's state between two rounds.
        layout: the names and shapes of a model's arrays.
        slots: names of models.
    """
    shared = state.bank.get(BACKBONE)
    models = {}
    for slot in slots:
        model = state.bank[slot]
        if shared is not None:
            model = layout.join(shared, model)
        models[slot] = Served((model,))
    return models


def find_last_block(
    layout: Layout,
    headless: bool,
) -> list[str]:
    """The backbone's last block with a convolution and all layers after it, the head among them if it travels.

    For ResNet-18 these are its last block and the head, for LEAF's network the last convolution and the fully connected
    layers (sec. 6.3). Without a convolution they are the backbone's last layer and the head, or the head alone where
    nothing else would be shared.

    A block is what the names of the backbone's layers first differ in: ``body.layer4``, ``body.features.18``.

    Args:
        layout: the names and shapes of a model's arrays.
        headless: the head does not travel.
    """
    names = []
    for entry in layout.backbone.entries:
        if entry.kind == "parameter":
            names.append(entry.name.split("."))
    depth = _find_branching(names)
    blocks = list(dict.fromkeys(".".join(name[:depth]) for name in names))

    # The last block with a convolution; without any, the last block.
    last = 0
    for number, block in enumerate(blocks):
        if _convolves(layout, block):
            last = number
    last = last or len(blocks) - 1
    found = blocks[last:] if last or headless else []
    if headless:
        return found
    head = [layer_of(entry.name) for entry in layout.entries if entry.head]
    return found + list(dict.fromkeys(head))


def _find_branching(names: Sequence[Sequence[str]]) -> int:
    """The number of words in which names of layers first differ; 1 if they never do."""
    for depth in range(1, max(map(len, names), default=1)):
        if len({tuple(name[:depth]) for name in names}) > 1:
            return depth
    return 1


def _convolves(layout: Layout, block: str) -> bool:
    """Whether a block has a convolution, in two or three dimensions."""
    return any(
        len(entry.shape) in (4, 5) and _within(entry.name, block)
        for entry in layout.entries
    )


def split_layers(
    travels: Layout,
    names: Sequence[str],
    where: str,
) -> tuple[Layout, Layout]:
    """The shared layers and the cluster layers of what travels of a model.

    ``names`` are the cluster layers, as names or beginnings of names, ``where`` begins the message of a ConfigError: a
    name is unknown, or one of the two parts is empty.

    Args:
        travels: the arrays that travel.
        names: names of participants.
        where: begins the message of an error.
    """
    layers = (e.name.rpartition(".")[0] or e.name for e in travels.entries)
    there = ", ".join(dict.fromkeys(layers))
    copied: set[str] = set()
    for name in names:
        inside = {e.name for e in travels.entries if _within(e.name, name)}
        require(bool(inside), f"{where}: no {[name]} travels; there: {there}")
        copied |= inside
    everything = {entry.name for entry in travels.entries}
    shared = travels.restricted(everything - copied)
    cluster = travels.restricted(copied)
    hint = "set cluster_layers, or take a model with more layers"
    for part, what in ((shared, "shared"), (cluster, "cluster")):
        has_parameters = part.parameter_size > 0
        require(has_parameters, f"{where} leave no {what} layers of {there}; {hint}")
    return shared, cluster


def list_parameters_outside(
    part: Layout,
    layout: Layout,
) -> list[str]:
    """The names of a model's parameters that do not belong to a part of it.

    Args:
        part: a role, or names of parameters.
        layout: the names and shapes of a model's arrays.
    """
    names = {e.name for e in part.entries}
    return [
        e.name for e in layout.entries if e.kind == "parameter" and e.name not in names
    ]


def replace_part(
    model: Params,
    part: Params,
) -> Params:
    """The model with the arrays of a part in place of its own.

    Args:
        model: a model.
        part: a role, or names of parameters.
    """
    return model.layout.pack({**model.arrays(), **part.arrays()})


def _within(
    name: str,
    prefix: str,
) -> bool:
    return f"{name}.".startswith(f"{prefix}.")
