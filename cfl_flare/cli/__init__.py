# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command ``cfl-flare``. It imports the module of a command when the command is chosen: torch takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module

from cfl_flare.cli.options import Parser, with_config
from cfl_flare.core import __version__
from cfl_flare.core.config import one_line
from cfl_flare.core.errors import CFLError, RunFailedError, UnfitError
from cfl_flare.core.files import explained
from cfl_flare.core.signals import StoppedError
from cfl_flare.core.text import plain
from cfl_flare.extensions import (
    Command,
    check_command,
    list_commands,
    list_extensions,
)

# Each command's module, which has a function of its name and one that adds its options; and its line of help.
COMMANDS = {
    "run": ("run", "run methods on simulated participants, through FLARE's simulator"),
    "study": (
        "study",
        "find out whether to cluster, into how many groups, and who gains",
    ),
    "export": ("export", "write a FLARE job for real sites, without running it"),
    "methods": (
        "show",
        "list methods, penalties, partitions, data and models with their settings",
    ),
    "partition": (
        "run",
        "deal a data set out and report who gets what, without training",
    ),
    "show": ("show", "print a run's table again"),
    "site": ("site", "for the operator of a site: prepare its kit, check its data"),
    "columns": ("site_columns", "put together what all sites' tables have, for a job"),
    "templates": ("export", "write FLARE's job templates, for 'nvflare job create'"),
}


def parser() -> Parser:
    top = Parser(
        prog="cfl-flare", description="Clustered federated learning for NVIDIA FLARE."
    )
    top.add_argument("--version", action="version", version=f"cfl-flare {__version__}")
    commands = top.add_subparsers(dest="subcommand", metavar="command", required=True)
    for name, known in list_all_commands().items():
        load = partial(_load, name, known.module)
        commands.add_parser(name, help=known.help, load=load)
    return top


def list_all_commands() -> dict[str, Command]:
    """List the commands of the package and of its extensions, by name, in the order of the help."""
    commands = {
        name: Command(f"cfl_flare.cli.{module}", text)
        for name, (module, text) in COMMANDS.items()
    }
    return {**commands, **list_commands()}


def _load(name: str, module: str, command: Parser) -> None:
    commands = import_module(module)
    getattr(commands, f"add_{name}_options")(command)
    command.set_defaults(execute=getattr(commands, name))
    for extension in list_extensions():
        extension.extend_command(name, command)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; bad input is one line on stderr and exit status 2."""
    try:
        words = sys.argv[1:] if argv is None else argv
        if words:
            check_command(words[0])
        arguments = with_config(parser(), argv)
        arguments.execute(arguments)
    except CFLError as error:
        return _failed(
            str(error), 1 if isinstance(error, (RunFailedError, UnfitError)) else 2
        )
    except OSError as error:
        return _failed(explained(error), 2)
    except (MemoryError, RecursionError) as error:
        return _failed(
            f"{one_line(error)}; what it was given is too large for this machine", 2
        )
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except StoppedError as stop:
        return _failed(f"stopped by {stop.name}", stop.status)
    return 0


def _failed(reason: str, status: int) -> int:
    """Prints why a command failed, in one line that a terminal cannot take for a command; returns its exit status."""
    with suppress(OSError):  # the terminal may be closed
        print("cfl-flare:", plain(reason, 2000), file=sys.stderr, flush=True)
    return status
