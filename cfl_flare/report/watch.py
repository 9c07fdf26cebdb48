# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What ``cfl-flare watch`` shows of a run: a frame of text, from what its files hold so far."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from rich import filesize
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cfl_flare.report.text import cut, measure_name, number
from cfl_flare.results.live import LiveRun, LiveSite, Watched, numbers
from cfl_flare.results.metrics import Metric
from cfl_flare.results.remarks import listed, missed_rounds

BLOCKS, LETTERS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
# The width of a plot, the most clusters or participants that have a line, and the most that one line names.
WIDE, LINES, NAMED = 24, 10, 5
# The last rounds, from which the time of the next ones is estimated.
RECENT = 5

Values = Sequence[float | None]


def frame(watched: Watched, now: float, blocks: str = BLOCKS) -> RenderableType:
    """All that is shown of a run, or of a site's history, which is refreshed, at a time in seconds of `time.time`.

    Plots are drawn with ``blocks``, from low to high: `BLOCKS`, or `LETTERS` where the terminal has only these.
    """
    shown = of_run(watched, now, blocks) if isinstance(watched, LiveRun) else of_site(watched, now, blocks)
    if watched.damaged:
        shown.append(Text(f"{watched.damaged} lines of the files cannot be read and are left out"))
    if watched.gone:
        shown.append(Text("the files are gone; FLARE moves a job's to its job store when the job ends"))
    return Group(*shown)


def overview(runs: Sequence[Watched], names: Sequence[str], now: float, blocks: str = BLOCKS) -> Table:
    """A line for each of several runs; see `frame`."""
    table = _table("run", "rounds", "metric", "now", "best", "", "")
    for run, name in zip(runs, names):
        if isinstance(run, LiveSite):
            rounds = {note["round"] for note in run.notes}
            table.add_row(Text(cut(name)), str(len(rounds)), "", "", "", "", "a site's own")
            continue
        values = _series(run)
        last, (_, best) = _last(values), _best(values, run.metric)
        total = "" if run.planned is None else f"/{run.planned}"
        where = "failed" if run.failed else "ended" if run.finished else _ago(run, now)
        plot = _plot(values, blocks, *_range([values]))[-WIDE // 2 :]
        measure = Text(measure_name(run.metric.name))
        table.add_row(Text(cut(name)), f"{_done(run)}{total}", measure, number(last), number(best), plot, where)
    return table


def of_run(run: LiveRun, now: float, blocks: str) -> list[RenderableType]:
    done, metric, values = _done(run), run.metric, _series(run)
    state = "running" if run.rounds else "no round recorded yet"
    if run.finished:
        state = f"ended without results: {cut(run.failed, 500)}" if run.failed else "ended"
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    rounds = Table.grid(padding=(0, 2, 0, 0))
    if run.planned is None:
        rounds.add_row(f"{done} measured")
    else:
        bar = ProgressBar(total=max(run.planned or done, 1), completed=done, width=30)
        rounds.add_row(f"{done} of {run.planned} measured", bar)
    facts.add_row("rounds", rounds)
    at, best = _best(values, metric)
    if best is not None:
        end = ", smaller is better" if metric.mode == "min" else ""
        after = run.rounds[at]["round"] + 1
        shown = f"{number(_last(values))} now, best {number(best)} after round {after}{end}"
        facts.add_row(Text(measure_name(metric.name)), shown)
    if (worst := _last([*numbers(run.rounds, f"served_worst_{metric.name}")])) is not None:
        facts.add_row(metric.far_end, number(worst))
    if run.moved_in is not None or (run.rounds and run.rounds[-1]["cluster_sizes"]):
        facts.add_row("moved", Text(_moved(run)))
    for who, missed in islice(missed_rounds(run.rounds).items(), 3):
        facts.add_row("missed", Text(f"{cut(who)}: {cut(missed, 250)}"))
    down, up = (sum(v or 0 for v in numbers(run.rounds, key)) for key in ("bytes_down", "bytes_up"))
    facts.add_row("traffic", f"{filesize.decimal(int(down))} down, {filesize.decimal(int(up))} up")
    facts.add_row("time", Text(_time(run, now)))
    title = Text(f"{cut(run.label or run.folder.name)}: {state}", style="bold")
    return [title, facts, *_clusters(run, values, blocks)]


def of_site(site: LiveSite, now: float, blocks: str) -> list[RenderableType]:
    """The parts of a site's frame: a line for each of its participants."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for note in site.notes:
        by_name.setdefault(note["participant"], []).append(note)
    names = (name.removeprefix("served_") for n in site.notes for name in n["metrics"] if name.startswith("served_"))
    metric = Metric.of_name(next(names, "accuracy"))
    series = {who: [*numbers(notes, "metrics", f"served_{metric.name}")] for who, notes in by_name.items()}
    order = [*by_name]
    rounds = max((note["round"] + (not note["last"]) for note in site.notes), default=0)
    state = "ended" if site.finished else _ago(site, now)
    title = f"{cut(site.folder.name)} in {cut(site.folder.parent.name)}: {rounds} rounds, {state}"
    table = _table("participant", "trained", "model", measure_name(metric.name), "by round", "failed")
    bounds = _range(series.values())
    for who in order[:LINES]:
        notes, values = by_name[who], series[who]
        trained, failed = sum(note["trained"] for note in notes), [n["failed"] for n in notes if n["failed"]]
        models = cut(", ".join(notes[-1]["models"][:3]), 20)
        codes = cut(f"{len(failed)}: {failed[-1]}", 30) if failed else ""
        row = (str(trained), Text(models), number(_last(values)), _plot(values, blocks, *bounds))
        table.add_row(Text(cut(who)), *row, Text(codes))
    return [Text(title, style="bold"), table, *_rest(len(order), "participants")]


def _clusters(run: LiveRun, overall: Values, blocks: str) -> list[RenderableType]:
    """A line for all participants and for each cluster, the largest first, on one scale."""
    if not run.rounds:
        return []
    sizes = run.rounds[-1]["cluster_sizes"]
    largest = sorted((k for k in range(len(sizes)) if sizes[k]), key=lambda k: -sizes[k])
    measure = f"served_{run.metric.name}"
    lines: list[tuple[str, int, Values]] = [("all", sum(sizes), overall)]
    lines += [(str(k), sizes[k], [*numbers(run.rounds, "clusters", f"cluster-{k}", measure)]) for k in largest[:LINES]]
    low, high = _range(values for _, _, values in lines)
    scale = f"by round, {number(low)} to {number(high)}" if low < high else "by round"
    table = _table("cluster", "size", measure_name(run.metric.name), scale)
    for name, size, values in lines:
        table.add_row(name, str(size or ""), number(_last(values)), _plot(values, blocks, low, high))
    return [table, *_rest(len(largest), "clusters")]


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(Text(column), no_wrap=True, overflow="ellipsis")
    return table


def _rest(count: int, what: str) -> list[RenderableType]:
    return [Text(f"and {count - LINES} more {what}")] if count > LINES else []


def _done(run: LiveRun) -> int:
    """How many rounds have been measured."""
    return int(run.rounds[-1]["round"]) + 1 if run.rounds else 0


def _series(run: LiveRun) -> list[float | None]:
    return [*numbers(run.rounds, f"served_{run.metric.name}")]


def _last(values: Values) -> float | None:
    return next((v for v in reversed(values) if v is not None), None)


def _best(values: Values, metric: Metric) -> tuple[int, float | None]:
    """The place of the best value, the first of equals, and the value."""
    sign = 1 if metric.mode == "max" else -1
    known = [(i, v) for i, v in enumerate(values) if v is not None]
    return max(known, key=lambda pair: sign * pair[1], default=(0, None))


def _moved(run: LiveRun) -> str:
    if run.moved_in is None:
        return "nobody so far"
    moves = listed([f"{cut(who)} {before} to {after}" for who, (before, after) in run.moves.items()], NAMED)
    since = " (the last one)" if run.moved_in + 1 == _done(run) else ", nobody since"
    return f"{moves} in round {run.moved_in + 1}{since}"


def _time(run: LiveRun, now: float) -> str:
    """How long a round takes, and when the run will have ended; how long it took, if it has."""
    seconds = [v for v in numbers(run.rounds, "seconds") if v is not None and v >= 0]
    if not seconds:
        return "-"
    each = sum(seconds[-RECENT:]) / len(seconds[-RECENT:])
    pace = f"{_span(each)} a round"
    if run.summary is not None:
        stopped = run.summary.get("stopped")
        return f"{pace}, {_span(sum(seconds))} in all" + (f"; ended early: {cut(stopped, 100)}" if stopped else "")
    if run.failed is not None or run.planned is None or run.changed is None:
        return f"{pace}; {_ago(run, now)}"
    # The round after the last one on record is done: its models are measured when the next one trains.
    idle = max(0.0, now - run.changed)
    if idle > 60 + 3 * each:
        return f"{pace}; nothing for {_span(idle)}"
    left = max(0.0, max(0, run.planned - _done(run) - 1) * each - idle)
    at = time.strftime("%H:%M:%S", time.localtime(now + left))
    return f"{pace}; about {_span(left)} left, until {at}"


def _ago(watched: Watched, now: float) -> str:
    return "not begun" if watched.changed is None else f"last round {_span(max(0.0, now - watched.changed))} ago"


def _span(seconds: float) -> str:
    """A length of time.

    >>> _span(4.2), _span(75), _span(7260), _span(200000)
    ('4.2 s', '1 min 15 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h" if hours < 24 * 10**6 else "very long"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min {int(seconds) % 60} s"


def _range(series: Iterable[Values]) -> tuple[float, float]:
    known = [v for values in series for v in values if v is not None]
    return (min(known), max(known)) if known else (0.0, 0.0)


def _plot(values: Values, blocks: str, low: float, high: float) -> str:
    """A line of blocks; of more rounds than it is wide, the mean of those that share a block.

    >>> _plot([0.0, None, 0.5, 1.0], BLOCKS, 0.0, 1.0)
    '▁ ▅█'
    """
    width = min(WIDE, len(values))
    line = ""
    for i in range(width):
        part = [v for v in values[i * len(values) // width : (i + 1) * len(values) // width] if v is not None]
        height = sum(part) / len(part) if part else low
        share = (height - low) / (high - low) if high > low else 0.5
        line += blocks[min(len(blocks) - 1, max(0, int(share * len(blocks))))] if part else " "
    return line
