# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The server's check of what a participant measured on the draws of its test split."""

from __future__ import annotations

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.text import shown
from cfl_flare.engine.checks import is_count, is_number
from cfl_flare.engine.site import Result, Task
from cfl_flare.training.bootstrap import DRAWS


def check_replicates(result: Result, task: Task) -> None:
    """Checks a result's replicates against what was asked.

    Raises:
        PayloadError: nobody asked for them, or they are of a measure that the result lacks, too few, too many, or no
            numbers.
    """
    name, drawn = result.participant, result.bootstrap
    if drawn is None:
        return
    if not task.bootstrap:
        raise PayloadError("metric", f"{name} was not asked to measure draws of its test split")
    if not is_count(drawn.draw, 0, DRAWS - 1):
        raise PayloadError("metric", f"{name}: draw = {shown(drawn.draw)} should be a whole number below {DRAWS}")
    for key, values in drawn.values.items():
        if key not in result.metrics or not key.startswith("served_"):
            raise PayloadError("metric", f"{name} has draws of {shown(key)}, which it does not report")
        if len(values) != task.bootstrap:
            many = f"{len(values)} draws of {key}, not {task.bootstrap}"
            raise PayloadError("metric", f"{name} sent {many}, as the job asks with bootstrap")
        if not all(value is None or is_number(value) for value in values):
            raise PayloadError("metric", f"{name}: a draw of {key} is neither a finite number in range nor None")
