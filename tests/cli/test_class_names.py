# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Names of classes and ranges of pixels in commands: from a run to its predictions, its newcomers and its tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cfl_flare.cli import main
from cfl_flare.core.errors import ConfigError
from cfl_flare.data.agreement import agreed
from cfl_flare.data.columns import Column, Columns
from tests.helpers.files import write_npz
from tests.helpers.needs import needs_extension


def write_image_folder(root: Path, names: list[str], count: int = 30) -> Path:
    """Images by class: class i of all has a bright row i."""
    for name in names:
        (root / name).mkdir(parents=True)
        for i in range(count):
            image = np.full((4, 4), i % 40, np.uint8)
            image["abc".index(name[0])] = 200 + i % 40
            Image.fromarray(image).save(root / name / f"{i}.png")
    return root


def run_fedavg_on(out: Path, data: str, *words: str) -> dict:
    """Runs FedAvg for two participants; returns the summary."""
    command = ["run", "--loop", "--data", data, "--method", "fedavg", "--out", str(out), "--bootstrap", "0"]
    assert main([*command, "--rounds", "20", "--lr", "0.2", *words]) == 0
    return json.loads((out / "fedavg" / "summary.json").read_text())


def predict(out: Path, model: Path, data: Path) -> list[list[str]]:
    assert (
        main(
            [
                "predict",
                str(model / "fedavg" / "clusters" / "global.safetensors"),
                "--data",
                str(data),
                "--out",
                str(out),
            ]
        )
        == 0
    )
    with out.open() as file:
        return list(csv.reader(file))


@needs_extension("aftercare")
def test_names_go_from_folders_to_predictions_and_newcomers(tmp_path, capfd):
    data = write_image_folder(tmp_path / "data", ["a-benign", "b-malignant"])
    summary = run_fedavg_on(tmp_path / "out", f"folder:path={data}", "--participants", "2")
    assert summary["classes"] == ["a-benign", "b-malignant"]
    assert summary["data"]["partition"] == {"partition": "iid"}
    assert "classes by number: 0: a-benign, 1: b-malignant" in capfd.readouterr().out
    header, *rows = predict(tmp_path / "predictions.csv", tmp_path / "out", data)
    assert header == ["sample", "label", "p(a-benign)", "p(b-malignant)"]
    assert all(name.startswith(label) for name, label, *_ in rows)
    # A newcomer without class a: alone it would number b as 0.
    own = write_image_folder(tmp_path / "own", ["b-malignant"])
    words = ["--data", f"folder:path={own}", "--name", "ward", "--out", str(tmp_path / "ward")]
    capfd.readouterr()
    assert main(["onboard", str(tmp_path / "out" / "fedavg"), *words]) == 0
    assert "1.000" in capfd.readouterr().out
    other = write_image_folder(tmp_path / "other", ["c-other"])
    assert main(["onboard", str(tmp_path / "out" / "fedavg"), "--data", f"folder:path={other}", "--name", "other"]) != 0
    assert "label 'c-other' is none of the 2 classes that were agreed on" in capfd.readouterr().err


def test_partition_shows_names(tmp_path, capfd):
    data = write_image_folder(tmp_path / "data", ["a-benign", "b-malignant"])
    assert main(["partition", "--data", f"folder:path={data}", "--participants", "2", "--show"]) == 0
    shown = capfd.readouterr().out
    assert "classes by number: 0: a-benign, 1: b-malignant" in shown
    assert "a-benign: 12, b-malignant: 12" in shown


def test_site_check_shows_names(tmp_path, capfd):
    data = write_image_folder(tmp_path / "data", ["a-benign", "b-malignant"])
    main(["site", "check", "--data", str(data), "--model", "mlp"])
    assert "a-benign: 24+6, b-malignant: 24+6" in " ".join(capfd.readouterr().out.split())


@needs_extension("aftercare")
def test_a_range_goes_from_a_run_to_predictions(tmp_path, capfd):
    """In Hounsfield units, class 1 is bone."""
    units = np.full((40, 4, 4), -500, np.int16)
    units[20:] = 1500
    labels = np.repeat([0, 1], 20)
    path = tmp_path / "ct.npz"
    write_npz(path, units, labels)
    assert main(["run", "--loop", "--data", str(path), "--out", str(tmp_path / "none")]) != 0
    assert "samples have dtype int16" in capfd.readouterr().err
    words = ["--participants", "2", "--min-samples", "2"]
    summary = run_fedavg_on(tmp_path / "out", f"npz:path={path},range=[-1000,2000],classes=[air,bone]", *words)
    assert summary["range"] == [-1000, 2000]
    header, *rows = predict(tmp_path / "predictions.csv", tmp_path / "out", path)
    assert header[2:] == ["p(air)", "p(bone)"]
    assert [label for _, label, *_ in rows] == ["air"] * 20 + ["bone"] * 20


def test_owners_of_an_archive_are_the_participants(tmp_path, capfd):
    rng = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "test"):
        arrays[f"{split}_images"] = rng.integers(0, 256, (60, 4, 4), np.uint8)
        arrays[f"{split}_labels"] = np.arange(60) % 2
        arrays[f"{split}_clinic"] = np.repeat(["north", "south", "east"], 20)
    np.savez(tmp_path / "clinics.npz", **arrays)
    summary = run_fedavg_on(tmp_path / "out", f"{tmp_path / 'clinics.npz'}:key=clinic")
    assert [person["name"] for person in summary["participants"]] == ["east", "north", "south"]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_codes_are_classes_or_numbers(tmp_path, task):
    """Days of stay 2, 5 and 30: three classes, or numbers whose mean is above 10."""
    rows = [f"{i % 7},{(2, 5, 30)[i % 3]},{'ab'[i % 2]}" for i in range(120)]
    path = tmp_path / "los.csv"
    path.write_text("\n".join(["x,days,ward", *rows]) + "\n")
    data = f"table:path={path},label=days,key=ward"
    summary = run_fedavg_on(tmp_path / "out", data, "--task", task, "--lr", "0.001")
    if task == "classification":
        assert summary["classes"] == ["2", "5", "30"]
        return
    assert "classes" not in summary
    assert summary["final"]["served_mae"] > 5


def test_one_value_is_no_boolean(tmp_path):
    """A site of women alone writes F: with F and M elsewhere that is a category, with F and T a boolean."""
    women = Columns((Column("sex", "category", ("F",)),))
    both = Columns((Column("sex", "category", ("F", "M")),))
    true = Columns((Column("sex", "boolean", ("F", "T")),))
    assert agreed({"s": women, "t": both}).columns[0] == Column("sex", "category", ("F", "M"))
    assert agreed({"s": women, "t": true}).columns[0] == Column("sex", "boolean", ("F", "T"))
    assert agreed({"s": true, "t": women, "u": women}).columns[0].kind == "boolean"
    paths = {}
    for name, sexes in (("women", "FF"), ("men", "MM"), ("general", "FM")):
        path = tmp_path / f"{name}.csv"
        path.write_text("sex,label\n" + "".join(f"{sexes[i % 2]},{i // 2 % 2}\n" for i in range(40)))
        paths[name] = tmp_path / f"{name}.json"
        assert main(["site", "columns", "--data", f"table:path={path}", "--out", str(paths[name])]) == 0
    assert main(["columns", *map(str, paths.values()), "--out", str(tmp_path / "columns.json")]) == 0
    (column,) = Columns.read(tmp_path / "columns.json").columns
    assert (column.kind, column.categories) == ("category", ("F", "M"))


def test_sites_write_a_class_in_one_way():
    columns = (Column("x"),)
    first, second = Columns(columns, classes=("Dead", "alive")), Columns(columns, classes=("alive", "dead"))
    with pytest.raises(ConfigError, match="'Dead' at s and 'dead' at t differ in case"):
        agreed({"s": first, "t": second})
    letters = Columns(columns, classes=("A", "a"))
    assert agreed({"s": letters, "t": Columns(columns, classes=("A", "a"))}).classes == ("A", "a")


def test_codes_are_agreed_on(tmp_path):
    """Labels 1 and 2 at one site, and 1 alone at another, are two classes for both."""
    files = []
    for name, codes in (("s", (1, 2)), ("t", (2, 2))):
        path = tmp_path / f"{name}.csv"
        path.write_text("x,label\n" + "".join(f"{i},{codes[i % 2]}\n" for i in range(40)))
        files.append(str(tmp_path / f"{name}.json"))
        assert main(["site", "columns", "--data", f"table:path={path}", "--out", files[-1]]) == 0
    assert main(["columns", *files, "--out", str(tmp_path / "columns.json")]) == 0
    assert Columns.read(tmp_path / "columns.json").classes == ("1", "2")
