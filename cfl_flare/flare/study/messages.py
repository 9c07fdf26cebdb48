# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a study's messages say beside a run's: whose round it is, on which samples, and how many of them there are.

Down, each task names a candidate and a split. Up, each answer names them again, and the check-in counts the samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.text import shown
from cfl_flare.engine.checks import MAX_SAMPLES, is_count
from cfl_flare.engine.study.halving import TEST, VALIDATION
from cfl_flare.flare.schema import malformed
from cfl_flare.flare.wire import content_of

SPLIT, COUNTS = "split", "splits"
SPLITS = (VALIDATION, TEST)

Counts = Mapping[str, Mapping[str, int]]


def split_of(content: Mapping[str, Any]) -> str:
    """The split of a task.

    Raises:
        PayloadError: there is no such split.
    """
    split = content.get(SPLIT)
    if split not in SPLITS:
        raise PayloadError("split", f"split = {shown(split)} should be one of {', '.join(SPLITS)}")
    return str(split)


def take_counts(message: FLModel, expected: Collection[str]) -> Counts:
    """Takes the numbers of validation and test samples out of a site's check-in.

    Args:
        message: the site's; the rest of it is as of any job.
        expected: the names of its participants.

    Raises:
        PayloadError: a number is missing, unexpected, or no number of samples.
    """
    content = content_of(message.meta)
    if "error" in content:
        return {}
    said = content.pop(COUNTS, None)
    if not isinstance(said, dict) or said.keys() != set(expected):
        raise malformed(
            f"{COUNTS} should have the numbers of samples of {len(expected)} participants, not {shown(said)}"
        )
    for name, own in said.items():
        if not isinstance(own, dict) or own.keys() != set(SPLITS):
            raise malformed(f"{name}: {shown(own)} should be its numbers of {' and '.join(SPLITS)} samples")
        for split, count in own.items():
            if not is_count(count, 0, MAX_SAMPLES):
                raise malformed(f"{name}: {split} = {shown(count)} should be a whole number in 0..{MAX_SAMPLES}")
    return {name: dict(own) for name, own in said.items()}
