# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Private layers that are pulled towards their cluster's: by hand, at both limits, at the fixpoint, in every method."""

import numpy as np
import pytest
import torch
from torch import nn

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Params
from cfl_flare.core.private import Division, Own
from cfl_flare.data import Digits
from cfl_flare.engine.newcomers import Finished
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.preflight import check_plans
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.methods import FedAvg, Participant
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.store import Store
from cfl_flare.training.memory import PRIVATE
from cfl_flare.training.runtime import Split
from cfl_flare.training.settings import TrainSettings
from tests.engine.test_private import REFUSED, SPECS, built, run
from tests.play import MODEL, make_model, people, play
from tests.tiny import Biased

UP = np.array([1, -1])


class Line(nn.Module):
    """A slope and an intercept."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class Normed(nn.Module):
    """Batch normalisation, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.norm, self.head = nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.flat(x)))


def federation(model, splits: dict[str, Split], rounds: int, start: np.ndarray, private="bias", **settings):
    """Plays rounds of FedAvg from given values; returns the server, the site and the state after each round."""
    pull, memory = settings.pop("private_shrinkage"), settings.pop("memory", {})
    training = TrainSettings(**{"momentum": 0.0, **settings})
    site = Site(FedAvg(), model, training, 0, private=private, private_shrinkage=pull)
    public = site.runtime.division.public
    for name, split in splits.items():
        site._splits[name], site.memory[name] = (split, split), dict(memory)
        site.hosted[name] = people()[0]  # which nobody reads
    crowd = [Participant(name, "s", len(split)) for name, split in splits.items()]
    state = FedAvg().start(lambda i: Params(public, start.astype(np.float32)))
    server, seen = Server(FedAvg(), public, crowd, ServerSettings(rounds), state), []
    for number in range(rounds):
        for name, task in server.tasks().items():
            result = site.carry_out(name, task, server.bank, number)
            assert result.error is None, result.traceback
            server.accept(result, "s")
        server.finish_round()
        own = {name: site.memory[name][PRIVATE].vector for name in splits if PRIVATE in site.memory[name]}
        seen.append((server.bank["global"].vector, own))
    return server, site, seen


def two() -> dict[str, Split]:
    """One sample of label 0 at a, three of label 1 at b; x = 1, so that logits are weights plus biases."""
    return {
        name: Split.of(np.ones((count, 1), np.float32), np.full(count, label))
        for name, label, count in (("a", 0, 1), ("b", 1, 3))
    }


def test_two_rounds_by_hand():
    """With shrinkage 2, a = lr 2 / n is 2 at a and 2/3 at b: a pull leaves 1/3 and 3/5 of the distance to what came."""
    how = {"lr": 1.0, "local_steps": 1, "private_shrinkage": 2.0}
    _, _, seen = federation(Biased, two(), 2, np.zeros(4), **how)
    (first, own), (second, later) = seen
    # One step moves weights and biases by 1/2; the mean of the weights is (1/2 - 3/2) / 4.
    np.testing.assert_allclose(own["a"], 1 / 6 * UP, rtol=1e-6)
    np.testing.assert_allclose(own["b"], -3 / 10 * UP, rtol=1e-6)
    mu = (1 / 6 - 3 * 3 / 10) / 4
    np.testing.assert_allclose(first, [-1 / 4, 1 / 4, mu, -mu], rtol=1e-6)
    # Each goes on from its own bias, and is pulled to the mean's.
    wrong = 1 - 1 / (1 + np.exp(-2 * np.array([-1 / 4 + 1 / 6, 1 / 4 + 3 / 10])))
    a, b = mu + (1 / 6 + wrong[0] - mu) / 3, mu + (-3 / 10 - wrong[1] - mu) * 3 / 5
    np.testing.assert_allclose(later["a"], a * UP, rtol=1e-5)
    np.testing.assert_allclose(later["b"], b * UP, rtol=1e-5)
    weight = -1 / 4 + (wrong[0] - 3 * wrong[1]) / 4
    np.testing.assert_allclose(second, [weight, -weight, (a + 3 * b) / 4, -(a + 3 * b) / 4], rtol=1e-5)


def test_a_weak_pull_is_none_and_a_strong_one_leaves_what_came():
    how = {"lr": 0.5, "local_steps": 3}
    _, _, weak = federation(Biased, two(), 3, np.zeros(4), private_shrinkage=1e-9, **how)
    zeros = {PRIVATE: Params(Division.of(Biased(), "bias").private, np.zeros(2, np.float32))}
    _, _, none = federation(Biased, two(), 3, np.zeros(2), private_shrinkage=0.0, memory=zeros, **how)
    for name in "ab":
        np.testing.assert_allclose(weak[-1][1][name], none[-1][1][name], atol=1e-6)
    np.testing.assert_allclose(weak[-1][0][:2], none[-1][0], atol=1e-6)
    start = np.array([0.0, 0.0, 0.25, -0.5])
    _, _, strong = federation(Biased, two(), 3, start, private_shrinkage=1e12, **how)
    for _, own in strong:
        for name in "ab":
            np.testing.assert_allclose(own[name], start[2:], atol=1e-6)


def lines() -> tuple[dict[str, Split], dict[str, tuple[int, float]]]:
    """Hospitals with y = 2 x + c at x = -1 and 1, of different sizes and c."""
    sizes = {"a": (2, 1.0), "b": (4, -2.0), "c": (10, 3.0)}
    found = {}
    for name, (count, c) in sizes.items():
        x = np.tile([-1.0, 1.0], count // 2).astype(np.float32)[:, None]
        found[name] = Split(torch.from_numpy(x), torch.from_numpy(2 * x[:, 0] + np.float32(c)))
    return found, sizes


@pytest.mark.parametrize("shrinkage", [0.5, 8.0, 40.0])
def test_the_fixpoint_is_that_of_the_penalised_fit(shrinkage):
    """Slopes agree; intercepts obey 2 n (theta - c) + shrinkage (theta - mu) = 0, and mu is their weighted mean."""
    splits, sizes = lines()
    how = {"lr": 0.1, "local_steps": 10, "task": "regression", "batch_size": 10, "private_shrinkage": shrinkage}
    _, _, seen = federation(Line, splits, 120, np.zeros(2), **how)
    bank, own = seen[-1]
    v = {name: n**2 / (2 * n + shrinkage) for name, (n, _) in sizes.items()}
    mu = sum(v[name] * c for name, (_, c) in sizes.items()) / sum(v.values())
    assert bank == pytest.approx([2.0, mu], abs=2e-3)
    for name, (n, c) in sizes.items():
        assert own[name][0] == pytest.approx((2 * n * c + shrinkage * mu) / (2 * n + shrinkage), abs=2e-3)


def test_who_has_few_samples_is_pulled_more():
    splits, _ = lines()
    few, many = splits["a"], Split(*(torch.cat([t] * 10) for t in (splits["a"].x, splits["a"].y)))
    how = {"lr": 0.1, "local_steps": 20, "task": "regression", "batch_size": 20, "private_shrinkage": 4.0}
    _, _, seen = federation(Line, {"few": few, "many": many}, 1, np.zeros(2), **how)
    own = seen[0][1]
    assert 0 < own["few"][0] < own["many"][0] < 1


def test_prediction_is_with_the_own_layers_and_with_what_came_before_there_are_some():
    site = Site(
        FedAvg(), Biased, TrainSettings(lr=1.0, momentum=0.0, local_steps=1), 0, private="bias", private_shrinkage=1.0
    )
    split = Split.of(np.ones((2, 1), np.float32), np.zeros(2, np.int64))
    site._splits["p"] = (split, split)
    memory = {}
    work = site.learner("p", memory, 0)
    sent = Params(site.runtime.division.public, np.array([1, -1, -3, 3], np.float32))
    assert work.with_private(sent).vector.tolist() == [1, -1, -3, 3]
    assert work.evaluate(sent)["accuracy"] == 0
    memory[PRIVATE] = Params(site.runtime.division.private, np.array([2, -2], np.float32))
    whole = work.with_private(sent)
    assert whole.vector.tolist() == [1, -1, 2, -2]
    assert work.with_private(whole) is whole
    assert work.evaluate(sent)["accuracy"] == 1
    tuned = work.train(whole, purpose="finetune")  # from the own layers, pulled to those that came
    assert isinstance(tuned, Own)
    assert work.with_private(tuned) is tuned
    step = 1 - 1 / (1 + np.exp(-6.0))
    np.testing.assert_allclose(tuned.vector[2], -3 + (2 + step + 3) / 1.5, rtol=1e-5)
    assert memory[PRIVATE].vector.tolist() == [2, -2]


@pytest.mark.parametrize("private", ["bias", "head.weight|body.1.bias"])
@pytest.mark.parametrize("text", SPECS)
def test_every_method_takes_it(text, private):
    rounds = play(built(text), 3, private=private, private_shrinkage=5.0, keep_momentum=True)
    for played in rounds[:-1]:
        for name, answer in played.answers.items():
            assert any(key.endswith(PRIVATE) for key in played.memory[name])
            assert all(np.isfinite(diff.vector).all() for diff in answer.update.diffs.values())
    moved = {
        key for p in rounds[:-1] for a in p.answers.values() for d in a.update.diffs.values() for key in d.arrays()
    }
    held = text == "local"
    assert held or moved >= {e.name for e in Division.of(make_model(), None).whole.backbone.entries}
    assert rounds[-1].answers["p0"].metrics


def test_statistics_stay_and_parameters_travel(tmp_path):
    model = {"class_path": "tests.engine.test_shrinkage.Normed", "args": {}}
    server = run(FedAvg(), tmp_path, model=model, private="norm", private_shrinkage=3.0)
    assert set(server.bank["global"].arrays()) == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert not np.array_equal(server.bank["global"].arrays()["norm.weight"], np.ones(64))
    assert load_run(tmp_path).summary["private_shrinkage"] == 3.0
    newcomer = Finished(tmp_path).join(people()[0].__class__("new", people()[0].train, people()[0].test))
    assert isinstance(newcomer.served.models[0], Own)
    assert np.isfinite(newcomer.metrics["served_loss"])


def test_nothing_changes_without_it():
    (one, other) = (run(built("wecfl:k=2"), private="bias", **more) for more in ({}, {"private_shrinkage": 0.0}))
    np.testing.assert_array_equal(one.bank["cluster-0"].vector, other.bank["cluster-0"].vector)


def test_a_resumed_run_ends_as_an_uninterrupted_one_and_keeps_its_shrinkage(tmp_path):
    class Stop(Exception):
        pass

    def stop(measured):
        raise Stop

    more = {"private": "bias", "private_shrinkage": 2.0, "checkpoint_every": 1}
    with pytest.raises(Stop):
        run(built("ifca:k=2"), tmp_path / "r", checkpoints=Store(tmp_path / "c"), on_round=stop, **more)
    with pytest.raises(Exception, match="holds checkpoints of a run with other settings"):
        run(built("ifca:k=2"), tmp_path / "r", checkpoints=Store(tmp_path / "c"), **{**more, "private_shrinkage": 1.0})
    resumed = run(built("ifca:k=2"), tmp_path / "r", checkpoints=Store(tmp_path / "c"), **more)
    whole = run(built("ifca:k=2"), tmp_path / "u", **{**more, "checkpoint_every": 9})
    np.testing.assert_array_equal(resumed.bank["cluster-0"].vector, whole.bank["cluster-0"].vector)


@pytest.mark.parametrize("name", REFUSED)
def test_what_takes_no_private_layers_takes_no_shrunk_ones(name):
    with pytest.raises(ConfigError, match="does not go with method"):
        Site(built(name + ":k=2"), make_model, TrainSettings(), 0, private="bias", private_shrinkage=1.0)
    with pytest.raises(ConfigError, match="the head stays at the participant anyway"):
        Site(built("fedper"), make_model, TrainSettings(), 0, private="head", private_shrinkage=1.0)


def test_a_training_script_is_refused(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    job = {"min_clients": 2, "num_rounds": 1, "train_script": str(script), "private": "head"}
    plan = RunPlan.of(method="fedavg", model=MODEL, **job, private_shrinkage=2.0)
    with pytest.raises(ConfigError, match=r"private_shrinkage = 2\.0 is a part of cfl_flare's own training"):
        check_plans([plan])
    with pytest.raises(ConfigError, match=r"private_shrinkage = 2\.0 pulls the layers that private names"):
        RunPlan.of(method="fedavg", model=MODEL, data=Digits(), min_clients=2, num_rounds=1, private_shrinkage=2.0)
