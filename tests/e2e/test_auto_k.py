# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The number of clusters found through FLARE's simulator: the loop's run."""

import numpy as np
import pytest
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.core.safetensors_io import load_arrays
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.methods import build_method
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings
from tests.play import MODEL

pytestmark = pytest.mark.slow
METHOD = {"method": "ifca", "k": "auto", "warmup": 2}
PARTITION = {"partition": "label_permutation", "groups": 3}


def test_a_job_finds_what_the_loop_finds(tmp_path):
    recipe = ClusteredRecipe(
        name="ward",
        method=METHOD,
        model=MODEL,
        data=Digits(),
        training={"lr": 0.1, "local_steps": 5},
        participants=12,
        partition=PARTITION,
        num_rounds=4,
        min_clients=2,
        sample=8,
    )
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare"))).get_result()
    through = next((tmp_path / "flare").rglob("simulate_job/cfl"))
    run_loop(
        method=build_method(METHOD),
        model=MODEL,
        source=Digits(),
        data=DataConfig(12, PARTITION),
        settings=ServerSettings(4, sample=8),
        training=TrainSettings(lr=0.1, local_steps=5),
        folder=tmp_path / "loop",
    )
    one, other = load_run(tmp_path / "loop"), load_run(through)
    assert one.name == other.name == "ifca-auto (K=3 found)"
    assert one.rounds[1]["number_of_clusters"] == other.rounds[1]["number_of_clusters"]
    assert [len(r["trained"]) for r in other.rounds] == [8, 12, 8, 8]
    assert one.assignments == other.assignments
    for path in (tmp_path / "loop" / "clusters").iterdir():
        ours, theirs = load_arrays(path)[0], load_arrays(through / "clusters" / path.name)[0]
        for key, array in ours.items():
            np.testing.assert_array_equal(theirs[key], array, err_msg=key)
