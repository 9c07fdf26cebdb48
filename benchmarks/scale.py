# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What many participants cost.

``methods``: what a round costs with 50 to 5,000 participants of a small model: its time, the server's memory, the
clustering. A whole round is that of the in-process loop on Fashion-MNIST, where everyone takes one step and is
measured. The server's part is measured apart, each in a process of its own, with updates made up for it: CPU seconds
until they are accepted, CPU seconds of the aggregation (with its clustering), and by how much the peak of its memory
grows. Slopes are those of a line through the logarithms: 1 means that twice the participants cost twice as much.

With ``--hidden 14000`` models have 11 million parameters; of those, ``--parts clustering`` measures k-means alone.

``fedac``: memory, disk and time of FedAC's server with many participants of a model of a million parameters. The
participants do not train: each sends its group's direction and noise. A first round asks all of them, so that every
model is known; the others ask a quarter.

    CFL_DATA_ROOT=... python benchmarks/scale.py methods --out benchmarks/results/scale.json
    python benchmarks/scale.py methods --parts clustering --hidden 14000 --participants 50 200 \
        --methods wecfl-all --out benchmarks/results/whole-models.json
    python benchmarks/scale.py fedac --rounds 3 --out benchmarks/results/fedac-memory.json
"""

from __future__ import annotations

import argparse
import json
import resource
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import COLOURS, commit, in_own_process, provenance, save, tell
from matplotlib.figure import Figure
from speed import peak_megabytes

from cfl_flare.clustering.kmeans import first_kmeans, lloyd
from cfl_flare.clustering.measures import agreement, points
from cfl_flare.core.arrays import Archive
from cfl_flare.core.params import Layout, Params
from cfl_flare.data import DataConfig, Npz
from cfl_flare.engine.loop import model_factory, run_loop
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.server import Equipment, Server, ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.methods import Download, Participant, Update, build_method
from cfl_flare.training.resident import ResidentModel, untrained
from cfl_flare.training.settings import TrainSettings


def model_of(hidden: int) -> dict[str, Any]:
    """A network with one hidden layer of this width."""
    return {
        "class_path": "cfl_flare.models.MLP",
        "args": {"input_shape": [1, 28, 28], "num_classes": 10, "hidden": [hidden]},
    }


METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "ifca": {"method": "ifca", "k": 10, "assignment_samples": 8},
    "fesem": {"method": "fesem", "k": 10},
    "wecfl": {"method": "wecfl", "k": 10},
    "fl-hc": {"method": "fl-hc", "k": 10, "rounds_before": 1},
    "fedac": {"method": "fedac", "k": 10},
    "wecfl-all": {"method": "wecfl", "k": 10, "cluster_on": "all"},
    "fl-hc-all": {"method": "fl-hc", "k": 10, "rounds_before": 1, "cluster_on": "all"},
}
GROUPS, ROUNDS = 10, 3


def whole_round(name: str, participants: int, hidden: int) -> dict[str, float]:
    """Median seconds of a round in the loop, and of its CPU."""
    marks: list[tuple[float, float]] = []
    plan = RunPlan(
        method=build_method(METHODS[name]),
        model=model_of(hidden),
        reader=Npz("fashionmnist.npz"),
        data=DataConfig(participants, {"partition": "iid"}, 0, min_samples=4),
        server=ServerSettings(ROUNDS + 1, key_metric=""),
        training=TrainSettings(batch_size=8, local_steps=1),
    )
    run_loop(plan, on_round=lambda measured: marks.append((time.monotonic(), time.process_time())))
    wall, cpu = np.median(np.diff(np.array(marks), axis=0), axis=0)
    return {"round_seconds": float(wall), "round_cpu_seconds": float(cpu)}


def server_part(name: str, participants: int, hidden: int) -> dict[str, float]:
    """The server's cost of the second of two rounds, with updates that fall into ten groups; memory is that of both."""
    for library in ("scipy.cluster.hierarchy", "sklearn.cluster", "sklearn.metrics"):
        import_module(library)  # what that takes is no participant's doing

    method, make_model = build_method(METHODS[name]), model_factory(model_of(hidden))
    layout = ResidentModel(make_model()).layout
    people = [Participant(f"p{i}", "site-1", 1) for i in range(participants)]
    start = method.start(lambda i: untrained(make_model, 0, i))
    before = peak_megabytes()
    server = Server(method, layout, people, ServerSettings(ROUNDS, key_metric=""), start)
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((GROUPS, layout.size)).astype(np.float32)
    for _ in range(2):
        accepting = 0.0
        for number, (participant, order) in enumerate(server.tasks().items()):
            cluster = number % GROUPS if name == "ifca" else None
            slot = order.slots[cluster or 0]
            vector = 0.1 * directions[number % GROUPS] + 0.02 * rng.standard_normal(layout.size, np.float32)
            answer = Result(participant, Update(participant, 1, {slot: Params(layout, vector)}, cluster))
            started = time.process_time()
            server.accept(answer, "site-1")
            accepting += time.process_time() - started
        started = time.process_time(), time.monotonic()
        server.finish_round()
        aggregating, lasting = time.process_time() - started[0], time.monotonic() - started[1]
    return {
        "accept_cpu_seconds": accepting,
        "aggregate_cpu_seconds": aggregating,
        "aggregate_seconds": lasting,
        "server_MB": peak_megabytes() - before,
        "models_MB": participants * layout.nbytes / 2**20,
    }


def clustering_part(name: str, participants: int, hidden: int) -> dict[str, float]:
    """K-means of whole models alone, from scratch and then from given centres; the models are made up one by one."""
    size = (784 + 1 + 10) * hidden + 10
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((GROUPS, size), np.float32)
    noise = [rng.standard_normal(size + participants, np.float32) for _ in range(2)]
    models = (centres[i % GROUPS] + noise[i % 2][i : i + size] for i in range(participants))
    before, started = peak_megabytes(), (time.process_time(), time.monotonic())
    at, at_centres = np.split(points(chain(models, centres)), [participants])
    weights, truth = np.ones(participants), np.arange(participants) % GROUPS
    labels = first_kmeans(at, GROUPS, weights), lloyd(at, at_centres, weights)
    right = all(agreement(truth.tolist(), of.tolist())["ari"] == 1.0 for of in labels)
    spent, lasted = time.process_time() - started[0], time.monotonic() - started[1]
    return {"cpu_seconds": spent, "seconds": lasted, "MB": peak_megabytes() - before, "groups_found": float(right)}


PARTS = {"round": whole_round, "server": server_part, "clustering": clustering_part}


def slope(by_participants: Mapping[str, Mapping[str, float]], key: str) -> float:
    """Of the line through the logarithms, over all numbers of participants."""
    x, y = [int(m) for m in by_participants], [max(1e-6, of[key]) for of in by_participants.values()]
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def draw(methods: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Curves over the number of participants."""
    titles = {
        "round_cpu_seconds": "a round of the loop (CPU s)",
        "aggregate_cpu_seconds": "the server's aggregation (CPU s)",
        "server_MB": "growth of the server's memory (MB)",
    }
    figure = Figure(figsize=(15, 4), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, 3), titles.items()):
        for i, (name, measured) in enumerate(methods.items()):
            counts = [int(m) for m in measured["participants"]]
            values = [of[key] for of in measured["participants"].values()]
            axes.loglog(counts, values, "o-", color=COLOURS[i % len(COLOURS)], label=name)
        axes.set(xlabel="participants", title=title)
        axes.legend(fontsize="small")
    save(figure, path)


def measure_methods(given: argparse.Namespace) -> None:
    """``methods``: all measurements that the file does not have yet; then slopes."""
    result = json.loads(given.out.read_text()) if given.out.exists() else {"methods": {}}
    for name in given.methods:
        found = result["methods"].setdefault(name, {"participants": {}})
        for participants in given.participants:
            if str(participants) in found["participants"]:
                continue
            parts = [in_own_process(__file__, "one", part, name, participants, given.hidden) for part in given.parts]
            measured = {k: v for part in parts for k, v in part.items()}
            found["participants"][str(participants)] = {k: round(v, 4) for k, v in measured.items()}
            found["provenance"] = provenance()
            print(f"{name:8} {participants:6} " + " ".join(f"{k} {v:.3f}" for k, v in measured.items()), flush=True)
            keys = ("round_cpu_seconds", "accept_cpu_seconds", "aggregate_cpu_seconds", "server_MB")
            if len(found["participants"]) > 1:
                found["slopes"] = {key: round(slope(found["participants"], key), 2) for key in keys if key in measured}
            given.out.write_text(json.dumps({"model": model_of(given.hidden), **result}, indent=1) + "\n")


# ---- FedAC's server ----


def resident() -> dict[str, float]:
    """MB of this process: its own memory, and pages of files that the system takes back when it needs them."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    memory, files = (int(lines[key].split()[0]) / 1024 for key in ("RssAnon", "RssFile"))
    return {"own_mb": round(memory), "file_pages_mb": round(files)}


class Peak:
    """The largest memory of its own that the process had, looked at twenty times a second."""

    def __init__(self) -> None:
        self.own_mb = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.own_mb = max(self.own_mb, resident()["own_mb"])
            time.sleep(0.05)


def answer(server: Server, name: str, number: int, layout: Layout) -> Update:
    """A made-up update: to the own group's place, with noise."""
    index = int(name[1:])
    group = np.random.default_rng(index % GROUPS).normal(size=layout.size).astype(np.float32)
    noise = np.random.default_rng([index, number]).normal(size=layout.size).astype(np.float32)
    sent: Download = server.method.distribute(server.state, name)
    slot = sent.slots[0]
    model = Params(layout, group + 0.3 * noise)
    return Update(name, 100, {slot: model - server.state.bank[slot]})


def fedac_server(participants: int, size: int, rounds: int, folder: Path) -> dict[str, Any]:
    """One run."""
    layout = Layout.of(torch.nn.Sequential(torch.nn.Linear(1000, size // 1000), torch.nn.Linear(size // 1000, 10)))
    zero = Params(layout, np.zeros(layout.size, np.float32))
    method = build_method({"method": "fedac", "k": GROUPS, "tuning": False})
    people = [Participant(f"p{i}", "site", 100, i % GROUPS) for i in range(participants)]
    before, peak, archive = resident(), Peak(), Archive(folder)
    settings = ServerSettings(rounds, sample=1.0)
    server = Server(method, layout, people, settings, method.start(lambda i: zero), Equipment(archive=archive))
    lines = []
    for number in range(rounds):
        if number == 1:
            server.settings = ServerSettings(rounds, sample=0.25)
        for name, order in server.tasks().items():
            given = answer(server, name, number, layout) if order.train else None
            server.accept(Result(name, given, {"metrics": {"served_accuracy": 0.5}} if order.evaluate else {}), "site")
        started = time.process_time()
        server.finish_round()
        server.forget(server.state.round)
        spent = round(time.process_time() - started, 1)
        disk = sum(p.stat().st_size for p in folder.glob("*.npy")) // 2**20
        lines.append({"round": number, "server_cpu_seconds": spent, "archive_mb": disk, **resident()})
        print(lines[-1], flush=True)
    return {
        "participants": participants,
        "parameters": layout.size,
        "all_models_mb": round(participants * layout.nbytes / 2**20),
        "before": before,
        "peak_own_mb": peak.own_mb,
        "peak_with_file_pages_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "rounds": lines,
    }


def measure_fedac(given: argparse.Namespace) -> None:
    """``fedac``."""
    temporary = Archive()
    measured = fedac_server(given.participants, given.parameters, given.rounds, given.archive or temporary.folder)
    given.out.write_text(json.dumps({"commit": commit(), **measured}, indent=1) + "\n")


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = options.add_subparsers(required=True)
    methods = commands.add_parser("methods", help="time and memory of every method")
    methods.set_defaults(do=measure_methods)
    methods.add_argument("--participants", type=int, nargs="+", default=[50, 200, 1000, 5000])
    methods.add_argument("--methods", nargs="+", choices=METHODS, default=[n for n in METHODS if "all" not in n])
    methods.add_argument("--parts", nargs="+", choices=PARTS, default=["round", "server"])
    methods.add_argument("--hidden", type=int, default=32, help="width of the model's hidden layer")
    fedac = commands.add_parser("fedac", help="memory, disk and time of FedAC's server")
    fedac.set_defaults(do=measure_fedac)
    fedac.add_argument("--participants", type=int, default=1000)
    fedac.add_argument("--parameters", type=int, default=1_000_000)
    fedac.add_argument("--rounds", type=int, default=4)
    fedac.add_argument("--archive", type=Path, help="folder for the models; default: a temporary one")
    for command in (methods, fedac):
        command.add_argument("--out", type=Path, required=True, help="a JSON file")
    one = commands.add_parser("one", help="one measurement of a method, in this process")
    one.set_defaults(do=lambda given: tell(PARTS[given.part](given.name, given.participants, given.hidden)))
    one.add_argument("part", choices=PARTS)
    one.add_argument("name", choices=METHODS)
    one.add_argument("participants", type=int)
    one.add_argument("hidden", type=int)
    given = options.parse_args()
    torch.set_num_threads(1)
    given.do(given)


if __name__ == "__main__":
    main()
