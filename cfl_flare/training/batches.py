# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The batches that a participant trains on in a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cfl_flare.training.runtime import Split

if TYPE_CHECKING:
    from cfl_flare.training.augment import Augment


class Batches:
    """Batches of a training split, each of them transformed if there are transforms.

    A transformed batch is made when it is asked for, and equal each time. All are kept at once only where `samples`,
    which other models need beforehand, has made them.

    Args:
        data: the training split.
        indices: the samples of each batch.
        augment: the transforms; None for none.
        seeds: of each batch's draws.
    """

    def __init__(self, data: Split, indices: list[Tensor], augment: Augment | None = None, seeds: Sequence[int] = ()):
        self._data, self._indices, self._augment, self._seeds = data, indices, augment, seeds
        self._made: list[Split] = []

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, number: int) -> Split:
        """One batch."""
        if self._made:
            return self._made[number]
        x, y = self._data.x[self._indices[number]], self._data.y[self._indices[number]]
        return Split(x, y) if self._augment is None else Split(*self._augment(x, y, self._seeds[number]))

    @property
    def sizes(self) -> list[int]:
        """The number of samples of each batch."""
        return [len(chosen) for chosen in self._indices]

    def samples(self) -> Tensor:
        """The samples of all batches, one after the other, ``(n, *input_shape)`` float32."""
        if self._augment is None:
            return self._data.x[torch.cat(self._indices)]
        self._made = [self[i] for i in range(len(self))]
        return torch.cat([batch.x for batch in self._made])
