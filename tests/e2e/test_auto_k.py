# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The number of clusters found through FLARE's simulator: the loop's run."""

import pytest

from cfl_flare.data import DataConfig
from cfl_flare.results.run_dir import load_run
from tests.e2e.both import both_ways, check_same_models

pytestmark = pytest.mark.slow
METHOD = {"method": "ifca", "k": "auto", "warmup": 2}
PARTITION = {"partition": "label_permutation", "groups": 3}


def test_a_job_finds_what_the_loop_finds(tmp_path):
    training, server = {"lr": 0.1, "local_steps": 5}, {"num_rounds": 4, "sample": 8}
    loop, through = both_ways(tmp_path, METHOD, DataConfig(12, PARTITION), training, server)
    one, other = load_run(loop), load_run(through)
    assert one.name == other.name == "ifca-auto (K=3 found)"
    assert one.rounds[1]["number_of_clusters"] == other.rounds[1]["number_of_clusters"]
    assert [len(r["trained"]) for r in other.rounds] == [8, 12, 8, 8]
    assert one.assignments == other.assignments
    check_same_models(loop, through)
