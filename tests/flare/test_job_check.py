# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a prepared kit refuses of a job before it runs."""

import copy
import io
import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import pytest
from nvflare.apis.app_validation import AppValidator
from nvflare.fuel.utils.class_utils import instantiate_class
from nvflare.fuel.utils.component_builder import ComponentBuilder
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.fuel.utils.json_scanner import JsonScanner
from nvflare.fuel.utils.wfconf import resolve_var_refs
from nvflare.private.fed.app.default_app_validator import DefaultAppValidator
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator

from cfl_flare.cli.export import write_templates
from cfl_flare.core.errors import PathError
from cfl_flare.data import Npz, SiteData, files
from cfl_flare.data.files import reading_within
from cfl_flare.flare import ClusteredRecipe, StudyRecipe
from cfl_flare.flare.allowed import with_job_check
from cfl_flare.flare.job_check import JobCheck
from cfl_flare.models import Logistic
from tests.flare.kits import npz

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


def refusal(folder: Path) -> str:
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
        assert "refers to a variable" in refusal(app(tmp_path / side, **{side: config}))


@pytest.mark.parametrize("text", [r"layer\d{2}", "weight {kg}", "{", "a}b{", "$PASSWORD", "{0}{$PASSWORD}", ""])
def test_what_flare_leaves_as_it_is_passes(tmp_path, text):
    config = {"format_version": 2, "x": text}
    assert resolved(config) == config
    assert refusal(app(tmp_path, server=config)) == ""


def test_a_job_s_references_to_its_own_items_pass(tmp_path):
    write_templates(tmp_path / "templates")
    for i, template in enumerate(sorted((tmp_path / "templates").glob("cfl_*"))):
        texts = {f"config_fed_{side}__conf": (template / f"config_fed_{side}.conf").read_text() for side in SIDES}
        assert refusal(app(tmp_path / str(i), **texts)) == ""
    assert i > 5


SIDES = ("client", "server")


def test_a_job_s_items_do_not_multiply_in_the_kit_s_own_process(tmp_path):
    laughs = {f"x{i}": [f"{{x{i + 1}}}"] * 1000 for i in range(9)}
    assert "refers to a variable" in refusal(app(tmp_path, client={"executors": [], **laughs, "x9": "ha"}))


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
    assert refusal(app(tmp_path, **{name: text})).startswith(name.replace("__", "."))


def submitted(meta: str) -> tuple[bool, str, dict[str, Any]]:
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
    assert submitted(meta + "${PASSWORD}")[2]["name"] == SECRET  # the attacks are real
    (good, _, found) = submitted(meta + "ward, " + hocon)
    assert good and found["x"] == SECRET
    JobCheck()
    for text in ("${PASSWORD}", "ward, " + hocon):
        good, why, found = submitted(meta + text)
        assert not good and "is replaced when it is read" in why and SECRET not in why + str(found)
    assert submitted(meta + "ward")[0]
    with pytest.raises(ValueError, match="is replaced when it is read"):
        DefaultAppValidator("server").validate(str(app(tmp_path / "app", config_fed_server__conf=hocon)))


def exported(folder: Path) -> dict[str, dict[str, Any]]:
    settings = {"model": Logistic((1, 4, 4), 2), "data": SiteData(), "num_rounds": 2, "min_clients": 3}
    ClusteredRecipe(name="ward", method="wecfl:k=2", exclude_vars="bias", **settings).export(str(folder))
    config = folder / "ward" / "app" / "config"
    return {side: json.loads((config / f"config_fed_{side}.json").read_text()) for side in SIDES}


def test_exported_jobs_pass(tmp_path):
    assert refusal(app(tmp_path / "a", **exported(tmp_path / "jobs"))) == ""
    settings = {"model": Logistic((1, 4, 4), 2), "data": SiteData(), "num_rounds": 2, "min_clients": 3}
    StudyRecipe(name="study", validation=0.25, training={"bootstrap": 50}, **settings).export(str(tmp_path / "jobs"))
    assert refusal(tmp_path / "jobs" / "study" / "app") == ""


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
    configs = exported(tmp_path / "jobs")
    ATTACKS[attack](configs)
    error = refusal(app(tmp_path / "a", **configs))
    assert error.startswith(f"config_fed_{'server' if 'server' in attack else 'client'}.json: ")
    assert "/etc/passwd" not in error and "\n" not in error and len(error) < 400


def test_a_refusal_is_in_the_operator_s_log_and_code_is_the_authorization_s_matter(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder = app(tmp_path / "app", client={"x": "{$PASSWORD}\n" * 99})
    assert refusal(folder) and f"{folder}: job refused: config_fed_client.json: x refers" in caplog.text
    assert SECRET not in caplog.text and max(map(len, caplog.text.splitlines())) < 600
    (folder / "custom").mkdir()  # FLARE asks the site's policy whether the role may send code
    assert refusal(folder) == ""


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
        Npz(str(npz(tmp_path / "x.npz"))).load()
    with reading_within([tmp_path]):
        Npz(str(tmp_path / "x.npz")).load()
        instantiate_class("cfl_flare.data.sources.SiteData", {"columns": str(private)})
    with reading_within(None):
        Npz(str(tmp_path / "x.npz")).load()
