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

An aim is **reached**, **not reached**, or runs cannot tell: see `above`, `everywhere` and `near`.

Intervals are not corrected for the number of claims.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import kept
from kept import FEWEST_SEEDS, CitationError, group, interval, paired, signed, value
from plans.plan import published as published_figures
from scipy.stats import f

CANNOT_TELL, HOLDS, DOES_NOT = "cannot tell", "holds", "does not"
REACHED, NOT_REACHED = "reached", "not reached"
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
    return verdict_of(differences, None if plan is None else published_difference(plan, partition, row, other, name))


def published_difference(plan: str, partition: str, row: str, other: str, name: str) -> float:
    """What the paper has between two rows."""
    figures = published_figures()[plan]["figures"]
    try:
        return float(figures[partition][row][0][name][0] - figures[partition][other][0][name][0])
    except KeyError as error:
        raise CitationError(f"published.json has no {plan} {partition} {row} {other} {name}: {error}") from error


def level(text: str) -> str:
    """``starts cluster_dirichlet ifca accuracy published=family``: a published level, beside all our runs.

    It does not hold if it is outside their range; inside, runs cannot tell. Of few seeds they cannot anyhow.
    """
    (result, partition, row, name), words = split(text)
    cells = [cell for cell in kept.kept(result) if (cell.facts["partition"], cell.facts["row"]) == (partition, row)]
    values = [v for cell in cells if (v := value(cell, name)) is not None]
    theirs = published_figures()[words["published"]]["figures"][partition][row][0][name][0]
    if not values:
        raise CitationError(f"{text}: there are no such cells")
    return CANNOT_TELL if len(values) < FEWEST_SEEDS or min(values) <= theirs <= max(values) else DOES_NOT


def claim(text: str) -> str:
    """``fedcuau/order.json results with_tiers lr=0.1``: a value above zero in a file's entries, one a seed.

    With two values, such as ``models.LrCos models.L2``, their difference.
    """
    (path, key, *names), words = split(text)
    entries = [e for e in kept.measured(path)[key] if all(str(e[k]) == v for k, v in words.items())]
    if not entries:
        raise CitationError(f"{text}: there are no such entries")

    def of(entry: dict[str, object], name: str) -> float:
        found: object = entry
        for part in name.split("."):
            found = found[part]  # type: ignore[index]
        return float(found)  # type: ignore[arg-type]

    first, *others = names
    return verdict_of([of(entry, first) - sum(of(entry, other) for other in others) for entry in entries])


def _ratio(text: str) -> tuple[float, float, float]:
    """Of two rows' standard deviations over seeds, with the 95 % interval of Fisher's distribution."""
    (result, partition, row, other, name), words = split(text)
    extra = [f"{key}={text}" for key, text in words.items()]
    mine, theirs = (
        [v for cell in group(result, partition, r, extra).values() if (v := value(cell, name)) is not None]
        for r in (row, other)
    )
    found = statistics.stdev(mine) / statistics.stdev(theirs)
    high = float(f.ppf(0.975, len(theirs) - 1, len(mine) - 1)) ** 0.5
    low = float(f.ppf(0.975, len(mine) - 1, len(theirs) - 1)) ** 0.5
    return found, found / low, found * high


def ratio(text: str) -> str:
    """``1.28 (0.41 to 3.96)``: the deviation over seeds, in that of another row."""
    return "{:.2f} ({:.2f} to {:.2f})".format(*_ratio(text))


def steadier(text: str) -> str:
    """The verdict on the claim that a row's deviation is the smaller one."""
    _, low, high = _ratio(text)
    return HOLDS if high < 1 else DOES_NOT if low > 1 else CANNOT_TELL


def told(text: str) -> str:
    """``stroke natural ifca-2 fedavg accuracy: above / level with / below``: the words for a difference.

    The first if the interval is above zero, the second if it holds zero, the third if it is below.
    """
    what, _, choices = text.partition(":")
    (result, partition, row, other, name), words = split(what)
    extra = [f"{key}={text}" for key, text in words.items()]
    above, within, below = (choice.strip() for choice in choices.split("/"))
    _, low, high = interval(paired(group(result, partition, row, extra), group(result, partition, other, extra), name))
    return above if low > 0 else below if high < 0 else within


# ---- Aims ----


def _places(text: str) -> list[tuple[str, str]]:
    """``rotations/four later-blood/labels``: results and partitions."""
    return [(result, partition) for result, _, partition in (place.partition("/") for place in text.split())]


def above(text: str) -> str:
    """``2; rotations/four later-blood/labels; clove ifca; accuracy tenth_accuracy``: an aim of several places.

    A row is to be above another one by each of the figures, in so many places. A place counts if all intervals are
    above zero. It may count if none is at zero or below.
    """
    fewest, where, rows, names = text.split(";")
    row, other = rows.split()
    counts, open_places = 0, 0
    for result, partition in _places(where):
        groups = group(result, partition, row), group(result, partition, other)
        intervals = [interval(paired(*groups, name)) for name in names.split()]
        counts += all(low > 0 for _, low, _ in intervals)
        open_places += all(high > 0 for *_, high in intervals)
    return REACHED if counts >= int(fewest) else CANNOT_TELL if open_places >= int(fewest) else NOT_REACHED


def everywhere(text: str) -> str:
    """``rotations four clove last_ari 1``: an aim that is reached if each seed reaches it."""
    result, partition, row, name, least = text.split()
    values = [value(cell, name) or 0.0 for cell in group(result, partition, row).values()]
    if len(values) < FEWEST_SEEDS:
        return CANNOT_TELL
    return REACHED if min(values) >= float(least) - 1e-9 else NOT_REACHED


def _within_row(text: str) -> list[float]:
    """``rotations four flux unseen unseen_by_loss``: one figure of a row, without another one, seed by seed."""
    result, partition, row, name, other = text.split()
    values = [(value(cell, name), value(cell, other)) for cell in group(result, partition, row).values()]
    differences = [mine - theirs for mine, theirs in values if mine is not None and theirs is not None]
    if len(differences) < FEWEST_SEEDS:
        raise CitationError(f"{text}: {len(differences)} seeds have both figures, fewer than {FEWEST_SEEDS}")
    return differences


def gap(text: str) -> str:
    """``rotations four flux unseen unseen_by_loss``: ``-0.8 (-1.3 to -0.3)``."""
    return "{} ({} to {})".format(*(signed(end, 1) for end in interval(_within_row(text))))


def near(text: str) -> str:
    """``rotations four flux unseen unseen_by_loss 2``: an aim, at most so many points below the other figure."""
    asked, _, points = text.rpartition(" ")
    _, low, high = interval(_within_row(asked))
    return REACHED if low >= -float(points) else NOT_REACHED if high < -float(points) else CANNOT_TELL


def zeros(text: str) -> str:
    """``private labels scanners: wecfl-norm/wecfl ifca-norm/ifca; accuracy macro_f1``: how many intervals hold zero."""
    place, _, asked = text.partition(":")
    result, *partitions = place.split()
    pairs, names = (part.split() for part in asked.split(";"))
    intervals = [
        interval(paired(group(result, partition, row), group(result, partition, other), name))
        for partition in partitions
        for row, other in (pair.split("/") for pair in pairs)
        for name in names
    ]
    return f"{sum(low <= 0 <= high for _, low, high in intervals)} of {len(intervals)}"


def best(text: str) -> str:
    """``stroke natural pooled_auroc: local fedavg fedavg-bias``: the row with the largest mean."""
    place, _, rows = text.partition(":")
    (result, partition, name), words = split(place)
    extra = [f"{key}={text}" for key, text in words.items()]

    def mean(row: str) -> float:
        cells = group(result, partition, row, extra).values()
        return statistics.fmean(v for cell in cells if (v := value(cell, name)) is not None)

    return f"`{max(rows.split(), key=mean)}`"


def count(text: str) -> str:
    """``study-cells.json rows case=cells_by_labels; found=4``: of a file's entries, those that are so: ``0 of 3``.

    Values are written with ``_`` for a space. Without the second part it is how many entries there are.
    """
    asked, _, so = text.partition(";")
    (path, key), filters = split(asked)

    def fits(entry: dict[str, object], words: dict[str, str]) -> bool:
        return all(str(entry[name]).replace(" ", "_") == wanted for name, wanted in words.items())

    entries = [entry for entry in kept.measured(path)[key] if fits(entry, filters)]
    if not so:
        return str(len(entries))
    return f"{sum(fits(entry, split(so)[1]) for entry in entries)} of {len(entries)}"


def _of_entries(text: str) -> tuple[list[float], str]:
    (path, key, name, form), words = split(text)
    entries = [e for e in kept.measured(path)[key] if all(str(e[k]) == v for k, v in words.items())]
    if not entries:
        raise CitationError(f"{text}: there are no such entries")
    return [float(entry[name]) for entry in entries], form


def mean(text: str) -> str:
    """``training-script.json runs accuracy .3f kind=own``: over a file's entries."""
    values, form = _of_entries(text)
    return format(statistics.fmean(values), form)


def deviation(text: str) -> str:
    """The standard deviation of the same."""
    values, form = _of_entries(text)
    return format(statistics.stdev(values), form)


def seconds(text: str) -> str:
    """``options cluster_dirichlet wecfl rounds=5``: CPU seconds a round, over all attempts of a row's cells."""
    (result, partition, row), words = split(text)
    cells = group(result, partition, row, [f"{key}={text}" for key, text in words.items()])
    attempts = [attempt for cell in cells.values() for attempt in cell.facts["attempts"]]
    return f"{sum(a['cpu_seconds'] for a in attempts) / sum(a['rounds'] for a in attempts):.1f}"


# ---- Attacks: accuracy and success in percent, from one line a cell ----


def _attacked(method: str, attack: str, attackers: str, defence: str, key: str = "accuracy") -> float:
    wanted = (method, attack, int(attackers), defence)
    for line in kept.measured("attacks/attacks.jsonl"):
        if tuple(line[name] for name in ("method", "attack", "attackers", "defence")) == wanted:
            return 100 * float(line[key])
    raise CitationError(f"there is no {method} under {attack} by {attackers} with {defence}")


def _spaced(text: str) -> list[str]:
    return [word.replace("_", " ") for word in text.split()]


def attack(text: str) -> str:
    """``FedAvg backdoor 3 clipping_at_2 success``: of one cell."""
    return f"{_attacked(*_spaced(text)):.1f}"


def worst(text: str) -> str:
    """``FedAvg 3 clipping_at_2``: the least accuracy under any attack."""
    method, attackers, defence = _spaced(text)
    values = [
        100 * float(line["accuracy"])
        for line in kept.measured("attacks/attacks.jsonl")
        if (line["method"], line["defence"], line["attackers"]) == (method, defence, int(attackers))
    ]
    if not values:
        raise CitationError(f"{text}: there is no such cell")
    return f"{min(values):.1f}"


def lost(text: str) -> str:
    """``WeCFL none 0 none / WeCFL sign_flip 3 none``: by how much the second cell is below the first, in points."""
    one, other = (_attacked(*_spaced(part)) for part in text.split("/"))
    return f"{one - other:.1f}"


WAYS = {
    "verdict": verdict,
    "level": level,
    "claim": claim,
    "ratio": ratio,
    "steadier": steadier,
    "told": told,
    "above": above,
    "everywhere": everywhere,
    "gap": gap,
    "near": near,
    "zeros": zeros,
    "best": best,
    "count": count,
    "mean": mean,
    "deviation": deviation,
    "seconds": seconds,
    "attack": attack,
    "worst": worst,
    "lost": lost,
}
