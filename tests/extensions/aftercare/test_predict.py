# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What ``predict`` writes is what the run reported, ``onboard`` gives a newcomer its model; what cannot is refused."""

from __future__ import annotations

import csv
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from cfl_flare import load_model
from cfl_flare.cli import main
from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, DataSource, Digits
from cfl_flare.data.samples import normalised
from cfl_flare.data.table import Table
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.extensions.aftercare.drift import check_enough
from cfl_flare.extensions.aftercare.predict import read_rows
from cfl_flare.methods import FedAvg
from cfl_flare.results.model_file import read_model
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings
from tests.data.test_kinds import FORMATS, write_column
from tests.engine.test_private import SPECS
from tests.engine.test_tasks import Made, model_of
from tests.helpers.loop import build_from_spec, kept_files, run_loop, run_of
from tests.helpers.play import DATA, MODEL
from tests.helpers.served import check_reported, write_digits_npz

ALL = [*SPECS, "fedds:k=2", "feddsmic:k=2", "fedcuau:k=2", "fedcuau:k=2,base={'method':'fedper'}"]
FEW = DataConfig(4, "iid", min_samples=2)


def run_spec(text: str, folder: Path, private: str | None = None, source: DataSource | None = None, **more) -> Path:
    """Two rounds, three for sums; participants of digits unless another source is given."""
    data, model = (DATA, MODEL) if source is None else (FEW, model_of(more["task"]))
    names = ("task", "batch_size")
    training = TrainSettings(lr=0.1, local_steps=3, keep_momentum=True, **{k: more.pop(k) for k in names if k in more})
    method = build_from_spec(text)
    if method.traits.indicator is not None:
        data = DataConfig(6, DATA.partition, indicator_samples=method.traits.indicator.per_class)
    if "fedcuau" in text:
        model = {**MODEL, "args": {**MODEL["args"], "hidden": [8, 8]}}
    given = {
        "source": source or Digits(),
        "data": data,
        "model": model,
        "settings": ServerSettings(2 + ("cam" in text)),
        **more,
    }
    run_loop(method=method, training=training, folder=folder, private=private, **given)
    return folder


# ---- What participants reported ----


@pytest.mark.parametrize("private", [None, "bias", "head", r"body.1.bias"])
@pytest.mark.parametrize("text", ALL)
def test_each_participant_s_model_reproduces_its_reported_figures(text, private, tmp_path):
    try:
        run_spec(text, tmp_path, private)
    except ConfigError as error:  # the combinations that a run refuses
        assert private is not None and "private" in str(error), error
        return
    check_reported(tmp_path)


@pytest.mark.parametrize("text", ["wecfl:k=2", "fedavg+:k=2", "ifca-cam:k=2,warmup=1", "ditto"])
@pytest.mark.parametrize("task", ["binary", "multilabel", "regression", "survival", "segmentation"])
def test_in_every_task(task, text, tmp_path):
    run_spec(text, tmp_path, "bias", Made(task), task=task, batch_size=8)
    check_reported(tmp_path, source=Made(task))


# ---- Who has trained layers, and who has not ----


def test_models_with_private_layers_are_refused_with_the_way_out(tmp_path, capsys):
    run_spec("wecfl:k=2", tmp_path / "run", "bias", settings=ServerSettings(2, key_metric="loss"))
    np.savez(tmp_path / "new.npz", images=np.zeros((2, 8, 8), np.uint8))
    out = "untrained, as each participant has trained its own; name a participant"
    for folder in (tmp_path / "run", tmp_path / "run" / "best"):
        with pytest.raises(ConfigError, match=out):
            load_model(folder, "cluster-0")
        words = [str(folder), "--slot", "cluster-0", "--data", str(tmp_path / "new.npz")]
        assert main(["predict", *words, "--out", str(tmp_path / "x.csv")]) == 2
        assert out in capsys.readouterr().err and not (tmp_path / "x.csv").exists()


@pytest.mark.parametrize(("text", "refused"), [("fedper", True), ("fedbabu", False), ("ditto", False)])
def test_a_head_that_only_participants_train_is_refused(text, refused, tmp_path):
    run_spec(text, tmp_path)
    if refused:
        with pytest.raises(ConfigError, match="untrained, as each participant"):
            load_model(tmp_path)
    else:
        assert load_model(tmp_path)


def test_nothing_is_kept_of_participants_where_that_is_forbidden(tmp_path):
    run_spec("wecfl:k=2", tmp_path, "bias", at_site=SiteSettings(keep_served=False))
    assert not (tmp_path / "served").exists()
    with pytest.raises(ConfigError, match=r"does not hold what 'p0' predicted with: .*keep_served is off"):
        load_model(tmp_path, participant="p0")


def test_private_files_are_for_their_user_alone_and_hold_nothing_twice(tmp_path):
    run_spec("wecfl:k=2", tmp_path, "bias")
    files = sorted((tmp_path / "served").iterdir())
    assert [path.stem for path in files] == [f"p{i}" for i in range(6)]
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert {*load_arrays(path)[0]} == {"body.1.bias", "head.bias"}
    kept = {path: path.read_bytes() for path in files}
    run_spec("wecfl:k=2", tmp_path, "bias")
    assert kept == {path: path.read_bytes() for path in files}


# ---- The predictions' file ----

TABLE = "table:path={},label=outcome,key=site"


def write_outcome_table(path: Path, classes: tuple[str, ...], rows: int = 60, **columns: str) -> Path:
    """Rows of two sites; the label follows from the feature x, and columns are added as they are."""
    lines = [",".join(["x", "outcome", "site", *columns])]
    for i in range(rows):
        cells = [str(i % 7), classes[i % 7 * len(classes) // 7], "ns"[i % 2], *columns.values()]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")
    return path


def predict_rows(run: Path, data: Path, *words: str) -> list[dict[str, str]]:
    out = data.parent / "out.csv"
    assert main(["predict", str(run), "--data", str(data), "--out", str(out), *words]) == 0
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def finish_table_run(folder: Path, *words: str, classes: tuple[str, ...] = ("benign", "malignant")) -> Path:
    """A run of a table through the command line."""
    data = TABLE.format(write_outcome_table(folder / "train.csv", classes))
    given = ["--data", data, "--model", "mlp:hidden=[]", "--rounds", "2", "--method", "wecfl:k=2", *words]
    assert main(["run", "--loop", *given, "--out", str(folder / "run")]) == 0
    return folder / "run" / "wecfl-k2"


def test_predictions_say_what_they_mean(tmp_path):
    """The names of classes, and the rows' identifiers as they are written: 007 is no 7, and no text is a formula."""
    done = finish_table_run(tmp_path)
    new = tmp_path / "new.csv"
    new.write_text("patient,x\n007,1\n=cmd|' /C calc'!A0,6\n-3,2\n@x,\n,5\n")
    name = load_run(done).summary["participants"][0]["name"]
    found = predict_rows(done, new, "--participant", name, "--id", "patient")
    assert [*found[0]] == ["patient", "predicted outcome", "p(benign)", "p(malignant)"]
    assert [row["patient"] for row in found] == ["007", "'=cmd|' /C calc'!A0", "-3", "'@x", ""]
    for row in found:
        best = max(("benign", "malignant"), key=lambda c: float(row[f"p({c})"]))
        assert row["predicted outcome"] == best
    without = new.parent / "without.csv"
    without.write_text("x\n1\n")
    assert predict_rows(done, without, "--participant", name)[0]["sample"] == "0"


@pytest.mark.parametrize(
    ("task", "header"),
    [
        ("classification", ["predicted outcome", "p(outcome=0)", "p(outcome=1)"]),
        ("binary", ["predicted outcome", "p(outcome=1)"]),
        ("regression", ["predicted outcome"]),
    ],
)
def test_predictions_of_numbers_name_the_label(task, header, tmp_path):
    labels = ("0.5", "1.5") if task == "regression" else ("0", "1")
    done = finish_table_run(tmp_path, "--task", task, classes=labels)
    name = load_run(done).summary["participants"][0]["name"]
    assert [*predict_rows(done, write_outcome_table(tmp_path / "new.csv", labels), "--participant", name)[0]] == [
        "sample",
        *header,
    ]


def test_a_participant_of_a_clustered_run_needs_no_slot(tmp_path, capsys):
    done = run_spec("wecfl:k=2", tmp_path / "run")
    np.savez(tmp_path / "new.npz", images=np.random.default_rng(0).random((5, 8, 8)).astype(np.float32))
    for one in load_run(done).summary["participants"]:
        mine, cluster = (
            predict_rows(done, tmp_path / "new.npz", *words)
            for words in (["--participant", one["name"]], ["--slot", f"cluster-{one['cluster']}"])
        )
        assert mine == cluster
    run_spec("wecfl:k=2", tmp_path / "both" / "one")
    run_spec("wecfl:k=2", tmp_path / "both" / "two")
    with pytest.raises(ConfigError, match=r"holds 'p0' more than once: .*; name one run"):
        load_model(tmp_path / "both", participant="p0")
    words = ["predict", str(done), "--data", str(tmp_path / "new.npz"), "--out", str(tmp_path / "x.csv")]
    for more, says in (
        ([], "it has: cluster-0, cluster-1, global; or choose who predicts with --participant: p0, p1"),
        (["--participant", "p9"], "has no participant 'p9'; it has p0, p1, p2, p3, p4, p5"),
        (["--participant", "../clusters/global"], "there is no participant '../clusters/global'"),
        (["--participant", "p0", "--id", "x"], "--id = 'x' names a table's column"),
    ):
        assert main([*words, *more]) == 2
        assert says in capsys.readouterr().err


# ---- onboard ----


@pytest.mark.parametrize("name", ["wecfl", "fedavg+", "fedavg", "fedper"])
def test_onboard_saves_a_model_that_predicts_as_it_says(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data, out = write_digits_npz(tmp_path / "own.npz"), tmp_path / "out"
    folder = Path(shutil.copytree(runs(name), tmp_path / "cfl"))
    assert main(["onboard", str(folder), "--data", str(data), "--name", "ward", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert str(out / "model.safetensors") in said
    row = next(line for line in said.splitlines() if line.startswith("ward"))
    assert ("no clusters" in row) == (name != "wecfl")
    assert ("closest in direction" in row) == (name == "wecfl")

    arrays = np.load(data)
    model = read_model(out / "model.safetensors")
    x = torch.from_numpy(normalised(arrays["test_images"][:, None]))
    right = (model(x).argmax(1).numpy() == arrays["test_labels"]).mean()
    assert f"{right:.3f}" in row
    assert main(["onboard", str(folder), "--data", str(data), "--name", "ward"]) == 0
    again = read_model(folder / "newcomers" / "ward" / "model.safetensors")
    torch.testing.assert_close(again(x), model(x), rtol=0, atol=0)
    capsys.readouterr()
    assert main(["onboard", str(folder), "--data", str(data), "--name", "ward"]) == 2
    assert "--name = 'ward': a newcomer of that name has joined" in capsys.readouterr().err


def test_onboard_reads_the_indicator_file(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, file = write_digits_npz(tmp_path / "own.npz"), write_digits_npz(tmp_path / "indicator.npz", count=400)
    words = ["onboard", str(runs("fedds")), "--data", str(data), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    wanted = "compares models on 10 indicator samples of each class; name a file with them: --indicator-file"
    assert wanted in capsys.readouterr().err
    assert main([*words, "--indicator-file", str(tmp_path / "nowhere.npz")]) == 2
    assert "nowhere.npz' is not a file" in capsys.readouterr().err
    assert main([*words, "--indicator-file", str(file)]) == 0
    assert "smallest KL divergence" in capsys.readouterr().out


@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    """A method of the user's own."""

    name: ClassVar[str] = "mine"


def test_onboard_asks_that_a_foreign_class_is_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = run_of(Mine(), tmp_path / "cfl", rounds=1), write_digits_npz(tmp_path / "own.npz")
    assert main(["onboard", str(folder), "--data", str(data)]) == 2
    assert (
        "the run names tests.extensions.aftercare.test_predict.Mine, which is not cfl_flare's own"
        in capsys.readouterr().err
    )
    assert not (folder / "newcomers").exists()
    assert main(["onboard", str(folder), "--data", str(data), "--allow", f"{__name__}.Mine"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"data": partial(write_digits_npz, size=9)},
            r"MLP does not take samples of shape \(1, 9, 9\) .*bring the samples to what",
        ),
        (
            {"data": partial(write_digits_npz, top=11)},
            r"label 11 does not fit .*\(1, 10\); .*bring the labels to its classes",
        ),
        ({"--name": "a/b"}, r"--name = 'a/b' should be letters"),
        ({"--name": "p1"}, r"'p1' is a participant of the run; give it another name"),
        ({"--out": "."}, r"--out = '.*' is not an empty folder"),
        ({"--rounds": "0"}, r"rounds = 0 should be a whole number >= 1"),
        ({"--indicator-file": "x.npz"}, r"fedavg: needs no indicator samples; leave --indicator-file out"),
        ({"run": "nowhere"}, r"nowhere holds no finished run"),
    ],
)
def test_onboard_refuses(
    runs: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(runs("fedavg"), tmp_path / "cfl"))
    make = words.pop("data", write_digits_npz)
    run = words.pop("run", str(folder))
    given = [word for pair in words.items() for word in pair]
    before = kept_files(folder)
    assert main(["onboard", run, "--data", str(make(tmp_path / "own.npz")), *given]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message, said), said
    assert kept_files(folder) == before


def test_a_simulation_s_newcomers_stand_in_the_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--loop", "--rounds", "2", "--method", "wecfl:k=3", "--method", "fedavg", "--out", str(tmp_path)]
    assert main([*words, "--unseen", "0.25", "--bootstrap", "0"]) == 0
    lines = capfd.readouterr().out.splitlines()
    header = next(line for line in lines if line.startswith("method"))
    column = header.split().index("unseen")
    for run, name in (("fedavg", "fedavg"), ("wecfl-k3", "wecfl")):
        newcomers = load_run(tmp_path / run).newcomers
        assert newcomers is not None
        row = next(line for line in lines if line.startswith(name) and "/2" not in line).replace(" (K=3)", "")
        assert row.split()[column] == f"{newcomers['served_accuracy']:.3f}"
        assert len(newcomers["participants"]) == 6
        assert len(load_run(tmp_path / run).summary["participants"]) == 18


def test_predictions_read_every_format_alike(tmp_path: Path) -> None:
    """Trained from Parquet, a model took each code of a CSV file for an unknown one."""
    table = Table(write_column(tmp_path, ["0744", "010", "?"], "ward.parquet"), categories=["a"], absent=["?"])
    train, _ = table.load()
    preparation = table.preparation(train, train)
    rows = [read_rows(Path(write_column(tmp_path, ["0744", "010", "?"], name)), preparation)[1] for name in FORMATS]
    assert all(np.array_equal(rows[0], other) for other in rows)
    assert rows[0][:2].tolist() == [[0, 1], [1, 0]]
    with pytest.raises(DataError, match="hold '744', where the sites agreed on '0744'"):
        read_rows(Path(write_column(tmp_path, [744, 744])), preparation)


def test_drift_says_which_samples_are_too_few():
    check_enough(np.zeros(20), "the new samples", "wait for more")
    with pytest.raises(DataError) as error:
        check_enough(np.zeros(19), "the run's test samples of p0", "these are fixed: train again with more data")
    assert str(error.value).splitlines() == [
        "drift: the run's test samples of p0 are of 19 patients: expected 20 or more",
        "hint: these are fixed: train again with more data",
    ]
