# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a job's author, who brings no code, can make a site read or say."""

import errno
import json
import logging
import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from PIL import Image

from cfl_flare.cli import main
from cfl_flare.cli.specs import read_source
from cfl_flare.core.config import describe, marked, unmarked
from cfl_flare.core.errors import FAILURES, DataError, FileError, PathError, PayloadError, failure_of, failure_text
from cfl_flare.data import SOURCES, Npz, SiteData, sources
from cfl_flare.data.images import Folder
from cfl_flare.data.named import MNIST
from cfl_flare.data.table import Table
from cfl_flare.engine.drive import Checkpoints
from cfl_flare.engine.observers import ANSWERING
from cfl_flare.engine.server import Equipment
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.flare import wire
from cfl_flare.flare.aggregator import ClusteringAggregator, Start
from cfl_flare.flare.client_api.private import LedgerFilter
from cfl_flare.flare.client_api.results import check_failure
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.schema import CLIPPED, OF_PARTICIPANT, OF_RESULT
from cfl_flare.methods import Participant, Update
from cfl_flare.models import Logistic
from cfl_flare.training.learner import Learner
from cfl_flare.training.privacy import ORDERS, epsilon_of
from cfl_flare.training.settings import TrainSettings
from tests.helpers.kits import (
    BOUNDS,
    JOB,
    MODEL,
    answer,
    ask_check_in,
    context,
    make_executor,
    write_kit,
    write_kit_npz,
)

FLAT = describe(Logistic((1,), 2), "model")
OF_TABLE = {**JOB, "model": FLAT}


@pytest.fixture(autouse=True)
def secretive_site(tmp_path, monkeypatch, caplog):
    for name in ("CFL_DATA", "CFL_DATA_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path / "state"))
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    caplog.set_level(logging.INFO)


def errors(caplog) -> str:
    """What FLARE streams to the server by default: lines of the level error."""
    return "\n".join(r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR)


def loud(caplog) -> str:
    """What FLARE hands to a job's components by events: whatever is above the level info."""
    return "\n".join(r.getMessage() for r in caplog.records if r.levelno > logging.INFO)


def check_site_refusal(source, folder: Path, caplog, *secrets: str) -> str:
    """The code that a site answers; neither answer nor error lines have a secret, the site's own log has the whole."""
    said = answer(make_executor(source), ask_check_in(), folder)
    assert said.keys() == {"schema", "error"} and said["error"] in FAILURES
    for secret in secrets:
        assert secret not in str(said) + errors(caplog)
    assert f"failed: {said['error']}" in errors(caplog) and "Traceback" not in errors(caplog)
    assert caplog.text.count("in full: Traceback (most recent call last)") == 1
    return said["error"]


@pytest.mark.parametrize("real", [True, False])
def test_no_variable_in_a_job_s_path_is_expanded(tmp_path, caplog, real):
    folder = write_kit(tmp_path / "kit", real)
    assert check_site_refusal(Npz("$DB_PASSWORD"), folder, caplog, "DB_PASSWORD", "hunter2") == (
        "path" if real else "missing"
    )
    assert "$DB_PASSWORD" in caplog.text and "hunter2" not in caplog.text


def test_a_table_of_any_file_gives_its_first_line_to_nobody(tmp_path, caplog):
    secret = tmp_path / "passwd"
    secret.write_text("root:x:0:0,admin\n1,2\n")
    assert (
        check_site_refusal(Table(str(secret), label="zzz"), write_kit(tmp_path / "kit"), caplog, "root:x", str(secret))
        == "path"
    )
    assert "root:x" not in caplog.text  # it was not read


@pytest.mark.parametrize("real", [True, False])
def test_an_honest_table_s_cells_and_columns_stay_at_the_site(tmp_path, caplog, real):
    (tmp_path / "data").mkdir()
    rows = "".join(f"{i},{i % 2}\n" for i in range(20)) + "unknown-HIV+,1\n"
    (tmp_path / "data" / "ward.csv").write_text(f"viral_load,label\n{rows}")
    folder = write_kit(tmp_path / "kit", real, data_roots=[str(tmp_path / "data")])
    source = Table(str(tmp_path / "data" / "ward.csv"))
    assert check_site_refusal(source, folder, caplog, "unknown-HIV+", "viral_load", "ward.csv", "21") == "data"
    assert "row 21 holds 'unknown-HIV+'" in caplog.text


@pytest.mark.parametrize(
    "code, label", [("missing", "label"), ("columns", "zzz"), ("model", "label"), ("model", "share")]
)
def test_the_author_learns_whether_data_columns_or_model_are_wrong(tmp_path, caplog, monkeypatch, code, label):
    """A code for each, as the way out is another one: the operator's, the study's, the author's."""
    rows = "".join(f"{i / 7},1,{i % 2}\n" for i in range(20))
    (tmp_path / "ward.csv").write_text(f"share,hiv,label\n{rows}")
    monkeypatch.setenv("CFL_DATA", str(tmp_path / ("gone.csv" if code == "missing" else "ward.csv")))
    monkeypatch.setenv("CFL_LABEL", label)
    assert check_site_refusal(SiteData(), write_kit(tmp_path / "kit"), caplog, "hiv", "ward.csv", "gone.csv") == code


def test_no_cell_is_in_a_record_that_a_job_could_stream(tmp_path, caplog, monkeypatch):
    """Each job would set the largest cell absent that the one before had named, and so read a column from its end."""
    cells = [*range(1, 18), *[260] * 8, *[265] * 8, *[273] * 8]
    (tmp_path / "ward.csv").write_text("dose,label\n" + "".join(f"{c},{i % 2}\n" for i, c in enumerate(cells)))
    monkeypatch.setenv("CFL_DATA", str(tmp_path / "ward.csv"))
    folder, columns = write_kit(tmp_path / "kit"), {"columns": [{"column": "dose", "kind": "number"}], "label": "label"}
    for largest in (273, 265, 260):
        caplog.clear()
        absent = [cell for cell in cells if cell > largest]
        source = SiteData(columns={**columns, "absent": absent}, scaling="none")
        assert "participants" in answer(make_executor(source, model=marked(FLAT)), ask_check_in(job=OF_TABLE), folder)
        assert f"samples go from 1 to {largest} where" in caplog.text  # for the operator
        assert not loud(caplog)


def test_pinned_columns_pin_the_scaling(tmp_path, caplog, monkeypatch):
    """Without one, and by a source that the pin is not for, a job would train on the cells as they are."""
    (tmp_path / "ward.csv").write_text("dose,label\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    columns = {"columns": [{"column": "dose", "kind": "number"}], "label": "label"}
    (tmp_path / "columns.json").write_text(json.dumps(columns))
    monkeypatch.setenv("CFL_DATA", str(tmp_path / "ward.csv"))
    monkeypatch.setenv("CFL_COLUMNS", str(tmp_path / "columns.json"))
    folder = write_kit(tmp_path / "kit", data_roots=[str(tmp_path)])
    for source in (
        SiteData(scaling="none"),
        SiteData(path=str(tmp_path / "ward.csv"), scaling="none"),
        Table(str(tmp_path / "ward.csv")),
        Table(str(tmp_path / "ward.csv"), columns=columns, scaling="none"),
    ):
        assert check_site_refusal(source, folder, caplog, "dose", "ward.csv") == "columns"
        caplog.clear()
    for scaling in ("auto", "site"):
        job = make_executor(SiteData(scaling=scaling), model=marked(FLAT))
        assert "participants" in answer(job, ask_check_in(job=OF_TABLE), folder)


def test_a_damaged_memory_is_named_in_the_site_s_own_log_alone(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "x.npz")))
    folder = write_kit(tmp_path / "kit")
    job = {**JOB, "method": {"method": "ditto", "lam": 0.1}}
    said = answer(make_executor(SiteData(), method=marked(job["method"])), train(), folder, wire.TRAIN_TASK)
    assert not said["results"]["site-1"].get("error")
    (damaged,) = (tmp_path / "state").rglob("round-*.safetensors")
    damaged.write_bytes(b"0")
    again = train(memory_of="ward", round=1)
    answer(make_executor(SiteData(), method=marked(job["method"])), again, folder, wire.TRAIN_TASK)
    assert str(damaged) in caplog.text and "no memory of round" in caplog.text
    assert "no memory of round" in loud(caplog) and str(tmp_path) not in loud(caplog)


NAMED = {"npz": "path", "site": "path", "folder": "path", "table": "path", "medmnist": "root"}
NAMED |= dict.fromkeys(("mnist", "fashion-mnist", "emnist", "femnist", "cifar10", "cifar100"), "root")


@pytest.mark.parametrize("name", sorted(SOURCES.keys() - {"digits", "heart", "stroke"}))
def test_no_source_tells_whether_a_path_exists(tmp_path, caplog, name):
    there, more = write_kit_npz(tmp_path / "private" / "x.npz"), {"flag": "bloodmnist"} if name == "medmnist" else {}
    folder = write_kit(tmp_path / "kit", data_roots=[str(tmp_path / "kit")])
    for path in (there, there.parent, tmp_path / "gone", "~/x.npz", "../x.npz", "x.npz", f"{tmp_path}/kit/../private"):
        caplog.clear()
        assert (
            check_site_refusal(SOURCES[name](**{NAMED[name]: str(path)}, **more), folder, caplog, str(path)) == "path"
        )
        assert "the job names" in caplog.text


def test_a_folder_that_the_operator_allows_is_read_but_no_link_out_of_it(tmp_path, caplog):
    data, private = tmp_path / "data", write_kit_npz(tmp_path / "private" / "x.npz")
    folder = write_kit(tmp_path / "kit", data_roots=[str(data)])
    said = answer(make_executor(Npz(str(write_kit_npz(data / "ward.npz")))), ask_check_in(), folder)
    assert said["participants"] == [{"name": "site-1", "samples": 20, "group": None, "tested": True}]
    (data / "link.npz").symlink_to(private)
    (data / "inside.npz").symlink_to(data / "ward.npz")
    assert "participants" in answer(make_executor(Npz(str(data / "inside.npz"))), ask_check_in(), folder)
    assert check_site_refusal(Npz(str(data / "link.npz")), folder, caplog, str(private)) == "path"


@pytest.mark.parametrize("what", ["train", "train/a", "train/a/0.png"])
def test_a_folder_of_images_is_not_left_by_a_link(tmp_path, monkeypatch, what):
    def images(root: Path) -> Path:
        for i in range(40):
            file = root / ("train", "test")[i // 20] / "ab"[i % 2] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), i).save(file)
        return root

    inside, outside = images(tmp_path / "data" / "ward"), images(tmp_path / "private")
    folder = write_kit(tmp_path / "kit", data_roots=[str(tmp_path / "data")])
    assert "participants" in answer(make_executor(Folder(str(inside))), ask_check_in(), folder)
    (inside / what).rename(tmp_path / "moved")
    (inside / what).symlink_to(outside / what)
    assert answer(make_executor(Folder(str(inside))), ask_check_in(), folder)["error"] == "path"
    monkeypatch.setenv("CFL_DATA", str(inside))  # the operator may well link
    assert "participants" in answer(make_executor(SiteData()), ask_check_in(), folder)


def test_what_the_operator_names_is_read_with_its_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("WARD", str(write_kit_npz(tmp_path / "ward" / "x.npz").parent))
    monkeypatch.setenv("CFL_DATA", "$WARD/x.npz")
    assert "participants" in answer(make_executor(SiteData()), ask_check_in(), write_kit(tmp_path / "kit"))
    found = read_source("npz:path=$WARD/x.npz")  # the command line is the user's own
    assert isinstance(found, Npz) and found.path == str(tmp_path / "ward" / "x.npz")


@pytest.mark.parametrize("study", ["other", "../data/other", ".."])
def test_no_job_reads_another_study_s_data(tmp_path, caplog, monkeypatch, study):
    mounted = write_kit_npz(tmp_path / "data" / "other" / "cells" / "x.npz").parent
    monkeypatch.setattr(sources, "MOUNTS", tmp_path / "data")
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) in (mounted, mounted.parent))
    source = {"class_path": "cfl_flare.data.sources.SiteData", "args": {"study": study}}
    assert check_site_refusal(source, write_kit(tmp_path / "kit"), caplog, str(mounted)) == "config"


def test_no_job_downloads_into_a_site_s_folder(tmp_path, caplog):
    folder = write_kit(tmp_path / "kit", data_roots=[str(tmp_path)])
    assert check_site_refusal(MNIST(root=str(tmp_path), download=True), folder, caplog) == "path"
    assert not (tmp_path / "MNIST").exists()


def test_a_site_takes_part_in_no_job_below_its_floor(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "x.npz")))
    folder, agreed = write_kit(tmp_path / "kit"), write_kit(tmp_path / "agreed", min_sites_per_cluster=1)
    weak = {"min_sites_per_cluster": (2, None, "9", float("nan")), "min_samples_per_cluster": (29, None, 1)}
    weak |= {"hold_small_clusters": (False, None), "max_weight_share": (0.51, 1.0, 0.0, None, float("nan"))}
    for name, values in weak.items():
        for value in values:
            task = {"bounds": {**BOUNDS, name: value}}
            assert answer(make_executor(SiteData()), ask_check_in(**task), folder)["error"] == "floor", (name, value)
            assert f"{name} = {value}, as the server states it, is weaker than the" in caplog.text
            assert "participants" in answer(make_executor(SiteData()), ask_check_in(**task), agreed)
    for nothing in (None, {}, [], 3):  # an older server, or one that leaves it out
        assert answer(make_executor(SiteData()), ask_check_in(bounds=nothing), folder)["error"] == "floor"
    assert "participants" in answer(make_executor(SiteData()), ask_check_in(), folder)


@pytest.mark.parametrize(("policy", "value"), [("min_samples_per_cluster", 50), ("max_weight_share", 0.3)])
def test_an_operator_may_ask_for_more_than_the_defaults(tmp_path, monkeypatch, policy, value):
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "x.npz")))
    folder = write_kit(tmp_path / "kit", **{policy: value})
    assert answer(make_executor(SiteData()), ask_check_in(), folder)["error"] == "floor"
    task = ask_check_in(bounds={**BOUNDS, policy: value})
    assert "participants" in answer(make_executor(SiteData()), task, folder)


def test_simulations_and_pocs_need_no_policy(tmp_path, monkeypatch):
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "x.npz")))
    open_to_all = {"bounds": {**BOUNDS, "min_sites_per_cluster": 1, "max_weight_share": 1.0}}
    simulator, poc = (
        write_kit(tmp_path / "simulator", real=False),
        write_kit(tmp_path / "poc" / "project" / "prod_00" / "site-1"),
    )
    assert "participants" in answer(make_executor(SiteData()), ask_check_in(**open_to_all), simulator)
    assert answer(make_executor(SiteData()), ask_check_in(**open_to_all), poc)["error"] == "floor"
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    assert "participants" in answer(make_executor(SiteData()), ask_check_in(**open_to_all), poc)
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path))  # a kit that only lies somewhere below it
    assert answer(make_executor(SiteData()), ask_check_in(**open_to_all), poc)["error"] == "floor"


@pytest.mark.parametrize("name", ["..", ".", "", "a/../../b", "/tmp/x", "a/b"])
def test_a_run_s_name_is_no_way_to_another_folder(tmp_path, monkeypatch, caplog, name):
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "x.npz")))
    folder, job = write_kit(tmp_path / "kit"), {**JOB, "run_name": name}
    assert answer(make_executor(SiteData(), run_name=name), ask_check_in(job=job), folder)["error"] == "config"
    assert f"run: run_name = {name!r} should be letters" in caplog.text
    assert answer(make_executor(SiteData()), ask_check_in(), folder)["participants"]
    said = answer(make_executor(SiteData()), train(memory_of=name or "/"), folder, wire.TRAIN_TASK)
    assert said["error"] == "config"


def test_a_broken_policy_allows_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "x.npz")))
    folder = write_kit(tmp_path / "kit")
    (folder / "local" / "cfl.json").write_text('{"data_roots": ["relative"]}')
    assert check_site_refusal(SiteData(), folder, caplog) == "config"


def train(**changes) -> Shareable:
    """The server's task of a round."""
    task = {"slots": ["global"], "train": True, "evaluate": False, "scalars": {}, "choices": [], "joined": {}}
    content = {
        "tasks": {"site-1": {**task, "questions": {}, "models": []}},
        "round": 0,
        "memory_of": None,
        "index": 0,
        "sites": 1,
    }
    content |= {"together": ["site-1", "site-2", "site-3"], "sampled": False, "averaged": []}
    arrays = {"head.weight": np.zeros((2, 16), np.float32), "head.bias": np.zeros(2, np.float32)}
    return wire.to_shareable({"global": DXO(DataKind.WEIGHTS, data=arrays)}, {**content, **changes})


@pytest.mark.parametrize(
    "error, code",
    [
        (RuntimeError("row 17 of /srv/ward.csv holds unknown-HIV+"), "training"),
        (torch.OutOfMemoryError("GPU 0 at /srv/ward.csv: unknown-HIV+"), "memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/srv/ward.csv unknown-HIV+"), "disk"),
    ],
)
def test_a_participant_s_failure_leaves_as_a_code_and_its_traceback_is_kept_once(
    tmp_path, monkeypatch, caplog, error, code
):
    def fails(*arguments, **settings):
        raise error

    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "x.npz")))
    monkeypatch.setattr(Learner, "train", fails)
    said = answer(make_executor(SiteData()), train(), write_kit(tmp_path / "kit"), wire.TRAIN_TASK)
    assert said["results"] == {"site-1": {"metrics": {}, "error": code}}
    assert errors(caplog) == f"[identity=site-1, run=job]: round 0: site-1 failed: {code}"
    assert caplog.text.count("in full: Traceback (most recent call last)") == 1
    assert caplog.text.count("in fails") == 1 and caplog.text.count("unknown-HIV+") == 1


def test_every_failure_has_a_sentence_and_nothing_else_is_one():
    page = (Path(__file__).parents[2] / "docs" / "egress.md").read_text()
    for code, sentence in FAILURES.items():
        assert f"| `{code}` | {sentence} |" in page
        assert failure_text(code) == f"{code}: {sentence}; its own log says why"
    for other in ("DataError: gone", "", None, ["data"], {"data": 1}):
        with pytest.raises(PayloadError, match="an error that is not one of config, "):
            failure_text(other)


def test_every_field_of_an_answer_has_its_mechanism_of_privacy():
    """What the server takes of a check-in and of a result, and what a method's update holds, are rows of the table."""
    page = (Path(__file__).parents[2] / "docs" / "egress.md").read_text()
    table = page.partition("### With differential privacy")[2].partition("\n## ")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
    on_the_server = {"participant", "main", "weight", "counts_in"}
    sent = (
        OF_PARTICIPANT
        | {CLIPPED}
        | OF_RESULT
        | ANSWERING.keys()
        | {field.name for field in fields(Update)} - on_the_server
    )
    assert sent <= documented, sent - documented


def test_the_code_of_an_error_is_that_of_its_cause_where_disk_or_memory_ran_out():
    assert [failure_of(kind("x")) for kind in (DataError, PathError, FileError)] == ["data", "path", "file"]
    assert failure_of(KeyError("x")) == "unexpected" and failure_of(KeyError("x"), "training") == "training"
    wrapped = DataError("load() failed")
    wrapped.__cause__ = MemoryError()
    assert failure_of(wrapped) == "memory"
    assert failure_of(RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")) == (
        "memory"
    )


def test_the_server_too_opens_no_file_for_a_job_but_the_job_s_own(tmp_path):
    folder = write_kit(tmp_path / "kit")
    (folder / "startup" / "fed_client.json").rename(folder / "startup" / "fed_server.json")
    fl_ctx = context(folder)
    carried = Path(fl_ctx.get_engine().get_workspace().get_app_custom_dir("job"))
    carried.mkdir(parents=True)
    model = ClusteringAggregator(JOB["method"], MODEL)._make_model(fl_ctx)
    for file in (carried / "start.pt", tmp_path / "secret.pt"):
        torch.save(model.state_dict(), file)

    start = Start([Participant(name, name, 40) for name in "abc"], Checkpoints())

    def begins(method: dict[str, Any], path: str | None = None) -> None:
        component = ClusteringAggregator(method, MODEL, initial_ckpt=path)
        component.begin(start, ServerSettings(1), TrainSettings(local_steps=1), Equipment(), fl_ctx)

    begins(JOB["method"], "start.pt")
    for path in (str(tmp_path / "secret.pt"), f"{'../' * 9}{tmp_path}/secret.pt", "/etc/passwd"):
        with pytest.raises(PathError, match="run: initial_ckpt: the job names"):
            begins(JOB["method"], path)
    with pytest.raises(PathError, match="indicator_file: the job names"):
        begins({"method": "fedds", "k": 2, "indicator_file": str(write_kit_npz(tmp_path / "x.npz"))})


PRIVATE = {**JOB, "training": {"local_steps": 2, "dp": {"epsilon": 3.0, "rounds": 2, "measured": 2}}}
SAYS = [{"noise_multiplier": np.float32(2.0), "sample_rate": 1.0, "steps": np.int64(2)}]


def spent_at(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["site", "ledger", "--kit", str(folder), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def private_job(**changes: Any) -> ClusteredExecutor:
    return make_executor(SiteData(), training=marked({**PRIVATE["training"], **changes}))


def describe_job(site: ClusteredExecutor) -> dict[str, Any]:
    return {**JOB, "training": unmarked(site.training)}


def test_a_job_with_privacy_writes_into_the_ledger_before_it_says_a_number(tmp_path, monkeypatch, capsys):
    data, folder = write_kit_npz(tmp_path / "ward.npz"), write_kit(tmp_path / "site-1", epsilon_budget=4.0)
    monkeypatch.setenv("CFL_DATA", str(data))
    site = private_job()
    said = answer(site, ask_check_in(job=describe_job(site)), folder)
    (spent,) = spent_at(folder, capsys)
    assert spent["places"] == [str(data)] and spent["lines"] == 2 and 0 < spent["epsilon"] < 3
    again = private_job()  # the process was restarted: the number is the same, and nothing is spent
    assert answer(again, ask_check_in(job=describe_job(site)), folder) == said
    assert spent_at(folder, capsys) == [spent]
    assert main(["site", "ledger", "--kit", str(folder)]) == 0
    assert "at delta 1e-05, of 4;" in capsys.readouterr().out
    large = private_job(dp={"epsilon": 4.5})
    assert answer(large, ask_check_in(job=describe_job(large)), folder)["error"] == "budget"


def test_a_server_that_sends_a_round_again_and_again_gets_no_more_than_the_budget(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "ward.npz")))
    folder, site = write_kit(tmp_path / "site-1", epsilon_budget=4.0), private_job()
    codes = [answer(site, train(), folder, wire.TRAIN_TASK)["results"]["site-1"].get("error") for _ in range(4)]
    assert codes[0] is None and codes[-1] == "budget"
    (spent,) = spent_at(folder, capsys)
    assert 2 < spent["epsilon"] <= 3
    again = private_job()
    assert answer(again, train(), folder, wire.TRAIN_TASK)["results"]["site-1"]["error"] == "budget"
    assert spent_at(folder, capsys) == [spent]


@pytest.mark.parametrize(("budget", "code"), [({}, None), ({"epsilon_budget": 4.0}, "budget")])
def test_a_site_with_a_budget_takes_no_job_without_privacy(tmp_path, monkeypatch, budget, code):
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "ward.npz")))
    folder = write_kit(tmp_path / "site-1", **budget)
    assert answer(make_executor(SiteData()), ask_check_in(), folder).get("error") == code
    assert answer(make_executor(SiteData()), train(), folder, wire.TRAIN_TASK).get("error") == code


def test_a_job_that_names_the_data_itself_is_refused_where_there_is_a_budget(tmp_path, caplog):
    data = write_kit_npz(tmp_path / "data" / "ward.npz")
    folder = write_kit(tmp_path / "site-1", epsilon_budget=4.0, data_roots=[str(data.parent)])
    site = make_executor(Npz(str(data)), training=marked(PRIVATE["training"]))
    assert answer(site, ask_check_in(job=describe_job(site)), folder)["error"] == "budget"
    assert "is for what the operator names by $CFL_DATA" in caplog.text


def test_a_ledger_that_cannot_be_trusted_ends_the_job_until_the_operator_accepts_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "ward.npz")))
    folder, site = write_kit(tmp_path / "site-1"), private_job()
    answer(site, ask_check_in(job=describe_job(site)), folder)
    (file,) = (tmp_path / "state" / "_privacy").glob("*.jsonl")
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    assert answer(private_job(), ask_check_in(job=describe_job(site)), folder)["error"] == "ledger"
    assert main(["site", "ledger", "--kit", str(folder)]) == 2
    assert "is no current copy" in capsys.readouterr().err
    assert main(["site", "ledger", "--kit", str(folder), "--accept", "restored after a crash"]) == 0
    assert "accepted 20" in capsys.readouterr().out
    assert "error" not in answer(private_job(), ask_check_in(job=describe_job(site)), folder)


def filter_result(folder: Path, result: Shareable, job: Any = None) -> Shareable:
    fl_ctx = context(folder)
    fl_ctx.set_prop(FLContextKey.RUNNER, SimpleNamespace(find_executor=lambda task: job))
    fl_ctx.set_prop(FLContextKey.TASK_NAME, "train")
    return LedgerFilter().process(result, fl_ctx)


def of_script(**meta: Any) -> Shareable:
    model = FLModel(params={"w": np.ones(2, np.float32)}, metrics={"loss": 1.0}, meta=meta)
    return FLModelUtils.to_shareable(model)


def failure_in(result: Shareable) -> str:
    model = FLModelUtils.from_shareable(result)
    with pytest.raises(PayloadError) as error:
        check_failure(model)
    assert not model.params and not model.metrics and error.value.code == "site_failed"
    return str(error.value)


def test_a_scripts_result_leaves_when_what_it_spends_is_in_the_ledger(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "ward.npz")))
    folder = write_kit(tmp_path / "site-1", epsilon_budget=5.0)
    for _ in range(2):
        sent = FLModelUtils.from_shareable(filter_result(folder, of_script(privacy=SAYS, NUM_STEPS_CURRENT_ROUND=3)))
        assert sent.params["w"].tolist() == [1, 1] and sent.metrics == {"loss": 1.0} and "privacy" not in sent.meta
    (spent,) = spent_at(folder, capsys)
    assert spent["epsilon"] == pytest.approx(epsilon_of(np.array(ORDERS) * 4 / 4 / 2, 1e-5), rel=1e-9)
    assert failure_in(filter_result(folder, of_script(privacy=SAYS))).startswith("budget: its privacy budget")
    assert spent_at(folder, capsys) == [spent]


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"privacy": []},
        {"privacy": "none"},
        {"privacy": [{"noise_multiplier": 1.0}]},
        {"privacy": [{"noise_multiplier": float("inf"), "sample_rate": 1.0, "steps": 1}]},
        {"privacy": [{"noise_multiplier": float("nan"), "sample_rate": 1.0, "steps": 1}]},
        {"privacy": [{"noise_multiplier": 1.0, "sample_rate": 0.0, "steps": 1}]},
        {"privacy": [{"noise_multiplier": 1.0, "sample_rate": 1.0, "steps": True}]},
        {"privacy": [{"noise_multiplier": 9.0, "sample_rate": 1.0, "steps": 1}] * 101},
    ],
)
def test_a_script_that_does_not_say_what_it_spends_sends_nothing_from_a_site_with_a_budget(tmp_path, meta):
    folder = write_kit(tmp_path / "site-1", epsilon_budget=5.0)
    assert failure_in(filter_result(folder, of_script(**meta))).startswith("budget: ")
    assert not list((tmp_path / "state").rglob("*.jsonl"))


def test_what_the_filter_of_the_ledger_leaves_alone(tmp_path):
    plain, tight = write_kit(tmp_path / "site-1"), write_kit(tmp_path / "site-2", epsilon_budget=5.0)
    for folder, job in (
        (plain, None),
        (tight, make_executor(SiteData())),
        (write_kit(tmp_path / "sim", real=False), None),
    ):
        result = of_script()
        assert filter_result(folder, result, job) is result
    answer = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    answer["leak"] = 1
    assert filter_result(plain, answer) is answer
    assert (
        "leak" not in filter_result(tight, answer) and filter_result(tight, answer).get_return_code() != ReturnCode.OK
    )
    assert filter_result(tight, Shareable({"leak": 1})).get_return_code() == ReturnCode.ERROR


GROUPS = {"method": "groups", "groups": ["nl", "gr"]}


def answer_named_groups(folder: Path, source, **changes) -> dict:
    """What a site says of itself to a job that lists groups."""
    job = {**JOB, "method": GROUPS, **changes}
    return answer(
        make_executor(source, **{key: marked(value) for key, value in job.items()}), ask_check_in(job=job), folder
    )


@pytest.mark.parametrize("label, sent", [("nl", "nl"), ("athens-ward-7", None), (None, None)])
def test_a_site_says_which_of_the_listed_groups_it_is_in_and_no_other_text(tmp_path, monkeypatch, caplog, label, sent):
    caplog.set_level("INFO")
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "ward.npz")))
    monkeypatch.setenv("CFL_GROUP", label or "")
    said = answer_named_groups(write_kit(tmp_path / "kit"), SiteData())
    assert said["participants"][0].get("label") == sent
    assert ("names none of the job's groups" in caplog.text) == (sent is None)
    assert "athens" not in str(said) + loud(caplog)
    assert (
        "label"
        not in answer(make_executor(SiteData()), ask_check_in(), write_kit(tmp_path / "other"))["participants"][0]
    )


@pytest.mark.parametrize(
    "wards, dp, outcome",
    [("nl", None, "nl"), ("zz", None, None), ("nl gr", None, "data"), ("nl", "epsilon=1", "config")],
)
def test_a_table_s_column_names_the_site_s_group_if_all_rows_agree(tmp_path, caplog, wards, dp, outcome):
    names = wards.split()
    rows = "".join(f"{i / 7},{names[i % len(names)]},{i % 2}\n" for i in range(40))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ward.csv").write_text(f"share,ward,label\n{rows}")
    folder = write_kit(tmp_path / "kit", data_roots=[str(tmp_path / "data")])
    agreed = {"column": "share", "kind": "number", "mean": 3.0, "deviation": 2.0}
    columns = {"columns": [agreed], "label": "label", "classes": ["0", "1"]}
    source = Table(str(tmp_path / "data" / "ward.csv"), group="ward", columns=columns)
    model = {**JOB["model"], "args": {"input_shape": [1], "num_classes": 2}}
    said = answer_named_groups(folder, source, model=model, training={"local_steps": 2} | ({"dp": dp} if dp else {}))
    if outcome in ("data", "config"):
        assert said == {"schema": said["schema"], "error": outcome}
        assert ("column 'ward' names 2 groups" if outcome == "data" else "set CFL_GROUP") in caplog.text
    else:
        assert said["participants"][0].get("label") == outcome
