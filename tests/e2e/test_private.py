# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Private layers through FLARE's simulator: never at the server, kept at the sites, and the loop's numbers."""

import csv

import numpy as np
import pytest

from cfl_flare.core.arrays import load_arrays
from cfl_flare.results.run_dir import load_run
from tests.cli.test_predict import check_reported
from tests.e2e.both import both_ways, check_same_models
from tests.play import DATA

pytestmark = pytest.mark.slow
METHOD = {"method": "ifca-cam", "k": 2, "warmup": 1}


def cross(folder):
    """The losses of all models at all participants."""
    with (folder / "cross_site.csv").open() as f:
        return {(line["participant"], line["model"]): float(line["loss"]) for line in csv.DictReader(f)}


def test_a_job_with_private_layers_is_the_loop_s_run_and_keeps_them_at_the_sites(tmp_path):
    server = {"num_rounds": 3, "cross_site_evaluation": True}
    loop, through = both_ways(tmp_path, METHOD, DATA, {"lr": 0.1}, server, private="bias")
    check_same_models(loop, through, atol=1e-6)
    one, other = load_run(loop), load_run(through)
    assert one.assignments == other.assignments
    assert other.summary["private"] == "bias"
    crossed = [
        sorted((f / "cross_site.csv").read_text().replace("local", "site-1").splitlines())
        for f in (one.folder, other.folder)
    ]
    assert [len(lines) for lines in crossed] == [13, 13]

    stores = {path.name: path for path in (tmp_path / "flare" / "cfl_state" / "ward").iterdir() if path.is_dir()}
    servers = {
        key for path in stores.pop("simulator_server").glob("round-*.safetensors") for key in load_arrays(path)[0]
    }
    assert servers
    assert not [key for key in servers if key.endswith("bias")]
    assert stores.keys() == {"site-1", "site-2"}
    check_reported(through, tmp_path / "flare" / "cfl_state" / "ward")
    assert not list(through.glob("served"))  # at the sites alone
    initial = load_arrays(next((through / "clusters").iterdir()))[0]
    for folder in stores.values():
        kept = load_arrays(sorted(folder.glob("round-*.safetensors"))[-1])[0]
        mine = {key for key in kept if ":private|" in key}
        assert {key.partition("#")[2] for key in mine} >= {":private|head.bias", "shared.:private|head.bias"}
        served = list((folder / "served").glob("*.safetensors"))
        assert len(served) == 3
        for path in served:
            own = load_arrays(path)[0]
            assert not np.array_equal(own["parts.1.head.bias"], initial["parts.1.head.bias"])
            np.testing.assert_array_equal(own["parts.1.head.bias"], kept[f"{path.stem}#:private|head.bias"])
            np.testing.assert_array_equal(own["parts.0.head.bias"], kept[f"{path.stem}#shared.:private|head.bias"])
