# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tasks in FLARE's simulator: the same numbers as without FLARE, a user's own task too."""

import numpy as np
import pytest
from nvflare.recipe.sim_env import SimEnv

from cfl_flare import ClusteredRecipe, DataConfig, ServerSettings, Table, TrainSettings, load_model, run_loop
from cfl_flare.methods import build_method
from cfl_flare.models import MLP, Logistic
from cfl_flare.results.run_dir import find_runs, load_run
from tests.e2e.plugin import Hinge, Parity

pytestmark = pytest.mark.slow
PATIENTS = 240


def patients(path):
    """A table of patients whose hazard depends on two of three columns, and from which hospital they are."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(PATIENTS, 3))
    time = rng.exponential(np.exp(-x @ [1.0, -0.5, 0.0]))
    rows = [
        f"{a:.3f},{b:.3f},{c:.3f},{max(t, 1e-3):.3f},{int(i % 3 > 0)},ward/{i % 4}"
        for i, ((a, b, c), t) in enumerate(zip(x, time))
    ]
    path.write_text("\n".join(["a,b,c,days,died,hospital", *rows]))
    return Table(str(path), label="days", event="died", key="hospital")


@pytest.mark.parametrize("kind", ["survival", "own"])
def test_a_task_has_the_same_numbers_through_flare(kind, tmp_path):
    if kind == "survival":
        model, source, partition = Logistic((3,), 1), patients(tmp_path / "ward.csv"), "natural"
        training = TrainSettings(lr=0.1, local_steps=3, task="survival:ties=breslow")
    else:
        model, source, partition = MLP((1, 8, 8), 1, hidden=[8]), Parity(), "iid"
        more = {"measures": ("auroc", "ece"), "augment": ("RandomRotation:degrees=10",)}
        training = TrainSettings(lr=0.1, local_steps=3, task=Hinge(margin=2.0), **more)
    recipe = ClusteredRecipe(
        name="job", method="ifca:k=2", model=model, data=source, training=training,
        participants=4, partition=partition, num_rounds=2, min_clients=2,
    )  # fmt: skip
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare")))
    (through,) = find_runs(tmp_path / "flare" / "job" / "server")
    run_loop(
        method=build_method({"method": "ifca", "k": 2}), model=model, source=source, training=training,
        data=DataConfig(4, partition), settings=ServerSettings(2), folder=tmp_path / "loop",
    )  # fmt: skip
    alone = load_run(tmp_path / "loop")
    measures = {"c_index", "loss"} if kind == "survival" else {"accuracy", "auroc", "loss", "ece"}
    own = [{k: v for k, v in one.items() if k.startswith("served_")} for one in through.summary["participants"]]
    assert own == [{k: v for k, v in one.items() if k.startswith("served_")} for one in alone.summary["participants"]]
    assert own[0].keys() == {f"served_{name}" for name in measures}
    names = [f"ward_{i}" if kind == "survival" else f"p{i}" for i in range(4)]
    for run in (through, alone):
        assert [one["name"] for one in run.summary["participants"]] == names
    for slot in ("cluster-0", "cluster-1"):
        pair = [load_model(run.folder, slot).state_dict() for run in (through, alone)]
        assert all((pair[0][name] == pair[1][name]).all() for name in pair[0])
