# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Every symbol and class path that cfl_flare takes from FLARE is there, and for each module it is said why.

CI also runs this with FLARE's newest release candidate: what fails there is what that release would break.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "cfl_flare"
WHY = {
    "nvflare": "its version, which jobs and sites compare",
    "nvflare.apis.analytix": "what experiment tracking is sent",
    "nvflare.apis.app_validation": "a job is checked before it runs at a site",
    "nvflare.apis.client": "who a message is from",
    "nvflare.apis.controller_spec": "tasks of the server",
    "nvflare.apis.dxo": "the form of models and metrics in messages",
    "nvflare.apis.dxo_filter": "the base of the filter for private layers",
    "nvflare.apis.event_type": "when a server or site starts, and a client connects",
    "nvflare.apis.executor": "the base of what runs at a site",
    "nvflare.apis.filter": "the base of egress filters",
    "nvflare.apis.fl_component": "the base of components",
    "nvflare.apis.fl_constant": "names of FLARE's properties and return codes",
    "nvflare.apis.fl_context": "what FLARE tells a component",
    "nvflare.apis.job_def": "a job's meta data and the names of sites in it",
    "nvflare.apis.job_scheduler_spec": "what a job that is started at a late site gets",
    "nvflare.apis.shareable": "messages",
    "nvflare.apis.signal": "how a task is aborted",
    "nvflare.apis.utils.analytix_utils": "what experiment tracking is sent",
    "nvflare.apis.utils.decomposers": "a message as FLARE packs it, to check a method",
    "nvflare.apis.utils.task_utils": "which filters a site has",
    "nvflare.app_common.abstract.fl_model": "models of the Client API and of ModelController",
    "nvflare.app_common.abstract.learnable": "what a persistor is given",
    "nvflare.app_common.abstract.learnable_persistor": "the base of the persistor",
    "nvflare.app_common.abstract.model": "what a persistor is given",
    "nvflare.app_common.aggregators.model_aggregator": "the base of the aggregator",
    "nvflare.app_common.app_constant": "names of tasks and properties",
    "nvflare.app_common.app_event_type": "when a model is saved",
    "nvflare.app_common.decomposers": "a message as FLARE packs it, to check a method",
    "nvflare.app_common.default_component_policy": "which classes FLARE itself allows at a site",
    "nvflare.app_common.filters.exclude_vars": "layers that stay at a site with a training script",
    "nvflare.app_common.utils.file_utils": "paths stay under their root",
    "nvflare.app_common.utils.fl_model_utils": "from messages to models and back",
    "nvflare.app_common.widgets.component_path_authorizer": "the name of a kit's list of classes",
    "nvflare.app_common.widgets.streaming": "the base of trackers' receivers",
    "nvflare.app_common.workflows.model_controller": "the base of the controller",
    "nvflare.app_opt.pt.decomposers": "tensors in messages",
    "nvflare.client": "training scripts",
    "nvflare.client.config": "settings of training scripts",
    "nvflare.fuel.f3.cellnet": "how large a message may be",
    "nvflare.fuel.f3.message": "how large a message may be",
    "nvflare.fuel.f3.streaming": "how many answers are taken in at once",
    "nvflare.fuel.f3.streaming.stream_const": "how large a message may be",
    "nvflare.fuel.utils": "how objects are written in messages",
    "nvflare.fuel.utils.config": "a job's config files, as FLARE reads them",
    "nvflare.fuel.utils.config_factory": "a job's config files, as FLARE reads them",
    "nvflare.fuel.utils.constants": "the framework of a training script",
    "nvflare.fuel.utils.json_scanner": "components of a job, before they are built",
    "nvflare.fuel.utils.memory_utils": "memory is given back between rounds",
    "nvflare.fuel.utils.wfconf": "variables in a job's config",
    "nvflare.job_config.api": "how a recipe writes a job",
    "nvflare.job_config.base_fed_job": "how a recipe writes a job",
    "nvflare.job_config.defs": "filters of a recipe",
    "nvflare.job_config.script_runner": "training scripts in a recipe",
    "nvflare.private.admin_defs": "a job is started at a site that comes late or back; there is no public way",
    "nvflare.private.defs": "the same, and which tasks are FLARE's own",
    "nvflare.private.fed.utils.fed_utils": "the same, and whether a site's policy allows a class",
    "nvflare.recipe.poc_env": "recipes in a POC",
    "nvflare.recipe.sim_env": "recipes in the simulator",
    "nvflare.recipe.spec": "the base of recipes",
    "nvflare.recipe.utils": "settings by site in a recipe",
    "nvflare.security.security": "who may read a site's logs from the admin console",
    "nvflare.tool.poc.poc_commands": "where a POC is",
    "nvflare.utils.job_launcher_utils": "a job is started at a site that comes late or back",
    "nvflare.widgets.widget": "the base of trackers",
}
PATH = re.compile(r"^nvflare(\.\w+)+$")


def taken() -> dict[str, set[str]]:
    """The names that are imported of each module; none of a module that is imported itself."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "nvflare":
                found[str(node.module)] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.partition(".")[0] == "nvflare":
                        found.setdefault(alias.name, set())
    return found


def list_written_paths() -> set[str]:
    """Class paths and modules that stand in texts, such as those a site allows."""
    texts = {
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text for text in texts if PATH.match(text)}


def lacks(path: str) -> str | None:
    """Why a dotted path leads nowhere; None if it does. What FLARE needs another package for is not judged."""
    module, _, name = path.rpartition(".")
    try:
        import_module(path)
        return None
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("nvflare"):
            return None
    except ImportError:
        pass
    try:
        return None if hasattr(import_module(module), name) else f"{path}: there is no such name"
    except ModuleNotFoundError as error:
        return None if error.name and not error.name.startswith("nvflare") else f"{path}: {error}"


def test_all_that_is_taken_from_flare_is_there() -> None:
    paths = (
        {f"{module}.{name}" for module, names in taken().items() for name in names}
        | taken().keys()
        | list_written_paths()
    )
    missing = [reason for path in sorted(paths) if (reason := lacks(path))]
    assert not missing, "\n" + "\n".join(missing)


def test_a_missing_name_is_found() -> None:
    assert lacks("nvflare.apis.dxo.DXO") is None
    assert lacks("nvflare.apis.dxo.NoSuchName") == "nvflare.apis.dxo.NoSuchName: there is no such name"
    assert "nvflare.no_such_module" in str(lacks("nvflare.no_such_module.Name"))


def test_for_each_module_it_is_said_why() -> None:
    assert sorted(WHY) == sorted(taken())


def test_few_modules_are_private() -> None:
    assert sum(module.startswith("nvflare.private") for module in taken()) == 3
