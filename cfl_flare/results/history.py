# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a site keeps of a run for its own operator: a line for each of its participants and rounds. It is never sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cfl_flare.core.files import append, make_folder
from cfl_flare.results import schema
from cfl_flare.results.run_dir import cut_lines, read_lines

# In the site's folder of the run, below its state root.
HISTORY = "history.jsonl"


@dataclass(frozen=True)
class Note:
    """What a participant did in a round.

    Attributes:
        round: from 0; what was measured is of the model after so many rounds.
        participant: its name.
        models: the names of the models that it was sent.
        trained: whether it sent an update.
        failed: the code of its failure; None if it did not fail.
        metrics: what was measured on its own test split.
        last: whether it was the run's last exchange, which measures the final models.
    """

    round: int
    participant: str
    models: Sequence[str]
    trained: bool
    failed: str | None
    metrics: Mapping[str, float]
    last: bool = False


FIELDS: dict[str, schema.Fits] = {
    "round": schema.whole,
    "participant": schema.text,
    "models": schema.each(schema.text),
    "trained": schema.flag,
    "failed": schema.maybe(schema.text),
    "metrics": schema.named(schema.number),
    "last": schema.flag,
}


def keep_notes(folder: Path, number: int, notes: Sequence[Note], first: bool) -> None:
    """Appends a round.

    Args:
        folder: the site's, of the run.
        number: the round's.
        notes: of each participant.
        first: whether it is the process's first round: what an earlier attempt wrote of this and later ones goes.

    Raises:
        FileError: it cannot be written.
    """
    make_folder(folder)
    if first:
        cut_lines(folder / HISTORY, number)
    append(folder / HISTORY, "".join(json.dumps(asdict(note)) + "\n" for note in notes))


def read_notes(folder: Path) -> list[Note]:
    """The lines of a site's history.

    Raises:
        FileError: it is damaged or another program's.
    """
    lines = [schema.checked(line, str(folder / HISTORY), FIELDS) for line in read_lines(folder / HISTORY)]
    return [Note(**{name: line[name] for name in FIELDS}) for line in lines]
