# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Newcomers join finished runs of every method, by rules whose numbers are computed by hand."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cfl_flare.core.errors import ConfigError, DataError, RunFailedError
from cfl_flare.data import DataConfig, Digits, ParticipantData, Samples
from cfl_flare.engine.indicator import logits_for
from cfl_flare.engine.newcomers import Finished, Newcomer, join_run, onboard_unseen
from cfl_flare.engine.server import Equipment, Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Task
from cfl_flare.methods import (
    CFL,
    FLHC,
    IFCA,
    FedAvg,
    FedDS,
    FedGroup,
    FeSEM,
    Method,
    Participant,
    Update,
    WeCFL,
    build_method,
)
from cfl_flare.methods.slots import add_parts
from cfl_flare.methods.state import ServerState
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import METHOD_LIST, MODEL, TRAINING, kept_files, run_loop, run_of
from tests.helpers.tiny import Coin, coin, initial, step_method, update


def list_newcomers(run: Finished) -> list[ParticipantData]:
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
    clusters = finished.method.count_clusters(finished.state)
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
        people, predict = list_newcomers(run), predict_of(run)
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
    newcomer = list_newcomers(run)[0]
    site.add([*data.host(Digits(), "local", 0, 1), newcomer])
    crowd = [Participant(d.name, "local", len(d.train), d.group) for d in site.hosted.values()]
    states = [run.state]
    for _ in range(2):
        order = Task.of(method.distribute(states[-1], newcomer.name), train=True, evaluate=False)
        models = add_parts(run.state.bank, order.slots)
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
    models = add_parts(server.state.bank, [slot for o in orders.values() for slot in o.slots])
    for who, asked in orders.items():
        server.accept(site.carry_out(who, asked, models, run.state.round), "local")
    server.finish_round()
    assert server.state.assignment.get(newcomer.name) == states[1].assignment.get(newcomer.name)


@pytest.mark.parametrize("spec", ["ifca", "wecfl", "fesem", "fedgroup", "fedds", "wecfl-cam", "clove", "cfl-gp"])
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
    folder = run_of(FedAvg(), tmp_path, participants=48, rounds=1)
    broken = {"class_path": "tests.e2e.plugin.Touchy", "args": MODEL["args"]}
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "model": broken}))
    content = onboard_unseen(folder, Digits())
    assert content["failed"]
    assert content["participants"]
    assert len(content["failed"]) + len(content["participants"]) == 12
    assert any("cable came off" in reason for reason in content["failed"].values())


def test_a_run_that_kept_no_state_is_refused(runs: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs("fedavg"), tmp_path / "cfl"))
    shutil.rmtree(folder / "state")
    with pytest.raises(ConfigError, match="kept no state that a newcomer could join"):
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


# ---- The rules by which newcomers are placed ----


# On x = 1 the Coin's logits are its two weights; a newcomer whose labels are all 1 and that starts
# from (0, 0) with learning rate 1 ends one step later at (-0.5, 0.5).


def join_newcomer(
    method: Method, bank: dict[str, Any], labels: Sequence[int] = (1, 1, 1), rounds: int = 1, **state: Any
) -> Newcomer:
    """A newcomer to a run that ended with this bank."""
    site = Site(method, Coin, TrainSettings(lr=1.0, momentum=0.0, local_steps=1, batch_size=len(labels)), 0)
    samples = Samples(np.ones((len(labels), 1), np.float32), np.array(labels))
    site.add([ParticipantData("new", samples, samples)])
    logits = state.pop("logits", None)
    ended = ServerState(bank, **{"assignment": {"old": 0}, "round": 5, **state})
    newcomer = join_run(method, ended, site, "new", logits, rounds)
    assert "new" not in ended.assignment
    return newcomer


def served(newcomer: Newcomer) -> list[list[float]]:
    return [model.vector.tolist() for model in newcomer.served.models]


TWO = {"cluster-0": coin(2, 0), "cluster-1": coin(0, 2)}


@pytest.mark.parametrize(("labels", "cluster"), [((1, 1, 0), 1), ((0, 0, 1), 0), ((0, 1), 0)])
def test_ifca_takes_the_smallest_loss(labels: tuple[int, ...], cluster: int) -> None:
    newcomer = join_newcomer(IFCA(k=2), TWO, labels)
    assert (newcomer.cluster, newcomer.rounds) == (cluster, 2)
    assert served(newcomer) == [TWO[f"cluster-{cluster}"].vector.tolist()]  # as the run left it
    assert newcomer.metrics["served_accuracy"] == pytest.approx(labels.count(cluster) / len(labels))


@pytest.mark.parametrize("frozen", [None, 1])
@pytest.mark.parametrize("common", [(0, 0), (1, 1)])
@pytest.mark.parametrize("kind", [WeCFL, FeSEM])
def test_wecfl_takes_the_centre_in_whose_direction_the_newcomer_moved(
    kind: type[WeCFL], common: tuple[int, int], frozen: int | None
) -> None:
    """From the common model it moves by (-0.5, 0.5): one centre is near but 72 degrees off, the other far but 1."""
    centres = {"cluster-0": coin(-0.4, -0.2), "cluster-1": coin(-30, 31)}
    bank = {"global": coin(*common)} | {slot: coin(*common) + centre for slot, centre in centres.items()}
    newcomer = join_newcomer(kind(k=2, clustering_rounds=frozen), bank)
    assert newcomer.cluster == 1
    assert served(newcomer) == [bank["cluster-1"].vector.tolist()]


def test_fedgroup_takes_the_closest_direction_and_fl_hc_the_nearest_update() -> None:
    bank = {slot: coin(0, 0) for slot in ("global", "cluster-0", "cluster-1")}
    bank |= {"first-0": coin(-0.5, -0.2), "first-1": coin(-30, 31)}  # from (-0.5, 0.5): 0.7 off and 67 degrees; far, 1
    assert join_newcomer(FedGroup(k=2), bank).cluster == 1
    assert join_newcomer(build_method({"method": "fl-hc", "k": 2}), bank).cluster == 0


@pytest.mark.parametrize(("first", "cluster"), [((0, 0), 0), ((9, 9), 0), ((9, -9), 1)])
def test_fedds_takes_the_smallest_divergence(first: tuple[int, int], cluster: int) -> None:
    # (-0.5, 0.5) predicts 0.27, 0.73. KL to (0.5, 0.5) is 0.11, however large the logits; to (5e-5, 1) 2.3.
    bank = {"cluster-0": coin(*first), "cluster-1": coin(-5, 5), "newcomer": coin(0, 0)}
    extras = {"start": {"old": 0}}

    def logits(models: Any) -> np.ndarray:
        return np.stack([model.vector[None] for model in models])

    assert join_newcomer(FedDS(k=2), bank, logits=logits, extras=extras).cluster == cluster
    with pytest.raises(ConfigError, match="no indicator samples"):
        join_newcomer(FedDS(k=2), bank, extras=extras)


def split_by_cfl() -> tuple[CFL, ServerState]:
    """A run in which {a, b} went one way and {c, d} another, and then {c} and {d}."""
    method = CFL(eps1=1e9, eps2=0)
    state = method.start(initial)
    for moves in ({"a": (1, 0), "b": (1, 0.1), "c": (-2, -1), "d": (-1, 2)}, {"c": (-2, -2), "d": (-2, 3)}):
        updates = [update(name, 1, method.distribute(state, name).slots[0], *move) for name, move in moves.items()]
        state = step_method(method, state, updates)
    return method, state


def test_cfl_goes_down_the_tree_one_split_a_round() -> None:
    method, state = split_by_cfl()
    assert (state.assignment, state.extras["splits"]) == ({"a": 0, "b": 0, "c": 1, "d": 2}, [0, 1])
    extras = dict(state.extras)
    one = join_newcomer(method, dict(state.bank), (1, 1), assignment=state.assignment, extras=state.extras)
    assert (one.cluster, one.rounds) == (2, 3)  # two splits, then a member
    assert served(one) == [state.bank["cluster-2"].vector.tolist()]
    other = join_newcomer(method, dict(state.bank), (0, 0), assignment=state.assignment, extras=state.extras)
    assert (other.cluster, other.rounds) == (0, 2)
    assert state.extras == extras


def test_what_is_a_newcomer_s_own_is_trained_in_its_cluster_for_as_many_rounds_as_asked() -> None:
    ditto = build_method({"method": "ditto", "lam": 0.0})
    # v starts at the untrained model and takes a step a round, of the gradient alone
    vectors = [served(join_newcomer(ditto, {"global": coin(0, 0)}, rounds=rounds))[0] for rounds in (1, 2, 3)]
    margins = [b - a for a, b in vectors]
    assert margins[0] < margins[1] < margins[2]
    assert join_newcomer(ditto, {"global": coin(0, 0)}, rounds=3).rounds == 3


@dataclass(frozen=True, kw_only=True)
class Never(WeCFL):
    """Assigns nobody."""

    name: ClassVar[str] = "never"

    def assign(self, state: ServerState, updates: Sequence[Update]) -> dict[str, int]:
        return {}


def test_a_newcomer_that_is_never_placed_is_an_error() -> None:
    bank = {"global": coin(0, 0), **TWO}
    with pytest.raises(RunFailedError, match="new: method never gave it no cluster in 100 rounds"):
        join_newcomer(Never(k=2), bank)


def test_a_newcomer_that_cannot_be_trained_is_an_error() -> None:
    with pytest.raises(RunFailedError, match=r"new failed: diverged: hint: lower the learning rate"):
        join_newcomer(FedAvg(), {"global": coin(np.inf, 0)})


@pytest.mark.parametrize("rounds", [1, 6, 7, 8])
def test_what_is_served_is_the_model_of_the_cluster_that_is_named(rounds: int) -> None:
    """One sample in turn decides, another in each round."""
    newcomer = join_newcomer(IFCA(k=2, assignment_samples=1), TWO, (0, 1, 0, 1), rounds)
    assert served(newcomer) == [TWO[f"cluster-{newcomer.cluster}"].vector.tolist()]
