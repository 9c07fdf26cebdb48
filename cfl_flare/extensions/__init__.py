# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Extensions: features that leave the package if their folder is deleted.

Each folder here is a package with an object `EXTENSION`. Another package adds an extension by an entry point of the
group `cfl_flare.extensions`, which names such an object. An extension changes what it wants to change by overriding
the methods and attributes of `Extension`, the hooks. It may import everything. The rest of the package imports no
extension by name: it asks this module for all of them.

This module and the ``__init__`` of an extension import nothing heavy, because each command and each site imports them.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cfl_flare.core.config import from_dict, one_line, require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.settings import check_settings
from cfl_flare.core.text import shown

if TYPE_CHECKING:
    from cfl_flare.cli.options import Parser
    from cfl_flare.engine.observers.observer import Observer
    from cfl_flare.engine.settings import ServerSettings
    from cfl_flare.results.run_dir import Run
    from cfl_flare.training.settings import TrainSettings

# Another package names its extension by an entry point of this group.
GROUP = "cfl_flare.extensions"
# The commands of the folders here, so that a message can name the extension that is not there.
COMMANDS_OF = {
    "report": ("report", "card"),
    "aftercare": ("onboard", "predict", "drift", "convert"),
}


@dataclass(frozen=True)
class Command:
    """A command of ``cfl-flare``.

    Attributes:
        module: the module with a function of the command's name, and one that adds its options:
            ``add_NAME_options``. It is imported when the command is chosen.
        help: one line.
    """

    module: str
    help: str


@dataclass(frozen=True)
class PlannedRun:
    """A run that a server is about to start.

    Attributes:
        training: how participants train, and what they measure.
        settings: the run's schedule.
    """

    training: TrainSettings
    settings: ServerSettings


class Extension:
    """A feature, as hooks that the rest of the package calls. Each hook does nothing unless it is overridden.

    Attributes:
        name: the name of the folder, or of the entry point.
        requires: names of the extensions that this one needs.
        commands: commands of ``cfl-flare``, by name.
    """

    name: ClassVar[str]
    requires: ClassVar[Sequence[str]] = ()
    commands: ClassVar[Mapping[str, Command]] = {}

    def get_settings(self) -> type | None:
        """Get the extension's settings: a frozen dataclass whose fields are made by `cfl_flare.core.settings.setting`.

        Each is an option of ``run``, ``study`` and ``export``: ``--NAME-SETTING``. In a job they are the dictionary
        ``training["extensions"][NAME]``, which server and sites read by `TrainSettings.read_extension`.

        Returns:
            The class; None without settings.
        """
        return None

    def extend_command(self, name: str, command: Parser) -> None:
        """Add options to a command of another room, or wrap its function.

        Args:
            name: of the command, such as ``show``.
            command: its parser. The default ``execute`` is the command's function of the parsed arguments.
        """

    def create_observers(self, run: PlannedRun) -> Sequence[Observer]:
        """Create the observers of a run. They come before those that write the record of a round.

        Args:
            run: the run that the server starts.

        Returns:
            The observers; see `cfl_flare.engine.observers.observer.Observer`.
        """
        return ()

    def list_answering(self) -> Sequence[type[Observer]]:
        """List the classes of observers whose questions a site answers. With dp, it answers none of them."""
        return ()

    def add_columns(self, run: Run) -> Mapping[str, str]:
        """Give a run's cells in columns of the table of results, by the column's title.

        Args:
            run: it has been read from its folder.

        Returns:
            The cells. A run without a column's cell has a dash there.
        """
        return {}

    def present_results(self, folder: Path, runs: Sequence[Run]) -> str | None:
        """Present a run or a study that has just ended, or runs beside each other. No result depends on it.

        Args:
            folder: of the run or of the study, or the one with the runs below it.
            runs: that are compared; none if the folder is of one run or study.

        Returns:
            A line that says why nothing could be presented; None if it was.
        """
        return None


@cache
def list_extensions() -> Sequence[Extension]:
    """List the extensions that are installed, each after those that it requires.

    Raises:
        ConfigError: an extension of another package cannot be imported, is none, has a name that is taken, or requires
            one that is not installed.
    """
    extensions: dict[str, Extension] = {}
    for folder in sorted(pkgutil.iter_modules(__path__)):
        if folder.ispkg:
            module = import_module(f"{__name__}.{folder.name}")
            extensions[folder.name] = module.EXTENSION
    for point in sorted(entry_points(group=GROUP)):
        where = f"extensions: {point.name} = {point.value!r}"
        try:
            extension = point.load()
        except Exception as error:
            reason = f"{where} cannot be imported ({one_line(error)})"
            hint = "hint: repair or uninstall the package that has this entry point"
            raise ConfigError(f"{reason}\n{hint}") from error
        is_named = isinstance(extension, Extension) and extension.name == point.name
        wanted = f"{where} is invalid: expected an Extension whose name is {point.name}"
        require(is_named, wanted)
        require(point.name not in extensions, f"{where} is invalid: the name is taken")
        extensions[point.name] = extension
    return sort_by_need(extensions)


def sort_by_need(extensions: Mapping[str, Extension]) -> Sequence[Extension]:
    """Sort extensions so that each one stands after those that it requires.

    Args:
        extensions: by name.

    Returns:
        The extensions, in an order that depends on these alone.

    Raises:
        ConfigError: one requires an extension that is not installed, or two require each other.
    """
    for name, extension in extensions.items():
        for other in extension.requires:
            missing = f"extensions: {name} is invalid: it requires {other}, which is not installed"
            hint = f"hint: install the extension {other}, or remove {name}"
            require(other in extensions, f"{missing}\n{hint}")
    needs = {name: extension.requires for name, extension in extensions.items()}
    try:
        ordered = [*TopologicalSorter(needs).static_order()]
    except CycleError as error:
        _, circle = error.args
        reason = f"extensions: {circle[0]} is invalid: it requires itself by {circle}"
        raise ConfigError(reason) from error
    return tuple(extensions[name] for name in ordered)


def read_settings(name: str, values: Mapping[str, Any], where: str) -> Any:
    """Read an extension's settings from a job's dictionary.

    Args:
        name: of the extension.
        values: by setting.
        where: the place in the job, for messages.

    Returns:
        The extension's dataclass of settings.

    Raises:
        ConfigError: the extension is not installed, has no settings, or a setting is invalid.
    """
    place = f"{where}: extensions"
    installed = {extension.name: extension for extension in list_extensions()}
    missing = f"{place} names {shown(name)}, which is not installed here"
    require(name in installed, f"{missing}; install the extension, or leave it out")
    settings = installed[name].get_settings()
    if settings is None:
        raise ConfigError(f"{place}: {name} has no settings; leave it out")
    instance = from_dict(settings, values, f"{place}: {name}")
    check_settings(instance, f"{place}: {name}")
    return instance


def list_commands() -> dict[str, Command]:
    """List the commands of all extensions, by name."""
    commands: dict[str, Command] = {}
    for extension in list_extensions():
        commands |= extension.commands
    return commands


def check_command(name: str) -> None:
    """Raise a ConfigError if a command is that of an extension whose folder is not here."""
    installed = {extension.name for extension in list_extensions()}
    for extension, commands in COMMANDS_OF.items():
        missing = f"the command {name} is of the extension {extension}, which is not installed here"
        hint = f"install cfl_flare with the folder extensions/{extension}"
        is_there = name not in commands or extension in installed
        require(is_there, f"{missing}; {hint}")


def present_results(folder: Path, runs: Sequence[Run] = ()) -> list[str]:
    """Let each extension present results; see `Extension.present_results`.

    Returns:
        The lines that say why something could not be presented.
    """
    remarks = []
    for extension in list_extensions():
        remark = extension.present_results(folder, runs)
        if remark is not None:
            remarks.append(remark)
    return remarks


def create_observers(run: PlannedRun) -> list[Observer]:
    """Create the observers of all extensions for a run; see `Extension.create_observers`."""
    observers: list[Observer] = []
    for extension in list_extensions():
        observers.extend(extension.create_observers(run))
    return observers


def collect_columns(run: Run) -> dict[str, str]:
    """Collect a run's cells of all extensions; see `Extension.add_columns`."""
    cells: dict[str, str] = {}
    for extension in list_extensions():
        cells |= extension.add_columns(run)
    return cells
