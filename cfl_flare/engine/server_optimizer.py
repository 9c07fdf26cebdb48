# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedAdam, FedYogi and FedAdagrad (Reddi et al. 2021, Alg. 2), for each model of the bank by itself.

No method knows of it. A round's means move a model by its Delta, which the server takes for a gradient::

    m = beta1 m + (1 - beta1) Delta
    v = v + Delta^2                                        adagrad
    v = v - (1 - beta2) Delta^2 sign(v - Delta^2)          yogi
    v = beta2 v + (1 - beta2) Delta^2                      adam
    x = x + eta m / (sqrt(v) + tau)

with m = 0 and v = tau^2 at first. That is of parameters: buffers, such as BatchNorm's running statistics, and counters
are those of the means. A model that did not move keeps its m and v; one that the round made is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cfl_flare.core.config import require
from cfl_flare.core.params import Params, weighted_mean
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import Method, ServerState
from cfl_flare.methods.slots import COMMON_WEIGHTS, GLOBAL, cluster_slot

# Begins the names of its arrays in the server's state, as no method's do.
PREFIX = "server_optimizer."


def check_server_optimizer(method: Method, settings: ServerSettings) -> None:
    """Raises a ConfigError if a round does more to the method's models than to move them to means."""
    averages = method.traits.averages_only or method.traits.mergeable
    require(
        settings.server_optimizer is None or averages,
        f"run: server_optimizer = {settings.server_optimizer!r} steps towards the means of a round, but method "
        f"{method.label} computes more than means, or none, or declares neither averages_only nor mergeable; leave it "
        "out",
    )


def without_moments(state: ServerState) -> ServerState:
    """The state without a server's optimizer, which nothing but a further round needs."""
    if not any(name.startswith(PREFIX) for name in state.arrays):
        return state
    return replace(
        state,
        arrays={
            name: a for name, a in state.arrays.items() if not name.startswith(PREFIX)
        },
    )


class ServerOptimizer:
    """Moves the models of a bank by what a round's means make of them. Its moments are in the server's state."""

    def __init__(self, settings: ServerSettings):
        self._rule, self._settings = settings.server_optimizer, settings

    def step(self, before: ServerState, after: ServerState) -> ServerState:
        """The state that the method made of a round with the server's step, by the moments of the state before."""
        after = without_moments(after)
        if self._rule is None:
            return after
        prefix = f"{PREFIX}{self._rule}."  # of another rule's, v means something else
        moments = {
            name: array
            for name, array in before.arrays.items()
            if name.startswith(prefix)
        }
        bank, commons = dict(after.bank), _commons(after)
        for slot, mean in after.bank.items():
            old, names = (
                before.bank.get(slot),
                (f"{prefix}m.{slot}", f"{prefix}v.{slot}"),
            )
            size = mean.layout.parameter_size
            if (
                old is None
                or slot in commons
                or np.array_equal(old.vector[:size], mean.vector[:size])
            ):
                continue
            m, v = (moments.get(name) for name in names)
            bank[slot], *new = self._moved(old, mean, m, v)
            moments |= dict(zip(names, new))
        for slot, shares in commons.items():
            if any(bank[centre] is not after.bank[centre] for centre in shares):
                bank[slot] = weighted_mean(
                    ((bank[c], w) for c, w in shares.items() if w), after.bank[slot]
                )
        return replace(after, bank=bank, arrays={**after.arrays, **moments})

    def _moved(
        self, old: Params, mean: Params, m: np.ndarray | None, v: np.ndarray | None
    ) -> tuple[Params, np.ndarray, np.ndarray]:
        """A model after the step (Alg. 2), and its m and v."""
        settings = self._settings
        assert (
            settings.server_lr is not None
            and settings.server_tau is not None
            and settings.server_beta1 is not None
        )
        size = old.layout.parameter_size
        start = old.vector[:size].astype(np.float64)
        delta = mean.vector[:size] - start
        m = (1 - settings.server_beta1) * delta + (
            0.0 if m is None else settings.server_beta1 * m.astype(np.float64)
        )
        v = self._squares(
            np.full(size, settings.server_tau**2)
            if v is None
            else v.astype(np.float64),
            np.square(delta),
        )
        vector = mean.vector.copy()
        vector[:size] = start + settings.server_lr * m / (
            np.sqrt(v) + settings.server_tau
        )
        return replace(mean, vector=vector), m.astype(np.float32), v.astype(np.float32)

    def _squares(self, v: np.ndarray, square: np.ndarray) -> np.ndarray:
        if self._rule == "adagrad":
            return v + square
        beta2 = self._settings.server_beta2
        assert beta2 is not None
        return v - (1 - beta2) * (
            square * np.sign(v - square) if self._rule == "yogi" else v - square
        )


def _commons(state: ServerState) -> dict[str, Mapping[str, float]]:
    """The common models that are means of the clusters' (thesis Eq. 5.6), with the weight of each cluster's.

    They follow the clusters' models and have no moments of their own. In an ensemble each part has its own extras.
    """
    commons: dict[str, Mapping[str, float]] = {}
    for slot in state.bank:
        part, _, name = slot.rpartition(".")
        extras = state.extras.get(part, {}) if part else state.extras
        if name == GLOBAL and COMMON_WEIGHTS in extras:
            centres = [
                f"{part}{'.' * bool(part)}{cluster_slot(k)}"
                for k in range(len(extras[COMMON_WEIGHTS]))
            ]
            commons[slot] = dict(zip(centres, extras[COMMON_WEIGHTS]))
    return commons
