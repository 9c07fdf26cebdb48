# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedJAX: its FedAvg and its HypCluster, which is IFCA's choice of the model with the least loss; the network in Haiku.

Its algorithms do not evaluate. After each round its evaluators measure the participants' models, as all others do.
"""

from __future__ import annotations

from typing import Any

import fedjax
import haiku
import jax
import jax.numpy as jnp
from fedjax.algorithms import fed_avg, hyp_cluster
from work import BATCH, CLUSTERS, EPOCHS, LR, order, shares_of, tell

Clients = list[tuple[str, fedjax.ClientDataset, Any]]


def network(batch: dict[str, Any]) -> Any:
    """The logits of `work.Net`."""
    x = batch["x"]
    for channels in (8, 16):
        x = haiku.max_pool(jax.nn.relu(haiku.Conv2D(channels, 5)(x)), (2, 2, 1), (2, 2, 1), "VALID")
    return haiku.Linear(10)(haiku.Flatten()(x))


def model_of() -> fedjax.Model:
    """The network, its loss and its accuracy."""
    sample = {"x": jnp.zeros((1, 28, 28, 1)), "y": jnp.zeros((1,), jnp.int32)}
    return fedjax.create_model_from_haiku(
        transformed_forward_pass=haiku.transform(network),
        sample_batch=sample,
        train_loss=lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits),
        eval_metrics={"accuracy": fedjax.metrics.Accuracy()},
    )


def main() -> None:
    """Runs the method, and prints the accuracy."""
    given = order("fedjax-fedavg", "fedjax-ifca")
    shares = shares_of(given.shares)
    names = [str(i) for i in range(len(shares))]
    data = {
        split: [fedjax.ClientDataset({"x": x.permute(0, 2, 3, 1).numpy(), "y": y.numpy()}) for x, y in pairs]
        for split, pairs in {
            "train": [(s.x, s.y) for s in shares],
            "test": [(s.test_x, s.test_y) for s in shares],
        }.items()
    }
    model = model_of()
    optimizers = fedjax.optimizers.sgd(LR), fedjax.optimizers.sgd(1.0)
    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=EPOCHS, drop_remainder=False)
    padded = fedjax.PaddedBatchHParams(batch_size=len(shares[0].test_y))
    rng = jax.random.PRNGKey(0)
    if given.method == "fedavg":
        algorithm = fed_avg.federated_averaging(fedjax.model_grad(model), *optimizers, batches)
        state = algorithm.init(model.init(rng))
    else:
        losses = fedjax.model_per_example_loss(model)
        algorithm = hyp_cluster.hyp_cluster(losses, *optimizers, padded, batches)
        state = algorithm.init(hyp_cluster.random_init(CLUSTERS, model.init, rng))
    evaluator = fedjax.ModelEvaluator(model)
    test = [dataset.padded_batch(padded) for dataset in data["test"]]
    served: list[float] = []
    for _ in range(given.rounds):
        rng, *keys = jax.random.split(rng, 1 + len(shares))
        clients: Clients = list(zip(names, data["train"], keys))
        state, facts = algorithm.apply(state, clients)
        if given.method == "fedavg":
            results = evaluator.evaluate_global_params(state.params, list(zip(names, test)))
        else:
            chosen = [state.cluster_params[int(facts[name]["cluster_id"])] for name in names]
            results = evaluator.evaluate_per_client_params(list(zip(names, test, chosen)))
        served = [float(metrics["accuracy"]) for _, metrics in results]
    parameters = state.params if given.method == "fedavg" else state.cluster_params[0]
    tell(served, sum(leaf.size for leaf in jax.tree_util.tree_leaves(parameters)), "fedjax", "jax")


if __name__ == "__main__":
    main()
