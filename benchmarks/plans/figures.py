# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The figures that a row of a table can have."""

from typing import NamedTuple


class Figure(NamedTuple):
    """A figure of a finished cell.

    Attributes:
        key: in the lines of rounds.jsonl or in after.json.
        scale: by which it is multiplied for the table.
        title: of the table's column.
        digits: after the point.
    """

    key: str
    scale: float
    title: str
    digits: int = 2


FIGURES: dict[str, Figure] = {
    "accuracy": Figure("served_accuracy", 100, "accuracy"),
    "mean_accuracy": Figure("served_accuracy_unweighted", 100, "accuracy, mean of hospitals"),
    "macro_f1": Figure("served_macro_f1", 100, "macro-F1"),
    "balanced_accuracy": Figure("served_balanced_accuracy", 100, "balanced accuracy"),
    "auroc": Figure("served_auroc", 100, "AUROC"),
    "pooled_auroc": Figure("pooled_auroc", 100, "pooled AUROC"),
    "mean_auroc": Figure("served_auroc_unweighted", 100, "AUROC, mean of hospitals"),
    "loss": Figure("served_loss", 100, "log-loss × 100"),
    "pooled_ece": Figure("pooled_ece", 100, "calibration error, pooled"),
    "tenth_accuracy": Figure("tenth_accuracy", 100, "worst tenth"),
    "tenth_loss": Figure("tenth_loss", 100, "log-loss × 100 of the worst tenth"),
    "auprc": Figure("served_auprc", 100, "AUPRC"),
    "ece": Figure("served_ece", 100, "calibration error"),
    "brier": Figure("served_brier", 1, "Brier", 3),
    "worst_accuracy": Figure("served_worst_accuracy", 100, "worst"),
    "bottom_accuracy": Figure("served_bottom_accuracy", 100, "bottom"),
    "unseen": Figure("unseen", 100, "unseen"),
    "initial": Figure("initial", 100, "initial"),
    "sound": Figure("sound", 100, "sound labels"),
    "sound_ari": Figure("sound_ari", 1, "ARI of sound"),
    "personalised": Figure("personalised", 100, "personalised"),
    **{tier: Figure(tier, 100, tier.upper()) for tier in ("c1", "c2", "c3", "c4")},
    "ari": Figure("ari", 1, "ARI"),
    "nmi": Figure("nmi", 1, "NMI"),
    "stable": Figure("stable", 1, "rounds to stable", 1),
    "clusters_in_use": Figure("clusters_in_use", 1, "clusters", 1),
}
