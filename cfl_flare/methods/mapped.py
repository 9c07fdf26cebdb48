# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A round's updates as a method sees them that holds others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cfl_flare.methods.base import Update


class Mapped(Sequence["Update"]):
    """Updates seen through a function, one at a time: large ones lie on disk."""

    def __init__(self, updates: Sequence[Update], function: Callable[[Update], Update]):
        self._updates, self._function = updates, function

    def __len__(self) -> int:
        return len(self._updates)

    def __getitem__(self, index: Any) -> Any:
        found = self._updates[index]
        return Mapped(found, self._function) if isinstance(index, slice) else self._function(found)

    def __iter__(self) -> Iterator[Update]:
        return map(self._function, self._updates)
