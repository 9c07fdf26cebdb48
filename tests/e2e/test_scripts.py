# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Training scripts: one that is asked for all that a job can ask, and what becomes of those that fail."""

from __future__ import annotations

import json
import textwrap

import numpy as np
import pytest
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.utils import set_per_site_config

from cfl_flare.core.errors import ConfigError
from cfl_flare.engine.newcomers import Finished
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.allowed import CLASSES
from cfl_flare.flare.client_api.private import keep_private
from cfl_flare.flare.kit import allow
from cfl_flare.flare.per_site import UNWAITED
from cfl_flare.methods import IFCA, Contrastive, KnowledgeSharing
from cfl_flare.models import MLP, Logistic
from cfl_flare.results.run_dir import Run, find_runs
from cfl_flare.results.served import load_arrays, load_model
from cfl_flare.results.tables import missed_lines
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
    """It answers with NumPy's arrays, where FLARE alone would subtract tensors from them, and fail."""
    monkeypatch.chdir(tmp_path)
    arrays = "params={name: value.numpy() for name, value in model.state_dict().items()}"
    (tmp_path / "client.py").write_text(textwrap.dedent(SCRIPT).replace("params=model.state_dict()", arrays))
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
    assert run.summary["train_script"] == "client.py" and not {"training", "data"} & run.summary.keys()
    assert [(p["steps"], "samples" in p) for p in run.summary["participants"]] == [(30, False)] * 2
    with pytest.raises(ConfigError, match="only its own training script computes with"):
        Finished(tmp_path / "flare")


@pytest.mark.parametrize("external", [False, True])
def test_a_function_measures_the_last_models_of_a_script_that_only_trains(tmp_path, monkeypatch, external):
    """It is in a module that the script does not import, so that the last round can be the best one."""
    monkeypatch.chdir(tmp_path)
    script = TRAINS.replace("flare.is_evaluate()", "False").replace("metrics=metrics, ", "")
    loads = (
        script.partition("flare.init()")[0]
        + "site = int(flare.get_site_name()"
        + script.partition("site = int(flare.get_site_name()")[2].partition("while flare")[0]
    )
    lines = ["model.load_state_dict(received.params)", "right = (model(x).argmax(1) == y).float().mean()"]
    lines = [*loads.splitlines(), *lines, "return {'accuracy': right.item()}"]
    (tmp_path / "measures.py").write_text("def accuracy(received):\n" + "".join(f"    {line}\n" for line in lines))
    run, seen = spied(tmp_path, script, method="fedavg", evaluate="measures.accuracy", launch_external_process=external)
    assert seen == {"train": [["head.weight"]] * 4}
    assert run.summary["final_round"] == 1 and run.summary["best"]["round"] == 1
    assert run.rounds[1]["served_accuracy"] > run.rounds[0]["served_accuracy"] > 0.3
    assert run.script == "client.py" and not run.summary["missed"]


def test_a_script_that_trains_against_its_word_sends_no_model_that_nobody_asked_for(tmp_path, monkeypatch):
    """Its source has the call and ignores the answer: it is asked to measure the last models, and trains."""
    monkeypatch.chdir(tmp_path)
    run, seen = spied(tmp_path, TRAINS.replace("flare.is_evaluate()", "flare.is_evaluate() and False"), method="fedavg")
    assert seen == {"train": [["head.weight"]] * 4}
    assert run.rounds[-1]["served_accuracy"] > 0.3


def test_one_that_evaluates_sends_numbers_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, seen = spied(tmp_path, TRAINS.replace('"accuracy"', '"val/dice"'), method="ifca:k=2")
    assert seen == {"train": [["head.weight"]] * 4}  # what has no arrays is no model
    assert run.rounds[-1]["served_worst_val/dice"] > 0.3
    assert run.summary["best"]["metric"] == run.metric.name == "val/dice"
    assert (run.folder / "key_metric.png").is_file()


def test_losses_that_scripts_report_part_the_sites(tmp_path, monkeypatch):
    """Sites of even and of odd numbers name the classes differently; a round of losses comes before each training."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text(TRAINS)
    common = {"name": "losses", "model": Logistic((1, 8, 8), 10), "num_rounds": 6, "min_clients": 4}
    recipe = ClusteredRecipe(**common, method="clove:k=2", train_script="client.py")
    recipe.execute(SimEnv(num_clients=4, workspace_root=str(tmp_path / "flare")))
    (run,) = find_runs(tmp_path / "flare")
    clusters = {participant["name"]: participant["cluster"] for participant in run.summary["participants"]}
    assert clusters["site-1"] == clusters["site-3"] != clusters["site-2"] == clusters["site-4"]
    assert not any(r["failed"] for r in run.rounds) and run.rounds[-1]["served_accuracy"] > 0.8


@pytest.mark.parametrize("flares_own", [False, True])
def test_private_layers_never_leave_a_site_that_goes_on_with_them(tmp_path, monkeypatch, flares_own):
    """Two groups name the classes differently, so that one model for all is right for half of them at most."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path / "state"))
    script = TRAINS.replace("Logistic", "MLP")
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


# ---- Scripts that fail, that end too early, and that hang, in one job ----


ROUNDS = 10

FAILS = """
    import sys
    import time
    from pathlib import Path

    import nvflare.client as flare
    from cfl_flare.models import Logistic

    class NoScanner(Exception):
        pass

    how, folder = sys.argv[1], Path(sys.argv[2])
    if how == "raises":
        raise NoScanner("of ward 7")
    flare.init()
    model, trained = Logistic((1, 8, 8), 10), 0
    while flare.is_running():
        received = flare.receive()
        if how == "ends" and trained == 1:
            sys.exit("of ward 7")
        model.load_state_dict(received.params)
        trained += 1
        if how == "trains" and (folder / "hangs").exists():
            (folder / f"trained-{trained}").touch()
        if how == "hangs" and trained == 2:
            (folder / "hangs").touch()
            while len(list(folder.glob("trained-*"))) < 3:  # rounds go on
                time.sleep(0.2)
        if how == "trains" and received.current_round > 3:
            time.sleep(0.5)
        flare.send(flare.FLModel(params=model.state_dict(), metrics={"accuracy": 0.5}))
"""


def test_what_became_of_each_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text(textwrap.dedent(FAILS))
    recipe = ClusteredRecipe(
        name="fails",
        method="fedavg",
        model=Logistic((1, 8, 8), 10),
        train_script="client.py",
        num_rounds=ROUNDS,
        min_clients=4,
        task_timeout=15,
        max_missed_tasks=1,
        max_failed_rounds=ROUNDS,
    )
    sites = dict(zip(("site-1", "site-2", "site-3", "site-4"), ("raises", "ends", "hangs", "trains")))
    own = {"site-1": {"launch_external_process": True}}
    set_per_site_config(
        recipe, {site: {"train_args": f"{how} {tmp_path}", **own.get(site, {})} for site, how in sites.items()}
    )
    recipe.execute(SimEnv(clients=list(sites), workspace_root=str(tmp_path / "flare")))
    (run,) = find_runs(tmp_path / "flare")
    missed = run.summary["missed"]
    assert missed["site-1"] == {"rounds": ROUNDS, "asked": ROUNDS, "reason": "NoScanner in its script"}
    assert missed["site-2"]["reason"] == "its script ended before the job"
    assert f"site-1 missed {ROUNDS} of {ROUNDS} rounds: NoScanner in its script" in missed_lines([run])
    why = [line["failed"].get("site-3") for line in run.rounds]
    assert "no result in time" in why and UNWAITED in why  # rounds went on without it
    assert run.rounds[-1]["trained"] == ["site-3", "site-4"]  # it has woken up
    logs = {path: path.read_text() for path in (tmp_path / "flare" / "fails").rglob("*log*.txt")}
    told = {path.relative_to(tmp_path / "flare" / "fails").parts for path, text in logs.items() if "of ward 7" in text}
    assert told == {(site, name) for site in ("site-1", "site-2") for name in ("log.txt", "log_fl.txt")}
    assert any(path.name == "error_log.txt" for path in logs)  # it is what FLARE's clients send on
