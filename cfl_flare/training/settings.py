# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a participant trains in one round."""

from __future__ import annotations

from dataclasses import dataclass

from cfl_flare.core.config import require
from cfl_flare.core.settings import Bounds, check_settings, setting

ROUNDS = Bounds("rounds > 0", lambda value: all(isinstance(r, int) and r > 0 for r in value))


@dataclass(frozen=True)
class TrainSettings:
    """Local training of one round. The defaults are the thesis's (sec. 3.5): 10 steps of SGD, batch 32, momentum 0.9.

    Models stay float32 with any ``precision``; ``bfloat16`` is meant for processors with instructions for it (AVX-512
    BF16, AMX, recent GPUs), and was slower on one without.
    """

    lr: float = setting(0.001, help="learning rate of round 0", gt=0)
    momentum: float = setting(0.9, help="SGD's momentum", ge=0, lt=1)
    weight_decay: float = setting(0.0, help="L2 penalty of SGD", ge=0)
    batch_size: int = setting(32, help="samples a step; a participant with fewer takes all it has", ge=1)
    local_steps: int | None = setting(None, help="steps a round; default: 10, unless local_epochs is given", ge=1)
    local_epochs: int | None = setting(None, help="passes over the own data a round, instead of steps", ge=1)
    keep_momentum: bool = setting(False, help="keep the momentum on the participant between rounds")
    lr_decay: float = setting(
        1.0, help="factor on the learning rate after each round, or after each of lr_milestones", gt=0, le=1
    )
    lr_milestones: tuple[int, ...] = setting((), help="rounds from which on the factor holds once more", bounds=ROUNDS)
    precision: str = setting("float32", help="of the arithmetic in training steps", choices=("float32", "bfloat16"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr_milestones", tuple(self.lr_milestones))
        check_settings(self, "training")
        require(
            self.local_steps is None or self.local_epochs is None,
            f"training: give local_steps = {self.local_steps} or local_epochs = {self.local_epochs}, not both",
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
