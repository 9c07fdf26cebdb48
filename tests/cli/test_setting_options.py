# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Every setting of a job is an option of the command line, with the recipe's name, default and meaning."""

import json
from dataclasses import asdict

import pytest

from cfl_flare.cli import main
from cfl_flare.cli.options import parser
from cfl_flare.cli.setting_options import given
from cfl_flare.core.settings import settings_of
from cfl_flare.data import Digits
from cfl_flare.engine.plan import CONCERNS, RunPlan
from cfl_flare.training.settings import TrainSettings
from tests.cli.test_export import MODEL, exported

ALL = {**settings_of(*CONCERNS.values()), **settings_of(TrainSettings)}
THEIR_OWN = {"num_rounds": 20, "min_clients": 2, "lr": 0.05}


def test_export_has_every_setting_with_its_default():
    options = vars(parser().parse_args(["export"]))
    assert ALL.keys() - options.keys() == {"indicator_samples"}  # the method says how many it needs
    for name in ALL.keys() & options.keys():
        assert options[name] == THEIR_OWN.get(name, ALL[name].default), name


def test_run_has_every_setting_that_a_simulation_has():
    missing = ALL.keys() - vars(parser().parse_args(["run"])).keys()
    of_job = {"min_clients", "name", "resume_from", "byoc", "indicator_samples"}
    assert missing == of_job | settings_of(CONCERNS["script"], CONCERNS["assign"]).keys()


def test_options_become_settings():
    words = "--rounds 9 --sample 0.5 --min-answers 3 --key-metric loss --key-metric-mode min --patience 4 --device cuda"
    arguments = parser().parse_args(["export", *words.split(), "--stop-cond", "loss < 1", "--lr-milestones", "3", "5"])
    settings = given(arguments, *CONCERNS.values())
    plan = RunPlan.of(method="fedavg", model={"class_path": "a.B"}, data=Digits(), **settings)
    server = {"num_rounds": 9, "sample": 0.5, "min_answers": 3, "key_metric": "loss", "key_metric_mode": "min"}
    assert {**server, "patience": 4, "stop_cond": "loss < 1"}.items() <= asdict(plan.server).items()
    assert plan.site.device == "cuda"
    assert TrainSettings(**given(arguments, TrainSettings)).lr_milestones == (3, 5)


def test_several_texts():
    words = ["--augment", "RandomHorizontalFlip", "RandomRotation:degrees=[-9,9]", "--measures", "auroc", "ece"]
    training = TrainSettings(**given(parser().parse_args(["export", *words]), TrainSettings))
    assert training.augment == ("RandomHorizontalFlip", "RandomRotation:degrees=[-9,9]")
    assert training.measures == ("auroc", "ece")


def test_how_often_sites_ask_the_server(tmp_path, capsys):
    exported(tmp_path, "--model", MODEL, "--task-request-interval", "3")
    config = json.loads((tmp_path / "clustered" / "app" / "config" / "config_fed_server.json").read_text())
    assert config["server"] == {"task_request_interval": 3.0}
    assert main(["run", "--loop", "--task-request-interval", "0"]) == 2
    assert "run: task_request_interval = 0.0 should be > 0" in capsys.readouterr().err


def test_a_job_with_a_training_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("")
    words = ["--model", MODEL, "--method", "ifca:k=2", "--train-script", "client.py", "--train-args", "--lr 1"]
    _, controller, runner = exported(tmp_path / "jobs", *words, "--assign-metric", "accuracy", "--assign-mode", "max")
    assert (runner["task_script_path"], runner["task_script_args"]) == ("cfl_launcher.py", "client.py --lr 1")
    assert (controller["judge"]["metric"], controller["judge"]["mode"]) == ("accuracy", "max")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--data digits", "data: belongs to the script"),
        ("--lr 0.1", "training: belongs to the"),
        ("--optimizer adam", "training: belongs to the"),
        ("--class-weights balanced", "training: belongs to the"),
        ("--device cuda", "device: belongs to the script"),
    ],
)
def test_what_a_training_script_decides_is_not_said_beside_it(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("")
    assert main(["export", "--model", MODEL, "--train-script", "client.py", *words.split()]) == 2
    assert says in capsys.readouterr().err


def test_what_is_said_reaches_the_job(tmp_path):
    words = ["--model", MODEL, "--task-timeout", "99", "--patience", "3", "--torch-threads", "2", "--site-sums"]
    _, controller, executor = exported(tmp_path, *words, "--method", "fedavg", "--server-memory-gc-rounds", "4")
    assert (controller["task_timeout"], controller["patience"], controller["memory_gc_rounds"]) == (99, 3, 4)
    assert (executor["torch_threads"], executor["site_sums"]) == (2, True)
    assert "memory_gc_rounds" not in executor or executor["memory_gc_rounds"] == 0


def test_optimizers_reach_the_job_with_the_run_s_rounds(tmp_path):
    words = "--optimizer adamw --lr-schedule cosine --lr-warmup 2 --rounds 9 --clip-grad 1 --class-weights balanced"
    server = "--server-optimizer adagrad --server-lr 0.3"
    _, controller, executor = exported(tmp_path, "--model", MODEL, *words.split(), *server.split())
    assert (controller["server_optimizer"], controller["server_lr"], controller["server_beta1"]) == (
        "adagrad",
        0.3,
        0.9,
    )
    wanted = {"optimizer": "adamw", "lr_rounds": 9, "lr_warmup": 2, "clip_grad": 1.0, "class_weights": "balanced"}
    assert {**wanted, "momentum": None}.items() <= executor["training"].items()
    assert controller["facts"]["training"] == executor["training"]
