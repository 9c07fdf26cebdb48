# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the aggregator takes for a run to go on from."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from nvflare.apis.fl_context import FLContext

from cfl_flare.core.errors import ConfigError
from cfl_flare.engine.server import Equipment, ServerSettings
from cfl_flare.flare.aggregator import ClusteringAggregator
from cfl_flare.methods import CFL, Method, Participant, ServerState, WeCFL, describe_method
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.store import Store, state_metadata, state_of
from cfl_flare.training.resident import untrained
from cfl_flare.training.settings import TrainSettings
from tests.play import MODEL, make_model, people, play

SPLITS_ALWAYS = CFL(eps1=1e9, eps2=0)


@pytest.fixture(autouse=True)
def without_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """No site's policy is asked."""
    monkeypatch.setattr("cfl_flare.flare.aggregator.component_policy", lambda fl_ctx: None)
    monkeypatch.setattr("cfl_flare.flare.aggregator.limited_paths", nullcontext)


def begin(method: Method, resumed: ServerState, folder: Path) -> ClusteringAggregator:
    aggregator = ClusteringAggregator(describe_method(method), MODEL)
    crowd = [Participant(d.name, "site", len(d.train)) for d in people()]
    equipment = Equipment(Recorder(folder, {}, MODEL))
    aggregator.begin(crowd, ServerSettings(5), TrainSettings(), equipment, FLContext(), resumed)
    return aggregator


def test_a_split_run_goes_on_with_its_tree(tmp_path: Path) -> None:
    state = play(SPLITS_ALWAYS, 3, sample=4)[-1].after
    store = Store(tmp_path / "state")
    store.save(state.round, state.bank, state_metadata(state))
    layout = untrained(make_model, 0, 0).layout
    _, bank, facts = store.latest(layout)
    server = begin(SPLITS_ALWAYS, state_of(bank, facts), tmp_path / "run").running
    assert server.state.assignment == state.assignment
    assert server.method.clusters_in(server.state) == len(state.extras["splits"]) + 1 > 2
    sent = {name: order.slots for name, order in server.tasks().items()}
    assert sent == {name: SPLITS_ALWAYS.distribute(state, name).slots for name in sent}


def test_a_run_of_another_method_is_refused(tmp_path: Path) -> None:
    state = play(WeCFL(k=2), 2)[-1].after
    with pytest.raises(ConfigError, match=r"a run of another method: its state has no \['settled', 'splits'\]"):
        begin(SPLITS_ALWAYS, state, tmp_path)
    with pytest.raises(ConfigError, match="its 'cluster-0' does not fit"):
        begin(SPLITS_ALWAYS, replace(state, bank={"global": state.bank["global"]}), tmp_path)
