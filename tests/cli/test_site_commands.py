# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What an operator checks before a job, and predicts with after it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cfl_flare.cli import main
from cfl_flare.cli import site_check as check
from cfl_flare.cli.predict import find_model
from cfl_flare.core.params import Params
from cfl_flare.data import DataConfig, Digits, ParticipantData, Samples
from cfl_flare.data.summary import DataSummary
from cfl_flare.models import MLP
from cfl_flare.results.served import save_served
from cfl_flare.training.ensemble import Served
from cfl_flare.training.resident import ResidentModel
from tests.full_disk import can_mount, on_small_disk
from tests.tiny import coin


@pytest.fixture(autouse=True)
def wide_and_unset(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("CFL_DATA", "CFL_DATA_ROOT", "CFL_STATE_ROOT"):
        monkeypatch.delenv(name, raising=False)


def npz(path: Path, labels: list[int], test: list[int] | None = None) -> Path:
    rng = np.random.default_rng(0)
    images = {
        k: rng.integers(0, 256, (len(y), 8, 8), np.uint8) for k, y in (("train", labels), ("test", test or labels))
    }
    arrays = {f"{k}_images": x for k, x in images.items()}
    np.savez(path, **arrays, train_labels=np.array(labels), test_labels=np.array(test or labels))
    return path


def checked(capsys, *words: str) -> tuple[int, str]:
    status = main(["site", "check", *words])
    said = capsys.readouterr()
    return status, said.out + said.err


def test_a_sound_site(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CFL_DATA", str(npz(tmp_path / "ward.npz", [0, 1, 1, 2] * 5)))
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
    files = {"few": npz(tmp_path / "few.npz", [0, 1, 0, 1]), "good": npz(tmp_path / "good.npz", [0, 1, 2, 2] * 3)}
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
        in checked(capsys, "--kit", str(kit), "--data", str(npz(tmp_path / "x.npz", [0, 1] * 8)))[1]
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
        "test labels [2] never occur in training",
        "all training samples have label 1",
        "all training samples are the same",
        "samples reach 255 where 0 to 1 is expected",
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


def test_predictions_are_the_model_s_own(tmp_path):
    spec, model = mlp()
    save_served(tmp_path / "run" / "site" / "served", "ward", Served((model,)), spec, 3)
    np.savez(tmp_path / "new.npz", images=np.zeros((2, 4, 4), np.uint8))
    rows = predicted(tmp_path, str(tmp_path / "run"), "--data", str(tmp_path / "new.npz"))
    assert rows == [
        ["sample", "label", "p0", "p1", "p2"],
        *([str(i), "1", "0.250000", "0.500000", "0.250000"] for i in (0, 1)),
    ]


def test_a_sum_of_models_predicts_from_a_folder_of_images_of_any_size(tmp_path):
    spec, model = mlp()
    save_served(tmp_path, "sum", Served((model, model)), spec, 3)
    for name in ("new/b.png", "new/deep/a.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 7)).save(tmp_path / name)
    rows = predicted(tmp_path, str(tmp_path / "sum.safetensors"), "--data", str(tmp_path / "new"))
    assert [row[:2] for row in rows[1:]] == [["b.png", "1"], ["deep/a.png", "1"]]
    assert float(rows[1][3]) == pytest.approx(4 / 6, abs=1e-6)  # 2 * 2 against 1 and 1


def test_bad_input_of_predict_is_one_line(tmp_path, capsys, monkeypatch):
    spec, model = mlp()
    for name in ("a", "b"):
        save_served(tmp_path / "two" / "served", name, Served((model,)), spec, 1)
    save_served(tmp_path, "own", Served((coin(0, 1),)), {"class_path": "tests.tiny.Coin", "args": {}}, 1)
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
    assert "holds a tests.tiny.Coin" in refused("own.safetensors", "big.npz")
    assert "make the folder first" in refused("two", "big.npz", out="none/x.csv")
    assert find_model(tmp_path / "two", "b").stem == "b"
