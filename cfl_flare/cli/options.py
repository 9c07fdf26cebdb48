# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Options of commands: made from settings, shown by what matters first, read from a file and written to one."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cfl_flare.core.config import one_line, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.files import atomic_write, read_text
from cfl_flare.core.settings import Setting, settings_of
from cfl_flare.core.text import plain
from cfl_flare.extensions import Extension, list_extensions

if TYPE_CHECKING:
    from rich.console import Console

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# What a real site reads, unless the job says otherwise.
SITE_DATA = "site"
# What ``run``, ``study`` and ``partition`` simulate, unless the data has owners.
SIMULATED: dict[str, Any] = {
    "participants": 24,
    "partition": "label_permutation:groups=3",
}
# What their help names as the defaults, which depend on the data.
SIMULATED_AS = {
    **SIMULATED,
    "partition": "natural by owner, else iid, or groups of public data",
}
# How ``run`` and ``study`` train and measure; what is None follows from the task, see `cfl_flare.cli.specs`.
TRAINED: dict[str, Any] = {
    "lr": 0.05,
    "bootstrap": None,
    "measures": None,
    "score_bins": None,
}
TRAINED_AS = {
    "bootstrap": "200, or 50 of survival times and masks",
    "score_bins": "200 with two classes",
}
TRAINED_AS |= {"measures": "supported_f1; with two classes auroc, ece, brier"}

# What ``--help`` shows of the commands that have ``--help-all``: the options that a first day needs.
FIRST_DAY = (
    *("help", "help_all", "config", "out", "job", "name"),
    *("method", "penalty", "model", "data", "partition", "participants"),
    *(
        "num_rounds",
        "seed",
        "sites",
        "min_clients",
        "loop",
        "device",
        "train_script",
        "minutes",
    ),
    *("lr", "optimizer", "batch_size", "local_steps", "local_epochs", "task"),
)
# The concerns of a plan that are options of how a job is run.
OF_JOB = ("server", "site", "job", "controller", "executor")
RENAMED = {"num_rounds": "--rounds"}
# The settings file that each run leaves. It does not say where results go.
CONFIG = "run.toml"
OUTPUTS = ("out", "job")
NOT_IN_FILE = ("help", "help_all", "config", "penalty")
# There, ``method + penalty + penalty`` is a method with its penalties.
PLUS = " + "
NONE = "none"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and that calls ``load`` for its options when its command is chosen."""

    def __init__(
        self, *, load: Callable[[Parser], None] | None = None, **settings: Any
    ):
        super().__init__(**settings)
        self._load = load

    def load(self) -> None:
        if self._load is not None:
            load, self._load = self._load, None
            load(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.load()
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = self.name_command(sys.argv[1:] if args is None else args)
            raise ConfigError(
                f"unrecognized arguments: {' '.join(unknown)}; run '{command} --help' for the options"
            )
        return arguments

    def name_command(self, words: Sequence[str]) -> str:
        """Name the command that some words begin with, such as ``cfl-flare site runs``.

        Args:
            words: the arguments of the program.

        Returns:
            the program and the command, without options.
        """
        begun = " ".join(words) + " "
        found = [name for name in self.commands() if begun.startswith(f"{name} ")]
        return " ".join([self.prog, *found])

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; run '{self.prog} --help' for the options")

    def commands(self) -> dict[str, Parser]:
        """Each command below this one that has options of its own, by its words."""
        self.load()
        inner = [
            a.choices
            for a in self._actions
            if isinstance(a, argparse._SubParsersAction)
        ]
        leaves: dict[str, Parser] = {}
        for name, command in (item for choices in inner for item in choices.items()):
            below = command.commands()
            leaves |= {f"{name} {words}": leaf for words, leaf in below.items()} or {
                name: command
            }
        return leaves

    def full_help(self) -> str:
        """The help with all options, not just those of `FIRST_DAY`."""
        self.load()
        if self.formatter_class is FirstDayHelp:
            self.formatter_class = argparse.RawDescriptionHelpFormatter
        return self.format_help()


class FirstDayHelp(argparse.RawDescriptionHelpFormatter):
    """Help with the options of `FIRST_DAY` alone."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=20)

    def add_argument(self, action: argparse.Action) -> None:
        if action.dest in FIRST_DAY:
            super().add_argument(action)

    def _expand_help(self, action: argparse.Action) -> str:
        """The first clause of a help, and the default."""
        first, *others = str(super()._expand_help(action)).split("; ")
        default = re.search(r"default: .*|\([^()]*\)$", "; ".join(others))
        if default is None:
            return first
        return first + (" " if default[0].startswith("(") else "; ") + default[0]


class ShowAll(argparse.Action):
    """``--help-all``."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option: str | None = None
    ) -> None:
        print(parser.full_help(), end="")
        parser.exit()


class AddMethod(argparse.Action):
    """Collects methods, each with the penalties that come after it: ``[(method, [penalty, ...]), ...]``."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option: str | None = None
    ) -> None:
        earlier = [] if namespace.method is self.default else namespace.method
        namespace.method = [*earlier, (values, [])]


class AddPenalty(argparse.Action):
    """Adds a penalty to the last method."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option: str | None = None
    ) -> None:
        if namespace.method is parser.get_default("method"):
            raise ConfigError(
                f"--penalty {values}: there is no --method before it to add it to"
            )
        namespace.method[-1][1].append(values)


def explain(command: Parser, description: str | None = None, epilog: str = "") -> None:
    """Gives a command with many settings its two pages of help, and ``--config``."""
    command.description, command.formatter_class = description, FirstDayHelp
    command.usage = "%(prog)s [options]"
    command.set_defaults(parser=command)
    command.epilog = (
        f"{epilog}Each option may be a line in the file of --config, as: rounds = 20"
    )
    command.add_argument(
        "--help-all",
        action=ShowAll,
        nargs=0,
        help="show the options for later days, too",
    )
    command.add_argument(
        "--config",
        metavar="TOML",
        help=f"read settings from a file, such as a run's {CONFIG}",
    )


def add_method(group: Any, often: str, default: Sequence[str] = ()) -> None:
    methods: list[tuple[str, list[str]]] = [(method, []) for method in default]
    group.add_argument(
        "--method", action=AddMethod, default=methods or None, metavar="M", help=often
    )
    text = "added to the --method before it; several may be given"
    group.add_argument("--penalty", action=AddPenalty, metavar="P", help=text)
    group.add_argument(
        "--model", metavar="NET", help="default: one that suits the data"
    )


def add_data(
    group: Any, default: str | None, of_whom: str = "", shown: str | None = None
) -> None:
    text = f"{of_whom}a name, a MedMNIST-layout .npz file, or package.Class ({shown or default})"
    group.add_argument("--data", default=default, metavar="D", help=text)


def add_settings(
    group: Any,
    *classes: type,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    derived: Mapping[str, Any] | None = None,
    optional: bool = False,
    **defaults: Any,
) -> None:
    """Adds an option for each setting of dataclasses to a group.

    Args:
        without: settings that get no option.
        only: if any, the only settings that get an option.
        derived: defaults that the command takes once it knows the data, as the help names them.
        optional: an option that is not given leaves no value, so that the command can tell.
        **defaults: defaults that differ on the command line.
    """
    for name, known in settings_of(*classes).items():
        if name in without or (only and name not in only):
            continue
        default = defaults.get(name, known.default)
        shown = (derived or {}).get(name, default)
        text = known.help + (
            "" if shown is False or shown in (None, "", ()) else f" ({shown})"
        )
        option = RENAMED.get(name, "--" + name.replace("_", "-"))
        default = argparse.SUPPRESS if optional else default
        action = group.add_argument(option, dest=name, default=default, **_read(known))
        action.help = text  # some versions of argparse would add the default of an option with --no-...


def add_extension_settings(group: Any) -> None:
    """Add an option ``--NAME-SETTING`` for each setting of each extension to a group."""
    for extension in list_extensions():
        for name, known in list_extension_settings(extension).items():
            option = f"--{extension.name}-{name}".replace("_", "-")
            dest = f"{extension.name}_{name}"
            read = _read(known)
            action = group.add_argument(
                option, dest=dest, default=known.default, **read
            )
            action.help = f"{known.help} ({known.default})"


def list_extension_settings(extension: Extension) -> dict[str, Setting]:
    """List an extension's settings by name; none if it has no class of settings."""
    settings = extension.get_settings()
    return {} if settings is None else settings_of(settings)


def given_to_extensions(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Collect the extensions' settings that differ from their defaults, by extension and name."""
    values: dict[str, dict[str, Any]] = {}
    for extension in list_extensions():
        for name, known in list_extension_settings(extension).items():
            value = getattr(arguments, f"{extension.name}_{name}", known.default)
            if value != known.default:
                values.setdefault(extension.name, {})[name] = value
    return values


def _read(known: Setting) -> dict[str, Any]:
    options = set(typing.get_args(known.type) or (known.type,))
    kinds = options - {type(None)}
    if known.choices:
        return {"choices": known.choices}
    if kinds == {bool}:
        return {
            "action": "store_true"
            if known.default is False
            else argparse.BooleanOptionalAction
        }
    if kinds == {int, float}:
        return {"type": share_or_count, "metavar": "S"}
    several = {"nargs": "+"} if typing.get_origin(known.type) is tuple else {}
    if int in kinds:
        return {"type": int, "metavar": "N", **several}
    if kinds == {float}:
        return {
            "type": float
            if kinds == options or known.default is None
            else number_or_none,
            "metavar": "X",
        }
    return {"metavar": "TEXT", **several}


def share_or_count(text: str) -> float | int:
    """``"0.25"`` is a share, ``"25"`` a count."""
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} should be a share like 0.25 or a count like 25"
        ) from error


def number_or_none(text: str) -> float | None:
    """A number, or None for ``none``, which switches off what has a number by default."""
    try:
        return None if text.lower() == NONE else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} should be a number, or {NONE}"
        ) from error


def say(console: Console, *lines: object, style: str | None = None) -> None:
    """Prints lines of any length, in which nothing is a command for the terminal."""
    for line in lines:
        console.print(plain(str(line), 5000), style=style, soft_wrap=True, markup=False)


def given(arguments: argparse.Namespace, *classes: type) -> dict[str, Any]:
    """The values of those dataclasses' settings that the command has options for."""
    return {
        name: getattr(arguments, name)
        for name in settings_of(*classes)
        if hasattr(arguments, name)
    }


def with_config(parser: Parser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a command line. What it does not say is taken from the file that ``--config`` names."""
    arguments: argparse.Namespace = parser.parse_args(argv)
    if getattr(arguments, "config", None) is not None:
        arguments.parser.set_defaults(**read_config(arguments.config, arguments.parser))
        arguments = parser.parse_args(argv)
    return arguments


def read_config(path: str, command: Parser) -> dict[str, Any]:
    """The values in a settings file, by the options' destinations.

    A ConfigError says that it is not TOML, or names a setting twice, or one that the command does not have.
    """
    try:
        table = tomllib.loads(read_text(Path(path)))
    except ValueError as error:
        raise ConfigError(
            f"{path}: {one_line(error)}; write a line like rounds = 20, and text in quotes"
        ) from error
    actions: dict[str, argparse.Action] = {}
    for action in command._actions:
        if action.option_strings and action.dest not in NOT_IN_FILE:
            actions |= {action.dest: action, _key(action): action}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in actions:
            close = difflib.get_close_matches(name, actions)
            advice = (
                f"did you mean {' or '.join(close)}?"
                if close
                else f"'{command.prog} --help-all' shows all"
            )
            advice = (
                "a method has its penalties: method = ['ifca:k=3 + proximal']"
                if name == "penalty"
                else advice
            )
            raise ConfigError(f"{path}: unknown setting {key!r} = {value!r}; {advice}")
        action = actions[name]
        require(
            action.dest not in values,
            f"{path}: {key} = {value!r} is set twice; leave one out",
        )
        values[action.dest] = _value(action, value, f"{path}: {key}")
    return values


def _value(action: argparse.Action, value: Any, where: str) -> Any:
    """A value of a settings file, as argparse reads it from the command line. Its bounds are checked later."""
    if action.nargs == 0:
        require(isinstance(value, bool), f"{where} = {value!r} should be true or false")
        return value
    several = action.nargs == "+" or isinstance(action, AddMethod)
    values = value if several and isinstance(value, list) else [value]
    convert: Any = action.type or _text
    try:
        values = [
            convert(item if action.type is None else str(item)) for item in values
        ]
    except (ValueError, argparse.ArgumentTypeError) as error:
        wanted = (
            "text"
            if action.type is None
            else "a whole number"
            if action.type is int
            else "a number"
        )
        raise ConfigError(
            f"{where} = {value!r} should be {wanted}{', or a list of such' * several}"
        ) from error
    if isinstance(action, AddMethod):
        require(bool(values), f"{where} = [] should be a method, or a list of methods")
        return [split_method(text) for text in values]
    return values if several else values[0]


def split_method(text: str) -> tuple[str, list[str]]:
    """A method and its penalties.

    >>> split_method("wecfl:k=3 + contrastive:mu=0.5")
    ('wecfl:k=3', ['contrastive:mu=0.5'])
    """
    method, *penalties = text.split(PLUS)
    return method, penalties


def _text(value: Any) -> str:
    """Text as it is; raises a ValueError for anything else, as ``int`` and ``float`` do."""
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def write_config(arguments: argparse.Namespace, path: Path) -> None:
    """Writes the settings file with which a command can be repeated."""
    command: Parser = arguments.parser
    lines = [
        f"# To repeat this: {command.prog} --config {path.name}",
        "# An option on the command line wins.",
    ]
    for group in command._action_groups:
        written = [
            line
            for action in group._group_actions
            if (line := _line(action, arguments))
        ]
        lines += ["", f"# {group.title}", *written] if written else []
    atomic_write(path, ("\n".join(lines) + "\n").encode(errors="surrogateescape"))


def _line(action: argparse.Action, arguments: argparse.Namespace) -> str:
    """The line of an option; empty if the option has no value to repeat."""
    value = getattr(arguments, action.dest, None)
    if (
        value is None
        and action.type is number_or_none
        and hasattr(arguments, action.dest)
    ):
        value = NONE
    if value is None or action.dest in (*NOT_IN_FILE, *OUTPUTS):
        return ""
    if isinstance(action, AddMethod):
        value = [PLUS.join([method, *penalties]) for method, penalties in value]
    return f"{_key(action)} = {json.dumps(value, ensure_ascii=False)}".replace(
        "\x7f", "\\u007f"
    )


def _key(action: argparse.Action) -> str:
    return action.option_strings[0].removeprefix("--").replace("-", "_")
