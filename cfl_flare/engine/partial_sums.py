# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Sums on the site: if the M-step averages, a site with many participants sends one mean per cluster for all of them.

A mean of means, each with the total weight of its members, is the mean of all. A site's first participant in each
cluster is the carrier: its update holds the mean of their models. The others' updates only name the carrier. The server
gives the carrier the weight of all of them, and the others none. It never sees a participant's own model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cfl_flare.core.config import require
from cfl_flare.core.errors import PayloadError
from cfl_flare.core.params import Params, weighted_mean
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.methods import Method, Participant, Update


def added_up(
    results: Sequence[Result], models: Mapping[str, Params], method: Method
) -> list[Result]:
    """On the site: one site's results, with the mean update of each cluster in that of its first participant.

    The updates are differences from ``models``. The method is one that ``averages_only``.
    """
    alike: dict[tuple[int | None, tuple[str, ...]], list[Update]] = {}
    for result in results:
        if result.update is not None:
            alike.setdefault(
                (result.update.cluster, tuple(sorted(result.update.diffs))), []
            ).append(result.update)
    sums: dict[str, Update] = {}
    for (_, slots), members in alike.items():
        first, *others = members
        means = {
            # Means of the models, not of their differences: a variance is never negative, but its difference may be.
            slot: weighted_mean(
                ((models[slot] + u.diffs[slot], method.weight(u)) for u in members),
                models[slot],
            )
            for slot in slots
        }
        sums[first.participant] = replace(
            first, diffs={slot: mean - models[slot] for slot, mean in means.items()}
        )
        sums.update(
            {
                u.participant: replace(u, diffs={}, carrier=first.participant)
                for u in others
            }
        )
    return [replace(r, update=sums.get(r.participant)) for r in results]


def no_sums(method: Method, settings: ServerSettings) -> str:
    """Why a run's sites cannot send sums, and the way out; empty if they can."""
    if not method.traits.averages_only:
        needs = "needs the model of each participant, or does not declare averages_only"
        return f"method {method.label} {needs}; leave site_sums out"
    single = [
        name for name in ("keep_features", "reject_outliers") if getattr(settings, name)
    ]
    single += ["aggregation"] if settings.aggregation != "mean" else []
    return (
        f"{single[0]} needs the model of each participant; leave one of the two out"
        if single
        else ""
    )


def check_sums(
    wanted: bool, method: Method, settings: ServerSettings, scripted: bool = False
) -> None:
    """Raises a ConfigError if a job's sites should send sums, but need single models or run a training script."""
    refused = no_sums(method, settings)
    require(not (wanted and refused), f"run: site_sums = True, but {refused}")
    script = "a site with a train_script is one participant, with nothing to add up; leave it out"
    require(not (wanted and scripted), f"run: site_sums = True, but {script}")


class Carried:
    """On the server: which participants' models of a round are included in whose update, and with what weight."""

    def __init__(self, refused: str):
        self._refused = refused
        self._updates: dict[str, tuple[float, int | None, str | None]] = {}

    def check(self, update: Update, participants: Mapping[str, Participant]) -> None:
        """Raises a PayloadError if the run takes no sums, or the carrier is not another participant of its site."""
        name, carrier = update.participant, update.carrier
        if self._refused:
            raise PayloadError(
                "carrier",
                f"{name}: its site sent a mean in place of its model, but {self._refused}",
            )
        other = participants.get(str(carrier))
        if other is None or other.site != participants[name].site or carrier == name:
            raise PayloadError(
                "carrier", f"{name}: {carrier!r} is not another participant of its site"
            )

    def add(self, update: Update, weight: float) -> None:
        self._updates[update.participant] = (weight, update.cluster, update.carrier)

    def resolved(self) -> tuple[dict[str, float], dict[str, str]]:
        """Once all results are there, the weight of each update with those in it; empty if none includes others.

        Also the participants whose model is included nowhere, with the reason: the carrier's update was refused, or
        never came.
        """
        weights = {
            name: weight if carrier is None else 0.0
            for name, (weight, _, carrier) in self._updates.items()
        }
        lost = {}
        for name, (weight, cluster, carrier) in self._updates.items():
            if carrier is None:
                continue
            if self._updates.get(carrier, (0.0, None, carrier))[1:] == (cluster, None):
                weights[carrier] += weight
            else:
                lost[name] = (
                    f"carrier: {name}'s model should be included in {carrier}'s, which has none of its cluster"
                )
        return weights if any(
            carrier for _, _, carrier in self._updates.values()
        ) else {}, lost
