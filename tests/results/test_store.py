# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.params import Layout, Params
from cfl_flare.methods import ServerState
from cfl_flare.results.store import Store, StoreError, state_metadata, state_of

LAYOUT = Layout.of(nn.Linear(2, 1))


def model(value: float) -> Params:
    return Params(LAYOUT, np.full(LAYOUT.size, value, np.float32))


def filled(folder: Path, *numbers: int) -> Store:
    store = Store(folder)
    for number in numbers:
        store.save(number, {"global": model(number)}, {"round": number})
    return store


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def data_file(store: Store, number: int) -> Path:
    return store.folder / f"round-{number:06d}.safetensors"


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path / "run" / "server")
    facts = {"assignment": {"p": 1}, "list": [1, None, "ü"]}
    store.save(3, {"cluster-0": model(1.5), "cluster-1": model(-2)}, facts)
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


def test_the_last_two_versions_are_kept(tmp_path: Path) -> None:
    store = filled(tmp_path, 1, 2, 3, 10)
    assert store.versions() == [3, 10]
    assert names(tmp_path) == [
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
    store.save(2, {"global": model(7)}, {})
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
    assert names(tmp_path) == ["lock", "previous"]
    assert Store(tmp_path / "previous").latest(LAYOUT)[0] == 2
    filled(tmp_path, 7)
    store.keep_previous()
    assert Store(tmp_path / "previous").versions() == [7]
    store.keep_previous()  # nothing there: the generation before stays
    assert Store(tmp_path / "previous").versions() == [7]


def test_the_servers_state_comes_back(tmp_path: Path) -> None:
    state = ServerState({"global": model(1), "cluster-0": model(2)}, {"p": 0, "q": 1}, 8, {"x": [1, 2]})
    store = Store(tmp_path)
    store.save(state.round, state.bank, state_metadata(state))
    _, models, facts = store.latest(LAYOUT)
    again = state_of(models, facts)
    assert (again.assignment, again.round, again.extras) == (state.assignment, 8, {"x": [1, 2]})
    assert {k: p.vector.tolist() for k, p in again.bank.items()} == {"global": [1] * 3, "cluster-0": [2] * 3}
