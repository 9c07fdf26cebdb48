# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The members of all means that a server has made: a later mean must not give away the updates of few sites.

Two updates of a site are the same if it trained from the same model, with the same draws. So runs that start alike, and
a study's candidates, may give a single site's update by subtraction, whoever chose the sites: their clusters differ, or
a site did not answer. Means of other models are not compared: with them, a difference is none of the same updates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cfl_flare.clustering.differences import exposed
from cfl_flare.core.errors import FileError
from cfl_flare.core.files import append, json_lines, make_folder
from cfl_flare.methods import Participant, ServerState, Update
from cfl_flare.methods.state import heads, shares_in
from cfl_flare.results import schema

FOLDER, SETS = "_means", "sets"
# The members of a mean, each with its share.
Members = frozenset[tuple[str, float]]


class Means:
    """The means that a server has made.

    Args:
        file: where they outlive a job, a line for each round.
        floor: the fewest sites of which a mean may follow.

    Raises:
        FileError: the file cannot be read, or is damaged.
    """

    def __init__(self, file: Path, floor: int):
        self._file, self._floor, self._means = file, floor, set[Members]()
        names, shares = schema.list_of(schema.text), schema.dict_of(schema.number)
        valid = schema.list_of(lambda of: names(of) or shares(of))
        for line in json_lines(file) if file.exists() else ():
            if not valid(line.get(SETS)):
                raise FileError(f"cannot read {file}: a line does not say whose means were made; correct or remove it")
            for of in line[SETS]:
                self._means.add(frozenset((of if isinstance(of, dict) else dict.fromkeys(of, 1.0)).items()))

    def make(
        self, before: ServerState, updates: Sequence[Update], participants: Mapping[str, Participant]
    ) -> str | None:
        """Notes a round's means, before they are made, by the means in which its updates count.

        Returns:
            Why they must not be made: with earlier ones, a mean over too few sites would follow. None if they may.

        Raises:
            FileError: they cannot be written.
        """
        starts = {s: hashlib.blake2b(m.vector.tobytes(), digest_size=8).hexdigest() for s, m in before.bank.items()}
        members: dict[str, dict[str, float]] = {}
        for update in heads(updates):
            for slot, shares in shares_in(update.counts_in or {}).items():
                member = f"{participants[update.participant].site} {starts[slot]}"
                for mean, share in shares.items():
                    of = members.setdefault(mean, {})
                    of[member] = min(1.0, of.get(member, 0.0) + share)
        new = {frozenset(of.items()) for of in members.values()} - self._means
        if not new:
            return None
        linked = self._linked(new)
        earlier, all_means = ([dict(of) for of in means] for means in (linked, linked | new))
        groups = exposed(all_means, self._floor) - exposed(earlier, self._floor)
        if groups:
            return (
                "difference: with means that were made before from the same model, one over fewer than "
                f"{self._floor} sites would follow; wait for sites that are missing, or give the run another seed"
            )
        make_folder(self._file.parent, private=True)
        append(self._file, json.dumps({SETS: list(map(_as_json, sorted(new, key=sorted)))}) + "\n")
        self._means |= new
        return None

    def _linked(self, new: set[Members]) -> set[Members]:
        """The means that have members in common with new ones, or with such means."""
        linked, reached = set[Members](), {name for of in new for name, _ in of}
        while further := {of for of in self._means - linked if any(name in reached for name, _ in of)}:
            linked |= further
            reached |= {name for of in further for name, _ in of}
        return linked


def _as_json(members: Members) -> list[str] | dict[str, float]:
    """The names alone, if all shares are 1."""
    shares = dict(sorted(members))
    return list(shares) if set(shares.values()) == {1.0} else shares
