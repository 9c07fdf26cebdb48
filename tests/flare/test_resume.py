# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the aggregator takes for a run to go on from."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from nvflare.apis.fl_context import FLContext

from cfl_flare.core.errors import ConfigError
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.server import Equipment, Server, ServerSettings
from cfl_flare.flare.aggregator import ClusteringAggregator, Start
from cfl_flare.flare.persistor import ClusterModelPersistor
from cfl_flare.methods import CFL, FedAvg, Method, Participant, ServerState, WeCFL, describe_method
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.store import Checkpoint, Progress, Store, state_metadata, state_of
from cfl_flare.training.resident import untrained
from cfl_flare.training.settings import TrainSettings
from tests.flare.kits import kit
from tests.flare.study_bench import fl_context
from tests.play import MODEL, make_model, people, play
from tests.tiny import LAYOUT, initial

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
    start = Start(crowd, Checkpoints(), Checkpoint(resumed, Progress()))
    aggregator.begin(start, ServerSettings(5), TrainSettings(), equipment, FLContext())
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


def test_a_resumed_job_keeps_its_best_round_its_patience_and_what_was_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path / "state"))
    fl_ctx = fl_context(kit(tmp_path / "server", False), "server")
    first, results = ClusterModelPersistor("ward"), tmp_path / "first"
    assert first.open(LAYOUT, results, fl_ctx) is None
    progress = Progress(rejected=Counter(metric=3), best={"round": 2, "value": 0.9}, watched={"round": 1, "value": 0.8})
    state = FedAvg().start(initial)
    equipment = Equipment(Recorder(results, {}, {}), progress)
    server = Server(FedAvg(), LAYOUT, [Participant("a", "s", 1)], ServerSettings(5), state, equipment)
    (results / "best" / "clusters").mkdir(parents=True)
    (results / "best" / "clusters" / "global.safetensors").write_text("the best")
    server.state = replace(state, round=3)
    first.checkpoints.save(server)
    first.checkpoints.store.unlock()
    resumed = ClusterModelPersistor("ward", resume_from="ward")
    checkpoint = resumed.open(LAYOUT, tmp_path / "second", fl_ctx)
    assert checkpoint.state.round == 3 and vars(checkpoint.progress) == vars(progress)
    Recorder(tmp_path / "second", {}, {})  # which clears a folder that it begins
    resumed.restore_best()
    assert (tmp_path / "second" / "best" / "clusters" / "global.safetensors").read_text() == "the best"
