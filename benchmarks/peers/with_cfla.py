# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""cfla: its servers and clients, as its own experiments put them together.

Its FedAvg trains by Adam, so its FeSEM with one cluster stands in, which is FedAvg by SGD. A client draws its test
split from its data; here it gets the shared split instead.
"""

from __future__ import annotations

import tempfile

from cfla.framework.client.client_fesem import ClientFeSEM
from cfla.framework.client.client_ifca import ClientIFCA
from cfla.framework.server.server_fesem import ServerFeSEM
from cfla.framework.server.server_ifca import ServerIFCA
from torch.utils.data import DataLoader, TensorDataset
from work import BATCH, CLUSTERS, EPOCHS, LR, Net, accuracy, order, shares_of, size, tell


def main() -> None:
    """Runs the method, and prints the accuracy."""
    given = order("fedavg", "ifca", "fesem")
    shares = shares_of(given.shares)
    of_client, of_server = (ClientIFCA, ServerIFCA) if given.method == "ifca" else (ClientFeSEM, ServerFeSEM)
    with tempfile.TemporaryDirectory() as folder:
        common = {"device": "cpu", "output_dir": folder, "seed": 0}
        settings = {"local_epochs": EPOCHS, "learning_rate": LR, "batch_size": BATCH, "monitor_energy": False, **common}
        clients = []
        for i, share in enumerate(shares):
            dataset = TensorDataset(share.x, share.y)
            client = of_client(client_id=i, dataset=dataset, args=settings, output_dir=folder)
            client.train_loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
            client.test_loader = DataLoader(TensorDataset(share.test_x, share.test_y), batch_size=BATCH)
            clients.append(client)
        clusters = 1 if given.method == "fedavg" else CLUSTERS
        everyone = {"fraction": 1.0, "rounds": given.rounds, "num_clusters": clusters, **common}
        server = of_server(global_model=Net(), args=everyone, test_dataloader=None)
        server.set_clients(clients=clients)
        centres, assigned = server.train(verbose=False)
    served, model = [], Net()
    for share, k in zip(shares, assigned):
        model.load_state_dict(centres[k])
        served.append(accuracy(model, share))
    tell(served, size(model), "cfla", "torch")


if __name__ == "__main__":
    main()
