# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A job runs only with the software that it was made by, with one set of settings, on a device that is there."""

import logging
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.fl_context import FLContext

from cfl_flare import __version__
from cfl_flare.core.config import marked
from cfl_flare.core.errors import ConfigError
from cfl_flare.flare import compat, policy
from cfl_flare.flare import executor as module
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.policy import check_same_settings, check_software, unused_copy
from tests.flare.kits import answer, check_in, context, kit

JOB = {"method": {"method": "wecfl", "k": 3, "penalties": [{"penalty": "proximal", "mu": 0.1}]}, "model": {"args": {}}}
JOB |= {"data": {"seed": 0}, "training": {"lr": 0.1, "lr_milestones": [3]}, "seed": 0, "run_name": "ward"}


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(policy, "SOFTWARE", {"cfl_flare": "0.2.1", "nvflare": "2.9"})


@pytest.mark.parametrize("theirs", [{"cfl_flare": "0.2.7", "nvflare": "2.9.4"}, {"cfl_flare": "0.2"}, {}])
def test_the_first_two_numbers_decide(theirs, installed):
    check_software(theirs, "the job was made by", "site-1")


@pytest.mark.parametrize(
    "theirs, says",
    [
        ({"cfl_flare": "0.3.1"}, r"^the job was made by cfl_flare 0\.3\.1, but site-1 runs 0\.2\.1: .*install one"),
        ({"cfl_flare": "1.2.1"}, r"^the job was made by cfl_flare 1\.2\.1, but site-1 runs 0\.2\.1: "),
        ({"cfl_flare": "0.20.1"}, r"cfl_flare 0\.20\.1, but site-1 runs 0\.2\.1"),
        ({"cfl_flare": "0.1.0"}, r"cfl_flare 0\.1\.0, but site-1 runs 0\.2\.1"),
        ({"nvflare": "2.10"}, r"^the job was made by nvflare 2\.10, but site-1 runs 2\.9: "),
    ],
)
def test_other_software_is_refused(theirs, says, installed):
    with pytest.raises(ConfigError, match=says):
        check_software(theirs, "the job was made by", "site-1")


def test_a_site_and_a_server_of_two_versions_do_not_go_together(installed):
    with pytest.raises(ConfigError, match=r"^the server runs cfl_flare 0\.1\.0, but site-1 runs 0\.2\.1"):
        check_software({"cfl_flare": "0.1.0"}, "the server runs", "site-1")


def test_what_a_config_file_does_to_settings_does_not_matter():
    own = {**JOB, "training": {"lr": 0.1, "lr_milestones": [3], "local_epochs": None}, "device": "cpu"}
    check_same_settings(marked(JOB), marked(own), "site-1")
    check_same_settings({}, own, "site-1")


@pytest.mark.parametrize(
    "change, says",
    [
        (
            {"method": {**JOB["method"], "k": 4}},
            r"^job: method\.k = 3 at the server, 4 at site-1; set it to the same",
        ),
        (
            {"method": {**JOB["method"], "penalties": []}},
            r"method\.penalties = \[.*proximal.*\] at the server, \[\]",
        ),
        ({"training": {"lr": 0.1, "lr_milestones": [3], "momentum": 0.5}}, r"training\.momentum = None at .*, 0\.5 at"),
        ({"training": {"lr": 0.1}}, r"training\.lr_milestones = \[3\] at the server, None at site-1"),
        ({"run_name": "other"}, r"run_name = 'ward' at the server, 'other' at site-1"),
        ({"seed": 1}, r"^job: seed = 0 at the server, 1 at site-1"),
    ],
)
def test_two_sets_of_settings_are_refused(change, says):
    with pytest.raises(ConfigError, match=says):
        check_same_settings(JOB, {**JOB, **change}, "site-1")


@pytest.fixture
def folder(tmp_path):
    return kit(tmp_path / "kit")


def refusal(folder: Path, caplog, job: dict, **settings) -> str:
    """The code that a site answers to the server's check, and what its own log says."""
    caplog.clear()
    caplog.set_level(logging.INFO)
    code = answer(ClusteredExecutor(**{**JOB, "source": {}, **settings}), check_in(job=job), folder)["error"]
    return f"{code}: {caplog.records[-1].getMessage()}"


@pytest.mark.parametrize(
    "job, settings, says",
    [
        (
            JOB,
            {"made_by": {"cfl_flare": "9.9.9"}},
            f"^software: .*by cfl_flare 9.9.9, but site-1 runs {__version__}",
        ),
        ({**JOB, "seed": 5}, {}, "^settings: .*seed = 5 at the server, 0 at site-1"),
        (JOB, {}, "^config: .*data: class_path = None"),  # that far it agrees
        (JOB, {"torch_threads": 0}, "^config: .*torch_threads = 0 should be in .1, 1024."),
        (
            JOB,
            {"source": {"class_path": "os.path.Secret"}},
            "^class: .*policy does not allow 'os.path.Secret'",
        ),
        (JOB, {"source": {"class_path": "cfl_flare.models.MLP"}}, "^config: .*is not a cfl_flare.data"),
        (
            JOB,
            {"colour": "red"},
            r"^config: .*site-1 does not know .* settings \['colour'\]; leave them out",
        ),
        (JOB, {"made_by": {"cfl_flare": "9.9.9"}, "colour": "red"}, "^software: .*made by cfl_flare 9.9.9"),
    ],
)
def test_a_site_answers_why_it_refuses_by_a_code_and_its_own_log_says_it_in_full(folder, caplog, job, settings, says):
    assert re.search(says, refusal(folder, caplog, job, **settings), flags=re.DOTALL)


def test_a_copy_that_is_carried_in_vain_is_named(tmp_path):
    fl_ctx = context(kit(tmp_path))
    assert unused_copy(fl_ctx) is None
    (Path(fl_ctx.get_engine().get_workspace().get_app_custom_dir("job")) / "cfl_flare").mkdir(parents=True)
    said = unused_copy(fl_ctx)
    assert said and f"installed here runs: {__version__} in " in said


@pytest.mark.parametrize("simulation", [True, False])
def test_owners_are_named_in_a_simulation_alone(simulation, monkeypatch):
    """At real sites their names would leave, and a job that guesses them would learn whether it is right."""
    monkeypatch.setattr(compat, "simulated", lambda fl_ctx: simulation)
    owners = ["Ward A", "Ward B"]
    found = compat.data_config({"participants": 2, "partition": "natural", "owners": owners}, None)
    assert found.names == (owners if simulation else ["p0", "p1"])


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
