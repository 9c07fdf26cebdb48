# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Hostile authors who launder a model through the gate: by another run, another split, small members, weak attacks."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.errors import GateError
from cfl_flare.results.gate import check_file, gate_lines
from cfl_flare.results.run_dir import load_run
from tests.helpers.hospitals import Hospitals

# With epsilon = 2, no attack tells more than 0.0739 at 1 % false positives: below the bound.
BOUND = 0.1
# One step that moves nothing, with the promise of a bound.
NOTHING = {"lr": 1e-30, "local_steps": 1, "batch_size": 20, "dp": {"epsilon": 2.0, "delta": 1e-5}}
# Shadow models of one step each cost little.
ATTACKED = {"lr": 0.1, "local_steps": 1, "batch_size": 1000, "membership": 16}


def run_bounded(tmp_path, monkeypatch, **settings):
    """Hospitals of one mind with a server whose operator has set the bound."""
    return Hospitals(tmp_path, monkeypatch, policy={"max_tpr_at_1pct_fpr": BOUND}, **settings)


def final_model(job):
    return job.controller.results / "clusters" / "global.safetensors"


def promises(job):
    """What the report says of a run's privacy."""
    return " ".join(gate_lines(load_run(job.controller.results).summary))


def test_a_private_run_passes_by_its_epsilon(tmp_path, monkeypatch):
    """The promise that the attacks below steal."""
    hospitals = run_bounded(tmp_path, monkeypatch)
    job = hospitals.submit(hospitals.names, "private", training=NOTHING)
    assert not job.panics
    check_file(final_model(job))
    assert "epsilon at most 2," in promises(job)


def test_a_resumed_round_with_dp_makes_no_model_private(tmp_path, monkeypatch):
    hospitals = run_bounded(tmp_path, monkeypatch)
    learnt = hospitals.submit(hospitals.names, "learnt")
    washed = hospitals.submit(hospitals.names, "washed", training=NOTHING, num_rounds=2, resume_from="learnt")
    assert not learnt.panics and not washed.panics
    np.testing.assert_allclose(washed.models["global"], learnt.models["global"], atol=1e-12)
    with pytest.raises(GateError, match="no attack was measured on it"):
        check_file(final_model(washed))
    assert "epsilon at most" not in promises(washed)
    assert "not every run in which the models were trained had dp" in promises(washed)


def test_resumed_epsilons_are_those_of_one_ledger(tmp_path, monkeypatch):
    hospitals = run_bounded(tmp_path, monkeypatch)
    hospitals.submit(hospitals.names, "first", training={**NOTHING, "dp": {"epsilon": 1.0, "delta": 1e-5}})
    later = hospitals.submit(hospitals.names, "later", training=NOTHING, num_rounds=2, resume_from="first")
    assert not later.panics
    assert "epsilon at most 2," in promises(later)


@pytest.mark.parametrize("known", [True, False])
def test_an_initial_model_brings_its_ancestors(tmp_path, monkeypatch, known):
    """A file of the server's, which this package wrote, or whose facts were taken away."""
    hospitals = Hospitals(tmp_path, monkeypatch)  # nobody has set a bound yet
    learnt = hospitals.submit(hospitals.names, "learnt")
    arrays, meta = load_arrays(final_model(learnt))
    path = tmp_path / "roots" / "learnt.safetensors"
    path.parent.mkdir()
    save_arrays(path, arrays, meta if known else {})
    policy = {"max_tpr_at_1pct_fpr": BOUND, "data_roots": [str(path.parent)]}
    (tmp_path / "server" / "local" / "cfl.json").write_text(json.dumps(policy))
    washed = hospitals.submit(hospitals.names, "washed", training=NOTHING, initial_ckpt=str(path), seed=1)
    assert not washed.panics
    with pytest.raises(GateError, match="held against no bound" if known else "no attack was measured on it"):
        check_file(final_model(washed))
    assert "epsilon at most" not in promises(washed)


def test_a_model_above_the_bound_starts_no_job_by_a_servers_path(tmp_path, monkeypatch):
    hospitals = run_bounded(tmp_path, monkeypatch)
    learnt = final_model(hospitals.submit(hospitals.names, "learnt"))
    policy = {"max_tpr_at_1pct_fpr": BOUND, "data_roots": [str(learnt.parent)]}
    (tmp_path / "server" / "local" / "cfl.json").write_text(json.dumps(policy))
    job = hospitals.submit(hospitals.names, "washed", training=NOTHING, initial_ckpt=str(learnt), seed=1)
    assert "'global' stays with its members" in job.panics[0]
    assert not job.updates


def test_epsilons_of_an_initial_model_add_up(tmp_path, monkeypatch):
    hospitals = run_bounded(tmp_path, monkeypatch)
    first = final_model(
        hospitals.submit(hospitals.names, "first", training={**NOTHING, "dp": {"epsilon": 1.0, "delta": 1e-5}})
    )
    policy = {"max_tpr_at_1pct_fpr": BOUND, "data_roots": [str(first.parent)]}
    (tmp_path / "server" / "local" / "cfl.json").write_text(json.dumps(policy))
    second = hospitals.submit(hospitals.names, "second", training=NOTHING, initial_ckpt=str(first), seed=1)
    assert not second.panics
    assert "epsilon at most 3," in promises(second)
    with pytest.raises(GateError, match="epsilon = 3 allows attacks"):
        check_file(final_model(second))


def test_attacks_after_another_split_measure_nothing(tmp_path, monkeypatch):
    """Patients who now test have trained before: an attack would take them for others."""
    hospitals = run_bounded(tmp_path, monkeypatch)
    hospitals.submit(hospitals.names, "learnt")
    later = {"training": ATTACKED, "num_rounds": 2, "resume_from": "learnt"}
    same = hospitals.submit(hospitals.names, "same", **later)
    other = hospitals.submit(hospitals.names, "other", seed=1, **later)
    assert not same.panics and not other.panics
    assert "splits may differ" not in promises(same)
    with pytest.raises(GateError, match="the splits may differ"):
        check_file(final_model(other))


def test_who_trained_before_and_left_is_a_member(tmp_path, monkeypatch):
    hospitals = Hospitals(tmp_path, monkeypatch, count=4, floor=1, policy={"max_tpr_at_1pct_fpr": 1.0})
    settings = {"training": ATTACKED, "min_sites_per_cluster": 1, "min_samples_per_cluster": 1, "max_weight_share": 1.0}
    hospitals.submit(hospitals.names, "learnt", **settings)
    later = hospitals.submit(hospitals.names[:3], "left", num_rounds=2, resume_from="learnt", **settings)
    assert not later.panics
    with pytest.raises(GateError, match="1 of its members measured no attack"):
        check_file(final_model(later))


def test_the_facts_go_with_the_file(tmp_path, monkeypatch):
    hospitals = run_bounded(tmp_path, monkeypatch)
    original = final_model(hospitals.submit(hospitals.names, "learnt"))
    copy = tmp_path / "elsewhere" / "a.safetensors"
    copy.parent.mkdir()
    shutil.copy(original, copy)
    (original.parents[1] / "summary.json").unlink()
    for path in (original, copy):
        with pytest.raises(GateError, match="'global' stays with its members: no attack was measured"):
            check_file(path)
    assert not any(name.encode() in copy.read_bytes() for name in hospitals.names)


@pytest.mark.parametrize(
    ("tests", "accepts", "passes"), [(40, False, True), (20, False, False), (20, True, True), (0, False, False)]
)
def test_small_hospitals_are_not_vouched_for(tmp_path, monkeypatch, tests, accepts, passes):
    """The bound of 1 is never exceeded: the model passes if every member has measured it."""
    rules = {"sites_policy": {"accept_unmeasured": accepts}, "policy": {"max_tpr_at_1pct_fpr": 1.0}}
    hospitals = Hospitals(tmp_path, monkeypatch, tests=tests, **rules)
    job = hospitals.submit(hospitals.names, training=ATTACKED)
    assert not job.panics
    if passes:
        return check_file(final_model(job))
    with pytest.raises(GateError, match="1 of its members measured no attack, and did not accept the others'"):
        check_file(final_model(job))


def test_a_hospital_without_test_samples_can_accept(tmp_path, monkeypatch):
    rules = {"sites_policy": {"accept_unmeasured": True}, "policy": {"max_tpr_at_1pct_fpr": 1.0}}
    hospitals = Hospitals(tmp_path, monkeypatch, tests=0, **rules)
    job = hospitals.submit(hospitals.names, training=ATTACKED)
    assert not job.panics
    check_file(final_model(job))


def test_few_shadow_models_do_not_open_the_gate(tmp_path, monkeypatch):
    hospitals = Hospitals(tmp_path, monkeypatch, policy={"max_tpr_at_1pct_fpr": 1.0})
    job = hospitals.submit(hospitals.names, training={**ATTACKED, "membership": 2})
    with pytest.raises(GateError, match="with 2 shadow models, and the server's operator asks for 16"):
        check_file(final_model(job))


def test_a_site_asks_for_as_many_shadow_models(tmp_path, monkeypatch):
    hospitals = Hospitals(tmp_path, monkeypatch, sites_policy={"max_tpr_at_1pct_fpr": 1.0, "min_membership": 8})
    assert hospitals.submit(hospitals.names, training={**ATTACKED, "membership": 4}).failures() == {"floor"}
    assert not hospitals.submit(hospitals.names, training={**ATTACKED, "membership": 8}).failures()


def test_a_site_resumes_no_run_of_other_patients(tmp_path, monkeypatch):
    """The author names other rows for the test, which the server does not see."""
    hospitals = run_bounded(tmp_path, monkeypatch)
    hospitals.submit(hospitals.names, "learnt")
    for name in hospitals.names:
        path = tmp_path / f"{name}.npz"
        arrays = dict(np.load(path))
        np.savez(path, **{**arrays, "test_images": arrays["train_images"][::-1]})
    later = hospitals.submit(hospitals.names, "later", training=ATTACKED, num_rounds=2, resume_from="learnt")
    assert later.failures() == {"config"} and not later.updates
    assert not hospitals.submit(hospitals.names, "new", seed=1).panics
