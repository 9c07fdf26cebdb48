# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Hostile authors and hospitals who know the defences: differences of models over almost the same sites, and poison."""

from __future__ import annotations

import errno
import json
import threading

import numpy as np
import pytest
from torch import nn

from cfl_flare.cli import main
from cfl_flare.core.errors import DifferenceError
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.shares import exposed
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.flare.study.controller import StudyController
from cfl_flare.methods import IFCA, FedAvg, Method, Participant, Update, WeCFL
from cfl_flare.results.job_record import ROUND, JobRecord
from cfl_flare.results.study import load_study
from tests.e2e.deployment import TRUSTING
from tests.helpers import kits
from tests.helpers.hospitals import Hospitals, read_means

# ---- Differences ----


@pytest.fixture
def hospitals(tmp_path, monkeypatch):
    return Hospitals(tmp_path, monkeypatch)


def follows(first, second, site):
    """How far the model of a site that is in the first job alone is from what subtraction gives; all count the same."""
    sites = {name for number, name in first.updates if number == 0}
    start = first.models["global"] - sum(first.updates[0, name] for name in sites) / len(sites)
    sum_of_others = (len(sites) - 1) * (second.models["global"] - start)
    found = len(sites) * (first.models["global"] - start) - sum_of_others
    return np.abs(found - first.updates[0, site]).max() / np.abs(first.updates[0, site]).max()


def test_without_a_floor_two_jobs_give_one_hospitals_model(tmp_path, monkeypatch):
    """The attack itself, where the operators agreed to it."""
    trusting = Hospitals(tmp_path, monkeypatch, floor=1)
    first, second = (trusting.submit(sites, **TRUSTING) for sites in (trusting.names, trusting.names[:3]))
    assert follows(first, second, "hospital-4") < 1e-4


@pytest.mark.parametrize("later", [(0, 1, 2), (1, 2, 3)])
def test_a_job_with_one_site_fewer_is_refused_until_operators_allow_it(hospitals, capsys, later):
    sites = [hospitals.names[i] for i in later]
    assert not hospitals.submit(hospitals.names).failures()
    refused = hospitals.submit(sites, "lungs", num_rounds=3)
    assert refused.failures() == {"difference"} and not refused.updates
    assert "its operator can allow it" in refused.panics[0]
    assert all(name not in refused.panics[0] for name in set(hospitals.names) - set(sites))
    line = hospitals.record(sites[0])[-1]
    assert line["refused"] and line["sites"] == sites and line["name"] == "lungs"
    assert main(["site", "runs", "--json"]) == 0
    shown = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [job["decision"] for job in shown if job["site"] == sites[0]] == ["ended", "refused"]
    assert main(["site", "allow", line["job"]]) == 0  # these kits have one state root, so for all of them
    again = hospitals.submit(sites, "lungs", num_rounds=3)
    assert "another seed" in again.panics[0]  # the server keeps from making the very mean that gives one hospital's
    allowed = hospitals.submit(sites, "lungs", num_rounds=3, seed=1)
    assert not allowed.panics and {site for _, site in allowed.updates} == set(sites)
    assert main(["site", "runs"]) == 0
    assert "allowed" in capsys.readouterr().out


def test_the_same_sites_run_as_many_jobs_as_they_like(hospitals):
    for number in range(4):
        assert not hospitals.submit(hospitals.names, f"job-{number}").failures()


def test_a_site_that_joins_later_is_a_difference_as_well(hospitals):
    assert not hospitals.submit(hospitals.names[:3]).failures()
    joined = hospitals.submit(hospitals.names)
    assert joined.failures() == {"difference"}
    assert {site for _, site in joined.updates} == {"hospital-4"}  # which knows of nothing, and is alone in the mean


def test_four_jobs_no_two_of_which_differ_by_few(tmp_path, monkeypatch):
    """Twice the fourth's model is the second sum without the first, and the last without the third."""
    trial = Hospitals(tmp_path, monkeypatch, count=8)
    for sites in ((0, 1, 2, 4, 5), (0, 1, 2, 3), (0, 6, 7)):
        assert not trial.submit([trial.names[i] for i in sites]).failures()
    last = trial.submit([trial.names[i] for i in (0, 3, 4, 5, 6, 7)])
    refused = {site for _, site, answer in last.answers if answer["DXO"]["meta"]["cfl"].get("error") == "difference"}
    assert refused == {"hospital-1"}  # which alone was in all of them


def test_who_did_not_answer_counts_for_the_next_job(hospitals):
    """A set is whose models were averaged, and not who was asked."""
    first = hospitals.submit(hospitals.names, num_rounds=3, silent=[(1, "hospital-4")])
    assert not first.failures()
    means = [line["sites"] for line in hospitals.record("hospital-1") if line["kind"] == "mean"]
    assert means == [hospitals.names[:3]]


def test_a_refused_job_is_refused_again(hospitals):
    """The one site that trained in it was held back, so that its model is not known."""
    assert not hospitals.submit(hospitals.names[:3]).failures()
    for seed in (1, 2):
        job = hospitals.submit(hospitals.names, "joined", num_rounds=2, seed=seed)
        assert {site for _, site in job.updates} == {"hospital-4"}
    assert not [line for line in hospitals.record("hospital-1") if line["kind"] == "mean"]


@pytest.mark.parametrize("missed", [{"silent": [(1, "hospital-4")]}, {"late": "hospital-4"}])
def test_a_missed_round_opens_no_job_without_that_site(hospitals, missed):
    """Means of one job's rounds are of models that moved; those of two jobs may start alike."""
    assert not hospitals.submit(hospitals.names, num_rounds=3, **missed).failures()
    assert hospitals.submit(hospitals.names[:3], "without", seed=1).failures() == {"difference"}
    assert not hospitals.submit(hospitals.names, "with", seed=1).failures()


def test_a_site_that_does_not_answer_in_a_job_that_starts_as_an_earlier_one(hospitals):
    """The author cannot choose that, but may wait for it, or set a time limit that one of them misses."""
    first = hospitals.submit(hospitals.names)
    second = hospitals.submit(hospitals.names, silent=[(0, "hospital-4")])
    assert len(second.updates) == 3 and "another seed" in second.panics[0]
    start = first.models["global"] - sum(first.updates[0, name] for name in hospitals.names) / 4
    np.testing.assert_allclose(second.models["global"], start, atol=1e-7)
    third = hospitals.submit(hospitals.names, silent=[(0, "hospital-4")], num_rounds=2)  # back in the second round
    assert not third.panics and third.models["global"].any()
    other = hospitals.submit(hospitals.names, silent=[(0, "hospital-4")], seed=1)
    assert not other.panics and follows(first, other, "hospital-4") > 0.3


def test_clusters_of_two_jobs_that_start_alike(tmp_path, monkeypatch):
    """The author chooses methods, and the server the clusters; a hospital in one and not in the other would show."""
    trial = Hospitals(tmp_path, monkeypatch, count=8)
    for method, seeds in (("fedavg", [0]), ("wecfl", [0, 1, 2, 3])):
        for seed in seeds:
            trial.submit(trial.names, method=method, method_settings={"k": 2, "seed": seed} if seeds[1:] else {})
    sets = {frozenset(means) for line in trial.means() for means in line}
    assert not exposed(sets, 3)


@pytest.mark.parametrize("method", ["fedavg", "wecfl", "ifca"])
def test_a_site_that_joins_late_does_not_end_the_others_job(hospitals, method):
    assert not hospitals.submit(hospitals.names[:3]).failures()
    clusters = {} if method == "fedavg" else {"k": 2}
    job = hospitals.submit(hospitals.names, "late", method, clusters, num_rounds=5, late="hospital-4", seed=1)
    assert not job.panics and job.failures() == {"difference"}
    assert "refuse to train with it" in job.controller.left_out["hospital-4"]
    assert {site for number, site in job.updates if number == 4} == set(hospitals.names[:3])


def test_rounds_that_take_some_sites_each(hospitals):
    job = hospitals.submit(hospitals.names, sample=3, num_rounds=2)
    assert job.failures() == {"difference"} and not job.updates


@pytest.fixture(scope="module")
def ten():
    """Ten sites of one participant each, in the study's bench."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kits, "SITES", tuple(f"site-{i}" for i in range(1, 11)))
        yield {"participants": 10, "num_rounds": 2, "rungs": 1}


def means_of(job):
    """Whose updates were averaged from which model, over all candidates of a study."""
    file = job.folder / "cfl_state" / "_means" / "server.jsonl"
    return {frozenset(members) for means in read_means(file) for members in means}


def test_candidates_of_a_study_start_from_models_of_their_own(tmp_path, ten):
    """Else the models of two candidates, whose clusters differ by a hospital, gave its update to 1.6e-6."""
    job = kits.Bench(tmp_path / "job", real=True).play(**ten)
    assert not job.panics
    sets = means_of(job)
    sites = {frozenset(member.split()[0] for member in means) for means in sets}
    assert exposed(sites, 3) and not exposed(sets, 3)
    study = load_study(job.results)
    assert {"fedavg", "wecfl-k2", "wecfl-k3"} <= study["rungs"][0]["means"].keys() and not study["rungs"][0]["dropped"]


def test_a_candidate_whose_clusters_differ_by_a_hospital_is_dropped(tmp_path, ten, monkeypatch):
    """If they did start from the same model, as those of a job's author could."""
    monkeypatch.setattr(StudyController, "_schedule_of", lambda self, candidate: self._scheduled())
    job = kits.Bench(tmp_path / "job", real=True).play(**ten)
    assert not job.panics and not exposed(means_of(job), 3)
    dropped = load_study(job.results)["rungs"][0]["dropped"]
    assert "wecfl-k3" in dropped and "another seed" in dropped["wecfl-k3"]


@pytest.mark.parametrize("damage", ["{}\n", "not json\n", '{"kind": "job", "job"', "\xff\n", '{"kind": "round"}\n'])
def test_a_damaged_record_ends_this_sites_part_with_one_clear_error(hospitals, damage, capsys):
    hospitals.submit(hospitals.names)
    file = hospitals.root / "_jobs" / "hospital-1.jsonl"
    with file.open("ab") as record:
        record.write(damage.encode("latin-1"))
    job = hospitals.submit(hospitals.names, num_rounds=2)
    assert job.failures() == {"file"} and "hospital-1" not in {site for _, site in job.updates}
    assert main(["site", "runs"]) == 2
    assert str(file) in capsys.readouterr().err


def test_on_a_full_disk_a_site_takes_no_part(hospitals, monkeypatch):
    hospitals.submit(hospitals.names)

    def full(*arguments, **fields):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(JobRecord, "_write", full)
    job = hospitals.submit(hospitals.names)
    assert job.failures() == {"disk"} and not job.updates


def test_two_jobs_at_once_write_whole_lines(tmp_path):
    def write(number):
        for i in range(50):
            JobRecord(tmp_path, "ward").note(ROUND, f"job-{number}", round=i, answered=i)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(JobRecord(tmp_path, "ward").lines()) == 200


def test_the_record_is_private_and_append_only(hospitals):
    hospitals.submit(hospitals.names)
    file = hospitals.root / "_jobs" / "hospital-1.jsonl"
    before = file.read_bytes()
    hospitals.submit(hospitals.names)
    assert file.read_bytes().startswith(before)
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700


def test_too_many_groups_to_look_at_are_refused_and_not_searched_for_hours():
    sites = [f"s{i:02}" for i in range(40)]
    sets = {frozenset(sites)} | {frozenset(sites[i : i + 20]) for i in range(20)}
    assert exposed(sets, 3)  # which is ordinary
    with pytest.raises(DifferenceError, match="groups of fewer than 10 sites to look at"):
        exposed(sets, 10)


def test_a_job_of_which_nobody_knows_is_refused_until_it_is_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr("cfl_flare.core.shares.MOST_GROUPS", 2)
    record, facts = JobRecord(tmp_path, "a"), {"name": "ward", "data": "ward.csv"}
    record.join("1", ["a", "b", "c", "d"], 4, False, facts)
    for _ in range(2):
        with pytest.raises(DifferenceError, match=r"nobody knows whether a model of few follows.*site allow 2'"):
            record.join("2", ["a", "b", "c", "e"], 4, False, facts)
    assert record.allow("2")
    record.join("3", ["a", "b", "c", "e"], 4, False, facts)


# ---- Poison ----


NAMES = ("a", "b", "c", "d", "liar")
PEOPLE = [Participant(name, f"site-{name}", 1) for name in NAMES]
TWO_LAYERS = Layout.of(nn.Sequential(nn.Conv1d(1, 1, 2, bias=False), nn.Linear(1, 2, bias=False)))
BODY, HEAD = slice(0, 2), slice(2, 4)
BATCH_NORM = Layout.of(nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False)))


def start_difference_server(method: Method, layout: Layout, **settings) -> Server:
    start = [0.0] * layout.parameter_size + [0.0, 1.0][: layout.size - layout.parameter_size]  # mean 0, variance 1
    model = Params(layout, np.array(start, np.float32), np.zeros(layout.counter_size, np.int64))
    return Server(method, layout, PEOPLE, ServerSettings(3, **settings), method.start(lambda i: model))


def play_difference_round(running: Server, moves: dict[str, list[float]]) -> dict:
    """A round in which participants move so far; those that choose, choose cluster 0."""
    for name, task in running.tasks().items():
        chosen = 0 if isinstance(running.method, IFCA) else None
        slot = task.slots[0] if chosen is None else "cluster-0"
        layout = running.state.bank[slot].layout
        diff = Params(layout, np.array(moves[name], np.float32), np.zeros(layout.counter_size, np.int64))
        update = Update(name, 1, {slot: diff}, chosen)
        running.accept(
            Result(name, update, {"metrics": {"served_accuracy": 0.5} if task.evaluate else {}}), f"site-{name}"
        )
    running.finish_round()
    assert running.progress.record is not None
    return running.progress.record


def same(*moves: float) -> dict[str, list[float]]:
    return {name: list(moves) for name in NAMES}


# ---- Hidden layers beside an honest head ----

HIDDEN = {**{name: [1.0, 0.0, 50.0, 50.0] for name in NAMES}, "liar": [-60.0, 0.0, 50.0, 50.0]}


def test_a_hidden_layer_has_a_bound_of_its_own():
    """The whole update is 1.3 times as long as the others, its first layer 60 times."""
    running = start_difference_server(FedAvg(), TWO_LAYERS)
    record = play_difference_round(running, HIDDEN)
    assert record["clipped"] == {"liar": 6.0}
    assert running.state.bank["global"].vector.tolist() == pytest.approx([(4 - 10) / 5, 0.0, 50.0, 50.0])


@pytest.mark.parametrize("method", [WeCFL(k=2), FedAvg(), IFCA(k=2)])
def test_an_outlier_is_one_in_any_layer_whatever_the_method_compares(method):
    honest = {"a": [1.0, 0.1], "b": [1.0, -0.1], "c": [1.1, 0.0], "d": [0.9, 0.0], "liar": [-9.0, 0.0]}
    running = start_difference_server(method, TWO_LAYERS, reject_outliers=True, clip_norm=0)
    record = play_difference_round(
        running, {name: [*body, 50.0 + i, 50.0 - i] for i, (name, body) in enumerate(honest.items())}
    )
    assert list(record["failed"]) == ["liar"]
    assert record["failed"]["liar"].startswith("outlier: its model is")


def test_krum_leaves_out_who_is_far_in_a_small_layer():
    heads = {"a": 50.0, "b": 70.0, "liar": 90.0, "c": 110.0, "d": 130.0}
    moves = {name: [1.0 + head / 1000, 0.0, head, head] for name, head in heads.items()}
    running = start_difference_server(FedAvg(), TWO_LAYERS, aggregation="krum", clip_norm=0)
    assert play_difference_round(running, {**moves, "liar": [-6.0, 0.0, 90.0, 90.0]})["left_out"] == ["liar"]


# ---- Running statistics ----


def test_a_variance_below_zero_does_not_take_the_others_with_it():
    running = start_difference_server(FedAvg(), BATCH_NORM, clip_statistics=True)
    record = play_difference_round(running, {**same(1.0, 0.0, 0.0), "liar": [1.0, 0.0, -5.0]})
    assert running.state.bank["global"].vector[2] == pytest.approx((4 + 0.1) / 5, abs=1e-4)
    assert record["clipped"].keys() == {"liar"}


def test_a_variance_is_at_most_ten_times_and_a_mean_ten_deviations_away():
    running = start_difference_server(FedAvg(), BATCH_NORM, clip_statistics=True)
    record = play_difference_round(running, {**same(1.0, 0.0, 0.0), "liar": [1.0, 1000.0, 999.0]})
    assert running.state.bank["global"].vector[1:].tolist() == pytest.approx([10 / 5, (4 + 10) / 5], abs=1e-3)
    assert record["clipped"] == {"liar": pytest.approx(100, rel=1e-3)}


def test_a_new_model_may_move_as_far_as_most_do():
    """All find that the data's variance is 10,000, which is far from the new model's."""
    running = start_difference_server(FedAvg(), BATCH_NORM, clip_statistics=True)
    assert "clipped" not in play_difference_round(running, same(1.0, 300.0, 9999.0))
    assert running.state.bank["global"].vector.tolist() == [1.0, 300.0, 10000.0]


# ---- Directions ----

HONEST = {"a": [1.0, 0.6], "b": [1.0, -0.6], "c": [1.2, 0.3], "d": [0.8, -0.3]}


def end_bodies(bodies: dict[str, list[float]]) -> dict[str, list[float]]:
    """Updates whose heads differ more than their hidden layers do."""
    return {name: [*bodies[name], 10.0 + 3 * i, 0.0] for i, name in enumerate(NAMES)}


def test_a_negated_update_that_is_shorter_than_honest_ones_is_opposed_inside_the_cluster_that_it_chose():
    moves = end_bodies({**HONEST, "liar": [-0.2, 0.0]})
    misled = start_difference_server(IFCA(k=2), TWO_LAYERS)
    assert "liar" not in play_difference_round(misled, moves)["failed"]
    assert misled.state.bank["cluster-0"].vector[0] == pytest.approx(3.8 / 5)
    running = start_difference_server(IFCA(k=2), TWO_LAYERS, reject_outliers=True)
    why = play_difference_round(running, moves)["failed"]["liar"]
    assert why == "outlier: its update is opposed to the others of its cluster (cosine -1.00)"
    assert running.state.bank["cluster-0"].vector[0] == pytest.approx(4.0 / 4)


def test_more_opposed_ones_than_are_expected_are_a_group_and_stay():
    moves = end_bodies({**HONEST, "d": [-0.3, 0.1], "liar": [-0.2, 0.0]})
    assert (
        "liar"
        not in play_difference_round(start_difference_server(FedAvg(), TWO_LAYERS, reject_outliers=True), moves)[
            "failed"
        ]
    )


def test_at_most_as_many_are_left_out_as_are_expected():
    moves = end_bodies({**HONEST, "a": [900.0, 0.0], "liar": [-0.2, 0.0]})
    record = play_difference_round(
        start_difference_server(FedAvg(), TWO_LAYERS, reject_outliers=True, clip_norm=0), moves
    )
    assert list(record["failed"]) == ["a"]


# ---- Attackers who know the defence ----


def crafted(name: str) -> np.ndarray:
    """The hostile row for these honest ones: their mean is (1, 0), their deviation (0.14, 0.47)."""
    rows = np.array(list(HONEST.values()))
    mean, std = rows.mean(axis=0), rows.std(axis=0)
    if name == "a little is enough":
        return mean - std
    if name == "inner product":
        return -mean
    most = max(np.linalg.norm(a - b) for a in rows for b in rows)
    factors = np.arange(0, 10, 0.01)  # min-max: no further from any honest one than two of those are apart
    inside = [f for f in factors if max(np.linalg.norm(mean - f * std - row) for row in rows) <= most]
    return mean - max(inside) * std


@pytest.mark.parametrize(
    ("attack", "stopped"), [("inner product", True), ("a little is enough", False), ("min-max", False)]
)
def test_who_stays_among_the_honest_ones_is_not_stopped(attack, stopped):
    """As docs/security.md says: the honest ones' own spread hides them, and what they move is bounded by it."""
    moves = end_bodies({**HONEST, "liar": list(crafted(attack))})
    running = start_difference_server(FedAvg(), TWO_LAYERS, reject_outliers=True)
    assert ("liar" in play_difference_round(running, moves)["failed"]) == stopped
    away = np.linalg.norm(running.state.bank["global"].vector[BODY] - [1.0, 0.0])
    assert away < 1e-6 if stopped else 0 < away < 1.3 / 5  # two of the honest ones are 1.2 apart
