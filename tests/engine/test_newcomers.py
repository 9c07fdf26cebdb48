# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Newcomers join finished runs, of every method."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.data import DataConfig, Digits, ParticipantData, Samples
from cfl_flare.engine.indicator import logits_for
from cfl_flare.engine.newcomers import Finished, Newcomer, onboard_unseen
from cfl_flare.engine.server import Equipment, Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Task
from cfl_flare.methods import FLHC, FedAvg, Participant, build_method
from cfl_flare.methods.slots import with_parts
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings
from tests.joining import METHOD_LIST, MODEL, TRAINING, kept_files, run_of
from tests.loop import run_loop


def held(run: Finished) -> list[ParticipantData]:
    return DataConfig(**run.summary["data"]).newcomers(Digits())


def predict_of(run: Finished) -> Any:
    data = DataConfig(**run.summary["data"])
    return logits_for(run.method, run.make_model, data, Digits, run.summary["seed"])


@pytest.mark.parametrize("name", METHOD_LIST)
def test_newcomers_of_every_method_get_their_cluster_and_their_model(
    runs: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    folder = Path(shutil.copytree(runs(name), tmp_path / "cfl"))
    before = kept_files(folder)
    content = onboard_unseen(folder, Digits())
    after = kept_files(folder)
    assert json.loads(after.pop("newcomers.json")) == content == load_run(folder).newcomers
    assert after == before  # the bank, and all else that the run left
    assert not content["failed"]
    people = content["participants"]
    assert len(people) == 2
    assert not {p["name"] for p in people} & {p["name"] for p in load_run(folder).summary["participants"]}
    finished = Finished(folder)
    clusters = finished.method.clusters_in(finished.state)
    for one in people:
        assert np.isfinite([one["served_accuracy"], one["served_macro_f1"], one["served_loss"]]).all()
        assert one["cluster"] in range(clusters) if clusters else one["cluster"] is None
        assert one["rounds"] >= 1 + bool(clusters)  # placed, then a member
    assert bool(content["joins_by"]) == bool(clusters)
    assert content["served_worst_accuracy"] == min(p["served_accuracy"] for p in people)
    weights = [p["samples"] for p in people]
    assert content["served_accuracy"] == pytest.approx(
        np.average([p["served_accuracy"] for p in people], None, weights)
    )


@pytest.mark.parametrize("name", METHOD_LIST)
def test_newcomers_change_nothing_for_each_other(runs: Callable[[str], Path], name: str) -> None:
    def joined(*order: int) -> dict[str, Newcomer]:
        run = Finished(runs(name))
        people, predict = held(run), predict_of(run)
        return {people[i].name: run.join(people[i], predict) for i in order}

    one, other, twice = joined(0, 1), joined(1, 0), joined(1, 0, 1)
    for newcomer in one.values():
        for again in (other[newcomer.name], twice[newcomer.name]):
            assert (again.cluster, again.metrics) == (newcomer.cluster, newcomer.metrics)
            for mine, theirs in zip(newcomer.served.models, again.served.models):
                np.testing.assert_array_equal(mine.vector, theirs.vector)


# An archive on the server's disk goes with its run.
LIVE = [name for name, m in METHOD_LIST.items() if m.clusters and not m.traits.archives]


@pytest.mark.parametrize("name", LIVE)
def test_a_run_that_goes_on_places_a_late_participant_as_onboarding_does(
    runs: Callable[[str], Path], name: str
) -> None:
    """One more round of the live server with everyone and a newcomer, and the first round of joining."""
    run = Finished(runs(name))
    method, data, predict = run.method, DataConfig(**run.summary["data"]), predict_of(run)
    site = Site(method, run.make_model, TRAINING, 0)
    newcomer = held(run)[0]
    site.add([*data.host(Digits(), "local", 0, 1), newcomer])
    crowd = [Participant(d.name, "local", len(d.train), d.group) for d in site.hosted.values()]
    states = [run.state]
    for _ in range(2):
        order = Task.of(method.distribute(states[-1], newcomer.name), train=True, evaluate=False)
        models = with_parts(run.state.bank, order.slots)
        answer = site.carry_out(newcomer.name, order, models, states[-1].round)
        assert answer.update is not None
        states.append(method.join(replace(states[-1], logits=predict), answer.update))
    for state in states[1:]:
        assert {slot: id(model) for slot, model in state.bank.items()} == {s: id(m) for s, m in run.state.bank.items()}
        assert {**state.assignment, **run.state.assignment} == state.assignment  # nobody else moves
    assert [state.round for state in states] == [run.state.round + i for i in range(3)]

    settings = ServerSettings(run.state.round + 2)  # where two parts alternate, rounds come in pairs
    server = Server(method, site.runtime.resident.layout, crowd, settings, run.state, Equipment(logits=predict))
    orders = server.tasks()
    models = with_parts(server.state.bank, [slot for o in orders.values() for slot in o.slots])
    for who, asked in orders.items():
        server.accept(site.carry_out(who, asked, models, run.state.round), "local")
    server.finish_round()
    assert server.state.assignment.get(newcomer.name) == states[1].assignment.get(newcomer.name)


@pytest.mark.parametrize("spec", ["ifca", "wecfl", "fesem", "fedgroup", "fedds", "wecfl-cam"])
def test_a_newcomer_joins_those_of_its_own_group(tmp_path: Path, spec: str) -> None:
    method = build_method({"method": spec, "k": 3, **({"warmup": 2} if spec.endswith("cam") else {})})
    wide = {**MODEL, "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
    training = TrainSettings(lr=0.1, local_epochs=10)
    folder = run_of(method, tmp_path / "cfl", 16, rounds=6, groups=3, model=wide, training=training)
    summary = load_run(folder).summary
    assert summary["final"]["ari"] == 1
    cluster_of = {p["group"]: p["cluster"] for p in summary["participants"]}
    people = onboard_unseen(folder, Digits())["participants"]
    assert len(people) == 4
    assert {p["name"]: p["cluster"] for p in people} == {p["name"]: cluster_of[p["group"]] for p in people}


def test_one_that_fails_does_not_take_the_others_along(tmp_path: Path) -> None:
    folder = run_of(FedAvg(), tmp_path, participants=24, rounds=1)
    broken = {"class_path": "tests.e2e.plugin.Touchy", "args": MODEL["args"]}
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "model": broken}))
    content = onboard_unseen(folder, Digits())
    assert content["failed"]
    assert content["participants"]
    assert len(content["failed"]) + len(content["participants"]) == 6
    assert any("cable came off" in reason for reason in content["failed"].values())


def test_a_run_that_kept_no_state_is_refused(runs: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs("fedavg"), tmp_path / "cfl"))
    shutil.rmtree(folder / "state")
    with pytest.raises(ConfigError, match="kept no state that a newcomer could join, like runs of earlier versions"):
        Finished(folder)


def test_a_run_in_which_nobody_has_a_cluster_is_refused(tmp_path: Path) -> None:
    """FL+HC, whose round that clusters failed."""

    class Refusing(Site):
        def carry_out(self, participant: str, order: Any, models: Any, number: int, *more: Any) -> Any:
            found = super().carry_out(participant, order, models, number, *more)
            return found if number == 0 else replace(found, update=None, error="training")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cfl_flare.engine.loop.Site", Refusing)
        data, method = DataConfig(4, {"partition": "iid"}), FLHC(k=2, rounds_before=1)
        run = {"method": method, "model": MODEL, "source": Digits(), "training": TRAINING, "data": data}
        run_loop(**run, settings=ServerSettings(2), folder=tmp_path)
    with pytest.raises(ConfigError, match="nobody in this run has a cluster"):
        Finished(tmp_path)


def test_a_run_that_held_nobody_back_has_nobody_to_let_join(tmp_path: Path) -> None:
    data = DataConfig(4, {"partition": "iid"})
    run = {"method": FedAvg(), "model": MODEL, "source": Digits(), "training": TRAINING, "data": data}
    run_loop(**run, settings=ServerSettings(1), folder=tmp_path)
    with pytest.raises(ConfigError, match="held no participants back"):
        onboard_unseen(tmp_path, Digits())
    assert load_run(tmp_path).newcomers is None


def test_a_new_run_in_the_same_folder_leaves_only_its_own_state(tmp_path: Path) -> None:
    run_of(FedAvg(), tmp_path, rounds=3)
    onboard_unseen(tmp_path, Digits())
    run_of(FedAvg(), tmp_path, rounds=1)
    assert sorted(p.name for p in (tmp_path / "state").iterdir()) == ["round-000001.json", "round-000001.safetensors"]
    assert not (tmp_path / "newcomers.json").exists()
    assert Finished(tmp_path).state.round == 1


def test_samples_that_do_not_fit_are_refused_in_python_too(runs: Callable[[str], Path]) -> None:
    samples = Samples(np.zeros((9, 1, 9, 9), np.float32), np.zeros(9, np.int64))
    with pytest.raises(DataError, match="does not take samples of shape"):
        Finished(runs("fedavg")).join(ParticipantData("new", samples, samples))
