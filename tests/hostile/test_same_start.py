# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Hostile authors whose jobs start from the same model under another name, to subtract means of different sites."""

from __future__ import annotations

import numpy as np
import pytest

from cfl_flare.core.config import describe
from cfl_flare.models import MLP
from tests.helpers.hospitals import Hospitals

MODEL = describe(MLP((1, 4, 4), 2, [4]), "model")
# The first layer's weights travel in each of these jobs. What else travels differs, and so does the whole start.
PRIVATE = (None, "body.1.bias", "head.bias", "bias")


# Groups of three of six hospitals, which give four of the single updates by subtraction.
FIRST_GROUPS = ({1, 2, 3}, {1, 2, 4}, {1, 2, 5}, {1, 2, 6})


@pytest.fixture
def six_hospitals(tmp_path, monkeypatch):
    return Hospitals(tmp_path, monkeypatch, count=6)


def submit_groups(six_hospitals, first, **settings):
    """A job of one round in which the author chooses the two groups of three hospitals."""
    groups = {name: "a" if number in first else "b" for number, name in enumerate(six_hospitals.names, 1)}
    return six_hospitals.submit(six_hospitals.names, "trial", "groups", {"groups": groups}, model=MODEL, **settings)


def first_layer(vector):
    """The first layer's weights (4, 16), which are the first array of what travels in each job."""
    return vector[:64].astype(np.float64)


def test_private_layers_make_no_other_start(six_hospitals):
    """With equal starts: u3 - u4, u3 - u5 and u3 - u6 by differences of means, then u3 by the mean of all."""
    jobs = [submit_groups(six_hospitals, first, private=private) for first, private in zip(FIRST_GROUPS, PRIVATE)]
    assert not jobs[0].panics
    assert all("with means that were made before from the same model" in job.panics[0] for job in jobs[1:])
    known = [first_layer(job.models["cluster-0"]) for job in jobs]
    differences = [3 * (known[0] - other) for other in known[1:]]  # u3 - u4, u3 - u5, u3 - u6
    start = known[0] - sum(first_layer(jobs[0].updates[0, f"hospital-{i}"]) for i in (1, 2, 3)) / 3
    sum_of_others = 3 * (first_layer(jobs[0].models["cluster-1"]) - start)  # u4 + u5 + u6
    found = (sum_of_others + sum(differences)) / 3
    truth = first_layer(jobs[0].updates[0, "hospital-3"])
    assert np.abs(found - truth).max() > 0.3 * np.abs(truth).max()


def test_a_part_alone_is_the_same_start(six_hospitals):
    """Job one sends all biases, and job two the whole model."""
    jobs = [submit_groups(six_hospitals, first, private=p) for first, p in zip(FIRST_GROUPS, ("weight", None))]
    assert not jobs[0].panics
    assert "from the same model" in jobs[1].panics[0]


def test_another_seed_is_another_start(six_hospitals):
    for seed, first in enumerate(FIRST_GROUPS):
        assert not submit_groups(six_hospitals, first, private="bias", seed=seed).panics


def test_other_layers_are_not_compared(six_hospitals):
    """One job sends the first layer, the other one the last layer: no array has two means."""
    for first, private in zip(FIRST_GROUPS, ("head", "body")):
        assert not submit_groups(six_hospitals, first, private=private).panics
