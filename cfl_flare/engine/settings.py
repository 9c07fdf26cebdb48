# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a server schedules: how many rounds, who trains in them, what is measured, and when it is enough."""

from __future__ import annotations

from dataclasses import dataclass

from cfl_flare.core.config import check_types, require
from cfl_flare.engine.early_stopping import Goal


@dataclass(frozen=True)
class ServerSettings:
    """What the server schedules.

    Attributes:
        num_rounds: communication rounds.
        seed: the run's seed: initial models, sampling, batches.
        sample: participants a round: a share in (0, 1], or a count; 1.0 is all.
        min_answers: fewest good answers with which a round is aggregated; a share of those asked, or a count.
        evaluate_every: rounds between measurements of the served models; the last round is always measured.
        max_failed_rounds: the run ends after so many rounds in a row with too few answers.
        keep_features: keep what is needed to draw the participants' features: their Gram matrix of each round.
        min_sites_per_cluster: a cluster of fewer sites is reported.
        merge_small_clusters: such a cluster's participants go to the nearest other one instead.
        key_metric: the number of a round's record by which the best round is chosen, whose models are kept as well;
            empty for none.
        key_metric_mode: ``max`` or ``min`` is best; None is what ``stop_cond`` is after, if it is about the same
            metric, else ``max``.
        stop_cond: the run ends once this holds, such as ``"accuracy >= 0.8"``.
        patience: the run ends after so many rounds without improvement, of the metric in ``stop_cond``, else of
            ``key_metric``.
        cross_site_evaluation: measure every model on every participant's test split in the end.
    """

    num_rounds: int
    seed: int = 0
    sample: float | int = 1.0
    min_answers: float | int = 1
    evaluate_every: int = 1
    max_failed_rounds: int = 3
    keep_features: bool = False
    min_sites_per_cluster: int = 1
    merge_small_clusters: bool = False
    key_metric: str = "accuracy"
    key_metric_mode: str | None = None
    stop_cond: str | None = None
    patience: int | None = None
    cross_site_evaluation: bool = False

    def __post_init__(self) -> None:
        check_types(self, "run")
        require(self.num_rounds >= 1, f"run: num_rounds = {self.num_rounds} should be >= 1")
        require(self.seed >= 0, f"run: seed = {self.seed} should be >= 0")
        for key in ("sample", "min_answers"):
            value = getattr(self, key)
            ok = 0 < value <= 1 if isinstance(value, float) else value >= 1
            require(ok, f"run: {key} = {value} should be a share in (0.0, 1.0] or a count >= 1")
        require(self.evaluate_every >= 1, f"run: evaluate_every = {self.evaluate_every} should be >= 1")
        fewest = self.min_sites_per_cluster
        require(fewest >= 1, f"run: min_sites_per_cluster = {fewest} should be >= 1")
        require(
            not self.merge_small_clusters or fewest > 1,
            "run: merge_small_clusters merges clusters of fewer than min_sites_per_cluster = 1 sites, which there are "
            "none; raise that",
        )
        require(self.max_failed_rounds >= 1, f"run: max_failed_rounds = {self.max_failed_rounds} should be >= 1")
        _ = self.goal

    @property
    def goal(self) -> Goal:
        """Which round is the best, and when the run ends before its last round."""
        return Goal.of(self.key_metric, self.key_metric_mode, self.stop_cond, self.patience)


def count_of(share: float | int, total: int) -> int:
    """A share of a total, rounded, at least 1; or a count, at most the total."""
    return max(1, round(share * total)) if isinstance(share, float) else min(share, total)
