# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The bounds of what one update moves: honest ones stay, the order does not matter, a liar's influence is bounded."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cfl_flare.core.params import Entry, Layout, Params
from cfl_flare.engine.clipping import Norms, Statistics, clipped, layer_slices
from cfl_flare.engine.settings import CLIP_NORM
from cfl_flare.methods import Update

LAYOUT = Layout.of(
    nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False), nn.Linear(1, 1, bias=False))
)
BANK = {"global": Params(LAYOUT, np.array([0, 0, 0, 1], np.float32), np.zeros(1, np.int64))}


def update(name: str, *moves: float) -> Update:
    return Update(
        name, 1, {"global": Params(LAYOUT, np.array(moves, np.float32), np.zeros(1, np.int64))}, main="global"
    )


def bounded(updates: list[Update], bound: float = CLIP_NORM) -> list[Update]:
    norms, statistics = Norms(), Statistics()
    for one in updates:
        norms.add(one)
        statistics.add(one, BANK)
    return list(clipped(updates, norms.excess(bound), statistics.excess(bound)[0]))


SIZES = st.floats(0.25, 1.875, width=32)  # each within ten times any other
SIGNS = st.sampled_from([-1.0, 1.0])
HONEST = st.lists(
    st.builds(lambda a, i, b, j, m, v: (a * i, b * j, m, v), SIZES, SIGNS, SIZES, SIGNS, SIZES, SIZES),
    min_size=3,
    max_size=7,
)
ANYTHING = st.floats(-1e8, 1e8, width=32)


@given(HONEST)
def test_honest_updates_are_never_changed_by_the_default(moves):
    updates = [update(f"p{i}", *move) for i, move in enumerate(moves)]
    assert all(after is before for after, before in zip(bounded(updates), updates, strict=True))


@given(HONEST, st.tuples(ANYTHING, ANYTHING, ANYTHING, ANYTHING), st.randoms())
def test_the_order_of_participants_does_not_matter(moves, hostile, random):
    updates = [update(f"p{i}", *move) for i, move in enumerate([*moves, hostile])]
    vectors = {one.participant: one.main_diff.vector.tobytes() for one in bounded(updates)}
    random.shuffle(updates)
    assert vectors == {one.participant: one.main_diff.vector.tobytes() for one in bounded(updates)}


@given(HONEST, st.tuples(ANYTHING, ANYTHING, ANYTHING, ANYTHING))
def test_one_liar_moves_each_layer_and_each_statistic_so_far_and_no_further(moves, hostile):
    rows = np.abs([[*move] for move in moves])
    *honest, liar = bounded([update(f"p{i}", *move) for i, move in enumerate([*moves, hostile])])
    assert [one.main_diff.vector.tolist() for one in honest] == [np.float32(move).tolist() for move in moves]
    moved = np.abs(liar.main_diff.vector.astype(np.float64))
    assert (moved[:2] <= CLIP_NORM * rows[:, :2].max(axis=0) * (1 + 1e-5)).all()
    variance, most = 1 + float(liar.main_diff.vector[3]), 1 + rows[:, 3].max()
    assert 0.099 <= variance <= CLIP_NORM * most * 1.001
    assert moved[2] <= rows[:, 2].max() + CLIP_NORM * np.sqrt(most) * 1.001


def test_layers_are_modules_and_single_buffers():
    assert layer_slices(LAYOUT) == {
        "0": slice(0, 1),
        "2": slice(1, 2),
        "1.running_mean": slice(2, 3),
        "1.running_var": slice(3, 4),
    }
    assert list(layer_slices(Layout.of(nn.Linear(2, 2))).values()) == [slice(0, 4), slice(4, 6)]
    assert list(layer_slices(Layout.of(nn.Sequential(nn.Linear(2, 2)))).values()) == [slice(0, 6)]


def test_a_scripts_running_statistics_are_known_by_their_names():
    names = ("bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
    layout = Layout(tuple(Entry(name, (1,), "parameter", False, False, i) for i, name in enumerate(names)))
    assert list(layer_slices(layout)) == ["bn", "bn.running_mean", "bn.running_var"]
    bank = {"global": Params(layout, np.array([1, 0, 0, 1], np.float32))}
    statistics = Statistics()
    for name, variance in {"a": 0.1, "b": -0.1, "c": 0.0, "liar": -9.0}.items():
        diff = Params(layout, np.array([0, 0, 0, variance], np.float32))
        statistics.add(Update(name, 1, {"global": diff}, main="global"), bank)
    ranges, excess = statistics.excess(10.0)
    assert list(ranges) == [("liar", "global")]
    assert excess.keys() == {("main", "bn.running_var")}


def test_a_layer_that_only_some_updates_carry_is_measured_among_those():
    head = LAYOUT.restricted(["2.weight"])
    updates = [update(name, 1.0, 1.0, 0.0, 0.0) for name in "abc"]
    updates += [
        Update(name, 1, {"global": Params(head, np.array([move], np.float32))}, main="global")
        for name, move in {"d": 1.0, "liar": 40.0}.items()
    ]
    after = {one.participant: one.main_diff.vector.tolist() for one in bounded(updates)}
    assert after["liar"] == [10.0]
    assert after["d"] == [1.0]
