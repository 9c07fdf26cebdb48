# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A cell of tables.py through FLARE's simulator instead of the in-process loop."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from plans import Plan
from plans.plan import Remembered

from cfl_flare.cli.simulate import output_to, reason_in
from cfl_flare.core.config import require
from cfl_flare.core.errors import RunFailedError
from cfl_flare.data import DataConfig
from cfl_flare.flare import ClusteredRecipe, simulator
from cfl_flare.methods import Method
from cfl_flare.results.run_dir import ASSIGNMENTS, ROUNDS, SUMMARY, cut_lines, read_lines
from cfl_flare.results.store import Store

HERE = str(Path(__file__).parent)  # where sites find a plan's own data source
NAME = "cell"
STATE, WORKSPACE = "checkpoints", "flare"


def run_through_flare(
    folder: Path, plan: Plan, method: Method, partition: str, seed: int, sites: int, private: str | None = None
) -> int:
    """Runs a cell as a FLARE job of so many sites; one that was stopped is resumed from its last checkpoint.

    Its results come into the folder, where the in-process loop would leave them; FLARE's log is ``flare.log``.

    Returns:
        The rounds that were run now.

    Raises:
        ConfigError: participants are altered in a way that a job cannot say.
        RunFailedError: FLARE ended the job before its time.
    """
    data, scheduled = plan.data(partition, seed), plan.scheduled(seed)
    own = f"plan {plan.name}: partition {partition!r} with these settings is the benchmark's own; it cannot be --flare"
    require(type(data) in (DataConfig, Remembered) and data.seed == seed, own)
    os.environ["CFL_STATE_ROOT"] = str(folder / STATE)
    importable = [HERE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(importable))
    begun = any(Store(place).versions() for place in (folder / STATE / NAME).glob("*server*"))
    results = folder / WORKSPACE / NAME / "server" / "simulate_job" / "cfl"
    done = _keep_rounds(results, folder) if begun else 0
    recipe = ClusteredRecipe(
        name=NAME,
        method=method,
        model=plan.model,
        data=plan.source,
        participants=data.participants,
        partition=data.partition,
        min_samples=data.min_samples,
        indicator_samples=data.indicator_samples,
        unseen=data.unseen,
        num_rounds=scheduled.num_rounds,
        min_clients=sites,
        training=plan.training,
        seed=seed,
        sample=scheduled.sample,
        evaluate_every=scheduled.evaluate_every,
        key_metric=scheduled.key_metric,
        private=private,
        task_timeout=24 * 3600,
        resume_from=NAME if begun else None,
    )
    log = folder / "flare.log"
    with output_to(log):
        recipe.execute(simulator(sites, (folder / WORKSPACE).resolve()))
    if not (results / SUMMARY).is_file():
        raise RunFailedError(f"{folder}: no results; {reason_in(log)}; FLARE's log is {log}")
    _keep_rounds(results, folder)
    summary = json.loads((results / SUMMARY).read_text())
    rounds = read_lines(folder / ROUNDS)
    summary |= {key: sum(r[key] for r in rounds) for key in ("bytes_down", "bytes_up", "seconds")}
    (results / SUMMARY).write_text(json.dumps(summary, indent=1))
    for part in results.iterdir():
        shutil.move(part, folder / part.name)
    shutil.rmtree(folder / WORKSPACE)
    return len(rounds) - done


def _keep_rounds(results: Path, folder: Path) -> int:
    """Adds the rounds that a job recorded to those of the jobs before it, in place of what it did over again."""
    for name in (ROUNDS, ASSIGNMENTS):
        if new := read_lines(results / name):
            cut_lines(folder / name, new[0]["round"])
            with (folder / name).open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in new)
            (results / name).unlink()
    return len(read_lines(folder / ROUNDS))
