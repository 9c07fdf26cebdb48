# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""pfl: FederatedAveraging on its simulated backend, as its introduction to PyTorch has it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from work import BATCH, EPOCHS, LR, Net, accuracy, order, shares_of, size, tell


class PflNet(Net):
    """The network with what pfl asks of a module."""

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        """Mean cross-entropy."""
        self.train(not is_eval)
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, is_eval: bool = True) -> dict[str, Any]:
        """The number of right answers over that of samples."""
        self.train(not is_eval)
        return {"accuracy": Weighted(int((self(x).argmax(1) == y).sum()), len(y))}


def federated(data: list[tuple[Tensor, Tensor]]) -> FederatedDataset:
    """Users with their samples, each drawn once before any is drawn again."""
    users = get_user_sampler("minimize_reuse", list(range(len(data))))
    return FederatedDataset(lambda user: Dataset(raw_data=data[user], eval_kwargs={"is_eval": True}), users)


def main() -> None:
    """Runs FedAvg, and prints the accuracy."""
    given = order("pfl-fedavg")
    shares = shares_of(given.shares)
    network = PflNet()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    backend = SimulatedBackend(
        training_data=federated([(s.x, s.y) for s in shares]),
        val_data=federated([(s.test_x, s.test_y) for s in shares]),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=given.rounds,
            evaluation_frequency=1,
            train_cohort_size=len(shares),
            val_cohort_size=len(shares),
        ),
        backend,
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=EPOCHS, local_learning_rate=LR),
        NNEvalHyperParams(local_batch_size=None),
        [],
    )
    tell([accuracy(network, share) for share in shares], size(network), "pfl", "torch")


if __name__ == "__main__":
    main()
