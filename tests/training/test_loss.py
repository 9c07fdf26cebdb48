# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Class weights and label smoothing: in what trains, and in nothing else. The Coin's logits are its two weights."""

from __future__ import annotations

import math

import pytest

from tests.tiny import coin, learner

# Of four samples three are of class 0. At equal weights both probabilities are 1/2.
LABELS = [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("settings", "gradient"),
    [
        ({}, -0.25),  # 1/2 - 3/4
        ({"class_weights": "balanced"}, 0.0),  # each class is half of the loss
        ({"label_smoothing": 0.2}, -0.2),  # the targets are 0.9 and 0.1: 1/2 - (3/4 0.9 + 1/4 0.1)
    ],
)
def test_a_step_by_hand(settings, gradient) -> None:
    moved = learner(LABELS, **settings).train(coin(0, 0)).vector
    assert moved == pytest.approx([-gradient, gradient], abs=1e-6)


def test_weights_are_of_the_participant_s_own_labels_and_hold_in_each_batch() -> None:
    # Weights 2/3 and 2. Batches of one sample: a weighted mean of one loss is that loss.
    one = learner(LABELS, batch_size=1, class_weights="balanced").train(coin(0, 0)).vector
    assert abs(one) == pytest.approx([0.5, 0.5], abs=1e-6)
    # With (2/3) log 2 off, as if a class of another participant's counted, the zero gradient above would not be zero.
    assert learner([0, 1, 1, 1, 1], class_weights="balanced").train(coin(0, 0)).vector == pytest.approx(
        [0, 0], abs=1e-6
    )


def test_a_class_that_does_not_occur_counts_once_in_smoothing() -> None:
    # Only class 0: its weight is 1, the other's 1; so it is plain smoothing, 1/2 - 0.9.
    moved = learner([0, 0, 0], class_weights="balanced", label_smoothing=0.2).train(coin(0, 0)).vector
    assert moved == pytest.approx([0.4, -0.4], abs=1e-6)


def test_adapting_trains_with_the_same_loss() -> None:
    assert learner(LABELS, class_weights="balanced").adapted(coin(0, 0), 1, 1.0).vector == pytest.approx(
        [0, 0], abs=1e-6
    )
    assert learner(LABELS).adapted(coin(0, 0), 1, 1.0).vector == pytest.approx([0.25, -0.25], abs=1e-6)


def test_neither_what_is_measured_nor_what_a_cluster_is_chosen_by_has_them() -> None:
    odds = math.log(3)  # probabilities 3/4 and 1/4
    plain = (3 * math.log(4 / 3) + math.log(4)) / 4
    one = learner(LABELS, class_weights="balanced", label_smoothing=0.2)
    # Balanced, the loss of (0, 0) would be smaller than that of the model that fits three samples of four.
    assert one.losses([coin(odds, 0), coin(0, 0)]) == pytest.approx([plain, math.log(2)])
    assert plain < math.log(2) < (math.log(4 / 3) + math.log(4)) / 2
    assert one.evaluate(coin(odds, 0))["loss"] == pytest.approx(plain)
