# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Flower: FedAvg in its simulation, with its message API, as its PyTorch quickstart has it; one core a client."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import Net, Share, accuracy, order, shares_of, size, tell, train

client_app = ClientApp()


def opened(message: Message, context: Context) -> tuple[Net, Share]:
    """The model of a message, and the share of the client that it is for."""
    torch.set_num_threads(1)
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    shares = shares_of(Path(message.content["config"]["shares"]))
    return model, shares[int(context.node_config["partition-id"])]


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """A participant's round."""
    model, share = opened(message, context)
    train(model, share)
    metrics = MetricRecord({"num-examples": len(share.y)})
    answer = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=answer, reply_to=message)


@client_app.evaluate()
def evaluate_client(message: Message, context: Context) -> Message:
    """The model on the test samples."""
    model, share = opened(message, context)
    metrics = MetricRecord({"accuracy": accuracy(model, share), "num-examples": len(share.test_y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


def main() -> None:
    """Runs FedAvg, and prints the accuracy."""
    given = order("flower-fedavg")
    shares = shares_of(given.shares)
    server_app = ServerApp()
    results = []

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        where = ConfigRecord({"shares": str(given.shares)})
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0, min_available_nodes=len(shares))
        results.append(
            strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord(Net().state_dict()),
                num_rounds=given.rounds,
                train_config=where,
                evaluate_config=where,
            )
        )

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=len(shares), backend_config=resources)
    model = Net()
    model.load_state_dict(results[0].arrays.to_torch_state_dict())
    tell([accuracy(model, share) for share in shares], size(model), "flwr", "ray", "torch")


if __name__ == "__main__":
    main()
