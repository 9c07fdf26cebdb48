# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a site keeps of its script's model, and what it puts back."""

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FLContextKey

from cfl_flare.core.errors import ConfigError
from cfl_flare.flare.client_api.private import EVALUATE, SUBMIT, TRAIN, PrivateArrays
from tests.flare.kits import context, kit


class Site:
    """A job's two filters at a site."""

    def __init__(self, folder, private="head", run_name="ward", **more):
        self.fl_ctx = context(kit(folder))
        self.filters = {}
        for chain in (FilterChainType.TASK_DATA_CHAIN, FilterChainType.TASK_RESULT_CHAIN):
            self.filters[chain] = PrivateArrays(private, run_name, **more)
            self.filters[chain].set_prop(FilterContextKey.CHAIN_TYPE, chain)

    def through(self, chain, arrays, task, kind):
        self.fl_ctx.set_prop(FLContextKey.TASK_NAME, task)
        given = {
            name: np.full(2, value, np.float32) if isinstance(value, int) else value for name, value in arrays.items()
        }
        data = from_shareable(self.filters[chain].process(DXO(kind, given).to_shareable(), self.fl_ctx)).data
        return {name: array[0].item() for name, array in data.items()}

    def receives(self, task=TRAIN, kind=DataKind.WEIGHTS, **arrays):
        return self.through(FilterChainType.TASK_DATA_CHAIN, arrays, task, kind)

    def sends(self, task=TRAIN, kind=DataKind.WEIGHTS, **arrays):
        return self.through(FilterChainType.TASK_RESULT_CHAIN, arrays, task, kind)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_site_goes_on_with_the_arrays_that_it_trained_last(tmp_path):
    site = Site(tmp_path / "kit")
    assert site.receives(body=1, head=1) == {"body": 1, "head": 1}
    assert site.sends(body=2, head=5) == {"body": 2}
    assert site.receives(body=3, head=1) == {"body": 3, "head": 5}
    assert site.receives(body=3) == {"body": 3, "head": 5}  # a server that has lost what nobody sends
    assert site.sends(body=2, head=float("nan") * np.ones(2, np.float32)) == {"body": 2}
    assert site.receives(body=4, head=1) == {"body": 4, "head": 5}


def test_a_difference_is_added_to_what_was_put_in(tmp_path):
    site = Site(tmp_path / "kit")
    site.receives(body=1, head=4)
    assert site.sends(kind=DataKind.WEIGHT_DIFF, body=1, head=1) == {"body": 1}
    assert site.receives(body=1, head=4) == {"body": 1, "head": 5}


@pytest.mark.parametrize("task", [EVALUATE, SUBMIT])
def test_what_leaves_by_another_task_is_taken_out_and_not_kept(tmp_path, task):
    site = Site(tmp_path / "kit")
    site.receives(body=1, head=4)
    assert site.sends(task, body=1, head=9) == {"body": 1}
    assert site.receives(task, body=1, head=1)["head"] == 4


def test_tensors_stay_tensors(tmp_path):
    site = Site(tmp_path / "kit", private=["head"])
    site.receives(body=torch.ones(2), head=torch.ones(2))
    site.sends(body=torch.ones(2), head=7 * torch.ones(2))
    sent = DXO(DataKind.WEIGHTS, {"body": torch.ones(2)}).to_shareable()
    found = from_shareable(site.filters[FilterChainType.TASK_DATA_CHAIN].process(sent, site.fl_ctx)).data
    assert torch.equal(found["head"], 7 * torch.ones(2))


def test_a_job_begins_without_arrays_of_another_unless_it_resumes_that(tmp_path, state):
    first = Site(tmp_path / "first")
    first.receives(body=1, head=1)
    first.sends(body=1, head=5)
    assert Site(tmp_path / "resumed", run_name="later", resume_from="ward").receives(body=1, head=1)["head"] == 5
    assert Site(tmp_path / "again", resume_from="ward").receives(body=1, head=1)["head"] == 5
    assert Site(tmp_path / "fresh").receives(body=1, head=1)["head"] == 1
    assert (state / "ward" / "site-1" / "previous-private.safetensors").is_file()


def test_refusals(tmp_path):
    site = Site(tmp_path / "kit")
    with pytest.raises(ConfigError, match="private = 'head' matches none of body; name arrays"):
        site.receives(body=1)
    with pytest.raises(ConfigError, match="is not a regular expression"):
        PrivateArrays("(", "ward")
    site.receives(body=1, head=1)
    with pytest.raises(ConfigError, match=r"head has shape \(3,\), but this site keeps one of \(2,\)"):
        site.receives(body=1, head=np.ones(3))


def test_what_a_site_keeps_never_leaves_by_a_job_that_names_less(tmp_path):
    ward = Site(tmp_path / "one", private=["fc1", "fc2"], run_name="ward")
    ward.receives(body=1, fc1=1, fc2=1)
    ward.sends(body=1, fc1=7, fc2=8)
    for name in ("ward", "theft"):
        other = Site(tmp_path / name, private=["fc1"], run_name=name, resume_from="ward")
        with pytest.raises(ConfigError, match=r"has kept 'fc2' for itself, and private = .* would let it leave"):
            other.receives(body=1, fc1=0, fc2=0)
        with pytest.raises(ConfigError, match="has kept 'fc2' for itself"):
            other.sends(body=1, fc1=7, fc2=8)


def test_only_the_model_s_own_names_leave(tmp_path):
    site = Site(tmp_path / "kit", private=["head"], run_name="wrapped", travels=["body"])
    site.receives(body=1, head=1)
    assert site.sends(**{"body": 2, "module.head": 5, "_orig_mod.head": 5, "module.body": 2}) == {"body": 2}


def test_a_private_array_of_another_shape_or_in_bfloat16(tmp_path):
    site = Site(tmp_path / "kit", private="head", run_name="shapes")
    site.receives(body=1, head=1)
    site.sends(body=1, head=np.ones(3, np.float32))
    assert site.receives(body=1, head=0)["head"] == 1  # what was kept before stays
    site.sends(body=torch.ones(2).bfloat16(), head=torch.full((2,), 3.0).bfloat16())
    assert site.receives(body=1, head=0)["head"] == 3
