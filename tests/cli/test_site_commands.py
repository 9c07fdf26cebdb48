# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What an operator checks before a job, and predicts with after it; tables on the command line."""

import csv
import gzip
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cfl_flare.cli import main
from cfl_flare.cli import site_check as check
from cfl_flare.cli.options import SIMULATED
from cfl_flare.cli.specs import dealt_out, read_source
from cfl_flare.core.config import build, describe
from cfl_flare.core.errors import DataError
from cfl_flare.core.params import Params
from cfl_flare.data import DataConfig, Digits, ParticipantData, Samples, SiteData
from cfl_flare.data.hospitals import FOLDER, HEART, Heart, Stroke
from cfl_flare.data.summary import DataSummary
from cfl_flare.engine.site import Site
from cfl_flare.methods import FedAvg
from cfl_flare.models import MLP
from cfl_flare.results.balance import LedgerJob
from cfl_flare.results.ledger import JobBooks, Ledger, Rules
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.served import find_model, save_served
from cfl_flare.training.ensemble import Served
from cfl_flare.training.membership import attacks
from cfl_flare.training.privacy import Spend, epsilon_of, rdp_of
from cfl_flare.training.resident import ResidentModel
from cfl_flare.training.settings import TrainSettings
from tests.helpers.files import write_npz
from tests.helpers.needs import needs_extension
from tests.helpers.processes import can_mount, on_small_disk
from tests.helpers.tiny import coin


@pytest.fixture(autouse=True)
def wide_and_unset(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("CFL_DATA", "CFL_DATA_ROOT", "CFL_STATE_ROOT"):
        monkeypatch.delenv(name, raising=False)


def write_labelled_npz(path: Path, labels: list[int], test: list[int] | None = None) -> Path:
    rng = np.random.default_rng(0)
    images, test_images = (rng.integers(0, 256, (len(own), 8, 8), np.uint8) for own in (labels, test or labels))
    return write_npz(path, images, np.array(labels), test_images, np.array(test or labels))


def checked(capsys, *words: str) -> tuple[int, str]:
    status = main(["site", "check", *words])
    said = capsys.readouterr()
    return status, said.out + said.err


def test_a_sound_site(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CFL_DATA", str(write_labelled_npz(tmp_path / "ward.npz", [0, 1, 1, 2] * 5)))
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path))
    status, said = checked(capsys)
    assert status == 0 and "fails" not in said
    for found in ("ward.npz (CFL_DATA)", "20 training, 20 test, 1 channel of 8x8", "0: 5+5, 1: 10+10, 2: 5+5", "MLP"):
        assert found in said
    assert "ms per step" in said and f"free at {tmp_path}" in said


@pytest.mark.parametrize(
    ("words", "reason", "way_out"),
    [
        ((), "does not say where its data is", "set CFL_DATA to"),
        (("--data", "/none/of.npz"), "path = '/none/of.npz' is not a file", ""),
        (("--data", "{few}"), "has 4 training samples, fewer than min_samples = 8", "lower that"),
        (("--data", "{good}", "--model", "mlp:num_classes=2"), "label 2 does not fit", "num_classes to 3"),
        (
            ("--data", "{good}", "--model", "mlp:input_shape=[1,9,9]"),
            "does not take samples",
            "set the model's input_shape",
        ),
        (("--data", "{good}", "--device", "cuda:77"), "device = 'cuda:77' cannot be used here", "name another"),
    ],
)
def test_what_would_make_a_job_fail_is_said_before_it(tmp_path, capsys, words, reason, way_out):
    files = {
        "few": write_labelled_npz(tmp_path / "few.npz", [0, 1, 0, 1]),
        "good": write_labelled_npz(tmp_path / "good.npz", [0, 1, 2, 2] * 3),
    }
    status, said = checked(capsys, *(word.format(**files) for word in words))
    assert status == 1
    assert "fails" in said and reason in said and way_out in said
    assert "1 of" in said and "would make a job fail" in said


def test_the_current_folder_s_kit_and_a_server_s(tmp_path, capsys, monkeypatch):
    for name in ("startup", "local"):
        (tmp_path / "kit" / name).mkdir(parents=True)
    (tmp_path / "kit" / "startup" / "fed_server.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "kit")
    assert main(["site", "prepare", "."]) == 0
    assert "logs" not in capsys.readouterr().out
    status, said = checked(capsys)
    assert status == 0 and "has cfl_flare" in said and "none: the kit is a server's" in said and "logs" not in said


def test_a_kit_and_a_full_disk(tmp_path, monkeypatch):
    for name in ("startup", "local"):
        (tmp_path / "kit" / name).mkdir(parents=True)
    found = {finding.what: finding for finding in check.kit(tmp_path / "kit")}
    whats = ("class allow-list", "logs", "policy", "custom code", "admin console")
    allowed, logs, policy, code, console = (found[what] for what in whats)
    assert allowed.fatal and "site prepare" in allowed.way_out
    assert code.result.endswith("from anyone") and console.result.endswith("the like: anyone") and console.way_out
    assert logs.way_out and not logs.fatal
    assert policy.result.startswith("jobs may name no files; min_sites_per_cluster at least 3") and not policy.way_out
    assert check.default_state_root(tmp_path / "kit") == tmp_path / "cfl_state"
    assert not check.disk(tmp_path, 1).fatal
    assert check.disk(tmp_path, 10**18).fatal
    (tmp_path / "file").write_text("")
    assert "is not writable" in check.disk(tmp_path / "file" / "state", 1).result


def test_what_a_site_s_patients_have_left_of_their_privacy(tmp_path, capsys, monkeypatch):
    kit, data = tmp_path / "kit", write_labelled_npz(tmp_path / "ward.npz", [0, 1, 1, 2] * 5)
    for name in ("startup", "local"):
        (kit / name).mkdir(parents=True)
    with np.load(data) as arrays:
        np.savez(data, **arrays, train_pid=np.arange(20) // 4, test_pid=100 + np.arange(20) // 5)
    for name, value in (("CFL_DATA", str(data)), ("CFL_STATE_ROOT", str(tmp_path)), ("CFL_PATIENT", "pid")):
        monkeypatch.setenv(name, value)
    assert main(["site", "prepare", str(kit), "--epsilon-budget", "8"]) == 0
    status, said = checked(capsys, "--kit", str(kit))
    assert status == 0 and "5 training, 4 test, by 'pid'" in said and "epsilon_budget 8, nothing spent" in said
    rules = Rules(8.0, 1e-5, "pid")
    ledger = Ledger(tmp_path, kit / "cfl_ledger", check.name_of(kit), rules, place=str(data))
    ledger.open()
    spends = [Spend("training", "train", 0.8)]
    JobBooks(ledger, LedgerJob("a", "ward", "", 8.0, 1e-5, "pid")).spend("p", 0, spends)
    status, said = checked(capsys, "--kit", str(kit))
    left = ledger.summary()["left"]
    assert (
        status == 0 and f"epsilon {epsilon_of(rdp_of(spends), 1e-5):.3g} spent, {left:.3g} of 8 left for a job" in said
    )
    ledger.file.write_bytes(ledger.file.read_bytes()[:-9])
    status, said = checked(capsys, "--kit", str(kit))
    assert status != 0 and "fails" in said and "it is no current copy" in said


def test_a_container_that_forgets_and_a_kit_that_deploy_prepare_has_reset(tmp_path, monkeypatch, capsys):
    """FLARE writes a launcher into the kit's resources.json.default, and deletes resources.json."""
    monkeypatch.setattr(check, "in_container", lambda: False)
    monkeypatch.delenv("CFL_STATE_ROOT", raising=False)
    kit = tmp_path / "kit"
    for name in ("startup", "local"):
        (kit / name).mkdir(parents=True)
    default, root = kit / "local" / "resources.json.default", tmp_path / "state"
    default.write_text(json.dumps({"components": [{"id": "process_launcher"}]}))
    assert main(["site", "prepare", str(kit)]) == 0
    assert [*check.state(root, kit)] == [] and not next(check.kit(kit)).fatal
    launcher = {"id": "docker_launcher", "path": "a.B", "args": {"default_job_env": {}}}
    default.write_text(json.dumps({"components": [launcher]}))
    (kit / "local" / "resources.json").unlink()
    allowed = next(check.kit(kit))
    assert allowed.fatal and allowed.way_out.endswith(
        "'deploy prepare' if you use it: that deletes local/resources.json"
    )
    assert main(["site", "prepare", str(kit)]) == 0
    (found,) = check.state(root, kit)
    assert "FLARE keeps the job's folder alone" in found.result and not found.fatal
    assert (
        "study_runtime.yaml"
        in checked(capsys, "--kit", str(kit), "--data", str(write_labelled_npz(tmp_path / "x.npz", [0, 1] * 8)))[1]
    )
    (kit / "local" / "study_runtime.yaml").write_text("studies: {blood: {env: {CFL_STATE_ROOT: /data/blood/state}}}")
    assert [*check.state(root, kit)] == []
    (found,) = check.state(kit / "state", kit)
    assert "is inside the kit" in found.result and found.way_out
    monkeypatch.setattr(check, "in_container", lambda: True)
    (found,) = check.state(root, None)
    assert "is lost with this container" in found.result and found.way_out
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) == str(tmp_path))
    assert [*check.state(root, None)] == []


def server_kit(folder: Path, store: str) -> Path:
    for name in ("startup", "local"):
        (folder / name).mkdir(parents=True)
    (folder / "startup" / "fed_server.json").write_text("{}")
    manager = {"id": "job_manager", "path": "a.B", "args": {"uri_root": store}}
    content = {"format_version": 2, "class_allow_list": [], "components": [{"id": "other"}, manager]}
    (folder / "local" / "resources.json.default").write_text(json.dumps(content))
    assert main(["site", "prepare", str(folder)]) == 0
    return folder


def test_a_server_s_disks(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path / "state"))
    kit = server_kit(tmp_path / "kit", "/tmp/nvflare/jobs-storage")
    status, said = checked(capsys, "--kit", str(kit))
    assert status == 0
    places = {"checkpoints": tmp_path / "state", "running jobs": kit, "finished jobs": "/tmp/nvflare/jobs-storage"}
    for what, place in places.items():
        line = next(line for line in said.splitlines() if f"disk: {what}" in line)
        assert "ok" in line and f"free at {place}" in line
    assert "is below the temporary folder" in said and "set uri_root of job_manager" in said
    shape = "input_shape=[3,100000,100000],num_classes=9,hidden=[10]"  # 1.2 TB, which nobody allocates
    status, said = checked(capsys, "--kit", str(kit), "--model", f"mlp:{shape}")
    assert status == 1 and "3 of" in said and "free 72.0 TB, or set CFL_STATE_ROOT on another disk" in said


@pytest.mark.skipif(not can_mount(), reason="this user may not mount a file system")
def test_a_server_s_disk_that_is_really_full(tmp_path):
    (tmp_path / "state").mkdir()
    kit = server_kit(tmp_path / "kit", str(tmp_path / "store"))
    code = (
        "import os, sys\nfrom cfl_flare.cli import main\nos.environ['CFL_STATE_ROOT'] = sys.argv[1]\n"
        f"sys.exit(main(['site', 'check', '--kit', {str(kit)!r}]))"
    )
    done = on_small_disk(tmp_path / "state", code, 1024)
    assert done.returncode == 1 and "fails disk: checkpoints" in done.stdout, done.stderr
    assert "1 of" in done.stderr and "would make a job fail" in done.stderr


def data_of(x: np.ndarray, y: list[int], test: list[int]) -> ParticipantData:
    return ParticipantData("p", Samples(x.astype(np.float32), np.array(y)), Samples(x[: len(test)], np.array(test)))


def test_what_is_strange_about_data_is_remarked():
    usual = DataSummary.of(data_of(np.arange(4.0).reshape(4, 1) / 4, [0, 1, 0, 1], [0, 1]))
    assert (usual.train, usual.test, usual.remarks) == ((2, 2), (1, 1), [])
    strange = DataSummary.of(data_of(np.full((4, 1), 509.0), [1, 1, 1, 1], [2])).remarks
    assert [remark.split(";")[0] for remark in strange] == [
        "test labels 2 never occur in training",
        "all training samples have label 1",
        "all training samples are the same",
        "no sample is of class 0",
        "samples go from 255 to 255 where 0 to 1 is expected",
    ]
    own = next(iter(DataConfig().host(Digits(), "s", 0, 1)))
    assert DataSummary.of(own).remarks == []


def mlp() -> tuple[dict, Params]:
    spec = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 4, 4], "num_classes": 3, "hidden": []}}
    model = ResidentModel(MLP((1, 4, 4), 3, ()))
    flat = Params(model.layout, np.zeros(model.layout.size, np.float32))
    places = {e.name: e for e in model.layout.entries}
    flat.vector[places["head.bias"].offset + 1] = np.log(2)  # class 1 twice as likely as each other
    return spec, flat


def predicted(tmp_path: Path, *words: str) -> list[list[str]]:
    assert main(["predict", *words, "--out", str(tmp_path / "out.csv")]) == 0
    with (tmp_path / "out.csv").open() as file:
        return list(csv.reader(file))


@needs_extension("aftercare")
def test_predictions_are_the_model_s_own(tmp_path):
    spec, model = mlp()
    save_served(tmp_path / "run" / "site" / "served", "ward", Served((model,)), spec, 3)
    np.savez(tmp_path / "new.npz", images=np.zeros((2, 4, 4), np.uint8))
    rows = predicted(tmp_path, str(tmp_path / "run"), "--data", str(tmp_path / "new.npz"))
    assert rows == [
        ["sample", "label", "p0", "p1", "p2"],
        *([str(i), "1", "0.250000", "0.500000", "0.250000"] for i in (0, 1)),
    ]


@needs_extension("aftercare")
def test_a_sum_of_models_predicts_from_a_folder_of_images_of_any_size(tmp_path):
    spec, model = mlp()
    save_served(tmp_path, "sum", Served((model, model)), spec, 3)
    for name in ("new/b.png", "new/deep/a.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 7)).save(tmp_path / name)
    rows = predicted(tmp_path, str(tmp_path / "sum.safetensors"), "--data", str(tmp_path / "new"))
    assert [row[:2] for row in rows[1:]] == [["b.png", "1"], ["deep/a.png", "1"]]
    assert float(rows[1][3]) == pytest.approx(4 / 6, abs=1e-6)  # 2 * 2 against 1 and 1


@needs_extension("aftercare")
def test_bad_input_of_predict_is_one_line(tmp_path, capsys, monkeypatch):
    spec, model = mlp()
    for name in ("a", "b"):
        save_served(tmp_path / "two" / "served", name, Served((model,)), spec, 1)
    save_served(tmp_path, "own", Served((coin(0, 1),)), {"class_path": "tests.helpers.tiny.Coin", "args": {}}, 1)
    np.savez(tmp_path / "big.npz", images=np.zeros((2, 9, 9), np.uint8))
    np.savez(tmp_path / "odd.npz", pictures=np.zeros((2, 4, 4), np.uint8))

    def refused(run: str, data: str, *more: str, out: str = "x.csv") -> str:
        words = ["predict", str(tmp_path / run), "--data", str(tmp_path / data), "--out", str(tmp_path / out), *more]
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    assert "choose one with --slot; it has: a, b" in refused("two", "big.npz")
    assert "no single model 'c'" in refused("two", "big.npz", "--slot", "c")
    assert "neither a model's file nor a folder" in refused("none", "big.npz")
    assert "does not take images of shape (1, 9, 9)" in refused("two", "big.npz", "--slot", "a")
    assert "has no array images or test_images but pictures" in refused("two", "odd.npz", "--slot", "a")
    assert "is not a file or folder" in refused("two", "none.npz", "--slot", "a")
    monkeypatch.setenv("CFL_DATA_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path / "two")
    assert main(["predict", str(tmp_path / "two"), "--slot", "a", "--data", "odd.npz", "--out", "x.csv"]) == 2
    assert "has no array" in capsys.readouterr().err  # it was found
    assert "holds a tests.helpers.tiny.Coin" in refused("own.safetensors", "big.npz")
    assert "make the folder first" in refused("two", "big.npz", out="none/x.csv")
    assert find_model(tmp_path / "two", "b").stem == "b"


# ---- Tables ----


RUN = ["run", "--loop", "--model", "mlp:hidden=[]", "--rounds", "2", "--data", "heart"]


def write_hospital_tables(folder):
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


def run_refused(words, capsys):
    assert main(words) == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory):
    """A run of the four hospitals."""
    out = tmp_path_factory.mktemp("run") / "out"
    assert main([*RUN, "--method", "fedavg", "--method", "wecfl:k=2", "--out", str(out)]) == 0
    return out


def test_hospitals_are_the_participants_by_themselves(finished_runs):
    run = load_run(finished_runs / "fedavg")
    assert [p["samples"] for p in run.summary["participants"]] == [227, 220, 150, 92]
    assert run.summary["data"]["partition"] == {"partition": "natural"}
    names = ["cleveland", "hungary", "long-beach", "switzerland"]
    assert [p["name"] for p in run.summary["participants"]] == run.summary["data"]["owners"] == names
    assert {line["participant"] for line in run.assignments} == {*names}


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


@needs_extension("aftercare")
def test_predict_takes_a_table_as_it_is(finished_runs, tmp_path, capsys):
    new = write_hospital_tables(tmp_path)[0]
    out, model = tmp_path / "p.csv", str(finished_runs / "fedavg")
    words = ["predict", model, "--data", str(new), "--out", str(out)]
    assert "whose table is it? --participant None is none of the run's 4" in run_refused(words, capsys)
    assert main([*words, "--participant", "cleveland"]) == 0
    found = list(csv.DictReader(out.open()))
    assert len(found) == 303 and {row["predicted num"] for row in found} == {"<=0", ">0"}
    assert np.isfinite([float(row["p(num>0)"]) for row in found]).all()
    fewer = tmp_path / "fewer.csv"
    fewer.write_text("age,sex\n60,1\n")
    assert "no column 'cp', which the sites agreed on" in run_refused(
        [*words[:3], str(fewer), *words[4:], "--participant", "cleveland"], capsys
    )
    more = tmp_path / "more.csv"
    lines = new.read_text().splitlines()
    more.write_text("\n".join([lines[0] + ",weight", *(line + ",70" for line in lines[1:])]))
    assert "column 'weight' is new" in run_refused(
        [*words[:3], str(more), *words[4:], "--participant", "cleveland"], capsys
    )


@needs_extension("aftercare")
def test_predictions_are_those_of_the_participant_s_own_test(finished_runs, tmp_path):
    """A participant's rows, as the raw file has them, give what was measured of it."""
    new = next(path for path in write_hospital_tables(tmp_path) if path.stem == "switzerland")
    out = tmp_path / "p.csv"
    words = ["--data", str(new), "--out", str(out), "--participant", "switzerland"]
    assert main(["predict", str(finished_runs / "fedavg"), *words]) == 0
    labels = [int(row["num"]) > 0 for row in csv.DictReader(new.open())]
    right = np.mean([(row["predicted num"] == ">0") == label for row, label in zip(csv.DictReader(out.open()), labels)])
    assert right > 0.6  # 93 % of them are ill; scaled as another hospital's they would be near chance


@needs_extension("aftercare")
def test_a_newcomer_s_table_fits(finished_runs, tmp_path, capsys):
    new = write_hospital_tables(tmp_path)[1]
    words = ["onboard", str(finished_runs / "wecfl-k2"), "--name", "elsewhere", "--out", str(tmp_path / "joined")]
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
    for path in write_hospital_tables(tmp_path):
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
    monkeypatch.setenv("CFL_DATA", str(write_hospital_tables(tmp_path)[0]))
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
    assert dealt_out(read_source(f"table:path={path},leave=[ward]"), {})["partition"] == "iid"


# ---- Membership attacks on a kept model ----


def test_a_site_attacks_a_model_that_it_keeps(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (140, 4, 4), np.uint8), rng.integers(0, 5, 140)
    arrays = {"train_images": x[:40], "train_labels": y[:40], "test_images": x[40:], "test_labels": y[40:]}
    np.savez(tmp_path / "ward.npz", **arrays)
    monkeypatch.setenv("CFL_DATA", str(tmp_path / "ward.npz"))
    spec, training = describe(MLP((1, 4, 4), 5), "model"), {"lr": 0.1, "local_steps": 20}
    site = Site(FedAvg(), partial(build, spec, torch.nn.Module, "model"), TrainSettings(**training), 0)
    site.add(DataConfig().host(SiteData(), "ward", 0, 1))
    model = site.runtime.initial(0)
    for number in range(4):
        model = site.learner("ward", {}, number).train(model)
    said = {"source": describe(SiteData(), "data"), "data": {}, "training": training, "seed": 0}
    save_served(tmp_path / "served", "ward", Served.of(model), spec, 4, made_with=said)
    expected = attacks(site.learner("ward", {}, 4), {"ward": Served.of(model)}, 4)["ward"]
    assert main(["site", "audit", str(tmp_path), "--shadow-models", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line, of in zip(lines[1:3], expected.values()):
        assert f" {of.rate:.1%} " in line and line.split()[-2:] == ["40", "100"]
    assert expected["loss"].rate > 0.5
    wrong = (({**said, "seed": -1}, "seed = -1 is not"), ({**said, "source": {}}, "other data"), (None, "not say"))
    for changed, message in wrong:
        save_served(tmp_path / "served", "ward", Served.of(model), spec, 4, made_with=changed)
        assert main(["site", "audit", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err
