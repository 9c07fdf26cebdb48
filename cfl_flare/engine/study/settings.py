# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a study may cost, and what difference matters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cfl_flare.core.settings import check_settings, setting


@dataclass(frozen=True)
class StudySettings:
    """How candidates are compared."""

    rungs: int = setting(
        3,
        help="candidates are compared so often, each time after twice as many rounds; 1 for at the end only",
        ge=1,
        le=8,
    )
    minutes: float | None = setting(
        None, help="no comparison is begun that would take the study beyond so many minutes; default: no limit", gt=0
    )
    margin: float | None = setting(
        None,
        help="the difference that matters to one hospital, in the key metric's unit; default: 0.05 of a share such as "
        "accuracy or AUROC, and a twentieth of one model's loss or error",
        gt=0,
    )
    fewest_events: int = setting(
        100,
        help="with fewer validation or test samples that are not of the most frequent class, a study cannot tell; "
        "where there are no classes, with fewer samples",
        ge=0,
    )

    def __post_init__(self) -> None:
        check_settings(self, "study")

    def ladder(self, rounds: int) -> list[int]:
        """After how many rounds candidates are compared; the last number is all.

        >>> StudySettings(rungs=3).ladder(20), StudySettings(rungs=4).ladder(3)
        ([5, 10, 20], [1, 2, 3])
        """
        return sorted({math.ceil(rounds / 2**i) for i in range(self.rungs)})
