# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What was published after the five papers: CLoVE, CFL-GP and given groups, beside what was there.

A seed is of deal, initial models and batches, for all rows of a partition. A round is an exchange: in a round of losses
(CLoVE) nobody trains. Settings are each method's defaults, with the true number of groups as
K, or twice that number where the method finds it. Figures are those of the end.

    tables.py run --plan rotations --seeds 0 1 2 3 4 --out cells
    tables.py run --plan stroke-groups --rows search --seeds 100 --set measured_on=validation --out search

* ``rotations``: Fashion-MNIST turned by 0, 90, 180 and 270 degrees, 48 participants of 500 images, CLoVE's network.
  Eight participants, drawn by the seed, are held back, so that about ten of each group train. CLoVE's tables
  have 100 rounds, and MNIST; here are 20. The rate was the best of 0.02, 0.05 and 0.1 on seed 100, for FedAvg and for
  WeCFL.
* ``rotations-eight``: turned by 0, 15, 90, 105, 180, 195, 270 and 275 degrees, 128 participants and K = 4, CFL-GP's
  network. Two angles that are 15 degrees or less apart count as one group in ``first_ari`` and ``last_ari``. The paper
  has MNIST with 382 images a participant; here are 187.
* ``later-digits``: scikit-learn's digits with permuted labels, as in the plan ``digits``.
* ``later-blood``: blood cells at 28 hospitals, four of which are held back, in four groups by the cells that
  they see or by their scanners. The plan ``blood`` has 40 hospitals, 40 rounds and a rate of 0.01, with which 30 rounds
  are too few: 0.05 was the best of 0.01, 0.03, 0.05 and 0.1 on seed 100, for FedAvg and for WeCFL.
* ``stroke-groups``: 187 hospitals; their countries as given groups, and groups that are found. Rates and K (2 or 3) are
  those of the smallest log-loss on the validation patients of seed 100 (sweep ``search``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.metrics import adjusted_rand_score
from torch import nn

from cfl_flare.core.config import require
from cfl_flare.core.errors import DataError
from cfl_flare.data import DataSource, Npz
from cfl_flare.data.samples import Samples
from cfl_flare.methods import Groups
from cfl_flare.models import ImageNetwork
from cfl_flare.results.run_dir import ASSIGNMENTS, load_run, read_lines
from cfl_flare.training.settings import TrainSettings
from plans import blood, family, hospitals
from plans.plan import BASELINES, Plan, Rows, model

# ---- Data, a network, and countries as given groups ----


@dataclass(frozen=True)
class FirstImages(DataSource):
    """The first images of each split of a file in MedMNIST's layout.

    Attributes:
        path: the file, in the working folder or below ``$CFL_DATA_ROOT``.
        train: how many training images.
        test: how many test images.
    """

    path: str
    train: int
    test: int

    def load(self) -> tuple[Samples, Samples]:
        """Both splits; a DataError if the file has fewer."""
        train, test = Npz(self.path).load()
        few = f"{self.path} has {len(train)} and {len(test)} images, fewer than"
        wanted = f"train = {self.train} and test = {self.test}"
        require(len(train) >= self.train and len(test) >= self.test, f"{few} {wanted}", DataError)
        return train.take(np.arange(self.train)), test.take(np.arange(self.test))


class LeNet(ImageNetwork):
    """CLoVE's network for MNIST: two 5x5 convolutions and one fully connected layer, 5,142 numbers for its images."""

    name = "clove-lenet"
    smallest = 16

    def _layers(self, channels: int, height: int, width: int) -> tuple[nn.Module, nn.Linear]:
        first = (nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU())
        second = (nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU())
        features = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        return nn.Sequential(*first, *second, nn.Flatten()), nn.Linear(features, self.num_classes)


@dataclass(frozen=True, kw_only=True)
class Countries(Groups):
    """A model for each country of the stroke trial."""

    name: ClassVar[str] = "countries"

    groups: Mapping[str, str] = field(
        default_factory=lambda: {hospital: str(country) for hospital, country in hospitals.countries().items()}
    )


# ---- What is measured of a finished run ----


def after(plan: Plan, folder: Path, merged: int = 1) -> dict[str, Any]:
    """The worst tenth of the participants, and agreement with the true groups.

    Args:
        merged: so many neighbouring groups count as one.
    """
    people = load_run(folder).summary["participants"]
    accuracy = np.sort([person["served_accuracy"] for person in people if "served_accuracy" in person])
    return {
        "tenth_accuracy": float(accuracy[: math.ceil(len(accuracy) / 10)].mean()),
        **agreement(folder, merged),
    }


def agreement(folder: Path, merged: int = 1) -> dict[str, float]:
    """ARI of the first clustering and of the last against the true groups; nothing where nobody has a cluster."""
    groups = {person["name"]: person["group"] // merged for person in load_run(folder).summary["participants"]}
    clusters: dict[int, dict[str, int]] = {}
    for line in read_lines(folder / ASSIGNMENTS):
        if line["cluster"] is not None:
            clusters.setdefault(line["round"], {})[line["participant"]] = line["cluster"]
    rounds = {"first_ari": min(clusters), "last_ari": max(clusters)} if clusters else {}
    return {
        name: float(adjusted_rand_score([groups[person] for person in clusters[number]], [*clusters[number].values()]))
        for name, number in rounds.items()
    }


# ---- The plans ----


def clustered(k: int) -> Rows:
    """The rows with clusters: K is the number of groups, or at most twice that where it is found."""
    return {
        "ifca": (f"ifca:k={k}",),
        "fesem": (f"fesem:k={k}",),
        "wecfl": (f"wecfl:k={k}",),
        "wecfl-auto": ("wecfl:k=auto",),
        "clove": (f"clove:k={k}",),
        "clove-silhouette": (f"clove:k={2 * k},silhouette=True",),
        "cfl-gp": (f"cfl-gp:k={k}",),
    }


ROWS = {**BASELINES, "fedavg": ("fedavg",), "finetune": ("finetune",), **clustered(4)}
TURNED = {"partition": "scanner", "contrast": False, "inversion": False, "blur": False}
FIGURES = ("accuracy", "tenth_accuracy", "macro_f1", "balanced_accuracy", "first_ari", "last_ari", "clusters_in_use")
MEASURES = ("balanced_accuracy",)

ROTATIONS = Plan(
    name="rotations",
    title="Later methods on Fashion-MNIST in four rotations",
    source=FirstImages("fashionmnist.npz", train=24_000, test=4_400),
    model={"class_path": "plans.later.LeNet", "args": {"input_shape": [1, 28, 28], "num_classes": 10}},
    training=TrainSettings(lr=0.1, momentum=0.9, batch_size=50, local_epochs=1, measures=MEASURES),
    participants=48,
    unseen=8,
    rounds=20,
    evaluate_every=20,
    partitions={"four": {**TURNED, "groups": 4, "angles": [90, 180, 270]}},
    rows=ROWS,
    columns=FIGURES,
    averaged=("last", 1),
    after=after,
)
EIGHT = replace(
    ROTATIONS,
    name="rotations-eight",
    title="Later methods on Fashion-MNIST in eight rotations",
    model={**model("mlp", (1, 28, 28), 10), "args": {**model("mlp", (1, 28, 28), 10)["args"], "hidden": [200]}},
    training=TrainSettings(lr=0.1, momentum=0.0, batch_size=100, local_epochs=1, measures=MEASURES),
    participants=128,
    unseen=0,
    partitions={"eight": {**TURNED, "groups": 8, "angles": [15, 90, 105, 180, 195, 270, 275]}},
    columns=FIGURES,
    after=partial(after, merged=2),
)
DIGITS = replace(
    family.DIGITS,
    name="later-digits",
    title="Later methods on digits with permuted labels",
    training=replace(family.DIGITS.training, measures=MEASURES),
    evaluate_every=30,
    indicator_samples=0,
    partitions={"labels_permuted": family.DIGITS.partitions["labels_permuted"]},
    rows=ROWS,
    columns=FIGURES,
    after=after,
)
BLOOD = replace(
    blood.PLAN,
    name="later-blood",
    title="Later methods on blood cells at 28 hospitals",
    training=replace(blood.PLAN.training, lr=0.05, measures=MEASURES),
    participants=28,
    unseen=4,
    rounds=30,
    evaluate_every=30,
    indicator_samples=0,
    partitions={name: blood.PLAN.partitions[name] for name in ("labels", "scanners")},
    rows=ROWS,
    sweeps={},
    tables={},
    columns=FIGURES,
    averaged=("last", 1),
    after=after,
)
FAST = hospitals.FAST
RATES = (("", ()), (" fast", (FAST,)))
COUNTRIES = "plans.later.Countries"
CANDIDATES = (
    *(f"{row}:k={k}" for row in ("ifca", "fesem", "wecfl", "clove", "cfl-gp") for k in (2, 3)),
    *("wecfl:k=auto", "clove:k=6,silhouette=True", "finetune", COUNTRIES, f"{COUNTRIES}:warmup=10"),
    *(f"{COUNTRIES}:warmup=10,pull={pull}" for pull in (0.1, 1.0)),
)
STROKE = replace(
    hospitals.STROKE,
    name="stroke-groups",
    title="Stroke at 187 hospitals: countries, and groups that are found",
    evaluate_every=20,
    rows={
        **{row: hospitals.ROWS[row] for row in ("majority", "local", "fedavg", "finetune")},
        **clustered(3),
        "ifca": ("ifca:k=2", FAST),
        **{row: (*clustered(3)[row], FAST) for row in ("clove", "clove-silhouette", "cfl-gp")},
        "countries": (COUNTRIES,),
        "countries-warm": (f"{COUNTRIES}:warmup=10",),
    },
    sweeps={"search": {f"search {row}{end}": (row, *fast) for row in CANDIDATES for end, fast in RATES}},
    columns=("pooled_auroc", "loss", "accuracy", "tenth_accuracy", "tenth_loss", "first_ari", "last_ari", "ari"),
    after=lambda plan, folder: {**hospitals.after(plan, folder), **agreement(folder)},
)
LATER = (ROTATIONS, EIGHT, DIGITS, BLOOD, STROKE)
