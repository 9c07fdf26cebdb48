# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FedAC where there is something to find: 40 participants of CIFAR-10 with ten sets of labels, or sets of their own.

FedAC's Table 1 deals label sets at random, so that hardly two participants have the same one. With ``shared`` each set
belongs to four. The learning rate is ten times the paper's, as the paper's hardly leaves local training in so few
rounds; ``pull`` has values of mu with which a round moves a model a good part of the way to its centre.

    tables.py run --plan shared-sets --seeds 0 1 2 --out cells
"""

from dataclasses import replace

from plans import fedac

PLAN = replace(
    fedac.PLAN,
    name="shared-sets",
    title="FedAC on CIFAR-10 with shared label sets",
    training=replace(fedac.PLAN.training, lr=0.1),
    participants=40,
    rounds=100,
    sample=10,
    evaluate_every=50,
    partitions={
        "shared": {"partition": "n_class", "n": 2, "sets": 10},
        "own": {"partition": "n_class", "n": 2},
    },
    rows={
        **{row: method for row, method in fedac.PLAN.rows.items() if row not in ("fesem", "fedgroup", "fl-hc")},
        "wecfl": ("wecfl:k=10",),
        "fedac-fixed": ("fedac:k=10,tuning=False",),
    },
    sweeps={"pull": {f"fedac-fixed-mu{mu}": (f"fedac:k=10,tuning=False,mu={mu},lam=0",) for mu in (0, 1, 3)}},
    averaged=("last", 1),
)
