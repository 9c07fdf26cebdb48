# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""An operator's limits, what a prepared kit lets jobs name, and what it lets FLARE's admin console read.

FLARE calls whatever the path of a component names, with the job's arguments: a class, a function, or what a module has
imported. A list with the prefix ``cfl_flare.`` would let a job that carries no code call the command line, at every
site and at the server. So a prepared kit's allow-list holds the classes of cfl_flare one by one.

A kit's process has this all the time, so that nothing here imports torch.

By default the admin console shows a kit's files, and so what logs say of the data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_common.widgets.component_path_authorizer import CLASS_ALLOW_LIST
from nvflare.security.security import COMMAND_CATEGORIES, CommandCategory

from cfl_flare.clustering.floor import LARGEST_SHARE
from cfl_flare.core.config import from_dict, require
from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import read_json
from cfl_flare.core.settings import check_settings, setting

PREFIX = "cfl_flare."
ALL = "*"
JOB_CHECK = "cfl_flare.flare.job_check.JobCheck"
REJOIN = "cfl_flare.flare.rejoin.Rejoin"
VALIDATOR = "app_validator"
LEDGER_FILTER = "cfl_flare.flare.client_api.private.LedgerFilter"

CLASSES = (
    "cfl_flare.flare.aggregator.ClusteringAggregator",
    LEDGER_FILTER,
    "cfl_flare.flare.controller.ClusteredController",
    "cfl_flare.flare.egress.EgressFilter",
    "cfl_flare.flare.executor.ClusteredExecutor",
    "cfl_flare.flare.persistor.ClusterModelPersistor",
    "cfl_flare.engine.study.prevalence.Prevalence",
    "cfl_flare.flare.study.controller.StudyController",
    "cfl_flare.flare.study.executor.StudyExecutor",
    "cfl_flare.flare.tracking.ServerRun",
    "cfl_flare.data.femnist.FEMNIST",
    "cfl_flare.data.hospitals.Heart",
    "cfl_flare.data.hospitals.Stroke",
    "cfl_flare.data.images.Folder",
    "cfl_flare.data.named.CIFAR10",
    "cfl_flare.data.named.CIFAR100",
    "cfl_flare.data.named.EMNIST",
    "cfl_flare.data.named.FashionMNIST",
    "cfl_flare.data.named.MNIST",
    "cfl_flare.data.named.MedMNIST",
    "cfl_flare.data.sources.Digits",
    "cfl_flare.data.sources.Npz",
    "cfl_flare.data.sources.SiteData",
    "cfl_flare.data.table.Table",
    "cfl_flare.models.CifarCNN",
    "cfl_flare.models.FashionCNN",
    "cfl_flare.models.LeafCNN",
    "cfl_flare.models.Logistic",
    "cfl_flare.models.MLP",
    "cfl_flare.models.MobileNetV2",
    "cfl_flare.models.NamedArrays",
    "cfl_flare.models.ResNet18",
    "cfl_flare.models.UNet",
)

# What jobs use of FLARE's classes: the job's results, a receiver that writes to the run's folder, privacy filters, and
# the streamer that a site adds to a job itself if its operator lets logs leave. `cfl_flare.flare.job_check` decides
# which of them sites take.
OF_FLARE = (
    "nvflare.app_common.filters.exclude_vars.ExcludeVars",
    "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
    "nvflare.app_common.filters.svt_privacy.SVTPrivacy",
    "nvflare.app_common.logging.job_log_streamer.JobLogStreamer",
    "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent",
    "nvflare.app_common.widgets.metrics_artifact_writer.MetricsArtifactWriter",
    "nvflare.app_common.widgets.validation_json_generator.ValidationJsonGenerator",
    "nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver",
)

POLICY = "cfl.json"
AUTHORIZATION, PRIVACY, CHAIN = (
    "authorization.json",
    "privacy.json",
    "task_result_filters",
)
CODE, READS = "byoc", CommandCategory.SHELL_COMMANDS
# FLARE's rights: categories of commands, commands without one, and two of jobs.
# A role may have a single command; its condition is then stronger than its category's.
DATA_SET = re.compile(r"\w[\w.-]{0,99}=/.+")
READ_COMMANDS = {
    command for command, category in COMMAND_CATEGORIES.items() if category == READS
}
COMMANDS = {
    command for name, command in vars(AdminCommandNames).items() if name.isupper()
}
RIGHTS = {
    *COMMAND_CATEGORIES.values(),
    *(COMMANDS - COMMAND_CATEGORIES.keys()),
    CODE,
    "server-predeployed-flwr",
}


@dataclass(frozen=True)
class Policy:
    """An operator's limits. Without a file, the defaults hold."""

    data_roots: tuple[str, ...] = setting(
        (),
        help="folders in which a job may name files to read; with none, a job reads only what $CFL_DATA names",
    )
    data_sets: tuple[str, ...] = setting(
        (),
        help="NAME=PATH of data with patients of their own; with none, one ledger and one record are for all data",
    )
    min_sites_per_cluster: int = setting(
        3,
        help="a site takes part in no job with a lower min_sites_per_cluster; 1: others may see its own model",
        ge=1,
    )
    min_samples_per_cluster: int = setting(
        30, help="the same of min_samples_per_cluster, unless the first is 1", ge=1
    )
    max_weight_share: float = setting(
        LARGEST_SHARE,
        help="and in none with a higher max_weight_share, unless the first is 1",
        gt=0,
        le=1,
    )
    max_tpr_at_1pct_fpr: float | None = setting(
        None,
        help="such as 0.1: a model by which attacks may tell more training samples than this goes to members alone",
        gt=0,
        le=1,
    )
    min_membership: int = setting(
        16,
        help="with that bound: fewest shadow models (membership) in a job, as fewer find less",
        ge=2,
        le=64,
    )
    accept_unmeasured: bool = setting(
        False,
        help="at a site with fewer than 30 test samples, which measures no attack: a model may leave if the other "
        "members' attacks are below the bound",
    )
    max_participants: int = setting(
        10_000, help="most participants that a server accepts from one site", ge=1
    )
    epsilon_budget: float | None = setting(
        None,
        help="most that all jobs together may spend of the privacy of this site's data, in a job with dp each; "
        "jobs without dp are refused then",
        gt=0,
        le=1000,
    )
    delta_budget: float = setting(
        1e-5, help="probability with which epsilon_budget may not hold", gt=0, lt=0.1
    )
    max_refusals: int = setting(
        3,
        help="with epsilon_budget: after this number of refusals that the data decided on, no job goes on until the "
        "operator has looked",
        ge=0,
    )

    def __post_init__(self) -> None:
        check_settings(self, POLICY)
        roots = self.data_roots
        absolute = isinstance(roots, (list, tuple)) and all(
            isinstance(r, str) and Path(r).is_absolute() for r in roots
        )
        require(
            absolute,
            f"{POLICY}: data_roots = {roots!r} should be a list of folders, each with its whole path",
        )
        object.__setattr__(self, "data_roots", tuple(roots))
        self._check_data_sets()

    def _check_data_sets(self) -> None:
        """Raises a ConfigError unless each data set has a name and a place, and no place lies in another set's."""
        listed = isinstance(self.data_sets, (list, tuple)) and all(
            isinstance(text, str) for text in self.data_sets
        )
        valid = listed and all(DATA_SET.fullmatch(text) for text in self.data_sets)
        wanted = "should be a list of NAME=PATH, each with its whole path"
        require(valid, f"{POLICY}: data_sets = {self.data_sets!r} {wanted}")
        object.__setattr__(self, "data_sets", tuple(self.data_sets))
        for name, place in self._places_of_sets():
            others = {
                other
                for other, above in self._places_of_sets()
                if place.is_relative_to(above)
            } - {name}
            both = f"{str(place)!r} is in data set {name!r}, and in {sorted(others)}"
            require(
                not others,
                f"{POLICY}: {both}; patients of several data sets belong into one",
            )

    def _places_of_sets(self) -> list[tuple[str, Path]]:
        parts = [text.partition("=") for text in self.data_sets]
        return [(name, Path(place).resolve()) for name, _, place in parts]

    def data_set_of(self, place: str) -> str:
        """The operator's name of the data set that lies there; empty if the operator names none."""
        names = (
            name
            for name, above in self._places_of_sets()
            if place and Path(place).is_relative_to(above)
        )
        return next(names, "")

    @classmethod
    def of(cls, fl_ctx: FLContext) -> Policy:
        """The policy of the kit in which this process runs; see `read`."""
        return cls.read(
            Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / POLICY
        )

    @classmethod
    def read(cls, file: Path) -> Policy:
        """The policy in a file, else the defaults; a ConfigError if it is not JSON, or sets what does not exist."""
        if not file.exists():
            return cls()
        try:
            content = read_json(file)
        except FileError as error:
            raise ConfigError(
                f"{file}: not readable as JSON ({error}); correct it, or remove it"
            ) from error
        require(
            isinstance(content, dict),
            f"{file}: should hold a JSON object with settings",
        )
        return from_dict(cls, content, str(file))


def with_allowed(content: dict[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Resources that also allow these classes. A list of their own, or else FLARE's default list, is extended.

    The prefix of all of cfl_flare is taken out of it: FLARE calls any function that a job names and the list allows.
    """
    before = content.get(CLASS_ALLOW_LIST, DEFAULT_CLASS_ALLOW_LIST)
    listed = [entry for entry in before if entry not in (PREFIX, PREFIX.rstrip("."))]
    added = [] if ALL in listed else [c for c in classes if c not in listed]
    return {"format_version": 2, **content, CLASS_ALLOW_LIST: listed + added}


def with_job_check(content: dict[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """A kit's resources with the check of jobs; see `cfl_flare.flare.job_check`.

    Of FLARE's default list, the classes that jobs of cfl_flare use stay, and those that are named. Later, what the
    operator has added stays as well. Our check asks the operator's own ``app_validator``.
    """
    if not checks_jobs(content):
        listed = [
            entry
            for entry in content.get(CLASS_ALLOW_LIST, ())
            if entry not in DEFAULT_CLASS_ALLOW_LIST
        ]
        operators = content.get(VALIDATOR)
        check = {"path": JOB_CHECK, "args": {"then": operators} if operators else {}}
        content = {
            "format_version": 2,
            **content,
            CLASS_ALLOW_LIST: listed,
            VALIDATOR: check,
        }
    return with_allowed(content, [*OF_FLARE, *classes])


def checks_jobs(content: Any) -> bool:
    """Whether a kit with these resources checks jobs."""
    validator = content.get(VALIDATOR) if isinstance(content, dict) else None
    return isinstance(validator, dict) and validator.get("path") == JOB_CHECK


def with_rejoin(content: dict[str, Any]) -> dict[str, Any]:
    """A server's resources with the component that takes sites into running jobs; see `cfl_flare.flare.rejoin`."""
    components = content.get("components", [])
    if any(component.get("path") == REJOIN for component in components):
        return content
    return {
        **content,
        "components": [*components, {"id": "cfl_rejoin", "path": REJOIN, "args": {}}],
    }


def permitted_roles(local: Path, right: str) -> str:
    """The roles that at a kit may send jobs with their `CODE`, or that may read files by the admin console, `READS`.

    Raises:
        ConfigError: the kit's policy cannot be read.
    """
    policy = first_file(local, AUTHORIZATION)
    if policy is None:
        return "anyone"  # a simulator's workspace
    names = {right, *(READ_COMMANDS if right == READS else ())}
    granted = {
        role: {rights.get(name, "none") for name in names}
        for role, rights in _rights(policy).items()
    }
    return (
        ", ".join(
            role for role, conditions in granted.items() if conditions != {"none"}
        )
        or "nobody"
    )


def closed(local: Path) -> str | None:
    """The text of FLARE's default policy of a kit, in which nobody may read files; None if it has no default."""
    default = local / f"{AUTHORIZATION}.default"
    if not default.is_file():
        return None
    permissions = {
        role: {
            **rights,
            **dict.fromkeys(rights.keys() & READ_COMMANDS, "none"),
            READS: "none",
        }
        for role, rights in _rights(default).items()
    }
    return written({"format_version": "1.0", "permissions": permissions})


def with_ledger(content: dict[str, Any] | None) -> dict[str, Any]:
    """A site's privacy policy whose scopes all have the filter that enters into the ledger, before other filters."""
    if not content or not content["scopes"]:  # FLARE applies no filter then
        content = {
            "scopes": [{"name": "public", "properties": {}}],
            "default_scope": "public",
        }
    entry = {"direction": "out", "path": LEDGER_FILTER, "args": {}}
    scopes = [
        {
            **scope,
            CHAIN: [
                entry,
                *(
                    part
                    for part in scope.get(CHAIN, ())
                    if part.get("path") != LEDGER_FILTER
                ),
            ],
        }
        for scope in content["scopes"]
    ]
    return {**content, "scopes": scopes}


def written(content: dict[str, Any]) -> str:
    """The text of a kit's file as preparing writes it."""
    return json.dumps(content, indent=2) + "\n"


def first_file(local: Path, name: str) -> Path | None:
    """The operator's own file, else the kit's default one; None if there is neither."""
    return next(
        (path for path in (local / name, local / f"{name}.default") if path.is_file()),
        None,
    )


def _rights(policy: Path) -> dict[str, dict[str, Any]]:
    """By role, the condition of each right; a role with one condition has it for all rights that FLARE knows."""
    try:
        permissions = read_json(policy)["permissions"]
        require(
            all(
                isinstance(rights, (str, list, dict)) for rights in permissions.values()
            ),
            "a role has no rights",
        )
    except (FileError, ConfigError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"site: {policy} is not an authorization policy of FLARE's ({error}); restore the kit's own file"
        ) from error
    named = {
        right
        for rights in permissions.values()
        if isinstance(rights, dict)
        for right in rights
    }
    known = sorted({*RIGHTS, *named})
    return {
        name: r if isinstance(r, dict) else dict.fromkeys(known, r)
        for name, r in permissions.items()
    }
