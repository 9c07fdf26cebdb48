# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a published claim holds, by one rule, and other words that follow from cells.

A claim says that a figure is larger than another one, often by how much. Ours is the mean difference with its 95 %
interval. The verdict is

- **cannot tell** of fewer than three seeds, of two rows that coincide, and where the interval holds zero and does not
  exclude the published difference;
- **holds** where the interval is on the claim's side of zero and holds the published difference, if one is given;
- **holds, smaller** or **holds, larger** where it is on that side of zero and misses the published difference;
- **does not** everywhere else.

Intervals are not corrected for the number of claims.
"""

from __future__ import annotations

from collections.abc import Sequence

from kept import FEWEST_SEEDS, CitationError, group, interval, paired
from plans.plan import published as published_figures

CANNOT_TELL, HOLDS, DOES_NOT = "cannot tell", "holds", "does not"
SHOWN = 0.05  # of percent: two rows none of whose differences would be printed coincide


def verdict_of(differences: Sequence[float], published: float | None = None) -> str:
    """The verdict on a claim.

    >>> verdict_of([9, 10, 11], 10.5), verdict_of([9, 10, 11], 20), verdict_of([-9, 10, 11], 5)
    ('holds', 'holds, smaller', 'cannot tell')
    >>> verdict_of([-1, 0, 1], 20), verdict_of([9, 10, 11], -5), verdict_of([9, 10], 9)
    ('does not', 'does not', 'cannot tell')

    Args:
        differences: ours, one a seed.
        published: the paper's, whose sign is the claim's; None if only a positive sign is claimed.
    """
    if len(differences) < FEWEST_SEEDS or max(map(abs, differences)) < SHOWN:
        return CANNOT_TELL
    mean, low, high = interval(differences)
    inside = published is None or low <= published <= high
    if low <= 0 <= high:
        return CANNOT_TELL if inside else DOES_NOT
    if (mean > 0) != (published is None or published > 0):
        return DOES_NOT
    return HOLDS if inside else f"{HOLDS}, {'smaller' if abs(mean) < abs(published or 0) else 'larger'}"


def split(text: str) -> tuple[list[str], dict[str, str]]:
    """Words, and those with a value such as ``rounds=100``."""
    words = text.split()
    return [w for w in words if "=" not in w], dict(w.split("=", 1) for w in words if "=" in w)


def verdict(text: str) -> str:
    """``paired cluster_dirichlet wecfl fesem accuracy published=family``: of two rows, paired by seed."""
    (result, partition, row, other, name), words = split(text)
    plan = words.pop("published", None)
    extra = [f"{key}={text}" for key, text in words.items()]
    try:
        differences = paired(group(result, partition, row, extra), group(result, partition, other, extra), name)
    except CitationError as error:
        if "different commits" not in str(error):
            raise
        differences = []  # nothing is paired
    if plan is None:
        return verdict_of(differences)
    mine, theirs = (published_figure(plan, partition, name_of, name)[0] for name_of in (row, other))
    return verdict_of(differences, mine - theirs)


def published_figure(plan: str, partition: str, row: str, name: str) -> tuple[float, float | None]:
    """A paper's mean, and its deviation if the paper has one."""
    try:
        mean, std = published_figures()[plan]["figures"][partition][row][0][name]
    except KeyError as error:
        raise CitationError(f"published.json has no {plan} {partition} {row} {name}: {error}") from error
    return mean, std


def told(text: str) -> str:
    """``stroke natural ifca-2 fedavg accuracy: above / level with / below``: the words for a difference.

    The first if the interval is above zero, the third if it is below, else the second. With several other rows,
    ``fedavg,local``, it has to be so for each of them.
    """
    what, _, choices = text.partition(":")
    (result, partition, row, others, name), words = split(what)
    extra = [f"{key}={text}" for key, text in words.items()]
    above, within, below = (choice.strip() for choice in choices.split("/"))
    mine = group(result, partition, row, extra)
    intervals = [interval(paired(mine, group(result, partition, other, extra), name)) for other in others.split(",")]
    if all(low > 0 for _, low, _ in intervals):
        return above
    return below if all(high < 0 for *_, high in intervals) else within
