# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Scripts that fail, that end too early, and that hang, in one job; one of them in a process of its own."""

import textwrap

import pytest
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.utils import set_per_site_config

from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.per_site import UNWAITED
from cfl_flare.models import Logistic
from cfl_flare.report.table import missed_lines
from cfl_flare.results.run_dir import find_runs

pytestmark = pytest.mark.slow
ROUNDS = 10

SCRIPT = """
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
    (tmp_path / "client.py").write_text(textwrap.dedent(SCRIPT))
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
