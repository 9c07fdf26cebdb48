# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedDrift by numbers computed by hand: who drifts, what opens, what merges; and periods of data on the site."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from cfl_flare.cli import main
from cfl_flare.cli.drift import losses as losses_of
from cfl_flare.cli.drift import rise
from cfl_flare.clustering.agglomerative import alike
from cfl_flare.clustering.floor import Census, Floor
from cfl_flare.core.config import build, describe
from cfl_flare.core.errors import ColumnsError, ConfigError, PayloadError
from cfl_flare.data import DataConfig, DataSource, Digits, Samples, SiteData
from cfl_flare.data.sources import MATRIX_A, Drifting
from cfl_flare.data.table import Table
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Site, check_periods
from cfl_flare.engine.task import check_update
from cfl_flare.methods import Download, FedAvg, FedDrift, Method, ServerState, Update
from cfl_flare.results.remarks import drift_in_run
from cfl_flare.results.served import save_served
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.runtime import Runtime, Split
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Classification
from tests.loop import run_loop
from tests.tiny import Coin, coin, initial, update

METHOD = FedDrift(delta=0.5)
# Of each participant: its samples of three periods, of which it has said the sum.
COUNTS = {"a": (3, 5, 2), "b": (1, 1, 1), "c": (2, 4, 6)}
Rows = dict[str, list[list[float]]]


def losses(rows: Rows, counts: Mapping[str, Sequence[int]] = COUNTS) -> list[Update]:
    """The losses of each period's data, one row a period, a column a model."""
    updates = []
    for name, of_name in rows.items():
        samples = np.array(counts[name][: len(of_name)], np.float32)
        updates.append(Update(name, sum(counts[name]), arrays={"loss": np.float32(of_name), "samples": samples}))
    return updates


def step(method: Method, state: ServerState, updates: list[Update], period: int) -> ServerState:
    state = replace(state, period=period)
    return method.aggregate(state, updates, method.assign(state, updates))


def trained(state: ServerState, ends: dict[str, float]) -> list[Update]:
    slots = {name: METHOD.distribute(state, name).slots[0] for name in ends}
    return [update(n, sum(COUNTS[n]), slots[n], end - model(state, slots[n])[0], 0) for n, end in ends.items()]


def model(state: ServerState, slot: str) -> list[float]:
    return [round(float(value), 5) for value in state.bank[slot].vector]


def after_first_period(method: Method = METHOD) -> ServerState:
    """All are in cluster 0, whose model is (4, 0)."""
    state = step(method, method.start(initial), losses({name: [[0.7]] for name in COUNTS}), 0)
    return step(method, state, trained(state, {"a": 9, "b": 5, "c": -4}), 0)


def test_in_the_first_period_everybody_says_its_loss_and_then_trains_the_only_model():
    state = METHOD.start(initial)
    assert METHOD.plan(state).everyone
    sent = METHOD.distribute(state, "a")
    assert (sent.slots, sent.returned) == (("cluster-0",), ())
    assert dict(sent.arrays) == {"loss": (1, 1), "samples": (1,)}
    state = step(METHOD, state, losses({name: [[0.7]] for name in COUNTS}), 0)
    assert state.assignment == {"a": 0, "b": 0, "c": 0}
    assert not METHOD.plan(state).everyone
    assert METHOD.distribute(state, "a") == Download(("cluster-0",), scalars={"periods": [0]})
    assert model(after_first_period(), "cluster-0") == [(3 * 9 + 5 - 2 * 4) / 6, 0]


def test_who_loses_more_than_delta_opens_a_cluster_with_a_copy_of_the_best_model():
    state = replace(after_first_period(), period=1)
    sent = METHOD.distribute(state, "a")
    assert (sent.slots, dict(sent.arrays)) == (("cluster-0",), {"loss": (2, 1), "samples": (2,)})
    rows: Rows = {"a": [[0.1], [0.2]], "b": [[0.1], [1.2]], "c": [[0.1], [1.21]]}  # 0.7 + 0.5 is no drift yet
    state = step(METHOD, state, losses(rows), 1)
    assert state.assignment == {"a": 0, "b": 0, "c": 1}
    assert state.notes == {"drifted": ["c"], "opened": [1], "merged": []}
    assert model(state, "cluster-1") == model(state, "cluster-0") == [4, 0]
    assert METHOD.distribute(state, "a").scalars == {"periods": [0, 1]}
    assert METHOD.distribute(state, "c") == Download(("cluster-1",), scalars={"periods": [1]})
    # Weights are the samples of the periods in the cluster: 8 of a, 2 of b, and c is alone.
    state = step(METHOD, state, trained(state, {"a": 9, "b": 4, "c": -3}), 1)
    assert model(state, "cluster-0") == [(8 * 9 + 2 * 4) / 10, 0] and model(state, "cluster-1") == [-3, 0]
    assert METHOD.pool(state) == [0]  # the new one is alone in this period
    assert METHOD.pool(replace(state, period=2)) == [0, 1]


def test_two_that_drift_open_two_clusters_or_one_if_eager():
    rows: Rows = {"a": [[0.1], [0.2]], "b": [[0.1], [3.0]], "c": [[0.1], [2.0]]}
    state = step(METHOD, after_first_period(), losses(rows), 1)
    assert state.assignment == {"a": 0, "b": 1, "c": 2} and state.notes["opened"] == [1, 2]
    eager = FedDrift(delta=0.5, eager=True)
    state = step(eager, after_first_period(eager), losses(rows), 1)
    assert state.assignment == {"a": 0, "b": 1, "c": 1} and state.notes["opened"] == [1]


def test_clusters_that_are_alike_merge_and_their_ids_are_not_used_again():
    """In period 2, b and c lose as much with each other's models: 0.3 - 0.2 and 0.4 - 0.1 are at most 0.5."""
    rows: Rows = {"a": [[0.1], [0.2]], "b": [[0.1], [3.0]], "c": [[0.1], [2.0]]}
    state = step(METHOD, after_first_period(), losses(rows), 1)
    state = step(METHOD, state, trained(state, {"a": 4, "b": 1, "c": -3}), 1)
    far: Rows = {
        "a": [[0.1, 2, 2], [0.1, 2, 2], [0.1, 2, 2]],
        "b": [[0.1, 2, 2], [3, 0.2, 0.4], [3, 0.2, 0.4]],
        "c": [[0.1, 2, 2], [3, 0.3, 0.1], [3, 0.3, 0.1]],
    }
    state = step(METHOD, state, losses(far), 2)
    assert state.notes == {"drifted": [], "opened": [], "merged": [[1, 2]]}
    assert state.assignment == {"a": 0, "b": 1, "c": 1} and {*state.bank} == {"cluster-0", "cluster-1"}
    assert model(state, "cluster-1") == pytest.approx(
        [(2 * 1 - 10 * 3) / 12, 0], abs=1e-5
    )  # by 1 + 1 and 4 + 6 samples
    assert METHOD.distribute(state, "c").scalars == {"periods": [1, 2]}
    assert METHOD.clusters_in(state) == 3
    state = step(METHOD, state, losses({"a": [[9.0, 9.0]] * 4}, {"a": (3, 5, 2, 1)}), 3)
    assert state.assignment["a"] == 3 and state.notes["opened"] == [3]


def test_the_distance_of_clusters_is_the_larger_rise_on_the_other_ones_data_weighted_by_samples():
    """Cluster 0 has 3 + 1 samples: model 0 loses 0.1 and 0.5 there, 0.2 on average; model 1 loses 0.6, 0.3 at home."""
    rows = np.array([[0.1, 0.6], [0.5, 0.6], [0.4, 0.3]])
    counts = np.array([[3, 0], [1, 0], [0, 5]])
    assert alike(rows, counts, 0.31) == [[0, 1]]  # 0.4 - 0.2 and 0.6 - 0.3
    assert alike(rows, counts, 0.29) == []
    assert alike(rows, counts * [1, 0], 9.0) == []  # nothing is known of the other


def test_complete_linkage_joins_no_chain():
    """Neighbours differ by 0.3, the ends by 0.6."""
    rows = np.array([[0.0, 0.3, 0.6], [0.3, 0.0, 0.3], [0.6, 0.3, 0.0]])
    assert alike(rows, np.eye(3), 0.4) in ([[0, 1]], [[1, 2]])


def test_who_was_absent_sends_losses_later_and_may_drift_then():
    eager = FedDrift(delta=0.5, eager=True)
    state = step(eager, after_first_period(eager), losses({"a": [[0.1], [0.2]], "b": [[0.1], [3.0]]}), 1)
    sent = eager.distribute(state, "c")
    assert (sent.slots, sent.returned, sent.arrays["loss"]) == (("cluster-0",), (), (2, 1))
    both = [*trained(state, {"a": 9, "b": 7}), *losses({"c": [[0.1], [2.0]]})]
    state = step(eager, state, both, 1)
    assert state.assignment == {"a": 0, "b": 1, "c": 1}  # the cluster that this period opened
    assert model(state, "cluster-1") == [7, 0] and eager.clusters_in(state) == 2
    assert state.extras["seen"]["c"][0] == [0, 1]


def test_apart_each_participant_begins_with_a_cluster():
    method = FedDrift(apart=True)
    state = step(method, method.start(initial), losses({name: [[0.7]] for name in COUNTS}), 0)
    assert state.assignment == {"a": 1, "b": 2, "c": 3} and state.notes["merged"] == []


def test_under_a_floor_nobody_is_alone():
    names = {name: f"site-{name}" for name in COUNTS}
    census = Census(Floor(2, 1), names, {name: sum(counts) for name, counts in COUNTS.items()})
    state = replace(after_first_period(), census=census, period=1)
    updates = losses({"a": [[0.1], [0.2]], "b": [[0.1], [0.2]], "c": [[0.1], [2.0]]})
    assert METHOD.assign(state, updates) == {"a": 0, "b": 0, "c": 0} and census.moved == {"c": 1}


def test_a_newcomer_goes_to_the_smallest_loss_and_changes_nothing_else():
    rows: Rows = {"a": [[0.1], [0.2]], "b": [[0.1], [3.0]], "c": [[0.1], [0.2]]}
    state = replace(step(METHOD, after_first_period(), losses(rows), 1), period=2)
    joined = METHOD.join(state, losses({"z": [[0, 0], [0, 0], [9.0, 8.0]]}, {"z": (0, 0, 4)})[0])
    assert joined.assignment == {**state.assignment, "z": 1} and joined.bank == state.bank
    assert METHOD.distribute(joined, "z") == Download(("cluster-1",), scalars={"periods": [2]})
    moved = METHOD.join(joined, update("z", 4, "cluster-1", 9, 9))
    assert moved.bank == state.bank


@pytest.mark.parametrize("row", [[[np.nan]], [[np.inf]], [[1e12]], [[1.0, 1.0]], [[1.0], [1.0]], [1.0]])
def test_hostile_losses_are_refused(row):
    state = METHOD.start(initial)
    answer = Update("a", 3, arrays={"loss": np.array(row), "samples": np.ones(1)})
    with pytest.raises(PayloadError, match="'loss'"):
        check_update(answer, METHOD.distribute(state, "a"), state, "feddrift")


def test_nobody_weighs_more_than_it_said_at_check_in():
    arrays = {"loss": np.ones((1, 1)), "samples": np.array([1e8])}
    liar = Update("a", 10, arrays=arrays)
    owing = Update("b", 3, arrays={**arrays, "samples": np.array([-5.0])})
    state = step(METHOD, METHOD.start(initial), [liar, owing], 0)
    counts = [
        METHOD.counts_in(state, update(n, s, "cluster-0", 1, 1), state.assignment) for n, s in (("a", 10), ("b", 3))
    ]
    assert counts == [{"cluster-0": {"cluster-0": 10}}, {"cluster-0": {"cluster-0": 1}}]


# ---- On the site ----

PERIODS = torch.tensor([0, 0, 2, 2, 2])


def learner(labels: list[int], period: int | None, test: Split | None = None, lr: float = 1.0) -> Learner:
    """A participant whose features are all 1, with two samples of period 0 and three of period 2."""
    split = Split(torch.ones(len(labels), 1), torch.tensor(labels), period=PERIODS)
    settings = TrainSettings(lr=lr, momentum=0.0, local_steps=1, batch_size=9)
    return Learner(Runtime(Coin, settings, seed=0), "p", split, test or split, {}, period=period)


def test_a_participant_sends_samples_and_losses_by_period():
    """Of label 0, (1, -1) loses log(1 + exp(-2)); of label 1 two more. In period 1 it has nothing new."""
    sent = Download(("cluster-1", "cluster-0"), (coin(1, -1), coin(0, 0)), {"pool": ["cluster-0", "cluster-1"]})
    small = np.log1p(np.exp(-2))
    answer = METHOD.local_update(learner([0, 0, 1, 1, 0], 2), sent)
    assert answer.arrays["samples"].tolist() == [2, 0, 3] and answer.samples == 5 and not answer.diffs
    rows = [[np.log(2), small], [0, 0], [np.log(2), small + 4 / 3]]
    np.testing.assert_allclose(answer.arrays["loss"], rows, rtol=1e-6)
    answer = METHOD.local_update(learner([0, 0, 1, 1, 0], 1), sent)
    assert answer.arrays["samples"].tolist() == [2, 0]
    np.testing.assert_allclose(answer.arrays["loss"][1], [np.log(2), small], rtol=1e-6)  # of its latest data


@pytest.mark.parametrize(("periods", "share"), [([0], 1.0), ([2], 1 / 3), ([0, 2], 3 / 5), ([1], 1 / 3)])
def test_it_trains_on_the_periods_of_its_cluster(periods, share):
    """A step from (0, 0) is the share of label 0, minus a half; of its latest data, if these periods have no sample."""
    sent = Download(("cluster-0",), (coin(0, 0),), {"periods": periods})
    answer = METHOD.local_update(learner([0, 0, 0, 1, 1], 2), sent)
    np.testing.assert_allclose(answer.main_diff.vector, [share - 0.5, 0.5 - share], atol=1e-6)
    assert answer.samples == 5


@pytest.mark.parametrize(
    ("period", "labels"), [(None, [0, 0, 0, 1, 1]), (0, [0, 0]), (1, [0, 0]), (2, [0, 1, 1]), (9, [0, 1, 1])]
)
def test_other_methods_train_and_test_on_the_latest_period(period, labels):
    test = Split(torch.ones(2, 1), torch.tensor([0, 1]), period=torch.tensor([1, 1]))
    person = learner([0, 0, 0, 1, 1], period, test)
    assert person.labels.tolist() == labels and person.tests == (0 if period == 0 else 2)
    moved = FedAvg().local_update(person, Download(("global",), (coin(0, 0),))).main_diff.vector
    assert moved[0] == pytest.approx(labels.count(0) / len(labels) - 0.5)


def test_without_a_cluster_it_predicts_with_the_smallest_loss():
    both = Download(("cluster-0", "cluster-1"), (coin(1, -1), coin(-1, 1)), {"pool": [], "placed": False})
    assert METHOD.serve(learner([0, 0, 1, 1, 1], 2), both).vector.tolist() == [-1, 1]
    assert METHOD.serve(learner([0, 0, 1, 1, 1], 0), both).vector.tolist() == [1, -1]
    assert METHOD.serve(learner([0, 0, 1, 1, 1], 2), replace(both, scalars={})).vector.tolist() == [1, -1]


# ---- Whole runs ----

MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [2], "num_classes": 2, "hidden": [16]}}
TRAINING = TrainSettings(lr=0.02, optimizer="adam", local_steps=20)
CHANGES = ("0000", "0011", "0011")


def run(method: Method, folder: Path, source: DataSource, per_period: int | None = 5) -> ServerState:
    return run_loop(
        method=method,
        model=MODEL,
        source=source,
        data=DataConfig(partition="natural"),
        settings=ServerSettings(15, rounds_per_period=per_period),
        training=TRAINING,
        folder=folder,
    ).state


@pytest.mark.parametrize("eager", [False, True])
def test_a_run_finds_who_changes_its_concept_and_when(tmp_path, eager):
    state = run(FedDrift(eager=eager), tmp_path, Drifting(changes=CHANGES))
    assert len({state.assignment[name] for name in ("p0", "p1")}) == 1
    assert len({state.assignment[name] for name in ("p2", "p3")}) == 1
    assert state.assignment["p0"] != state.assignment["p2"] and len(state.bank) == 2
    rounds = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in rounds if line.get("drifted")] == [5]
    accuracy = [line["served_accuracy"] for line in rounds]
    assert accuracy[3] > 0.9 and accuracy[4] < 0.7 and accuracy[8] > 0.9  # on period 0, on the new one, after a while
    opened = "cluster 1" if eager else "cluster 1, 2; "
    assert drift_in_run(rounds)[0].startswith(
        f"Round 5: no model fits the new data of p2, p3; opened: {opened}".rstrip("; ")
    )


def test_without_a_change_nothing_happens(tmp_path):
    state = run(FedDrift(), tmp_path, Drifting(changes=("0000",) * 3, seed=1))
    assert {*state.assignment.values()} == {0} and FedDrift().clusters_in(state) == 1


def test_periods_are_refused_where_data_has_none():
    people = DataConfig(2, "iid").host(Digits(), "local", 0, 1)
    check_periods(None, people)
    with pytest.raises(ColumnsError, match=r"rounds_per_period = 5, and the data of \['p0'\] has no periods"):
        check_periods(5, people)


def test_refusals():
    with pytest.raises(ConfigError, match=r"delta = -0.1 should be >= 0"):
        FedDrift(delta=-0.1)
    for changes in (("00", "0"), ("02",), (), "01", [10]):
        with pytest.raises(ConfigError, match="changes"):
            Drifting(changes=changes)
    with pytest.raises(ConfigError, match=r"are 90,000,000,000 points, more than 10,000,000; lower samples"):
        Drifting(samples=10**9, changes=["0" * 10] * 9)  # a site's memory


@pytest.mark.parametrize("concept", ["sine", "circle"])
def test_generated_points_have_the_concept_of_their_participant_and_period(concept):
    train, test = Drifting(concept=concept, samples=50).load()
    assert len(train) == len(test) == 50 * sum(map(len, MATRIX_A))
    for samples in (train, test):
        assert samples.key is not None and samples.period is not None
        drifted = np.array([MATRIX_A[t][int(name[1:])] == "1" for t, name in zip(samples.period, samples.key)])
        x, y = samples.x, samples.y
        if concept == "sine":
            expected = (x[:, 1] <= np.sin(x[:, 0])) != drifted
        else:
            near = [np.hypot(x[:, 0] - c, x[:, 1] - 0.5) > r for c, r in ((0.2, 0.15), (0.6, 0.25))]
            expected = np.where(drifted, near[1], near[0])
        assert (y == expected).all() and 0 < y.mean() < 1
    assert not np.array_equal(train.x, test.x)


# ---- After deployment ----


def test_the_rise_of_a_loss_is_tested_by_permutations():
    """Of 20 ways to draw 3 of 6 numbers, one has a mean as large as that of 4, 5 and 6."""
    test = rise(np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]))
    assert (test.before, test.after) == (2, 5) and test.p == pytest.approx(1 / 20, abs=0.01)
    assert round(test.bound, 6) in (2.333333, 3)  # the second largest rise, or the largest
    fallen = rise(np.array([4.0, 5.0, 6.0]), np.array([1.0, 2.0, 3.0]))
    assert fallen.p == 1
    assert rise(np.ones(30), np.ones(40)).p == 1


def test_without_a_change_alarms_are_as_rare_as_stated(monkeypatch):
    """Of 600 hospitals with skewed losses, as many as 0.05 and three deviations; a rise by half is mostly seen."""
    monkeypatch.setattr("cfl_flare.cli.drift.PERMUTATIONS", 199)
    rng = np.random.default_rng(0)
    same = [rise(rng.lognormal(size=40), rng.lognormal(size=25)).p <= 0.05 for _ in range(600)]
    assert 0.01 < np.mean(same) < 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5
    risen = [rise(rng.exponential(size=80), 1.5 * rng.exponential(size=80)).p <= 0.05 for _ in range(100)]
    assert np.mean(risen) > 0.7


def points(path: Path, concept: str, seed: int, owners: str = "") -> str:
    """A table of points under a concept of SINE: of several owners, or new ones of a single hospital."""
    x = np.random.default_rng(seed).random((80 * max(1, len(owners)), 2))
    y = np.where((x[:, 1] <= np.sin(x[:, 0])) == (concept == "0"), "yes", "no")
    names = [f",{owners[i % len(owners)]}" if owners else "" for i in range(len(x))]
    rows = [f"{a:.6f},{b:.6f},{label}{name}" for (a, b), label, name in zip(x, y, names)]
    path.write_text("\n".join(["a,b,label" + ",ward" * bool(owners), *rows]) + "\n")
    return str(path)


def test_a_hospital_asks_whether_it_has_left_its_cluster(tmp_path, capsys):
    path, folder = points(tmp_path / "all.csv", "0", 0, "xyz"), tmp_path / "run"
    run(FedAvg(), folder, Table(path, key="ward", test_share=0.5), None)
    ask = ["drift", str(folder), "--participant", "x", "--reference", f"table:path={path},key=ward,test_share=0.5"]
    assert main([*ask, "--data", points(tmp_path / "same.csv", "0", 1)]) == 0
    said = capsys.readouterr()
    assert "no sign that 'x' has left its cluster" in said.out and "80 new ones" in said.out and not said.err
    assert "of the run's models, global has the smallest loss" in said.out
    other = points(tmp_path / "other.csv", "1", 2)
    assert main([*ask, "--data", other]) == 1
    said = capsys.readouterr()
    assert "'x' has left its cluster" in said.err and "cfl-flare onboard" in said.err and "p = 0.0001" in said.out
    for words, message in (
        ([*ask, "--data", other, "--level", "0.7"], "--level = 0.7 should be in"),
        ([*ask[:4], "--data", other], "name its data, as --data did, by --reference"),
        ([*ask[:5], f"table:path={other}", "--data", other], "set key in the data source"),
        ([*ask[:3], "w", *ask[4:], "--data", other], "has no participant 'w'"),
        ([*ask, "--data", str(tmp_path / "none.csv")], "none.csv"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err
    few = tmp_path / "few.csv"
    few.write_text("".join((tmp_path / "same.csv").read_text().splitlines(keepends=True)[:12]))
    assert main([*ask, "--data", str(few)]) == 2
    assert "are of 11 patients, fewer than 20; wait for more" in capsys.readouterr().err


def test_a_site_asks_with_what_it_keeps_and_patients_count_once(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (300, 4, 4), np.uint8)
    y = (x[:, 0, 0] > 127).astype(np.int64)

    def written(name: str, test: slice, labels: np.ndarray) -> str:
        parts = {"train": slice(100), "test": test}
        images = {f"{part}_images": x[rows] for part, rows in parts.items()}
        np.savez(tmp_path / name, **images, **{f"{part}_labels": labels[rows] for part, rows in parts.items()})
        return str(tmp_path / name)

    monkeypatch.setenv("CFL_DATA", written("ward.npz", slice(100, 200), y))
    spec = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 4, 4], "num_classes": 2, "hidden": [8]}}
    site = Site(FedAvg(), partial(build, spec, torch.nn.Module, "model"), TrainSettings(lr=0.05, local_steps=100), 0)
    site.add(DataConfig().host(SiteData(), "ward", 0, 1))
    served = Served.of(site.learner("ward", {}, 0).train(site.runtime.initial(0)))
    made_with = {"source": describe(SiteData(), "data"), "data": {}, "training": {}, "seed": 0}
    save_served(tmp_path / "served", "ward", served, spec, 1, made_with=made_with)
    for labels, status in ((y, 0), (1 - y, 1)):
        new = written("new.npz", slice(200, 300), labels)
        assert main(["drift", str(tmp_path), "--data", new]) == status
        assert "on 100 test samples of the run" in capsys.readouterr().out
    samples = Samples(np.zeros((4, 1), np.float32), np.array([0, 0, 1, 0]), patient=np.array([7, 7, 7, 2]))
    by_patient = losses_of(Coin(), Classification(), samples, "ward")  # of zeros every loss is log 2
    np.testing.assert_allclose(by_patient, [np.log(2)] * 2)
