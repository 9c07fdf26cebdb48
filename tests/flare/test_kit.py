# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Preparing a startup kit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.fuel.sec.authz import AuthzContext, Person, parse_policy_config
from nvflare.fuel.utils.class_utils import instantiate_class
from nvflare.security.security import COMMAND_CATEGORIES

from cfl_flare.cli import main, site_check
from cfl_flare.core.errors import ClassError, ConfigError
from cfl_flare.data import SOURCES
from cfl_flare.engine.study.prevalence import Prevalence
from cfl_flare.flare import ClusteredController, ClusteredExecutor, ClusteringAggregator, ClusterModelPersistor
from cfl_flare.flare.allowed import CLASSES, CODE, OF_FLARE, READS, Policy, permitted_roles
from cfl_flare.flare.client_api.private import LedgerFilter
from cfl_flare.flare.compat import component_policy
from cfl_flare.flare.egress import EgressFilter
from cfl_flare.flare.job_check import JobCheck
from cfl_flare.flare.kit import preparation
from cfl_flare.flare.rejoin import Rejoin
from cfl_flare.flare.study.controller import StudyController
from cfl_flare.flare.study.executor import StudyExecutor
from cfl_flare.flare.tracking import ServerRun
from cfl_flare.models import MODELS, NamedArrays
from tests.helpers.kits import context
from tests.helpers.kits import write_kit as prepared

OURS = list(CLASSES)
COMPONENTS = (ClusteredController, ClusteredExecutor, ClusteringAggregator, ClusterModelPersistor)
STUDY = (StudyController, StudyExecutor)
FILTERS = (EgressFilter, LedgerFilter)


def write_bare_kit(folder: Path, **content) -> Path:
    for name in ("startup", "local"):
        (folder / name).mkdir(parents=True)
    (folder / "local" / "resources.json.default").write_text(json.dumps({"format_version": 2, **content}))
    return folder


def read_allowed_classes(folder: Path) -> list[str]:
    return json.loads((folder / "local" / "resources.json").read_text())["class_allow_list"]


def test_a_kit_s_list_is_kept_and_its_default_left_alone(tmp_path, capsys):
    folder = write_bare_kit(tmp_path / "site", class_allow_list=["a.B"], client={"retry_timeout": 30})
    default = (folder / "local" / "resources.json.default").read_text()
    assert main(["site", "prepare", str(folder)]) == 0
    assert read_allowed_classes(folder) == ["a.B", *OURS]
    assert json.loads((folder / "local" / "resources.json").read_text())["client"] == {"retry_timeout": 30}
    assert (folder / "local" / "resources.json.default").read_text() == default
    said = capsys.readouterr().out
    assert '+    "cfl_flare.models.MLP"' in said and '+  "allow_log_streaming": false' in said
    assert main(["site", "prepare", str(folder)]) == 0
    assert "nothing to change" in capsys.readouterr().out
    assert {p.name for p in (folder / "local").iterdir()} == {"resources.json", "resources.json.default"}


def test_several_kits_are_prepared_at_once_or_none(tmp_path, capsys):
    one, two = write_bare_kit(tmp_path / "one"), write_bare_kit(tmp_path / "two")
    assert main(["site", "prepare", str(one), str(two), str(tmp_path / "three")]) == 2
    assert not (one / "local" / "resources.json").exists()
    assert main(["site", "prepare", str(one), str(two)]) == 0
    assert read_allowed_classes(one) == read_allowed_classes(two)


def test_equal_changes_of_kits_are_shown_once(tmp_path, capsys):
    kits = [str(write_bare_kit(tmp_path / f"hospital-{number}")) for number in range(1, 8)]
    assert main(["site", "prepare", *kits, "--dry-run"]) == 0
    seven = capsys.readouterr().out.splitlines()
    assert main(["site", "prepare", kits[0], "--dry-run"]) == 0
    one = capsys.readouterr().out.splitlines()
    changes = [line for line in one if line.startswith(("+", "-"))]
    assert len(changes) > 5
    assert [line for line in seven if line.startswith(("+", "-"))] == changes
    resources = [Path(folder) / "local" / "resources.json" for folder in kits]
    assert [f"{file}: as {resources[0]}" in seven for file in resources] == [False, *[True] * 6]
    assert len(seven) <= len(one) + 6 * 6


@pytest.mark.parametrize("before", [None, {"format_version": 2, "class_allow_list": ["a.B"], "client": {"x": 1}}])
def test_unprepare_leaves_a_kit_as_it_was(tmp_path, before, capsys):
    folder = write_bare_kit(tmp_path / "site")
    resources = folder / "local" / "resources.json"
    if before:
        resources.write_text(json.dumps(before))
    files = {path: path.read_text() for path in (folder / "local").iterdir()}
    assert main(["site", "prepare", str(folder)]) == 0
    assert main(["site", "unprepare", str(folder), "--dry-run"]) == 0 and set(OURS) <= set(read_allowed_classes(folder))
    assert main(["site", "unprepare", str(folder)]) == 0
    assert {path: path.read_text() for path in (folder / "local").iterdir()} == files
    assert main(["site", "unprepare", str(folder)]) == 0
    assert "it is not prepared" in capsys.readouterr().out


def test_unprepare_takes_the_server_s_only_component_out_of_a_changed_file(tmp_path):
    folder = write_bare_kit(tmp_path / "server", class_allow_list=["a.B"])
    (folder / "startup" / "fed_server.json").write_text("{}")
    assert main(["site", "prepare", str(folder)]) == 0
    resources = folder / "local" / "resources.json"
    resources.write_text(json.dumps({**json.loads(resources.read_text()), "client": {"x": 2}}))
    assert main(["site", "unprepare", str(folder)]) == 0
    assert json.loads(resources.read_text())["components"] == []


def test_unprepare_keeps_what_an_operator_changed_since(tmp_path):
    folder = write_bare_kit(tmp_path / "server", class_allow_list=["a.B"])
    (folder / "startup" / "fed_server.json").write_text("{}")
    assert main(["site", "prepare", str(folder)]) == 0
    resources = folder / "local" / "resources.json"
    content = json.loads(resources.read_text())
    assert [part["id"] for part in content["components"]] == ["cfl_rejoin"]
    part = {"id": "other", "path": "c.D"}
    resources.write_text(json.dumps({**content, "components": [*content["components"], part], "client": {"x": 2}}))
    assert main(["site", "unprepare", str(folder)]) == 0
    left = json.loads(resources.read_text())
    assert (left["class_allow_list"], left["components"], left["client"]) == (["a.B"], [part], {"x": 2})


def test_clean_deletes_old_jobs_and_none_that_runs_or_is_no_job(tmp_path, capsys):
    folder = write_bare_kit(tmp_path / "site")
    ids = [f"0000000{i}-0000-4000-8000-000000000000" for i in range(3)]
    for name in (*ids, "transfer"):
        (folder / name / "app").mkdir(parents=True)
        for path in (
            folder / name / "meta.json",
            folder / name / "app" / "log.txt",
            folder / name / "app",
            folder / name,
        ):
            if not path.exists():
                path.write_text("0" * 1000)
            os.utime(path, (0, 0) if name != ids[1] else None)
    (folder / f"{ids[0][:-1]}9").symlink_to(folder / "local")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", ids[2]]) as running:
        try:
            assert main(["site", "clean", str(folder), "--dry-run"]) == 0
            assert "1 jobs would be deleted" in capsys.readouterr().out and (folder / ids[0]).is_dir()
            assert main(["site", "clean", str(folder)]) == 0
        finally:
            running.kill()
    assert {path.name for path in folder.iterdir()} == {"startup", "local", "transfer", f"{ids[0][:-1]}9", *ids[1:]}
    assert (folder / "local" / "resources.json.default").is_file()


@pytest.mark.parametrize("wide", ["cfl_flare.", "cfl_flare"])
def test_a_list_that_allows_all_of_cfl_flare_is_narrowed(tmp_path, wide):
    folder = write_bare_kit(tmp_path / "site", class_allow_list=["a.B", wide])
    (found, *_) = site_check.kit(folder)
    assert found.fatal and "allows more of it" in found.result
    assert main(["site", "prepare", str(folder)]) == 0
    assert read_allowed_classes(folder) == ["a.B", *OURS]


def test_the_list_has_each_class_that_a_job_may_name_and_no_function():
    found = {f"{cls.__module__}.{cls.__qualname__}" for cls in (*SOURCES.values(), *MODELS.values())}
    found |= {
        f"{cls.__module__}.{cls.__qualname__}"
        for cls in (*COMPONENTS, *STUDY, Prevalence, EgressFilter, LedgerFilter, NamedArrays, ServerRun)
    }
    assert found == set(CLASSES) and len(CLASSES) == len(found)


def test_no_job_calls_a_function_of_cfl_flare(tmp_path):
    """FLARE's own builder would call it: the command line, say, which could open the kit to all."""
    folder, other = prepared(tmp_path / "site"), write_bare_kit(tmp_path / "other", class_allow_list=["a.B"])
    authorize = component_policy(context(folder))
    argv = ["site", "prepare", str(other), "--no-keep-logs"]
    assert instantiate_class("cfl_flare.cli.main", {"argv": argv}) == 0 and "a.B" in read_allowed_classes(other)
    for path in (
        "cli.main",
        "core.files.Path",
        "core.config.build",
        "results.recorder.Recorder",
        "flare.kit.allow",
    ):
        with pytest.raises(ClassError, match="policy does not allow"):
            authorize(f"cfl_flare.{path}")
    for path in OURS:
        authorize(path)


def test_a_file_of_the_operator_s_own_is_backed_up_once(tmp_path):
    folder = write_bare_kit(tmp_path / "site")
    own = '{"format_version": 2,  "class_allow_list": ["a.B"]}'
    (folder / "local" / "resources.json").write_text(own)
    assert preparation(folder, OURS).write() == folder / "local" / "resources.json.before-cfl"
    assert preparation(folder, ["more."]).write() is None
    assert read_allowed_classes(folder) == ["a.B", *OURS, "more."]
    assert (folder / "local" / "resources.json.before-cfl").read_text() == own


def test_only_the_server_gets_the_component_that_takes_sites_into_running_jobs(tmp_path):
    server, site = (
        write_bare_kit(tmp_path / name, components=[{"id": "a", "path": "a.A"}]) for name in ("server", "site")
    )
    (server / "startup" / "fed_server.json").write_text("{}")
    for folder in (server, site, server):
        preparation(folder, OURS).write()
    components = [json.loads((f / "local" / "resources.json").read_text())["components"] for f in (server, site)]
    assert [[c["path"] for c in own] for own in components] == [["a.A", "cfl_flare.flare.rejoin.Rejoin"], ["a.A"]]
    assert components[0][1]["path"] == f"{Rejoin.__module__}.{Rejoin.__name__}"


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    folder = write_bare_kit(tmp_path / "site", class_allow_list=["a.B"])
    assert main(["site", "prepare", str(folder), "--dry-run", "--data-root", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert '+  "allow_log_streaming": false' in said and f'+    "{tmp_path}"' in said
    assert said.count("not written (--dry-run)") == 2
    assert [p.name for p in (folder / "local").iterdir()] == ["resources.json.default"]


def test_without_a_list_flare_s_own_is_written_out(tmp_path):
    (tmp_path / "simulator").mkdir()
    preparation(tmp_path / "simulator", OURS).write()
    assert read_allowed_classes(tmp_path / "simulator") == [*DEFAULT_CLASS_ALLOW_LIST, *OURS]
    assert preparation(tmp_path / "simulator", OURS).after is None


def test_a_site_that_allows_everything_needs_nothing(tmp_path):
    assert preparation(write_bare_kit(tmp_path / "site", class_allow_list=["*"]), OURS).after is None


def test_logs_stay_where_asked(tmp_path):
    folder = write_bare_kit(tmp_path / "site", class_allow_list=[], allow_log_streaming=True)
    assert preparation(folder, OURS).streams_logs
    preparation(folder, OURS, keep_logs=True).write()
    assert json.loads((folder / "local" / "resources.json").read_text())["allow_log_streaming"] is False


def test_a_site_s_logs_stay_unless_its_operator_says_otherwise(tmp_path, capsys):
    for name, words, stay in (("a", [], True), ("b", ["--no-keep-logs"], False), ("server", [], False)):
        folder = write_bare_kit(tmp_path / name)
        (folder / "startup" / f"fed_{'server' if name == 'server' else 'client'}.json").write_text("{}")
        assert main(["site", "prepare", str(folder), *words]) == 0
        content = json.loads((folder / "local" / "resources.json").read_text())
        assert ("allow_log_streaming" in content) == stay
        assert ("note: jobs may stream" in capsys.readouterr().out) == (name == "b")


def test_an_operator_s_limits_are_written_added_to_and_shown(tmp_path, capsys):
    folder, roots = write_bare_kit(tmp_path / "site"), [tmp_path / "scans", tmp_path / "more"]
    for root in roots:
        root.mkdir()
    words = ["site", "prepare", str(folder)]
    assert main([*words, "--data-root", str(roots[0]), "--min-sites-per-cluster", "5"]) == 0
    said = capsys.readouterr().out
    assert '+  "min_sites_per_cluster": 5' in said and f"{folder / 'local' / 'cfl.json'}: written" in said
    assert main([*words, "--data-root", str(roots[1]), "--data-root", str(roots[0]), "--max-participants", "20"]) == 0
    own = Policy.read(folder / "local" / "cfl.json")
    assert own == Policy(tuple(map(str, roots)), min_sites_per_cluster=5, max_participants=20)
    capsys.readouterr()
    assert main(words) == 0 and "nothing to change" in capsys.readouterr().out
    found = site_check.policy(folder / "local")
    limits = "min_sites_per_cluster at least 5, min_samples_per_cluster 30, max_weight_share 0.5, max_participants 20"
    assert found.result == f"jobs may name files in {roots[0]}, {roots[1]}; {limits}"
    assert not found.way_out
    bounds = ["--min-samples-per-cluster", "1", "--max-weight-share", "1"]
    assert main([*words, "--min-sites-per-cluster", "1", *bounds]) == 0
    assert Policy.read(folder / "local" / "cfl.json").max_weight_share == 1
    assert "others this site's own model" in site_check.policy(folder / "local").result
    roots[1].rmdir()
    assert f"{roots[1]} is no folder" in site_check.policy(folder / "local").way_out
    (folder / "local" / "cfl.json").write_text('{"min_sites_per_cluster": 0}')
    assert site_check.policy(folder / "local").fatal


@pytest.mark.parametrize(
    "words, says",
    [
        (["--data-root", "/none/such"], "--data-root '/none/such' is not a folder"),
        (["--min-sites-per-cluster", "0"], "min_sites_per_cluster = 0 should be >= 1"),
        (["--max-weight-share", "1.1"], "max_weight_share = 1.1 should be"),
        (["--max-participants", "0"], "max_participants = 0 should be >= 1"),
    ],
)
def test_a_wrong_limit_changes_nothing(tmp_path, capsys, words, says):
    folder = write_bare_kit(tmp_path / "site")
    assert main(["site", "prepare", str(folder), *words]) == 2
    assert says in capsys.readouterr().err
    assert [p.name for p in (folder / "local").iterdir()] == ["resources.json.default"]


def test_what_is_no_kit_is_refused(tmp_path, capsys):
    def refused(folder: Path) -> str:
        assert main(["site", "prepare", str(folder)]) == 2
        return capsys.readouterr().err

    kits = tmp_path / "prod_00"
    site, admin = write_bare_kit(kits / "site"), write_bare_kit(kits / "admin")
    (admin / "startup" / "fed_admin.json").write_text("{}")
    assert "is not a folder" in refused(tmp_path / "none")
    assert "name one of the kits in it: admin, site" in refused(kits)
    assert "an admin's kit, which runs no jobs" in refused(admin)
    (site / "local" / "resources.json").write_text("{")
    assert "is not JSON" in refused(site)
    (site / "local" / "resources.json").write_text('{"class_allow_list": "a.B"}')
    assert "should be a list" in refused(site)
    (tmp_path / "other" / "x").mkdir(parents=True)
    assert "lacks the folders 'startup' and 'local'" in refused(tmp_path / "other")


def test_whose_jobs_may_carry_code_and_who_may_read_files(tmp_path):
    folder = write_bare_kit(tmp_path / "site")
    assert permitted_roles(folder / "local", CODE) == "anyone"
    policy = {
        "permissions": {
            "project_admin": "any",
            "lead": {"byoc": "n:submitter", "shell_commands": "o:site"},
            "org_admin": {"byoc": "none", "shell_commands": "none"},
            "member": {"view": "any"},
        }
    }
    (folder / "local" / "authorization.json.default").write_text(json.dumps(policy))
    assert permitted_roles(folder / "local", CODE) == permitted_roles(folder / "local", READS) == "project_admin, lead"
    (folder / "local" / "authorization.json").write_text(json.dumps({"permissions": {"lead": "none"}}))
    assert permitted_roles(folder / "local", CODE) == "nobody"
    (folder / "local" / "authorization.json").write_text("[]")
    with pytest.raises(ConfigError, match="is not an authorization policy of FLARE's"):
        permitted_roles(folder / "local", CODE)


def test_a_prepared_file_is_never_taken_for_the_operator_s(tmp_path):
    folder = write_bare_kit(tmp_path / "site", class_allow_list=["a.B"])
    assert preparation(folder, OURS).write() is None  # there was only the kit's default
    assert preparation(folder, ["more."]).write() is None
    assert preparation(folder, OURS, keep_logs=True).write() is None
    assert not list((folder / "local").glob("*before-cfl*"))


def test_each_file_of_the_operator_s_is_kept_with_its_permissions(tmp_path):
    folder = write_bare_kit(tmp_path / "site")
    resources = folder / "local" / "resources.json"
    texts = [json.dumps({"class_allow_list": ["a.B"], "secret": i}, indent=i) for i in (1, 2, 3)]
    for i, text in enumerate(texts):
        resources.unlink(missing_ok=True)
        resources.write_text(text)
        resources.chmod(0o600)
        name = "resources.json.before-cfl" + (f"-{i + 1}" if i else "")
        assert preparation(folder, OURS).write() == resources.with_name(name)
        assert preparation(folder, ["more."]).write() is None
    kept = sorted(resources.parent.glob("*before-cfl*"))
    assert [path.read_text() for path in kept] == texts
    assert {path.stat().st_mode & 0o777 for path in (*kept, resources)} == {0o600}


def test_resources_that_are_no_file_of_json_are_refused(tmp_path, capsys):
    folder = write_bare_kit(tmp_path / "site")
    (folder / "local" / "resources.json").write_text("[" * 100_000)
    assert main(["site", "prepare", str(folder)]) == 2
    assert "nested too deeply" in capsys.readouterr().err


def write_started_kit(folder: Path, side: str = "client", **content) -> Path:
    """A kit as FLARE provisions it: it can be started."""
    write_bare_kit(folder, **{"class_allow_list": list(DEFAULT_CLASS_ALLOW_LIST), **content})
    (folder / "startup" / f"fed_{side}.json").write_text("{}")
    return folder


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_prepared_kit_allows_what_our_jobs_need_of_flare_s_and_checks_them(tmp_path, capsys, side):
    folder = write_started_kit(tmp_path / "kit", side, app_validator={"path": "a.Own"})
    resources = folder / "local" / "resources.json"
    assert main(["site", "prepare", str(folder)]) == 0
    assert read_allowed_classes(folder) == [*OF_FLARE, *OURS]
    assert {*OF_FLARE} <= {*DEFAULT_CLASS_ALLOW_LIST}
    for name in ("MLflowReceiver", "WandBReceiver", "NPModelLocator", "JobLogReceiver", "StatisticsExecutor"):
        assert not [path for path in read_allowed_classes(folder) if path.endswith(name)]
    check = json.loads(resources.read_text())["app_validator"]
    assert check == {"path": f"{JobCheck.__module__}.{JobCheck.__name__}", "args": {"then": {"path": "a.Own"}}}
    capsys.readouterr()
    assert main(["site", "prepare", str(folder)]) == 0 and "nothing to change" in capsys.readouterr().out
    assert not [
        found.what for found in site_check.kit(folder) if found.fatal or (found.what == "jobs" and found.way_out)
    ]
    assert main(["site", "unprepare", str(folder)]) == 0 and not resources.exists()


def test_a_class_of_flare_s_that_the_operator_named_stays(tmp_path):
    folder, tracker = (
        write_started_kit(tmp_path / "kit"),
        "nvflare.app_opt.tracking.mlflow.mlflow_receiver.MLflowReceiver",
    )
    assert main(["site", "prepare", str(folder), "--allow", tracker]) == 0
    assert main(["site", "prepare", str(folder)]) == 0  # after an upgrade, say
    assert tracker in read_allowed_classes(folder)
    (found,) = [found for found in site_check.kit(folder) if found.result.startswith("also has")]
    assert found.result == f"also has {tracker}" and not found.way_out
    resources = folder / "local" / "resources.json"
    content = json.loads(resources.read_text())
    resources.write_text(
        json.dumps({**content, "client": {"x": 1}, "class_allow_list": [*read_allowed_classes(folder), "a.B"]})
    )
    assert main(["site", "unprepare", str(folder)]) == 0
    assert {*read_allowed_classes(folder)} == {*DEFAULT_CLASS_ALLOW_LIST, "a.B"}
    assert "app_validator" not in json.loads(resources.read_text())


def test_a_kit_that_an_earlier_version_prepared_is_narrowed_and_said_to_check_nothing(tmp_path, monkeypatch):
    folder = write_started_kit(tmp_path / "kit", class_allow_list=[*DEFAULT_CLASS_ALLOW_LIST, "a.B", *OURS])
    monkeypatch.setenv("ARCHIVE_PASSWORD", "hunter2")
    found = {finding.what: finding for finding in site_check.kit(folder)}
    assert found["jobs"].result == "run as they come" and found["jobs"].way_out == f"cfl-flare site prepare {folder}"
    assert found["environment"].result.startswith("has ") and "ARCHIVE_PASSWORD" in found["environment"].result
    assert "hunter2" not in str(found)
    assert main(["site", "prepare", str(folder)]) == 0
    assert read_allowed_classes(folder) == ["a.B", *OURS, *OF_FLARE]


POLICY_OF_FLARE = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": "any",
        "lead": {"submit_job": "any", "byoc": "any", "shell_commands": "o:site"},
        "member": {"view": "any"},
    },
}


def test_a_single_command_is_no_way_around_its_category(tmp_path):
    folder, rights = write_bare_kit(tmp_path / "site"), {"shell_commands": "none", "cat": "any", "view": "any"}
    default = {"format_version": "1.0", "permissions": {"project_admin": "any", "lead": rights}}
    (folder / "local" / "authorization.json.default").write_text(json.dumps(default))
    assert permitted_roles(folder / "local", READS) == "project_admin, lead"
    assert main(["site", "prepare", str(folder)]) == 0
    written = json.loads((folder / "local" / "authorization.json").read_text())
    policy, _ = parse_policy_config(written, COMMAND_CATEGORIES)
    for role in ("project_admin", "lead"):
        asked = [AuthzContext(right, Person("admin", "elsewhere", role)) for right in ("check_status", "cat", "ls")]
        assert [policy.evaluate("hospitals", one)[0] for one in asked] == [True, False, False]
    assert permitted_roles(folder / "local", READS) == "nobody"


def test_the_admin_console_reads_no_files_of_a_prepared_site(tmp_path, capsys):
    """FLARE's default lets project administrators cat a site's logs, in which values of its data stand."""
    folder, server, own = (write_bare_kit(tmp_path / name) for name in ("site", "server", "own"))
    for path in (folder, server, own):
        (path / "local" / "authorization.json.default").write_text(json.dumps(POLICY_OF_FLARE))
    (server / "startup" / "fed_server.json").write_text("{}")
    (own / "local" / "authorization.json").write_text(json.dumps(POLICY_OF_FLARE))
    assert main(["site", "prepare", *map(str, (folder, server, own))]) == 0
    written = json.loads((folder / "local" / "authorization.json").read_text())
    policy, error = parse_policy_config(written, COMMAND_CATEGORIES)  # FLARE's own
    assert not error
    admin = Person("admin", "elsewhere", "project_admin")
    rights = ("check_status", "submit_job", "byoc", "deploy_app", "cat", "ls", "grep", "head", "tail", "pwd")
    granted = [right for right in rights if policy.evaluate("hospitals", AuthzContext(right, admin))[0]]
    assert granted == ["check_status", "submit_job", "byoc", "deploy_app"]
    assert permitted_roles(folder / "local", READS) == "nobody"
    assert not (server / "local" / "authorization.json").exists()
    assert permitted_roles(own / "local", READS) == "project_admin, lead"  # the operator's own stays
    assert main(["site", "prepare", str(folder)]) == 0 and "nothing to change" in capsys.readouterr().out
    assert main(["site", "unprepare", str(folder)]) == 0
    assert not (folder / "local" / "authorization.json").exists()
