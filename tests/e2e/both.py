# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run through FLARE's simulator, and the same in the loop."""

from pathlib import Path
from typing import Any

import numpy as np
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.core.arrays import load_arrays
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.methods import build_method
from cfl_flare.training.settings import TrainSettings
from tests.play import MODEL


def both_ways(
    folder: Path,
    method: dict[str, Any],
    data: DataConfig,
    training: dict[str, Any],
    server: dict[str, Any],
    **private: Any,
) -> tuple[Path, Path]:
    """The results of the loop, and those of two sites of the simulator, whose workspace is ``folder/flare``."""
    dealt = {"participants": data.participants, "partition": data.partition}
    recipe = ClusteredRecipe(
        name="ward", method=method, model=MODEL, data=Digits(), training=training, min_clients=2, **dealt, **server,
        **private,
    )  # fmt: skip
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(folder / "flare"))).get_result()
    run_loop(
        method=build_method(method),
        model=MODEL,
        source=Digits(),
        data=data,
        settings=ServerSettings(**server),
        training=TrainSettings(**training),
        folder=folder / "loop",
        **private,
    )
    return folder / "loop", next((folder / "flare").rglob("simulate_job/cfl"))


def check_same_models(ours: Path, theirs: Path, atol: float = 0.0) -> None:
    """The clusters' models of two runs are equal, or nearly."""
    paths = list((ours / "clusters").iterdir())
    assert paths
    for path in paths:
        one, other = load_arrays(path)[0], load_arrays(theirs / "clusters" / path.name)[0]
        assert one.keys() == other.keys()
        for key, array in one.items():
            np.testing.assert_allclose(other[key], array, rtol=0, atol=atol, err_msg=f"{path.name}: {key}")
