# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a FLARE job has beside the run that it carries out: its name, its processes, its training scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cfl_flare.core.config import check_run_name
from cfl_flare.core.settings import check_settings, setting

MEMORY = "rounds between two clean-ups of {} memory; 0 for none"


@dataclass(frozen=True)
class JobSettings:
    """The job as a whole."""

    min_clients: int = setting(
        help="fewest sites with which FLARE starts the job; one that comes later misses it", ge=1
    )
    name: str = setting("clustered", help="of the job, and of the run's folder under each site's state root")
    initial_ckpt: str | None = setting(
        None, help="a model to start from: a file here, which the job carries, or an absolute path at the server"
    )
    exclude_vars: str | None = setting(None, help="a regular expression of names of arrays that do not leave a site")
    resume_from: str | None = setting(None, help="name of the run to go on from, after its last checkpoint")
    task_request_interval: float = setting(
        0.2, help="seconds between a site's requests for a task; more where many sites ask one server", gt=0
    )
    byoc: bool = setting(False, help="let the job carry cfl_flare's code, for sites where it is not installed")

    def __post_init__(self) -> None:
        check_settings(self, "run")
        check_run_name(self.name)
        if self.resume_from is not None:
            check_run_name(self.resume_from, "resume_from")


@dataclass(frozen=True)
class ControllerSettings:
    """The server's process."""

    task_timeout: int = setting(3600, help="seconds that a round may take; later answers are dropped", ge=1)
    memory_gc_rounds: int = setting(0, help=MEMORY.format("the server's"), ge=0, name="server_memory_gc_rounds")

    def __post_init__(self) -> None:
        check_settings(self, "run")


@dataclass(frozen=True)
class ExecutorSettings:
    """A site's process, where FLARE started it."""

    site_sums: bool = setting(
        False, help="a site sends one mean a cluster for all its participants, where the method only averages"
    )
    memory_gc_rounds: int = setting(0, help=MEMORY.format("a site's"), ge=0, name="client_memory_gc_rounds")
    cuda_empty_cache: bool = setting(False, help="a site's clean-up also gives torch's cached GPU memory back")

    def __post_init__(self) -> None:
        check_settings(self, "run")


@dataclass(frozen=True)
class ScriptSettings:
    """A training script of FLARE's Client API, in place of cfl_flare's own training."""

    train_script: str | None = setting(
        None, help="its file; the job carries it, it reads its data, each site is one participant", per_site=True
    )
    train_args: str = setting("", help="the script's command line", per_site=True)
    launch_external_process: bool = setting(False, help="run the script in a process of its own", per_site=True)
    command: str = setting("python3 -u", help="what starts that process", per_site=True)
    params_transfer_type: str = setting(
        "FULL", help="the script's models as they are, or less what it received", choices=("FULL", "DIFF")
    )

    def __post_init__(self) -> None:
        check_settings(self, "recipe")


@dataclass(frozen=True)
class AssignSettings:
    """By what a script's models are compared, where participants choose among several (IFCA).

    Attributes:
        penalties: the scripts add `cfl_flare.client.penalty` to their loss, and are sent what it needs.
        fedprox_mu: the coefficient of FedProx's term, for scripts that take it from FLARE's own metadata.
    """

    metric: str = setting(
        "loss", help="ifca: by which of the script's metrics, on its training data, it chooses", name="assign_metric"
    )
    mode: str = setting("min", help="which end of that metric is best", choices=("min", "max"), name="assign_mode")
    every: int = setting(1, help="rounds between two choices of a cluster", ge=1, name="assign_every")
    penalties: bool = False
    fedprox_mu: float | None = None

    def __post_init__(self) -> None:
        check_settings(self, "run")

    def best(self, found: Mapping[str, float]) -> str:
        """The slot with the best metric; of equals the first."""
        return (min if self.mode == "min" else max)(found, key=lambda slot: found[slot])
