# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The means that a server has made in all its jobs: no later mean may give away the updates of few sites."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cfl_flare.core.errors import FileError
from cfl_flare.core.files import append, json_lines, make_folder
from cfl_flare.core.params import Params
from cfl_flare.core.shares import exposed
from cfl_flare.methods import Participant, ServerState, Update
from cfl_flare.methods.state import read_heads
from cfl_flare.results import schema

# The folder below a server's state root with the means that it made.
MEANS_FOLDER = "_means"
# What a line of a file there holds. By array, the digest of the array's start in each slot. And by mean, the members:
# each a site, and the slot from which it trained.
STARTS, SETS = "starts", "sets"
# The members of a mean of one array: each a site, and the array's start.
Members = frozenset[str]
# By array, by slot.
Starts = Mapping[str, Mapping[str, str]]


class Means:
    """The members of all means that a server has made.

    Two updates of a site are the same if the site trained from the same model, with the same draws. So runs that start
    alike, and a study's candidates, may give a single site's update by subtraction, whoever chose the sites: their
    clusters differ, or a site did not answer.

    Members are compared array by array: jobs that send different parts of one model share the arrays that both send.
    Means of arrays with different starts are not compared: with them, a difference is none of the same updates.

    Args:
        file: where they outlive a job, a line for each round.
        floor: the fewest sites of which a mean may follow.

    Raises:
        FileError: the file cannot be read, or is damaged.
    """

    def __init__(self, file: Path, floor: int):
        self._file, self._floor = file, floor
        self._means: dict[str, set[Members]] = {}
        # By array, its starts, numbered as they came: arrays of one history have equal sets, which are checked once.
        self._numbers: dict[str, dict[str, int]] = {}
        are_starts = schema.dict_of(schema.dict_of(schema.text))
        are_sets = schema.list_of(schema.list_of(schema.row(schema.text, schema.text)))
        for line in json_lines(file) if file.exists() else ():
            if not are_starts(line.get(STARTS)) or not are_sets(line.get(SETS)):
                raise FileError(
                    f"cannot read {file}: a line does not say whose means were made; correct or remove it"
                )
            for array, members in self._members_by_array(
                line[STARTS], line[SETS]
            ).items():
                self._means.setdefault(array, set()).update(members)

    def make(
        self,
        before: ServerState,
        updates: Sequence[Update],
        participants: Mapping[str, Participant],
        complete: Callable[[Params], Params] | None = None,
    ) -> str | None:
        """Notes a round's means, before they are made, by the means in which its updates count.

        Args:
            before: the state with the models from which the participants trained.
            updates: of the round.
            participants: by name.
            complete: adds the private layers of the run's start to a model; None if there are none.

        Returns:
            Why they must not be made: with earlier ones, a mean over too few sites would follow. None if they may.
        """
        sets = _members_of_means(updates, participants)
        starts = _digest_starts(before, _find_moved(before, updates), complete)
        new = {}
        for array, members in self._members_by_array(starts, sets).items():
            unknown = members - self._means.get(array, set())
            if unknown:
                new[array] = unknown
        if not new:
            return None
        if self._expose_few(new):
            return (
                "difference: with means that were made before from the same model, one over fewer than "
                f"{self._floor} sites would follow; wait for sites that are missing, or give the run another seed"
            )
        make_folder(self._file.parent, private=True)
        append(self._file, json.dumps({STARTS: starts, SETS: sets}) + "\n")
        for array, unknown in new.items():
            self._means.setdefault(array, set()).update(unknown)
        return None

    def _members_by_array(
        self, starts: Starts, sets: Iterable[Iterable[Sequence[str]]]
    ) -> dict[str, set[Members]]:
        """The members of the means of each array: each a site, and the number of the array's start."""
        by_array = {}
        for array, by_slot in starts.items():
            numbers = self._numbers.setdefault(array, {})
            for digest in by_slot.values():
                numbers.setdefault(digest, len(numbers))
            means = set()
            for members in sets:
                named = [
                    f"{site} {numbers[by_slot[slot]]}"
                    for site, slot in members
                    if slot in by_slot
                ]
                if named:
                    means.add(frozenset(named))
            by_array[array] = means
        return by_array

    def _expose_few(self, new: Mapping[str, set[Members]]) -> bool:
        """Whether with new means of some array, a mean over too few sites would follow."""
        checked = set()
        for array, means in new.items():
            linked = frozenset(self._link(array, means))
            case = (linked, frozenset(means))
            if case in checked:
                continue
            checked.add(case)
            if exposed(linked | means, self._floor) - exposed(linked, self._floor):
                return True
        return False

    def _link(self, array: str, new: set[Members]) -> set[Members]:
        """The means of an array that have members in common with new ones, or with such means."""
        linked: set[Members] = set()
        reached = frozenset[str]().union(*new)
        while further := {
            members
            for members in self._means.get(array, set()) - linked
            if members & reached
        }:
            linked |= further
            reached = reached.union(*further)
        return linked


def _members_of_means(
    updates: Sequence[Update], participants: Mapping[str, Participant]
) -> list[list[list[str]]]:
    """The members of each of a round's means: each a site, and the slot from which it trained."""
    members: dict[str, set[tuple[str, str]]] = {}
    for update in read_heads(updates):
        site = participants[update.participant].site
        for slot, (mean, _) in (update.counts_in or {}).items():
            members.setdefault(mean, set()).add((site, slot))
    return sorted(
        [list(member) for member in sorted(of_mean)] for of_mean in members.values()
    )


def _find_moved(before: ServerState, updates: Iterable[Update]) -> dict[str, set[str]]:
    """By slot, the arrays that some update moves: a mean of an array that nobody trains reveals nothing.

    Updates may be on disk. They are read until each array of each slot has moved.
    """
    waiting = {
        slot: {entry.name for entry in model.layout.entries}
        for slot, model in before.bank.items()
    }
    moved: dict[str, set[str]] = {slot: set() for slot in waiting}
    for update in updates:
        for slot, diff in update.diffs.items():
            if slot not in waiting:
                continue
            names = {
                name
                for name, array in diff.arrays().items()
                if name in waiting[slot] and array.any()
            }
            moved[slot] |= names
            waiting[slot] -= names
        if not any(waiting.values()):
            break
    return moved


def _digest_starts(
    before: ServerState,
    moved: Mapping[str, set[str]],
    complete: Callable[[Params], Params] | None,
) -> dict[str, dict[str, str]]:
    """By array and slot, a digest of the start from which participants moved the array.

    An array whose numbers are all the same, such as a bias of zeros, starts so in any model. So its digest is of the
    whole model, with its private layers.
    """
    starts: dict[str, dict[str, str]] = {}
    for slot, model in before.bank.items():
        if not moved[slot]:
            continue
        whole = _digest((model if complete is None else complete(model)).vector)
        for name, array in model.arrays().items():
            if name in moved[slot]:
                varies = array.size > 0 and bool((array != array.flat[0]).any())
                starts.setdefault(name, {})[slot] = _digest(array) if varies else whole
    return starts


def _digest(array: Any) -> str:
    return hashlib.blake2b(
        np.ascontiguousarray(array).tobytes(), digest_size=8
    ).hexdigest()
