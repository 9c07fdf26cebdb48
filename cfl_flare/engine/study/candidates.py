# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a study compares: each hospital alone, one model for all, and clusters, with private layers and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from cfl_flare.core.config import check_run_name, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.private import Division
from cfl_flare.engine.private import check_private
from cfl_flare.methods import FedAvg, Local, Method, WeCFL, describe_method
from cfl_flare.methods.auto_k import AutoK
from cfl_flare.results.study import SEARCH
from cfl_flare.results.verdict import Entrant
from cfl_flare.training.tasks import LearningTask

ALONE, ONE_MODEL = "local", "fedavg"
# The most clusters that are looked for.
MOST = 10
# Rounds of FedAvg in which the number of clusters is looked for.
WARMUP = 5
TITLES = {ALONE: "each hospital alone", ONE_MODEL: "one model for all"}
# The layers that hospitals keep, in the order in which they are preferred, and how a sentence calls them.
PRIVATE = {"norm": "private norm layers", "bias": "private biases"}


@dataclass(frozen=True)
class Candidate:
    """One way to train.

    Attributes:
        name: of its folder.
        method: the method.
        private: the layers that each participant has for itself; None for none.
    """

    name: str
    method: Method
    private: str | None = None

    @property
    def entrant(self) -> Entrant:
        """As the verdict names it."""
        clusters = self.method.clusters
        own = TITLES.get(self.method.label, self.method.label + (f" (K={clusters})" if clusters else ""))
        if self.private is not None:
            own += f" with {PRIVATE[self.private]}"
        return Entrant(self.name, own, clusters, self.private is not None)

    @property
    def baseline(self) -> bool:
        """Whether the verdict compares with it in any case."""
        return self.name in (ALONE, ONE_MODEL)

    @property
    def stays(self) -> bool:
        """Whether it is never dropped: clusters are held against the best way without them, if it learns late, too."""
        return self.method.label in (ALONE, ONE_MODEL)

    def with_private(self, layers: str) -> Candidate:
        """The same with private layers."""
        return Candidate(f"{self.name}-{layers}", self.method, layers)

    def described(self) -> dict[str, Any]:
        """As JSON values."""
        return {"name": self.name, "method": describe_method(self.method), "private": self.private}


def named(method: Method, private: str | None = None) -> Candidate:
    """A candidate, with the name of its folder."""
    label = method.label.replace("+", "-plus-").strip("-")
    whole = Candidate(label + (f"-k{method.clusters}" if method.clusters > 1 else ""), method)
    return whole if private is None else whole.with_private(private)


def private_layers(module: nn.Module, method: Method, task: LearningTask | None = None) -> str | None:
    """The layers that hospitals may keep with this method: normalisation, else biases; None if neither fits."""
    for word in PRIVATE:
        try:
            check_private(method, Division.of(module, word), word, task=task)
        except ConfigError:
            continue
        return word
    return None


def first_candidates(
    module: nn.Module, more: Sequence[Method] = (), task: LearningTask | None = None
) -> list[Candidate]:
    """Those that are known before the number of clusters is.

    Args:
        module: the model.
        more: methods of the user's.
        task: what models predict; under survival, a linear model's private bias would change nothing.

    Raises:
        ConfigError: one of them is a candidate anyway, or given twice.
    """
    layers = private_layers(module, FedAvg(), task)
    own = [named(Local()), named(FedAvg()), *([named(FedAvg(), layers)] if layers else [])]
    for candidate in map(named, more):
        twice = candidate.name in [one.name for one in own]
        require(not twice, f"--method {candidate.name} is a candidate already; leave it out")
        own.append(candidate)
    return own


def clustered_candidates(found: int, participants: int, taken: Sequence[Candidate] = ()) -> list[Candidate]:
    """WeCFL with the number of clusters that was found, and with its neighbours; two groups are tried in any case.

    >>> [one.name for one in clustered_candidates(1, 12)], [one.name for one in clustered_candidates(3, 12)]
    (['wecfl-k2'], ['wecfl-k2', 'wecfl-k3', 'wecfl-k4'])
    """
    names = [one.name for one in taken]
    numbers = [k for k in range(found - 1, found + 2) if 2 <= k <= participants]
    return [one for k in numbers if (one := named(WeCFL(k=k))).name not in names]


def search_rounds(rounds: int) -> int:
    """In how many rounds the number of clusters is looked for, in a study of so many."""
    return max(1, min(WARMUP, rounds // 2))


def search_candidate(rounds: int) -> Candidate:
    """What looks for the number of clusters in a study of so many rounds."""
    return Candidate(SEARCH, AutoK(base=WeCFL(k=MOST), warmup=search_rounds(rounds)))


def every_candidate(module: nn.Module, rounds: int, more: Sequence[Method] = ()) -> dict[str, Candidate]:
    """All that a study may train, by name, whatever it finds; a site knows them before the server names one.

    Args:
        module: the model.
        rounds: of a whole run.
        more: methods of the user's.

    Raises:
        ConfigError: one of them is a candidate anyway, or given twice, or its name cannot be a folder's.
    """
    found = [search_candidate(rounds), *first_candidates(module, more)]
    names = [one.name for one in found]
    found += [one for k in range(2, MOST + 2) if (one := named(WeCFL(k=k))).name not in names]
    for base in found[1:]:
        layers = private_layers(module, base.method) if base.method.clusters and base.private is None else None
        found += [] if layers is None else [base.with_private(layers)]
    for one in found:
        check_run_name(one.name, "the name of a candidate")
    return {one.name: one for one in found}
