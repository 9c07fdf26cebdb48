# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Penalties: terms that can be added to the loss of any method, ``WeCFL(k=10, penalties=(Contrastive(mu=0.5),))``.

CFL-CON is `Contrastive`, CFL-CKS is `KnowledgeSharing`, CFL-CON&CKS is
``(Contrastive(scope="head"), KnowledgeSharing(scope="backbone"))`` (thesis Eq. 6.1).

* Jie Ma: Clustered Federated Learning, PhD thesis, University of Technology Sydney, 2023, chapters 4 to 6.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from cfl_flare.core.config import build_named, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import ROLES, Layout
from cfl_flare.core.settings import check_settings, setting
from cfl_flare.methods.slots import (
    CLUSTER_WEIGHTS,
    GLOBAL,
    cluster_slot,
    part_slot,
    require_part,
)
from cfl_flare.methods.state import Download
from cfl_flare.training.losses import (
    ParameterContrast,
    Pull,
    RepresentationContrast,
    Term,
)


@dataclass(frozen=True, kw_only=True)
class Penalty(ABC):
    """A term that is added to the loss in each local step."""

    # Its name in a job, and what it adds to the name of a method.
    name: ClassVar[str]
    short: ClassVar[str]
    # True for one that needs the clusters' models or weights; it begins when there are some.
    of_clusters: ClassVar[bool] = False

    scope: str = setting(
        "all",
        help="the parameters that it acts on: all, fc (all fully connected layers), head or backbone",
        choices=ROLES,
    )

    def __post_init__(self) -> None:
        check_settings(self, f"penalty {self.name}")

    def check(self, clusters: int) -> None:
        """Raises a ConfigError if it needs clusters, and the method has none.

        Args:
            clusters: the number of clusters.
        """
        if self.of_clusters and not clusters:
            there = "ifca, fesem or wecfl, with k >= 1, or your own that declares the trait shares_centres"
            raise ConfigError(
                f"penalty {self.name}: needs a method with clusters: {there}"
            )

    def check_model(self, layout: Layout) -> None:
        """Check that the model has the part that the penalty needs.

        Args:
            layout: the names and shapes of a model's arrays.
        """
        misfit = (
            f"penalty {self.name}: scope = {self.scope!r} does not fit the model: {{}}"
        )
        require_part(layout, self.scope, misfit)

    def slots(self, clusters: int) -> tuple[str, ...]:
        """The further models, or parts of models, that the penalty needs.

        Args:
            clusters: the number of clusters.
        """
        return ()

    @abstractmethod
    def list_terms(
        self,
        download: Download,
        slot: str,
        clusters: int,
    ) -> list[Term]:
        """The terms added to the loss of one participant, which starts from the model in ``slot``, in one round.

        The download has this penalty's slots; for a penalty of clusters also their weights, as ``cluster_weights``.

        Args:
            download: the models that the participant was sent.
            slot: the name of a model in the bank.
            clusters: the number of clusters.

        Returns:
            The terms.
        """


@dataclass(frozen=True, kw_only=True)
class Proximal(Penalty):
    """FedProx's term, ``mu/2 ||theta - Theta||^2`` to the model that the participant was sent (Li et al. 2020)."""

    name: ClassVar[str] = "proximal"
    short: ClassVar[str] = "prox"

    mu: float = setting(0.001, help="coefficient of the term", ge=0)

    def list_terms(
        self,
        download: Download,
        slot: str,
        clusters: int,
    ) -> list[Term]:
        """List the terms that are added to the loss.

        Args:
            download: the models that the participant was sent.
            slot: the name of a model in the bank.
            clusters: the number of clusters.

        Returns:
            The terms.
        """
        return [Pull.to(self.mu, download.model(slot), self.scope)]


@dataclass(frozen=True, kw_only=True)
class Contrastive(Penalty):
    """CFL-CON: near the own cluster's centre, far from the others' (thesis Eq. 4.3, 4.4).

    ``mu * -log( exp(cos(theta, Theta_c)/tau) / sum_k exp(cos(theta, Theta_k)/tau) )``; the thesis prints the fraction
    without ``-log``, and minimising that would have the opposite effect.
    """

    name: ClassVar[str] = "contrastive"
    short: ClassVar[str] = "con"
    of_clusters: ClassVar[bool] = True

    mu: float = setting(
        0.5, help="coefficient of the term; the thesis tries 0.1, 0.5, 2 and 5", ge=0
    )
    tau: float = setting(1.0, help="temperature; the thesis tries 0.1, 1 and 10", gt=0)
    on: Literal["parameters", "representations"] = setting(
        "parameters",
        help="parameters (thesis Eq. 4.3), or representations: the backbone's outputs for each sample (Eq. 4.4)",
        choices=("parameters", "representations"),
    )
    mode: Literal["evaluation", "training"] = setting(
        "evaluation",
        help="mode of the networks whose representations are compared, the own one too: evaluation (BatchNorm by its "
        "running statistics, no dropout) or training (BatchNorm by the batch's, with dropout)",
        choices=("evaluation", "training"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        has_mode = self.on == "representations"
        reason = f"mode = {self.mode!r} does not go with on = {self.on!r}, which have no mode"
        way_out = "leave it out, or set on = 'representations'"
        require(
            has_mode or self.mode == "evaluation",
            f"penalty contrastive: {reason}; {way_out}",
        )
        reason = f"scope = {self.scope!r} does not go with on = 'representations', which are the backbone's outputs"
        require(
            not has_mode or self.scope == "all",
            f"penalty contrastive: {reason}; leave it out",
        )

    def check_model(self, layout: Layout) -> None:
        """Check that the model has the part that the penalty compares.

        Args:
            layout: the names and shapes of a model's arrays.
        """
        super().check_model(layout)
        if self.on == "representations":
            require_part(
                layout,
                "backbone",
                f"penalty {self.name}: on = {self.on!r} does not fit the model: {{}}",
            )

    def slots(self, clusters: int) -> tuple[str, ...]:
        """All centres; for representations, their backbones.

        Args:
            clusters: the number of clusters.
        """
        part = "backbone" if self.on == "representations" else self.scope
        return tuple(part_slot(cluster_slot(k), part) for k in range(clusters))

    def list_terms(
        self,
        download: Download,
        slot: str,
        clusters: int,
    ) -> list[Term]:
        """List the terms that are added to the loss.

        Args:
            download: the models that the participant was sent.
            slot: the name of a model in the bank.
            clusters: the number of clusters.

        Returns:
            The terms.
        """
        index = [cluster_slot(k) for k in range(clusters)].index(slot)
        centres = [download.model(slot) for slot in self.slots(clusters)]
        if self.on == "representations":
            return [
                RepresentationContrast(
                    self.mu, self.tau, index, centres, training=self.mode == "training"
                )
            ]
        rows = np.stack([centre.part("all") for centre in centres])
        return [
            ParameterContrast(
                self.mu,
                self.tau,
                index,
                rows,
                download.model(slot).layout.select(self.scope),
            )
        ]


@dataclass(frozen=True, kw_only=True)
class KnowledgeSharing(Penalty):
    """CFL-CKS: near what the clusters have in common (thesis Eq. 5.6), or near each of the others (Eq. 5.5).

    The term is ``lambda/2 ||theta - Theta_g||^2``, Theta_g the weighted mean of the centres. With ``pairwise`` it is
    ``lambda/2 sum_k' w_k' ||theta - Theta_k'||^2`` over the other clusters, w_k' their share of all samples.
    """

    name: ClassVar[str] = "knowledge_sharing"
    short: ClassVar[str] = "cks"
    of_clusters: ClassVar[bool] = True

    lam: float | tuple[float, ...] = setting(
        0.01,
        help="lambda, the coefficient, or a list of one per cluster; the thesis tries 1, 0.1, 0.01 and 0.001",
    )
    pairwise: bool = setting(
        False,
        help="pull towards each of the other centres (thesis Eq. 5.5), not towards their mean (Eq. 5.6)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.lam, list):
            object.__setattr__(self, "lam", tuple(self.lam))
        for value in self.lam if isinstance(self.lam, tuple) else (self.lam,):
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            require(
                number,
                f"penalty knowledge_sharing: lam = {self.lam!r} should be a number, or one per cluster",
            )
            require(
                0 <= value < float("inf"),
                f"penalty knowledge_sharing: lam = {value!r} should be >= 0",
            )

    def check(self, clusters: int) -> None:
        """Check that the method fits the model and the number of rounds.

        Args:
            clusters: the number of clusters.
        """
        super().check(clusters)
        if isinstance(self.lam, tuple) and len(self.lam) != clusters:
            has = f"lam = {list(self.lam)} has {len(self.lam)} values for {clusters} clusters"
            raise ConfigError(
                f"penalty knowledge_sharing: {has}; give one number, or {clusters}"
            )

    def slots(self, clusters: int) -> tuple[str, ...]:
        """The mean of the centres, or all of them.

        Args:
            clusters: the number of clusters.
        """
        if self.pairwise:
            needed = [cluster_slot(k) for k in range(clusters)]
        else:
            needed = [GLOBAL]
        return tuple(part_slot(slot, self.scope) for slot in needed)

    def list_terms(
        self,
        download: Download,
        slot: str,
        clusters: int,
    ) -> list[Term]:
        """One pull to the mean, or one to each of the other centres.

        Args:
            download: the models that the participant was sent.
            slot: the name of a model in the bank.
            clusters: the number of clusters.

        Returns:
            The terms.
        """
        places = download.model(slot).layout.select(self.scope)
        index = [cluster_slot(k) for k in range(clusters)].index(slot)
        lam = self.lam[index] if isinstance(self.lam, tuple) else self.lam
        anchors = [download.model(slot).part("all") for slot in self.slots(clusters)]
        if not self.pairwise:
            return [Pull(lam, anchors[0], places)]
        weights: list[float] = download.scalars[CLUSTER_WEIGHTS]
        return [
            Pull(lam * weights[k], anchor, places)
            for k, anchor in enumerate(anchors)
            if k != index
        ]


PENALTIES: dict[str, type[Penalty]] = {
    cls.name: cls for cls in (Proximal, Contrastive, KnowledgeSharing)
}


def build_penalty(
    spec: Any,
    authorize: Callable[[str], None] | None = None,
) -> Penalty:
    """A penalty of a job: ``{"penalty": "contrastive", "mu": 0.5}``, or ``"package.Class"`` for one of your own.

    Args:
        spec: the name of the class, and its settings.
        authorize: asked for each class path before it is imported; it raises to refuse
            it.
    """
    if isinstance(spec, Penalty):
        return spec
    require(
        isinstance(spec, Mapping),
        f"penalty {spec!r} should be {{'penalty': name, ...}}, with its settings",
    )
    return build_named(spec, "penalty", PENALTIES, Penalty, authorize)  # type: ignore[type-abstract]
