# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Newcomers join finished runs: of every method, by numbers computed by hand, and what is refused."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cfl_flare.cli import main
from cfl_flare.data import DataConfig, Digits, ParticipantData, Samples
from cfl_flare.data.samples import normalised
from cfl_flare.errors import ConfigError, DataError, RunFailedError
from cfl_flare.indicator import held_back, logits_for
from cfl_flare.loop import run_loop
from cfl_flare.methods import (
    CFL,
    COMBINATIONS,
    IFCA,
    METHODS,
    Contrastive,
    FedAvg,
    FedDS,
    FedGroup,
    FeSEM,
    KnowledgeSharing,
    Method,
    Participant,
    Together,
    Update,
    WeCFL,
    build_method,
)
from cfl_flare.methods.base import ServerState
from cfl_flare.methods.slots import with_parts
from cfl_flare.onboard import Finished, Newcomer, join, onboard_unseen
from cfl_flare.results import load_run, read_model
from cfl_flare.server import Server, ServerSettings
from cfl_flare.site import Order, Site
from cfl_flare.training.settings import TrainSettings
from tests.e2e.plugin import Touchy
from tests.tiny import Coin, coin, initial, update

MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [16, 8]}}
TRAINING = TrainSettings(lr=0.1, local_epochs=3)
# What the methods' settings need; a method added later that needs more says so by failing here.
GIVEN: dict[str, Any] = {"k": 2, "eps1": 9.0, "eps2": 0.0, "warmup": 1, "rounds_before": 1, "base": IFCA(k=2)}
GIVEN["parts"] = [FedAvg(), IFCA(k=2)]


def method_of(name: str) -> Method:
    """A method by its name, of two clusters."""
    if name in COMBINATIONS:
        settings = COMBINATIONS[name].settings()
        needed = [key for key, default in settings.items() if default is dataclasses.MISSING]
    else:
        settings = dict(inspect.signature(METHODS[name]).parameters)
        needed = [key for key, p in settings.items() if p.default is inspect.Parameter.empty]
    wanted = {*needed, *(key for key in ("k", "warmup", "rounds_before") if key in settings)}
    return build_method({"method": name, **{key: GIVEN[key] for key in wanted}})


METHOD_LIST: dict[str, Method] = {
    **{name: method_of(name) for name in (*METHODS, *COMBINATIONS)},
    "ifca-shared": IFCA(k=2, shared_backbone=True, assignment_samples=10),
    "wecfl-few-shot": WeCFL(k=2, clustering_rounds=1, finetune=True, finetune_epochs=2),
    "wecfl-con-cks": WeCFL(k=2, penalties=(Contrastive(), KnowledgeSharing(pairwise=True))),
    "ifca-cks": IFCA(k=2, penalties=(KnowledgeSharing(pairwise=True),)),
    "fedcuau-fedper": build_method({"method": "fedcuau", "base": "fedper"}),
    "fedcuau-fedbabu": build_method({"method": "fedcuau", "base": "fedbabu", "finetune": True}),
    "ifca-cam-alternating": build_method({"method": "ifca-cam", "k": 2, "warmup": 1, "updates": "alternating"}),
    "fedavg+cfl": Together(parts=(FedAvg(), CFL(eps1=9, eps2=0)), vote="logits"),
    "fedds+fedavg": Together(parts=(FedDS(k=2), FedAvg())),
}


def run_of(
    method: Method,
    folder: Path,
    participants: int = 8,
    rounds: int = 3,
    groups: int = 2,
    model: dict[str, Any] = MODEL,
    training: TrainSettings = TRAINING,
) -> Path:
    """A finished run with a quarter of the participants held back."""
    rule = {"partition": "label_permutation", "groups": groups}
    run_loop(
        method=method,
        model=model,
        source=Digits(),
        data=DataConfig(participants, rule, indicator_samples=held_back([method]), unseen=0.25),
        settings=ServerSettings(rounds, evaluate_every=rounds),
        training=training,
        folder=folder,
    )
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Finished runs by the name of their method, each made once and not to be changed."""
    done: dict[str, Path] = {}

    def finished(name: str) -> Path:
        if name not in done:
            done[name] = run_of(METHOD_LIST[name], tmp_path_factory.mktemp("run") / "cfl")
        return done[name]

    return finished


def held(run: Finished) -> list[ParticipantData]:
    return DataConfig(**run.summary["data"]).newcomers(Digits())


def predict_of(run: Finished) -> Any:
    data = DataConfig(**run.summary["data"])
    return logits_for(run.method, run.make_model, data, Digits, run.summary["seed"])


def kept_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


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


CLUSTERING = [name for name, method in METHOD_LIST.items() if method.clusters]


@pytest.mark.parametrize("name", CLUSTERING)
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
        order = Order.of(method.distribute(states[-1], newcomer.name), train=True, evaluate=False)
        models = with_parts(run.state.bank, order.slots)
        answer = site.answer(newcomer.name, order, models, states[-1].round)
        assert answer.update is not None
        states.append(method.join(replace(states[-1], logits=predict), answer.update))
    for state in states[1:]:
        assert {slot: id(model) for slot, model in state.bank.items()} == {s: id(m) for s, m in run.state.bank.items()}
        assert {**state.assignment, **run.state.assignment} == state.assignment  # nobody else moves
    assert [state.round for state in states] == [run.state.round + i for i in range(3)]

    settings = ServerSettings(run.state.round + 1)
    server = Server(method, site.workshop.resident.layout, crowd, settings, run.state, logits=predict)
    orders = server.orders()
    models = with_parts(server.state.bank, [slot for o in orders.values() for slot in o.slots])
    for who, asked in orders.items():
        server.accept(site.answer(who, asked, models, run.state.round), "local")
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


# The rules by hand. On x = 1 the Coin's logits are its two weights; a newcomer whose labels are all 1 and that starts
# from (0, 0) with learning rate 1 ends one step later at (-0.5, 0.5).


def joined(
    method: Method, bank: dict[str, Any], labels: Sequence[int] = (1, 1, 1), rounds: int = 1, **state: Any
) -> Newcomer:
    """A newcomer to a run that ended with this bank."""
    site = Site(method, Coin, TrainSettings(lr=1.0, momentum=0.0, local_steps=1, batch_size=len(labels)), 0)
    samples = Samples(np.ones((len(labels), 1), np.float32), np.array(labels))
    site.add([ParticipantData("new", samples, samples)])
    logits = state.pop("logits", None)
    ended = ServerState(bank, **{"assignment": {"old": 0}, "round": 5, **state})
    newcomer = join(method, ended, site, "new", logits, rounds)
    assert "new" not in ended.assignment
    return newcomer


def served(newcomer: Newcomer) -> list[list[float]]:
    return [model.vector.tolist() for model in newcomer.served.models]


TWO = {"cluster-0": coin(2, 0), "cluster-1": coin(0, 2)}


@pytest.mark.parametrize(("labels", "cluster"), [((1, 1, 0), 1), ((0, 0, 1), 0), ((0, 1), 0)])
def test_ifca_takes_the_smallest_loss(labels: tuple[int, ...], cluster: int) -> None:
    newcomer = joined(IFCA(k=2), TWO, labels)
    assert (newcomer.cluster, newcomer.rounds) == (cluster, 2)
    assert served(newcomer) == [TWO[f"cluster-{cluster}"].vector.tolist()]  # as the run left it
    assert newcomer.metrics["served_accuracy"] == pytest.approx(labels.count(cluster) / len(labels))


@pytest.mark.parametrize("frozen", [None, 1])
@pytest.mark.parametrize(
    ("far", "cluster"),
    [(3, 0), (1.2, 1)],  # (-0.5, 0.5) is 1.5 from (1, -1) on each axis; 2.5 and 0.7 from the other centre
)
@pytest.mark.parametrize("kind", [WeCFL, FeSEM])
def test_wecfl_takes_the_nearest_centre_whatever_its_loss(
    kind: type[WeCFL], far: float, cluster: int, frozen: int | None
) -> None:
    bank = {"global": coin(0, 0), "cluster-0": coin(1, -1), "cluster-1": coin(-far, far)}
    newcomer = joined(kind(k=2, clustering_rounds=frozen), bank)
    assert newcomer.cluster == cluster
    assert served(newcomer) == [bank[f"cluster-{cluster}"].vector.tolist()]


def test_fedgroup_takes_the_closest_direction_and_fl_hc_the_nearest_update() -> None:
    bank = {slot: coin(0, 0) for slot in ("global", "cluster-0", "cluster-1")}
    bank |= {"first-0": coin(-0.5, -0.2), "first-1": coin(-30, 31)}  # from (-0.5, 0.5): 0.7 off and 67 degrees; far, 1
    assert joined(FedGroup(k=2), bank).cluster == 1
    assert joined(build_method({"method": "fl-hc", "k": 2}), bank).cluster == 0


@pytest.mark.parametrize(("first", "cluster"), [((0, 0), 0), ((9, 9), 0), ((9, -9), 1)])
def test_fedds_takes_the_smallest_divergence(first: tuple[int, int], cluster: int) -> None:
    # (-0.5, 0.5) predicts 0.27, 0.73. KL to (0.5, 0.5) is 0.11, however large the logits; to (5e-5, 1) 2.3.
    bank = {"cluster-0": coin(*first), "cluster-1": coin(-5, 5), "newcomer": coin(0, 0)}
    extras = {"start": {"old": 0}}

    def logits(models: Any) -> np.ndarray:
        return np.stack([model.vector[None] for model in models])

    assert joined(FedDS(k=2), bank, logits=logits, extras=extras).cluster == cluster
    with pytest.raises(ConfigError, match="no indicator samples"):
        joined(FedDS(k=2), bank, extras=extras)


def split() -> tuple[CFL, ServerState]:
    """A run in which {a, b} went one way and {c, d} another, and then {c} and {d}."""
    method = CFL(eps1=1e9, eps2=0)
    state = method.start(initial)
    for moves in ({"a": (1, 0), "b": (1, 0.1), "c": (-2, -1), "d": (-1, 2)}, {"c": (-2, -2), "d": (-2, 3)}):
        updates = [update(name, 1, method.distribute(state, name).slots[0], *move) for name, move in moves.items()]
        state = method.aggregate(state, updates, method.assign(state, updates))
    return method, state


def test_cfl_goes_down_the_tree_one_split_a_round() -> None:
    method, state = split()
    assert (state.assignment, state.extras["splits"]) == ({"a": 0, "b": 0, "c": 1, "d": 2}, [0, 1])
    extras = dict(state.extras)
    one = joined(method, dict(state.bank), (1, 1), assignment=state.assignment, extras=state.extras)
    assert (one.cluster, one.rounds) == (2, 3)  # two splits, then a member
    assert served(one) == [state.bank["cluster-2"].vector.tolist()]
    other = joined(method, dict(state.bank), (0, 0), assignment=state.assignment, extras=state.extras)
    assert (other.cluster, other.rounds) == (0, 2)
    assert state.extras == extras


def test_what_is_a_newcomer_s_own_is_trained_in_its_cluster_for_as_many_rounds_as_asked() -> None:
    ditto = build_method({"method": "ditto", "lam": 0.0})
    # v starts at the untrained model and takes a step a round, of the gradient alone
    vectors = [served(joined(ditto, {"global": coin(0, 0)}, rounds=rounds))[0] for rounds in (1, 2, 3)]
    margins = [b - a for a, b in vectors]
    assert margins[0] < margins[1] < margins[2]
    assert joined(ditto, {"global": coin(0, 0)}, rounds=3).rounds == 3


@dataclass(frozen=True, kw_only=True)
class Never(WeCFL):
    """Assigns nobody."""

    name: ClassVar[str] = "never"

    def assign(self, state: ServerState, updates: Sequence[Update]) -> dict[str, int]:
        return {}


def test_a_newcomer_that_is_never_placed_is_an_error() -> None:
    bank = {"global": coin(0, 0), **TWO}
    with pytest.raises(RunFailedError, match="new: method never gave it no cluster in 100 rounds"):
        joined(Never(k=2), bank)


def test_a_newcomer_that_cannot_be_trained_is_an_error() -> None:
    with pytest.raises(RunFailedError, match=r"new: its training ended with NaN or infinity"):
        joined(FedAvg(), {"global": coin(np.inf, 0)})


def test_one_that_fails_does_not_take_the_others_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_of(FedAvg(), tmp_path, participants=24, rounds=1)
    broken = {"class_path": "tests.e2e.plugin.Touchy", "args": MODEL["args"]}
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "model": broken}))
    content = onboard_unseen(folder, Digits())
    assert content["failed"]
    assert content["participants"]
    assert len(content["failed"]) + len(content["participants"]) == 6
    assert any("cable came off" in reason for reason in content["failed"].values())
    assert Touchy.__name__ == "Touchy"


# The command.


def npz(path: Path, size: int = 8, top: int = 9, count: int = 40) -> Path:
    """Digits of one participant in MedMNIST's layout."""
    train, test = Digits().load()
    arrays = {}
    for name, samples in (("train", train), ("test", test)):
        some = samples.take(np.random.default_rng(0).permutation(len(samples))[:count])
        arrays[f"{name}_images"] = np.pad((255 * some.x[:, 0]).astype(np.uint8), ((0, 0), *[(0, size - 8)] * 2))
        arrays[f"{name}_labels"] = np.where(some.y == 9, top, some.y)
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("name", ["wecfl", "fedavg+", "fedavg", "fedper"])
def test_the_command_saves_a_model_that_predicts_as_it_says(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data, out = npz(tmp_path / "own.npz"), tmp_path / "out"
    folder = Path(shutil.copytree(runs(name), tmp_path / "cfl"))
    assert main(["onboard", str(folder), "--data", str(data), "--name", "ward", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert str(out / "model.safetensors") in said
    row = next(line for line in said.splitlines() if line.startswith("ward"))
    assert ("no clusters" in row) == (name != "wecfl")
    assert ("nearest centre" in row) == (name == "wecfl")
    import torch

    arrays = np.load(data)
    model = read_model(out / "model.safetensors")
    x = torch.from_numpy(normalised(arrays["test_images"][:, None]))
    right = (model(x).argmax(1).numpy() == arrays["test_labels"]).mean()
    assert f"{right:.3f}" in row
    assert main(["onboard", str(folder), "--data", str(data), "--name", "ward"]) == 0
    again = read_model(folder / "newcomers" / "ward" / "model.safetensors")
    torch.testing.assert_close(again(x), model(x), rtol=0, atol=0)


def test_the_command_reads_the_indicator_file(
    runs: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, file = npz(tmp_path / "own.npz"), npz(tmp_path / "indicator.npz", count=400)
    words = ["onboard", str(runs("fedds")), "--data", str(data), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    wanted = "compares models on 10 indicator samples of each class; name a file of such: --indicator-file"
    assert wanted in capsys.readouterr().err
    assert main([*words, "--indicator-file", str(tmp_path / "nowhere.npz")]) == 2
    assert "nowhere.npz' is no file" in capsys.readouterr().err
    assert main([*words, "--indicator-file", str(file)]) == 0
    assert "smallest KL divergence" in capsys.readouterr().out


@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    """A method of the user's own."""

    name: ClassVar[str] = "mine"


def test_a_class_that_is_not_the_package_s_own_has_to_be_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = run_of(Mine(), tmp_path / "cfl", rounds=1), npz(tmp_path / "own.npz")
    assert main(["onboard", str(folder), "--data", str(data)]) == 2
    assert "the run names tests.test_onboard.Mine, which is not cfl_flare's own" in capsys.readouterr().err
    assert not (folder / "newcomers").exists()
    assert main(["onboard", str(folder), "--data", str(data), "--allow", "tests.test_onboard.Mine"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"data": partial(npz, size=9)}, r"MLP does not take samples of shape \(1, 9, 9\) .*bring the samples to what"),
        ({"data": partial(npz, top=11)}, r"label 11 does not fit .*\(1, 10\); .*bring the labels to its classes"),
        ({"--name": "a/b"}, r"--name = 'a/b' should be letters"),
        ({"--name": "p1"}, r"'p1' is a participant of the run; give it another name"),
        ({"--out": "."}, r"--out = '.*' is not an empty folder"),
        ({"--rounds": "0"}, r"rounds = 0 should be a whole number >= 1"),
        ({"--indicator-file": "x.npz"}, r"fedavg: needs no indicator samples; leave --indicator-file out"),
        ({"run": "nowhere"}, r"nowhere holds no finished run"),
    ],
)
def test_the_command_refuses(
    runs: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(runs("fedavg"), tmp_path / "cfl"))
    make = words.pop("data", npz)
    run = words.pop("run", str(folder))
    given = [word for pair in words.items() for word in pair]
    before = kept_files(folder)
    assert main(["onboard", run, "--data", str(make(tmp_path / "own.npz")), *given]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message, said), said
    assert kept_files(folder) == before


def test_a_run_that_kept_no_state_is_refused(runs: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs("fedavg"), tmp_path / "cfl"))
    shutil.rmtree(folder / "state")
    with pytest.raises(ConfigError, match="kept no state that a newcomer could join, as runs of earlier versions"):
        Finished(folder)


def test_a_run_in_which_nobody_has_a_cluster_is_refused(tmp_path: Path) -> None:
    data = DataConfig(4, {"partition": "iid"})
    settings = ServerSettings(1, min_answers=4, max_failed_rounds=9)

    class Refusing(Site):
        def answer(self, *given: Any) -> Any:
            return replace(super().answer(*given), update=None, error="no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cfl_flare.loop.Site", Refusing)
        run = {"method": WeCFL(k=2), "model": MODEL, "source": Digits(), "training": TRAINING, "data": data}
        run_loop(**run, settings=settings, folder=tmp_path)
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


@pytest.mark.parametrize("rounds", [1, 6, 7, 8])
def test_what_is_served_is_the_model_of_the_cluster_that_is_named(rounds: int) -> None:
    """One sample in turn decides, another in each round."""
    newcomer = joined(IFCA(k=2, assignment_samples=1), TWO, (0, 1, 0, 1), rounds)
    assert served(newcomer) == [TWO[f"cluster-{newcomer.cluster}"].vector.tolist()]


def test_a_simulation_s_newcomers_stand_in_the_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--loop", "--rounds", "2", "--method", "wecfl:k=3", "--method", "fedavg", "--out", str(tmp_path)]
    assert main([*words, "--unseen", "0.25"]) == 0
    lines = capfd.readouterr().out.splitlines()
    header = next(line for line in lines if line.startswith("method"))
    column = header.split().index("unseen")
    for run, name in (("fedavg", "fedavg"), ("wecfl-k3", "wecfl")):
        newcomers = load_run(tmp_path / run).newcomers
        assert newcomers is not None
        row = next(line for line in lines if line.startswith(name) and "/2" not in line).replace(" (K=3)", "")
        assert row.split()[column] == f"{newcomers['served_accuracy']:.3f}"
        assert len(newcomers["participants"]) == 6
        assert len(load_run(tmp_path / run).summary["participants"]) == 18
