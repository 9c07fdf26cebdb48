# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a prepared kit refuses of a job without code when the job is deployed there, before anything of it runs."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from string import Formatter
from typing import Any

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE
from nvflare.apis.app_validation import AppValidator
from nvflare.apis.fl_constant import SystemVarName
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.fuel.utils.json_scanner import JsonScanner
from nvflare.fuel.utils.wfconf import resolve_var_refs

from cfl_flare.core.errors import FileError
from cfl_flare.core.files import read_json
from cfl_flare.core.text import plain, shown
from cfl_flare.data.files import read_nothing
from cfl_flare.flare.allowed import POLICY, PRIVACY, Policy, with_ledger
from cfl_flare.flare.compat import parse_literally

logger = logging.getLogger(__name__)

CLIENT, SERVER = "config_fed_client", "config_fed_server"
ANALYTICS = "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent"
# FLARE's own variables, such as the kit's folder, which no item of a job replaces.
VARIABLES = {
    name for key, name in vars(SystemVarName).items() if not key.startswith("_")
}
NAMES_A_CLASS = ("path", "class_path", "name")
SECTIONS = (
    "components",
    "workflows",
    "executors",
    "task_data_filters",
    "task_result_filters",
)
# A key that makes an item look like a component's place to FLARE, which joins keys to "components.#1".
PLACE = re.compile(r"#\d")


class JobCheck(AppValidator):
    """FLARE asks it before it deploys a job, at the server and at each site; ``cfl-flare site prepare`` puts it there.

    It refuses texts that FLARE would replace by variables of the environment or of the kit. It refuses data and models
    as components and, at sites, components that are neither executors nor filters. The site's authorization decides on
    jobs with code. A site with an ``epsilon_budget`` takes no job while its privacy policy lacks the ledger's filter.

    In the kit's processes, configurations are parsed literally, and no source reads before a task says what it may.

    Args:
        then: the operator's own check.
    """

    def __init__(self, then: AppValidator | None = None):
        self.then = then
        read_nothing()
        parse_literally()

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """Why the job is refused, for its author, or an empty text; and what the operator's check says of it."""
        folder = Path(app_folder)
        refusal = _unwritten(folder) or (
            "" if (folder / "custom").exists() else next(_refusals(folder), "")
        )
        if refusal:
            logger.warning("%s: job refused: %s", folder, refusal)
            return refusal, {}
        return ("", {}) if self.then is None else self.then.validate(app_folder)


def _unwritten(folder: Path) -> str:
    """Why nothing may run at a site with a budget of privacy: results could leave that are not in its ledger."""
    kit = next(
        (
            place
            for place in folder.resolve().parents
            if (place / "startup" / "fed_client.json").is_file()
        ),
        None,
    )
    if kit is None or Policy.read(kit / "local" / POLICY).epsilon_budget is None:
        return ""
    try:
        file = kit / "local" / PRIVACY
        policy = read_json(file)
        if policy == with_ledger(policy):
            return ""
    except (FileError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s: %s", PRIVACY, error)
    return "the site's epsilon_budget needs a filter in its privacy.json; its operator runs cfl-flare site prepare"


def _refusals(folder: Path) -> Iterator[str]:
    for file in sorted(folder.rglob("*")):
        side, dot, ending = file.name.partition(".")
        form = ConfigFormat.config_ext_formats().get(dot + ending)
        if side not in (CLIENT, SERVER) or form is None:
            continue
        try:
            config = (
                ConfigFactory.get_config_loader(form).load_config(str(file)).to_dict()
            )
            refusals = [*_replaced(config, "", config)] or [
                *_misplaced(config, side == CLIENT)
            ]
        except Exception as error:  # whatever the parsers raise
            refusals = [
                f"cannot be read ({plain(str(error), 150)}); export the job again"
            ]
        yield from (plain(f"{file.name}: {refusal}", 300) for refusal in refusals)


def _replaced(item: Any, place: str, job: Mapping[str, Any]) -> Iterator[str]:
    """Texts in a job's item that FLARE would replace."""
    if isinstance(item, Mapping):
        for key, value in item.items():
            if PLACE.search(key):
                yield f"{place}: the key {shown(key)} looks like a component's place; give it another name"
            yield from _replaced(value, f"{place}.{key}".lstrip("."), job)
    elif isinstance(item, (list, tuple)):
        for value in item:
            yield from _replaced(value, place, job)
    elif isinstance(item, str) and _refers(item, job):
        yield f"{place} refers to a variable: {shown(item)}; write what it stands for"


def _refers(text: str, job: Mapping[str, Any]) -> bool:
    """Whether FLARE, which formats each text again and again, could replace something in it.

    A reference to a single value of the job is allowed if it stands alone in its text. Within a longer text it could
    build another reference, and lists of references multiply.
    """
    text = text.strip()
    parts = re.split("[{}]", text)
    if text.startswith("{@") or (len(parts) == 3 and not parts[0] and not parts[2]):
        name = parts[1]
        single = (
            name in job
            and not isinstance(job[name], (Mapping, list))
            and "{" not in str(job[name])
        )
        return text != f"{{{name}}}" or name in VARIABLES or not single
    try:
        fields = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError:
        return False  # nor can FLARE format it
    roots = [re.split(r"[.\[]", name)[0] for name in fields]
    if any(re.fullmatch("[0-9]*", root) for root in roots):
        return False  # by place: FLARE has no such values, and leaves the text as it is
    known = all(
        root.startswith("$") or root in job or root in VARIABLES for root in roots
    )
    return known and (bool(roots) or "{{" in text or "}}" in text)


def _misplaced(config: dict[str, Any], at_site: bool) -> Iterator[str]:
    """Data and models in a component's place, and at a site components that are neither executors nor filters."""
    resolve_var_refs(
        JsonScanner(config), deepcopy(config)
    )  # of the job's own items, as FLARE does
    components, workflows, executors, *chains = (
        config.get(key) or () for key in SECTIONS
    )
    filters = [part for chain in chains for entry in chain for part in entry["filters"]]
    for part in [
        *components,
        *workflows,
        *filters,
        *(entry["executor"] for entry in executors),
    ]:
        path, *inside = _built(part)
        for inner in inside if at_site else ():
            yield f"{shown(inner)} in the arguments of {shown(path)}: sites take no component there"
        for name in (path, *inside):
            if str(name).startswith(("cfl_flare.data.", "cfl_flare.models.")):
                yield f"{shown(name)} is no component; name it where a job has its data or its model"
        tracked = path == ANALYTICS and part["args"].get("events_to_convert") == [
            ANALYTIC_EVENT_TYPE
        ]
        if at_site and part in components and not tracked:
            yield f"{shown(path)}: from a job without code, sites take executors and filters alone; leave it out"


def _built(part: Mapping[str, Any]) -> Iterator[Any]:
    """The classes that FLARE's builder makes of a component: its own, and those in its arguments."""
    yield next((part[key] for key in NAMES_A_CLASS if key in part), None)
    for value in (part.get("args") or {}).values():
        component = (
            isinstance(value, Mapping)
            and value.get("config_type", "component") == "component"
        )
        if component and not value.keys().isdisjoint(NAMES_A_CLASS):
            yield from _built(value)
