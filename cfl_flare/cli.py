# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command ``cfl-flare``."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cfl_flare import __version__
from cfl_flare.config import build, from_dict, parse_spec, require
from cfl_flare.data import PARTITIONS, SOURCES, DataSource
from cfl_flare.data.sources import checked
from cfl_flare.errors import CFLError, ConfigError, RunFailedError
from cfl_flare.methods import METHODS, Method, build_method
from cfl_flare.models import MODELS
from cfl_flare.report.figures import compare, draw
from cfl_flare.report.table import results_table
from cfl_flare.results import find_runs
from cfl_flare.training.settings import TrainSettings

EPILOG = """examples:
  cfl-flare run                                     the main job: FedAvg and WeCFL on scikit-learn's digits
  cfl-flare run --method ifca:k=3 --rounds 40       another method
  cfl-flare run --data bloodmnist.npz --partition dirichlet:alpha=0.3 --participants 40 --method fesem:k=4
  cfl-flare run --data my_package.MyData --model my_package.MyNet --method wecfl:k=3

A method, partition, data source or model is written name:setting=value,setting=value; 'cfl-flare methods' lists them.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="cfl-flare", description="Clustered federated learning for NVIDIA FLARE.")
    top.add_argument("--version", action="version", version=f"cfl-flare {__version__}")
    commands = top.add_subparsers(dest="command", required=True)
    _add_run(commands)
    commands.add_parser("methods", help="list methods, partitions, data sources and models with their settings")
    show = commands.add_parser("show", help="print a run's table again, and draw its figures")
    show.add_argument("run", help="folder of a run, or one with several runs below it")
    return top


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="run methods on simulated participants, through FLARE's simulator",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = run.add_argument_group("what is run")
    what.add_argument(
        "--method", action="append", metavar="M", help="may be given several times; default: fedavg and wecfl:k=3"
    )
    what.add_argument(
        "--data", default="digits", metavar="D", help="digits, a MedMNIST-layout .npz file, or package.Class"
    )
    what.add_argument(
        "--model", metavar="NET", help=f"{', '.join(MODELS)} or package.Class; default: one that fits the data"
    )
    what.add_argument(
        "--partition", default="label_permutation:groups=3", metavar="P", help="how the data is dealt out (%(default)s)"
    )
    what.add_argument("--participants", type=int, default=24, metavar="N", help="how many share the data (%(default)s)")
    what.add_argument(
        "--min-samples", type=int, default=8, metavar="N", help="fewest training samples of one (%(default)s)"
    )
    how = run.add_argument_group("how it is run")
    how.add_argument(
        "--sites", type=int, default=2, metavar="N", help="FLARE clients that host the participants (%(default)s)"
    )
    how.add_argument("--rounds", type=int, default=20, metavar="N", help="communication rounds (%(default)s)")
    how.add_argument(
        "--sample", default="1.0", metavar="S", help="participants a round: a share like 0.25, or a count (%(default)s)"
    )
    how.add_argument(
        "--min-answers", default="1", metavar="S", help="fewest good answers a round: share or count (%(default)s)"
    )
    how.add_argument(
        "--evaluate-every", type=int, default=1, metavar="N", help="rounds between measurements (%(default)s)"
    )
    how.add_argument("--evaluate-trained", action="store_true", help="measure the locally trained models as well")
    how.add_argument(
        "--task-timeout", type=int, default=3600, metavar="S", help="seconds that a round may take (%(default)s)"
    )
    how.add_argument("--seed", type=int, default=0, help="of everything random (%(default)s)")
    how.add_argument("--out", metavar="DIR", help="where results go; default: cfl-runs/<time>")
    how.add_argument("--loop", action="store_true", help="in this process, without FLARE: the same numbers, sooner")
    train = run.add_argument_group("local training")
    train.add_argument("--lr", type=float, default=0.05, help="learning rate (%(default)s)")
    train.add_argument("--momentum", type=float, default=0.9, help="(%(default)s)")
    train.add_argument("--keep-momentum", action="store_true", help="keep it on the participant between rounds")
    train.add_argument("--batch-size", type=int, default=32, metavar="N", help="(%(default)s)")
    train.add_argument("--local-steps", type=int, metavar="N", help="steps a round; default: 10")
    train.add_argument(
        "--local-epochs", type=int, metavar="N", help="passes over the own data a round, instead of steps"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; bad input is one line on stderr and exit status 2."""
    arguments = parser().parse_args(argv)
    command = {"run": run, "methods": methods, "show": show}[arguments.command]
    try:
        command(arguments)
    except CFLError as error:
        print(f"cfl-flare: {error}", file=sys.stderr)
        return 1 if isinstance(error, RunFailedError) else 2
    except KeyboardInterrupt:
        print("cfl-flare: interrupted", file=sys.stderr)
        return 130
    return 0


def share_or_count(text: str, option: str) -> float | int:
    """``"0.25"`` is a share, ``"25"`` a count."""
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError as error:
        raise ConfigError(f"{option} = {text!r} should be a share like 0.25 or a count like 25") from error


def read_source(text: str) -> DataSource:
    """The data source that the command line names."""
    name, settings = parse_spec(text)
    if name in SOURCES:
        return from_dict(SOURCES[name], settings, f"data {name}")
    if name.endswith(".npz"):
        return from_dict(
            SOURCES["npz"], {"path": str(Path(name).resolve()) if Path(name).exists() else name, **settings}, "data npz"
        )
    require(
        "." in name and "/" not in name,
        f"data {name!r} is unknown; there are {', '.join(SOURCES)}, a .npz file, or package.Class",
    )
    return build({"class_path": name, "args": settings}, DataSource, "data")  # type: ignore[type-abstract]


def read_model(text: str | None, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    """The model that the command line names, or one that fits the data, as its dictionary."""
    name, settings = parse_spec(text) if text else (fitting_model(shape), {})
    if name in MODELS:
        args = {"input_shape": list(shape), "num_classes": classes, **settings}
        return {"class_path": f"cfl_flare.models.{MODELS[name].__name__}", "args": args}
    require("." in name, f"model {name!r} is unknown; there are {', '.join(MODELS)}, or package.Class")
    return {"class_path": name, "args": settings}


def fitting_model(shape: tuple[int, ...]) -> str:
    """The thesis's network for such images; the MLP for anything smaller."""
    if len(shape) != 3 or min(shape[1:]) < 16:
        return "mlp"
    return "fashion-cnn" if shape[0] == 1 else "cifar-cnn"


def run(arguments: argparse.Namespace) -> None:
    """``cfl-flare run``."""
    from cfl_flare.simulate import RunSettings, simulate

    methods_to_run = [build_named(text) for text in arguments.method or ["fedavg", "wecfl:k=3"]]
    names = [m.name + (f"-k{m.clusters}" if m.clusters else "") for m in methods_to_run]
    names = [n if names.count(n) == 1 else f"{n}-{i}" for i, n in enumerate(names)]
    source = read_source(arguments.data)
    train, test = checked(source.load(), f"data {arguments.data}")
    classes = int(max(train.y.max(), test.y.max())) + 1
    training = {
        f.name: getattr(arguments, f.name) for f in dataclasses.fields(TrainSettings) if hasattr(arguments, f.name)
    }
    partition, rule = parse_spec(arguments.partition)
    settings = RunSettings(
        source=source,
        model=read_model(arguments.model, tuple(train.x.shape[1:]), classes),
        partition={"partition": partition, **rule},
        participants=arguments.participants,
        min_samples=arguments.min_samples,
        sites=arguments.sites,
        rounds=arguments.rounds,
        sample=share_or_count(arguments.sample, "--sample"),
        min_answers=share_or_count(arguments.min_answers, "--min-answers"),
        evaluate_every=arguments.evaluate_every,
        evaluate_trained=arguments.evaluate_trained,
        task_timeout=arguments.task_timeout,
        seed=arguments.seed,
        training=from_dict(TrainSettings, training, "training"),
        loop=arguments.loop,
    )
    out = Path(arguments.out or f"cfl-runs/{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    require(not out.exists() or not any(out.iterdir()), f"--out = {str(out)!r} is not empty; name a new folder")
    runs = simulate(dict(zip(names, methods_to_run)), settings, out)
    console = Console()
    console.print(results_table(runs))
    if len(runs) > 1:
        compare(runs, out / "accuracy.png")
    console.print(f"results: {out}", soft_wrap=True)


def build_named(text: str) -> Method:
    """A method from the command line."""
    name, settings = parse_spec(text)
    return build_method({"method": name, **settings})


def methods(arguments: argparse.Namespace) -> None:
    """``cfl-flare methods``."""
    console = Console()
    for title, registry in (("methods", METHODS), ("partitions", PARTITIONS), ("data", SOURCES), ("models", MODELS)):
        table = Table(title=title, title_justify="left", show_lines=True)
        table.add_column("name", no_wrap=True)
        table.add_column("settings (default)", no_wrap=True)
        table.add_column("what it is")
        for name, cls in registry.items():
            summary = (cls.__doc__ or "").strip().splitlines()[0]
            paper = getattr(cls, "paper", None)
            table.add_row(name, _settings(cls), summary + (f"\n[dim]{paper}[/dim]" if paper else ""))
        console.print(table)


def _settings(cls: type) -> str:
    lines = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if name not in ("input_shape", "num_classes"):
            needed = parameter.default is inspect.Parameter.empty
            lines.append(f"{name} (needed)" if needed else f"{name} ({parameter.default})")
    return "\n".join(lines)


def show(arguments: argparse.Namespace) -> None:
    """``cfl-flare show``."""
    runs = find_runs(arguments.run)
    console = Console()
    console.print(results_table(runs))
    for one in runs:
        for path in draw(one):
            console.print(str(path), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
