# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a run schedules, with FLARE or without: rounds, who trains in them, what is measured, and when it is enough."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from cfl_flare.clustering.floor import LARGEST_SHARE, Floor
from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout
from cfl_flare.core.settings import SHARE_OR_COUNT, check_settings, setting
from cfl_flare.engine.early_stopping import EarlyStopping
from cfl_flare.training.tasks import LearningTask

# No honest update was so many times longer than its round's median in what docs/security.md measured.
CLIP_NORM = 10.0
# At real sites one participant of a cluster of four, negated, may undo no more than two honest ones.
CLIP_NORM_AT_SITES = 2.0
# A median or trimmed mean of fewer sites is, coordinate by coordinate, the value of one of them.
FEWEST_RANKED = 5
# What bounds a mean: the server states it at check-in, and sites refuse what is weaker than their own policy.
BOUNDS = (
    "min_sites_per_cluster",
    "min_samples_per_cluster",
    "hold_small_clusters",
    "max_weight_share",
)
# At real sites, a test split of fewer samples sends no histograms of its scores.
FEWEST_SCORED = 30
# The betas and tau of Reddi et al. 2021 (sec. 5.2, 5.3); eta has to be tuned.
SERVER_OPTIMIZER = {
    "server_lr": 0.01,
    "server_tau": 0.001,
    "server_beta1": 0.9,
    "server_beta2": 0.99,
}


@dataclass(frozen=True)
class ServerSettings:
    """What the server schedules."""

    num_rounds: int = setting(help="communication rounds", ge=1)
    seed: int = setting(
        0,
        help="seed of everything random: initial models, partition, sampling, batches",
        ge=0,
    )
    sample: float | int = setting(
        1.0,
        help="participants a round: a share like 0.25, or a count",
        bounds=SHARE_OR_COUNT,
    )
    min_answers: float | int = setting(
        1, help="fewest valid results a round: share or count", bounds=SHARE_OR_COUNT
    )
    evaluate_every: int = setting(
        1, help="rounds between measurements; the last round is always measured", ge=1
    )
    max_failed_rounds: int = setting(
        3, help="the run fails after so many rounds in a row with too few results", ge=1
    )
    keep_features: bool = setting(
        False, help="keep the Gram matrix of the participants' features in each round"
    )
    min_sites_per_cluster: int | None = setting(
        None,
        help="a cluster has at least so many sites; default: 3 at real sites, 1 in a simulation",
        ge=1,
    )
    min_samples_per_cluster: int | None = setting(
        None,
        help="and so many training samples; default: 30 at real sites, 1 in a simulation",
        ge=1,
    )
    merge_small_clusters: bool | None = setting(
        None,
        help="false: the server may assign so that clusters are smaller, which are only reported; default: true",
    )
    hold_small_clusters: bool | None = setting(
        None,
        help="a model stays as it is in a round in which too few sites trained it; default: at real sites",
    )
    clip_norm: float | None = setting(
        None,
        help="an update that moves further than so many times the median is scaled down; default: 2 at real sites, 10 "
        "in a simulation; 0 for never",
        ge=0,
    )
    clip_statistics: bool | None = setting(
        None,
        help="BatchNorm's running statistics are bounded as well, by 10 or a larger clip_norm, which honest "
        "participants with rare data may exceed; default: at real sites, and with reject_outliers",
    )
    aggregation: str = setting(
        "mean",
        help="what is computed inside clusters",
        choices=("mean", "median", "trimmed_mean", "krum"),
    )
    byzantine: int = setting(
        1,
        help="hostile participants to expect: krum and reject_outliers leave out so many, and in a median or trimmed "
        "mean they have less than half of the weight",
        ge=1,
    )
    reject_outliers: bool = setting(
        False,
        help="before clustering, leave out participants whose models are far from all others",
    )
    max_weight_share: float | None = setting(
        None,
        help="largest share of one site's weight in a mean; default: 1/3 at real sites",
        gt=0,
        le=1,
    )
    server_optimizer: str | None = setting(
        None,
        help="the server moves each model by FedAdam, FedYogi or FedAdagrad, and not all the way to the mean",
        choices=("adam", "yogi", "adagrad"),
    )
    server_lr: float | None = setting(
        None, help="its learning rate eta; default: 0.01", gt=0
    )
    server_tau: float | None = setting(
        None, help="its tau, which keeps small steps small; default: 0.001", gt=0
    )
    server_beta1: float | None = setting(
        None, help="its decay of the mean of the moves; default: 0.9", ge=0, lt=1
    )
    server_beta2: float | None = setting(
        None,
        help="its decay of their squares, which adagrad does not have; default: 0.99",
        ge=0,
        lt=1,
    )
    key_metric: str | None = setting(
        None,
        help="it chooses the best round, whose models are kept; empty for none; default: loss where there are two "
        "classes, else accuracy, or another where nobody reports that",
    )
    key_metric_mode: str | None = setting(
        None,
        help="which end of it is best; default: as stop_cond or its name says, min for loss, max for accuracy; else no "
        "round is the best",
        choices=("min", "max"),
    )
    stop_cond: str | None = setting(
        None,
        help="the run ends once it holds: 'accuracy >= 0.8', 'cluster-0/loss < 0.3'",
    )
    patience: int | None = setting(
        None,
        help="the run ends after so many rounds without improvement of stop_cond's metric, else key_metric",
        ge=1,
    )
    cross_site_evaluation: bool = setting(
        False, help="measure every cluster's model on every test split at the end"
    )

    def __post_init__(self) -> None:
        self._complete()
        check_settings(self, "run")
        for name in ("merge_small_clusters", "hold_small_clusters"):
            require(
                not getattr(self, name) or self.floor != Floor(1, 1),
                f"run: {name} is about clusters of fewer than min_sites_per_cluster = 1 sites, and there are none; "
                "raise that",
            )
        _ = self.early_stopping

    def _complete(self) -> None:
        """Gives the server's optimizer its defaults, and refuses settings of one that there is not."""
        for name, default in SERVER_OPTIMIZER.items():
            value = getattr(self, name)
            if self.server_optimizer is None:
                require(
                    value is None,
                    f"run: {name} = {value!r} does nothing without server_optimizer; set that too",
                )
            elif name == "server_beta2" and self.server_optimizer == "adagrad":
                why = "adagrad adds up squares, and has no beta2; leave it out"
                require(
                    value is None, f"run: {name} = {value!r}: server_optimizer = {why}"
                )
            elif value is None:
                object.__setattr__(self, name, default)

    @property
    def floor(self) -> Floor:
        """Below it, a cluster is small; where means are held back, a robust statistic must use as many sites itself."""
        sites, cut = self.min_sites_per_cluster or 1, self.byzantine
        if sites > 1 and self.hold_small_clusters:
            ranked = {"median": 0, "trimmed_mean": 2 * cut}
            if self.aggregation in ranked:
                sites = max(FEWEST_RANKED, sites + ranked[self.aggregation])
            elif self.aggregation == "krum":
                sites += cut
        return Floor(sites, self.min_samples_per_cluster or 1)

    @property
    def longest_update(self) -> float | None:
        """How many times as long as the median an update may be; None if no update is scaled down."""
        if self.clip_norm is None:
            return CLIP_NORM
        return self.clip_norm or None

    @property
    def clips_statistics(self) -> bool:
        """Whether running statistics are bounded."""
        if self.longest_update is None:
            return False
        if self.clip_statistics is None:
            return self.reject_outliers
        return self.clip_statistics

    @property
    def bounds(self) -> dict[str, float | None]:
        """What bounds a mean, as sites are told."""
        return {name: getattr(self, name) for name in BOUNDS}

    def at_real_sites(self, counts_samples: bool = True) -> ServerSettings:
        """The settings of a run of real hospitals: what is not set is as private and cautious as it can be.

        A training script says how many steps it took: then ``counts_samples`` is False.
        """
        floor = Floor(
            self.min_sites_per_cluster or 3,
            self.min_samples_per_cluster or (30 if counts_samples else 1),
        )
        small, share = floor != Floor(1, 1), self.max_weight_share
        require(
            floor.sites == 1 or share is None or share <= LARGEST_SHARE,
            f"run: max_weight_share = {share} at real sites gives others the model of the largest, a little moved; set "
            f"{LARGEST_SHARE} or less, or min_sites_per_cluster = 1 if the hospitals agree that others may see models "
            "of one of them",
        )
        return self._with(
            min_sites_per_cluster=floor.sites,
            min_samples_per_cluster=floor.samples,
            merge_small_clusters=small,
            hold_small_clusters=small,
            max_weight_share=1 / 3,
            clip_norm=CLIP_NORM_AT_SITES,
            clip_statistics=True,
        )

    def in_simulation(self) -> ServerSettings:
        """The settings of a simulation, whose participants have nothing to hide from each other."""
        return self._with(
            min_sites_per_cluster=1,
            min_samples_per_cluster=1,
            merge_small_clusters=self.floor != Floor(1, 1),
            hold_small_clusters=False,
            clip_norm=CLIP_NORM,
            clip_statistics=self.reject_outliers,
        )

    def judged(self, task: LearningTask, layout: Layout) -> ServerSettings:
        """The settings with the task's own metric, where they name none; the last layer has the classes."""
        if (
            self.key_metric_mode is not None
        ):  # it is of accuracy, which is the metric where none is named
            return self
        head = layout.head.entries
        return self._with(
            key_metric=task.key_metric(head[0].shape[0] if head else None)
        )

    def _with(self, **defaults: Any) -> ServerSettings:
        return replace(
            self,
            **{
                name: value
                for name, value in defaults.items()
                if getattr(self, name) is None
            },
        )

    @property
    def early_stopping(self) -> EarlyStopping:
        return EarlyStopping.of(
            self.key_metric, self.key_metric_mode, self.stop_cond, self.patience
        )


@dataclass(frozen=True)
class SiteSettings:
    """How a site's process works."""

    evaluate_trained: bool = setting(
        False, help="measure the locally trained models as well"
    )
    device: str = setting(
        "cpu",
        help="where a site computes: cpu, cuda (sites take a machine's GPUs in turn), cuda:0, ...",
        per_site=True,
    )
    gpu_memory: float | None = setting(
        None,
        help="largest share of its GPU's memory that a site takes; default: an even one in a simulation, else all",
        gt=0,
        le=1,
        per_site=True,
    )
    torch_threads: int = setting(
        1,
        help="torch threads per site; more slow down sites that share a machine",
        ge=1,
        le=1024,
        per_site=True,
    )

    keep_served: bool = setting(
        True,
        help="keep what each participant predicts with at the end, private layers included: in a simulation with its "
        "results, at a site below its state root",
        per_site=True,
    )

    def __post_init__(self) -> None:
        check_settings(self, "run")
        try:
            torch.device(self.device)  # only a site knows whether it has it
        except RuntimeError as error:
            known = "should be one of torch's, such as 'cpu' or 'cuda:0'"
            raise ConfigError(f"run: device = {self.device!r} {known}") from error


def count_of(share: float | int, total: int) -> int:
    """A share of a total, rounded, at least 1; or a count, at most the total."""
    return (
        max(1, round(share * total)) if isinstance(share, float) else min(share, total)
    )
