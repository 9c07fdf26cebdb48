# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``card``: a model card for each model that a run leaves."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from cfl_flare.cli.options import Parser, say
from cfl_flare.core.config import check_run_name, one_line, require
from cfl_flare.core.errors import CFLError, ConfigError
from cfl_flare.core.files import atomic_write, make_folder
from cfl_flare.data.columns import Columns
from cfl_flare.extensions.report.card import (
    build_card,
    compare_candidates,
    compare_runs,
    render_card,
)
from cfl_flare.extensions.report.vega import as_json
from cfl_flare.results.run_dir import MODELS, SUMMARY, Run, find_runs, load_run
from cfl_flare.results.served import columns_of
from cfl_flare.results.study import STUDY, find_study, load_study

# In a run's folder, with a folder for each model.
CARDS, CARD = "cards", "MODEL_CARD.md"


def add_card_options(command: Parser) -> None:
    command.add_argument(
        "run", help="folder of a run, of a study, or one with several runs below it"
    )
    agreed = "the columns.json that the sites agreed on; default: the columns in the folder of a simulation"
    command.add_argument("--columns", metavar="JSON", help=agreed)


def card(arguments: argparse.Namespace) -> None:
    """Write the cards. All of them are made before the first one is written."""
    columns = Columns.read(Path(arguments.columns)) if arguments.columns else None
    cards = {}
    for run, comparison in find_compared(Path(arguments.run)):
        for path in sorted((run.folder / MODELS).glob("*.safetensors")):
            folder = run.folder / CARDS / path.stem
            require(
                not (folder / CARD).exists(),
                f"{folder / CARD} is there, perhaps with your changes; move it away",
            )
            cards[folder] = make_card(
                run, path.stem, comparison, columns or columns_of(run.folder)
            )
    lacking = f"{arguments.run} holds no model that participants share; name a run of another method, such as fedavg"
    require(bool(cards), lacking)
    for folder, content in cards.items():
        make_folder(folder)
        for name, text in content.items():
            atomic_write(folder / name, text)
        say(Console(), folder / CARD)


def find_compared(folder: Path) -> list[tuple[Run, Any]]:
    """Find the runs in a folder or below it, each with what it is compared with; of a study the chosen candidate's."""
    study_folder = find_study(folder)
    if study_folder is None:
        return [(run, compare_runs(run, list_beside(run))) for run in find_runs(folder)]
    study = load_study(study_folder)
    unfinished = f"{study_folder} holds a study without a verdict; start it again, and it goes on"
    require(study["verdict"] is not None, unfinished)
    name = study["verdict"]["chosen"]["name"]
    check_run_name(name, f"{study_folder / STUDY}: chosen")
    run = load_run(study_folder / name)
    return [
        (
            replace(run, summary={**study["settings"], **run.summary}),
            compare_candidates(study),
        )
    ]


def list_beside(run: Run) -> list[Run]:
    """List the runs of the same command or job, which lie in one folder."""
    summaries = sorted(run.folder.resolve().parent.glob(f"*/{SUMMARY}"))
    return [load_run(path.parent) for path in summaries]


def make_card(
    run: Run, slot: str, comparison: Any, columns: Columns | None
) -> dict[str, str]:
    """Make the content of a card's two files, with one error for anything in a foreign file that no card can show."""
    try:
        facts = json.loads(as_json(build_card(run, slot, comparison, columns)))
        return {
            "card.json": json.dumps(facts, indent=1) + "\n",
            CARD: render_card(facts),
        }
    except CFLError:
        raise
    except Exception as error:
        reason = f"{run.folder}: no card can be made of these files ({one_line(error)})"
        raise ConfigError(
            f"{reason}; copy them again from the machine of the run"
        ) from error
