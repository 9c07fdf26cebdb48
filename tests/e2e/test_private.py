# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Private layers through FLARE's simulator: never at the server, kept at the sites, and the loop's numbers."""

import csv

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
from tests.play import DATA, MODEL

pytestmark = pytest.mark.slow
METHOD = {"method": "ifca-cam", "k": 2, "warmup": 1}


def cross(folder):
    """The losses of all models at all participants."""
    with (folder / "cross_site.csv").open() as f:
        return {(line["participant"], line["model"]): float(line["loss"]) for line in csv.DictReader(f)}


def test_a_job_with_private_layers_is_the_loop_s_run_and_keeps_them_at_the_sites(tmp_path):
    recipe = ClusteredRecipe(
        name="ward",
        method=METHOD,
        model=MODEL,
        data=Digits(),
        training={"lr": 0.1},
        participants=DATA.participants,
        partition=DATA.partition,
        num_rounds=3,
        min_clients=2,
        cross_site_evaluation=True,
        private="bias",
    )
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare"))).get_result()
    through = next((tmp_path / "flare").rglob("simulate_job/cfl"))
    run_loop(
        method=build_method(METHOD),
        model=MODEL,
        source=Digits(),
        data=DataConfig(DATA.participants, DATA.partition),
        settings=ServerSettings(3, cross_site_evaluation=True),
        training=TrainSettings(lr=0.1),
        folder=tmp_path / "loop",
        private="bias",
    )
    for path in (tmp_path / "loop" / "clusters").iterdir():
        ours, theirs = load_arrays(path)[0], load_arrays(through / "clusters" / path.name)[0]
        assert ours.keys() == theirs.keys()
        for key, array in ours.items():
            np.testing.assert_allclose(theirs[key], array, atol=1e-6, err_msg=key)
    one, other = load_run(tmp_path / "loop"), load_run(through)
    assert one.assignments == other.assignments
    assert other.summary["private"] == "bias"
    crossed = [
        sorted((f / "cross_site.csv").read_text().replace("local", "site-1").splitlines())
        for f in (one.folder, other.folder)
    ]
    assert [len(lines) for lines in crossed] == [13, 13]

    stores = {path.name: path for path in (tmp_path / "flare" / "cfl_state" / "ward").iterdir() if path.is_dir()}
    servers = {
        key for path in stores.pop("simulator_server").glob("round-*.safetensors") for key in load_arrays(path)[0]
    }
    assert servers
    assert not [key for key in servers if key.endswith("bias")]
    assert stores.keys() == {"site-1", "site-2"}
    initial = load_arrays(next((through / "clusters").iterdir()))[0]
    for folder in stores.values():
        kept = load_arrays(sorted(folder.glob("round-*.safetensors"))[-1])[0]
        mine = {key for key in kept if ":private|" in key}
        assert {key.partition("#")[2] for key in mine} >= {":private|head.bias", "shared.:private|head.bias"}
        served = list((folder / "served").glob("*.safetensors"))
        assert len(served) == 3
        for path in served:
            own = load_arrays(path)[0]
            assert not np.array_equal(own["parts.1.head.bias"], initial["parts.1.head.bias"])
            np.testing.assert_array_equal(own["parts.1.head.bias"], kept[f"{path.stem}#:private|head.bias"])
            np.testing.assert_array_equal(own["parts.0.head.bias"], kept[f"{path.stem}#shared.:private|head.bias"])


def test_pulled_layers_travel_and_end_as_in_the_loop(tmp_path):
    more = {"private": "bias", "private_shrinkage": 20.0}
    recipe = ClusteredRecipe(
        name="ward",
        method="wecfl:k=2",
        model=MODEL,
        data=Digits(),
        training={"lr": 0.1},
        participants=DATA.participants,
        partition=DATA.partition,
        num_rounds=2,
        min_clients=2,
        **more,
    )
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare"))).get_result()
    through = next((tmp_path / "flare").rglob("simulate_job/cfl"))
    data, settings = DataConfig(DATA.participants, DATA.partition), ServerSettings(2)
    method, training = build_method({"method": "wecfl", "k": 2}), TrainSettings(lr=0.1)
    here = {"model": MODEL, "source": Digits(), "data": data, "settings": settings, "training": training}
    run_loop(method=method, folder=tmp_path / "loop", **here, **more)
    for path in (tmp_path / "loop" / "clusters").iterdir():
        ours, theirs = load_arrays(path)[0], load_arrays(through / "clusters" / path.name)[0]
        for key, array in ours.items():
            np.testing.assert_allclose(theirs[key], array, atol=1e-6, err_msg=key)
    assert load_run(through).summary["private_shrinkage"] == 20.0
    site = next((tmp_path / "flare" / "cfl_state" / "ward" / "site-1").glob("round-*.safetensors"))
    assert [key for key in load_arrays(site)[0] if ":private" in key]  # each keeps its own
    logs = "".join(path.read_text() for path in (tmp_path / "flare").rglob("log.txt"))
    assert "private_shrinkage = 20.0: private = 'bias' names layers that are pulled" in logs
