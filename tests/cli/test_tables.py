# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tables on the command line: what is printed, what sites agree on, and predictions of a table as it is."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from cfl_flare.cli import main
from cfl_flare.cli.options import SIMULATED
from cfl_flare.cli.specs import dealt_out, read_source
from cfl_flare.core.errors import DataError
from cfl_flare.data.hospitals import FOLDER, HEART, Heart, Stroke
from cfl_flare.results.run_dir import load_run

RUN = ["run", "--loop", "--model", "mlp:hidden=[]", "--rounds", "2", "--data", "heart"]


def hospitals(folder):
    """The raw tables of the four hospitals."""
    with gzip.open(FOLDER / HEART, "rt") as file:
        rows = list(csv.DictReader(file))
    for name in sorted({row["hospital"] for row in rows}):
        own = [{k: v for k, v in row.items() if k != "hospital"} for row in rows if row["hospital"] == name]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(own[0]))
            writer.writeheader()
            writer.writerows(own)
    return sorted(folder.glob("*.csv"))


def refused(words, capsys):
    assert main(words) == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of the four hospitals."""
    out = tmp_path_factory.mktemp("run") / "out"
    assert main([*RUN, "--method", "fedavg", "--method", "wecfl:k=2", "--out", str(out)]) == 0
    return out


def test_hospitals_are_the_participants_by_themselves(finished):
    run = load_run(finished / "fedavg")
    assert [p["samples"] for p in run.summary["participants"]] == [227, 220, 150, 92]
    assert run.summary["data"]["partition"] == {"partition": "natural"}
    names = ["cleveland", "hungary", "long-beach", "switzerland"]
    assert [p["name"] for p in run.summary["participants"]] == run.summary["data"]["owners"] == names
    assert {line["participant"] for line in run.assignments} == {*names}
    assert "long-beach" in (finished / "fedavg" / "report.html").read_text()


def test_what_a_hospital_is_called_moves_no_number(tmp_path):
    """Hostile names become names of files; the participants are the same, and so is every draw of theirs."""
    finals = []
    for i, (one, two) in enumerate((("a", "b"), ("<img src=x>", "=cmd/../b"))):
        rows = [f"{i % 7},{i % 2},{(one, two)[i % 2 if i % 5 else 0]}" for i in range(80)]
        data = tmp_path / f"{i}.csv"
        data.write_text("\n".join(["x,label,site", *rows]) + "\n")
        words = ["--method", "ifca:k=2", "--sample", "1", "--data", f"table:path={data},key=site"]
        assert main([*RUN[:-2], *words, "--out", str(tmp_path / str(i))]) == 0
        run = load_run(tmp_path / str(i) / "ifca-k2")
        finals.append([{**p, "name": ""} for p in run.summary["participants"]])
    assert finals[0] == finals[1]
    assert [p["name"] for p in run.summary["participants"]] == ["_img src_x_", "_cmd_.._b"]
    assert {path.stem for path in (run.folder / "served").iterdir()} == {"_img src_x_", "_cmd_.._b"}


def test_a_partition_of_one_s_own_takes_the_usual_number():
    assert dealt_out(Heart(), {"partition": "iid"})["participants"] == SIMULATED["participants"] == 24
    assert dealt_out(read_source("digits"), {}) == SIMULATED


def test_what_columns_became_is_printed(capsys):
    assert main(["partition", "--data", "heart", "--show"]) == 0
    printed = capsys.readouterr().out
    for line in (
        "15 columns, 32 features",
        "cp: category of 1, 2, 3, 4",
        "natural: 4 of 4 keys take part",
        "long-beach",
    ):
        assert line in printed


def test_predict_takes_a_table_as_it_is(finished, tmp_path, capsys):
    new = hospitals(tmp_path)[0]
    out, model = tmp_path / "p.csv", str(finished / "fedavg")
    words = ["predict", model, "--data", str(new), "--out", str(out)]
    assert "whose table is it? --participant None is none of the run's 4" in refused(words, capsys)
    assert main([*words, "--participant", "cleveland"]) == 0
    found = list(csv.DictReader(out.open()))
    assert len(found) == 303 and {row["predicted num"] for row in found} == {"<=0", ">0"}
    assert np.isfinite([float(row["p(num>0)"]) for row in found]).all()
    fewer = tmp_path / "fewer.csv"
    fewer.write_text("age,sex\n60,1\n")
    assert "no column 'cp', which the sites agreed on" in refused(
        [*words[:3], str(fewer), *words[4:], "--participant", "cleveland"], capsys
    )
    more = tmp_path / "more.csv"
    lines = new.read_text().splitlines()
    more.write_text("\n".join([lines[0] + ",weight", *(line + ",70" for line in lines[1:])]))
    assert "column 'weight' is new" in refused(
        [*words[:3], str(more), *words[4:], "--participant", "cleveland"], capsys
    )


def test_predictions_are_those_of_the_participant_s_own_test(finished, tmp_path):
    """A participant's rows, as the raw file has them, give what was measured of it."""
    new = next(path for path in hospitals(tmp_path) if path.stem == "switzerland")
    out = tmp_path / "p.csv"
    words = ["--data", str(new), "--out", str(out), "--participant", "switzerland"]
    assert main(["predict", str(finished / "fedavg"), *words]) == 0
    labels = [int(row["num"]) > 0 for row in csv.DictReader(new.open())]
    right = np.mean([(row["predicted num"] == ">0") == label for row, label in zip(csv.DictReader(out.open()), labels)])
    assert right > 0.6  # 93 % of them are ill; scaled as another hospital's they would be near chance


def test_a_newcomer_s_table_fits(finished, tmp_path, capsys):
    new = hospitals(tmp_path)[1]
    words = ["onboard", str(finished / "wecfl-k2"), "--name", "elsewhere", "--out", str(tmp_path / "joined")]
    assert main([*words, "--data", f"table:path={new}"]) == 0
    assert (
        main(
            [
                "predict",
                str(tmp_path / "joined" / "model.safetensors"),
                "--data",
                str(new),
                "--out",
                str(tmp_path / "o.csv"),
            ]
        )
        == 0
    )
    assert len(list(csv.DictReader((tmp_path / "o.csv").open()))) == 294


def test_sites_agree_by_files(tmp_path, capsys, monkeypatch):
    files = []
    for path in hospitals(tmp_path):
        files.append(str(tmp_path / f"{path.stem}.json"))
        words = ["--data", f"table:path={path},label=num,categories=[cp,restecg,slope,thal]", "--out", files[-1]]
        assert main(["site", "columns", *words]) == 0
        assert '"mean"' not in Path(files[-1]).read_text()
        assert main(["site", "columns", "--scale", *words]) == 0
    printed = capsys.readouterr().out
    assert "cp: category of 1, 2, 3, 4" in printed and "Read it before you give it to others" in printed
    said = json.loads((tmp_path / "cleveland.json").read_text())
    by_name = {one["column"]: one for one in said["columns"]}
    assert by_name["age"]["rows"] == 227 and "thal" in by_name and "restecg" in by_name
    assert by_name["restecg"]["categories"] == ["0", "2"]  # four patients have the third
    assert main(["columns", *files, "--out", str(tmp_path / "all.json")]) == 0
    both = {one["column"]: one for one in json.loads((tmp_path / "all.json").read_text())["columns"]}
    assert both["restecg"]["categories"] == ["0", "1", "2"] and both["age"]["rows"] == 691
    assert "22 features of 4 sites" in capsys.readouterr().out
    words = [
        "export",
        "--data",
        f"site:columns={tmp_path / 'all.json'}",
        "--name",
        "heart",
        "--out",
        str(tmp_path / "jobs"),
    ]
    model = "mlp:input_shape=[22],num_classes=2,hidden=[]"
    assert main([*words, "--model", model, "--method", "fedavg"]) == 0
    assert '"restecg"' in (tmp_path / "jobs" / "heart" / "app" / "config" / "config_fed_client.json").read_text()
    monkeypatch.setenv("CFL_DATA", str(hospitals(tmp_path)[0]))
    monkeypatch.setenv("CFL_COLUMNS", str(tmp_path / "all.json"))
    assert main(["site", "check"]) == 0
    assert "22" in capsys.readouterr().out
    columns = read_source(f"site:columns={files[0]}")
    with pytest.raises(DataError, match="the job's columns are not those of CFL_COLUMNS here"):
        columns.load()


def test_stroke_is_what_was_published():
    train, test = Stroke().load()
    assert len(train) + len(test) == 19435 - 150 and len(np.unique(train.group)) == 36
    assert len(np.union1d(train.key, test.key)) == 464
    assert abs(np.concatenate((train.y, test.y)).mean() - 12125 / 19285) < 1e-12
    times = Stroke(outcome="death").load()[0]
    assert times.y.shape[1] == 2 and times.y[:, 0].min() == 0.5
    early, late = Stroke(first_days=365).load()
    assert len(early) and len(late) and len(early) + len(late) == 19285


def test_a_table_with_owners_is_dealt_out_to_them(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,ward,label\n" + "".join(f"{i},{'abc'[i % 3]},{i % 2}\n" for i in range(60)))
    settings = dealt_out(read_source(f"table:path={path},key=ward"), {})
    assert settings == {"partition": {"partition": "natural"}, "participants": None}
    assert dealt_out(read_source(f"table:path={path},leave=[ward]"), {}) == SIMULATED
