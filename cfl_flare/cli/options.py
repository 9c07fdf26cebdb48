# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command line's options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cfl_flare.cli.report import add_report
from cfl_flare.cli.setting_options import add_settings
from cfl_flare.cli.site_options import add_columns, add_predict, add_site
from cfl_flare.cli.watch import add_watch
from cfl_flare.core import __version__
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.settings import check_settings, setting
from cfl_flare.data import SOURCES, DataConfig
from cfl_flare.engine.job_settings import (
    AssignSettings,
    ControllerSettings,
    ExecutorSettings,
    JobSettings,
    ScriptSettings,
)
from cfl_flare.engine.settings import ServerSettings, SiteSettings
from cfl_flare.engine.study.settings import StudySettings
from cfl_flare.models import MODELS
from cfl_flare.training.settings import TrainSettings

# What a real site reads, unless the job says otherwise.
SITE_DATA = "site"
# What ``run`` and ``partition`` simulate, unless the data has owners.
SIMULATED: dict[str, Any] = {"participants": 24, "partition": "label_permutation:groups=3"}
# A job's settings except those of its data and its training, and those that ``run`` does not have.
OF_RUN = (ServerSettings, SiteSettings, JobSettings, ControllerSettings, ExecutorSettings)
NOT_IN_RUN = ("min_clients", "name", "resume_from", "byoc")

# Settings of a study's job that a study on this machine does not have; and of jobs, those that no study has. Its option
# is --job: FLARE takes --export off any command line that makes a recipe.
OF_STUDY_JOB = (JobSettings, ControllerSettings, ExecutorSettings)
NOT_IN_STUDY_JOB = ("initial_ckpt", "exclude_vars", "private", "site_sums")

EPILOG = """examples:
  cfl-flare run                                     the main job: FedAvg and WeCFL on scikit-learn's digits
  cfl-flare run --method ifca:k=3 --rounds 40       another method
  cfl-flare run --method wecfl:k=3 --penalty contrastive:mu=0.5,tau=1 --method ifca-cam:k=3,warmup=5
  cfl-flare run --data bloodmnist.npz --partition dirichlet:alpha=0.3 --participants 40 --method fesem:k=4
  cfl-flare run --data my_package.MyData --model my_package.MyNet --method wecfl:k=3

A module of your own in this folder is found with PYTHONPATH=. before the command.
A method, penalty, partition, data source or model is written name:setting=value,setting=value; 'cfl-flare methods'
lists them.
"""


@dataclass(frozen=True)
class Simulation:
    """How a comparison is run on this machine."""

    sites: int = setting(2, help="FLARE clients that host the participants", ge=1)
    loop: bool = setting(False, help="in this process, without FLARE: the same numbers, sooner")

    def __post_init__(self) -> None:
        check_settings(self, "run")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others; argparse's own come with the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Refuses the command line.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{message}; '{self.prog} --help' shows what there is")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but the message names the subcommand's help."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            which = f"{self.prog} {found.subcommand}"
            raise ConfigError(f"unrecognized arguments: {' '.join(unknown)}; '{which} --help' shows what there is")
        return found


class AddMethod(argparse.Action):
    """Collects methods, each with the penalties that come after it: ``[(method, [penalty, ...]), ...]``."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        """Adds a method."""
        namespace.method = [*(namespace.method or []), (values, [])]


class AddPenalty(argparse.Action):
    """Adds a penalty to the last method."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        """Adds a penalty."""
        if not namespace.method:
            raise ConfigError(f"--penalty {values}: there is no --method before it to add it to")
        namespace.method[-1][1].append(values)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = Parser(prog="cfl-flare", description="Clustered federated learning for NVIDIA FLARE.")
    top.add_argument("--version", action="version", version=f"cfl-flare {__version__}")
    commands = top.add_subparsers(dest="subcommand", metavar="command", required=True)
    _add_run(commands)
    _add_study(commands)
    _add_export(commands)
    commands.add_parser("methods", help="list methods, penalties, partitions, data and models with their settings")
    dealt = commands.add_parser("partition", help="deal a data set out and report who gets what, without training")
    _add_data(dealt)
    unused = ("indicator_samples", "unseen", "validation", "measured_on")
    add_settings(dealt, DataConfig, without=unused, found=SIMULATED)
    dealt.add_argument("--show", action="store_true", help="list every participant")
    dealt.add_argument("--figure", metavar="FILE", help="draw label counts by participant (thesis Fig. A.1-A.4)")
    _add_onboard(commands)
    show = commands.add_parser("show", help="print a run's table again, and draw its figures")
    show.add_argument("run", help="folder of a run, or one with several runs below it")
    add_watch(commands)
    add_report(commands)
    add_site(commands)
    add_columns(commands)
    add_predict(commands)
    templates = commands.add_parser("templates", help="write FLARE's job templates, for 'nvflare job create'")
    templates.add_argument("out", metavar="DIR", type=Path, help="where their folders go; older ones are replaced")
    return top


def _add_onboard(commands: Any) -> None:
    join = commands.add_parser("onboard", help="give a participant that was not in training its cluster and its model")
    join.add_argument("run", help="folder of a finished run, or one with a single run below it")
    sources = f"its samples: {', '.join(SOURCES)}, a MedMNIST-layout .npz file, or package.Class"
    join.add_argument("--data", required=True, metavar="D", help=sources)
    join.add_argument("--name", default="newcomer", metavar="N", help="what the newcomer is called (%(default)s)")
    file = "the server's samples, for a method that compares models on some; default: the file that the run names"
    join.add_argument("--indicator-file", metavar="F", help=file)
    stay = "rounds in its cluster; more train its own parts (a head, a personal model) further (%(default)s)"
    join.add_argument("--rounds", type=int, default=1, metavar="N", help=stay)
    trust = "a class of the run's that is not cfl_flare's own and may be imported; may be given several times"
    join.add_argument("--allow", action="append", default=[], metavar="CLASS", help=trust)
    join.add_argument("--out", metavar="DIR", help="where its model goes; default: newcomers/NAME in the run's folder")


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="run methods on simulated participants, through FLARE's simulator",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = run.add_argument_group("what is run")
    _add_method(what, "may be given several times; default: fedavg and wecfl:k=3")
    _add_data(what)
    add_settings(what, DataConfig, without=("seed", "indicator_samples"), found=SIMULATED)
    how = run.add_argument_group("how it is run")
    add_settings(how, Simulation)
    how.add_argument("--out", metavar="DIR", help="where results go; default: cfl-runs/<time>")
    add_settings(how, *OF_RUN, without=NOT_IN_RUN, num_rounds=20)
    add_settings(run.add_argument_group("local training"), TrainSettings, lr=0.05)


def _add_study(commands: Any) -> None:
    study = commands.add_parser(
        "study",
        help="find out whether to cluster, into how many groups, and who gains",
        description="Trains each hospital alone, one model for all, and clusters, with private layers and without; "
        "drops what is clearly worse on validation samples; and says by test samples what to train. The same command "
        "goes on with an interrupted study.",
    )
    what = study.add_argument_group("what is compared")
    _add_method(what, "another candidate; may be given several times")
    sources = f"{', '.join(SOURCES)}, a MedMNIST-layout .npz file, or package.Class (digits; with --job, site)"
    what.add_argument("--data", metavar="D", help=sources)
    without = ("seed", "indicator_samples", "unseen", "measured_on")
    add_settings(what, DataConfig, without=without, found=SIMULATED, validation=0.25)
    how = study.add_argument_group("how it is run")
    how.add_argument("--out", metavar="DIR", help="where results go; default: cfl-studies/<time>")
    add_settings(how, StudySettings)
    unused = ("stop_cond", "patience", "cross_site_evaluation", "keep_features")
    add_settings(how, ServerSettings, SiteSettings, without=unused, num_rounds=20)
    add_settings(study.add_argument_group("local training"), TrainSettings, lr=0.05, bootstrap=200)
    job = study.add_argument_group("as one job for real sites, which is written and not run")
    job.add_argument("--job", metavar="DIR", help="where the job's folder goes; the options below belong to it")
    add_settings(job, *OF_STUDY_JOB, without=NOT_IN_STUDY_JOB, optional=True)


def _add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help="write a FLARE job for real sites, without running it",
        description="Writes a FLARE job. By default each site is one participant with its own data; with --partition "
        "and --participants the job simulates them from one pooled set.",
    )
    what = export.add_argument_group("what is run")
    _add_method(what, "once; default: wecfl:k=3")
    _add_data(what, real=True)
    add_settings(what, DataConfig, without=("seed", "indicator_samples"))
    how = export.add_argument_group("how it is run")
    how.add_argument("--out", default="jobs", metavar="DIR", help="where the job's folder goes (%(default)s)")
    sites = "the sites that take part, by their names at the server; default: all that are connected"
    how.add_argument("--sites", metavar="A,B", help=sites)
    add_settings(how, *OF_RUN, num_rounds=20, min_clients=2)
    add_settings(export.add_argument_group("local training"), TrainSettings, lr=0.05)
    script = export.add_argument_group("a training script of FLARE's Client API, in place of --data and local training")
    add_settings(script, ScriptSettings, AssignSettings)


def _add_method(group: Any, often: str) -> None:
    """The method, its penalties and its model."""
    group.add_argument("--method", action=AddMethod, metavar="M", help=often)
    group.add_argument(
        "--penalty", action=AddPenalty, metavar="P", help="added to the --method before it; may be given several times"
    )
    group.add_argument(
        "--model", metavar="NET", help=f"{', '.join(MODELS)} or package.Class; default: one that fits the data"
    )


def _add_data(group: Any, real: bool = False) -> None:
    """What is read."""
    sources = f"{', '.join(SOURCES)}, a MedMNIST-layout .npz file, or package.Class (%(default)s)"
    data = SITE_DATA if real else "digits"
    group.add_argument("--data", default=data, metavar="D", help=("what each site reads: " if real else "") + sources)
