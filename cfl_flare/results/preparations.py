# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How the participants of a simulation filled up and scaled their tables: kept in the run's folder, to predict with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.core.files import atomic_write, read_json
from cfl_flare.core.text import shown
from cfl_flare.data import ParticipantData
from cfl_flare.data.columns import Columns
from cfl_flare.data.preparation import Preparation

PREPARATIONS = "preparations.json"


def save_preparations(folder: Path, people: Iterable[ParticipantData]) -> None:
    """Writes those of a simulation's participants; nothing if its data is no table.

    Raises:
        FileError: it cannot be written.
    """
    fitted = {one.name: one.preparation for one in people if one.preparation is not None}
    if not fitted:
        return
    columns = next(iter(fitted.values())).columns.to_dict()
    own = {name: {k: v for k, v in one.to_dict().items() if k != "columns"} for name, one in fitted.items()}
    atomic_write(folder / PREPARATIONS, json.dumps({"columns": columns, "participants": own}))


def columns_of(folder: Path) -> Columns | None:
    """What the columns of a run's tables mean; None if it kept none.

    Raises:
        ConfigError: the file is damaged.
    """
    content = _read(folder)
    return None if content is None else Columns.of(content.get("columns") or {}, str(folder / PREPARATIONS))


def preparation_of(folder: Path, participant: str | None) -> Preparation:
    """How a participant of a run filled up and scaled its table.

    Args:
        folder: the run's.
        participant: its name; None if the run has only one.

    Raises:
        ConfigError: the run kept none, or none of this name, or the file is damaged.
    """
    content, where = _read(folder), str(folder / PREPARATIONS)
    if content is None:
        raise ConfigError(
            f"predict: {folder} does not say how a table was filled up and scaled; use the model that the site itself "
            "keeps in served/, or a simulation's folder"
        )
    people: Any = content.get("participants")
    require(isinstance(people, dict), f"{where}: has no participants; copy it again from its run")
    name = next(iter(people)) if participant is None and len(people) == 1 else participant
    require(
        name in people,
        f"predict: whose table is it? --participant {shown(participant)} is none of the run's {len(people)}, such as "
        f"{', '.join(shown(one) for one in list(people)[:3])}; each filled up and scaled its own",
    )
    own = people[name]
    require(isinstance(own, dict), f"{where}: {shown(name)} is damaged; copy it again from its run")
    return Preparation.of({**own, "columns": content.get("columns")}, where)


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / PREPARATIONS
    if not path.is_file():
        return None
    try:
        content = read_json(path)
    except FileError as error:
        raise ConfigError(str(error)) from error
    require(isinstance(content, dict), f"{path}: holds no preparations; copy it again from its run")
    return dict(content)
