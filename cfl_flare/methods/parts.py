# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of models: the setting ``cluster_on``, and heads that travel separately from a shared backbone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import ROLES, Layout, Params
from cfl_flare.methods.state import Download, ServerState, Update
from cfl_flare.methods.traits import Part
from cfl_flare.training.ensemble import Served

BACKBONE = "backbone"
# The help of ``cluster_on``.
COMPARED = (
    "the parameters {} clustered: all, fc (all fully connected layers; all parameters if there is none), head, "
    "backbone, or a list of names"
)


def known_part(cluster_on: Any, where: str) -> Part:
    """The setting as a role or a tuple of names.

    Raises:
        ConfigError: the setting is neither.
    """
    if isinstance(cluster_on, str):
        require(cluster_on in ROLES, f"{where}: cluster_on = {cluster_on!r} should be one of {ROLES}")
        return cluster_on
    names = isinstance(cluster_on, (list, tuple)) and all(isinstance(n, str) for n in cluster_on)
    require(names, f"{where}: cluster_on = {cluster_on!r} should be one of {ROLES} or a list of names")
    return tuple(cluster_on)


def check_part(cluster_on: Part, layout: Layout, where: str) -> None:
    """Checks that a model has this part.

    Raises:
        ConfigError: the model does not have it.
    """
    try:
        layout.select(cluster_on)
    except ConfigError as error:
        fits = f"{where}: cluster_on = {cluster_on!r} does not fit the model"
        raise ConfigError(f"{fits}: {error}; set cluster_on=all") from error


def shared_backbone(models: Mapping[str, Params]) -> dict[str, Params]:
    """A bank with the models' heads and one backbone for all of them, that of the first model."""
    first = next(iter(models.values()))
    heads = {slot: model.take(model.layout.head) for slot, model in models.items()}
    return {BACKBONE: first.take(first.layout.backbone), **heads}


def on_backbone(sent: Download) -> Download:
    """Adds the shared backbone to a download of heads; every participant trains it and sends it back."""
    joined = dict.fromkeys(sent.slots, BACKBONE)
    return replace(sent, slots=(BACKBONE, *sent.slots), returns=(*sent.returned, BACKBONE), joined=joined)


def joined(sent: Download, layout: Layout) -> Download:
    """On the site: puts models that travelled in parts together again, and drops the shared part."""
    if not sent.joined:
        return sent
    parts = dict(zip(sent.slots, sent.models))
    whole = {s: layout.join(parts[sent.joined[s]], m) if s in sent.joined else m for s, m in parts.items()}
    kept = {s: m for s, m in whole.items() if s not in sent.joined.values()}
    return replace(sent, slots=tuple(kept), models=tuple(kept.values()))


def split(update: Update, sent: Download) -> Update:
    """On the site: turns differences of whole models into differences of the parts that were sent."""
    parts = dict(zip(sent.slots, sent.models))
    diffs = dict(update.diffs)
    for slot in update.diffs.keys() & sent.joined.keys():
        shared = sent.joined[slot]
        diffs[slot] = update.diffs[slot].take(parts[slot].layout)
        diffs[shared] = update.diffs[slot].take(parts[shared].layout)
    return replace(update, diffs=diffs)


def whole_models(state: ServerState, layout: Layout, slots: Iterable[str]) -> dict[str, Served]:
    """The models of a bank in these slots, joined with the shared backbone if there is one."""
    shared = state.bank.get(BACKBONE)
    models = {slot: state.bank[slot] for slot in slots}
    return {s: Served((m if shared is None else layout.join(shared, m),)) for s, m in models.items()}
