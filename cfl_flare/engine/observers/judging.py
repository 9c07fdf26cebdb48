# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Observers that ask nothing: a run's best round and end, the analysis of its clustering, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cfl_flare.engine.observers.observer import Observer, Running
from cfl_flare.methods import Assignment, ServerState, Update
from cfl_flare.methods.wrapper import Clustering
from cfl_flare.results.analysis import analyse, gram
from cfl_flare.results.metrics import Metric, RoundMetrics, reported


class Stopping(Observer):
    """Keeps the models of the best round so far, and says when the run should end early."""

    def collect(self, server: Running, measured: RoundMetrics) -> RoundMetrics:
        """The measured round's models are those of the state as it is now, before the coming round moves it."""
        progress, rule = (
            server.progress,
            server.settings.early_stopping.following(server.progress.judged_by),
        )
        number, scalars = (
            measured.record["round"],
            deciding(measured, server.round.tested),
        )
        best = (
            None if rule.key is None else rule.key.best(progress.best, number, scalars)
        )
        if best != progress.best:
            progress.best = best
            if server.recorder is not None:
                server.recorder.best(server.models(), server.state.round)
        watched = rule.watched
        progress.watched = (
            None if watched is None else watched.best(progress.watched, number, scalars)
        )
        self.stop = rule.reached(progress.watched, number, scalars)
        return measured

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        progress = server.progress
        key, best = (
            server.settings.early_stopping.following(progress.judged_by).key,
            progress.best,
        )
        facts["metric"] = asdict(progress.judged_by)
        facts["best"] = (
            None
            if key is None or best is None
            else {"metric": key.name, "mode": key.mode, **best}
        )


def deciding(measured: RoundMetrics, tested: int) -> dict[str, float]:
    """The numbers by which a run is judged: of participants' metrics those that most of the ``tested`` ones report."""
    common, numbers = (
        reported(measured.participants.values(), tested),
        measured.deciding(),
    )
    of_most = {
        name: value
        for name, value in numbers.items()
        if Metric(name).of_participants.name in common
    }
    return {
        **{name: value for name, value in numbers.items() if "served_" not in name},
        **of_most,
    }


class Analysis(Observer):
    """What a round's record says of its clustering; on request the Gram matrix of participants' features is kept."""

    def aggregated(
        self,
        server: Running,
        before: ServerState,
        updates: Sequence[Update],
        assignment: Assignment,
    ) -> dict[str, Any]:
        if not Clustering.of(server.method, before).sees(updates):
            return {}
        of_round = (server.method, before, server.state, updates, assignment)
        if server.recorder is not None and server.settings.keep_features:
            server.recorder.features(before.round, gram(*of_round), assignment)
        return analyse(*of_round)


class Recording(Observer):
    """Writes a run's rounds, where the server has a recorder."""

    def collect(self, server: Running, measured: RoundMetrics) -> RoundMetrics:
        if server.recorder is not None:
            server.recorder.round(measured, server.state, server.participants)
        return measured
