# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Options, and what is made from them: a settings file, a job folder, the two job templates that are tracked."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from cfl_flare.cli import export as templates
from cfl_flare.cli import main, parser
from cfl_flare.cli.options import CONFIG, given, read_config, with_config, write_config
from cfl_flare.cli.specs import build_named, shape_and_outputs
from cfl_flare.core.config import unmarked
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.settings import settings_of
from cfl_flare.data import Digits, Npz
from cfl_flare.engine.plan import CONCERNS, RunPlan
from cfl_flare.flare.policy import SHARED, check_same_settings
from cfl_flare.methods import build_method
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings
from tests.helpers.files import write_npz

# ---- Options ----


ALL = {**settings_of(*CONCERNS.values()), **settings_of(TrainSettings)}
THEIR_OWN = {"num_rounds": 20, "min_clients": 2, "lr": 0.05}


def test_export_has_every_setting_with_its_default():
    options = vars(parser().parse_args(["export"]))
    assert ALL.keys() - options.keys() == {"indicator_samples"}  # the method says how many it needs
    for name in ALL.keys() & options.keys():
        assert options[name] == THEIR_OWN.get(name, ALL[name].default), name


def test_run_has_every_setting_that_a_simulation_has():
    missing = ALL.keys() - vars(parser().parse_args(["run"])).keys()
    of_job = {"min_clients", "site_names", "name", "resume_from", "byoc", "indicator_samples"}
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
    export_words(tmp_path, "--model", MODEL, "--task-request-interval", "3")
    config = json.loads((tmp_path / "clustered" / "app" / "config" / "config_fed_server.json").read_text())
    assert config["server"] == {"task_request_interval": 3.0}
    assert main(["run", "--loop", "--task-request-interval", "0"]) == 2
    assert "run: task_request_interval = 0.0 should be > 0" in capsys.readouterr().err


def test_a_job_with_a_training_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("")
    words = ["--model", MODEL, "--method", "ifca:k=2", "--train-script", "client.py", "--train-args", "--lr 1"]
    _, controller, runner = export_words(
        tmp_path / "jobs", *words, "--assign-metric", "accuracy", "--assign-mode", "max"
    )
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
    _, controller, executor = export_words(tmp_path, *words, "--method", "fedavg", "--server-memory-gc-rounds", "4")
    assert (controller["task_timeout"], controller["patience"], controller["memory_gc_rounds"]) == (99, 3, 4)
    assert (executor["torch_threads"], executor["site_sums"]) == (2, True)
    assert "memory_gc_rounds" not in executor or executor["memory_gc_rounds"] == 0


def test_optimizers_reach_the_job_with_the_run_s_rounds(tmp_path):
    words = "--optimizer adamw --lr-schedule cosine --lr-warmup 2 --rounds 9 --clip-grad 1 --class-weights balanced"
    server = "--server-optimizer adagrad --server-lr 0.3"
    _, controller, executor = export_words(tmp_path, "--model", MODEL, *words.split(), *server.split())
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
    assert "<!-- help: all -->\n<!-- end -->" in REFERENCE.read_text()


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
    words = "--rounds 2 --participants 6 --partition dirichlet:alpha=0.5 --lr 0.1 --seed 3 --clip-norm 0"
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
        "0",
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
        {k: list(v) if v == () else v for k, v in vars(values).items() if k not in ("config", "parser", "execute")}
        for values in (arguments, again)
    )
    assert first == second
    assert (again.clip_norm, again.keep_served, again.merge_small_clusters) == (0, False, False)


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
    first = export_words(tmp_path / "first", *words, "--local-epochs", "2", "--task-timeout", "60")
    again = export_words(tmp_path / "again", "--config", str(tmp_path / "first" / "ward.toml"))
    assert first == again
    assert read_config(str(tmp_path / "again" / "ward.toml"), parser().commands()["export"])["task_timeout"] == 60


# ---- ``export`` ----


MODEL = "mlp:input_shape=[1,8,8],num_classes=10"


def export_words(folder: Path, *words: str) -> tuple[dict, dict, dict]:
    """meta, the controller's arguments, the executor's."""
    assert main(["export", "--out", str(folder), *words]) == 0
    job = next(path for path in folder.iterdir() if (path / "meta.json").is_file())
    meta, server, client = (
        json.loads((job / name).read_text())
        for name in ("meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json")
    )
    return meta, server["workflows"][0]["args"], client["executors"][0]["executor"]["args"]


def test_a_job_for_real_sites(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--name", "ward", "--min-clients", "3", "--rounds", "7", "--model", MODEL, "--sample", "0.5"]
    words += ["--method", "ifca:k=4", "--penalty", "proximal:mu=0.1", "--lr", "0.2", "--local-epochs", "2"]
    meta, controller, executor = export_words(tmp_path / "jobs", *words)
    assert (meta["name"], meta["min_clients"]) == ("ward", 3)
    assert (controller["num_rounds"], controller["sample"]) == (7, 0.5)
    assert executor["method"]["k"] == 4
    assert executor["method"]["penalties"][0]["mu"] == 0.1
    assert (executor["training"]["lr"], executor["training"]["local_epochs"]) == (0.2, 2)
    assert executor["model"]["args"]["input_shape"] == [1, 8, 8]
    assert executor["source"]["class_path"].endswith(".SiteData")
    assert "path" not in executor["source"]["args"] or executor["source"]["args"]["path"] is None
    assert executor["data"]["participants"] is executor["data"]["partition"] is None
    assert executor["run_name"] == "ward"
    assert executor["made_by"] == controller["made_by"]
    assert "source" not in controller["facts"]
    assert not (tmp_path / "jobs" / "ward" / "app" / "custom").exists()
    assert str(tmp_path / "jobs" / "ward") in capsys.readouterr().out


def test_a_job_can_go_on_from_a_run(tmp_path):
    export_words(tmp_path, "--name", "ward", "--model", MODEL, "--resume-from", "earlier")
    config = json.loads((tmp_path / "ward" / "app" / "config" / "config_fed_server.json").read_text())
    (persistor,) = (c for c in config["components"] if c["id"] == "persistor")
    assert persistor["args"] == {"run_name": "ward", "resume_from": "earlier"}


def test_shape_and_outputs_come_from_data_that_is_here(tmp_path):
    x, y = np.zeros((20, 20, 24, 3), np.uint8), np.arange(20) % 7
    write_npz(tmp_path / "rgb.npz", x, y)
    executor = export_words(tmp_path / "a", "--data", str(tmp_path / "rgb.npz"))[2]
    assert executor["model"]["class_path"] == "cfl_flare.models.CifarCNN"
    assert executor["model"]["args"] == {"input_shape": [3, 20, 24], "num_classes": 7, "config_type": "dict"}
    executor = export_words(tmp_path / "b", "--data", str(tmp_path / "rgb.npz"), "--model", "mlp:num_classes=9")[2]
    assert executor["model"]["args"]["num_classes"] == 9


@pytest.mark.parametrize(
    ("task", "y", "outputs"),
    [
        ("classification", np.arange(20) % 7, 7),
        ("binary", np.arange(20) % 2, 1),
        ("multilabel", np.eye(20, 14, dtype=np.uint8), 14),
        ("regression", np.arange(20) / 2, 1),
        ("regression", np.arange(20), 1),
        ("survival", np.ones((20, 2)), 1),
        ("segmentation", np.full((20, 8, 8), 2, np.uint8), 3),
    ],
)
def test_a_model_has_the_outputs_that_the_task_needs(tmp_path, task, y, outputs):
    x = np.zeros((20, 8, 8), np.uint8)
    write_npz(tmp_path / "a.npz", x, y)
    found = shape_and_outputs(Npz(str(tmp_path / "a.npz")), "a.npz", TrainSettings(task=task))
    assert found == ((1, 8, 8), outputs, task == "segmentation")


def test_a_simulated_job_says_how_its_data_is_dealt_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 4
    write_npz(Path("pool.npz"), x, y)
    words = ["--data", "pool.npz", "--partition", "dirichlet:alpha=0.3", "--participants", "6", "--method", "fedavg"]
    _, controller, executor = export_words(tmp_path / "jobs", *words)
    assert executor["data"]["participants"] == 6
    assert executor["data"]["partition"] == {"partition": "dirichlet", "alpha": 0.3, "config_type": "dict"}
    assert executor["source"]["args"]["path"] == str(tmp_path / "pool.npz")  # here, as for cfl-flare run
    assert controller["facts"]["source"] == executor["source"]


def test_a_job_can_carry_the_code(tmp_path):
    export_words(tmp_path, "--model", MODEL, "--byoc")
    assert (tmp_path / "clustered" / "app" / "custom" / "cfl_flare" / "flare" / "executor.py").is_file()


@pytest.mark.parametrize(
    "words, says",
    [
        ("", r"input_shape and num_classes are not given, .*CFL_DATA.*; give --model mlp:input_shape="),
        (
            "--model fashion-cnn:num_classes=4",
            r"are not given.*; give --model fashion-cnn:input_shape=",
        ),
        ("--data digits --method fedavg --method ifca:k=2", r"--method is given 2 times; a job has one"),
        ("--data digits --participants 8", r"participants = 8 and partition = None belong together"),
        ("--data digits --partition iid", r"participants = None and partition = .*belong together"),
        ("--data digits --name a/b", r"--name = 'a/b' should be letters"),
        ("--data digits --min-clients 0", r"min_clients = 0 should be >= 1"),
        ("--data digits --method fedds:k=2", r"no file with them; name one .*indicator_file=samples\.npz"),
        (f"--model {MODEL} --data my.Data", r"data 'my\.Data' is unknown; write table:path=my\.Data"),
        (f"--model {MODEL},depth=3", r"model MLP: unknown setting 'depth'"),
        (f"--model {MODEL} --name taken", r"taken' is not an empty folder; name a new one"),
    ],
)
def test_export_refuses(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CFL_DATA_ROOT", raising=False)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "meta.json").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", "--out", ".", *words.split()]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1

    assert re.search(says, output.err), output.err
    assert sorted(tmp_path.rglob("*")) == before


# Jobs of tables, whose columns the sites agreed on


@pytest.fixture
def agreed(tmp_path):
    """The file of columns: three features, two classes."""
    file = tmp_path / "columns.json"
    columns = [{"column": "age"}, {"column": "ward", "kind": "category", "categories": ["a", "b"]}]
    file.write_text(json.dumps({"columns": columns, "label": "dx", "classes": ["ill", "well", "unsure"]}))
    return file


def export_agreed_job(tmp_path, agreed, *words):
    name = f"job{len(list(tmp_path.glob('jobs/*')))}"
    data = ["--data", f"site:columns={agreed}", "--name", name, "--out", str(tmp_path / "jobs")]
    return main(["export", *data, *words]), tmp_path / "jobs" / name


def test_shape_and_classes_are_those_of_the_columns(tmp_path, agreed, capsys):
    status, folder = export_agreed_job(tmp_path, agreed, "--model", "mlp:hidden=[]")
    assert status == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"nvflare job submit -j {folder} --startup-kit <your admin kit>" in said
    (executor,) = json.loads((folder / "app/config/config_fed_client.json").read_text())["executors"]
    model = executor["executor"]["args"]["model"]["args"]
    assert (model["input_shape"], model["num_classes"]) == ([3], 3)
    content = {**json.loads(agreed.read_text()), "positive": 0}
    agreed.write_text(json.dumps({**content, "classes": []}))
    assert export_agreed_job(tmp_path, agreed, "--task", "binary")[0] == 0
    agreed.write_text(json.dumps({**content, "classes": [], "positive": None}))
    assert export_agreed_job(tmp_path, agreed)[0] == 2
    assert "the columns of --data name no classes; name its classes there, or give" in capsys.readouterr().err
    assert export_agreed_job(tmp_path, agreed, "--model", "mlp:num_classes=2")[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--model", "mlp:input_shape=[15],num_classes=3"],
            "have 3 features, which model MLP does not take .* to \\[3\\]",
        ),
        (["--model", "mlp:num_classes=2"], "label 2 does not fit the model's output of shape \\(1, 2\\)"),
        (["--task", "binary"], "the columns that sites agreed on: .*binary"),
        (["--sites", "a,a"], "--sites = 'a,a' should be different names"),
        (["--sites", "a,b"], "a model needs 3 sites \\(min_sites_per_cluster\\)"),
        (["--sites", "a"], "per-site config"),
    ],
)
def test_what_every_site_would_refuse_is_refused_at_export(tmp_path, agreed, capsys, words, says):
    status, folder = export_agreed_job(tmp_path, agreed, *words)
    assert status == 2 and not folder.exists()
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(capsys.readouterr().err)


def test_sites_that_take_part_are_named_in_the_job(tmp_path, agreed):
    status, folder = export_agreed_job(tmp_path, agreed, "--sites", "ward-1, ward-2,ward-3", "--method", "fedavg")
    assert status == 0
    deployed = json.loads((folder / "meta.json").read_text())["deploy_map"]
    assert sorted(site for sites in deployed.values() for site in sites) == ["server", "ward-1", "ward-2", "ward-3"]
    trusting = ["--min-sites-per-cluster", "1", "--min-samples-per-cluster", "1"]
    assert export_agreed_job(tmp_path, agreed, "--sites", "a,b", "--method", "fedavg", *trusting)[0] == 0


# ---- Templates ----


TRACKED = Path(__file__).parents[2] / "job_templates"
NAMES = list(templates.TEMPLATES)


@pytest.fixture(scope="module")
def templates_folder(tmp_path_factory):
    """What the command writes."""
    out = tmp_path_factory.mktemp("made") / "templates"
    assert main(["templates", str(out)]) == 0
    return out


def test_templates_are_current(templates_folder):
    written = {
        str(path.relative_to(templates_folder)): path.read_bytes()
        for path in templates_folder.rglob("*")
        if path.is_file()
    }
    there = {str(path.relative_to(TRACKED)): path.read_bytes() for path in TRACKED.rglob("*") if path.is_file()}
    assert {name.split("/")[0] for name in there} == {"cfl_wecfl_pt"} < set(NAMES)
    files = ("info.conf", "info.md", "meta.conf", templates.SERVER, templates.CLIENT)
    assert written.keys() == {f"{name}/{file}" for name in NAMES for file in files} > there.keys()
    stale = [name for name, content in there.items() if content != written[name]]
    assert not stale, "run cfl-flare templates, and copy them"


def template_config(folder: Path, name: str, side: str) -> dict:
    return json.loads((folder / name / f"config_fed_{side}.conf").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_the_two_files_of_a_template_agree(templates_folder, name):
    controller, aggregator, persistor = (
        c["args"] for c in templates.components(template_config(templates_folder, name, "server"))
    )
    (executor,) = (c["args"] for c in templates.components(template_config(templates_folder, name, "client")))
    server = {**controller, **controller["facts"], **aggregator, **persistor}
    assert set(SHARED) <= server.keys() & executor.keys()
    check_same_settings(server, executor, "site-1")
    assert build_method(unmarked(executor["method"]))
    assert (
        template_config(templates_folder, name, "server")["components"][2]["id"] == "aggregator"
    )  # the long names of info.md
    assert (
        template_config(templates_folder, name, "server")["model_class"]
        == template_config(templates_folder, name, "client")["model_class"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_key_means_one_thing(templates_folder, name):
    """``key=value`` sets all keys of that name in a file: they must be of one kind."""
    for side in ("server", "client"):
        seen: dict = {}
        for key, value in templates.leaves(template_config(templates_folder, name, side)):
            assert seen.setdefault(key, value) == value, key


@pytest.mark.parametrize("name", NAMES)
def test_what_flare_lists_of_a_template(templates_folder, name):
    info = json.loads((templates_folder / name / "info.conf").read_text())
    assert len(info["description"]) <= 60 and len(name) <= 20  # what it shows
    text = (templates_folder / name / "info.md").read_text()
    for key in ("num_rounds=20", "min_clients=3", "lr=0.001", "input_shape=[1, 28, 28]", "data_class="):
        assert f"| `{key}" in text
    assert ("| `k=" in text) == (name != "cfl_fedavg_pt")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_template_prints_is_not_refused_by_the_floors_of_real_sites(templates_folder, name):
    text = (templates_folder / name / "info.md").read_text()
    method = build_named(*templates.split_method(templates.TEMPLATES[name][0]), here=False)
    held_back = method.traits.mergeable or method.traits.averages_only
    assert ("min_sites_per_cluster=1 min_samples_per_cluster=1" in text) == (not held_back)
    assert ("site prepare KIT --min-sites-per-cluster 1" in text) == (not held_back)
    sites = int(re.findall(r"min_clients=(\d+) \\", text)[0])
    clusters = [int(k) for k in re.findall(r"num_rounds=50 k=(\d+) ", text)] or [1]
    assert sites >= 3 * clusters[0]


def test_a_refused_option_names_its_own_command() -> None:
    for words, command in (
        (["site", "runs", "KIT"], "cfl-flare site runs"),
        (["show", "run", "--no"], "cfl-flare show"),
    ):
        with pytest.raises(ConfigError, match=f"unrecognized arguments: [^;]+; run '{command} --help' for the options"):
            parser().parse_args(words)
