# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Generated answers of one hostile site of three: what they cost, they cost that site alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvflare.apis.dxo import from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.core.arrays import load_arrays
from cfl_flare.data import Digits
from cfl_flare.flare import ClusteredRecipe, wire
from cfl_flare.flare.kit import allow
from cfl_flare.models import MLP
from cfl_flare.results.run_dir import load_run
from tests.hostile import forge
from tests.hostile.bench import BINS, EVERYONE, HOSTILE, PEOPLE, ROUNDS, Run, play
from tests.hostile.site import FORGED, MODE, Hostile

METHODS = {"wecfl": {"method": "wecfl", "k": 2, "starts": 1}, "ifca": {"method": "ifca", "k": 2}}
OWN = frozenset(PEOPLE[HOSTILE])


def cases(count: int):
    """Always the same cases, of which none is kept between runs."""
    return settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=[*HealthCheck]
    )


@cache
def without(method: str, absent: tuple[frozenset[str], ...]) -> Mapping[str, np.ndarray]:
    """The models of a run in which some of the site's participants do not take part: at all, or in a round."""

    def attack(task: str, number: int, answer: Shareable) -> Shareable | None:
        gone = absent[number] if number < len(absent) else frozenset()
        if task == wire.CHECK_TASK or not gone:
            return answer if absent[-1] is not None else None
        dxo = from_shareable(answer)
        for name in gone:
            dxo.meta[wire.META]["results"][name] = {"error": "training"}
            dxo.data = {key: part for key, part in dxo.data.items() if not key.startswith(f"{name}/")}
        return dxo.update_shareable(answer)

    return play(attack, METHODS[method]).models


@cache
def without_site(method: str) -> Mapping[str, np.ndarray]:
    """The models of a run that the site never joins."""
    return play(lambda task, number, answer: None, METHODS[method]).models


def check(run: Run, method: str, reasons: bool = True) -> None:
    """Nobody but the hostile site is harmed, and what it did is said in few words."""
    assert not run.panics
    assert len(run.records) == ROUNDS
    for record in run.records:
        assert set(record["failed"]) <= OWN
        assert set(record["trained"]) >= set(EVERYONE) - OWN
        for reason in record["failed"].values():
            assert reason.isprintable() and len(reason) <= 500
    for reason in run.left_out.values():
        assert reason.isprintable() and len(reason) <= 500
    assert all(line.isprintable() and len(line) < 1500 for line in run.log)
    assert sum(map(len, run.log)) < 20_000
    assert not [line for line in run.log if "bound method" in line or "<function" in line]
    assert reasons is False or not [line for line in run.log if "no result in time" in line]
    if run.left_out:
        assert set(run.left_out) == {HOSTILE}
        expected = without_site(method)
    else:
        absent = tuple(OWN - run.trained(number) for number in range(ROUNDS))
        for number, gone in enumerate(absent):
            assert gone == set(run.records[number]["failed"])
        expected = without(method, absent)
    assert run.models.keys() == expected.keys()
    for slot, model in run.models.items():
        np.testing.assert_array_equal(model, expected[slot])


def in_round(number: int, forgery: forge.Forgery):
    """An attack in one round alone; -1 is the check-in."""
    return lambda task, current, answer: forgery(answer) if current == number else answer


@given(forge.check_ins() | forge.messages())
@cases(300)
def test_check_ins(forgery):
    check(play(in_round(-1, forgery), METHODS["wecfl"]), "wecfl", reasons=False)


@given(forge.contents(), st.integers(0, ROUNDS), st.sampled_from(sorted(METHODS)))
@cases(350)
def test_contents_of_results(forgery, number, method):
    check(play(in_round(number, forgery), METHODS[method]), method)


@given(forge.models(), st.integers(0, ROUNDS - 1), st.sampled_from(sorted(METHODS)))
@cases(300)
def test_models(forgery, number, method):
    check(play(in_round(number, forgery), METHODS[method]), method)


@given(forge.histograms(), st.integers(0, ROUNDS), st.sampled_from(sorted(METHODS)), st.booleans())
@cases(150)
def test_histograms_of_scores(forgery, number, method, asked):
    training = {"score_bins": BINS} if asked else {}
    run = play(in_round(number, forgery), METHODS[method], training=training)
    check(run, method)
    for name in ("pooled_auroc", "pooled_macro_f1"):
        assert all(0 <= record.get(name, 0) <= 1 for record in run.records)
    assert run.panics or (run.curves is not None) == asked
    for label, own in {} if run.curves is None else run.curves.curves.items():
        assert own.participants <= len(EVERYONE) and own.sites <= 3, label
        assert np.isfinite(own.roc).all() and own.roc[0] == [0, 0] and own.roc[-1] == [1, 1]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_at_real_sites_there_is_a_curve_of_all_three_and_of_no_cluster_of_fewer(method, monkeypatch):
    """An honest job: of 3 sites, in 2 clusters or none, one of which sends histograms or all of which do."""
    monkeypatch.setattr("cfl_flare.flare.aggregator.simulated", lambda fl_ctx: False)

    def withheld(task, number, answer):
        return None if number == ROUNDS else answer

    for attack, sites in ((lambda task, number, answer: answer, 3), (withheld, 2)):
        run = play(attack, METHODS[method], training={"score_bins": BINS})
        kept = run.curves
        assert kept.sites == 3 and kept.samples == 10
        assert all(own.sites == 3 for own in kept.curves.values())
        assert ("all" in kept.curves) == (sites == 3), kept
        assert sites == 3 or set(kept.left_out.values()) == {"few_sites"}


@given(forge.messages(), st.integers(0, ROUNDS), st.sampled_from(sorted(METHODS)))
@cases(150)
def test_other_messages(forgery, number, method):
    check(play(in_round(number, forgery), METHODS[method]), method, reasons=False)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_honest_run_has_everybody(method):
    run = play(lambda task, number, answer: answer, METHODS[method])
    check(run, method)
    assert all(set(record["trained"]) == set(EVERYONE) for record in run.records)


# ---- A real FLARE client, over the wire ----


ROOT = Path(__file__).parents[2]


def played(folder: Path) -> Path:
    """The server's run directory of a job with three sites, one of which is hostile."""
    recipe = ClusteredRecipe(
        name="job",
        method="wecfl:k=2",
        data=Digits(),
        model=MLP((1, 8, 8), 10),
        participants=6,
        partition="label_permutation:groups=2",
        num_rounds=len(FORGED),
        min_clients=3,
        training={"lr": 0.05, "local_steps": 3},
    )
    allow(folder / "job" / "local" / "resources.json", ["tests.hostile.site."])
    run = recipe.execute(SimEnv(num_clients=3, workspace_root=str(folder)))
    return Path(run.get_result()) / "server" / "simulate_job"


@pytest.mark.slow
def test_a_real_client_s_forged_answers_change_no_model(tmp_path, monkeypatch):
    """Each round another forgery; the models are those of a run in which that site's participants failed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(ClusteredRecipe, "_executor", Hostile)
    runs = {}
    for mode in ("forges", "fails"):
        monkeypatch.setenv(MODE, mode)
        runs[mode] = played(tmp_path / mode) / "cfl"
    forged, failed = (load_run(folder) for folder in runs.values())
    for record, (_, reason) in zip(forged.rounds, FORGED, strict=True):
        assert set(record["trained"]) == {"p0", "p1", "p4", "p5"}
        assert set(record["failed"]) == {"p2", "p3"}
        for text in record["failed"].values():
            assert text.startswith(reason) and text.isprintable() and len(text) <= 500, (reason, text)
    for path in sorted((runs["fails"] / "clusters").glob("*.safetensors")):
        arrays, same = load_arrays(path)[0], load_arrays(runs["forges"] / "clusters" / path.name)[0]
        assert arrays.keys() == same.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(same[name], array)
    assert forged.assignments == failed.assignments
    log = (tmp_path / "forges" / "job" / "server" / "log.txt").read_text()
    assert "\x1b" not in log and "Traceback" not in log and "x" * 200 not in log
    assert json.loads((runs["forges"] / "summary.json").read_text())["rounds"] == len(FORGED)
