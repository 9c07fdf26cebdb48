# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a study says, what it costs beside training all its candidates to the end, and whether its choice was the best.

After each study the candidates that it dropped are trained to the end and measured, too. The regret is by how much the
best of all candidates on test samples is better than the one that the study chose.

    python benchmarks/study.py --cases iid permuted scanners --out benchmarks/results/study-digits.json
    python benchmarks/study.py --cases "stroke by loss" --seeds 0 1 2 --rounds 20 --rungs 3 --out stroke.json

It saves after each study and continues where it was.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import measure_missing

from cfl_flare.cli.specs import dealt_out, model_spec, read_source, shape_and_outputs
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.study.candidates import StudySettings, first_candidates
from cfl_flare.engine.study.halving import TEST, Study
from cfl_flare.engine.study.in_process import InProcess
from cfl_flare.results.comparison import mean_of
from cfl_flare.training.settings import TrainSettings

DIGITS = {"data": "digits", "participants": 12, "training": {"lr": 0.1}}
# As in the plans of the same names.
CELLS = {
    "data": "npz:path=bloodmnist28.npz",
    "participants": 16,
    "model": "path-cnn",
    "training": {"lr": 0.01, "momentum": 0.9, "batch_size": 32, "local_steps": 10},
}
LABELS = "cluster_dirichlet:groups=4,a_between=0.1,a_within=10.0"
BOTH = "crossed:rule=cluster_dirichlet,groups=2,scanners=2,a_between=0.1,a_within=10.0"
RECORDS = {"lr": 0.3, "momentum": 0.0, "local_epochs": 1, "task": "binary", "measures": ("auroc",)}
STROKE = {
    "data": "stroke:scaling=site",
    "partition": "natural",
    "min_samples": 24,
    "model": "logistic",
    "training": RECORDS,
}
HEART = {**STROKE, "data": "heart:scaling=site", "min_samples": 8}
CASES: dict[str, dict[str, Any]] = {
    "iid": {**DIGITS, "partition": "iid"},
    "permuted": {**DIGITS, "partition": "label_permutation:groups=3"},
    "scanners": {**DIGITS, "partition": "scanner:groups=2"},
    "cells by labels": {**CELLS, "partition": LABELS},
    "cells by scanners": {**CELLS, "partition": "scanner:groups=4"},
    "cells by both": {**CELLS, "partition": BOTH},
    "heart by auroc": {**HEART, "key_metric": "auroc"},
    "heart by loss": {**HEART, "key_metric": "loss"},
    "stroke by auroc": {**STROKE, "key_metric": "auroc"},
    "stroke by loss": {**STROKE, "key_metric": "loss"},
}


def measured(case: str, seed: int, rounds: int, rungs: int) -> dict[str, Any]:
    """One study, and what it did not see."""
    settings = dict(CASES[case])
    data, training = settings.pop("data"), TrainSettings(bootstrap=100, **settings.pop("training"))
    source, network = read_source(data), settings.pop("model", None)
    plan = RunPlan.of(
        method="fedavg",
        model=model_spec(network, *shape_and_outputs(source, data, training)),
        data=source,
        training=training,
        min_clients=1,
        num_rounds=rounds,
        seed=seed,
        validation=0.25,
        **dealt_out(source, settings),
    )
    started = time.process_time()
    with TemporaryDirectory() as folder:
        trainer = InProcess(plan, Path(folder))
        given = StudySettings(rungs=rungs)
        task = trainer.training.built_task()
        study = Study(trainer, first_candidates(trainer.module, task=task), given, seed=seed)
        verdict = study.run()
        seconds, tested = time.process_time() - started, dict(verdict.tested)
        for candidate in study.candidates:
            if candidate.name not in tested and not candidate.pulled:
                trainer.train(candidate, rounds)
                tested[candidate.name] = mean_of(trainer.measured(candidate, rounds, TEST))
    sign = 1 if trainer.metric.mode == "max" else -1
    best = max(tested, key=lambda name: sign * tested[name])
    cost = study.journal.cost(rounds)
    return {
        "participants": len(trainer.names),
        "found": study.journal.clusters,
        "set": study.journal.k_set,
        "cluster": verdict.cluster,
        "unsure": bool(verdict.unsure),
        "chosen": verdict.chosen.name,
        "best": best,
        "regret": round(sign * (tested[best] - tested[verdict.chosen.name]), 4) or 0.0,  # never -0.0
        "tested": {name: round(value, 4) for name, value in tested.items()},
        "dropped": {str(rung.rounds): list(rung.dropped) for rung in study.journal.rungs},
        "cost": {key: cost[key] for key in ("rounds", "everything")},
        "processor_seconds": {"study": round(seconds, 1), "everything": round(time.process_time() - started, 1)},
        "sentences": verdict.sentences(),
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Of each case: how often it said to cluster, the mean regret, and the share of the rounds of all candidates."""
    table = []
    for case in dict.fromkeys(row["case"] for row in rows):
        chosen = [row for row in rows if row["case"] == case]
        spent, everything = (sum(row["cost"][key] for row in chosen) for key in ("rounds", "everything"))
        regrets = [row["regret"] for row in chosen]
        line = {"case": case, "studies": len(chosen), "cluster": sum(row["cluster"] for row in chosen)}
        line |= {"unsure": sum(row.get("unsure", False) for row in chosen)}
        line |= {"regret": round(sum(regrets) / len(chosen), 4), "largest_regret": max(regrets)}
        table.append({**line, "share_of_rounds": round(spent / everything, 3)})
    return {"summary": table}


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--seeds", nargs="+", type=int, default=list(range(20)))
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--rungs", type=int, default=2)
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    torch.set_num_threads(1)
    wanted = (
        {"case": case, "seed": seed, "rounds": given.rounds, "rungs": given.rungs}
        for seed, case in product(given.seeds, given.cases)
    )
    measure_missing(given.out, wanted, measured, summarize)


if __name__ == "__main__":
    main()
