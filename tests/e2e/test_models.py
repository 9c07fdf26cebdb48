# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Models that are not one class with kept arguments, through FLARE: adapters sent as tensors, a sequence of modules."""

import textwrap

import pytest
from nvflare.recipe.sim_env import SimEnv
from torch import nn

from cfl_flare.data import Digits
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.results.run_dir import find_runs
from cfl_flare.results.served import load_model

pytestmark = pytest.mark.slow

MODEL = """
    import torch
    from torch import nn


    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(3, 3).requires_grad_(False)
            nn.init.eye_(self.base.weight)
            self.adapter = nn.Linear(3, 2, bias=False)
            self.tied = self.adapter

        def forward(self, x):
            return self.adapter(self.base(x))

        def state_dict(self, *args, **kwargs):
            return {"a.weight": self.adapter.weight.detach(), "b.weight": self.tied.weight.detach()}

        def load_state_dict(self, state, strict=True, assign=False):
            assert state.keys() == {"a.weight", "b.weight"}
            self.adapter.weight.data.copy_(state["a.weight"])
"""
SCRIPT = """
    import nvflare.client as flare
    import torch
    from adapted import Adapted

    flare.init()
    sign = 1 if flare.get_site_name() == "site-1" else -1
    model = Adapted()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        assert all(isinstance(value, torch.Tensor) for value in received.params.values())
        model.load_state_dict(received.params)
        with torch.no_grad():
            model.adapter.weight.add_(sign)
        state = {name: value.bfloat16() for name, value in model.state_dict().items()}
        flare.send(flare.FLModel(params=state, metrics={"accuracy": 0.5}, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
"""


def test_adapters_alone_travel_as_tensors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "adapted.py").write_text(textwrap.dedent(MODEL))
    (tmp_path / "client.py").write_text(textwrap.dedent(SCRIPT))
    from adapted import Adapted  # type: ignore[import-not-found]

    recipe = ClusteredRecipe(
        name="adapters",
        method="wecfl:k=2",
        model=Adapted(),
        train_script="client.py",
        server_expected_format="pytorch",
        num_rounds=2,
        min_clients=2,
    )
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare")))
    (run,) = find_runs(tmp_path / "flare")
    assert [r["trained"] for r in run.rounds[:2]] == [["site-1", "site-2"]] * 2
    one, other = (load_model(run.folder, f"cluster-{k}", Adapted()).adapter.weight.detach() for k in range(2))
    assert ((one - other).abs() - 4).abs().max() < 0.1  # two rounds of +1 and of -1; bfloat16 has three digits


def test_a_sequence_of_modules_is_built_at_the_sites(tmp_path):
    recipe = ClusteredRecipe(
        name="sequence",
        method="fedavg",
        model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        data=Digits(),
        participants=2,
        partition="iid",
        num_rounds=1,
        min_clients=1,
    )
    recipe.execute(SimEnv(num_clients=1, workspace_root=str(tmp_path / "flare")))
    (run,) = find_runs(tmp_path / "flare")
    assert len(run.rounds[0]["trained"]) == 2 and not run.rounds[0]["failed"]
