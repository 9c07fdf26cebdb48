# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused in one line that names the value, the place and the way out, before anything starts."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.sim_env import SimEnv
from PIL import Image
from torch import nn

from cfl_flare.cli import main
from cfl_flare.core.config import build
from cfl_flare.core.errors import CFLError, ConfigError, DataError
from cfl_flare.data import DataConfig, DataSource, Digits, Npz, ParticipantData, Samples
from cfl_flare.engine.server import ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.methods import build_method
from cfl_flare.models import MLP
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.tiny import NoLinear

HERE = "tests.test_refusals"


class TwoOutputs(MLP):
    """A network that returns its features too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(x), x


class Forgets(nn.Module):
    """A network that does not keep its argument, nor anything that shows what it was."""

    def __init__(self, widths: Sequence[int] = (8,)):
        super().__init__()
        self.head = nn.Linear(64, sum(widths))


class Breaks(nn.Module):
    """A network that cannot be built."""

    def __init__(self) -> None:
        raise KeyError("checkpoint")


class NotANetwork:
    """A class that is no torch module."""


class OneSet(DataSource):
    """A source that forgets the test split."""

    def load(self) -> Samples:  # type: ignore[override]
        return Digits().load()[0]


class Lists(DataSource):
    """A source that yields lists."""

    def load(self) -> tuple[Samples, Samples]:
        return Samples([[0.0]], [0]), Samples([[0.0]], [0])  # type: ignore[arg-type]


class Failing(DataSource):
    """A source whose own code fails, with more to say than a line."""

    def load(self) -> tuple[Samples, Samples]:
        return {}["ward 3\nand more"]


@pytest.fixture
def nothing_starts(monkeypatch):
    def refuse(*arguments, **named):
        pytest.fail("something was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(SimEnv, "deploy", refuse)
    monkeypatch.setattr(PocEnv, "deploy", refuse)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with all that can be wrong with a file."""
    folder = tmp_path_factory.mktemp("files")
    x, y = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 4
    sound = {"train_images": x, "train_labels": y, "test_images": x, "test_labels": y}
    nan = np.zeros((40, 8, 8), np.float32)
    nan[7, 0, 0] = np.nan
    for name, change in {
        "sound": {},
        "pickled": {"train_labels": np.array([{}] * 40, object)},
        "nan": {"train_images": nan},
        "empty": {"test_images": x[:0], "test_labels": y[:0]},
        "short": {"train_labels": y[:39]},
        "halves": {"train_labels": y / 2},
        "negative": {"test_labels": y - 1},
        "findings": {"train_labels": np.eye(4, dtype=int)[y]},
        "shapes": {"test_images": np.zeros((40, 9, 9), np.uint8)},
        "mixed": {"test_images": np.zeros((40, 8, 8, 3), np.uint8)},
        "flat": {"train_images": np.zeros((40, 64), np.uint8)},
    }.items():
        np.savez(folder / f"{name}.npz", **{**sound, **change})
    np.savez(folder / "unlabelled.npz", train_images=x, test_images=x, test_labels=y)
    (folder / "text.npz").write_text("patient,age\n1,64\n")
    (folder / "rows.csv").write_text("age,label\n64,0\nunknown,1\n70,1\n71,0\n")
    (folder / "folder.npz").mkdir()
    (folder / "full").mkdir()
    (folder / "full" / "summary.json").write_text("{}")
    for split in ("train", "test"):
        for i, mode in enumerate(("L", "RGB")):
            (folder / "images" / split / f"class{i}").mkdir(parents=True)
            Image.new(mode, (8, 8)).save(folder / "images" / split / f"class{i}" / "a.png")
    return folder


# What follows "cfl-flare run --out out", and what the one line says: the place, the value, the way out.
RUNS = {
    "--method wecfl:k=0": r"method wecfl: k = 0 should be in",
    "--method ifca:k=-2": r"method ifca: k = -2 should be in",
    "--method wecfl:k=2.5": r"method wecfl: k = 2\.5 should be int",
    "--method wecfl:k=three": r"method wecfl: k = 'three' should be int",
    "--method wecfl:k=True": r"method wecfl: k = True should be int",
    "--method fesem": r"method fesem: setting 'k' is missing",
    "--method wecfl:k=25": r"method wecfl: k = 25 is more than participants = 24; lower k",
    "--method ifca:k=25 --loop": r"method ifca: k = 25 is more than participants = 24; lower k",
    "--method fedavg --method wecfl:k=5 --sample 0.1": r"wecfl: k = 5 .* only 2 of 24 .*; lower k or raise sample",
    "--method nope": r"method 'nope' is unknown; there are fedavg, ",
    "--method wecfl:k=3,kk=2": r"method wecfl: unknown setting 'kk'; it has: .*\bk\b",
    "--method wecfl:k=3,k=4": r"'wecfl:k=3,k=4': k is set twice; leave one out",
    "--method wecfl:k": r"'wecfl:k': 'k' is not key=value; write name:key=value",
    "--method wecfl:=3": r"'wecfl:=3': '=3' is not key=value; write name:key=value",
    "--method wecfl:k=3,cluster_on=nope": r"method wecfl: cluster_on = 'nope' should be one of .*'head'",
    "--method wecfl:k=3,cluster_on=['no.weight']": r"wecfl: cluster_on = \('no.weight',\) .*it has body\..*; set ",
    f"--model {HERE}.NoLinear --method wecfl:k=3,cluster_on=head --loop": r"cluster_on = 'head' .*; set cluster_on=all",
    "--model logistic --method wecfl:k=3,cluster_on=backbone": r"cluster_on = 'backbone' .*; set cluster_on=all",
    "--partition nope": r"partition 'nope' is unknown; there are iid, ",
    "--partition dirichlet:alpha=0": r"partition dirichlet: alpha = 0 should be > 0",
    "--partition dirichlet:alpha=-0.1": r"partition dirichlet: alpha = -0\.1 should be > 0",
    "--partition dirichlet:alpha=inf": r"partition dirichlet: alpha = 'inf' should be float",
    "--partition iid:groups=2": r"partition iid: unknown setting 'groups'; it has: no settings",
    "--partition label_permutation:groups=25": r"groups = 25 need at least as many participants, not 24",
    "--partition scanner:groups=0": r"partition scanner: groups = 0 should be >= 1",
    "--partition natural": r"partition natural: the samples have no key; set key in the data source",
    "--partition n_class:n=11": r"partition n_class: n = 11 is more than the data's 10 classes",
    "--min-samples 500": r"label_permutation: no draw .* 500 training samples .*lower min_samples",
    "--min-samples 0": r"data: min_samples = 0 should be >= 1",
    "--participants 0": r"data: participants = 0 should be in .1, 100000.",
    "--participants -4": r"data: participants = -4 should be in .1, 100000.",
    "--sites 25": r"run: sites = 25 is more than participants = 24; each site hosts at least one",
    "--sites 0": r"run: sites = 0 should be >= 1",
    "--rounds 0": r"run: num_rounds = 0 should be >= 1",
    "--rounds few": r"argument --rounds: invalid int value: 'few'; run 'cfl-flare run --help' for",
    "--sample 0": r"run: sample = 0 should be a share in \(0\.0, 1\.0\] or a count >= 1",
    "--sample 1.5": r"run: sample = 1\.5 should be a share",
    "--sample -3": r"run: sample = -3 should be a share",
    "--sample nan": r"run: sample = nan should be a share",
    "--sample half": r"argument --sample: 'half' should be a share like 0\.25 or a count like 25",
    "--min-answers 0": r"run: min_answers = 0 should be a share .* or a count >= 1",
    "--evaluate-every 0": r"run: evaluate_every = 0 should be >= 1",
    "--task-timeout 0": r"run: task_timeout = 0 should be >= 1",
    "--task-timeout -1 --loop": r"run: task_timeout = -1 should be >= 1",
    "--loop --method fedavg --site-sums": r"nothing is sent with --loop, so site_sums would have no effect; leave",
    "--loop --client-memory-gc-rounds 2 --exclude-vars bias": r"client_memory_gc_rounds, exclude_vars would have no",
    "--stop-cond much": r"stop_cond = 'much' should be '<metric> <sign> <number>'",
    "--loop --stop-cond accuracy>=80": r"stop_cond = 'accuracy>=80' should be '<metric> <sign> <number>'",
    "--key-metric-mode best": r"argument --key-metric-mode: invalid choice: 'best'",
    "--patience 0": r"run: patience = 0 should be >= 1",
    "--lr-milestones 0": r"training: lr_milestones = \(0,\) should be rounds > 0",
    "--device gpu7": r"run: device = 'gpu7' should be one of torch's",
    "--seed -1": r"seed = -1 should be >= 0",
    "--seed 1.5": r"argument --seed: invalid int value: '1\.5'; ",
    "--lr 0": r"training: lr = 0\.0 should be > 0",
    "--lr -1": r"training: lr = -1\.0 should be > 0",
    "--lr inf": r"training: lr = inf should be > 0",
    "--lr nan": r"training: lr = nan should be > 0",
    "--momentum 1": r"training: momentum = 1\.0 should be in \[0, 1\)",
    "--batch-size 0": r"training: batch_size = 0 should be >= 1",
    "--local-steps 0": r"training: local_steps = 0 should be in .1, 100000.",
    "--local-steps 5 --local-epochs 1": r"training: give local_steps = 5 or local_epochs = 1, not both",
    "--optimizer adam --momentum 0.9": r"training: momentum = 0\.9 belongs to optimizer = 'sgd', .*; leave one",
    "--optimizer sgdm": r"argument --optimizer: invalid choice: 'sgdm'",
    "--beta1 0.5": r"training: beta1 = 0\.5 belongs to optimizer = 'adam' or 'adamw'",
    "--optimizer adam --beta2 1": r"training: beta2 = 1\.0 should be in \[0, 1\)",
    "--clip-grad 0": r"training: clip_grad = 0\.0 should be > 0",
    "--lr-schedule cosine --lr-decay 0.5": r"training: lr_decay = 0\.5 belongs to lr_schedule = 'steps'",
    "--lr-schedule cosine --lr-warmup 4 --rounds 4": r"lr_warmup = 4 leaves none of lr_rounds = 4 .*; lower",
    "--label-smoothing 1": r"training: label_smoothing = 1\.0 should be in \[0, 1\)",
    "--server-lr 0.1": r"run: server_lr = 0\.1 does nothing without server_optimizer; set that too",
    "--server-optimizer adagrad --server-beta2 0.9": r"server_beta2 = 0\.9: .* adagrad adds up .*; leave it out",
    "--server-optimizer adam --server-beta1 1": r"run: server_beta1 = 1\.0 should be in \[0, 1\)",
    "--server-optimizer adam --method fedac:k=2": r"'adam' steps towards .* fedac computes more .*; leave it out",
    "--no-such-option": r"unrecognized arguments: --no-such-option; run 'cfl-flare run --help' for",
    "--model nope": r"model 'nope' is unknown; there are mlp, .*, or package\.Class",
    "--model nowhere.Net": r"model: 'nowhere.Net' cannot be imported here .*; install its package",
    f"--model {HERE}.Nothing": r"model: 'tests.test_refusals.Nothing' cannot be imported here .*; install",
    f"--model {HERE}.NotANetwork": r"'tests.test_refusals.NotANetwork' is not a torch\.nn.*Module; name a subclass",
    f"--model {HERE}.Breaks": r"model Breaks: KeyError: 'checkpoint'; correct what it was given: {}",
    f"--model {HERE}.TwoOutputs:input_shape=[1,8,8],num_classes=10": r"TwoOutputs returns a tuple; .* return logits",
    "--model torch.nn.LazyLinear:out_features=10": r"model LazyLinear: 'weight' has no shape yet.*; name the sizes",
    "--model torch.nn.Flatten": r"model Flatten has no parameters to train",
    "--model mlp:depth=2": r"model MLP: unknown setting 'depth'; it has: input_shape, num_classes, hidden",
    "--model mlp:hidden=64": r"model mlp: hidden = 64 should be whole numbers >= 1, such as \[64\]",
    "--model mlp:num_classes=5": r"p00: label 9 does not fit .*\(1, 5\); set the model's num_classes to 10",
    "--model mlp:num_classes=0": r"model mlp: num_classes = 0 should be a whole number >= 1",
    "--model mlp:num_classes=1": r"p00: label 9 does not fit .*\(1, 1\); set the model's num_classes to 10",
    "--model mlp:input_shape=[1,9,9]": r"MLP does not take samples of shape \(1, 8, 8\) .*input_shape to \[1, 8, 8\]",
    "--model fashion-cnn:input_shape=[a,b,c]": r"fashion-cnn: input_shape = \['a', 'b', 'c'\] should be whole numbers",
    "--model cifar-cnn": r"cifar-cnn: images of 8x8 are too small, it needs 16x16; use the mlp",
    "--data nope": r"data 'nope' is unknown; there are digits, .*, a \.npz file, or package\.Class",
    "--data digits:share=0.1": r"data digits: unknown setting 'share'; it has: test_share, seed",
    "--data digits:test_share=1": r"data digits: test_share = 1 should be in \(0, 1\)",
    "--data digits:test_share=0.001": r"there are no test samples to deal out; put some into the source.s test split",
    "--data nowhere.npz": r"data npz: path = 'nowhere.npz' is not a file; tried .*CFL_DATA_ROOT is not set",
    "--data {files}/folder.npz": r"data npz: path = '.*folder\.npz' is not a file; tried ",
    "--data {files}": r"data '.*' is unknown; write folder:path=/",
    "--data some.csv": r"data 'some\.csv' is unknown; write table:path=some\.csv,label=COLUMN",
    "--min-answers 25": r"run: min_answers = 25 is more than the 24 asked in a round; 1\.0 is all of them",
    "--min-answers 7 --sample 6": r"run: min_answers = 7 is more than the 6 asked in a round",
    "--data {files}/text.npz": r"text\.npz: cannot be read as an npz file .*; save arrays of numbers with np\.savez",
    "--data {files}/pickled.npz": r"pickled\.npz: cannot be read as an npz file without pickled .*np\.savez",
    "--data {files}/unlabelled.npz": r"unlabelled\.npz: no array 'train_labels'; it has train_images, ",
    "--data {files}/nan.npz": r"nan\.npz: training: sample 7 holds NaN or infinity; fix it or leave it out",
    "--data {files}/empty.npz": r"there are no test samples to deal out; put some into the source.s test split",
    "--data {files}/short.npz": r"short\.npz: training: 40 samples but 39 labels; give one label per sample",
    "--data {files}/halves.npz --participants 3 --partition iid": r"labels are numbers.*; set task to .regression.",
    "--data {files}/negative.npz --participants 3 --partition iid": r"and task .classification. takes class numbers",
    "--data {files}/findings.npz": r"findings\.npz: training labels are several findings .*test labels class numbers",
    "--data {files}/shapes.npz": r"shapes\.npz: training samples are \(1, 8, 8\), test samples \(1, 9, 9\); ",
    "--data {files}/mixed.npz": r"mixed\.npz: training samples are \(1, 8, 8\), test samples \(3, 8, 8\); ",
    "--data {files}/flat.npz": r"flat\.npz: train: images have shape \(40, 64\); it should be \(n, h, w\)",
    "--data {files}/sound.npz": r"no draw .* 8 training samples .*best: 1\); take fewer participants",
    "--data folder:path={files}/images": r"class0.a\.png has 1 channel\(s\), .*class1.a\.png has 3; .*channels=1",
    "--data table:path={files}/rows.csv": r"column 'age': row 2 holds 'unknown' among numbers; fix it",
    f"--data {HERE}.OneSet": r"OneSet: load\(\) should return \(train, test\) as two Samples, not Samples",
    f"--data {HERE}.Lists": r"Lists: training: x is a list; make it an array",
    f"--data {HERE}.Failing": r"Failing: load\(\) failed with KeyError: 'ward 3.*.*test_refusals\.py:\d+; fix it",
    f"--data {HERE}.NotANetwork": r"data: .*NotANetwork' is not a cfl_flare\.data.*DataSource; name a subclass",
    "--out {files}/full": r"--out = '.*full' is not an empty folder; name a new one",
    "--out {files}/rows.csv": r"--out = '.*rows\.csv' is not an empty folder; name a new one",
    "--out {files}/rows.csv/below": r"--out = '.*rows\.csv/below' .*; name another folder",
    "--out {files}/my?runs": r"FLARE's simulator cannot work in '.*my runs/flare'.* space.*; choose another folder",
}
OTHERS = {
    "": r"the following arguments are required: command; run 'cfl-flare --help' for",
    "fly": r"argument command: invalid choice: 'fly' .*; run 'cfl-flare --help'",
    "show": r"the following arguments are required: run; run 'cfl-flare show --help'",
    "show nowhere": r"nowhere",
    "partition --participants 0": r"data: participants = 0 should be in .1, 100000.",
    "partition --seed -1": r"data: seed = -1 should be >= 0",
    "partition --partition lda:alpha=0": r"partition lda: alpha = 0 should be > 0",
}


def refused_line(arguments: list[str], capsys) -> str:
    """The one line on stderr with which the command line was refused."""
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("cfl-flare: ") and output.err.count("\n") == 1 and output.err.endswith("\n")
    return output.err


@pytest.mark.parametrize("command", RUNS)
def test_run_refuses(command, files, tmp_path, capsys, monkeypatch, nothing_starts):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CFL_DATA_ROOT", raising=False)
    before = sorted(files.rglob("*"))
    arguments = [word.replace("{files}", str(files)).replace("?", " ") for word in command.split()]
    line = refused_line(["run", "--out", "out", *arguments], capsys)
    assert re.search(RUNS[command], line), line
    assert not list(tmp_path.iterdir())
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize("command", OTHERS)
def test_other_commands_refuse(command, tmp_path, capsys, monkeypatch, nothing_starts):
    monkeypatch.chdir(tmp_path)
    line = refused_line(command.split(), capsys)
    assert re.search(OTHERS[command], line), line
    assert not list(tmp_path.iterdir())


SOUND = {
    "name": "job",
    "method": "wecfl:k=3",
    "model": MLP((1, 8, 8), 10),
    "data": Digits(),
    "participants": 8,
    "partition": "label_permutation:groups=2",
    "num_rounds": 3,
    "min_clients": 2,
}
HEAD = {"method": "wecfl:k=2,cluster_on=head"}
REAL = {"participants": None, "partition": None}  # each site is one participant
OF_SCRIPT = {**REAL, "data": None}
LOCAL_NET = type("LocalNet", (nn.Module,), {"__module__": HERE, "__qualname__": "outer.<locals>.LocalNet"})
SCRIPT_NET = type("ScriptNet", (nn.Module,), {"__module__": "__main__"})


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"name": "a/b"}, r"run: name = 'a/b' should be letters"),
        ({"name": ""}, r"run: name = '' should be letters"),
        ({"resume_from": "../x"}, r"run: resume_from = '\.\./x' should be letters"),
        ({"resume_from": ""}, r"run: resume_from = '' should be letters"),
        ({"method": "wecfl:k=9"}, r"method wecfl: k = 9 is more than participants = 8; lower k"),
        ({"method": "wecfl:k=3", "sample": 0.2}, r"k = 3 .* only 2 of 8 take part; lower k or raise sample"),
        ({"method": 3}, r"method = 3 should be text like 'name:setting=value'"),
        ({"method": {"k": 3}}, r"method None is unknown; there are "),
        ({"model": NoLinear(), **HEAD}, r"method wecfl: cluster_on = 'head' .*; set cluster_on=all"),
        ({"model": NoLinear(), **HEAD, **REAL}, r"method wecfl: cluster_on = 'head' .*; set cluster_on=all"),
        ({"model": MLP}, r"model: 'cfl_flare.models.MLP' is only the name of a class; pass an instance"),
        ({"model": "cfl_flare.models.MLP"}, r"model: 'cfl_flare.models.MLP' is only the name .*pass an instance"),
        ({"model": NotANetwork()}, r"NotANetwork' is not a torch\.nn.*Module; name a subclass"),
        ({"model": LOCAL_NET()}, r"model: outer\.<locals>\.LocalNet is defined .*; put it at the top of a module"),
        ({"model": SCRIPT_NET()}, r"model: ScriptNet is defined in the script .*; put it at the top of a module"),
        ({"model": Forgets((9, 7))}, r"model: Forgets as a site would build it is not .* keep its argument 'widths'"),
        ({"model": {"path": "a.B"}}, r"model: 'path' = 'a.B' is no array.* a module should be {'class_path': "),
        ({"model": {"class_path": "a b"}}, r"model: class_path = 'a b' should be 'package\.module\.Class'"),
        ({"data": Npz}, r"data: 'cfl_flare.data.sources.Npz' is only the name of a class; pass an instance"),
        ({"data": NotANetwork()}, r"data: .*NotANetwork' is not a cfl_flare\.data.*DataSource; name a subclass"),
        ({"partition": None}, r"data: participants = 8 and partition = None belong together: give both"),
        ({"participants": "8"}, r"data: participants = '8' should be int"),
        ({"participants": 0}, r"data: participants = 0 should be in .1, 100000."),
        ({"min_clients": 0}, r"run: min_clients = 0 should be >= 1"),
        ({"min_clients": 9}, r"run: min_clients = 9 is more than participants = 8; each site hosts"),
        ({"num_rounds": 0}, r"run: num_rounds = 0 should be >= 1"),
        ({"num_rounds": "3"}, r"run: num_rounds = '3' should be int"),
        ({"method": "cfl-gp:k=2", "training": {"dp": "epsilon=3"}}, r"dp does not go with method cfl-gp"),
        ({"method": "cfl-gp:k=2", "train_script": __file__, **OF_SCRIPT}, r"cfl-gp: a training script cannot do its l"),
        ({"task_timout": 5}, r"recipe: unknown setting 'task_timout'; did you mean task_timeout"),
        ({"torch_threads": 0}, r"run: torch_threads = 0 should be in .1, 1024."),
        ({"client_memory_gc_rounds": -1}, r"run: client_memory_gc_rounds = -1 should be >= 0"),
        ({"assign_mode": "best"}, r"run: assign_mode = 'best' should be 'min' or 'max'"),
        ({"params_transfer_type": "HALF"}, r"recipe: params_transfer_type = 'HALF' should be 'FULL' or 'DIFF'"),
        ({"task_timeout": True}, r"run: task_timeout = True should be int, not bool"),
        ({"min_samples": "8"}, r"data: min_samples = '8' should be int"),
        ({"seed": 0.5}, r"seed = 0\.5 should be int"),
        ({"seed": -1}, r"seed = -1 should be >= 0"),
        ({"training": {"lr": "fast"}}, r"training: lr = 'fast' should be float"),
        ({"training": {"learning_rate": 1}}, r"training: unknown setting 'learning_rate'; it has: lr, "),
        ({"device": "gpu7"}, r"run: device = 'gpu7' should be one of torch's, such as 'cpu'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_recipe_refuses(changes, says, nothing_starts):
    with pytest.raises(ConfigError, match=says) as refused:
        ClusteredRecipe(**{**SOUND, **changes})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "environment, says",
    [
        (lambda folder: SimEnv(num_clients=1, workspace_root=folder), r"SimEnv: num_clients = 1 is less than .*= 2"),
        (lambda folder: SimEnv(num_clients=9, workspace_root=folder), r"num_clients = 9 is more than participants = 8"),
        (lambda folder: SimEnv(num_clients=2, workspace_root=folder + " x"), r"cannot work in '.* x'.*choose another"),
        (lambda folder: PocEnv(num_clients=1), r"PocEnv: num_clients = 1 is less than the job's min_clients = 2"),
    ],
)
def test_an_environment_that_cannot_run_the_job(environment, says, tmp_path, nothing_starts):
    with pytest.raises(ConfigError, match=says):
        ClusteredRecipe(**SOUND).execute(environment(str(tmp_path / "work")))
    assert not list(tmp_path.iterdir())


def test_the_loop_refuses_before_it_writes(tmp_path):
    with pytest.raises(ConfigError, match=r"method wecfl: cluster_on = 'head' .*; set cluster_on=all"):
        run_loop(
            method=build_method({"method": "wecfl", "k": 2, "cluster_on": "head"}),
            model=NoLinear(),
            source=Digits(),
            data=DataConfig(4, {"partition": "iid"}),
            settings=ServerSettings(2),
            training=TrainSettings(),
            folder=tmp_path / "out",
        )
    assert not list(tmp_path.iterdir())


def make_numbered_samples(x: np.ndarray, top: int = 9) -> Samples:
    return Samples(x.astype(np.float32), np.arange(len(x)) % (top + 1))


IMAGES = np.zeros((20, 1, 8, 8))


@pytest.mark.parametrize(
    "train, test, says",
    [
        (
            make_numbered_samples(np.zeros((20, 1, 9, 9))),
            make_numbered_samples(IMAGES),
            r"p: the model MLP does not take .*\(1, 9, 9\).*; set the",
        ),
        (
            make_numbered_samples(IMAGES),
            make_numbered_samples(IMAGES, 10),
            r"p: label 10 does not fit .*; set the model's num_classes to 11",
        ),
    ],
)
def test_a_site_refuses_participants_that_do_not_fit_the_model(train, test, says):
    spec = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
    method = build_method({"method": "fedavg"})
    site = Site(method, lambda: build(spec, nn.Module, "model"), TrainSettings(), seed=0)
    with pytest.raises(DataError, match=says):
        site.add([ParticipantData("p", train, test)])
    assert not site.hosted


@pytest.mark.parametrize(
    "name, says",
    [
        ("nowhere.npz", r"data npz: path = '.*nowhere\.npz' is not a file; tried "),
        ("text.npz", r"text\.npz: cannot be read as an npz file .*; save arrays of numbers"),
        ("nan.npz", r"nan\.npz: training: sample 7 holds NaN or infinity; fix it"),
        ("sound.npz", r"ward-1 has 40 training samples, fewer than min_samples = 50; lower that"),
    ],
)
def test_a_site_refuses_its_own_data(name, says, files):
    with pytest.raises(CFLError, match=says):
        DataConfig(min_samples=50).host(Npz(str(files / name)), "ward-1", 0, 2)
