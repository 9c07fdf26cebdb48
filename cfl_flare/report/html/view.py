# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run as the sections of its report look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from cfl_flare.report.html.text import measure_name, unique

if TYPE_CHECKING:
    from cfl_flare.results.key_metric import Metric
    from cfl_flare.results.run_dir import Run

T = TypeVar("T")

# Rounds on an axis: more points than that are closer than a line is wide.
ROUNDS = 100
# Clusters that get a line of their own.
CLUSTERS = 10


def thinned(items: Sequence[T], most: int) -> list[T]:
    """So many of them at most, evenly spaced, with the first and the last one.

    >>> thinned(range(100), 4)
    [0, 33, 66, 99]
    """
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def cluster_label(number: int | None) -> str:
    """What a cluster is called."""
    return "no cluster" if number is None else f"cluster-{number}"


@dataclass(frozen=True)
class View:
    """A run, with what several sections need of it.

    Attributes:
        run: the run.
    """

    run: Run

    @property
    def metric(self) -> Metric:
        """By which the run is judged."""
        return self.run.metric

    @property
    def measure(self) -> str:
        """The name under which participants report it."""
        return f"served_{self.metric.name}"

    @property
    def measure_name(self) -> str:
        """What it is called on the page."""
        return measure_name(self.metric.name)

    @property
    def unit(self) -> str:
        """What a participant's weight counts."""
        return "steps" if self.run.script else "training samples"

    @property
    def measured_on(self) -> str:
        """On what each participant measures the model that it is served."""
        return "as its training script does it" if self.run.script else "on its own test split"

    def weight(self, one: dict[str, Any]) -> Any:
        """A participant's weight; None where its script reported none."""
        return one.get("steps" if self.run.script else "samples")

    @property
    def people(self) -> list[dict[str, Any]]:
        """The summary's participants."""
        people: list[dict[str, Any]] = self.run.summary["participants"]
        return people

    @cached_property
    def shown(self) -> dict[str, str]:
        """Each participant's name as it is shown."""
        return unique([*dict.fromkeys(own["name"] for own in self.people)])

    @cached_property
    def clusters(self) -> dict[str, int | None]:
        """Each participant's last cluster."""
        found = ((own["name"], own.get("cluster")) for own in self.people)
        return {name: k if isinstance(k, int) and k >= 0 else None for name, k in found}

    @cached_property
    def by_cluster(self) -> list[str]:
        """The participants, cluster by cluster, those without one last."""
        return sorted(self.clusters, key=lambda name: (self.clusters[name] is None, self.clusters[name] or 0))

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The rounds that are drawn."""
        return thinned(self.run.rounds, ROUNDS)

    @property
    def rounds_note(self) -> str | None:
        """What is said where not all rounds are drawn."""
        total = len(self.run.rounds)
        return None if total <= ROUNDS else f"{ROUNDS} of {total} rounds are drawn, evenly spaced."
