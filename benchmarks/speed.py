# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds a round in one process, beside the bare work. Writes a table and JSON.

The work is the thesis's setting: 200 participants of Fashion-MNIST (cluster-wise Dirichlet), its CNN, 10 steps of batch
32, all participants every round, evaluation every round. ``ideal`` is the same number of training steps in a bare torch
loop, and ``evaluation`` the same test samples through a bare forward pass, on the same data and the same network.

    CFL_DATA_ROOT=... python benchmarks/speed.py --out benchmarks/results/speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import provenance

from cfl_flare.data import DataConfig, Npz, ParticipantData
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import build_method
from cfl_flare.models import FashionCNN
from cfl_flare.training.settings import TrainSettings

MODEL = {"class_path": "cfl_flare.models.FashionCNN", "args": {"input_shape": [1, 28, 28], "num_classes": 10}}
TRAINING = TrainSettings()
IFCA = {"method": "ifca", "k": 10, "assignment_samples": 320}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "wecfl": {"method": "wecfl", "k": 10},
    "ifca": {**IFCA, "race": False},
    "ifca-race": {**IFCA, "race": True},
}
FEWEST = 2  # rounds that give one whole one


def data_config(participants: int) -> DataConfig:
    return DataConfig(participants, {"partition": "cluster_dirichlet"}, 0)


def bare(participants: list[ParticipantData], repeats: int) -> dict[str, float]:
    """CPU seconds of a round's training steps, its evaluation, and one model's pass over 320 samples a participant."""
    model = FashionCNN((1, 28, 28), 10).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, fused=True)
    sets = []
    for p in participants:
        xs = [torch.from_numpy(s.x).contiguous(memory_format=torch.channels_last) for s in (p.train, p.test)]
        sets.append((xs[0], torch.from_numpy(p.train.y), xs[1]))
    seconds: dict[str, list[float]] = {"ideal": [], "evaluation": [], "pass_320": []}
    for _ in range(repeats):
        start = time.process_time()
        model.train()
        for x, y, _ in sets:
            order = torch.randperm(len(y)).repeat(1 + 320 // len(y))
            for i in range(10):
                batch = order[32 * i : 32 * i + 32]
                optimizer.zero_grad()
                F.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
        seconds["ideal"].append(time.process_time() - start)
        model.eval()
        with torch.no_grad():
            for name, split, most in (("evaluation", 2, 10**9), ("pass_320", 0, 320)):
                start = time.process_time()
                for samples in sets:
                    for i in range(0, min(len(samples[split]), most), 64):
                        model(samples[split][i : i + 64])
                seconds[name].append(time.process_time() - start)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def method_seconds(spec: dict[str, Any], participants: int, rounds: int) -> float:
    """Median CPU seconds of a full round (training and evaluation), in the in-process loop."""
    marks: list[float] = []
    run_loop(
        RunPlan(
            method=build_method(spec),
            model=MODEL,
            reader=Npz("fashionmnist.npz"),
            data=data_config(participants),
            server=ServerSettings(rounds + 1),
            training=TRAINING,
        ),
        on_round=lambda measured: marks.append(time.process_time()),
    )
    return float(np.median(np.diff(marks)[: rounds - 1]))  # the last one only measures


def measure_speed(participants: int, rounds: int) -> dict[str, Any]:
    """CPU seconds a round of each method, beside the bare work."""
    result: dict[str, Any] = {"participants": participants, "rounds": rounds, "seed": 0}
    people = data_config(participants).host(Npz("fashionmnist.npz"), "local", 0, 1)
    result["bare"] = bare(people, rounds)
    print(f"{'bare training steps':34} {result['bare']['ideal']:7.1f} CPU s a round")
    print(f"{'bare evaluation':34} {result['bare']['evaluation']:7.1f}")
    result["methods"] = {}
    for name, spec in METHODS.items():
        used = method_seconds(spec, participants, rounds)
        again = bare(people, 1)  # the machine's speed drifts: compare with the bare work just before and after
        least = (result["bare"]["ideal"] + again["ideal"]) / 2 + (
            result["bare"]["evaluation"] + again["evaluation"]
        ) / 2
        entry = {"cpu_seconds": used, "bare_seconds": least, "ratio": used / least}
        if spec["method"] == "ifca":
            entry["assignment_seconds_a_participant"] = (used - least) / participants
        result["methods"][name] = entry
        print(f"{name:34} {used:7.1f}   {used / least:.2f} x the bare steps and evaluation ({least:.1f})")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--participants", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help=f"at least {FEWEST}; the median counts (%(default)s)")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.rounds < FEWEST:
        sys.exit(
            f"speed.py: --rounds {arguments.rounds} should be at least {FEWEST}: a round is timed by its neighbours"
        )
    if not os.environ.get("CFL_DATA_ROOT"):
        sys.exit("CFL_DATA_ROOT should name the folder of fashionmnist.npz")
    result = {"speed": provenance() | measure_speed(arguments.participants, arguments.rounds)}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
