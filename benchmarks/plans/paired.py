# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the results pages compare, with at least three seeds: each of data, initial models and batches.

``PAIRED`` lays the thesis's methods beside each other on Fashion-MNIST, with their penalties and CAM. ``STARTS`` asks
how much of IFCA is chance of deal and initial models (thesis Table 3.1: it collapses), and whether CAM changes that:

    tables.py run --plan paired --seeds 0 1 2 --partitions cluster_dirichlet cluster_n_class --out cells
    tables.py run --plan starts --seeds 0 1 2 --set data_seed=0 --out cells       and so on, to data_seed=9

Both measure at the end of a run alone, and now and then on the way there.
"""

from dataclasses import replace

from plans import family

END = ("last", 1)

PAIRED = replace(
    family.PLAN,
    name="paired",
    title="Fashion-MNIST, three seeds",
    rounds=30,
    evaluate_every=10,
    rows={
        "local": ("local",),
        **{row: family.PLAN.rows[row] for row in ("fedavg", "fesem", "wecfl", "ifca", "ifca-cam", "fesem-cam")},
        **{row: method for row, method in family.PLAN.rows.items() if "con" in row or "cks" in row},
        "ifca-con-cks": (f"ifca:{family.IFCA}", *family.CON_CKS),
    },
    sweeps={},
    tables={},
    averaged=END,
)

STARTS = replace(
    family.PLAN,
    name="starts",
    title="IFCA's starts on Fashion-MNIST",
    participants=30,
    rounds=30,
    evaluate_every=10,
    partitions={"cluster_dirichlet": family.PLAN.partitions["cluster_dirichlet"]},
    rows={row: family.PLAN.rows[row] for row in ("ifca", "ifca-cam")},
    sweeps={},
    tables={},
    averaged=END,
)
