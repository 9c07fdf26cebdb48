# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""fedbase: its baselines, as its README calls them.

Its loss takes one-hot labels. Its IFCA returns the models, and who has which.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial

import torch
from fedbase.baselines import fedavg, fesem, ifca
from torch.utils.data import TensorDataset
from work import BATCH, CLUSTERS, EPOCHS, LR, Net, accuracy, order, shares_of, size, tell


def main() -> None:
    """Runs the method, and prints the accuracy."""
    given = order("fedavg", "ifca", "fesem")
    shares = shares_of(given.shares)
    splits = ([TensorDataset(s.x, s.y) for s in shares], [TensorDataset(s.test_x, s.test_y) for s in shares], "league")
    steps = EPOCHS * -(-len(shares[0].y) // BATCH)
    common = {
        "dataset_splited": splits,
        "batch_size": BATCH,
        "num_nodes": len(shares),
        "model": Net,
        "objective": torch.nn.CrossEntropyLoss,
        "optimizer": partial(torch.optim.SGD, lr=LR),
        "global_rounds": given.rounds,
        "local_steps": steps,
        "device": torch.device("cpu"),
    }
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # it writes its logs below the working folder
        os.mkdir("log")
        if given.method == "fedavg":
            model = fedavg.run(**common)
            served = [accuracy(model, share) for share in shares]
        else:
            models, members = {"ifca": ifca, "fesem": fesem}[given.method].run(K=CLUSTERS, **common)
            served = [accuracy(models[k], shares[i]) for k, names in enumerate(members) for i in names]
        os.chdir(given.shares.parent)
    tell(served, size(Net()), "fedbase", "torch")


if __name__ == "__main__":
    main()
