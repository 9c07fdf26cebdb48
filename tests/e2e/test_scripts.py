# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A training script in a process of its own, with all that a job can ask of one: choosing, penalties, differences."""

import json
import textwrap

import numpy as np
import pytest
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.core.errors import ConfigError
from cfl_flare.engine.newcomers import Finished
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.allowed import CLASSES
from cfl_flare.flare.kit import allow
from cfl_flare.methods import IFCA, Contrastive, KnowledgeSharing
from cfl_flare.models import Logistic
from cfl_flare.results.run_dir import Run, find_runs, load_arrays, load_model
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


def spied(tmp_path, script: str, **settings) -> tuple[Run, dict[str, list[list[str]]]]:
    """A run of two rounds that keeps one array at the sites; and the arrays that the server got, by task."""
    (tmp_path / "client.py").write_text(script)
    common = {"name": "spied", "model": Logistic((1, 8, 8), 10), "num_rounds": 2, "min_clients": 2}
    recipe = ClusteredRecipe(**common, train_script="client.py", exclude_vars="bias", **settings)
    recipe.add_server_input_filter(Received(str(tmp_path / "received")))
    allow(tmp_path / "flare" / "local" / "resources.json", [*CLASSES, "tests.e2e.plugin."])
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare")))
    (run,) = find_runs(tmp_path / "flare")
    seen: dict[str, list[list[str]]] = {}
    for line in (tmp_path / "received").read_text().splitlines():
        answer = json.loads(line)
        seen.setdefault(answer["task"], []).append(answer["names"])
    return run, seen


TRAINS = textwrap.dedent(SCRIPT).replace("cfl_flare.client.penalty(model)", "0")


def test_a_script_that_only_trains_is_not_asked_to_measure_the_last_models(tmp_path, monkeypatch):
    """It would train once more, and what it sends would leave by another task than the one with the job's filters."""
    monkeypatch.chdir(tmp_path)
    run, seen = spied(tmp_path, TRAINS.replace("flare.is_evaluate()", "False"), method="fedavg")
    assert seen == {"train": [["head.weight"]] * 4}
    assert run.summary["final_round"] == 0 and run.rounds[0]["served_accuracy"] > 0.3
    assert "served_accuracy" not in run.rounds[-1]


def test_a_script_that_trains_against_its_word_sends_no_model_that_nobody_asked_for(tmp_path, monkeypatch):
    """Its source has the call and ignores the answer: it is asked to measure the last models, and trains."""
    monkeypatch.chdir(tmp_path)
    run, seen = spied(tmp_path, TRAINS.replace("flare.is_evaluate()", "flare.is_evaluate() and False"), method="fedavg")
    assert seen == {"train": [["head.weight"]] * 4}
    assert run.rounds[-1]["served_accuracy"] > 0.3


def test_one_that_evaluates_sends_numbers_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, seen = spied(tmp_path, TRAINS, method="ifca:k=2")
    assert seen == {"train": [["head.weight"]] * 4}  # what has no arrays is no model
    assert run.rounds[-1]["served_accuracy"] > 0.3


IN_NUMPY = """
    import numpy as np
    import nvflare.client as flare

    flare.init()
    goal = 3.0 if flare.get_site_name() == "site-1" else -3.0
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        assert all(type(a) is np.ndarray and a.dtype == np.float32 for a in received.params.values())
        loss = float(np.square(received.params["coef"] - goal).mean())
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics={"loss": loss}))
            continue
        moved = {name: (array + np.sign(goal)).astype(np.float64) for name, array in received.params.items()}
        flare.send(flare.FLModel(params=moved, metrics={"loss": loss}, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
"""


def test_a_script_in_numpy_has_arrays_as_its_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text(textwrap.dedent(IN_NUMPY))
    recipe = ClusteredRecipe(
        name="arrays",
        method="wecfl:k=2,cluster_on=all",
        model={"coef": np.array([[1, 2]]), "path": [5.0]},  # FLARE takes a dictionary with a path for a component
        train_script="client.py",
        num_rounds=2,
        min_clients=2,
    )
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "flare")))
    (run,) = find_runs(tmp_path / "flare")
    assert [r["trained"] for r in run.rounds] == [["site-1", "site-2"]] * 2
    clusters = {line["participant"]: line["cluster"] for line in run.assignments if line["round"] == 1}
    for site, step in (("site-1", 1), ("site-2", -1)):
        arrays = load_arrays(tmp_path / "flare", f"cluster-{clusters[site]}")
        np.testing.assert_array_equal(arrays["coef"], [[1 + 2 * step, 2 + 2 * step]])
        np.testing.assert_array_equal(arrays["path"], [5 + 2 * step])
    with pytest.raises(ConfigError, match=r"read them with cfl_flare\.load_arrays"):
        load_model(tmp_path / "flare", "cluster-0")
    with pytest.raises(ConfigError, match="only its own training script computes with"):
        Finished(tmp_path / "flare")
