# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A hostile author, or a curious hospital, subtracts models over almost the same sites."""

import json
import os

import numpy as np
import pytest

from cfl_flare.cli import main
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
    first, second = (trusting.submit(sites, max_weight_share=1.0) for sites in (trusting.names, trusting.names[:3]))
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
    assert [job["refused"] for job in shown if job["site"] == sites[0]] == [False, True]
    assert main(["site", "allow", line["job"]]) == 0  # these kits have one state root, so for all of them
    allowed = hospitals.submit(sites, "lungs", num_rounds=3)
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


def test_rounds_that_take_some_sites_each(hospitals):
    job = hospitals.submit(hospitals.names, sample=3, num_rounds=2)
    assert job.failures() == {"difference"} and not job.updates


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


def test_the_record_is_private_and_append_only(hospitals):
    hospitals.submit(hospitals.names)
    file = hospitals.root / "_jobs" / "hospital-1.jsonl"
    before = file.read_bytes()
    hospitals.submit(hospitals.names)
    assert file.read_bytes().startswith(before)
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
