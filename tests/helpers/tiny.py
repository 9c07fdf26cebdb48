# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Models and participants small enough to compute by hand."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.server import Equipment, Server, ServerSettings
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods import FedAvg, Method, Participant, ServerState, Update, WeCFL
from cfl_flare.methods.slots import GLOBAL, cluster_slot
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.recorder import Recorder
from cfl_flare.training.learner import Learner
from cfl_flare.training.runtime import Runtime, Split
from cfl_flare.training.settings import TrainSettings


class Coin(nn.Module):
    """Two logits for one feature, no bias. On x = 1 the logits are the two weights themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class NoLinear(nn.Module):
    """A network whose logits come from a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 10, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).flatten(1)


class Biased(Coin):
    """The Coin with a bias. On x = 1 the logits are the weights plus the biases."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2)


LAYOUT = Layout.of(Coin())


def coin(a: float, b: float) -> Params:
    """The Coin with these two weights."""
    return Params(LAYOUT, np.array([a, b], np.float32))


def update(name: str, samples: int, slot: str, a: float, b: float, cluster: int | None = None) -> Update:
    """An update of the Coin."""
    return Update(name, samples, {slot: coin(a, b)}, cluster)


def make_updates(moves: Mapping[str, tuple[float, float]], slot: str = "cluster-0") -> list[Update]:
    """Updates of the Coin by participant: a has three samples, and each other one."""
    return [update(name, 3 if name == "a" else 1, slot, *move) for name, move in moves.items()]


def shift_statistics(model: Params, shift: float) -> Params:
    """The model with running statistics that are far from those of any batch."""
    vector = model.vector.copy()
    for entry in model.layout.entries:
        if entry.kind == "buffer":
            vector[entry.slice] += shift
    return Params(model.layout, vector, model.counters)


def draw_bank(worker: Learner, clusters: int = 3) -> dict[str, Params]:
    """Untrained models of a learner's network: one a cluster, then the global one."""
    bank = {cluster_slot(k): worker.initial(k) for k in range(clusters)}
    return {**bank, GLOBAL: worker.initial(clusters)}


def read_model(state: ServerState, slot: str) -> list[float]:
    """The numbers of a model of a bank."""
    return [round(float(v), 5) for v in state.bank[slot].vector]


def compute_objective(features: np.ndarray, labels: np.ndarray, centres: np.ndarray, weights: np.ndarray) -> float:
    """The clustering objective C of thesis Eq. 3.3b with squared Euclidean distance."""
    distances = np.square(features.astype(np.float64) - centres[labels]).sum(axis=1)
    return float(np.average(distances, weights=weights))


def initial(index: int) -> Params:
    """Untrained model number i: weights (i, -i)."""
    return coin(index, -index)


def make_learner(
    network: Callable[[], nn.Module],
    split: Split,
    memory: dict[str, Params] | None = None,
    seed: int = 0,
    number: int = 0,
    **settings: Any,
) -> Learner:
    """The learner of a participant p that is tested on what it trains with.

    Args:
        network: makes its network.
        split: its samples.
        memory: what it remembers of earlier rounds.
        seed: of its random streams.
        number: the round.
        **settings: for the training.
    """
    runtime = Runtime(network, TrainSettings(**settings), seed)
    return Learner(runtime, "p", split, split, {} if memory is None else memory, number)


def make_coin_learner(
    labels: list[int], lr: float = 1.0, steps: int = 1, memory: dict[str, Params] | None = None, **more
) -> Learner:
    """A participant whose features are all 1 and whose batches are its whole data, unless another size is given."""
    settings = {"lr": lr, "momentum": 0.0, "local_steps": steps, "batch_size": len(labels), **more}
    split = Split.of(np.ones((len(labels), 1), np.float32), np.array(labels))
    return make_learner(Coin, split, memory, **settings)


def step_method(method: Method, state: ServerState, updates: Sequence[Update]) -> ServerState:
    """The state after a server's step: it assigns the participants, then aggregates their updates."""
    return method.aggregate(state, updates, method.assign(state, updates))


def make_spread_start(index: int) -> Params:
    """Untrained model number i: weights (10 i, 0)."""
    return coin(10 * index, 0)


def start_server(
    method: Method | None = None,
    people: Sequence[Participant] = (),
    start: Callable[[int], Params] = initial,
    **settings: Any,
) -> Server:
    """A server of the Coin before its first round, by default with FedAvg and three rounds to come."""
    method = method or FedAvg()
    described = ServerSettings(**{"num_rounds": 3, **settings})
    return Server(method, LAYOUT, people, described, method.start(start))


def answer_round(server: Server, move: Callable[[str, Task], Update]) -> dict[str, Any]:
    """A round in which each participant answers; returns its record.

    Args:
        server: the server, at the start of a round.
        move: the update of a participant that is to train.
    """
    for name, task in server.tasks().items():
        moved = move(name, task) if task.train else None
        metrics = {"served_accuracy": 0.5} if task.evaluate else {}
        server.accept(Result(name, moved, {"metrics": metrics}), server.participants[name].site)
    server.finish_round()
    assert server.progress.record is not None
    return server.progress.record


def rounds(
    folder: Path | None = None, method: Method | None = None, count: int = 2, truth: bool = True, **more
) -> list[RoundMetrics]:
    """A few rounds of four participants, of whom c does not answer in the second one; written to a folder, if given."""
    groups = {"a": 0, "b": 0, "c": 1, "d": 1}
    people = [Participant(n, "site", s, groups[n] if truth else None) for n, s in zip("abcd", (3, 1, 2, 2))]
    method = method or WeCFL(k=2)
    recorder = None if folder is None else Recorder(folder, {}, {})
    server = Server(
        method, LAYOUT, people, ServerSettings(count, **more), method.start(initial), Equipment(recorder=recorder)
    )
    measured = []
    for number in range(count + 1):
        for name, order in server.tasks().items():
            if not order.train:
                server.accept(Result(name, answers={"metrics": {"served_accuracy": 0.5}}), "site")
            elif (name, number) != ("c", 1):
                a, b = {"a": (4, 0), "b": (5, 1), "c": (0, 4), "d": (1, 5)}[name]
                sent = method.distribute(server.state, name)
                chosen = groups[name] if sent.choices else None
                (slot,) = sent.list_expected(chosen)
                moved = update(name, server.participants[name].samples, slot, a, b, chosen)
                server.accept(
                    Result(name, moved, {"metrics": {"served_accuracy": 0.5} if order.evaluate else {}}), "site"
                )
        measured.append(server.finish_round())
    server.close()
    return [m for m in measured if m is not None]
