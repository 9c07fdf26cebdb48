# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The two libraries of clustered methods, cfla and fedbase, as cfla's experiments and fedbase's README call them.

cfla's FedAvg trains by Adam, so its FeSEM with one cluster stands in, which is FedAvg by SGD. A client of cfla draws
its test split from its data; here it gets the shared split instead.

fedbase's loss takes one-hot labels. Its clustered methods return the models, and who has which.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset
from work import BATCH, CLUSTERS, EPOCHS, LR, Net, Share, accuracy, order, shares_of, size, tell


def run_cfla(method: str, shares: Sequence[Share], rounds: int) -> list[float]:
    """The participants' accuracies."""
    from cfla.framework.client.client_fesem import ClientFeSEM
    from cfla.framework.client.client_ifca import ClientIFCA
    from cfla.framework.server.server_fesem import ServerFeSEM
    from cfla.framework.server.server_ifca import ServerIFCA

    of_client, of_server = (ClientIFCA, ServerIFCA) if method == "ifca" else (ClientFeSEM, ServerFeSEM)
    common = {"device": "cpu", "output_dir": "cfla", "seed": 0}
    settings = {"local_epochs": EPOCHS, "learning_rate": LR, "batch_size": BATCH, "monitor_energy": False, **common}
    clients = []
    for i, share in enumerate(shares):
        dataset = TensorDataset(share.x, share.y)
        client = of_client(client_id=i, dataset=dataset, args=settings, output_dir="cfla")
        client.train_loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
        client.test_loader = DataLoader(TensorDataset(share.test_x, share.test_y), batch_size=BATCH)
        clients.append(client)
    clusters = 1 if method == "fedavg" else CLUSTERS
    everyone = {"fraction": 1.0, "rounds": rounds, "num_clusters": clusters, **common}
    server = of_server(global_model=Net(), args=everyone, test_dataloader=None)
    server.set_clients(clients=clients)
    centres, assigned = server.train(verbose=False)
    served, model = [], Net()
    for share, k in zip(shares, assigned):
        model.load_state_dict(centres[k])
        served.append(accuracy(model, share))
    return served


def run_fedbase(method: str, shares: Sequence[Share], rounds: int) -> list[float]:
    """The participants' accuracies."""
    from fedbase.baselines import fedavg, fesem, ifca

    splits = ([TensorDataset(s.x, s.y) for s in shares], [TensorDataset(s.test_x, s.test_y) for s in shares], "league")
    settings = {
        "dataset_splited": splits,
        "batch_size": BATCH,
        "num_nodes": len(shares),
        "model": Net,
        "objective": torch.nn.CrossEntropyLoss,
        "optimizer": partial(torch.optim.SGD, lr=LR),
        "global_rounds": rounds,
        "local_steps": EPOCHS * -(-len(shares[0].y) // BATCH),
        "device": torch.device("cpu"),
    }
    if method == "fedavg":
        model = fedavg.run(**settings)
        return [accuracy(model, share) for share in shares]
    models, members = {"ifca": ifca, "fesem": fesem}[method].run(K=CLUSTERS, **settings)
    return [accuracy(models[k], shares[i]) for k, names in enumerate(members) for i in names]


def main() -> None:
    """Runs the method, and prints the accuracy."""
    given = order(*(f"{library}-{name}" for library in ("cfla", "fedbase") for name in ("fedavg", "ifca", "fesem")))
    shares, here = shares_of(given.shares), Path.cwd()
    run = {"cfla": run_cfla, "fedbase": run_fedbase}[given.library]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # both write below the working folder
        served = run(given.method, shares, given.rounds)
        os.chdir(here)
    tell(served, size(Net()), given.library, "torch")


if __name__ == "__main__":
    main()
