# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Every setting of a job is an option, with the recipe's name, default and meaning, and a line of a settings file."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from cfl_flare.cli import main, parser
from cfl_flare.cli.options import CONFIG, given, read_config, with_config, write_config
from cfl_flare.core.settings import settings_of
from cfl_flare.data import Digits
from cfl_flare.engine.plan import CONCERNS, RunPlan
from cfl_flare.results.run_dir import load_run
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


# ---- Help ----

CONFIGURABLE = ("run", "study", "export")
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"


@pytest.mark.parametrize("name", CONFIGURABLE)
def test_the_first_help_fits_one_screen_and_the_full_one_has_every_option(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    first = capsys.readouterr().out.splitlines()
    assert len(first) <= 50 and max(map(len, first)) <= 80
    options = {word for line in first for word in re.findall(r"^  (?:-h, )?(--[a-z-]+)", line)}
    assert 18 <= len(options) <= 25
    assert {"--help-all", "--config", "--method", "--data", "--rounds", "--lr", "--participants", "--out"} <= options
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help-all"])
    printed = capsys.readouterr().out
    command = parser().commands()[name]
    assert len(command._actions) > 70
    assert not [a.option_strings for a in command._actions if f"  {a.option_strings[0]}" not in printed]
    assert not [word for word in ("MISSING", "None)", "()") if word in printed]


def test_every_command_is_in_the_reference_page():
    marks = re.findall(r"^<!-- help: (.+) -->$", REFERENCE.read_text(), re.MULTILINE)
    assert sorted(marks) == sorted(parser().commands())


# ---- Settings files ----


@pytest.fixture
def config(tmp_path) -> Callable[[str], str]:
    """Writes a settings file."""

    def written(text: str) -> str:
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return str(path)

    return written


def result(folder: Path) -> list[dict]:
    """What a run measured in each round, without how long it took."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "seconds" not in key} for line in lines]


def test_the_file_that_a_run_leaves_repeats_its_numbers_and_options_win_over_it(tmp_path):
    words = "--rounds 2 --participants 6 --partition dirichlet:alpha=0.5 --lr 0.1 --seed 3 --clip-norm none"
    methods = "--method fedavg --method wecfl:k=2 --penalty proximal:mu=0.2 --penalty contrastive:scope=head"
    first, again, longer = (tmp_path / name for name in ("first", "again", "longer"))
    assert main(["run", "--loop", *words.split(), *methods.split(), "--out", str(first)]) == 0
    file = first / CONFIG
    assert 'method = ["fedavg", "wecfl:k=2 + proximal:mu=0.2 + contrastive:scope=head"]' in file.read_text()
    assert main(["run", "--config", str(file), "--out", str(again)]) == 0
    names = sorted(path.parent.name for path in first.glob("*/summary.json"))
    assert len(names) == 2 and names == sorted(path.parent.name for path in again.glob("*/summary.json"))
    for name in names:
        assert result(first / name) == result(again / name)
        assert load_run(again / name).summary["seed"] == 3
    assert file.read_text() == (again / CONFIG).read_text()
    assert main(["run", "--config", str(file), "--rounds", "3", "--method", "local", "--out", str(longer)]) == 0
    assert load_run(longer / "local").summary["rounds"] == 3 and len([*longer.glob("*/summary.json")]) == 1


@pytest.mark.parametrize("name", CONFIGURABLE)
def test_every_option_of_a_command_is_read_again_as_it_was(name, tmp_path):
    words = [name, "--measures", "auroc", "ece", "--no-keep-served", "--no-merge-small-clusters", "--augment", "é\x7f"]
    words += [
        "--key-metric",
        "",
        "--clip-norm",
        "none",
        "--method",
        "ifca:k=2",
        "--penalty",
        "proximal",
        "--sample",
        "2",
    ]
    words += [*(["--private", "a|b"] if name != "study" else ["--job", "jobs", "--min-clients", "4"])]
    arguments = parser().parse_args(words)
    write_config(arguments, tmp_path / CONFIG)
    again = with_config(parser(), [name, "--config", str(tmp_path / CONFIG), *(["--job", "jobs"] * (name == "study"))])
    first, second = (
        {k: list(v) if v == () else v for k, v in vars(values).items() if k not in ("config", "parser")}
        for values in (arguments, again)
    )
    assert first == second
    assert (again.clip_norm, again.keep_served, again.merge_small_clusters) == (None, False, False)


def test_a_file_may_have_the_recipe_s_names_and_single_values(config):
    path = config('num_rounds = 3\nmethod = "ifca:k=2"\nmeasures = "ece"\nbatch-size = 4\nloop = true\nsample = 3\n')
    arguments = with_config(parser(), ["run", "--config", path])
    assert (arguments.num_rounds, arguments.method, arguments.batch_size) == (3, [("ifca:k=2", [])], 4)
    assert arguments.measures == ["ece"] and arguments.loop is True and isinstance(arguments.sample, int)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("round = 3", "unknown setting 'round' = 3; did you mean rounds"),
        ("colour = 'red'", "unknown setting 'colour' = 'red'; 'cfl-flare run --help-all' shows all"),
        ("config = 'a.toml'", "unknown setting 'config'"),
        ("penalty = ['proximal']", "a method has its penalties: method = ['ifca:k=3 + proximal']"),
        ("[training]\nlr = 0.1", "unknown setting 'training' = {'lr': 0.1}"),
        ("rounds = 3\nnum_rounds = 4", "num_rounds = 4 is set twice; leave one out"),
        ("rounds = 2.5", "rounds = 2.5 should be a whole number"),
        ("rounds = true", "rounds = True should be a whole number"),
        ("rounds = [1, 2]", "rounds = [1, 2] should be a whole number"),
        ("lr = 'fast'", "lr = 'fast' should be a number"),
        ("lr = -1", "training: lr = -1.0 should be > 0"),
        ("lr = 1" + "0" * 400, "training: lr = inf should be > 0"),
        ("clip_norm = 'never'", "clip_norm = 'never' should be a number"),
        ("optimizer = 'lion'", "training: optimizer = 'lion' should be one of 'sgd', 'adam', 'adamw'"),
        ("loop = 1", "loop = 1 should be true or false"),
        ("data = 3", "data = 3 should be text"),
        ("method = []", "method = [] should be a method, or a list of methods"),
        ("method = [3]", "method = [3] should be text, or a list of such"),
        ("method = ['nope:k=3']", "method 'nope' is unknown"),
        ("lr_milestones = ['a']", "lr_milestones = ['a'] should be a whole number, or a list of such"),
        ("rounds = 3 4", "write a line like rounds = 20, and text in quotes"),
        ("rounds = 3\nrounds = 4", "write a line like rounds = 20, and text in quotes"),
        ("rounds = " + "9" * 5000, "write a line like rounds = 20, and text in quotes"),
        ("a = " + "[" * 100_000, "too large for this machine"),
    ],
)
def test_a_file_is_refused_in_one_line_before_anything_is_written(config, text, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = config(text)
    assert main(["run", "--config", path]) == 2
    line = capsys.readouterr().err
    assert why in line and line.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == [Path(path).name]


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path, capsys):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for name in ("none.toml", "binary.toml"):
        assert main(["study", "--config", str(tmp_path / name)]) == 2
        assert name in capsys.readouterr().err


def test_a_penalty_of_the_command_line_needs_its_method_there(config, capsys):
    assert main(["run", "--config", config("method = 'ifca:k=2'"), "--penalty", "proximal"]) == 2
    assert "--penalty proximal: there is no --method before it" in capsys.readouterr().err


def test_an_exported_job_can_be_written_again(tmp_path):
    words = ["--model", MODEL, "--method", "ifca:k=4", "--penalty", "proximal:mu=0.1", "--name", "ward"]
    first = exported(tmp_path / "first", *words, "--local-epochs", "2", "--task-timeout", "60")
    again = exported(tmp_path / "again", "--config", str(tmp_path / "first" / "ward.toml"))
    assert first == again
    assert read_config(str(tmp_path / "again" / "ward.toml"), parser().commands()["export"])["task_timeout"] == 60
