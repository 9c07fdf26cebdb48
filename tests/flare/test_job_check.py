# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a prepared kit refuses of a job before it runs: components, other software, settings and devices."""

import copy
import io
import json
import logging
import re
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nvflare.apis.app_validation import AppValidator
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.utils.class_utils import instantiate_class
from nvflare.fuel.utils.component_builder import ComponentBuilder
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.fuel.utils.json_scanner import JsonScanner
from nvflare.fuel.utils.wfconf import resolve_var_refs
from nvflare.private.fed.app.default_app_validator import DefaultAppValidator
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator

from cfl_flare import __version__
from cfl_flare.cli import main
from cfl_flare.core.config import marked
from cfl_flare.core.errors import ConfigError, PathError
from cfl_flare.data import Npz, SiteData, files
from cfl_flare.data.files import reading_within
from cfl_flare.flare import ClusteredRecipe, StudyRecipe, policy
from cfl_flare.flare import executor as module
from cfl_flare.flare.allowed import with_job_check
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.job_check import JobCheck
from cfl_flare.flare.policy import check_same_settings, check_software, unused_copy
from cfl_flare.models import Logistic
from tests.helpers.kits import answer, ask_check_in, context, write_kit, write_kit_npz

ROOT = Path(__file__).parents[2]
SECRET = "hunter2"
TRACKER = "nvflare.app_opt.tracking.mlflow.mlflow_receiver.MLflowReceiver"
ANALYTICS = "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A check makes its process a kit's."""
    monkeypatch.setattr(files, "_usual_roots", None)
    monkeypatch.setattr(ConfigFactory, "_fmt2Loader", {**ConfigFactory._fmt2Loader})
    monkeypatch.setenv("PASSWORD", SECRET)


def app(folder: Path, client: Any = None, server: Any = None, **texts: str) -> Path:
    (folder / "config").mkdir(parents=True)
    for side, content in (("client", client), ("server", server)):
        if content is not None:
            (folder / "config" / f"config_fed_{side}.json").write_text(json.dumps(content))
    for name, text in texts.items():
        (folder / "config" / name.replace("__", ".")).write_text(text)
    return folder


def read_refusal(folder: Path) -> str:
    error, info = JobCheck().validate(str(folder))
    assert info == {} and SECRET not in error
    return error


def resolved(config: dict[str, Any]) -> dict[str, Any]:
    """As FLARE's builder reads it."""
    config = copy.deepcopy(config)
    variables = copy.deepcopy(config)
    for name in [name for name in config if name.startswith("@")]:
        config.pop(name)
    resolve_var_refs(JsonScanner(config), {**variables, "WORKSPACE": "/srv/kit"})
    return config


# Each becomes the password when FLARE reads it.
LEAKS: dict[str, dict[str, Any]] = {
    "plain": {"x": "{$PASSWORD}"},
    "spaces": {"x": " {$PASSWORD} "},
    "in a text": {"x": "run-{$PASSWORD}"},
    "converted": {"x": "run {$PASSWORD!s}"},
    "padded": {"x": "run {$PASSWORD:>9}"},
    "in a list": {"x": [["{$PASSWORD}"]]},
    "escaped": {"x": "{{$PASSWORD}}{$HOME}"},
    "escaped twice": {"x": "{{{{$PASSWORD}}}} "},
    "by another item": {"A": "$PASSWORD", "x": "{{{A}}} "},
    "by characters": {"A": 123, "B": 36, "C": 125, "x": "{A:c}{B:c}PASSWORD{C:c}"},
    "by pieces": {"A": "{", "B": "}", "x": "{A}$PASSWORD{B}"},
    "by an index": {"A": ["$PASSWORD"], "x": "{{{A[0]}}} "},
    "by a definition": {"@f": {"y": "{{{a}}} "}, "x": "{@f:a=$PASSWORD}"},
    "by what looks like a place": {"²": "a", "x": "{²}{$PASSWORD}"},
    "the kit's folder": {"x": "{WORKSPACE}"},
    "the kit's folder, renamed": {"WORKSPACE": "mine", "x": "{WORKSPACE}/a"},
}


@pytest.mark.parametrize("case", LEAKS)
def test_what_flare_would_replace_is_refused(tmp_path, case):
    config = LEAKS[case]
    leaked = json.dumps(resolved(config))
    assert (SECRET in leaked) != ("/srv/kit" in leaked)  # the attack is real
    for side in ("client", "server"):
        assert "refers to a variable" in read_refusal(app(tmp_path / side, **{side: config}))


@pytest.mark.parametrize("text", [r"layer\d{2}", "weight {kg}", "{", "a}b{", "$PASSWORD", "{0}{$PASSWORD}", ""])
def test_what_flare_leaves_as_it_is_passes(tmp_path, text):
    config = {"format_version": 2, "x": text}
    assert resolved(config) == config
    assert read_refusal(app(tmp_path, server=config)) == ""


def test_a_job_s_references_to_its_own_items_pass(tmp_path):
    assert main(["templates", str(tmp_path / "templates")]) == 0
    for i, template in enumerate(sorted((tmp_path / "templates").glob("cfl_*"))):
        texts = {f"config_fed_{side}__conf": (template / f"config_fed_{side}.conf").read_text() for side in SIDES}
        assert read_refusal(app(tmp_path / str(i), **texts)) == ""
    assert i > 5


SIDES = ("client", "server")


def test_a_job_s_items_do_not_multiply_in_the_kit_s_own_process(tmp_path):
    laughs = {f"x{i}": [f"{{x{i + 1}}}"] * 1000 for i in range(9)}
    assert "refers to a variable" in read_refusal(app(tmp_path, client={"executors": [], **laughs, "x9": "ha"}))


@pytest.mark.parametrize(
    "name, text",
    [
        ("config_fed_client__conf", "x = ${PASSWORD}"),
        ("config_fed_client__conf", 'x = "a"\ninclude "/etc/passwd"'),
        ("config_fed_server__conf", 'INCLUDE file("/etc/passwd")'),
        ("config_fed_client__conf", 'x = "{$PASSWORD}"'),
        ("config_fed_client__yml", "x: ${oc.env:PASSWORD}"),
        ("config_fed_client__conf__default", "x = ${?PASSWORD}"),
        ("config_fed_client__json", "[" * 100_000),
        ("config_fed_client__json", "[]"),
        ("config_fed_client__json", '{"components.#1": {"path": "a.B"}}'),
    ],
)
def test_other_files_of_a_job_are_refused_or_read_as_flare_reads_them(tmp_path, name, text):
    assert read_refusal(app(tmp_path, **{name: text})).startswith(name.replace("__", "."))


def submit_meta(meta: str) -> tuple[bool, str, dict[str, Any]]:
    """What the server says of a job when it gets it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as job:
        job.writestr("ward/meta.conf", meta)
        job.writestr("ward/app/config/", "")
        for side in SIDES:
            job.writestr(f"ward/app/config/config_fed_{side}.json", "{}")
    return JobMetaValidator().validate("ward", data.getvalue())


def test_nothing_is_replaced_or_included_when_a_job_is_submitted_or_deployed(tmp_path):
    """FLARE parses a job before it asks anybody."""
    meta = 'min_clients = 1, deploy_map { app = ["@ALL"] }, resource_spec {}, name = '
    (tmp_path / "private").write_text(f"x = {SECRET}")
    hocon = f'include "{tmp_path}/private"'
    assert submit_meta(meta + "${PASSWORD}")[2]["name"] == SECRET  # the attacks are real
    (good, _, found) = submit_meta(meta + "ward, " + hocon)
    assert good and found["x"] == SECRET
    JobCheck()
    for text in ("${PASSWORD}", "ward, " + hocon):
        good, why, found = submit_meta(meta + text)
        assert not good and "is replaced when it is read" in why and SECRET not in why + str(found)
    assert submit_meta(meta + "ward")[0]
    with pytest.raises(ValueError, match="is replaced when it is read"):
        DefaultAppValidator("server").validate(str(app(tmp_path / "app", config_fed_server__conf=hocon)))


def export_ward_job(folder: Path) -> dict[str, dict[str, Any]]:
    settings = {"model": Logistic((1, 4, 4), 2), "data": SiteData(), "num_rounds": 2, "min_clients": 3}
    ClusteredRecipe(name="ward", method="wecfl:k=2", exclude_vars="bias", **settings).export(str(folder))
    config = folder / "ward" / "app" / "config"
    return {side: json.loads((config / f"config_fed_{side}.json").read_text()) for side in SIDES}


def test_exported_jobs_pass(tmp_path):
    assert read_refusal(app(tmp_path / "a", **export_ward_job(tmp_path / "jobs"))) == ""
    settings = {"model": Logistic((1, 4, 4), 2), "data": SiteData(), "num_rounds": 2, "min_clients": 3}
    StudyRecipe(name="study", validation=0.25, training={"bootstrap": 50}, **settings).export(str(tmp_path / "jobs"))
    assert read_refusal(tmp_path / "jobs" / "study" / "app") == ""


def worker(configs: dict[str, Any]) -> dict[str, Any]:
    return configs["client"]["executors"][0]["executor"]


def add(configs: dict[str, Any], side: str, path: str, **args: Any) -> None:
    configs[side]["components"].append({"id": "x", "path": path, "args": args})


ATTACKS = {
    "a receiver": lambda c: add(c, "client", TRACKER),
    "a data source": lambda c: add(c, "client", "cfl_flare.data.sources.SiteData", columns="/etc/passwd"),
    "a data source at the server": lambda c: add(c, "server", "cfl_flare.data.sources.SiteData", columns="/etc/passwd"),
    "warnings": lambda c: add(c, "client", ANALYTICS, events_to_convert=["_warning_log_available"]),
    "warnings too": lambda c: c["client"]["components"][0]["args"]["events_to_convert"].append("_error_log_available"),
    "inside an executor": lambda c: worker(c)["args"].update(made_by={"path": TRACKER, "args": {}}),
    "inside, by another key": lambda c: worker(c)["args"].update(made_by={"class_path": TRACKER}),
    "inside a filter": lambda c: c["client"].update(
        task_result_filters=[{"filters": [{"path": "a.B", "args": {"x": {"name": "TBWriter"}}}]}]
    ),
    "inside, by a reference": lambda c: (
        c["client"].update(hidden={"path": TRACKER}),
        worker(c)["args"].update(made_by="{hidden}"),
    ),
    "a source as an executor, by a reference": lambda c: (
        c["client"].update(hidden="cfl_flare.data.table.Table"),
        worker(c).update(path="{hidden}"),
    ),
    "components by a reference": lambda c: c["client"].update(hidden=[{"path": TRACKER}], components="{hidden}"),
    "a source as an executor": lambda c: worker(c).update(path="cfl_flare.data.table.Table"),
    "a hidden component": lambda c: c["client"].update({"components.#1": {"path": TRACKER}}),
    "a hidden executor": lambda c: c["client"].update({"executors.#1.executor": {"path": TRACKER}}),
    "a component of a dictionary": lambda c: c["client"].update(components={"#1": {"path": TRACKER}}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_sites_take_executors_and_filters_alone(tmp_path, attack):
    configs = export_ward_job(tmp_path / "jobs")
    ATTACKS[attack](configs)
    error = read_refusal(app(tmp_path / "a", **configs))
    assert error.startswith(f"config_fed_{'server' if 'server' in attack else 'client'}.json: ")
    assert "/etc/passwd" not in error and "\n" not in error and len(error) < 400


def test_a_refusal_is_in_the_operator_s_log_and_code_is_the_authorization_s_matter(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder = app(tmp_path / "app", client={"x": "{$PASSWORD}\n" * 99})
    assert read_refusal(folder) and f"{folder}: job refused: config_fed_client.json: x refers" in caplog.text
    assert SECRET not in caplog.text and max(map(len, caplog.text.splitlines())) < 600
    (folder / "custom").mkdir()  # FLARE asks the site's policy whether the role may send code
    assert read_refusal(folder) == ""


class Other(AppValidator):
    def validate(self, app_folder: str) -> tuple[str, dict]:
        return "", {"other": True}


class Builder(ComponentBuilder):
    def get_module_scanner(self) -> None:
        return None


def test_an_operator_s_own_check_is_asked_too(tmp_path):
    folder, own = app(tmp_path / "app", client={"x": "y"}), {"path": f"{__name__}.Other"}
    check = Builder().build_component(with_job_check({"app_validator": own}, [])["app_validator"])
    assert isinstance(check, JobCheck) and check.validate(str(folder)) == ("", {"other": True})
    assert check.validate(str(app(tmp_path / "bad", client={"x": "{$A}"})))[1] == {}


def test_in_a_kit_s_process_no_source_reads_before_a_task_says_what_it_may(tmp_path):
    """FLARE's builder makes a job's components before any of cfl_flare's code runs."""
    private = tmp_path / "private.json"
    private.write_text(json.dumps({"columns": [{"column": "hiv", "kind": "number"}]}))
    JobCheck()
    for path, args in (
        ("cfl_flare.data.sources.SiteData", {"columns": str(private)}),
        ("cfl_flare.data.table.Table", {"path": "x.csv", "columns": str(private)}),
    ):
        with pytest.raises(PathError, match="the job names"):
            instantiate_class(path, args)
    with pytest.raises(PathError):
        Npz(str(write_kit_npz(tmp_path / "x.npz"))).load()
    with reading_within([tmp_path]):
        Npz(str(tmp_path / "x.npz")).load()
        instantiate_class("cfl_flare.data.sources.SiteData", {"columns": str(private)})
    with reading_within(None):
        Npz(str(tmp_path / "x.npz")).load()


# ---- Compatibility ----


JOB = {"method": {"method": "wecfl", "k": 3, "penalties": [{"penalty": "proximal", "mu": 0.1}]}, "model": {"args": {}}}
JOB |= {"data": {"seed": 0}, "training": {"lr": 0.1, "lr_milestones": [3]}, "seed": 0, "run_name": "ward"}


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(policy, "SOFTWARE", {"cfl_flare": "0.2.1", "nvflare": "2.9"})


@pytest.mark.parametrize("theirs", [{"cfl_flare": "0.2.7", "nvflare": "2.9.4"}, {"cfl_flare": "0.2"}, {}])
def test_the_first_two_numbers_decide(theirs, installed):
    check_software(theirs, "the job was made by", "site-1")


@pytest.mark.parametrize(
    "theirs, says",
    [
        ({"cfl_flare": "0.3.1"}, r"^the job was made by cfl_flare 0\.3\.1, but site-1 runs 0\.2\.1: .*install one"),
        ({"cfl_flare": "1.2.1"}, r"^the job was made by cfl_flare 1\.2\.1, but site-1 runs 0\.2\.1: "),
        ({"cfl_flare": "0.20.1"}, r"cfl_flare 0\.20\.1, but site-1 runs 0\.2\.1"),
        ({"cfl_flare": "0.1.0"}, r"cfl_flare 0\.1\.0, but site-1 runs 0\.2\.1"),
        ({"nvflare": "2.10"}, r"^the job was made by nvflare 2\.10, but site-1 runs 2\.9: "),
    ],
)
def test_other_software_is_refused(theirs, says, installed):
    with pytest.raises(ConfigError, match=says):
        check_software(theirs, "the job was made by", "site-1")


def test_a_site_and_a_server_of_two_versions_do_not_go_together(installed):
    with pytest.raises(ConfigError, match=r"^the server runs cfl_flare 0\.1\.0, but site-1 runs 0\.2\.1"):
        check_software({"cfl_flare": "0.1.0"}, "the server runs", "site-1")


def test_what_a_config_file_does_to_settings_does_not_matter():
    own = {**JOB, "training": {"lr": 0.1, "lr_milestones": [3], "local_epochs": None}, "device": "cpu"}
    check_same_settings(marked(JOB), marked(own), "site-1")
    check_same_settings({}, own, "site-1")


@pytest.mark.parametrize(
    "change, says",
    [
        (
            {"method": {**JOB["method"], "k": 4}},
            r"^job: method\.k = 3 at the server, 4 at site-1; set it to the same",
        ),
        (
            {"method": {**JOB["method"], "penalties": []}},
            r"method\.penalties = \[.*proximal.*\] at the server, \[\]",
        ),
        ({"training": {"lr": 0.1, "lr_milestones": [3], "momentum": 0.5}}, r"training\.momentum = None at .*, 0\.5 at"),
        ({"training": {"lr": 0.1}}, r"training\.lr_milestones = \[3\] at the server, None at site-1"),
        ({"run_name": "other"}, r"run_name = 'ward' at the server, 'other' at site-1"),
        ({"seed": 1}, r"^job: seed = 0 at the server, 1 at site-1"),
    ],
)
def test_two_sets_of_settings_are_refused(change, says):
    with pytest.raises(ConfigError, match=says):
        check_same_settings(JOB, {**JOB, **change}, "site-1")


@pytest.fixture
def kit_folder(tmp_path):
    return write_kit(tmp_path / "kit")


def version_refusal(folder: Path, caplog, job: dict, **settings) -> str:
    """The code that a site answers to the server's check, and what its own log says."""
    caplog.clear()
    caplog.set_level(logging.INFO)
    code = answer(ClusteredExecutor(**{**JOB, "source": {}, **settings}), ask_check_in(job=job), folder)["error"]
    return f"{code}: {caplog.records[-1].getMessage()}"


@pytest.mark.parametrize(
    "job, settings, says",
    [
        (
            JOB,
            {"made_by": {"cfl_flare": "9.9.9"}},
            f"^software: .*by cfl_flare 9.9.9, but site-1 runs {__version__}",
        ),
        ({**JOB, "seed": 5}, {}, "^settings: .*seed = 5 at the server, 0 at site-1"),
        (JOB, {}, "^config: .*data: class_path = None"),  # that far it agrees
        (JOB, {"torch_threads": 0}, "^config: .*torch_threads = 0 should be in .1, 1024."),
        (
            JOB,
            {"source": {"class_path": "os.path.Secret"}},
            "^class: .*policy does not allow 'os.path.Secret'",
        ),
        (JOB, {"source": {"class_path": "cfl_flare.models.MLP"}}, "^config: .*is not a cfl_flare.data"),
        (
            JOB,
            {"colour": "red"},
            r"^config: .*site-1 does not know .* settings \['colour'\]; leave them out",
        ),
        (JOB, {"made_by": {"cfl_flare": "9.9.9"}, "colour": "red"}, "^software: .*made by cfl_flare 9.9.9"),
    ],
)
def test_a_site_answers_why_it_refuses_by_a_code_and_its_own_log_says_it_in_full(
    kit_folder, caplog, job, settings, says
):
    assert re.search(says, version_refusal(kit_folder, caplog, job, **settings), flags=re.DOTALL)


def test_a_copy_that_is_carried_in_vain_is_named(tmp_path):
    fl_ctx = context(write_kit(tmp_path))
    assert unused_copy(fl_ctx) is None
    (Path(fl_ctx.get_engine().get_workspace().get_app_custom_dir("job")) / "cfl_flare").mkdir(parents=True)
    said = unused_copy(fl_ctx)
    assert said and f"installed here runs: {__version__} in " in said


@pytest.mark.parametrize("simulation", [True, False])
def test_owners_are_named_in_a_simulation_alone(simulation, monkeypatch):
    """At real sites their names would leave, and a job that guesses them would learn whether it is right."""
    monkeypatch.setattr(policy, "simulated", lambda fl_ctx: simulation)
    owners = ["Ward A", "Ward B"]
    found = policy.data_config({"participants": 2, "partition": "natural", "owners": owners}, None)
    assert found.names == (owners if simulation else ["p0", "p1"])


DIGITS = {"class_path": "cfl_flare.data.sources.Digits", "args": {}}
MODEL = {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
DATA = {"participants": 4, "partition": {"partition": "label_permutation", "groups": 2}}


@pytest.mark.parametrize("simulation, share", [(True, 0.5), (False, None)])
def test_a_site_takes_its_gpu_and_says_which(monkeypatch, simulation, share):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    limits, devices, said = [], [], []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: limits.append(given))
    for place in (module, policy):
        monkeypatch.setattr(place, "simulated", lambda fl_ctx: simulation)
    monkeypatch.setattr(module, "component_policy", lambda fl_ctx: None)
    monkeypatch.setattr(policy, "limited_paths", nullcontext)

    def site(*given, **more) -> SimpleNamespace:
        devices.append(given[5])
        return SimpleNamespace(add=list, method=given[0], hosted={}, preparing=nullcontext)

    monkeypatch.setattr(module, "Site", site)
    monkeypatch.setattr(policy.Policy, "of", lambda fl_ctx: policy.Policy())
    monkeypatch.setattr(ClusteredExecutor, "log_info", lambda self, fl_ctx, text: said.append(text))
    executor = ClusteredExecutor({"method": "fedavg"}, MODEL, DIGITS, DATA, {}, run_name="run", device="cuda")
    context = FLContext()
    context.set_prop("__identity_name__", "site-4")
    executor._prepared({"index": 3, "sites": 4}, context)
    assert devices == ["cuda:1"]
    assert limits == ([] if share is None else [(share, torch.device("cuda:1"))])
    assert said == [f"site-4 computes on cuda:1 (a GPU{', at most 50% of its memory' if share else ''})"]


def test_a_budget_of_privacy_puts_the_ledgers_filter_first_into_each_scope(tmp_path, capsys):
    folder = write_kit(tmp_path / "kit")
    file, other = folder / "local" / "privacy.json", {"path": "a.B", "args": {"x": 1}}
    assert main(["site", "prepare", str(folder)]) == 0 and not file.exists()
    app, check = folder / "0a1b" / "app_site-1", JobCheck()
    (app / "custom").mkdir(parents=True)
    assert check.validate(str(app)) == ("", {})
    (folder / "local" / "cfl.json").write_text('{"epsilon_budget": 8}')
    assert "needs a filter in its privacy.json" in check.validate(str(app))[0]
    scopes = [{"name": "a", "task_result_filters": [other]}, {"name": "b", "properties": {"y": 2}}]
    for before in (
        None,
        {"scopes": [], "default_scope": "c"},
        {"scopes": scopes, "default_scope": "b", "components": []},
    ):
        if before is not None:
            file.write_text(json.dumps(before))
            assert "needs a filter" in check.validate(str(app))[0]
        assert main(["site", "prepare", str(folder)]) == 0
        assert check.validate(str(app)) == ("", {})
        after = json.loads(file.read_text())
        assert all(scope["task_result_filters"][0]["path"].endswith(".LedgerFilter") for scope in after["scopes"])
    assert after["scopes"][0]["task_result_filters"][1:] == [other] and after["components"] == []
    assert after["scopes"][1]["properties"] == {"y": 2} and after["default_scope"] == "b"
    for odd in ("[1]", '{"scopes": 3}', "{"):
        file.write_text(odd)
        assert "needs a filter" in check.validate(str(app))[0]
        assert main(["site", "prepare", str(folder)]) == 2 and "is no privacy policy" in capsys.readouterr().err
