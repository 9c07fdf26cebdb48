# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A hospital's table of patients as numbers. Nothing here is computed from other hospitals' patients."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch

SCALES = {
    "age": (54, 9),
    "trestbps": (132, 19),
    "chol": (240, 60),
    "thalach": (138, 26),
    "oldpeak": (0.9, 1.1),
    "ca": (0.7, 0.9),
}
CATEGORIES = {
    "sex": (1,),
    "fbs": (1,),
    "exang": (1,),
    "cp": (1, 2, 3, 4),
    "restecg": (0, 1, 2),
    "slope": (1, 2, 3),
    "thal": (3, 6, 7),
}
FOLDS = 5
Split = tuple[torch.Tensor, torch.Tensor]


def read_hospital(data: Path, hospital: str, fold: int) -> dict[str, Split]:
    """Features and labels of the patients to train on and of those to test on.

    Measurements are scaled by fixed numbers, and a missing one is the middle of its scale. Of a category that is
    missing no column is set. Columns of their own say what is missing, for those that some hospitals hardly measure.

    Args:
        data: the table of all four hospitals.
        hospital: cleveland, hungary, switzerland or long-beach.
        fold: which fifth of the patients is for testing, from 0.
    """
    patients = pd.read_csv(data)
    table = patients[patients["hospital"] == hospital]
    columns = [((table[name] - centre) / scale).fillna(0) for name, (centre, scale) in SCALES.items()]
    columns += [table[name] == value for name, values in CATEGORIES.items() for value in values]
    columns += [table[name].isna() for name in ("chol", "slope", "ca", "thal", "oldpeak")]
    features = torch.tensor(np.stack(columns, axis=1), dtype=torch.float32)
    labels = torch.tensor((table["num"] > 0).to_numpy(), dtype=torch.float32)
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in (0, 1):  # each fold has its share of both
        test[torch.nonzero(labels == label).ravel()[fold::FOLDS]] = True
    return {"train": (features[~test], labels[~test]), "test": (features[test], labels[test])}
