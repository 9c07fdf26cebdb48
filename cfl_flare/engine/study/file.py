# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A study's file on disk, from which it goes on: its settings, and what it has found so far."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfl_flare.core.config import from_dict, unmarked
from cfl_flare.core.files import atomic_write
from cfl_flare.core.text import plain
from cfl_flare.engine.study.halving import Journal, Rung, Study
from cfl_flare.results.study import STUDY, VERSION


def as_kept(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A study's settings as its file holds them."""
    settings: dict[str, Any] = json.loads(json.dumps(unmarked(facts)))
    return settings


def differing(begun: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The names of the settings in which an earlier attempt differs; empty if there are none."""
    kept = begun["settings"]
    return ", ".join(plain(key, 60) for key in sorted({*facts, *kept}) if facts.get(key) != kept.get(key))


def finished(begun: Mapping[str, Any] | None, rounds: int) -> bool:
    """Whether a study has compared candidates after all rounds, and has its verdict."""
    return begun is not None and begun["verdict"] is not None and begun["rungs"][-1]["rounds"] == rounds


def journal_of(begun: Mapping[str, Any] | None) -> Journal:
    """Where an earlier attempt was."""
    if begun is None:
        return Journal()
    rungs = [from_dict(Rung, rung, STUDY) for rung in begun["rungs"]]
    searched = begun["found"], begun["set"], begun["assignment"], begun["searched"], begun["search_seconds"]
    return Journal(*searched, rungs, words=begun["words"])


def save(folder: Path, study: Study, journal: Journal, facts: Mapping[str, Any]) -> None:
    """Writes what a study has found so far; ``facts`` are its settings, from `as_kept`. A FileError if it cannot."""
    rounds = study.trainer.rounds
    titles = {candidate.name: candidate.entrant.title for candidate in study.candidates}
    content = {"version": VERSION, "settings": facts, "rounds": rounds, "titles": titles, **journal.to_dict(rounds)}
    atomic_write(folder / STUDY, json.dumps(content, indent=1))
