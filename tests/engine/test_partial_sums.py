# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Sums on the site, by hand and equal to single updates, and the server's memory in a round, in units of one model."""

import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import sklearn.cluster  # noqa: F401 - its import is no part of a round
import torch
from torch import nn

from cfl_flare.cli.specs import build_named
from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.config import describe
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.params import Layout, Params
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.partial_sums import added_up, no_sums
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.methods import IFCA, METHODS, FedAvg, Method, Participant, Update, WeCFL, build_method
from cfl_flare.models import MLP
from cfl_flare.training.resident import build_untrained
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import method_of
from tests.helpers.tiny import LAYOUT, coin, start_server, update

PEOPLE = [Participant(n, "site-1", s) for n, s in zip("abc", (1, 2, 3))] + [Participant("d", "site-2", 2)]


start_sums_server = partial(start_server, people=PEOPLE)


def test_the_first_participant_of_a_cluster_carries_the_weighted_mean():
    models = {"cluster-0": coin(10, 0), "cluster-1": coin(0, 10)}
    answers = [
        Result("a", update("a", 1, "cluster-1", 4, 0, cluster=1), {"metrics": {"m": 1.0}}),
        Result("b", error="it failed"),
        Result("c", update("c", 3, "cluster-1", 0, 8, cluster=1)),
        Result("d", update("d", 5, "cluster-0", 1, 1, cluster=0)),
    ]
    sums = {a.participant: a for a in added_up(answers, models, build_method({"method": "ifca", "k": 2}))}
    np.testing.assert_allclose(sums["a"].update.diffs["cluster-1"].vector, [1, 6])  # (1 * (4, 0) + 3 * (0, 8)) / 4
    assert (sums["c"].update.diffs, sums["c"].update.carrier) == ({}, "a")
    assert (sums["c"].update.samples, sums["c"].update.cluster) == (3, 1)
    np.testing.assert_allclose(sums["d"].update.diffs["cluster-0"].vector, [1, 1])
    assert sums["b"] == answers[1]
    assert sums["a"].metrics == {"m": 1.0}


def test_the_server_gives_the_carrier_the_weight_of_all_that_it_carries():
    """(1 a + 3 c + 2 d) / 6 with a and c in one mean of weight 4; b never answers."""
    s = start_sums_server()
    s.tasks()
    single = [Result("a", update("a", 1, "global", 6, 0)), Result("c", update("c", 3, "global", 0, 6))]
    for answer in added_up(single, dict(s.bank), s.method):
        s.accept(answer, "site-1")
    s.accept(Result("d", update("d", 2, "global", 3, 3)), "site-2")
    s.finish_round()
    np.testing.assert_allclose(s.state.bank["global"].vector, [2, 4])  # (1*6 + 2*3) / 6, (3*6 + 2*3) / 6
    assert s.progress.record["trained"] == ["a", "c", "d"]
    assert s.progress.record["failed"] == {"b": "no result in time"}
    assert s.progress.record["bytes_up"] == 2 * LAYOUT.nbytes


def test_who_is_carried_by_a_refused_update_is_left_out_with_it():
    s = start_sums_server()
    s.tasks()
    with pytest.raises(PayloadError):
        s.accept(Result("a", update("a", 1, "global", np.nan, 0)), "site-1")
    s.accept(Result("b", Update("b", 2, carrier="a")), "site-1")
    s.accept(Result("c", Update("c", 3, carrier="b")), "site-1")  # b is not a carrier itself
    s.accept(Result("d", update("d", 2, "global", 3, 3)), "site-2")
    s.finish_round()
    np.testing.assert_allclose(s.state.bank["global"].vector, [3, 3])
    failed = s.progress.record["failed"]
    assert failed["b"] == "carrier: b's model should be included in a's, which has none of its cluster"
    assert failed["c"].startswith("carrier: c's model should be included in b's")
    assert s.progress.record["trained"] == ["d"]


@pytest.mark.parametrize("carrier", ["b", "d", "z", 7, ["a"]])
def test_a_carrier_is_another_participant_of_the_same_site(carrier):
    s = start_sums_server()
    s.tasks()
    with pytest.raises(PayloadError, match="is not another participant of its site"):
        s.accept(Result("b", Update("b", 2, carrier=carrier)), "site-1")


def test_another_cluster_s_model_carries_nobody():
    s = start_sums_server(build_method({"method": "ifca", "k": 2}))
    s.tasks()
    s.accept(Result("a", update("a", 1, "cluster-0", 1, 1, cluster=0)), "site-1")
    s.accept(Result("b", Update("b", 2, cluster=1, carrier="a")), "site-1")
    s.finish_round()
    assert s.progress.record["trained"] == ["a"]
    assert "none of its cluster" in s.progress.record["failed"]["b"]


def test_a_run_that_needs_single_models_refuses_sums():
    s = start_sums_server(build_method({"method": "wecfl", "k": 2}))
    s.tasks()
    with pytest.raises(PayloadError, match="method wecfl needs the model of each participant"):
        s.accept(Result("b", Update("b", 2, carrier="a")), "site-1")
    job = {"model": MLP((1, 8, 8), 10), "data": Digits(), "participants": 6, "partition": "iid", "num_rounds": 2}
    job |= {"min_clients": 2, "site_sums": True}
    with pytest.raises(ConfigError, match="site_sums = True, but method wecfl needs"):
        ClusteredRecipe(method="wecfl:k=2", **job)
    with pytest.raises(ConfigError, match="site_sums = True, but keep_features needs"):
        ClusteredRecipe(method="ifca:k=2", keep_features=True, **job)
    ClusteredRecipe(method="ifca:k=2", **job)


SUMMING = (
    *("fedavg", "fedprox", "finetune", "fedper", "fedbabu", "ditto", "per-fedavg", "ifca:k=3"),
    *("ifca:k=3,shared_backbone=True", "ifca-cam:k=3,warmup=1", "fedavg+:k=2", "fedavg+ifca:k=3"),
    *("clove:k=3", "clove:k=3,silhouette=True"),
    "groups:groups={'p0':'a','p1':'b','p2':'a','p5':'b','p6':'b'},warmup=1",
)


def test_every_method_that_sums_is_tested_here():
    can = {name for name in METHODS if method_of(name).traits.averages_only}
    assert can - {"cam", "ensemble", "hypcluster"} == {spec.partition(":")[0] for spec in SUMMING} & METHODS.keys()


def play_two_sites(method, sums: bool, rounds: int = 4) -> Server:
    """A few rounds of eight participants on two sites."""
    make_model = model_factory(describe(MLP((1, 8, 8), 10), "model"))
    data, people, sites = DataConfig(8, {"partition": "label_permutation", "groups": 3}), [], {}
    for i in (0, 1):
        sites[f"site-{i}"] = site = Site(method, make_model, TrainSettings(lr=0.05), 0)
        site.add(data.host(Digits(), "", i, 2))
        people += [Participant(d.name, f"site-{i}", len(d.train), d.group) for d in site.hosted.values()]
    layout, start = site.runtime.resident.layout, method.start(partial(build_untrained, make_model, 0))
    server = Server(method, layout, people, ServerSettings(rounds, sample=6), start)
    for number in range(rounds):
        orders = server.tasks()
        for name, site in sites.items():
            mine = {p: order for p, order in orders.items() if p in site.hosted}
            answers = [site.carry_out(p, order, server.bank, number) for p, order in mine.items()]
            for answer in added_up(answers, server.bank, method) if sums else answers:
                server.accept(answer, name)
        server.finish_round()
    return server


@pytest.mark.parametrize("spec", SUMMING)
def test_sums_give_the_models_of_single_updates(spec):
    method = build_named(spec, ())
    assert no_sums(method, ServerSettings(3)) == ""
    one, two = play_two_sites(method, sums=False), play_two_sites(method, sums=True)
    assert one.state.assignment == two.state.assignment
    for slot, model in one.state.bank.items():
        np.testing.assert_allclose(two.state.bank[slot].vector, model.vector, atol=1e-6)
    assert two.progress.record["trained"] == one.progress.record["trained"]
    assert two.progress.record["bytes_up"] < one.progress.record["bytes_up"]


def test_equal_weights_count_participants():
    method = replace(FedAvg(), weighting="uniform")
    one, two = play_two_sites(method, sums=False, rounds=1), play_two_sites(method, sums=True, rounds=1)
    np.testing.assert_allclose(two.state.bank["global"].vector, one.state.bank["global"].vector, atol=1e-6)


def test_a_variance_s_mean_is_that_of_the_models():
    """Differences of variances may be negative; the mean of the models is floored, and not that of the differences."""
    from torch import nn

    from cfl_flare.training.resident import ResidentModel

    layout = ResidentModel(nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))).layout
    at = next(e.slice for e in layout.entries if e.name == "1.running_var")
    vector = np.zeros(layout.size, np.float32)
    vector[at] = 1
    models = {"global": Params(layout, vector, np.zeros(layout.counter_size, np.int64))}
    answers = []
    for name, change in (("a", -0.5), ("b", -0.25)):
        diff = np.zeros(layout.size, np.float32)
        diff[at] = change
        params = Params(layout, diff, np.full(layout.counter_size, 10, np.int64))
        answers.append(Result(name, Update(name, 1, {"global": params})))
    (first, _) = added_up(answers, models, FedAvg())
    np.testing.assert_allclose(first.update.diffs["global"].vector[at], [-0.375, -0.375])
    assert first.update.diffs["global"].counters.tolist() == [10]


# ---- Memory ----


SITES = 4


class Wide(nn.Module):
    """Several layers, of which none has most of the parameters; the one that is compared is small."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(256, 256, 1) for _ in range(8))
        self.head = nn.Linear(256, 2)


WIDE_LAYOUT = Layout.of(Wide())
SIZE = WIDE_LAYOUT.nbytes


def draw_wide_model(number: int) -> Params:
    rng = np.random.default_rng(number)
    return Params(WIDE_LAYOUT, rng.normal(size=WIDE_LAYOUT.size).astype(np.float32))


class Peak:
    """What was allocated at most, beyond what there was, in models."""

    def __enter__(self) -> "Peak":
        tracemalloc.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.models = tracemalloc.get_traced_memory()[1] / SIZE
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("method", "most"),
    [
        (FedAvg(), 5),  # a sum in float64, a trained model, the mean
        (IFCA(k=2), 9),  # the two means, and of one cluster at a time what the analysis sums
        (WeCFL(k=2), 10),  # and the common model
    ],
    ids=["fedavg", "ifca", "wecfl"],
)
def test_a_round_needs_few_models_beyond_its_updates(method: Method, most: float) -> None:
    people = [Participant(f"site-{i}", f"site-{i}", 1) for i in range(SITES)]
    server = Server(method, WIDE_LAYOUT, people, ServerSettings(num_rounds=3), method.start(draw_wide_model))
    peaks = []
    for _ in range(3):
        for number, (name, task) in enumerate(server.tasks().items()):
            cluster = number % 2 if task.choices else None
            slot = task.choices[cluster] if cluster is not None else task.slots[0]
            server.accept(Result(name, Update(name, 1, {slot: draw_wide_model(number)}, cluster)), name)
        with Peak() as peak:
            server.finish_round()
        peaks.append(round(peak.models, 1))
    assert max(peaks) < most, peaks


def test_a_file_is_written_without_a_copy_of_what_is_in_it(tmp_path: Path) -> None:
    arrays = {f"{i}": draw_wide_model(i).vector for i in range(3)}
    with Peak() as peak:
        save_arrays(tmp_path / "models.safetensors", arrays, {})
    assert peak.models < 0.2
    assert all(np.array_equal(a, arrays[name]) for name, a in load_arrays(tmp_path / "models.safetensors")[0].items())


def test_a_file_is_as_other_programs_write_it(tmp_path: Path) -> None:
    from safetensors.numpy import save

    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(3),
        "half": np.ones((), np.float16),
        "none": np.zeros((0, 2)),
        "bits": np.array([True, False, True]),
        "turned": np.arange(6, dtype=np.uint8).reshape(2, 3).T,
        "swapped": np.arange(3, dtype=">i2"),
    }
    save_arrays(tmp_path / "ours", arrays, {"x": "é"})
    text = {"cfl_flare": '{"x": "\\u00e9"}'}
    plain = {name: np.ascontiguousarray(a, a.dtype.newbyteorder("=")).reshape(a.shape) for name, a in arrays.items()}
    (tmp_path / "theirs").write_bytes(save(plain, text))
    for name in ("ours", "theirs"):
        read, meta = load_arrays(tmp_path / name)
        assert meta == {"x": "é"} and read.keys() == arrays.keys()
        assert all(read[key].dtype == plain[key].dtype and np.array_equal(read[key], plain[key]) for key in arrays)


def test_one_vector_is_a_view_of_the_model_where_its_parts_lie_beside_each_other() -> None:
    model = draw_wide_model(0)
    for role in ("all", "fc", "backbone"):
        assert np.shares_memory(model.part(role), model.vector)
        np.testing.assert_array_equal(
            model.part(role), np.concatenate([model.vector[s] for s in WIDE_LAYOUT.select(role)])
        )
    names = ["head.bias", "layers.0.bias"]
    np.testing.assert_array_equal(
        model.part(names), np.concatenate([model.vector[s] for s in WIDE_LAYOUT.select(names)])
    )
    assert torch.from_numpy(model.part("all")).shape == (WIDE_LAYOUT.parameter_size,)
