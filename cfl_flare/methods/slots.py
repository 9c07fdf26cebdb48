# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Names of models in the server's bank, and of parts of them: ``global``, ``cluster-3``, ``cluster-3:head``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cfl_flare.core.params import Params

GLOBAL = "global"
# Names in a method's extras. The first says that there are centres, so that penalties of clusters begin. The second has
# the weights with which the common model is the mean of the clusters' models.
HAS_CENTRES, COMMON_WEIGHTS = "has_centres", "common_weights"
# The clusters' weights w_k (thesis Eq. 5.5), as a participant is sent them for penalties.
CLUSTER_WEIGHTS = "cluster_weights"


def cluster_slot(cluster: int) -> str:
    """Name of a cluster's model."""
    return f"cluster-{cluster}"


def is_cluster(slot: str) -> bool:
    """True for a cluster's model, also for one of a part of an ensemble, ``1.cluster-0``."""
    return slot.rpartition(".")[2].startswith("cluster-")


def part_slot(slot: str, role: str) -> str:
    """Name under which a part of a model travels; the whole travels under its own."""
    return slot if role == "all" else f"{slot}:{role}"


def whole_slot(slot: str) -> str:
    """Name of the model that a part belongs to."""
    return slot.partition(":")[0]


def travelling(slots: Iterable[str]) -> list[str]:
    """Each name once, without parts of models that also travel as a whole."""
    every = dict.fromkeys(slots)
    return [slot for slot in every if slot == whole_slot(slot) or whole_slot(slot) not in every]


def with_parts(models: Mapping[str, Params], slots: Iterable[str]) -> dict[str, Params]:
    """The models of these names; parts that are missing are taken from their whole."""
    parts = {}
    for slot in dict.fromkeys(slots):
        name, _, role = slot.partition(":")
        parts[slot] = models[slot] if slot in models else models[name].take(models[name].layout.of_part(role))
    return parts
