# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""`check_method`: all methods of the package pass it, and broken ones fail it, each for its own reason."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import weighted_mean
from cfl_flare.core.settings import setting
from cfl_flare.methods import GLOBAL, Assignment, Download, FedAvg, Method, ServerState, Update, WeCFL
from cfl_flare.testing import PROMISES, PromiseError, check_method
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from tests.helpers.loop import METHOD_LIST

GUIDE = Path(__file__).parents[2] / "docs" / "add-a-method.md"


@pytest.mark.parametrize("name", METHOD_LIST)
def test_every_method_keeps_its_promises(name: str) -> None:
    check_method(METHOD_LIST[name])


# ---- Broken methods: one for each promise ----


@dataclass(frozen=True, kw_only=True)
class KeepsASet(FedAvg):
    """A set is no JSON value."""

    chosen: Any = setting(frozenset({"a"}), help="a set")


@dataclass(frozen=True, kw_only=True)
class PlainMean(FedAvg):
    """Declares averages_only, and averages without weights."""

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        models = [(state.rebuild_model(update), 1.0) for update in updates]
        return state.after({GLOBAL: weighted_mean(models, otherwise=state.bank[GLOBAL])})


@dataclass(frozen=True, kw_only=True)
class CountsAbsolutely(FedAvg):
    """Trusts participants with more than ten samples only."""

    def weight(self, update: Update) -> float:
        return float(update.samples > 10)


@dataclass(frozen=True, kw_only=True)
class TakesTheFirst(FedAvg):
    """The first participant's model is everyone's."""

    @property
    def traits(self) -> Any:
        return replace(super().traits, averages_only=False)

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        return state.after({GLOBAL: state.rebuild_model(updates[0])})


@dataclass(frozen=True, kw_only=True)
class MovesAbsent(WeCFL):
    """Puts whoever is absent into the first cluster."""

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        after = super().aggregate(state, updates, assignment)
        return replace(after, assignment={**dict.fromkeys(after.assignment, 0), **assignment})


@dataclass(frozen=True, kw_only=True)
class CountsRounds(FedAvg):
    """Takes for granted that the first round made a mean."""

    @property
    def traits(self) -> Any:
        return replace(super().traits, averages_only=False)

    def distribute(self, state: ServerState, participant: str) -> Download:
        return Download((GLOBAL if state.round == 0 else "mean",))

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        models = [(state.rebuild_model(update), self.weight(update)) for update in updates]
        return state.after({"mean": weighted_mean(models, otherwise=state.bank[GLOBAL])})


@dataclass(frozen=True, kw_only=True)
class KnowsTheFirst(FedAvg):
    """Has a list of its participants from the start."""

    def start(self, initial: Any, participants: Sequence[str] = ()) -> ServerState:
        return replace(super().start(initial), extras={"enrolled": list(participants)})

    def distribute(self, state: ServerState, participant: str) -> Download:
        return Download((GLOBAL,), scalars={"number": state.extras["enrolled"].index(participant)})


@dataclass(frozen=True, kw_only=True)
class AlwaysTwo(WeCFL):
    """Has two clusters, whatever k is."""

    def assign(self, state: ServerState, updates: Sequence[Update]) -> Assignment:
        return {update.participant: int(update.participant[1:]) % 2 for update in updates}

    def count_clusters(self, state: ServerState) -> int:
        return 2


@dataclass(frozen=True, kw_only=True)
class RemembersItself(FedAvg):
    """Keeps a sum over rounds on the method, where no checkpoint sees it."""

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        mean = self.compute_means(state, updates)[GLOBAL]
        last = getattr(self, "_last", mean)
        object.__setattr__(self, "_last", mean)
        return state.after({GLOBAL: weighted_mean([(mean, 1.0), (last, 1.0)], otherwise=mean)})

    @property
    def traits(self) -> Any:
        return replace(super().traits, averages_only=False)


@dataclass(frozen=True, kw_only=True)
class SendsItAll(FedAvg):
    """Answers with the whole model, private layers included."""

    def local_update(self, learner: Learner, download: Download) -> Update:
        update = super().local_update(learner, download)
        (whole,) = Served.of(learner.complete(learner.initial(0))).models
        return replace(update, diffs={GLOBAL: whole - whole})


@dataclass(frozen=True, kw_only=True)
class LeavesOneAlone(WeCFL):
    """Changes the assignment after the engine has made it large enough."""

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        after = super().aggregate(state, updates, assignment)
        others = dict.fromkeys(after.assignment, 0)
        return replace(after, assignment={**others, "p0": self.k - 1})


@dataclass(frozen=True, kw_only=True)
class KeepsTheFirst(FedAvg):
    """Declares averages_only, and also keeps a single participant's model."""

    def aggregate(self, state: ServerState, updates: Sequence[Update], assignment: Assignment) -> ServerState:
        by_name = {update.participant: update for update in updates}
        first = by_name["p0"] if "p0" in by_name else updates[0]
        return state.after({**self.compute_means(state, updates), "first": state.rebuild_model(first)})


@dataclass(frozen=True, kw_only=True)
class SendsARange(FedAvg):
    """Sends a Python object that is no JSON value."""

    def distribute(self, state: ServerState, participant: str) -> Download:
        return Download((GLOBAL,), scalars={"steps": range(3)})


BROKEN: list[tuple[Method, str, str]] = [
    (KeepsASet(), "job file", "frozenset is not JSON serializable"),
    (PlainMean(), "weights", "'global' is not the mean with the weights that counts_in states"),
    (CountsAbsolutely(), "weights", "twice as many samples: model 'global' is another one"),
    (TakesTheFirst(), "order", r"reverse order, models \['global'\] differ"),
    (MovesAbsent(k=2), "absent", r"p\d did not train in round \d and moved from cluster 1 to 0"),
    (CountsRounds(), "nobody", "KeyError: 'mean'"),
    (KnowsTheFirst(), "late", "'p4' is not in list"),
    (AlwaysTwo(k=2), "one cluster", "with k = 1 the assignment is"),
    (RemembersItself(), "resume", "if the run is stopped after round 3 and goes on: model 'global' is another one"),
    (SendsItAll(), "private layers", "the update of global holds the private"),
    (LeavesOneAlone(k=2), "minimum sizes", r"clusters \[1\] have fewer than min_sites_per_cluster = 2 sites"),
    (KeepsTheFirst(), "sums", "the sum of its participants, as averages_only allows: model 'first' is another one"),
    (SendsARange(), "wire", "range"),
]


@pytest.mark.parametrize(("method", "promise", "reason"), BROKEN, ids=lambda value: type(value).__name__)
def test_a_broken_method_fails_its_promise(method: Method, promise: str, reason: str) -> None:
    with pytest.raises(PromiseError, match=reason) as refused:
        check_method(method)
    message = str(refused.value)
    assert message.startswith(f"promise {promise!r}: method {method.name} breaks it: ")
    assert message.endswith(f"\nhint: read about {promise!r} in docs/add-a-method.md#the-promises")


def test_each_promise_has_a_broken_method() -> None:
    assert {promise for _, promise, _ in BROKEN} == PROMISES.keys()


def test_an_unknown_promise_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"promises = .'speed'. are unknown: expected some of job file, weights"):
        check_method(FedAvg(), ["speed"])


def test_the_page_explains_each_promise() -> None:
    table = GUIDE.read_text("utf-8").partition("## The promises")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) == list(PROMISES)


def test_the_page_begins_with_a_method_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, check, *_ = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len([line for line in method.splitlines() if line]) <= 15
    (tmp_path / "mine.py").write_text(method)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    exec(check, {})
