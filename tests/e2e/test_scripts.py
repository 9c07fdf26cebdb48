# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A training script in a process of its own, with all that a job can ask of one: choosing, penalties, differences."""

import textwrap

import pytest
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.flare import ClusteredRecipe
from cfl_flare.methods import IFCA, Contrastive, KnowledgeSharing
from cfl_flare.models import Logistic
from cfl_flare.results.run_dir import find_runs

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
