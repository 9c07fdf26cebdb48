# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command line's options."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from cfl_flare.cli.site_options import add_predict, add_site
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.version import __version__
from cfl_flare.data import SOURCES
from cfl_flare.models import MODELS

# What a real site reads, where a job does not say otherwise.
SITE_DATA = "site"

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


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others; argparse's own come with the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Refuses the command line.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{message}; '{self.prog} --help' shows what there is")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but it names the command whose help is meant."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise ConfigError(
                f"unrecognized arguments: {' '.join(unknown)}; '{self.prog} {found.command} --help' shows what there is"
            )
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
            raise ConfigError(f"--penalty {values}: there is no --method before it that it could be added to")
        namespace.method[-1][1].append(values)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = Parser(prog="cfl-flare", description="Clustered federated learning for NVIDIA FLARE.")
    top.add_argument("--version", action="version", version=f"cfl-flare {__version__}")
    commands = top.add_subparsers(dest="command", required=True)
    _add_run(commands)
    _add_export(commands)
    commands.add_parser("methods", help="list methods, penalties, partitions, data and models with their settings")
    dealt = commands.add_parser("partition", help="deal a data set out and report who gets what, without training")
    _add_data(dealt)
    dealt.add_argument("--seed", type=int, default=0, help="of the partition (%(default)s)")
    dealt.add_argument("--show", action="store_true", help="list every participant")
    dealt.add_argument("--figure", metavar="FILE", help="draw label counts by participant (thesis Fig. A.1-A.4)")
    _add_onboard(commands)
    show = commands.add_parser("show", help="print a run's table again, and draw its figures")
    show.add_argument("run", help="folder of a run, or one with several runs below it")
    add_site(commands)
    add_predict(commands)
    return top


def _add_onboard(commands: Any) -> None:
    join = commands.add_parser("onboard", help="give a participant that was not in training its cluster and its model")
    join.add_argument("run", help="folder of a finished run, or one with a single run below it")
    sources = f"its samples: {', '.join(SOURCES)}, a MedMNIST-layout .npz file, or package.Class"
    join.add_argument("--data", required=True, metavar="D", help=sources)
    join.add_argument("--name", default="newcomer", metavar="N", help="what the newcomer is called (%(default)s)")
    file = "the server's samples, for a method that compares models on some; default: the file that the run names"
    join.add_argument("--indicator-file", metavar="F", help=file)
    stay = "rounds in its cluster; more of them train more of what is its own (%(default)s)"
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
    held = "participants held back from training, to join afterwards: a share like 0.2, or a count (%(default)s)"
    what.add_argument("--unseen", default="0", metavar="S", help=held)
    how = run.add_argument_group("how it is run")
    how.add_argument(
        "--sites", type=int, default=2, metavar="N", help="FLARE clients that host the participants (%(default)s)"
    )
    _add_schedule(how)
    how.add_argument("--out", metavar="DIR", help="where results go; default: cfl-runs/<time>")
    how.add_argument("--loop", action="store_true", help="in this process, without FLARE: the same numbers, sooner")
    _add_training(run.add_argument_group("local training"))


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
    how = export.add_argument_group("how it is run")
    how.add_argument("--name", default="clustered", help="of the job, and of its state on the sites (%(default)s)")
    fewest = "fewest sites with which FLARE starts the job (%(default)s)"
    how.add_argument("--min-clients", type=int, default=2, metavar="N", help=fewest)
    _add_schedule(how)
    how.add_argument("--out", default="jobs", metavar="DIR", help="where the job's folder goes (%(default)s)")
    goes_on = "name of the run to go on from, after the last round of which there is a checkpoint"
    how.add_argument("--resume-from", metavar="NAME", help=goes_on)
    carry = "let the job carry cfl_flare's code, for sites where it is not installed"
    how.add_argument("--byoc", action="store_true", help=carry)
    _add_training(export.add_argument_group("local training"))


def _add_method(group: Any, often: str) -> None:
    """The method, its penalties and its model."""
    group.add_argument("--method", action=AddMethod, metavar="M", help=often)
    group.add_argument(
        "--penalty", action=AddPenalty, metavar="P", help="added to the --method before it; may be given several times"
    )
    group.add_argument(
        "--model", metavar="NET", help=f"{', '.join(MODELS)} or package.Class; default: one that fits the data"
    )


def _add_schedule(group: Any) -> None:
    """What the server schedules, and what is measured."""
    group.add_argument("--rounds", type=int, default=20, metavar="N", help="communication rounds (%(default)s)")
    group.add_argument(
        "--sample", default="1.0", metavar="S", help="participants a round: a share like 0.25, or a count (%(default)s)"
    )
    group.add_argument(
        "--min-answers", default="1", metavar="S", help="fewest good answers a round: share or count (%(default)s)"
    )
    group.add_argument(
        "--evaluate-every", type=int, default=1, metavar="N", help="rounds between measurements (%(default)s)"
    )
    group.add_argument("--evaluate-trained", action="store_true", help="measure the locally trained models as well")
    sums = "a site sends one mean a cluster for all of its participants, where the method only averages"
    group.add_argument("--site-sums", action="store_true", help=sums)
    group.add_argument(
        "--keep-features", action="store_true", help="keep what draws the participants (thesis Fig. 3.5)"
    )
    few = "a cluster of fewer sites is reported, as its model tells of their data (%(default)s)"
    group.add_argument("--min-sites-per-cluster", type=int, default=1, metavar="N", help=few)
    merge = "put the participants of such a cluster into the nearest other one, where the method can"
    group.add_argument("--merge-small-clusters", action="store_true", help=merge)
    group.add_argument(
        "--task-timeout", type=int, default=3600, metavar="S", help="seconds that a round may take (%(default)s)"
    )
    group.add_argument("--seed", type=int, default=0, help="of everything random (%(default)s)")


def _add_training(group: Any) -> None:
    """How a participant trains."""
    group.add_argument("--lr", type=float, default=0.05, help="learning rate (%(default)s)")
    group.add_argument("--momentum", type=float, default=0.9, help="(%(default)s)")
    group.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of training steps")
    group.add_argument("--keep-momentum", action="store_true", help="keep it on the participant between rounds")
    group.add_argument("--batch-size", type=int, default=32, metavar="N", help="(%(default)s)")
    group.add_argument("--local-steps", type=int, metavar="N", help="steps a round; default: 10")
    group.add_argument(
        "--local-epochs", type=int, metavar="N", help="passes over the own data a round, instead of steps"
    )


def _add_data(group: Any, real: bool = False) -> None:
    """What is read, and how a simulation deals it out; at real sites there is none unless it is asked for."""
    sources = f"{', '.join(SOURCES)}, a MedMNIST-layout .npz file, or package.Class (%(default)s)"
    data = SITE_DATA if real else "digits"
    group.add_argument("--data", default=data, metavar="D", help=("what each site reads: " if real else "") + sources)
    default = "; default: each site is one participant" if real else " (%(default)s)"
    rule = None if real else "label_permutation:groups=3"
    group.add_argument("--partition", default=rule, metavar="P", help=f"how the data is dealt out{default}")
    many = None if real else 24
    group.add_argument("--participants", type=int, default=many, metavar="N", help=f"how many share it{default}")
    fewest = "fewest training samples of one (%(default)s)"
    group.add_argument("--min-samples", type=int, default=8, metavar="N", help=fewest)
