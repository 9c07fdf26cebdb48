# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""On which device a site's executor trains, with GPUs that are only said to be there."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.fl_context import FLContext

from cfl_flare.flare import compat
from cfl_flare.flare import executor as module
from cfl_flare.flare.executor import ClusteredExecutor

DIGITS = {"class_path": "cfl_flare.data.sources.Digits", "args": {}}
MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
DATA = {"participants": 4, "partition": {"partition": "label_permutation", "groups": 2}}


@pytest.mark.parametrize("simulation, share", [(True, 0.5), (False, None)])
def test_a_site_takes_its_gpu_and_says_which(monkeypatch, simulation, share):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    limits, devices, said = [], [], []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: limits.append(given))
    for place in (module, compat):
        monkeypatch.setattr(place, "simulated", lambda fl_ctx: simulation)
    monkeypatch.setattr(module, "component_policy", lambda fl_ctx: None)
    monkeypatch.setattr(module, "limited_paths", nullcontext)

    def site(*given, **more) -> SimpleNamespace:
        devices.append(given[5])
        return SimpleNamespace(add=list)

    monkeypatch.setattr(module, "Site", site)
    monkeypatch.setattr(ClusteredExecutor, "log_info", lambda self, fl_ctx, text: said.append(text))
    executor = ClusteredExecutor({"method": "fedavg"}, MODEL, DIGITS, DATA, {}, run_name="run", device="cuda")
    context = FLContext()
    context.set_prop("__identity_name__", "site-4")
    executor._prepared({"index": 3, "sites": 4}, context)
    assert devices == ["cuda:1"]
    assert limits == ([] if share is None else [(share, torch.device("cuda:1"))])
    assert said == [f"site-4 computes on cuda:1 (a GPU{', at most 50% of its memory' if share else ''})"]
