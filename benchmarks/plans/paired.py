# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The thesis's methods beside each other on Fashion-MNIST, with their penalties and CAM, three seeds and more.

A seed is of data, initial models and batches. It is measured after every tenth round, and its figures are those of the
end. IFCA's participants choose by 64 of their samples: all of the thesis's 320 would take most of the time.

    tables.py run --plan paired --seeds 0 1 2 --partitions cluster_dirichlet cluster_n_class --out cells

How much of IFCA is chance of deal and of initial models (thesis Table 3.1: it collapses), and whether CAM changes that,
say 10 deals with 3 starts each:

    tables.py run --plan paired --rows ifca ifca-cam --seeds 0 1 2 --set data_seed=0 --out starts    to data_seed=9
"""

from dataclasses import replace

from plans import family
from plans.plan import BASELINES, Rows


def sooner(rows: Rows) -> Rows:
    """The same with fewer samples to choose a model by."""
    return {row: (first.replace("=320", "=64"), *rest) for row, (first, *rest) in rows.items()}


PLAN = replace(
    family.PLAN,
    name="paired",
    title="The thesis's methods on Fashion-MNIST, three seeds",
    participants=30,
    rounds=20,
    evaluate_every=10,
    rows={
        **BASELINES,
        **sooner({row: family.PLAN.rows[row] for row in ("fedavg", "fesem", "wecfl", "ifca", "ifca-cam", "fesem-cam")}),
        **sooner({row: method for row, method in family.PLAN.rows.items() if "con" in row or "cks" in row}),
        **sooner({"ifca-con-cks": (f"ifca:{family.IFCA}", *family.CON_CKS)}),
    },
    sweeps={},
    tables={},
    averaged=("last", 1),
)
