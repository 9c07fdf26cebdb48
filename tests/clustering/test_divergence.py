# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import doctest

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.clustering import divergence
from cfl_flare.clustering.measures import divergences, log_softmax

values = st.floats(-30, 30, width=32)
logits = st.lists(st.lists(values, min_size=6, max_size=6), min_size=1, max_size=4).map(
    lambda rows: np.array(rows, np.float32).reshape(-1, 2, 3)
)


def test_the_example():
    assert doctest.testmod(divergence).failed == 0


def test_by_hand():
    model = np.log([[[0.8, 0.2], [0.5, 0.5]]])
    centres = np.log([[[0.5, 0.5], [0.5, 0.5]], [[0.8, 0.2], [0.1, 0.9]]])
    first = 0.8 * np.log(0.8 / 0.5) + 0.2 * np.log(0.2 / 0.5)  # the second sample agrees
    second = 0.5 * np.log(0.5 / 0.1) + 0.5 * np.log(0.5 / 0.9)  # the first one does
    np.testing.assert_allclose(divergences(model, centres), [[first, second]])


def test_it_is_the_model_s_probabilities_that_weigh():
    one, other = np.log([[[0.9, 0.1]]]), np.log([[[0.5, 0.5]]])
    forward, backward = divergences(one, other)[0, 0], divergences(other, one)[0, 0]
    assert forward == pytest.approx(0.9 * np.log(1.8) + 0.1 * np.log(0.2))
    assert backward == pytest.approx(0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(5))


@settings(max_examples=40, deadline=None)
@given(models=logits, centres=logits)
def test_against_torch_and_its_bounds(models, centres):
    found = divergences(models, centres)
    assert found.shape == (len(models), len(centres))
    assert (found >= -1e-9).all()
    np.testing.assert_allclose(np.diag(divergences(models, models)), 0, atol=1e-9)
    for i, model in enumerate(torch.from_numpy(models).double()):
        for j, centre in enumerate(torch.from_numpy(centres).double()):
            expected = F.kl_div(F.log_softmax(centre, -1), F.log_softmax(model, -1), reduction="sum", log_target=True)
            assert found[i, j] == pytest.approx(float(expected), abs=1e-8)


def test_constants_on_all_logits_do_not_matter():
    rng = np.random.default_rng(0)
    models, centres = rng.normal(size=(3, 5, 4)), rng.normal(size=(2, 5, 4))
    np.testing.assert_allclose(divergences(models + 50, centres - 7), divergences(models, centres), rtol=1e-9)


@pytest.mark.parametrize("huge", [1e4, 3e38])
def test_huge_logits_stay_finite(huge):
    one, other = np.array([[[huge, -huge]]], np.float32), np.array([[[-huge, huge]]], np.float32)
    assert divergences(one, one)[0, 0] == 0
    assert divergences(one, other)[0, 0] == pytest.approx(2 * huge)
    assert np.isfinite(log_softmax(one)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_model_without_numbers_is_far_from_everything(bad):
    models = np.array([[[0.0, 1.0]], [[bad, 1.0]], [[bad, bad]]])
    found = divergences(models, models[:1])
    assert found[0, 0] == 0
    assert found[2, 0] == np.inf
    assert not np.isnan(divergences(models, models)).any()
