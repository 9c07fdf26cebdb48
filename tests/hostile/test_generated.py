# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Generated answers of a hostile site, which cost it alone; generated settings of a hostile job, which are refused."""

from __future__ import annotations

import dataclasses
import json
import resource
from collections.abc import Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvflare.apis.client import Client
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.lighter.utils import generate_keys, sign_content, verify_content
from nvflare.recipe.prod_env import ProdEnv
from nvflare.recipe.sim_env import SimEnv

from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.config import from_dict
from cfl_flare.core.errors import CFLError, ConfigError
from cfl_flare.data import SOURCES, DataConfig, Digits, SiteData
from cfl_flare.data.partitions import PARTITIONS, build_partition
from cfl_flare.engine.settings import SiteSettings
from cfl_flare.flare import ClusteredRecipe, wire
from cfl_flare.flare.kit import allow
from cfl_flare.flare.rejoin import ENDS, LOST, SIGNATURE, Rejoin
from cfl_flare.methods import METHODS, build_method
from cfl_flare.models import MLP, Logistic
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.settings import TrainSettings
from tests.helpers import forge
from tests.helpers.bench import BINS, EVERYONE, HOSTILE, LATER, PEOPLE, ROUNDS, Run, play_job
from tests.helpers.forge import FORGED, MODE, Hostile
from tests.helpers.kits import JOB, MODEL, answer, ask_check_in, make_executor, write_kit, write_kit_npz

TRIED = {"wecfl": {"method": "wecfl", "k": 2, "starts": 1}, "ifca": {"method": "ifca", "k": 2}}
TRIED |= {name: {"method": name, **given} for name, given in LATER.items()}
EARLIER = sorted(TRIED.keys() - LATER.keys())
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

    return play_job(attack, TRIED[method]).models


@cache
def without_site(method: str) -> Mapping[str, np.ndarray]:
    """The models of a run that the site never joins."""
    return play_job(lambda task, number, answer: None, TRIED[method]).models


def check_forged_run(run: Run, method: str, reasons: bool = True) -> None:
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
    check_forged_run(play_job(in_round(-1, forgery), TRIED["wecfl"]), "wecfl", reasons=False)


@given(forge.forged_contents(), st.integers(0, ROUNDS), st.sampled_from(EARLIER))
@cases(350)
def test_contents_of_results(forgery, number, method):
    check_forged_run(play_job(in_round(number, forgery), TRIED[method]), method)


@given(forge.forged_models(), st.integers(0, ROUNDS - 1), st.sampled_from(sorted(TRIED)))
@cases(200)
def test_models(forgery, number, method):
    check_forged_run(play_job(in_round(number, forgery), TRIED[method]), method)


@given(forge.histograms(), st.integers(0, ROUNDS), st.sampled_from(EARLIER), st.booleans())
@cases(150)
def test_histograms_of_scores(forgery, number, method, asked):
    training = {"score_bins": BINS} if asked else {}
    run = play_job(in_round(number, forgery), TRIED[method], training=training)
    check_forged_run(run, method)
    for name in ("pooled_auroc", "pooled_macro_f1"):
        assert all(0 <= record.get(name, 0) <= 1 for record in run.records)
    assert run.panics or (run.curves is not None) == asked
    for label, own in {} if run.curves is None else run.curves.curves.items():
        assert own.participants <= len(EVERYONE) and own.sites <= 3, label
        assert np.isfinite(own.roc).all() and own.roc[0] == [0, 0] and own.roc[-1] == [1, 1]


@pytest.mark.parametrize("method", EARLIER)
def test_at_real_sites_there_is_a_curve_of_all_three_and_of_no_cluster_of_fewer(method, monkeypatch):
    """An honest job: of 3 sites, in 2 clusters or none, one of which sends histograms or all of which do."""
    monkeypatch.setattr("cfl_flare.flare.aggregator.simulated", lambda fl_ctx: False)

    def withheld(task, number, answer):
        return None if number == ROUNDS else answer

    for attack, sites in ((lambda task, number, answer: answer, 3), (withheld, 2)):
        run = play_job(attack, TRIED[method], training={"score_bins": BINS})
        kept = run.curves
        assert kept.sites == 3 and kept.samples == 10
        assert all(own.sites == 3 for own in kept.curves.values())
        assert ("all" in kept.curves) == (sites == 3), kept
        assert sites == 3 or set(kept.left_out.values()) == {"few_sites"}


@given(forge.forged_arrays(), st.integers(0, ROUNDS - 1), st.sampled_from(sorted(LATER)))
@cases(120)
def test_forged_losses_and_other_arrays(forgery, number, method):
    check_forged_run(play_job(in_round(number, forgery), TRIED[method]), method)


def others_go_on(run: Run) -> None:
    """What cannot be known to be untrue ends no run, and leaves finite models and everybody else's rounds."""
    assert not run.panics and not run.left_out and len(run.records) == ROUNDS
    for record in run.records:
        assert set(record["failed"]) <= OWN and set(record["trained"]) >= set(EVERYONE) - OWN
    assert all(np.isfinite(model).all() for model in run.models.values())


@given(forge.untrue(), st.integers(0, ROUNDS - 1), st.sampled_from(sorted(LATER)))
@cases(80)
def test_answers_that_are_not_true(forgery, number, method):
    others_go_on(play_job(in_round(number, forgery), TRIED[method]))


@given(st.sampled_from(["0", "1", "2", "p0", "group"]) | st.none(), st.sampled_from(sorted(OWN)))
@cases(20)
def test_a_group_that_is_not_its_own(label, own):
    """It counts in the group that it names; a group that the job does not list is none."""

    def attack(answer: Shareable) -> Shareable:
        dxo = from_shareable(answer)
        for said in dxo.meta[wire.META]["participants"]:
            if said["name"] == own:
                said["label"] = label
        return dxo.update_shareable(answer)

    run = play_job(in_round(-1, attack), TRIED["groups"])
    trained = set(EVERYONE) - (set() if label in ("0", "1") else {own})
    assert not run.panics and all(set(record["trained"]) == trained for record in run.records)
    assert all(not record["failed"] for record in run.records)
    assert own not in trained or run.controller.aggregator.running.state.labels[own] == label


@given(forge.messages(), st.integers(0, ROUNDS), st.sampled_from(EARLIER))
@cases(150)
def test_other_messages(forgery, number, method):
    check_forged_run(play_job(in_round(number, forgery), TRIED[method]), method, reasons=False)


@pytest.mark.parametrize("method", sorted(TRIED))
def test_the_honest_run_has_everybody(method):
    run = play_job(lambda task, number, answer: answer, TRIED[method])
    check_forged_run(run, method)
    assert all(set(record["trained"]) == set(EVERYONE) for record in run.records)


# ---- A real FLARE client, over the wire ----


ROOT = Path(__file__).parents[2]


def run_forged_job(folder: Path) -> Path:
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
    allow(folder / "job" / "local" / "resources.json", ["tests.helpers.forge."])
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
        runs[mode] = run_forged_job(tmp_path / mode) / "cfl"
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


DEALT = {"participants": 4, "partition": {"partition": "dirichlet", "alpha": 0.0001}, "min_samples": 1}


@contextmanager
def little_memory(room: int = 2**30):
    """So many bytes may be allocated beside what there is, so that an attack fails, and not the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def kit_site(tmp_path, monkeypatch, caplog) -> Path:
    caplog.set_level("INFO")
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path / "state"))
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "data" / "ward.npz")))
    return write_kit(tmp_path / "kit", data_roots=[str(tmp_path / "data")])


def said(source: Any, folder: Path, **data: Any) -> dict[str, Any]:
    """What a site answers at check-in to a job that deals data out."""
    model = (
        MODEL if not isinstance(source, Digits) else {**MODEL, "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
    )
    changed = {"data": {**DEALT, **data}, "model": model}
    return answer(make_executor(source, **changed), ask_check_in(job={**JOB, **changed}), folder)


@pytest.mark.parametrize("rule", ["dirichlet:alpha=0.0001", "n_class:n=1", "label_permutation:groups=2", "iid"])
def test_no_partition_deals_out_what_a_hospital_has(kit_site, tmp_path, rule, caplog):
    """The counts of parts of one label each were the counts of labels."""
    for source in (SiteData(), SOURCES["npz"](str(tmp_path / "data" / "ward.npz"))):
        assert said(source, kit_site, partition=rule) == {"schema": wire.SCHEMA, "error": "config"}
        assert "the site's own; that is for simulations" in caplog.text
        caplog.clear()


def test_a_set_that_comes_with_the_package_is_dealt_out_anywhere(kit_site):
    assert [person["name"] for person in said(Digits(), kit_site, partition="iid")["participants"]] == [
        "p0", "p1", "p2", "p3"
    ]  # fmt: skip


def test_a_job_for_real_sites_that_deals_out_their_data_is_not_sent(tmp_path):
    job = {"method": "fedavg", "model": Logistic((1, 4, 4), 2), "num_rounds": 2, "min_clients": 3, "name": "ward"}
    recipe = ClusteredRecipe(
        data=SOURCES["npz"](str(write_kit_npz(tmp_path / "a.npz"))), participants=4, partition="iid", **job
    )
    with pytest.raises(ConfigError, match=r"data: partition = .*iid.* deals out what Npz reads, .* leave participants"):
        recipe.process_env(ProdEnv(startup_kit_location=str(tmp_path)))


HUGE = [10**7, 10**9, 10**18, 10**30, -1, 2**63]
COUNTS = {
    "participants": lambda n: from_dict(DataConfig, {"participants": n, "partition": "iid"}, "data").names,
    "torch_threads": lambda n: SiteSettings(torch_threads=n),
    "local_steps": lambda n: TrainSettings(local_steps=n),
    "local_epochs": lambda n: TrainSettings(local_epochs=n),
    "score_bins": lambda n: TrainSettings(score_bins=n),
    "bootstrap": lambda n: TrainSettings(bootstrap=n),
    "size": lambda n: SiteData(size=n),
    "k of wecfl": lambda n: build_method({"method": "wecfl", "k": n}),
    "k of ifca": lambda n: build_method({"method": "ifca", "k": n}),
    "starts": lambda n: build_method({"method": "wecfl", "k": 2, "starts": n}),
    "k_max": lambda n: build_method({"method": "wecfl", "k": "auto", "k_max": n}),
}


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize("what", COUNTS)
def test_a_count_that_sizes_memory_or_a_loop_is_bounded_before(what, count):
    with little_memory(), pytest.raises(ConfigError):
        COUNTS[what](count)


ANY = st.one_of(
    st.sampled_from([*HUGE, 0, 1, True, None, 1e308, -0.0, float("nan"), float("inf"), "", "x" * 10**5, [], {}, [[]]]),
    st.lists(st.integers() | st.text(max_size=5), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
    st.text(max_size=8),
)


def settings_of_class(cls: type) -> st.SearchStrategy[dict[str, Any]]:
    names = [field.name for field in dataclasses.fields(cls)]
    return st.dictionaries(st.sampled_from([*names, "unknown"]), ANY, max_size=3)


@pytest.mark.parametrize(
    "cls", [TrainSettings, DataConfig, SiteSettings, *(SOURCES[n] for n in ("site", "npz", "table"))]
)
def test_any_settings_are_taken_or_refused_in_one_line_and_little_memory(cls):
    @given(settings_of_class(cls))
    @cases(300)
    def check(values):
        with little_memory():
            try:
                from_dict(cls, values, "job")
            except CFLError as error:
                assert str(error).isprintable()

    check()


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_any_partition_s_settings_are_taken_or_refused(name):
    @given(settings_of_class(PARTITIONS[name]))
    @cases(100)
    def check(values):
        with little_memory():
            try:
                build_partition({"partition": name, **values}).check(6)
            except CFLError as error:
                assert str(error).isprintable()

    check()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_any_method_s_settings_are_taken_or_refused(name):
    @given(
        st.dictionaries(
            st.sampled_from(["k", "warmup", "starts", "seed", "base", "mu", "copies", "parts", "groups"]), ANY
        )
    )
    @cases(60)
    def check(values):
        with little_memory():
            try:
                build_method({"method": name, **values})
            except CFLError as error:
                assert str(error).isprintable()

    check()


@pytest.mark.parametrize("signature", [None, "", "QUJD", 7, "another job's", "the job's"])
def test_only_a_job_s_server_process_says_who_is_lost_in_it(signature):
    """Any site can send this message, and name any job in its peer context."""
    private, public = generate_keys()
    gone: list[tuple[str, str]] = []

    def verify(name: str, token: str, signed: str) -> bool:
        try:
            verify_content(content=name + token, signature=signed, public_key=public)
        except Exception:
            return False
        return True

    signed = {name: sign_content("server_job" + job, private) for name, job in SIGNED.items()}
    job_runner = SimpleNamespace(
        running_jobs={"victim": "job"},
        resolve_client_outcome=lambda job, site: gone.append((job, site)),
        is_client_outcome_pending=lambda job, site: True,
    )
    engine = SimpleNamespace(
        job_runner=job_runner,
        run_processes={"victim": {RunProcessKey.PARTICIPANTS: {"token": Client("site-1", "token")}}},
        client_manager=SimpleNamespace(get_clients=lambda: {"token": None}),
        server=SimpleNamespace(verify_auth_token=verify),
    )
    peer, fl_ctx, request = FLContext(), FLContext(), Shareable()
    peer.set_prop(ReservedKey.RUN_NUM, "victim", private=False)
    fl_ctx.set_peer_context(peer)
    fl_ctx.set_prop(ReservedKey.ENGINE, engine)
    request[LOST], request[ENDS], request[SIGNATURE] = ["site-1"], True, signed.get(str(signature), signature)
    reply = Rejoin()._reply("cfl_flare.rejoin", request, fl_ctx)
    honest = signature == "the job's"
    assert reply.get_return_code() == (ReturnCode.OK if honest else ReturnCode.BAD_REQUEST_DATA)
    assert gone == ([("victim", "site-1")] if honest else [])


SIGNED = {"the job's": "victim", "another job's": "other"}
