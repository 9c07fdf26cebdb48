# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Over whose updates a server has averaged, in all its runs: a later mean must not give away those of few sites.

Two updates of a site are the same if it trained from the same model, with the same draws. So runs that start alike, and
a study's candidates, may give a single site's update by subtraction, whoever chose the sites: their clusters differ, or
a site did not answer. Means of other models are not compared: with them, a difference is none of the same updates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cfl_flare.clustering.differences import exposed
from cfl_flare.core.errors import FileError
from cfl_flare.core.files import append, json_lines, make_folder
from cfl_flare.methods import Participant, ServerState, Update
from cfl_flare.methods.state import heads
from cfl_flare.results import schema

FOLDER, SETS = "_means", "sets"


class Means:
    """The means that a server has made.

    Args:
        file: where they outlive a job, a line for each round.
        floor: the fewest sites of which a mean may follow.

    Raises:
        FileError: the file cannot be read, or is damaged.
    """

    def __init__(self, file: Path, floor: int):
        self._file, self._floor, self._sets = file, floor, set[frozenset[str]]()
        fits = schema.each(schema.each(schema.text))
        for line in json_lines(file) if file.exists() else ():
            if not fits(line.get(SETS)):
                raise FileError(f"cannot read {file}: a line does not say whose means were made; correct or remove it")
            self._sets.update(map(frozenset, line[SETS]))

    def make(
        self, before: ServerState, updates: Sequence[Update], participants: Mapping[str, Participant]
    ) -> str | None:
        """Notes a round's means, before they are made.

        Args:
            before: the state before the round.
            updates: with the means in which they count.
            participants: all of the run's.

        Returns:
            Why they must not be made: with earlier ones, a mean over too few sites would follow. None if they may.

        Raises:
            FileError: they cannot be written.
        """
        starts = {slot: _checksum(model.vector) for slot, model in before.bank.items()}
        members: dict[str, set[str]] = {}
        for update in heads(updates):
            for slot, means in (update.counts_in or {}).items():
                for mean in means:
                    members.setdefault(mean, set()).add(f"{participants[update.participant].site} {starts[slot]}")
        new = set(map(frozenset, members.values())) - self._sets
        if not new:
            return None
        linked = self._linked(new)
        groups = exposed(linked | new, self._floor) - exposed(linked, self._floor)
        if groups:
            return (
                "difference: with means that were made before from the same model, one over fewer than "
                f"{self._floor} sites would follow; wait for sites that are missing, or give the run another seed"
            )
        make_folder(self._file.parent, private=True)
        append(self._file, json.dumps({SETS: sorted(map(sorted, new))}) + "\n")
        self._sets |= new
        return None

    def _linked(self, new: set[frozenset[str]]) -> set[frozenset[str]]:
        """The sets that have members in common with new ones, or with such sets."""
        linked, reached = set[frozenset[str]](), frozenset[str]().union(*new)
        while further := {of for of in self._sets - linked if of & reached}:
            linked |= further
            reached = reached.union(*further)
        return linked


def _checksum(vector: np.ndarray) -> str:
    return hashlib.blake2b(vector.tobytes(), digest_size=8).hexdigest()
