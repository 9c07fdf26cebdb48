# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A study through FLARE: in the simulator the loop's numbers, and at provisioned hospitals one submission."""

import json
from pathlib import Path

import pytest
from markupsafe import escape
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.cli import main
from cfl_flare.data import Digits
from cfl_flare.engine.study.candidates import StudySettings, first_candidates
from cfl_flare.engine.study.halving import Study
from cfl_flare.engine.study.in_process import InProcess
from cfl_flare.flare import StudyRecipe
from cfl_flare.methods import build_method
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.study import load_study
from tests.flare.study_bench import TRAINING, of_sites, plan_of
from tests.play import MODEL

pytestmark = pytest.mark.slow
IFCA = {"method": "ifca", "k": 2}


def simulated(folder: Path, **settings) -> Path:
    """The results of a study in FLARE's simulator."""
    data = {"participants": 6, "partition": "label_permutation:groups=2", "validation": 0.25}
    fixed = {"model": MODEL, "data": Digits(), "training": TRAINING, "more": [IFCA], "num_rounds": 4, "rungs": 2}
    recipe = StudyRecipe(**fixed, **data, min_clients=2, **settings)
    run = recipe.execute(SimEnv(num_clients=2, workspace_root=str(folder)))
    return Path(run.get_result()) / "server" / "simulate_job" / "cfl"


def test_the_simulator_finds_what_the_loop_finds_also_if_it_is_resumed(tmp_path):
    trainer = InProcess(plan_of(), tmp_path / "loop")
    study = Study(trainer, first_candidates(trainer.module, [build_method(IFCA)]), StudySettings(rungs=2))
    study.run()
    loop = json.loads(json.dumps(study.journal.to_dict(4)))
    first = load_study(simulated(tmp_path / "flare", minutes=1e-9))
    assert first["verdict"]["rounds"] == 2 and len(first["rungs"]) == 1
    results = simulated(tmp_path / "flare", resume_from="study")
    found = load_study(results)
    assert found["found"] == loop["found"] and of_sites(found["verdict"]) == of_sites(loop["verdict"])
    for ours, theirs in zip(found["rungs"], loop["rungs"], strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    for name in found["rungs"][-1]["means"]:
        run, other = load_run(results / name), load_run(tmp_path / "loop" / name)
        assert run.assignments == other.assignments and len(run.rounds) == 4


def test_hospitals_take_part_in_a_study_that_is_submitted_once(trial, capsys):
    words = ["study", "--job", str(trial.folder / "jobs"), "--name", "ward-study", "--min-clients", "3"]
    words += ["--model", "logistic:input_shape=[3,14,14],num_classes=8", "--rounds", "4", "--rungs", "2"]
    words += ["--bootstrap", "50", "--task-timeout", "240", "--min-sites-per-cluster", "1"]
    words += ["--min-samples-per-cluster", "1", "--max-weight-share", "1.0"]
    assert main(words) == 0
    assert "submit it with: nvflare job submit -j" in capsys.readouterr().out
    ended, results = trial.run(trial.folder / "jobs" / "ward-study", seconds=500)
    assert ended == "FINISHED:COMPLETED"
    found = load_study(results / "cfl")
    assert {"local", "fedavg", "wecfl-k2"} <= set(found["rungs"][0]["means"])
    assert str(escape(found["verdict"]["sentences"][0])) in (results / "cfl" / "report.html").read_text()
    # hospital-2's own filter rounds what it sends, and sends no draws: it trains, and is in no comparison.
    verdict = found["verdict"]
    assert [one["name"] for one in verdict["hospitals"]] == ["hospital-1", "hospital-3"]
    assert [one["tested"] for one in verdict["hospitals"]] == [80, 80]
    people = load_run(results / "cfl" / "fedavg").summary["participants"]
    assert [one["name"] for one in people] == trial.sites
    assert main(["show", str(results)]) == 0
    assert verdict["sentences"][0] in capsys.readouterr().out
    for site in trial.sites:
        held = trial.state_root(site) / "ward-study" / site
        assert {path.parents[1].name for path in held.glob("*/served/*.safetensors")} == set(verdict["tested"])
        assert (
            main(["predict", str(held / "local"), "--data", str(trial.data[site]), "--out", str(held / "a.csv")]) == 0
        )
