# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A hostile author, or a curious hospital, subtracts models over almost the same sites."""

import errno
import json
import os
import threading

import numpy as np
import pytest

from cfl_flare.cli import main
from cfl_flare.clustering.differences import exposed
from cfl_flare.core.errors import DifferenceError
from cfl_flare.flare.study.controller import StudyController
from cfl_flare.results.job_record import ROUND, JobRecord
from cfl_flare.results.study import load_study
from tests.e2e.deployment import TRUSTING
from tests.flare import study_bench
from tests.hostile.hospitals import Hospitals


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
        patch.setattr(study_bench, "SITES", tuple(f"site-{i}" for i in range(1, 11)))
        yield {"participants": 10, "num_rounds": 2, "rungs": 1}


def means_of(job):
    """Whose updates were averaged from which model, over all candidates of a study."""
    file = job.folder / "cfl_state" / "_means" / "server.jsonl"
    return {frozenset(means) for line in file.read_text().splitlines() for means in json.loads(line)["sets"]}


def test_candidates_of_a_study_start_from_models_of_their_own(tmp_path, ten):
    """Else the models of two candidates, whose clusters differ by a hospital, gave its update to 1.6e-6."""
    job = study_bench.Bench(tmp_path / "job", real=True).play(**ten)
    assert not job.panics
    sets = means_of(job)
    sites = {frozenset(member.split()[0] for member in means) for means in sets}
    assert exposed(sites, 3) and not exposed(sets, 3)
    study = load_study(job.results)
    assert {"fedavg", "wecfl-k2", "wecfl-k3"} <= study["rungs"][0]["means"].keys() and not study["rungs"][0]["dropped"]


def test_a_candidate_whose_clusters_differ_by_a_hospital_is_dropped(tmp_path, ten, monkeypatch):
    """If they did start from the same model, as those of a job's author could."""
    monkeypatch.setattr(StudyController, "_schedule_of", lambda self, candidate: self._scheduled())
    job = study_bench.Bench(tmp_path / "job", real=True).play(**ten)
    assert not job.panics and not exposed(means_of(job), 3)
    dropped = load_study(job.results)["rungs"][0]["dropped"]
    assert "wecfl-k3" in dropped and "another seed" in dropped["wecfl-k3"]


def test_data_of_another_study_is_not_held_against_a_job(hospitals):
    hospitals.submit(hospitals.names)
    for name in hospitals.names:
        file = hospitals.folder / f"{name}.npz"
        file.rename(file.with_suffix(".old"))
        (hospitals.folder / "new").mkdir(exist_ok=True)
        os.link(file.with_suffix(".old"), hospitals.folder / "new" / file.name)
    hospitals.data = hospitals.folder / "new"
    assert not hospitals.submit(hospitals.names[:3]).failures()


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

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cfl_flare.results.job_record.append", full)
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
    monkeypatch.setattr("cfl_flare.clustering.differences.MOST_GROUPS", 2)
    record, facts = JobRecord(tmp_path, "a"), {"name": "ward", "data": "ward.csv"}
    record.join("1", ["a", "b", "c", "d"], 4, False, facts)
    for _ in range(2):
        with pytest.raises(DifferenceError, match=r"nobody knows whether a model of few follows.*site allow 2'"):
            record.join("2", ["a", "b", "c", "e"], 4, False, facts)
    assert record.allow("2")
    record.join("3", ["a", "b", "c", "e"], 4, False, facts)
