# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Private layers: which arrays of a model each participant has for itself, and which are learned together."""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.network_arrays import live_state
from cfl_flare.core.params import Layout, Params

if TYPE_CHECKING:
    import torch

parser: Any = importlib.import_module(
    "re._parser" if sys.version_info >= (3, 11) else "sre_parse"
)

# Layers by what they are, in place of a pattern of names, and how a message calls them.
WORDS = {"norm": "normalisation layer", "bias": "bias", "head": "fully connected layer"}
# Bounds of a job's regular expression: its characters, and the steps of a search of all names.
MOST_PATTERN, MOST_STEPS = 500, 10**8
# Classes of normalisation layers: BatchNorm2d, LayerNorm, RMSNorm, and those that others write.
NORM = re.compile(r"Norm(\dd)?$")


@dataclass(frozen=True)
class Division:
    """A model's arrays, divided into those that are learned together and those that each participant has for itself.

    Attributes:
        layout: of the model.
        public: of what travels: the bank's models, differences, what is clustered and penalised.
        private: of what each participant has for itself; None for nothing.
    """

    layout: Layout
    public: Layout
    private: Layout | None = None

    @classmethod
    def of(cls, module: torch.nn.Module, pattern: str | None) -> Division:
        """Divides a model by the setting ``private``, a pattern; None for nothing that is private."""
        layout = Layout.of(module)
        if pattern is None:
            return cls(layout, layout)
        where = f"run: private = {pattern!r}"
        stays, there = (
            matching(module, pattern, where),
            ", ".join(e.name for e in layout.entries),
        )
        what = (
            f"there is no {WORDS[pattern]}"
            if pattern in WORDS
            else "it matches nothing"
        )
        require(
            bool(stays),
            f"{where}: {what} in the model; name arrays of {there} by a regular expression",
        )
        left = [e.name for e in layout.entries if e.name not in stays]
        travels = any(e.kind == "parameter" and e.name in left for e in layout.entries)
        require(
            travels,
            f"{where} matches all parameters: nothing would be left to learn together; name fewer, or take "
            "the method local",
        )
        return cls(layout, layout.restricted(left), layout.restricted(stays))

    @property
    def names(self) -> list[str]:
        """The arrays that stay at their participant."""
        return [] if self.private is None else [e.name for e in self.private.entries]

    def joined(self, model: Params, private: Params) -> Params:
        """A model, or a part of one, with private arrays added, or in the place of those that it has."""
        names = [e.name for part in (model, private) for e in part.layout.entries]
        return self.layout.restricted(names).join(model, private)

    def complete(
        self, first: Callable[[], Params]
    ) -> Callable[[Params], Params] | None:
        """Adds what stays to models that travel, as in the run's ``first`` model; None where nothing stays."""
        if self.private is None:
            return None
        private = first().take(self.private)
        return lambda model: self.joined(model, private)


def matching(
    module: torch.nn.Module, pattern: str, where: str, words: bool = True
) -> set[str]:
    """The arrays of a model that a word or a pattern names, each tied weight under the name of its entry.

    With ``words``, ``"norm"``, ``"bias"`` or ``"head"`` are the layers of that kind. Other patterns, and these where
    there is no such layer, are regular expressions that are searched in the names.
    """
    layout = Layout.of(module)
    names = _of_kind(module, layout, pattern) if words else set()
    if names:
        return names
    compiled = bounded(pattern, layout.shapes, where)
    return set(
        layout.untied({name: None for name in layout.shapes if compiled.search(name)})
    )


def bounded(pattern: str, names: Collection[str], where: str) -> re.Pattern[str]:
    """A job's regular expression, if searching the names by it takes few steps whatever they are."""
    try:
        require(
            len(pattern) <= MOST_PATTERN,
            f"{where} has more than {MOST_PATTERN} characters; write a shorter one",
        )
        compiled, longest = re.compile(pattern), max(map(len, names), default=0) + 1
        steps = len(names) * longest * _steps(parser.parse(pattern), longest)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{where} is not a regular expression: {error}") from error
    require(
        steps <= MOST_STEPS,
        f"{where} could be searched for ever: it repeats too much; leave out repetitions, above all inside others",
    )
    return compiled


def _steps(part: Any, longest: int) -> float:
    """In how many ways a parsed expression can match text of this length from one place on, at most.

    What is repeated and can match in two ways counts as infinitely many: ``(a+)+`` or ``(a|a)*``.
    """
    steps = 1.0
    for operator, value in part if isinstance(part, parser.SubPattern) else ():
        if operator is parser.BRANCH:
            steps *= sum(_steps(branch, longest) for branch in value[1])
        elif str(operator).endswith("REPEAT"):
            repeats = min(value[1] - value[0] + 1, longest)
            steps *= repeats if _steps(value[2], longest) == 1 else math.inf
        else:
            inside = value if isinstance(value, (tuple, list)) else [value]
            steps *= math.prod(_steps(piece, longest) for piece in inside)
    return steps


def _of_kind(module: torch.nn.Module, layout: Layout, word: str) -> set[str]:
    """The arrays of the layers that a word means; none for other patterns."""
    if word == "head":
        return {e.name for e in layout.entries if e.head}
    if word == "bias":
        return {
            e.name
            for e in layout.entries
            if e.kind == "parameter" and e.name.rpartition(".")[2] == "bias"
        }
    if word != "norm":
        return set()
    norms = {
        name
        for name, layer in module.named_modules()
        if any(NORM.search(cls.__name__) for cls in type(layer).__mro__)
    }
    live = live_state(module)
    return {
        e.name for e in layout.entries if live[e.name][0].rpartition(".")[0] in norms
    }
