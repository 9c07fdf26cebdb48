# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of a hostile job, as a site gets them whose author edits the JSON: refused before any work is done."""

from __future__ import annotations

import dataclasses
import resource
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReservedKey, ReturnCode, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.lighter.utils import generate_keys, sign_content, verify_content
from nvflare.recipe.prod_env import ProdEnv

from cfl_flare.core.config import from_dict
from cfl_flare.core.errors import CFLError, ConfigError
from cfl_flare.data import SOURCES, DataConfig, Digits, SiteData
from cfl_flare.data.partitions import PARTITIONS, build_partition
from cfl_flare.engine.settings import SiteSettings
from cfl_flare.flare import ClusteredRecipe, wire
from cfl_flare.flare.rejoin import ENDS, LOST, SIGNATURE, Rejoin
from cfl_flare.methods import METHODS, build_method
from cfl_flare.models import Logistic
from cfl_flare.training.settings import TrainSettings
from tests.flare.kits import JOB, MODEL, answer, check_in, executor, kit, npz
from tests.hostile.test_generated import cases

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
def site(tmp_path, monkeypatch, caplog) -> Path:
    caplog.set_level("INFO")
    monkeypatch.setenv("CFL_STATE_ROOT", str(tmp_path / "state"))
    monkeypatch.setenv("CFL_DATA", str(npz(tmp_path / "data" / "ward.npz")))
    return kit(tmp_path / "kit", data_roots=[str(tmp_path / "data")])


def said(source: Any, folder: Path, **data: Any) -> dict[str, Any]:
    """What a site answers at check-in to a job that deals data out."""
    model = (
        MODEL if not isinstance(source, Digits) else {**MODEL, "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
    )
    changed = {"data": {**DEALT, **data}, "model": model}
    return answer(executor(source, **changed), check_in(job={**JOB, **changed}), folder)


@pytest.mark.parametrize("rule", ["dirichlet:alpha=0.0001", "n_class:n=1", "label_permutation:groups=2", "iid"])
def test_no_partition_deals_out_what_a_hospital_has(site, tmp_path, rule, caplog):
    """The counts of parts of one label each were the counts of labels."""
    for source in (SiteData(), SOURCES["npz"](str(tmp_path / "data" / "ward.npz"))):
        assert said(source, site, partition=rule) == {"schema": wire.SCHEMA, "error": "config"}
        assert "the site's own; that is for simulations" in caplog.text
        caplog.clear()


def test_a_set_that_comes_with_the_package_is_dealt_out_anywhere(site):
    assert [person["name"] for person in said(Digits(), site, partition="iid")["participants"]] == [
        "p0", "p1", "p2", "p3"
    ]  # fmt: skip


def test_a_job_for_real_sites_that_deals_out_their_data_is_not_sent(tmp_path):
    job = {"method": "fedavg", "model": Logistic((1, 4, 4), 2), "num_rounds": 2, "min_clients": 3, "name": "ward"}
    recipe = ClusteredRecipe(data=SOURCES["npz"](str(npz(tmp_path / "a.npz"))), participants=4, partition="iid", **job)
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
