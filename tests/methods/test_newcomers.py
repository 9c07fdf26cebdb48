# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The rules by which newcomers are placed, by numbers computed by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError, RunFailedError
from cfl_flare.data import ParticipantData, Samples
from cfl_flare.engine.newcomers import Newcomer, join
from cfl_flare.engine.site import Site
from cfl_flare.methods import (
    CFL,
    IFCA,
    FedAvg,
    FedDS,
    FedGroup,
    FeSEM,
    Method,
    Update,
    WeCFL,
    build_method,
)
from cfl_flare.methods.state import ServerState
from cfl_flare.training.settings import TrainSettings
from tests.tiny import Coin, coin, initial, update

# On x = 1 the Coin's logits are its two weights; a newcomer whose labels are all 1 and that starts
# from (0, 0) with learning rate 1 ends one step later at (-0.5, 0.5).


def joined(
    method: Method, bank: dict[str, Any], labels: Sequence[int] = (1, 1, 1), rounds: int = 1, **state: Any
) -> Newcomer:
    """A newcomer to a run that ended with this bank."""
    site = Site(method, Coin, TrainSettings(lr=1.0, momentum=0.0, local_steps=1, batch_size=len(labels)), 0)
    samples = Samples(np.ones((len(labels), 1), np.float32), np.array(labels))
    site.add([ParticipantData("new", samples, samples)])
    logits = state.pop("logits", None)
    ended = ServerState(bank, **{"assignment": {"old": 0}, "round": 5, **state})
    newcomer = join(method, ended, site, "new", logits, rounds)
    assert "new" not in ended.assignment
    return newcomer


def served(newcomer: Newcomer) -> list[list[float]]:
    return [model.vector.tolist() for model in newcomer.served.models]


TWO = {"cluster-0": coin(2, 0), "cluster-1": coin(0, 2)}


@pytest.mark.parametrize(("labels", "cluster"), [((1, 1, 0), 1), ((0, 0, 1), 0), ((0, 1), 0)])
def test_ifca_takes_the_smallest_loss(labels: tuple[int, ...], cluster: int) -> None:
    newcomer = joined(IFCA(k=2), TWO, labels)
    assert (newcomer.cluster, newcomer.rounds) == (cluster, 2)
    assert served(newcomer) == [TWO[f"cluster-{cluster}"].vector.tolist()]  # as the run left it
    assert newcomer.metrics["served_accuracy"] == pytest.approx(labels.count(cluster) / len(labels))


@pytest.mark.parametrize("frozen", [None, 1])
@pytest.mark.parametrize("common", [(0, 0), (1, 1)])
@pytest.mark.parametrize("kind", [WeCFL, FeSEM])
def test_wecfl_takes_the_centre_in_whose_direction_the_newcomer_moved(
    kind: type[WeCFL], common: tuple[int, int], frozen: int | None
) -> None:
    """From the common model it moves by (-0.5, 0.5): one centre is near but 72 degrees off, the other far but 1."""
    centres = {"cluster-0": coin(-0.4, -0.2), "cluster-1": coin(-30, 31)}
    bank = {"global": coin(*common)} | {slot: coin(*common) + centre for slot, centre in centres.items()}
    newcomer = joined(kind(k=2, clustering_rounds=frozen), bank)
    assert newcomer.cluster == 1
    assert served(newcomer) == [bank["cluster-1"].vector.tolist()]


def test_fedgroup_takes_the_closest_direction_and_fl_hc_the_nearest_update() -> None:
    bank = {slot: coin(0, 0) for slot in ("global", "cluster-0", "cluster-1")}
    bank |= {"first-0": coin(-0.5, -0.2), "first-1": coin(-30, 31)}  # from (-0.5, 0.5): 0.7 off and 67 degrees; far, 1
    assert joined(FedGroup(k=2), bank).cluster == 1
    assert joined(build_method({"method": "fl-hc", "k": 2}), bank).cluster == 0


@pytest.mark.parametrize(("first", "cluster"), [((0, 0), 0), ((9, 9), 0), ((9, -9), 1)])
def test_fedds_takes_the_smallest_divergence(first: tuple[int, int], cluster: int) -> None:
    # (-0.5, 0.5) predicts 0.27, 0.73. KL to (0.5, 0.5) is 0.11, however large the logits; to (5e-5, 1) 2.3.
    bank = {"cluster-0": coin(*first), "cluster-1": coin(-5, 5), "newcomer": coin(0, 0)}
    extras = {"start": {"old": 0}}

    def logits(models: Any) -> np.ndarray:
        return np.stack([model.vector[None] for model in models])

    assert joined(FedDS(k=2), bank, logits=logits, extras=extras).cluster == cluster
    with pytest.raises(ConfigError, match="no indicator samples"):
        joined(FedDS(k=2), bank, extras=extras)


def split() -> tuple[CFL, ServerState]:
    """A run in which {a, b} went one way and {c, d} another, and then {c} and {d}."""
    method = CFL(eps1=1e9, eps2=0)
    state = method.start(initial)
    for moves in ({"a": (1, 0), "b": (1, 0.1), "c": (-2, -1), "d": (-1, 2)}, {"c": (-2, -2), "d": (-2, 3)}):
        updates = [update(name, 1, method.distribute(state, name).slots[0], *move) for name, move in moves.items()]
        state = method.aggregate(state, updates, method.assign(state, updates))
    return method, state


def test_cfl_goes_down_the_tree_one_split_a_round() -> None:
    method, state = split()
    assert (state.assignment, state.extras["splits"]) == ({"a": 0, "b": 0, "c": 1, "d": 2}, [0, 1])
    extras = dict(state.extras)
    one = joined(method, dict(state.bank), (1, 1), assignment=state.assignment, extras=state.extras)
    assert (one.cluster, one.rounds) == (2, 3)  # two splits, then a member
    assert served(one) == [state.bank["cluster-2"].vector.tolist()]
    other = joined(method, dict(state.bank), (0, 0), assignment=state.assignment, extras=state.extras)
    assert (other.cluster, other.rounds) == (0, 2)
    assert state.extras == extras


def test_what_is_a_newcomer_s_own_is_trained_in_its_cluster_for_as_many_rounds_as_asked() -> None:
    ditto = build_method({"method": "ditto", "lam": 0.0})
    # v starts at the untrained model and takes a step a round, of the gradient alone
    vectors = [served(joined(ditto, {"global": coin(0, 0)}, rounds=rounds))[0] for rounds in (1, 2, 3)]
    margins = [b - a for a, b in vectors]
    assert margins[0] < margins[1] < margins[2]
    assert joined(ditto, {"global": coin(0, 0)}, rounds=3).rounds == 3


@dataclass(frozen=True, kw_only=True)
class Never(WeCFL):
    """Assigns nobody."""

    name: ClassVar[str] = "never"

    def assign(self, state: ServerState, updates: Sequence[Update]) -> dict[str, int]:
        return {}


def test_a_newcomer_that_is_never_placed_is_an_error() -> None:
    bank = {"global": coin(0, 0), **TWO}
    with pytest.raises(RunFailedError, match="new: method never gave it no cluster in 100 rounds"):
        joined(Never(k=2), bank)


def test_a_newcomer_that_cannot_be_trained_is_an_error() -> None:
    with pytest.raises(RunFailedError, match=r"new: its training ended with NaN or infinity"):
        joined(FedAvg(), {"global": coin(np.inf, 0)})


@pytest.mark.parametrize("rounds", [1, 6, 7, 8])
def test_what_is_served_is_the_model_of_the_cluster_that_is_named(rounds: int) -> None:
    """One sample in turn decides, another in each round."""
    newcomer = joined(IFCA(k=2, assignment_samples=1), TWO, (0, 1, 0, 1), rounds)
    assert served(newcomer) == [TWO[f"cluster-{newcomer.cluster}"].vector.tolist()]
