# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""One liar of several: what it sends is bounded by what the others sent, before anything is clustered or averaged."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cfl_flare.core.params import Layout, Params
from cfl_flare.data import DataConfig, Digits, ParticipantData
from cfl_flare.engine.array_bounds import bound_arrays
from cfl_flare.engine.initial_models import initial_models
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result
from cfl_flare.methods import CFLGP, CLoVE, FedAvg, Method, Participant, ServerState, Update, WeCFL
from cfl_flare.methods.clove import LOSSES
from cfl_flare.methods.slots import add_parts
from cfl_flare.training.settings import TrainSettings
from tests.helpers.tiny import LAYOUT, coin

# Losses of two models. Their median by column is (2, 5), and the distances to it are 2, 2, 0, 3, 1.
ROWS = {"a": [2.0, 3.0], "b": [2.0, 7.0], "c": [2.0, 5.0], "d": [5.0, 5.0], "e": [1.0, 5.0]}


def losses(rows: dict[str, list[float]]) -> list[Update]:
    """Updates of participants that sent nothing but these losses."""
    return [Update(name, 1, arrays={LOSSES: np.array(row, np.float32)}) for name, row in rows.items()]


def bounded_rows(rows: dict[str, list[float]], bound: float) -> dict[str, list[float]]:
    updates, _ = bound_arrays(losses(rows), bound)
    return {update.participant: update.arrays[LOSSES].tolist() for update in updates}


def test_a_row_is_moved_towards_the_median_of_all():
    """The median distance is 2. With a bound of 1.25 times that, d may be at 2.5 and not at 3."""
    updates, excess = bound_arrays(losses(ROWS), 1.25)
    assert {u.participant: u.arrays[LOSSES].tolist() for u in updates} == {**ROWS, "d": [4.5, 5.0]}
    assert excess == {(LOSSES, "array"): {"d": pytest.approx(1.2)}}


def test_honest_rows_are_the_same_bits():
    updates = losses(ROWS)
    after, excess = bound_arrays(updates, 10.0)
    assert after is updates and not excess


def test_losses_of_a_hundred_million_keep_their_direction():
    """The median by column becomes (2, 5) again, the distances 2, 2, 0, 3, 3e8 of 4e8 and 5e8, so 2 is the median."""
    found = bounded_rows({**ROWS, "e": [3e8 + 2, 4e8 + 5]}, 10.0)
    assert found == {**ROWS, "e": pytest.approx([2 + 20 * 0.6, 5 + 20 * 0.8], rel=1e-6)}


def test_arrays_of_other_lengths_are_compared_among_themselves():
    rows = {**ROWS, "f": [1.0], "g": [2.0], "h": [3.0], "i": [1e9]}
    found = bounded_rows(rows, 10.0)
    assert found == {**rows, "i": [pytest.approx(2.5 + 10 * 0.5)]}


def test_what_most_share_says_nothing_about_the_rest():
    rows = {"a": [1.0], "b": [1.0], "c": [1.0], "d": [2.0]}
    assert bounded_rows(rows, 10.0) == rows


@given(st.lists(st.floats(0.5, 4.0, width=32), min_size=4, max_size=9, unique=True), st.floats(-1e8, 1e8, width=32))
def test_one_liar_stays_near_the_others_and_moves_nobody(honest, lie):
    rows = {f"p{i}": [value] for i, value in enumerate(honest)}
    found = bounded_rows({**rows, "liar": [lie]}, 10.0)
    assert abs(found.pop("liar")[0]) <= 4 + 10 * 4
    far = [name for name, row in found.items() if row != rows[name]]
    values = sorted([*honest, lie])
    spread = sorted(abs(value - np.median(values)) for value in values)[len(honest) // 2]
    assert all(abs(rows[name][0] - np.median(values)) > 9.99 * spread for name in far)


# ---- CLoVE ----

NAMES = [f"p{i}" for i in range(11)]
# Three groups, each with a model that fits it.
GROUP = {name: i % 3 for i, name in enumerate(NAMES)}


def cluster_by_losses(lie: list[float]) -> dict[str, int]:
    """A round of losses of eleven honest participants and a liar, under the floor of real sites."""
    people = [Participant(name, f"site-{name}", 30) for name in (*NAMES, "liar")]
    method = CLoVE(k=3)
    settings = ServerSettings(3).at_real_sites()
    server = Server(method, LAYOUT, people, settings, method.start(lambda i: coin(i, 0)))
    for name, task in server.tasks().items():
        row = lie
        if name in GROUP:
            row = [2.0 + NAMES.index(name) / 100] * 3
            row[GROUP[name]] = 0.5
        update = Update(name, 30, arrays={LOSSES: np.array(row, np.float32)})
        metrics = {"served_accuracy": 0.5} if task.evaluate else {}
        server.accept(Result(name, update, {"metrics": metrics}), f"site-{name}")
    server.finish_round()
    record = server.progress.record
    assert record is not None and list(record.get("clipped", {})) == ["liar"]
    return {name: cluster for name, cluster in server.state.assignment.items() if name in GROUP}


@pytest.mark.parametrize("lie", [[1e8, 2e8, 3e8], [-1e9, 1e9, 0.0], [1e9, 1e9, 1e9]])
def test_false_losses_take_no_honest_participant_along(lie):
    assert cluster_by_losses(lie) == GROUP


# ---- Negated updates ----

NORMED = Layout.of(nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False)))


def test_at_real_sites_one_negated_update_undoes_two():
    """Of four that count the same, three move by 1 and one by -9, of which -2 is left. The variance may move by 10."""
    start = Params(NORMED, np.array([0, 0, 1], np.float32), np.zeros(1, np.int64))
    people = [Participant(name, f"site-{name}", 30) for name in ("a", "b", "c", "liar")]
    settings = ServerSettings(3).at_real_sites()
    server = Server(FedAvg(), NORMED, people, settings, ServerState({"global": start}))
    for name in server.tasks():
        moves = [-9.0, 0.0, 0.9] if name == "liar" else [1.0, 0.0, 0.1]
        diff = Params(NORMED, np.array(moves, np.float32), np.zeros(1, np.int64))
        server.accept(Result(name, Update(name, 30, {"global": diff}), {}), f"site-{name}")
    server.finish_round()
    record = server.progress.record
    assert record is not None and record["clipped"] == {"liar": 4.5}
    assert server.state.bank["global"].vector.tolist() == pytest.approx([0.25, 0.0, 1.3])


# ---- Digits at twelve hospitals ----

MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [16]}}
TRAINING = TrainSettings(lr=0.1, momentum=0.9, batch_size=16, local_steps=10)
ROUNDS = 10
make_model = model_factory(MODEL)


@cache
def make_lying_hospitals() -> tuple[ParticipantData, ...]:
    return tuple(DataConfig(12, {"partition": "label_permutation", "groups": 3}).host(Digits(), "local", 0, 1))


def tell_lie(update: Update) -> Update:
    """Negates what was learned, nine times as long, and claims losses of 1e8, 2e8 and 3e8."""
    diffs = {slot: replace(diff, vector=-9 * diff.vector) for slot, diff in update.diffs.items()}
    arrays = {name: np.array([1e8, 2e8, 3e8], np.float32) for name in update.arrays}
    return replace(update, diffs=diffs, arrays=arrays)


def honest_accuracy(method: Method, liar: str | None) -> float:
    """The mean accuracy of all but the first hospital, at the guards of real sites."""
    site = Site(method, make_model, TRAINING, 0)
    site.add(make_lying_hospitals())
    people = [Participant(d.name, d.name, len(d.train), d.group) for d in make_lying_hospitals()]
    layout = site.runtime.division.public
    state = method.start(initial_models(method, make_model, layout, 0, None), [p.name for p in people])
    settings = ServerSettings(ROUNDS, evaluate_every=ROUNDS).at_real_sites()
    server = Server(method, layout, people, settings, state)
    accuracies = {}
    for number in range(ROUNDS + 1):
        tasks = server.tasks()
        models = add_parts(server.bank, [slot for task in tasks.values() for slot in task.needed])
        for name, task in tasks.items():
            result = site.carry_out(name, task, models, number)
            accuracies[name] = result.metrics.get("served_accuracy", 0.0)
            if name == liar and result.update is not None:
                result = replace(result, update=tell_lie(result.update))
            server.accept(result, name)
        server.finish_round()
    return float(np.mean([accuracies[person.name] for person in make_lying_hospitals()[1:]]))


@pytest.mark.parametrize("method", [WeCFL(k=3), CLoVE(k=3), CFLGP(k=3)], ids=lambda method: method.name)
def test_one_liar_of_twelve_does_not_destroy_digits(method):
    """Without the bounds WeCFL and CFL-GP lose more than 20 points, and CLoVE more than 40."""
    assert honest_accuracy(method, make_lying_hospitals()[0].name) > honest_accuracy(method, None) - 0.1
