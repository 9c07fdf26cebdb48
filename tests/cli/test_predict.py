# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A participant's file predicts what the run reported of that participant, and what cannot is refused."""

from __future__ import annotations

import csv
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from cfl_flare import load_model
from cfl_flare.cli import main
from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.errors import ConfigError
from cfl_flare.data import DataConfig, DataSource, Digits
from cfl_flare.engine.loop import run_loop
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.runtime import Split
from cfl_flare.training.settings import TrainSettings
from tests.engine.test_private import SPECS, built
from tests.engine.test_tasks import Made, model_of
from tests.play import DATA, MODEL

ALL = [*SPECS, "fedds:k=2", "feddsmic:k=2", "fedcuau:k=2", "fedcuau:k=2,base={'method':'fedper'}"]
FEW = DataConfig(4, "iid", min_samples=2)


def run(text: str, folder: Path, private: str | None = None, source: DataSource | None = None, **more) -> Path:
    """Two rounds, three for sums; participants of digits unless another source is given."""
    data, model = (DATA, MODEL) if source is None else (FEW, model_of(more["task"]))
    names = ("task", "batch_size")
    training = TrainSettings(lr=0.1, local_steps=3, keep_momentum=True, **{k: more.pop(k) for k in names if k in more})
    method = built(text)
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


def check_reported(folder: Path, served: Path | None = None, source: DataSource | None = None) -> None:
    """Every participant's own model measures on its own test split what the run reported of it.

    Args:
        folder: the run's.
        served: where the participants' models are, if not there.
        source: what was dealt out; None for digits.
    """
    summary = load_run(folder).summary
    task, data = TrainSettings(**summary["training"]).built_task(), DataConfig(**summary["data"])
    hosted = {one.name: one for one in data.host(source or Digits(), "local", 0, 1)}
    assert len(hosted) == len(summary["participants"]) > 1
    for reported in summary["participants"]:
        split = Split.of(hosted[reported["name"]].test.x, hosted[reported["name"]].test.y, task=task)
        with torch.no_grad():
            measured = task.measured(load_model(served or folder, participant=reported["name"])(split.x), split.y)
        assert measured
        for name, value in measured.items():
            assert reported[f"served_{name}"] == pytest.approx(value, abs=1e-5), (reported["name"], name)


# ---- What participants reported ----


@pytest.mark.parametrize("private", [None, "bias", "head", r"body.1.bias"])
@pytest.mark.parametrize("text", ALL)
def test_each_participant_s_model_reproduces_its_reported_figures(text, private, tmp_path):
    try:
        run(text, tmp_path, private)
    except ConfigError as error:  # the combinations that a run refuses
        assert private is not None and "private" in str(error), error
        return
    check_reported(tmp_path)


@pytest.mark.parametrize("text", ["wecfl:k=2", "fedavg+:k=2", "ifca-cam:k=2,warmup=1", "ditto"])
@pytest.mark.parametrize("task", ["binary", "multilabel", "regression", "survival", "segmentation"])
def test_in_every_task(task, text, tmp_path):
    run(text, tmp_path, "bias", Made(task), task=task, batch_size=8)
    check_reported(tmp_path, source=Made(task))


# ---- Who has trained layers, and who has not ----


def test_models_with_private_layers_are_refused_with_the_way_out(tmp_path, capsys):
    run("wecfl:k=2", tmp_path / "run", "bias", settings=ServerSettings(2, key_metric="loss"))
    np.savez(tmp_path / "new.npz", images=np.zeros((2, 8, 8), np.uint8))
    out = "untrained, as each participant has trained its own; name a participant"
    for folder in (tmp_path / "run", tmp_path / "run" / "best"):
        with pytest.raises(ConfigError, match=out):
            load_model(folder, "cluster-0")
        words = [str(folder), "--slot", "cluster-0", "--data", str(tmp_path / "new.npz")]
        assert main(["predict", *words, "--out", str(tmp_path / "x.csv")]) == 2
        assert out in capsys.readouterr().err and not (tmp_path / "x.csv").exists()


def test_what_an_earlier_version_left_with_private_layers_is_refused(tmp_path):
    run("fedavg", tmp_path, "bias")
    path = tmp_path / "clusters" / "global.safetensors"
    arrays, meta = load_arrays(path)
    del meta["untrained"]
    save_arrays(path, arrays, meta)
    with pytest.raises(ConfigError, match="untrained, as each participant"):
        load_model(tmp_path)


@pytest.mark.parametrize(("text", "refused"), [("fedper", True), ("fedbabu", False), ("ditto", False)])
def test_a_head_that_only_participants_train_is_refused(text, refused, tmp_path):
    run(text, tmp_path)
    if refused:
        with pytest.raises(ConfigError, match="untrained, as each participant"):
            load_model(tmp_path)
    else:
        assert load_model(tmp_path)


def test_nothing_is_kept_of_participants_where_that_is_forbidden(tmp_path):
    run("wecfl:k=2", tmp_path, "bias", at_site=SiteSettings(keep_served=False))
    assert not (tmp_path / "served").exists()
    with pytest.raises(ConfigError, match=r"does not hold what 'p0' predicted with: .*keep_served is off"):
        load_model(tmp_path, participant="p0")


def test_private_files_are_for_their_user_alone_and_hold_nothing_twice(tmp_path):
    run("wecfl:k=2", tmp_path, "bias")
    files = sorted((tmp_path / "served").iterdir())
    assert [path.stem for path in files] == [f"p{i}" for i in range(6)]
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert {*load_arrays(path)[0]} == {"body.1.bias", "head.bias"}
    kept = {path: path.read_bytes() for path in files}
    run("wecfl:k=2", tmp_path, "bias")
    assert kept == {path: path.read_bytes() for path in files}


# ---- The predictions' file ----

TABLE = "table:path={},label=outcome,key=site"


def table(path: Path, classes: tuple[str, ...], rows: int = 60, **columns: str) -> Path:
    """Rows of two sites; the label follows from the feature x, and columns are added as they are."""
    lines = [",".join(["x", "outcome", "site", *columns])]
    for i in range(rows):
        cells = [str(i % 7), classes[i % 7 * len(classes) // 7], "ns"[i % 2], *columns.values()]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")
    return path


def rows_of(run: Path, data: Path, *words: str) -> list[dict[str, str]]:
    out = data.parent / "out.csv"
    assert main(["predict", str(run), "--data", str(data), "--out", str(out), *words]) == 0
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def finished(folder: Path, *words: str, classes: tuple[str, ...] = ("benign", "malignant")) -> Path:
    """A run of a table through the command line."""
    data = TABLE.format(table(folder / "train.csv", classes))
    given = ["--data", data, "--model", "mlp:hidden=[]", "--rounds", "2", "--method", "wecfl:k=2", *words]
    assert main(["run", "--loop", *given, "--out", str(folder / "run")]) == 0
    return folder / "run" / "wecfl-k2"


def test_predictions_say_what_they_mean(tmp_path):
    """The names of classes, and the rows' identifiers as they are written: 007 is no 7, and no text is a formula."""
    done = finished(tmp_path)
    new = tmp_path / "new.csv"
    new.write_text("patient,x\n007,1\n=cmd|' /C calc'!A0,6\n-3,2\n@x,\n,5\n")
    name = load_run(done).summary["participants"][0]["name"]
    found = rows_of(done, new, "--participant", name, "--id", "patient")
    assert [*found[0]] == ["patient", "predicted outcome", "p(benign)", "p(malignant)"]
    assert [row["patient"] for row in found] == ["007", "'=cmd|' /C calc'!A0", "-3", "'@x", ""]
    for row in found:
        best = max(("benign", "malignant"), key=lambda c: float(row[f"p({c})"]))
        assert row["predicted outcome"] == best
    without = new.parent / "without.csv"
    without.write_text("x\n1\n")
    assert rows_of(done, without, "--participant", name)[0]["sample"] == "0"


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
    done = finished(tmp_path, "--task", task, classes=labels)
    name = load_run(done).summary["participants"][0]["name"]
    assert [*rows_of(done, table(tmp_path / "new.csv", labels), "--participant", name)[0]] == ["sample", *header]


def test_a_participant_of_a_clustered_run_needs_no_slot(tmp_path, capsys):
    done = run("wecfl:k=2", tmp_path / "run")
    np.savez(tmp_path / "new.npz", images=np.random.default_rng(0).random((5, 8, 8)).astype(np.float32))
    for one in load_run(done).summary["participants"]:
        mine, cluster = (
            rows_of(done, tmp_path / "new.npz", *words)
            for words in (["--participant", one["name"]], ["--slot", f"cluster-{one['cluster']}"])
        )
        assert mine == cluster
    run("wecfl:k=2", tmp_path / "both" / "one")
    run("wecfl:k=2", tmp_path / "both" / "two")
    with pytest.raises(ConfigError, match=r"holds 'p0' more than once: .*; name one run"):
        load_model(tmp_path / "both", participant="p0")
    words = ["predict", str(done), "--data", str(tmp_path / "new.npz"), "--out", str(tmp_path / "x.csv")]
    for more, says in (
        ([], "it has: cluster-0, cluster-1, global; or choose who predicts with --participant: 'p0', 'p1'"),
        (["--participant", "p9"], "has no participant 'p9'; it has 'p0', 'p1', 'p2', 'p3', 'p4', ... (6)"),
        (["--participant", "../clusters/global"], "there is no participant '../clusters/global'"),
        (["--participant", "p0", "--id", "x"], "--id = 'x' names a table's column"),
    ):
        assert main([*words, *more]) == 2
        assert says in capsys.readouterr().err
