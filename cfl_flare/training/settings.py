# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a participant trains in one round."""

from __future__ import annotations

from dataclasses import dataclass

from cfl_flare.core.config import check_types, require


@dataclass(frozen=True)
class TrainSettings:
    """Local training of one round. The defaults are the thesis's (sec. 3.5): 10 steps of SGD, batch 32, momentum 0.9.

    Attributes:
        lr: learning rate of round 0.
        momentum: SGD momentum.
        weight_decay: L2 penalty of SGD.
        batch_size: samples a step; a participant with fewer takes all it has.
        local_steps: steps a round; 10 unless ``local_epochs`` is given.
        local_epochs: passes over the participant's training data a round, instead of steps.
        keep_momentum: keep the momentum on the participant between rounds, instead of a fresh optimizer each round.
        lr_decay: factor on the learning rate, after each round, or after each of ``lr_milestones`` if there are any.
        lr_milestones: rounds from which on the factor holds once more.
        precision: of the arithmetic in training steps: ``float32``, or ``bfloat16``, faster where the processor has
            instructions for it (AVX-512 BF16, AMX, recent GPUs) and slower elsewhere. Models stay float32.
    """

    lr: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_size: int = 32
    local_steps: int | None = None
    local_epochs: int | None = None
    keep_momentum: bool = False
    lr_decay: float = 1.0
    lr_milestones: tuple[int, ...] = ()
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_types(self, "training")
        object.__setattr__(self, "lr_milestones", tuple(self.lr_milestones))
        require(0 < self.lr < float("inf"), f"training: lr = {self.lr} should be > 0")
        require(0 <= self.momentum < 1, f"training: momentum = {self.momentum} should be in [0, 1)")
        require(0 <= self.weight_decay < float("inf"), f"training: weight_decay = {self.weight_decay} should be >= 0")
        require(self.batch_size >= 1, f"training: batch_size = {self.batch_size} should be >= 1")
        require(
            self.local_steps is None or self.local_epochs is None,
            f"training: give local_steps = {self.local_steps} or local_epochs = {self.local_epochs}, not both",
        )
        for name in ("local_steps", "local_epochs"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"training: {name} = {value} should be >= 1")
        require(0 < self.lr_decay <= 1, f"training: lr_decay = {self.lr_decay} should be in (0, 1]")
        require(
            all(isinstance(r, int) and r > 0 for r in self.lr_milestones),
            f"training: lr_milestones = {self.lr_milestones} should be rounds > 0",
        )

        require(
            self.precision in ("float32", "bfloat16"),
            f"training: precision = {self.precision!r} should be 'float32' or 'bfloat16'",
        )

    def lr_at(self, round_number: int) -> float:
        """The learning rate of a round (rounds count from 0)."""
        times = sum(r <= round_number for r in self.lr_milestones) if self.lr_milestones else round_number
        return self.lr * self.lr_decay**times

    def steps(self, samples: int) -> int:
        """Steps of one round for a participant with so many training samples."""
        if self.local_epochs is None:
            return self.local_steps or 10
        return self.local_epochs * len(batch_bounds(samples, self.batch_size))


def batch_bounds(samples: int, batch_size: int) -> list[tuple[int, int]]:
    """The batches of one pass, as bounds into a permutation. A last batch of one sample alone is left out.

    (BatchNorm cannot be trained on one sample; the permutation of the next pass puts another one last.)

    >>> batch_bounds(65, 32)
    [(0, 32), (32, 64)]
    """
    bounds = [(i, min(i + batch_size, samples)) for i in range(0, samples, batch_size)]
    return bounds[:-1] if len(bounds) > 1 and batch_size > 1 and bounds[-1][1] - bounds[-1][0] == 1 else bounds
