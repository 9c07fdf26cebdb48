# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The facts of a method that the engine must know before a run, in one value."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cfl_flare.methods.state import Indicator

Part = str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The facts of a method that the engine must know before a run. It assumes nothing that is not declared.

    Attributes:
        clusters: number of clusters K; 0 for a method that does not cluster; where K changes, its first value.
        joins_by: the rule by which a newcomer to a finished run is placed, in a few words.
        cluster_on: the part of a model by which participants are compared: a role, or names of parameters; None is the
            fully connected layers, or all parameters where there are none.
        compares_models: participants are compared by their trained models; else by arrays that they send, or not.
        assigns_on_site: each participant chooses its cluster itself.
        averages_only: the M-step takes weighted means of the models alone, each where it was trained. So sites can add
            up their own, and a server's optimizer can step towards the means.
        mixes: a participant may be in several clusters, each with a share: a `cfl_flare.clustering.floor.Mixture`.
        mergeable: the M-step takes any assignment of the round's participants, so that small clusters can be filled up.
        shares_centres: K is fixed, a participant may be sent all centres, and the common model is their mean: what
            penalties of clusters and CAM build on.
        whole_models: the bank holds whole models, not parts.
        serves_one: a participant predicts with one model, or several that can be taken apart.
        starts_on_site: participants begin with models that their sites build from the seed.
        archives: it keeps arrays on the server's disk.
        takes_penalties: its participants train with its penalties' terms.
        no_penalties: where it takes none, why, and what to do instead.
        no_private: why its participants can have no private layers; empty if they can.
        keeps_head: the head does not travel.
        indicator: the samples on which the server compares what models predict; None where it needs none.
        chooses_by_metric: of several models a participant trains and predicts with the one that measures best, and its
            steps on the site do nothing else, so that a training script's metric can choose.
        proximal: the coefficient of the proximal term that it adds to the loss by itself, besides its penalties.
    """

    clusters: int = 0
    joins_by: str = ""
    cluster_on: Part | None = None
    compares_models: bool = False
    assigns_on_site: bool = False
    averages_only: bool = False
    mixes: bool = False
    mergeable: bool = False
    shares_centres: bool = False
    whole_models: bool = False
    serves_one: bool = False
    takes_penalties: bool = False
    starts_on_site: bool = False
    archives: bool = False
    no_penalties: str = ""
    no_private: str = ""
    keeps_head: bool = False
    indicator: Indicator | None = None
    chooses_by_metric: bool = False
    proximal: float | None = None

    def lacking(self, *names: str) -> list[str]:
        """Those of these traits that are not declared."""
        return [name for name in names if not getattr(self, name)]


# What most methods are: a participant trains one whole model, with penalties, and predicts with it.
PLAIN = Traits(whole_models=True, serves_one=True, takes_penalties=True)
# A fixed number of clusters, whose models the server compares.
CLUSTERED = replace(PLAIN, compares_models=True, shares_centres=True)
