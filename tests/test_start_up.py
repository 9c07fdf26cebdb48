# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What processes import: each site and server of a job pays for it when it starts."""

import subprocess
import sys

import pytest

SITE = """
import sys

import torch

torchs = set(sys.modules)
import cfl_flare.flare.executor
from cfl_flare.data import DataConfig, Digits
from tests.loop import run_loop
from cfl_flare.engine.server import ServerSettings
from cfl_flare.methods import FedAvg
from cfl_flare.training.settings import TrainSettings

model = {"class_path": "cfl_flare.models.Logistic", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
run_loop(
    method=FedAvg(),
    model=model,
    source=Digits(),
    data=DataConfig(2, {"partition": "iid"}),
    settings=ServerSettings(1),
    training=TrainSettings(),
)
print(*sorted(sys.modules.keys() - torchs))
"""


def imported_by(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_package_itself_imports_nothing_heavy():
    names = imported_by("import sys, cfl_flare; print(*sys.modules)")
    assert "cfl_flare" in names
    assert not names & {"numpy", "torch", "sklearn", "nvflare", "vl_convert"}


def test_a_site_imports_only_what_it_trains_with():
    names = imported_by(SITE)
    assert "cfl_flare.flare.executor" in names
    heavy = {"sklearn", "scipy", "pandas", "vl_convert", "torchvision", "rich", "nvflare.recipe"}
    assert not names & {*heavy, "torch._dynamo"}  # torch's compiler


MEASURES = """
import sys

import torch

torchs = set(sys.modules)
from cfl_flare.training.tasks import TASKS

for name, labels in (
    ("classification", torch.tensor([0, 1, 0, 1])),
    ("binary", torch.tensor([0, 1, 0, 1])),
    ("multilabel", torch.tensor([[0], [1], [0], [1]])),
    ("regression", torch.tensor([0.0, 1.0, 0.5, 2.0])),
):
    outputs = torch.arange(8.0).view(4, 2) if name == "classification" else torch.arange(4.0)[:, None]
    assert TASKS[name]().measured(outputs, labels, TASKS[name].measures)
assert TASKS["segmentation"]().measured(torch.ones(1, 2, 2, 2), torch.ones(1, 2, 2).long(), ("iou",))
print(*sorted(sys.modules.keys() - torchs))
"""


def test_measures_need_torch_alone():
    names = imported_by(MEASURES)
    assert "cfl_flare.training.measures" in names
    assert not names & {"torchmetrics", "sklearn", "scipy", "pandas", "torchvision"}


def test_a_server_imports_nothing_of_what_makes_jobs_and_figures():
    names = imported_by("import sys, cfl_flare.flare.controller; print(*sys.modules)")
    assert "cfl_flare.flare.aggregator" in names
    assert not names & {"sklearn", "scipy", "pandas", "vl_convert", "torchvision", "rich", "nvflare.recipe"}


PARSES = """
import contextlib, io, sys
from cfl_flare.cli import main, parser

with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    {}
print(*sys.modules)
"""


@pytest.mark.parametrize("word", ["--help", "--version", "fly"])
def test_the_command_line_imports_nothing_heavy_before_a_command_is_chosen(word):
    names = imported_by(PARSES.format(f"main([{word!r}])"))
    assert "cfl_flare.cli.options" in names
    assert not names & {"torch", "nvflare", "sklearn", "scipy", "pandas", "vl_convert", "torchvision", "rich"}


@pytest.mark.parametrize("words", [["run"], ["show", "x"], ["watch", "x"], ["predict", "x", "--data=x", "--out=x"]])
def test_a_command_imports_neither_flare_nor_figures_before_they_are_needed(words):
    names = imported_by(PARSES.format(f"parser().parse_args({words!r})"))
    assert "cfl_flare.cli.options" in names and "torch" in names
    assert not names & {"nvflare", "sklearn", "pandas", "vl_convert", "torchvision"}
