# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A training script in a process of its own, with all that a job can ask of one: choosing, penalties, differences."""

import json
import textwrap

import pytest
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.allowed import CLASSES
from cfl_flare.flare.client_api.private import keep_private
from cfl_flare.flare.kit import allow
from cfl_flare.methods import IFCA, Contrastive, KnowledgeSharing
from cfl_flare.models import MLP, Logistic
from cfl_flare.results.run_dir import find_runs
from tests.e2e.plugin import Received

pytestmark = pytest.mark.slow

SCRIPT = """
    import nvflare.client as flare
    import torch
    from torch.nn.functional import cross_entropy

    import cfl_flare.client
    from cfl_flare.data import Digits
    from cfl_flare.models import Logistic

    flare.init()
    site = int(flare.get_site_name().rpartition("-")[2])
    digits = Digits().load()[0]
    x = torch.tensor(digits.x[site::4], dtype=torch.float32)
    y = torch.tensor((digits.y[site::4] + 5 * (site % 2)) % 10)
    model = Logistic((1, 8, 8), 10)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model.load_state_dict(received.params)
        with torch.no_grad():
            logits = model(x)
        accuracy = (logits.argmax(1) == y).float().mean().item()
        metrics = {"loss": cross_entropy(logits, y).item(), "accuracy": accuracy}
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics=metrics))
            continue
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(30):
            optimizer.zero_grad()
            (cross_entropy(model(x), y) + cfl_flare.client.penalty(model)).backward()
            optimizer.step()
        flare.send(flare.FLModel(params=model.state_dict(), metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": 30}))
"""


def test_an_external_process_chooses_and_adds_penalties(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text(textwrap.dedent(SCRIPT))
    recipe = ClusteredRecipe(
        name="external",
        method=IFCA(k=2, penalties=(Contrastive(mu=0.1), KnowledgeSharing(lam=0.01))),
        model=Logistic((1, 8, 8), 10),
        train_script="client.py",
        launch_external_process=True,
        params_transfer_type="DIFF",
        num_rounds=3,
        min_clients=2,
    )
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare")))
    (run,) = find_runs(tmp_path / "flare")
    assert [r["trained"] for r in run.rounds] == [["site-1", "site-2"]] * 3
    assert not any(r["failed"] for r in run.rounds)
    assert run.rounds[-1]["served_accuracy"] > 0.8


def test_a_script_that_only_trains_sends_no_model_that_nobody_asked_for(tmp_path, monkeypatch):
    """It trains for the last task as well, which only measures; what leaves then would pass no filter of training."""
    monkeypatch.chdir(tmp_path)
    script = (
        textwrap.dedent(SCRIPT).replace("flare.is_evaluate()", "False").replace("cfl_flare.client.penalty(model)", "0")
    )
    (tmp_path / "client.py").write_text(script)
    recipe = ClusteredRecipe(
        name="trains",
        method="fedavg",
        model=Logistic((1, 8, 8), 10),
        train_script="client.py",
        exclude_vars="bias",
        num_rounds=2,
        min_clients=2,
    )
    for task in ("train", "validate"):
        recipe.add_server_input_filter(Received(str(tmp_path / task)), tasks=[task])
    allow(tmp_path / "flare" / "local" / "resources.json", [*CLASSES, "tests.e2e.plugin."])
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare")))
    (run,) = find_runs(tmp_path / "flare")
    assert run.rounds[-1]["served_accuracy"] > 0.3  # of the last models, which it was asked to measure
    seen = [json.loads(line)["names"] for line in (tmp_path / "train").read_text().splitlines()]
    assert seen == [["head.weight"]] * 4
    assert not (tmp_path / "validate").exists()


@pytest.mark.parametrize("flares_own", [False, True])
def test_private_layers_never_leave_a_site_that_goes_on_with_them(tmp_path, monkeypatch, flares_own):
    """Two groups name the classes differently, so that one model for all is right for half of them at most."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path / "state"))
    script = textwrap.dedent(SCRIPT).replace("cfl_flare.client.penalty(model)", "0").replace("Logistic", "MLP")
    script += f'    with open("{tmp_path}/" + flare.get_site_name(), "a") as f:\n        f.write(f"{{accuracy}}\\n")\n'
    (tmp_path / "client.py").write_text(script)
    job = {"name": "own", "model": MLP((1, 8, 8), 10), "train_script": "client.py", "num_rounds": 4, "min_clients": 2}
    if flares_own:
        recipe = FedAvgRecipe(**job)
        keep_private(recipe, "head", "own")
    else:
        recipe = ClusteredRecipe(**job, method="fedavg", private="head")
    recipe.add_server_input_filter(Received(str(tmp_path / "seen")), tasks=["train"])
    allow(tmp_path / "flare" / "local" / "resources.json", [*CLASSES, "tests.e2e.plugin."])
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare")))
    seen = [name for line in (tmp_path / "seen").read_text().splitlines() for name in json.loads(line)["names"]]
    assert seen and not any("head" in name for name in seen)
    for site in ("site-1", "site-2"):
        reached = [float(line) for line in (tmp_path / site).read_text().splitlines()]
        assert reached[0] < 0.3 and reached[-1] > 0.8
        assert (tmp_path / "state" / "own" / site / "private.safetensors").is_file()
