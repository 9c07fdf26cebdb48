# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a participant remembers between rounds."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from cfl_flare.core.params import Params

# The name of a participant's private layers. No method uses it: names of its own are identifiers.
PRIVATE = ":private"


class MemoryView(MutableMapping[str, Params]):
    """A part of a participant's memory: the names that begin with a prefix, without it.

    Args:
        memory: the whole memory.
        prefix: of this part's names.
    """

    def __init__(self, memory: MutableMapping[str, Params], prefix: str):
        self._memory, self._prefix = memory, prefix

    def __getitem__(self, name: str) -> Params:
        return self._memory[self._prefix + name]

    def __setitem__(self, name: str, value: Params) -> None:
        self._memory[self._prefix + name] = value

    def __delitem__(self, name: str) -> None:
        del self._memory[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._memory if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
