# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: their store, and a loop that is stopped and started again is the run that was not stopped."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result
from cfl_flare.extensions import present_results
from cfl_flare.methods import (
    IFCA,
    FedAvg,
    FedBABU,
    Local,
    Method,
    ServerState,
    WeCFL,
    build_method,
)
from cfl_flare.results.store import CHECKSUM, Checkpoint, Store, StoreError, state_metadata, state_of
from cfl_flare.training.settings import TrainSettings
from tests.helpers.resumed import Stopped, assert_same_runs, run_until

ADAM = TrainSettings(
    **{"lr": 0.01, "local_steps": 3, "optimizer": "adamw", "weight_decay": 0.1, "keep_momentum": True},
    **{"lr_schedule": "cosine", "lr_warmup": 2, "clip_grad": 1.0, "class_weights": "balanced", "label_smoothing": 0.1},
)


# Round r is measured while the server finishes round r + 1: a checkpoint of 6 rounds follows the measures of round 4.


@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad"])
@pytest.mark.parametrize(
    "method", [WeCFL(k=2), FedBABU(), build_method({"method": "fesem-cam", "k": 2, "warmup": 2})], ids=lambda m: m.label
)
def test_so_does_one_whose_participants_and_server_remember_moments(tmp_path: Path, method: Method, rule: str) -> None:
    settings: dict[str, Any] = {"server_optimizer": rule, "server_lr": 0.05, "training": ADAM}
    undisturbed = run_until(method, tmp_path / "one", **settings)
    with pytest.raises(Stopped):
        run_until(method, tmp_path / "other", tmp_path / "checkpoints", 5, **settings)
    resumed = run_until(method, tmp_path / "other", tmp_path / "checkpoints", **settings)
    assert_same_runs(undisturbed, resumed, tmp_path / "one", tmp_path / "other")
    assert undisturbed.state.arrays.keys() == resumed.state.arrays.keys() != set()
    for name, array in undisturbed.state.arrays.items():
        np.testing.assert_array_equal(array, resumed.state.arrays[name])
    plain = run_until(method, None, training=ADAM)
    assert any(not np.array_equal(plain.state.bank[s].vector, m.vector) for s, m in undisturbed.state.bank.items())


def test_it_goes_on_and_does_not_start_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stopped):
        run_until(WeCFL(k=2), tmp_path / "run", tmp_path / "checkpoints", stop_at=4)
    asked = []
    answer = Site.carry_out

    def noting(self: Site, name: str, order: Any, models: Any, number: int, keep: Any) -> Result:
        asked.append(number)
        return answer(self, name, order, models, number, keep)

    monkeypatch.setattr(Site, "carry_out", noting)
    run_until(WeCFL(k=2), tmp_path / "run", tmp_path / "checkpoints")
    assert sorted(set(asked)) == [3, 4, 5, 6, 7, 8]


def test_a_run_may_be_stopped_more_than_once_and_after_its_last_round(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"sample": 2, "evaluate_every": 2}
    undisturbed = run_until(WeCFL(k=2), tmp_path / "one", **settings)
    for stop_at in (1, 3, 5, 7):
        with pytest.raises(Stopped):
            run_until(WeCFL(k=2), tmp_path / "other", tmp_path / "checkpoints", stop_at, **settings)
    resumed = run_until(WeCFL(k=2), tmp_path / "other", tmp_path / "checkpoints", **settings)
    assert_same_runs(undisturbed, resumed, tmp_path / "one", tmp_path / "other")


def test_what_failed_before_the_stop_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Site.carry_out

    def failing(self: Site, name: str, order: Any, models: Any, number: int, keep: Any) -> Result:
        good = answer(self, name, order, models, number, keep)
        return Result(name, error="training") if number == 2 and name == "p1" else good

    monkeypatch.setattr(Site, "carry_out", failing)
    undisturbed = run_until(FedAvg(), tmp_path / "one")
    with pytest.raises(Stopped):
        run_until(FedAvg(), tmp_path / "other", tmp_path / "checkpoints", stop_at=3)
    resumed = run_until(FedAvg(), tmp_path / "other", tmp_path / "checkpoints")
    assert resumed.rejected == {"participant_failed": 1}
    assert_same_runs(undisturbed, resumed, tmp_path / "one", tmp_path / "other")


def test_a_half_written_line_is_written_again(tmp_path: Path) -> None:
    undisturbed = run_until(FedAvg(), tmp_path / "one")
    with pytest.raises(Stopped):
        run_until(FedAvg(), tmp_path / "other", tmp_path / "checkpoints", stop_at=3)
    with (tmp_path / "other" / "rounds.jsonl").open("a") as f:
        f.write('{"round": 4, "trai')
    resumed = run_until(FedAvg(), tmp_path / "other", tmp_path / "checkpoints")
    assert_same_runs(undisturbed, resumed, tmp_path / "one", tmp_path / "other")


def test_damaged_checkpoints_mean_a_fresh_start(tmp_path: Path) -> None:
    undisturbed = run_until(FedAvg(), tmp_path / "one")
    with pytest.raises(Stopped):
        run_until(FedAvg(), tmp_path / "other", tmp_path / "checkpoints", stop_at=6)
    for path in (tmp_path / "checkpoints").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    resumed = run_until(FedAvg(), tmp_path / "other", tmp_path / "checkpoints")
    assert_same_runs(undisturbed, resumed, tmp_path / "one", tmp_path / "other")


def test_another_run_does_not_go_on_from_here(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run_until(FedAvg(), tmp_path / "run", tmp_path / "checkpoints", stop_at=4)
    before = json.loads((tmp_path / "checkpoints" / "round-000003.json").read_text())
    for method, settings in ((Local(), {}), (FedAvg(), {"seed": 4})):
        with pytest.raises(StoreError, match="a run with other settings"):
            run_until(method, tmp_path / "run", tmp_path / "checkpoints", **settings)
    with pytest.raises(ConfigError, match="holds 0 of the 2 rounds"):
        run_until(FedAvg(), tmp_path / "elsewhere", tmp_path / "checkpoints")
    assert json.loads((tmp_path / "checkpoints" / "round-000003.json").read_text()) == before


def stopped_ifca(folder: Path) -> dict[str, Any]:
    """A run of IFCA that is stopped; the settings in its last checkpoint, which `rewrite` can change."""
    with pytest.raises(Stopped):
        run_until(IFCA(k=2), folder / "run", folder / "checkpoints", stop_at=4)
    return json.loads((folder / "checkpoints" / "round-000003.json").read_text())["facts"]["run"]


def rewrite(folder: Path, run: dict[str, Any]) -> None:
    path = folder / "checkpoints" / "round-000003.json"
    content = json.loads(path.read_text())
    content["facts"]["run"] = run
    path.write_text(text := json.dumps(content))
    arrays = path.with_suffix(".safetensors")
    save_arrays(arrays, load_arrays(arrays)[0], {CHECKSUM: hashlib.sha256(text.encode()).hexdigest()})


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"lr": 0.2}},
        {"run": {"cross_site_evaluation": True}},
        {"run": {"colour": "red"}},
        {"data": {"seed": "none"}},
        {"method": {"k": 3}},
        {"method": {"method": "nothing_known"}},
        {"method": {"method": "their.own.Method"}},  # which is not imported to find out
    ],
)
def test_a_checkpoint_with_other_settings_is_not(change: dict[str, Any], tmp_path: Path) -> None:
    run = stopped_ifca(tmp_path)
    for part, own in change.items():
        run[part] |= own
    rewrite(tmp_path, run)
    with pytest.raises(StoreError, match="a run with other settings"):
        run_until(IFCA(k=2), tmp_path / "run", tmp_path / "checkpoints")


def test_a_run_with_other_classes_is_not_resumed(tmp_path: Path) -> None:
    run = stopped_ifca(tmp_path)
    assert run["classes"] == []
    rewrite(tmp_path, run | {"classes": ["benign", "malignant"]})
    with pytest.raises(StoreError, match=r"\(classes: \['benign', 'malignant'\] there, \[\] here\); use"):
        run_until(IFCA(k=2), tmp_path / "run", tmp_path / "checkpoints")


def test_memories_and_models_do_not_mix(tmp_path: Path) -> None:
    run_until(WeCFL(k=2), None, tmp_path)
    assert Checkpoint.latest(Store(tmp_path / "none"), None, {}) is None  # type: ignore[arg-type]
    facts = json.loads((tmp_path / "round-000006.json").read_text())["facts"]
    assert "cluster-0" in facts["slots"]
    assert not [slot for slot in facts["slots"] if "#" in slot]
    arrays, _ = load_arrays(tmp_path / "round-000006.safetensors")
    assert {key.partition("|")[0] for key in arrays} == {*facts["slots"], *(f"p{i}#momentum" for i in range(4))}


# ---- The store ----


LAYOUT = Layout.of(nn.Linear(2, 1))


def make_filled_model(value: float) -> Params:
    return Params(LAYOUT, np.full(LAYOUT.size, value, np.float32))


def filled(folder: Path, *numbers: int) -> Store:
    store = Store(folder)
    for number in numbers:
        store.save(number, {"global": make_filled_model(number)}, {"round": number})
    return store


def list_file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def data_file(store: Store, number: int) -> Path:
    return store.folder / f"round-{number:06d}.safetensors"


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path / "run" / "server")
    facts = {"assignment": {"p": 1}, "list": [1, None, "ü"]}
    store.save(3, {"cluster-0": make_filled_model(1.5), "cluster-1": make_filled_model(-2)}, facts)
    models, loaded = store.load(3, LAYOUT)
    assert list(models) == ["cluster-0", "cluster-1"]
    assert models["cluster-0"].vector.tolist() == [1.5] * 3
    assert models["cluster-1"].vector.tolist() == [-2] * 3
    assert models["cluster-0"].layout is LAYOUT
    assert loaded == facts


def test_a_model_with_batchnorm_is_loaded(tmp_path: Path) -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))
    saved = Params(layout, np.arange(layout.size, dtype=np.float32), np.array([9]))
    Store(tmp_path).save(1, {"global": saved}, {})
    (loaded,) = Store(tmp_path).load(1, layout)[0].values()
    assert loaded.vector.tolist() == saved.vector.tolist()
    assert loaded.counters.tolist() == [9]


def test_a_version_may_hold_no_models(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(1, {}, {"a": 1})
    assert store.latest(LAYOUT) == (1, {}, {"a": 1})


def test_only_a_real_site_waits_for_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and folders that are forced to the disk: none of a simulation, its checkpoints, results and report."""
    forced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: forced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name))
    run_until(WeCFL(k=2), tmp_path / "run", tmp_path / "checkpoints")
    assert present_results(tmp_path / "run") == []
    filled(tmp_path / "simulated", 1)
    assert forced == []
    Store(tmp_path / "site", durable=True).part("candidate").save(1, {"global": make_filled_model(1)}, {})
    assert forced == ["round-000001.safetensors.tmp", "candidate", "round-000001.json.tmp", "candidate"]
    forced.clear()
    Store(tmp_path / "site", durable=True).archive.put("p", 1, np.zeros(2))
    assert forced == ["p@000001.npy.tmp", "archive"]


def test_the_last_two_versions_are_kept(tmp_path: Path) -> None:
    store = filled(tmp_path, 1, 2, 3, 10)
    assert store.versions() == [3, 10]
    assert list_file_names(tmp_path) == [
        "round-000003.json",
        "round-000003.safetensors",
        "round-000010.json",
        "round-000010.safetensors",
    ]


def test_the_latest_is_the_newest(tmp_path: Path) -> None:
    filled(tmp_path, 9, 10)
    number, models, facts = Store(tmp_path).latest(LAYOUT)
    assert (number, facts) == (10, {"round": 10})
    assert models["global"].vector.tolist() == [10] * 3


def test_a_version_may_be_written_again(tmp_path: Path) -> None:
    store = filled(tmp_path, 1, 2)
    store.save(2, {"global": make_filled_model(7)}, {})
    assert store.versions() == [1, 2]
    assert store.load(2, LAYOUT)[0]["global"].vector.tolist() == [7] * 3


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(truncate, "cannot be read"), (flip, "does not match its checksum"), (Path.unlink, "cannot read")],
)
def test_a_damaged_version_gives_way_to_the_one_before(
    tmp_path: Path, damage: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path, 4, 5)
    damage(data_file(store, 5))
    with pytest.raises(PayloadError, match=message) as caught:
        store.load(5, LAYOUT)
    assert caught.value.code == "damaged_file"
    with caplog.at_level(logging.WARNING):
        number, models, _ = store.latest(LAYOUT)
    assert number == 4
    assert models["global"].vector.tolist() == [4] * 3
    assert "round-000005" in caplog.text
    assert message in caplog.text


@pytest.mark.parametrize("text", ["", "{", "{}", '{"sha256": 3, "version": 1, "facts": {}}'])
def test_a_version_without_a_good_description_does_not_count(tmp_path: Path, text: str) -> None:
    store = filled(tmp_path, 4, 5)
    data_file(store, 5).with_suffix(".json").write_text(text)
    assert store.latest(LAYOUT)[0] == 4


def test_a_version_that_was_not_written_to_its_end_does_not_count(tmp_path: Path) -> None:
    store = filled(tmp_path, 4, 5)
    data_file(store, 5).with_suffix(".json").unlink()
    assert store.versions() == [4]
    assert store.latest(LAYOUT)[0] == 4


def test_another_format_or_another_model_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, 4)
    with pytest.raises(PayloadError) as caught:
        store.load(4, Layout.of(nn.Linear(3, 1)))
    assert caught.value.code == "shape"
    path = data_file(store, 4).with_suffix(".json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
    with pytest.raises(PayloadError, match="has format 99") as caught:
        store.load(4, LAYOUT)
    assert caught.value.code == "version"


def test_there_is_nothing_to_resume_from(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no intact version"):
        Store(tmp_path / "absent").latest(LAYOUT)
    store = filled(tmp_path, 1, 2)
    for number in (1, 2):
        truncate(data_file(store, number))
    with pytest.raises(StoreError, match="no intact version"):
        store.latest(LAYOUT)


def test_two_runs_cannot_have_one_store(tmp_path: Path) -> None:
    first, second = Store(tmp_path / "a"), Store(tmp_path / "a")
    first.lock()
    with pytest.raises(StoreError, match="in use by another run of this name"):
        second.lock()
    Store(tmp_path / "b").lock()
    del first  # with it, its file is closed, as at the end of a process
    second.lock()


def test_an_earlier_run_is_set_aside(tmp_path: Path) -> None:
    store = filled(tmp_path, 1, 2)
    store.lock()
    store.keep_previous()
    assert store.versions() == []
    assert list_file_names(tmp_path) == ["lock", "previous"]
    assert Store(tmp_path / "previous").latest(LAYOUT)[0] == 2
    filled(tmp_path, 7)
    store.keep_previous()
    assert Store(tmp_path / "previous").versions() == [7]
    store.keep_previous()  # nothing there: the generation before stays
    assert Store(tmp_path / "previous").versions() == [7]


def test_the_servers_state_comes_back(tmp_path: Path) -> None:
    state = ServerState(
        {"global": make_filled_model(1), "cluster-0": make_filled_model(2)}, {"p": 0, "q": 1}, 8, {"x": [1, 2]}
    )
    store = Store(tmp_path)
    store.save(state.round, state.bank, state_metadata(state))
    _, models, facts = store.latest(LAYOUT)
    again = state_of(models, facts)
    assert (again.assignment, again.round, again.extras) == (state.assignment, 8, {"x": [1, 2]})
    assert {k: p.vector.tolist() for k, p in again.bank.items()} == {"global": [1] * 3, "cluster-0": [2] * 3}
