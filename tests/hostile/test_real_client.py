# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Forged answers of a real FLARE client, over the wire, to a real server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.core.arrays import load_arrays
from cfl_flare.data import Digits
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.job import client_apps
from cfl_flare.flare.kit import allow
from cfl_flare.models import MLP
from cfl_flare.results.run_dir import load_run
from tests.hostile.site import FORGED, MODE, Hostile

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def played(folder: Path) -> Path:
    """The server's run directory of a job with three sites, one of which is hostile."""
    recipe = ClusteredRecipe(
        name="job",
        method="wecfl:k=2",
        data=Digits(),
        model=MLP((1, 8, 8), 10),
        participants=6,
        partition="label_permutation:groups=2",
        num_rounds=len(FORGED),
        min_clients=3,
        training={"lr": 0.05, "local_steps": 3},
    )
    allow(folder / "job" / "local" / "resources.json", ["tests.hostile.site."])
    run = recipe.execute(SimEnv(num_clients=3, workspace_root=str(folder)))
    return Path(run.get_result()) / "server" / "simulate_job"


def test_a_real_client_s_forged_answers_change_no_model(tmp_path, monkeypatch):
    """Each round another forgery; the models are those of a run in which that site's participants failed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(client_apps, "ClusteredExecutor", Hostile)
    runs = {}
    for mode in ("forges", "fails"):
        monkeypatch.setenv(MODE, mode)
        runs[mode] = played(tmp_path / mode) / "cfl"
    forged, failed = (load_run(folder) for folder in runs.values())
    for record, (_, reason) in zip(forged.rounds, FORGED, strict=True):
        assert set(record["trained"]) == {"p0", "p1", "p4", "p5"}
        assert set(record["failed"]) == {"p2", "p3"}
        for text in record["failed"].values():
            assert text.startswith(reason) and text.isprintable() and len(text) <= 500, (reason, text)
    for path in sorted((runs["fails"] / "clusters").glob("*.safetensors")):
        arrays, same = load_arrays(path)[0], load_arrays(runs["forges"] / "clusters" / path.name)[0]
        assert arrays.keys() == same.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(same[name], array)
    assert forged.assignments == failed.assignments
    log = (tmp_path / "forges" / "job" / "server" / "log.txt").read_text()
    assert "\x1b" not in log and "Traceback" not in log and "x" * 200 not in log
    assert json.loads((runs["forges"] / "summary.json").read_text())["rounds"] == len(FORGED)
