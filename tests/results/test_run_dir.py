# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run's files: what they hold in the end, and while they grow, shrink, vanish and break."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.config import marked
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.networks import describe_network
from cfl_flare.core.params import Params
from cfl_flare.methods import FedAvg, Participant, ServerState, WeCFL
from cfl_flare.models import MLP, FashionCNN
from cfl_flare.results.job_record import READY, SILENT, Attempt, unfinished
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.model_file import read_model
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.run_dir import HISTORY, Note, Run, find_runs, keep_notes, load_run, read_lines
from cfl_flare.results.served import load_model
from cfl_flare.training.ensemble import Served
from cfl_flare.training.resident import ResidentModel

PEOPLE = {"p": Participant("p", "site-1", 30, 0), "q": Participant("q", "site-1", 10, 1)}


class ForeignLinear(nn.Linear):
    """A model that is not the package's own."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features)


class Stacked(nn.Module):
    """A model that is given its layer."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer


def weights(module: nn.Module) -> Params:
    return ResidentModel(module).read()


def make_round_metrics(
    number: int, accuracy: float | None = None, trained: tuple[str, ...] = ("p", "q")
) -> RoundMetrics:
    record: dict[str, Any] = {"round": number, "trained": list(trained), "cluster_sizes": [], "clusters": {}}
    record |= {"bytes_down": 100, "bytes_up": 10, "seconds": 0.5}
    if accuracy is None:
        return RoundMetrics(record)
    return RoundMetrics(record | {"served_accuracy": accuracy}, {"p": {"served_accuracy": accuracy}})


def record_run(folder: Path, module: nn.Module, slots: tuple[str, ...] = ("global",)) -> dict[str, Params]:
    """Two rounds, of which the first alone is measured."""
    bank = {slot: Params((p := weights(module)).layout, p.vector + i, p.counters + i) for i, slot in enumerate(slots)}
    recorder = Recorder(folder, marked({"data": {"seed": 4}}), marked(describe_network(module)))
    recorder.round(make_round_metrics(0, 0.75), ServerState(bank, {"p": 0}, 1), PEOPLE)
    recorder.round(make_round_metrics(1, trained=("q",)), ServerState(bank, {"p": 0, "q": 1}, 2), PEOPLE)
    method = FedAvg() if slots == ("global",) else WeCFL(k=len(slots))
    served = {slot: Served((params,)) for slot, params in bank.items()}
    recorder.close(
        ServerState(bank, {"p": 0, "q": 1}, 2),
        served,
        PEOPLE,
        method,
        {"seed": 5, "metric": {"name": "accuracy", "mode": "max"}},
    )
    return bank


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    record_run(tmp_path, MLP((4,), 3), ("cluster-0", "cluster-1"))
    run = load_run(tmp_path)
    assert run.name == "wecfl (K=2)"
    assert [line["round"] for line in run.rounds] == [0, 1]
    assert run.rounds[0]["served_accuracy"] == 0.75
    assert run.assignments == [
        {"round": 0, "participant": "p", "cluster": 0, "trained": True},
        {"round": 0, "participant": "q", "cluster": None, "trained": True},
        {"round": 1, "participant": "p", "cluster": 0, "trained": False},
        {"round": 1, "participant": "q", "cluster": 1, "trained": True},
    ]
    summary = run.summary
    assert summary["method"]["k"] == 2
    assert (summary["data"], summary["seed"], summary["rounds"]) == ({"seed": 4}, 5, 2)
    assert (summary["bytes_down"], summary["bytes_up"], summary["seconds"]) == (200, 20, 1.0)
    assert summary["model"] == {
        "class_path": "cfl_flare.models.MLP",
        "args": {"input_shape": [4], "num_classes": 3, "hidden": [64]},
    }


def test_the_final_figures_are_those_of_the_last_round_that_was_measured(tmp_path: Path) -> None:
    record_run(tmp_path, MLP((4,), 3))
    summary = load_run(tmp_path).summary
    assert summary["final_round"] == 0
    assert summary["final"]["served_accuracy"] == 0.75
    assert summary["participants"] == [
        {"name": "p", "site": "site-1", "samples": 30, "group": 0, "cluster": 0, "served_accuracy": 0.75},
        {"name": "q", "site": "site-1", "samples": 10, "group": 1, "cluster": 1},
    ]


def test_a_stored_model_predicts_as_it_did(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = MLP((4,), 3, hidden=(5,))
    bank = record_run(tmp_path, module, ("cluster-0", "cluster-1"))
    x = torch.randn(6, 4)
    loaded = load_model(tmp_path, "cluster-0")
    assert isinstance(loaded, MLP)
    assert not loaded.training
    assert torch.equal(loaded(x), module(x))
    other = load_model(str(tmp_path), "cluster-1")
    np.testing.assert_array_equal(weights(other).vector, bank["cluster-1"].vector)
    assert not torch.allclose(other(x), module(x))


def test_a_stored_network_with_batchnorm_predicts_as_it_did(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = FashionCNN((1, 8, 8), 3)
    module.train()(torch.randn(8, 1, 8, 8))
    record_run(tmp_path, module)
    x = torch.randn(4, 1, 8, 8)
    loaded = load_model(tmp_path)
    torch.testing.assert_close(loaded(x), module.eval()(x))
    assert weights(loaded).counters.tolist() == [1, 1]


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    record_run(tmp_path, MLP((4,), 3), ("cluster-0", "cluster-1"))
    with pytest.raises(ConfigError, match="no model 'cluster-2'; it has: cluster-0, cluster-1"):
        load_model(tmp_path, "cluster-2")
    with pytest.raises(ConfigError, match="absent holds no finished run"):
        load_model(tmp_path / "absent")


def test_a_class_from_elsewhere_is_not_imported_and_one_that_is_imported_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ForeignLinear(2, 3)
    record_run(tmp_path, module)
    x = torch.randn(4, 2)
    torch.testing.assert_close(load_model(tmp_path)(x), module(x))
    with pytest.raises(
        ConfigError, match=r"holds a .*ForeignLinear; import its module first, or build one and pass it"
    ):
        read_model(tmp_path / "clusters" / "global.safetensors")  # what the command line reads
    monkeypatch.delitem(sys.modules, __name__)
    with pytest.raises(
        ConfigError, match=r"holds a .*ForeignLinear; import its module first, or build one and pass it"
    ):
        load_model(tmp_path)
    assert __name__ not in sys.modules
    torch.testing.assert_close(load_model(tmp_path, model=ForeignLinear(2, 3))(x), module(x))


LOADS = """
from torch import nn

class Loads(nn.Linear):
    def __init__(self, in_features, out_features, weights="somewhere"):
        raise AssertionError("the file has called it")

def loads(weights: str) -> Loads:
    raise AssertionError("the file has called it")
"""


@pytest.mark.parametrize(
    "name", ["installed_net.Loads", "installed_net.loads", f"{__name__}.borrowed", "builtins.eval"]
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_file_calls_no_class_of_an_installed_package_that_this_program_has_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, inside: bool
) -> None:
    """Many of them load, or download, what their arguments name; the file chooses these."""
    site = tmp_path / "packages"
    (site / "installed_net-1.0.dist-info").mkdir(parents=True)
    (site / "installed_net.py").write_text(LOADS)
    monkeypatch.syspath_prepend(site)
    installed = importlib.import_module("installed_net")
    monkeypatch.setitem(sys.modules, "installed_net", installed)
    monkeypatch.setattr(sys.modules[__name__], "borrowed", installed.Loads, raising=False)
    record_run(tmp_path / "run", ForeignLinear(2, 3))
    path = tmp_path / "run" / "clusters" / "global.safetensors"
    arrays, meta = load_arrays(path)
    spec = {"class_path": name, "args": {"weights": "https://host/model.pt"}}
    own = {"class_path": f"{__name__}.ForeignLinear", "args": {"in_features": spec, "out_features": 3}}
    save_arrays(path, arrays, meta | {"model": own if inside else spec})
    with pytest.raises(ConfigError, match=r"holds a .*build one and pass it as model="):
        load_model(tmp_path / "run")


def test_modules_of_torch_in_the_arguments_of_an_imported_class_are_built(tmp_path: Path) -> None:
    record_run(tmp_path, Stacked(nn.Linear(2, 3)))
    assert isinstance(load_model(tmp_path), Stacked)


def test_a_new_run_in_the_same_folder_replaces_the_figures(tmp_path: Path) -> None:
    record_run(tmp_path, MLP((4,), 3))
    Recorder(tmp_path, {}, {})
    with pytest.raises(ConfigError, match="no finished run"):
        load_run(tmp_path)
    record_run(tmp_path, MLP((4,), 3))
    assert len(load_run(tmp_path).rounds) == 2


def test_a_new_run_in_the_same_folder_replaces_the_models(tmp_path: Path) -> None:
    record_run(tmp_path, MLP((4,), 3), ("cluster-0", "cluster-1"))
    record_run(tmp_path, MLP((4,), 3))
    with pytest.raises(ConfigError, match="no model 'cluster-1'; it has: global"):
        load_model(tmp_path, "cluster-1")


def test_an_unfinished_run_is_none(tmp_path: Path) -> None:
    for load in (load_run, find_runs):
        with pytest.raises(ConfigError, match="no finished run"):
            load(tmp_path)


def test_runs_are_found_below_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a/deep"):
        record_run(tmp_path / name, MLP((4,), 3))
    runs = find_runs(tmp_path)
    assert [run.folder.relative_to(tmp_path).as_posix() for run in runs] == ["a/deep", "b"]
    assert all(isinstance(run, Run) and run.name == "fedavg" for run in runs)


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert read_lines(path) == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    path.write_text("")
    assert read_lines(path) == []


def test_the_summary_is_plain_json(tmp_path: Path) -> None:
    record_run(tmp_path, MLP((4,), 3))
    text = (tmp_path / "summary.json").read_text()
    assert "config_type" not in text
    assert set(json.loads(text)["versions"]) >= {"cfl-flare", "nvflare", "torch", "python"}


# ---- While a run goes on ----


def write_json_lines(folder: Path, name: str, *lines: object, mode: str = "w") -> None:
    with (folder / name).open(mode) as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def make_round_line(number: int, **more: object) -> dict[str, object]:
    return {"round": number, "cluster_sizes": [2, 1], **more}


def test_an_unfinished_run_names_its_missing_rounds(tmp_path):
    Recorder(tmp_path, {}, {}).begin("wecfl", 5)
    assert unfinished(tmp_path) == [f"{tmp_path.name}: no results after 0 of 5 rounds"]


def test_what_is_known_of_a_job_without_results(tmp_path):
    """FLARE ends a job from outside if a site's process dies: then there is what was written before."""
    folder = tmp_path / "workspace" / "cfl"
    attempt = Attempt(folder, "ward")
    attempt.note(dict.fromkeys(("a", "b", "c"), SILENT))
    attempt.hear("a")
    attempt.note({"b": "columns: its table's columns are not those"})
    told = unfinished(tmp_path)
    assert told[0] == "ward: no results in its check of the sites"
    assert told[1:4] == [
        "- a: it has not answered",
        "- b: columns: its table's columns are not those",
        f"- c: {SILENT}",
    ]
    assert told[4].endswith("does that: cfl-flare site check --kit KIT") and len(told) == 5
    attempt.note({"a": READY, "c": READY}, checked_in=True)
    write_json_lines(folder, "rounds.jsonl", make_round_line(0, trained=["a"], failed={"c": "no result in time"}))
    attempt.end("too few\x1b[2J answers")
    detail = ["server: OK", "d: not authorized", 7]
    (tmp_path / "meta.json").write_text(json.dumps({"status": "FINISHED:ABNORMAL", "job_deploy_detail": detail}))
    refused = (
        "Component 'cfl_flare.flare.controller.ClusteredController' at config path 'workflows.#1' is not in allow_list"
    )
    (tmp_path / "workspace" / "error_log.txt").write_text(f"ComponentNotAuthorized: {refused}\n")
    told = unfinished(tmp_path)
    assert {"FLARE: FINISHED:ABNORMAL", "- d: not authorized"} < {*told}
    assert told[0].startswith("ward: no results; it ended after 1 rounds: too few") and told[0].isprintable()
    assert "- c: missed 1 of 1 rounds: no result in time" in told
    assert told[-1].startswith(
        "the server's kit does not allow cfl_flare.flare.controller.ClusteredController; let its"
    )
    (folder / "job.json").write_text("[]")
    assert any("is a list, not an object" in one for one in unfinished(tmp_path))
    attempt.done()
    assert unfinished(tmp_path / "workspace" / "cfl") == []


def note(number: int, **more) -> Note:
    return Note(**{"round": number, "participant": "ward", "models": ["cluster-1"], "trained": True, "failed": None,
                   "metrics": {"served_accuracy": 0.5}, **more})  # fmt: skip


def test_a_history_has_a_line_a_participant(tmp_path):
    folder = tmp_path / "run" / "site-1"
    keep_notes(folder, 0, [note(0), note(0, participant="b", trained=False, failed="data", metrics={})], first=True)
    keep_notes(folder, 1, [note(1)], first=False)
    lines = read_lines(folder / HISTORY)
    assert lines[0] == {**asdict(note(0)), "last": False}
    assert [(own["round"], own["participant"], own["failed"]) for own in lines] == [
        (0, "ward", None),
        (0, "b", "data"),
        (1, "ward", None),
    ]


def test_a_process_that_begins_again_replaces_its_rounds(tmp_path):
    for number in range(3):
        keep_notes(tmp_path, number, [note(number)], first=number == 0)
    keep_notes(tmp_path, 1, [note(1, models=["global"])], first=True)
    assert [(own["round"], *own["models"]) for own in read_lines(tmp_path / HISTORY)] == [
        (0, "cluster-1"),
        (1, "global"),
    ]
    keep_notes(tmp_path, 0, [note(0)], first=True)  # another run of this name
    assert [own["round"] for own in read_lines(tmp_path / HISTORY)] == [0]
