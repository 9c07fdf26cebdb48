# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a study has found so far, and how an attempt goes on from an earlier one's file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cfl_flare.clustering.gap import NUMBER
from cfl_flare.core.config import from_dict, require, unmarked
from cfl_flare.core.errors import DivergedError, RunFailedError
from cfl_flare.core.text import plain
from cfl_flare.engine.server import is_divergence
from cfl_flare.engine.study.candidates import Candidate, search_candidate, search_rounds
from cfl_flare.engine.study.judged import Judged
from cfl_flare.results.run_dir import ASSIGNMENTS, ROUNDS, read_lines
from cfl_flare.results.study import STUDY, Verdict, load_study


@dataclass(frozen=True)
class Search:
    """The number of clusters, and how it was found.

    Attributes:
        note: as `cfl_flare.clustering.gap.describe_count` has it.
        assignment: the cluster of each hospital that answered.
        rounds: that it took.
    """

    note: Mapping[str, Any]
    assignment: Mapping[str, int]
    rounds: int

    @classmethod
    def made(
        cls, train: Callable[[Candidate, int], None], out: Path, total: int
    ) -> Search:
        """Trains as ``wecfl:k=auto`` in the study's folder; a RunFailedError if too few participants answered."""
        candidate, rounds = search_candidate(total), search_rounds(total)
        train(candidate, rounds)
        folder = out / candidate.name
        records = [line for line in read_lines(folder / ROUNDS) if NUMBER in line]
        if not records:
            reasons = [
                reason
                for line in read_lines(folder / ROUNDS)
                for reason in line.get("failed", {}).values()
            ]
            if any(map(is_divergence, reasons)):
                raise DivergedError(
                    "study: training diverges before the number of clusters is found\nhint: lower the learning rate lr"
                )
            raise RunFailedError(
                "study: too few participants answered to find the number of clusters; start it again"
            )
        last = [
            line
            for line in read_lines(folder / ASSIGNMENTS)
            if line["round"] == records[-1]["round"]
        ]
        assignment = {
            line["participant"]: line["cluster"]
            for line in last
            if line["cluster"] is not None
        }
        return cls(records[-1][NUMBER], assignment, rounds)


@dataclass(frozen=True)
class Rung:
    """One comparison on validation samples, after the same rounds of each candidate.

    Attributes:
        means: each candidate's mean over hospitals.
        dropped: why some train no further.
        seconds: that it took, with the training since the rung before.
    """

    rounds: int
    means: Mapping[str, float]
    dropped: Mapping[str, str]
    seconds: float


@dataclass
class Journal:
    """What a study knows so far; `Study` goes on from there.

    Attributes:
        clusters: their number after the search; None before.
        k_set: the ends of its nominal 90 % set.
        assignment: the cluster of each hospital that answered.
        searched: the rounds that the search took, and ``search_seconds`` the seconds.
        verdict: None until there is one.
        words: on the number of clusters, and how sure it is.
        judged: each candidate at the comparison at which it was best.
    """

    clusters: int | None = None
    k_set: Sequence[int] = ()
    assignment: Mapping[str, int] = field(default_factory=dict)
    searched: int = 0
    search_seconds: float = 0.0
    rungs: list[Rung] = field(default_factory=list)
    verdict: Verdict | None = None
    words: str = ""
    judged: dict[str, Judged] = field(default_factory=dict)

    @classmethod
    def of(cls, attempt: Mapping[str, Any] | None) -> Journal:
        """Where an earlier attempt was, by its file; a new journal without one."""
        if attempt is None:
            return cls()
        rungs = [from_dict(Rung, rung, STUDY) for rung in attempt["rungs"]]
        search = (
            attempt["found"],
            attempt["set"],
            attempt["assignment"],
            attempt["searched"],
            attempt["search_seconds"],
        )
        judged = {name: Judged.of(values) for name, values in attempt["judged"].items()}
        return cls(*search, rungs, words=attempt["words"], judged=judged)

    @property
    def seconds(self) -> float:
        return self.search_seconds + sum(rung.seconds for rung in self.rungs)

    def cost(self, rounds: int) -> dict[str, Any]:
        """What the study cost, and the rounds of training all of its candidates to the end."""
        last = {name: rung.rounds for rung in self.rungs for name in rung.means}
        spent = self.searched + sum(last.values())
        return {
            "rounds": spent,
            "everything": self.searched + rounds * len(last),
            "seconds": self.seconds,
        }

    def to_dict(self, rounds: int) -> dict[str, Any]:
        """As JSON values. A finished study needs no hospital's numbers to go on."""
        ended = self.verdict is not None and self.rungs[-1].rounds == rounds
        judged = {} if ended else self.judged
        return {
            "judged": {name: values.to_dict() for name, values in judged.items()},
            "found": self.clusters,
            "set": list(self.k_set),
            "assignment": dict(self.assignment),
            "words": self.words,
            "searched": self.searched,
            "search_seconds": self.search_seconds,
            "rungs": [asdict(rung) for rung in self.rungs],
            "cost": self.cost(rounds),
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
        }


def as_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A study's settings as its file holds them."""
    settings: dict[str, Any] = json.loads(json.dumps(unmarked(facts)))
    return settings


def attempt_in(folder: Path, facts: Mapping[str, Any], named: str) -> dict[str, Any]:
    """An earlier attempt with the same settings; a ConfigError, which names it as it was ``named``, for others."""
    attempt = load_study(folder)
    earlier = attempt["settings"]
    names = [
        plain(key, 60)
        for key in sorted({*facts, *earlier})
        if facts.get(key) != earlier.get(key)
    ]
    way_out = "give the same ones, or start a new study"
    require(
        not names,
        f"{named} is of a study with other settings ({', '.join(names)}); {way_out}",
    )
    return attempt


def finished(attempt: Mapping[str, Any] | None, rounds: int) -> bool:
    """Whether a study has compared candidates after all rounds, and has its verdict."""
    return (
        attempt is not None
        and attempt["verdict"] is not None
        and attempt["rungs"][-1]["rounds"] == rounds
    )
