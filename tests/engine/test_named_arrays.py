# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Models that are given as arrays."""

from typing import Any

import numpy as np
import pytest
import torch

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout
from cfl_flare.engine.named_arrays import named_arrays
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.models import MLP, NamedArrays
from cfl_flare.training.resident import untrained

RUN: dict[str, Any] = {"num_rounds": 1, "min_clients": 1, "train_script": "client.py", "method": "fedavg"}


@pytest.mark.parametrize(
    ("model", "name"),
    [([[1, 2], [3, 4]], "numpy_key"), (np.array([[1, 2], [3, 4]]), "numpy_key"), ({"w": ((1, 2), (3, 4))}, "w")],
)
def test_one_array_has_the_name_of_flare_s_recipe_and_others_have_their_own(model, name):
    found = named_arrays(model)
    assert found is not None and list(found) == [name] and found[name].dtype == np.float32
    np.testing.assert_array_equal(found[name], [[1, 2], [3, 4]])


def test_what_is_a_module_or_names_one_is_left_to_others():
    assert named_arrays(MLP((1, 2, 2), 2)) is None
    assert named_arrays({"class_path": "a.B"}) is None
    assert named_arrays("a.B") is None


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({}, r"model = \{\} has no arrays"),
        ({"coef": [0.0], "loss": "log_loss"}, r"'loss' = 'log_loss' is no array\..*train_args"),
        ({"n_clusters": 3}, r"'n_clusters' = 3 is no array.*a single number as \[0\.0\]"),
        ({"fit_intercept": True}, "'fit_intercept' = True is no array"),
        ({"coef": None}, "'coef' = None is no array"),
        ({"coef": {"a": [1.0]}}, "'coef' = {'a': .* is no array"),
        ({1: [1.0]}, "model: 1 should be a name"),
        ({"": [1.0]}, "model: '' should be a name"),
        ([[1, 2], [3]], "model is no array of numbers"),
        (["a"], "model should be an array of numbers, not of <U1"),
        ({"coef": [1j]}, "'coef' should be an array of numbers, not of complex128"),
        (np.zeros((0, 3)), r"model has shape \(0, 3\), without a single number"),
        ([1.0, float("nan")], "model holds NaN or infinity"),
        ({"coef": [1e300]}, "model: 'coef' holds NaN or infinity, as float32"),
    ],
)
def test_what_is_no_model(model, says):
    with pytest.raises(ConfigError, match=says):
        named_arrays(model)


def test_names_that_a_module_could_not_have_itself():
    module = NamedArrays({"layers.0/w": (2, 3), "type": (), "a": (1,), "a.b": (1,)})
    assert [(e.name, e.shape, e.kind, e.fc) for e in Layout.of(module).entries] == [
        ("layers.0/w", (2, 3), "parameter", False),
        ("type", (), "parameter", False),
        ("a", (1,), "parameter", False),
        ("a.b", (1,), "parameter", False),
    ]
    assert not untrained(lambda: module, 0, 0).vector.any()


def test_a_script_s_arrays_are_numpy_s_if_the_model_is_arrays():
    assert RunPlan.of(**RUN, model=[1.0]).script.framework == "numpy"
    assert RunPlan.of(**RUN, model=[1.0], framework="pytorch").script.framework == "pytorch"
    assert RunPlan.of(**RUN, model=MLP((1, 2, 2), 2)).script.framework is None


def test_arrays_are_refused_where_they_do_not_fit():
    with pytest.raises(ConfigError, match="arrays by name need a training script"):
        RunPlan.of(**{**RUN, "train_script": None}, model=[1.0], data={"class_path": "cfl_flare.data.sources.Digits"})
    with pytest.raises(
        ConfigError, match=r"model: method ifca begins with 2 .*or give a torch\.nn\.Module as the model"
    ):
        check_plans([RunPlan.of(**{**RUN, "method": "ifca:k=2"}, model=[1.0])])
    with pytest.raises(ConfigError, match="framework = 'tensorflow' should be 'pytorch' or 'numpy'"):
        RunPlan.of(**RUN, model=[1.0], framework="tensorflow")
    assert torch.equal(NamedArrays({"w": [2]}).state_dict()["w"], torch.zeros(2))
