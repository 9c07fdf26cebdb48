# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The thesis's family on Fashion-MNIST (J. Ma, 2023, sec. 3.5 and chapters 3 to 7), and Fed-CAM."""

from cfl_flare.data import Npz
from cfl_flare.training.settings import TrainSettings
from plans.plan import Plan, model

IFCA, FEW_SHOT = "k=10,assignment_samples=320", "k=10,clustering_rounds=10"
CON, REP, CKS = "contrastive:mu=2,tau=0.1", "contrastive:on=representations,mu=0.5,tau=1", "knowledge_sharing:lam=0.1"
CON_CKS = (f"{CON},scope=head", f"{CKS},scope=backbone")

PLAN = Plan(
    name="family",
    title="Fashion-MNIST",
    source=Npz(path="fashionmnist.npz"),
    model=model("fashion-cnn", (1, 28, 28), 10),
    # The thesis's reference code keeps the momentum, and its accuracies depend on it.
    training=TrainSettings(lr=0.001, momentum=0.9, batch_size=32, local_steps=10, keep_momentum=True),
    participants=50,  # 200 in the thesis, and 100 rounds
    rounds=60,
    partitions={
        "cluster_dirichlet": {"partition": "cluster_dirichlet", "a_between": 0.1, "a_within": 10.0, "groups": 10},
        "cluster_n_class": {"partition": "cluster_n_class", "n_group": 3, "n_client": 2, "groups": 10},
        "dirichlet": {"partition": "dirichlet", "alpha": 0.1},
    },
    # The thesis clusters in the first ten rounds alone where FeSEM and WeCFL have penalties.
    rows={
        "fedavg": ("fedavg",),
        "ifca": (f"ifca:{IFCA}",),
        "fesem": ("fesem:k=10",),
        "wecfl": ("wecfl:k=10",),
        "wecfl-con-para": (f"wecfl:{FEW_SHOT}", CON),
        "wecfl-con-rep": (f"wecfl:{FEW_SHOT}", REP),
        "wecfl-cks": (f"wecfl:{FEW_SHOT}", CKS),
        "wecfl-con-cks": (f"wecfl:{FEW_SHOT}", *CON_CKS),
        "ifca-con-para": (f"ifca:{IFCA}", CON),
        "ifca-cks": (f"ifca:{IFCA}", CKS),
        "ifca-cam": (f"ifca-cam:{IFCA},warmup=18",),
        "fesem-cam": ("fesem-cam:k=10,warmup=18",),
    },
)
