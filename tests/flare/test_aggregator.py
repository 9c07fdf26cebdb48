# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What arrives at FLARE's aggregator, what it makes of metrics, and what a run goes on from."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.server import Equipment, Server, ServerSettings
from cfl_flare.engine.task import Result, Task, check_arrays
from cfl_flare.flare import ClusteringAggregator, wire
from cfl_flare.flare.aggregator import Start
from cfl_flare.flare.persistor import ClusterModelPersistor
from cfl_flare.flare.schema import decode_results
from cfl_flare.methods import CFL, FedAvg, Method, Participant, ServerState, Update, WeCFL, describe_method
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.store import Checkpoint, Progress, Store, state_metadata, state_of
from cfl_flare.training.resident import build_untrained
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Classification
from tests.helpers.kits import fl_context, write_kit
from tests.helpers.play import MODEL, host_people, make_model, play_rounds
from tests.helpers.tiny import LAYOUT, coin, initial, update

RANGES = Classification().ranges()


def aggregator() -> ClusteringAggregator:
    """An aggregator in the middle of round 0, with participants a and b on site-1."""
    component = ClusteringAggregator({"method": "fedavg"}, {})
    people = [Participant("a", "site-1", 1), Participant("b", "site-1", 3)]
    component.server = Server(FedAvg(), LAYOUT, people, ServerSettings(2), FedAvg().start(initial))
    component.warning = lambda message: None  # it needs FLARE's context only to log
    component.messages(component.running.tasks())
    return component


def arriving(answers: list[Result], number: int = 0, site: str = "site-1") -> FLModel:
    """What FLARE hands to the aggregator when a site sends these answers."""
    model = FLModelUtils.from_shareable(wire.encode_results(answers, {"round": number}))
    model.meta["client_name"] = site
    return model


def two() -> list[Result]:
    return [Result("a", update("a", 1, "global", 1, 1)), Result("b", update("b", 3, "global", 5, 5))]


def mean_after(component: ClusteringAggregator) -> list[float]:
    component.aggregate_model()
    return component.running.state.bank["global"].vector.tolist()


def test_answers_arrive_as_they_were_sent():
    component = aggregator()
    assert component.accept_model(arriving(two()))
    assert mean_after(component) == [4, 4]  # (1*1 + 3*5) / 4


def test_orders_and_models_arrive_as_they_were_sent():
    component = aggregator()
    data = component.messages(component.running.tasks())["site-1"]
    shareable = DXO(DataKind.COLLECTION, data=data.params, meta=data.meta).to_shareable()
    orders, models, content = wire.decode_task(shareable, LAYOUT)
    assert orders == {n: Task(("global",), True, False) for n in "ab"}
    np.testing.assert_array_equal(models["global"].vector, [0, 0])
    assert content["round"] == 0


def test_models_to_measure_arrive_as_they_were_sent_and_so_do_their_metrics():
    cross = [
        ["cluster-0", ["cluster-0", "shared"], "probabilities", ["", "shared"]],
        ["global", ["global"], "logits", []],
    ]
    order = Task(("global",), False, True, questions={"cross": cross}, models=("cluster-0", "shared", "global"))
    assert order.needed == ("global", "cluster-0", "shared")
    models = wire.encode_models({slot: coin(1, 2) for slot in order.needed})
    data = wire.message(models, {"tasks": wire.encode_tasks({"a": order}), "round": 2}, 2, 2)
    shareable = DXO(DataKind.COLLECTION, data=data.params, meta=data.meta).to_shareable()
    orders, arrived, _ = wire.decode_task(shareable, LAYOUT)
    assert orders == {"a": order} and set(arrived) == set(order.needed)
    answer = Result("a", None, {"metrics": {"served_accuracy": 0.5}, "cross": {"global": {"accuracy": 0.5}}})
    assert list(decode_results(arriving([answer]), {}, 0, "a")) == [answer]


def test_arrays_that_are_no_model_travel_as_what_filters_see():
    arrays = {"histogram": np.array([0.25, 0.75]), "losses": np.array([1, 2], np.int64)}
    sent = wire.encode_results([Result("a", Update("a", 4, arrays=arrays))], {"round": 0})
    dxo = from_shareable(sent)
    assert dxo.data["a/#arrays"].data_kind == DataKind.WEIGHT_DIFF
    (result,) = decode_results(FLModelUtils.from_shareable(sent), {}, 0, "a")
    assert result.update.diffs == {}
    assert {name: array.tolist() for name, array in result.update.arrays.items()} == {
        "histogram": [0.25, 0.75], "losses": [1, 2]
    }  # fmt: skip
    filtered = ExcludeVars(["histogram"]).process(sent, FLContext())
    (result,) = decode_results(FLModelUtils.from_shareable(filtered), {}, 0, "a")
    with pytest.raises(PayloadError, match=r"sent the arrays \['losses'\], should be \['histogram', 'losses'\]"):
        check_arrays("a", result.update.arrays, {"histogram": (2,), "losses": (None,)})


@pytest.mark.parametrize(
    "cross", [{"cluster-7": {"accuracy": 1.0}}, {"global": {"accuracy": float("nan")}}, {"global": 1}]
)
def test_metrics_that_nobody_asked_for_are_refused(cross):
    component = aggregator()
    model = arriving([Result("a", update("a", 1, "global", 1, 1)), *two()[1:]])
    model.meta[wire.META]["results"]["a"]["cross"] = cross
    assert component.accept_model(model)
    assert mean_after(component) == [5, 5]  # b's alone


def damage(what: str, model: FLModel) -> None:
    """Damages participant a's part, or the whole message."""
    own: DXO = model.params["a/global"]
    weights = own.data
    content = model.meta[wire.META]
    match what:
        case "missing parameter":
            weights.clear()
        case "extra parameter":
            weights["intruder"] = np.ones(1)
        case "renamed parameter":
            weights["head.wait"] = weights.pop("head.weight")
        case "ill-shaped":
            weights["head.weight"] = np.ones((1, 2), np.float32)
        case "not finite":
            weights["head.weight"] = np.full((2, 1), np.nan, np.float32)
        case "overflows float32":
            weights["head.weight"] = np.full((2, 1), 1e300)
        case "text":
            weights["head.weight"] = np.array([["x"], ["y"]])
        case "full weights":
            own.data_kind = DataKind.WEIGHTS
        case "no DXO":
            model.params["a/global"] = weights
        case "absurd samples":
            content["results"]["a"]["samples"] = 10**15
        case "cluster out of range":
            content["results"]["a"]["cluster"] = 7
        case "unknown participant":
            content["results"]["z"] = content["results"].pop("a")
            model.params["z/global"] = model.params.pop("a/global")
        case "no answer":
            content["results"]["a"] = None


PARTLY = [
    "missing parameter",
    "extra parameter",
    "renamed parameter",
    "ill-shaped",
    "not finite",
    "overflows float32",
    "text",
    "full weights",
    "no DXO",
    "absurd samples",
    "cluster out of range",
    "unknown participant",
    "no answer",
]


@pytest.mark.parametrize("what", PARTLY)
def test_a_damaged_part_is_left_out_and_its_site_s_others_count(what):
    component, model = aggregator(), arriving(two())
    damage(what, model)
    assert component.accept_model(model)
    assert sum(component.running.rejected.values()) == 1
    assert mean_after(component) == [5, 5]  # b alone


@pytest.mark.parametrize("what", ["wrong round", "no content", "other schema", "stranger's model", "failed site"])
def test_a_damaged_message_is_refused_as_a_whole(what):
    component, model = aggregator(), arriving(two(), number=1 if what == "wrong round" else 0)
    match what:
        case "no content":
            del model.meta[wire.META]
        case "other schema":
            model.meta[wire.META]["schema"] = 99
        case "stranger's model":
            model.params["z/global"] = model.params["a/global"]
        case "failed site":
            model.meta[wire.META]["error"] = "DataError: gone"
    assert not component.accept_model(model)
    assert sum(component.running.rejected.values()) == 1
    assert mean_after(component) == [0, 0]


def test_another_site_cannot_answer_for_a_participant():
    component = aggregator()
    component.running.participants["c"] = Participant("c", "site-2", 1)
    assert not component.accept_model(arriving(two(), site="site-2"))
    assert component.running.rejected == {"malformed": 1}  # it hosts one, and sends two
    assert not component.accept_model(arriving(two()[:1], site="site-2"))
    assert component.running.rejected["unknown_participant"] == 1
    assert component.accept_model(arriving(two()))
    component.running.finish_round()
    assert not component.running.progress.record["failed"]  # what site-2 sent is not held against them


def test_other_real_dtypes_are_cast():
    component, model = aggregator(), arriving(two())
    weights = model.params["a/global"].data
    weights["head.weight"] = weights["head.weight"].astype(np.float16)
    assert component.accept_model(model)
    assert mean_after(component) == [4, 4]


def test_a_key_that_a_site_s_filter_removed_counts_as_unchanged():
    component, model = aggregator(), arriving(two())
    own = model.params["a/global"]
    own.data.clear()
    own.add_filter_history("ExcludeVars")
    assert component.accept_model(model)
    assert mean_after(component) == [5, 5]  # a's weight does not count for that key


def test_steps_stand_in_each_model_s_own_meta_for_flare_s_filters():
    shareable = wire.encode_results([Result("a", Update("a", 42, {"global": coin(1, 1)}))], {"round": 0})
    model = FLModelUtils.from_shareable(shareable)
    assert model.params["a/global"].meta["NUM_STEPS_CURRENT_ROUND"] == 42


def test_a_foreign_message_on_the_site_is_refused():
    with pytest.raises(PayloadError, match="no cfl_flare content"):
        wire.decode_task(DXO(DataKind.WEIGHTS, data={"w": np.ones(1)}).to_shareable(), LAYOUT)


def test_histograms_of_scores_travel_with_results_of_any_kind():
    scores = np.arange(8, dtype=np.int32).reshape(2, 2, 2)
    both = [Result("a", update("a", 1, "global", 1, 1), {"scores": scores}), Result("b", answers={"scores": scores})]
    sent = wire.encode_results(both, {"round": 0})
    assert from_shareable(sent).data["a/#scores"].data_kind == DataKind.STATISTICS
    for filtered in (sent, PercentilePrivacy(percentile=10, gamma=0.01).process(sent, FLContext())):
        message = FLModelUtils.from_shareable(filtered)
        for result in decode_results(message, {"global": coin(0, 0)}, 0, "ab"):
            np.testing.assert_array_equal(result.answers["scores"], scores)
            assert result.answers["scores"].dtype == np.int32


# ---- Metrics ----


def aggregate_metrics(metrics: dict[str, float], **settings) -> tuple[list[dict], list[str]]:
    """Three rounds of one participant: the key metrics that FLARE is told of, and what was said."""
    component, said = ClusteringAggregator({"method": "fedavg"}, {}), list[str]()
    component.warning = said.append  # it needs FLARE's context only to log
    people = [Participant("a", "site-1", 1)]
    component.server = server = Server(FedAvg(), LAYOUT, people, ServerSettings(3, **settings), FedAvg().start(initial))
    told = []
    for _ in range(4):
        task = server.tasks()["a"]
        moved = update("a", 1, "global", 1, 1) if task.train else None
        found = {f"served_{name}": value for name, value in metrics.items()} if task.evaluate else {}
        server.accept(Result("a", moved, {"metrics": found}), "site-1")
        sent = component.aggregate_model()
        told += [info["key_metric"] for info in sent.meta.values() if "key_metric" in info]
    return told, said


def test_accuracy_is_reported_without_a_word():
    assert aggregate_metrics({"accuracy": 0.5, "loss": 1.0}) == ([{"name": "served_accuracy", "mode": "max"}] * 3, [])


def test_another_metric_in_its_place_is_named_once():
    told, (text,) = aggregate_metrics({"val/loss": 0.5})
    assert told == [{"name": "served_val/loss", "mode": "min"}] * 3
    assert "sites report no accuracy: the best round is the one with the minimum of 'val/loss'" in text


@pytest.mark.parametrize("settings", [{"key_metric": "dicee"}, {"stop_cond": "dicee >= 0.8"}])
def test_a_metric_that_nobody_reports_is_named_once(settings):
    _, texts = aggregate_metrics({"accuracy": 0.5, "dice": 0.5}, **settings)
    (text,) = [text for text in texts if "has reported" in text]
    assert "no round has reported 'dicee' so far" in text and "served_accuracy" in text


def test_a_metric_of_the_settings_is_followed_without_a_word():
    assert aggregate_metrics({"dice": 0.5, "hd95": 3.0}, key_metric="worst_hd95") == (
        [{"name": "served_worst_hd95", "mode": "min"}] * 3,
        [],
    )
    assert aggregate_metrics({"dice": 0.5}, key_metric="") == ([], [])


# ---- Resuming ----


SPLITS_ALWAYS = CFL(eps1=1e9, eps2=0)


@pytest.fixture(autouse=True)
def without_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """No site's policy is asked."""
    monkeypatch.setattr("cfl_flare.flare.aggregator.component_policy", lambda fl_ctx: None)
    monkeypatch.setattr("cfl_flare.flare.aggregator.limited_paths", nullcontext)


def begin(method: Method, resumed: ServerState, folder: Path) -> ClusteringAggregator:
    aggregator = ClusteringAggregator(describe_method(method), MODEL)
    crowd = [Participant(d.name, "site", len(d.train)) for d in host_people()]
    equipment = Equipment(Recorder(folder, {}, MODEL))
    start = Start(crowd, Checkpoints(), Checkpoint(resumed, Progress()))
    aggregator.begin(start, ServerSettings(5), TrainSettings(), equipment, FLContext())
    return aggregator


def test_a_split_run_goes_on_with_its_tree(tmp_path: Path) -> None:
    state = play_rounds(SPLITS_ALWAYS, 3, sample=4)[-1].after
    store = Store(tmp_path / "state")
    store.save(state.round, state.bank, state_metadata(state))
    layout = build_untrained(make_model, 0, 0).layout
    _, bank, facts = store.latest(layout)
    server = begin(SPLITS_ALWAYS, state_of(bank, facts), tmp_path / "run").running
    assert server.state.assignment == state.assignment
    assert server.method.count_clusters(server.state) == len(state.extras["splits"]) + 1 > 2
    sent = {name: order.slots for name, order in server.tasks().items()}
    assert sent == {name: SPLITS_ALWAYS.distribute(state, name).slots for name in sent}


def test_a_run_of_another_method_is_refused(tmp_path: Path) -> None:
    state = play_rounds(WeCFL(k=2), 2)[-1].after
    with pytest.raises(ConfigError, match=r"a run of another method: its state has no \['settled', 'splits'\]"):
        begin(SPLITS_ALWAYS, state, tmp_path)
    with pytest.raises(ConfigError, match="its 'cluster-0' does not fit"):
        begin(SPLITS_ALWAYS, replace(state, bank={"global": state.bank["global"]}), tmp_path)


def test_a_resumed_job_keeps_its_best_round_its_patience_and_what_was_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path / "state"))
    fl_ctx = fl_context(write_kit(tmp_path / "server", False), "server")
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
