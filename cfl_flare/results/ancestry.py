# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The runs in which a model was trained, from the first one on: what the model is allowed follows from all of them.

A run that starts from untrained models has one ancestor, itself. A resumed run also has the ancestors of its
checkpoint. A run with ``initial_ckpt`` also has the ancestors that the file names. A file without ancestors, such as
one of another program, counts as one unknown ancestor without differential privacy.

Checkpoints, a run's summary and each model's file carry the same list. `to_list` writes it, and `Ancestry.of` reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from cfl_flare.core.config import unmarked
from cfl_flare.core.errors import FileError
from cfl_flare.results import schema

# In a run's summary, in the settings of its checkpoints, and in the metadata of a model's file.
ANCESTRY = "ancestry"


@dataclass(frozen=True)
class Ancestor:
    """One run in which a model was trained.

    Attributes:
        known: False if nobody knows how it trained, as in another program.
        dp: ``{"epsilon", "delta"}``; None without differential privacy.
        split: SHA-256 of the run's seed and settings of data, which decide whose samples train.
        resumes: it goes on from the checkpoint of the ancestor before it.
        pays_with_parent: and the sites' ledgers bound the epsilon of both together.
        weaker: why its initial model is not known to be below the server's bound; None if it is, or there is none.
        participants: their names; none in the file of a model, which others may get.
    """

    known: bool = True
    dp: Mapping[str, float] | None = None
    split: str = ""
    resumes: bool = False
    pays_with_parent: bool = False
    weaker: str | None = None
    participants: tuple[str, ...] = ()


UNKNOWN = Ancestor(known=False)


def hash_split(seed: int, data: Any) -> str:
    """Compute the SHA-256 of what decides whose samples train: a run's seed, and its settings of data."""
    text = json.dumps([seed, unmarked(data)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


PRIVACY = schema.object_with(epsilon=schema.number, delta=schema.number)
FIELDS: schema.Fields = {
    "known": schema.flag,
    "dp": schema.maybe(PRIVACY),
    "split": schema.text,
    "resumes": schema.flag,
    "pays_with_parent": schema.flag,
    "weaker": schema.maybe(schema.text),
    "participants": schema.list_of(schema.text),
}
IS_ANCESTRY = schema.described(
    "a list of the runs in which a model was trained",
    schema.list_of(schema.object_with(**FIELDS), fewest=1),
)


@dataclass(frozen=True)
class Ancestry:
    """All runs in which a model was trained, oldest first."""

    ancestors: tuple[Ancestor, ...]

    @classmethod
    def of(cls, value: Any, where: str = ANCESTRY) -> Ancestry:
        """Read what `to_list` wrote.

        Args:
            value: the list; None if there is none.
            where: names the list in the error.

        Returns:
            The ancestry, of one unknown ancestor if there is no list.

        Raises:
            FileError: the value is something else.
        """
        if value is None:
            return cls((UNKNOWN,))
        if not IS_ANCESTRY(value):
            raise FileError(
                f"{where}: is not {IS_ANCESTRY.__doc__}; it is damaged or another program's"
            )
        ancestors = []
        for item in value:
            facts = {name: item[name] for name in FIELDS}
            ancestors.append(
                Ancestor(**{**facts, "participants": tuple(facts["participants"])})
            )
        return cls(tuple(ancestors))

    def to_list(self, names: bool = True) -> list[dict[str, Any]]:
        """Make JSON values of it.

        Args:
            names: also name the participants.

        Returns:
            An object for each ancestor.
        """
        rows = []
        for ancestor in self.ancestors:
            row = asdict(ancestor)
            row["participants"] = list(ancestor.participants) if names else []
            rows.append(row)
        return rows

    def add(self, ancestor: Ancestor) -> Ancestry:
        """Return the ancestry of a run that starts from a model of this ancestry."""
        return Ancestry((*self.ancestors, ancestor))

    def with_participants(self, names: Collection[str]) -> Ancestry:
        """Return it with the participants of the last run."""
        *earlier, last = self.ancestors
        return Ancestry((*earlier, replace(last, participants=tuple(names))))

    @property
    def earlier_participants(self) -> list[str]:
        """The participants of all runs before the last one."""
        return sorted(
            {name for ancestor in self.ancestors[:-1] for name in ancestor.participants}
        )

    @property
    def privacy(self) -> tuple[float, float] | None:
        """The epsilon and delta of each patient; None unless every ancestor had dp, on the same split if it resumes.

        The epsilons of runs add up (basic composition). Runs that the sites' ledgers bound together count once, by
        the largest of them.
        """
        if self.other_split is not None:
            return None
        epsilon, delta = 0.0, 0.0
        together = 0.0, 0.0
        for ancestor in self.ancestors:
            if not ancestor.known or ancestor.dp is None:
                return None
            spent = float(ancestor.dp["epsilon"]), float(ancestor.dp["delta"])
            if ancestor.pays_with_parent:
                together = max(together[0], spent[0]), max(together[1], spent[1])
                continue
            epsilon, delta = epsilon + together[0], delta + together[1]
            together = spent
        return epsilon + together[0], delta + together[1]

    @property
    def other_split(self) -> str | None:
        """Why test patients of the last run may be training patients of an earlier one; None if they are not."""
        for parent, child in pairwise(self.ancestors):
            if child.resumes and parent.split != child.split:
                return "it resumes a run with another seed or other settings of data, so that the splits may differ"
        return None

    @property
    def objection(self) -> str | None:
        """Why attacks on the last run's patients do not tell what the model reveals; None if they do."""
        weaker = next(
            (
                ancestor.weaker
                for ancestor in self.ancestors
                if ancestor.weaker is not None
            ),
            None,
        )
        return weaker or self.other_split
