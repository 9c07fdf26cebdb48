# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Private layers stay with each participant, in every method, and nothing of them is anywhere else."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Params
from cfl_flare.core.private import Division
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.newcomers import onboard_unseen
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Site, check_public
from cfl_flare.methods import METHODS, Download, FedAvg, Method, Participant, Proximal, Update, WeCFL
from cfl_flare.results.model_file import read_model
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.store import Store
from cfl_flare.training.learner import Learner
from cfl_flare.training.resident import build_untrained
from cfl_flare.training.runtime import PRIVATE, Runtime, Split
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import build_from_spec, run_loop
from tests.helpers.play import DATA, MODEL, make_model, play_rounds
from tests.helpers.tiny import Biased

SPECS = [
    *("fedavg", "fedprox:mu=0.1", "finetune", "local", "fedper", "fedbabu", "ditto", "per-fedavg:personal_steps=2"),
    *("ifca:k=2", "ifca:k=2,warm_start=True", "ifca:k=2,shared_backbone=True", "ifca:k=2,finetune=True"),
    *("fesem:k=2", "wecfl:k=2", "wecfl:k=2,cluster_on=all", "cgpfl:k=2", "fedac:k=2,map_every=2"),
    *("cfl:eps1=9,eps2=0", "fl-hc:k=2,rounds_before=1", "fedgroup:k=2", "wecfl:k=auto,warmup=1"),
    *("ifca-cam:k=2,warmup=1", "ifca-cam:k=2,warmup=1,updates=alternating", "fesem-cam:k=2,warmup=2"),
    *("ifca-cam:k=2,warmup=1,finetune=True", "fedavg+:k=2", "fedavg+:k=2,finetune=True", "fedavg+ifca:k=2"),
    *("cfl-gp:k=2,every=1", "clove:k=2", "clove:k=3,silhouette=True"),
    "groups:groups={'p0':'a','p1':'a','p2':'b','p3':'b','p4':'b','p5':'b'},warmup=1,pull=0.1",
    "ensemble:parts=[{'method':'ditto'},{'method':'wecfl','k':2}]",
    "wecfl:k=2,penalties=[{'penalty':'contrastive'},{'penalty':'knowledge_sharing'}]",
    "wecfl:k=2,penalties=[{'penalty':'contrastive','on':'representations'}]",
    "wecfl:k=2,penalties=[{'penalty':'contrastive','on':'representations','mode':'training'}]",
    "ifca:k=2,penalties=[{'penalty':'knowledge_sharing','pairwise':True,'scope':'backbone'}]",
]
REFUSED = {
    "fedcuau": "several copies of its layers",
    "fedds": "what whole models predict",
    "feddsmic": "what whole models predict",
}


class ScaledByBuffer(nn.Module):
    """A network with a buffer that nothing changes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 8)
        self.register_buffer("scale", torch.arange(1.0, 9.0) / 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x.flatten(1))) * self.scale)


def run_private_digits(
    method: Method, folder: Path | None = None, rounds: int = 4, data: DataConfig = DATA, **more
) -> Server:
    training = TrainSettings(lr=0.1, local_steps=3, keep_momentum=True)
    settings = ServerSettings(rounds, **{k: more.pop(k) for k in ("sample", "cross_site_evaluation") if k in more})
    given = {"model": MODEL, "source": Digits(), **more}
    return run_loop(method=method, data=data, settings=settings, training=training, folder=folder, **given)


def assert_equal_runs(one: Server, other: Server) -> None:
    assert one.state.assignment == other.state.assignment
    for slot, model in one.state.bank.items():
        theirs = other.state.bank[slot].arrays()
        for name, array in model.arrays().items():
            np.testing.assert_array_equal(array, theirs[name])


def one(private: str, **settings) -> Learner:
    """A participant with the labels 0, 0 and x = 1, whose weights or biases stay at (0, 0)."""
    training = TrainSettings(**{"lr": 1.0, "momentum": 0.0, "local_steps": 1, **settings})
    runtime = Runtime(Biased, training, 0, private=private)
    split = Split.of(np.ones((2, 1), np.float32), np.zeros(2, np.int64))
    zeros = Params(runtime.division.private, np.zeros(2, np.float32))
    return Learner(runtime, "p", split, split, {PRIVATE: zeros})


# ---- By hand ----


@pytest.mark.parametrize("private", ["weight", "bias"])
def test_means_are_of_what_travels_and_each_participant_trains_its_own(private):
    """One sample of label 0 at a, three of label 1 at b; x = 1, so that the logits are weights plus biases."""
    site = Site(FedAvg(), Biased, TrainSettings(lr=1.0, momentum=0.0, local_steps=1), 0, private=private)
    division = site.runtime.division
    zeros = np.zeros(2, np.float32)
    for name, label, count in (("a", 0, 1), ("b", 1, 3)):
        split = Split.of(np.ones((count, 1), np.float32), np.full(count, label))
        site._splits[name] = (split, split)
        site.memory[name] = {PRIVATE: Params(division.private, zeros)}
    crowd = [Participant("a", "s", 1), Participant("b", "s", 3)]
    state = FedAvg().start(lambda i: Params(division.public, zeros))
    server = Server(FedAvg(), division.public, crowd, ServerSettings(2), state)
    half = np.array([0.5, -0.5])
    for number in range(2):
        for name, task in server.tasks().items():
            server.accept(site.carry_out(name, task, server.bank, number), "s")
        server.finish_round()
        if number == 0:
            np.testing.assert_allclose(server.state.bank["global"].vector, -half / 2)  # (1/2 - 3/2) / 4
            np.testing.assert_allclose(site.memory["a"][PRIVATE].vector, half)
            np.testing.assert_allclose(site.memory["b"][PRIVATE].vector, -half)
    # a predicts label 0 with logits 1/4, -1/4; b label 1 with logits -3/4, 3/4.
    right = 1 / (1 + np.exp(-np.array([0.5, 1.5])))
    up = np.array([1, -1])
    np.testing.assert_allclose(site.memory["a"][PRIVATE].vector, half + (1 - right[0]) * up, rtol=1e-6)
    np.testing.assert_allclose(site.memory["b"][PRIVATE].vector, -half - (1 - right[1]) * up, rtol=1e-6)
    mean = -half / 2 + ((1 - right[0]) - 3 * (1 - right[1])) / 4 * up
    np.testing.assert_allclose(server.state.bank["global"].vector, mean, rtol=1e-6)


@pytest.mark.parametrize("private", ["weight", "bias"])
def test_a_penalty_pulls_what_travels_alone(private):
    work = one(private, local_steps=2)
    start = Params(work.initial(0).layout, np.zeros(2, np.float32))
    update = FedAvg(penalties=(Proximal(mu=0.4),)).local_update(work, Download(("global",), (start,)))
    wrong = 1 - 1 / (1 + np.exp(-2.0))  # after the first step all four values are 1/2 away from 0
    np.testing.assert_allclose(update.diffs["global"].vector, (0.5 + wrong - 0.4 * 0.5) * np.array([1, -1]), rtol=1e-6)
    np.testing.assert_allclose(work.memory[PRIVATE].vector, (0.5 + wrong) * np.array([1, -1]), rtol=1e-6)


def test_what_is_clustered_has_no_private_layers():
    division = Division.of(Biased(), "weight")
    method, zeros = WeCFL(k=2), np.zeros(2, np.float32)
    state = method.start(lambda i: Params(division.public, zeros))
    moved = Update("a", 1, {"global": Params(division.public, np.array([3, 4], np.float32))})
    np.testing.assert_array_equal(method.compute_vector(state, moved), [3, 4])


def test_prediction_is_with_the_own_layers_and_tuning_moves_them_for_that_prediction_alone():
    work = one("bias")
    sent = Params(work.initial(0).layout, np.array([1, -1], np.float32))
    work.memory[PRIVATE] = Params(work.memory[PRIVATE].layout, np.array([-2, 2], np.float32))
    assert work.evaluate(sent)["accuracy"] == 0  # logits -1, 1
    whole = work.with_private(sent)
    assert work.with_private(whole) is whole
    tuned = work.train(whole, purpose="finetune")
    assert tuned.layout == whole.layout
    assert (tuned.vector != whole.vector).all()
    assert work.memory[PRIVATE].vector.tolist() == [-2, 2]


def test_lost_and_foreign_memory_is_replaced_by_the_initial_layers():
    work = one("bias")
    sent = work.initial(0)
    for memory in ({}, {PRIVATE: sent}):  # of the weights, as another job may have kept them
        work.memory = memory
        np.testing.assert_array_equal(work.with_private(sent).vector, build_untrained(Biased, 0, 0).vector)


# ---- In every method ----


def test_every_method_is_tried():
    assert {build_from_spec(text).name for text in SPECS} | REFUSED.keys() == {cls.name for cls in METHODS.values()}


@pytest.mark.parametrize("private", ["bias", r"head.weight|body.1.bias"])
@pytest.mark.parametrize("text", SPECS)
def test_nothing_private_travels_or_is_at_the_server(text, private):
    if private != "bias" and ("fedper" in text or "fedbabu" in text):
        private = "body.1.bias"
    names = set(Division.of(make_model(), private).names)
    rounds = play_rounds(build_from_spec(text), 3, private=private, keep_momentum=True)
    for number, played in enumerate(rounds):
        for state in (played.before, played.after):
            assert not [slot for slot, model in state.bank.items() if names & model.arrays().keys()]
        for name, answer in played.answers.items():
            if answer.update is not None:
                assert not [slot for slot, diff in answer.update.diffs.items() if names & diff.arrays().keys()]
                only_measured = not any(not slot.startswith("criterion") for slot in answer.update.diffs) and (
                    answer.update.arrays or answer.update.diffs
                )
                assert only_measured or any(key.endswith(PRIVATE) for key in played.memory[name]), number
    assert rounds[-1].answers["p0"].metrics


@pytest.mark.parametrize("text", SPECS)
def test_a_private_array_that_nothing_trains_changes_nothing(text):
    model = {"class_path": "tests.engine.test_private.ScaledByBuffer", "args": {}}
    found, without = (
        run_private_digits(build_from_spec(text), model=model, rounds=3, private=p, sample=5) for p in ("scale", None)
    )
    assert_equal_runs(found, without)
    assert all("scale" not in m.arrays() for m in found.state.bank.values())
    assert text == "local" or any("scale" in m.arrays() for m in without.state.bank.values())


@pytest.mark.parametrize("sample", [1.0, 4])
def test_fedavg_with_private_heads_is_fedper(sample):
    seen: dict[str, list] = {"fedavg": [], "fedper": []}
    banks = {}
    for name, private in (("fedavg", "head"), ("fedper", None)):
        keep = seen[name].append
        server = run_private_digits(
            build_from_spec(name), private=private, sample=sample, on_round=lambda m, keep=keep: keep(m.participants)
        )
        banks[name] = next(iter(server.state.bank.values()))
    np.testing.assert_array_equal(banks["fedavg"].vector, banks["fedper"].vector)
    assert seen["fedavg"] == seen["fedper"] != []


# ---- A run's results ----


@pytest.mark.parametrize(
    "text",
    ["wecfl:k=2", "ditto", "ifca-cam:k=2,warmup=1", "ensemble:parts=[{'method':'ditto'},{'method':'ifca','k':2}]"],
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path, text):
    class Stop(Exception):
        pass

    def stop(measured):
        if measured.record["round"] == 1:
            raise Stop

    more = {"private": "bias", "checkpoint_every": 1}
    with pytest.raises(Stop):
        run_private_digits(
            build_from_spec(text), tmp_path / "r", checkpoints=Store(tmp_path / "c"), on_round=stop, **more
        )
    resumed = run_private_digits(build_from_spec(text), tmp_path / "r", checkpoints=Store(tmp_path / "c"), **more)
    assert_equal_runs(resumed, run_private_digits(build_from_spec(text), tmp_path / "u", private="bias"))
    finals = [load_run(tmp_path / name).summary["final"] for name in "ru"]
    assert {**finals[0], "seconds": 0} == {**finals[1], "seconds": 0}


@pytest.mark.parametrize("text", ["wecfl:k=2", "ifca-cam:k=2,warmup=1", "fedavg+ifca:k=2", "fedper"])
def test_the_models_that_a_run_leaves_have_the_initial_private_layers(tmp_path, text):
    server = run_private_digits(build_from_spec(text), tmp_path, private="bias", cross_site_evaluation=True)
    first = build_untrained(make_model, 0, 0).arrays()
    for folder in (tmp_path / "clusters", tmp_path / "best" / "clusters"):
        files = sorted(folder.glob("*.safetensors"))
        assert files
        for path in files:
            biases = {k: a for k, a in load_arrays(path)[0].items() if k.endswith("bias")}
            assert len(biases) in (2, 4)
            for key, array in biases.items():
                np.testing.assert_array_equal(array, first[key.split(".", 2)[2] if key.startswith("parts") else key])
            with pytest.raises(ConfigError, match="are untrained, as each participant has trained its own"):
                read_model(path)
    kept = load_arrays(next((tmp_path / "state").glob("*.safetensors")))[0]
    assert not [key for key in kept if key.endswith("bias")]
    assert load_run(tmp_path).summary["private"] == "bias"
    assert server.progress.best is not None


def test_every_model_is_measured_with_the_own_private_layers(tmp_path):
    """The last measurement of the own cluster's model is that of the cross-site table."""
    for text in ("wecfl:k=2", "fesem-cam:k=2,warmup=1"):
        run_private_digits(build_from_spec(text), tmp_path / text[:5], private="bias", cross_site_evaluation=True)
        found = load_run(tmp_path / text[:5])
        lines = [line.split(",") for line in (tmp_path / text[:5] / "cross_site.csv").read_text().splitlines()]
        loss = lines[0].index("loss")
        table = {(line[0], line[4]): float(line[loss]) for line in lines[1:]}
        for own in found.summary["participants"]:
            assert table[own["name"], f"cluster-{own['cluster']}"] == pytest.approx(own["served_loss"])


def test_a_newcomer_tunes_the_initial_layers_on_its_own_data(tmp_path):
    data = DataConfig(8, DATA.partition, unseen=2)
    run_private_digits(build_from_spec("wecfl:k=2"), tmp_path, data=data, private="head")
    before = {p.name: p.read_bytes() for p in (tmp_path / "clusters").iterdir()}
    short, long = (onboard_unseen(tmp_path, Digits(), rounds) for rounds in (1, 15))
    assert not short["failed"]
    assert short["served_loss"] > long["served_loss"]
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "clusters").iterdir()}


# ---- Refusals ----


@pytest.mark.parametrize(
    ("text", "private", "says"),
    [
        *((name + ":k=2", "bias", f"does not go with method .*: .*{why}") for name, why in REFUSED.items()),
        ("ensemble:parts=[{'method':'fedcuau'},{'method':'fedavg'}]", "bias", "several copies"),
        ("fedper", "head", "private = 'head': in method fedper the head stays at the participant anyway; leave it out"),
        ("fedbabu", "head", "in method fedbabu the head stays at the participant anyway"),
        ("ifca:k=2,shared_backbone=True", "head", "private = 'head' leaves too little that travels: the model has no"),
        ("fedac:k=2", "head", "private = 'head' leaves too little that travels: method fedac"),
        ("wecfl:k=2,cluster_on=head", "head", "leaves too little that travels: .*; set cluster_on=all"),
        (
            "fedavg:penalties=[{'penalty':'proximal','scope':'head'}]",
            "head",
            "travels: penalty proximal",
        ),
    ],
)
def test_refusals(text, private, says):
    with pytest.raises(ConfigError, match=says):
        Site(build_from_spec(text), make_model, TrainSettings(), 0, private=private)


def test_a_model_from_a_file_is_refused(tmp_path):
    run_private_digits(FedAvg(), tmp_path, rounds=1)
    with pytest.raises(ConfigError, match="with private layers each participant begins with those that its site"):
        run_private_digits(FedAvg(), private="bias", initial_ckpt=tmp_path / "clusters" / "global.safetensors")


def test_a_method_that_sends_a_private_layer_fails_at_the_site():
    division = Division.of(Biased(), "bias")
    whole = Params(division.layout, np.zeros(4, np.float32))
    check_public(Update("a", 1, {"global": whole.take(division.public)}), division)
    with pytest.raises(ConfigError, match=r"the update of global holds the private \['head.bias'\]"):
        check_public(Update("a", 1, {"global": whole}), division)
