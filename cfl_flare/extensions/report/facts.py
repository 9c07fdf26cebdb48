# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What was run, what came of it for each participant, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cfl_flare.data.classes import list_names
from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.page import (
    SUPPORTED,
    Plot,
    Section,
    Table,
    View,
    cluster_label,
    pairs,
    thinned,
)
from cfl_flare.results.bootstrap import tenth_of, told_apart
from cfl_flare.results.gate import gate_lines
from cfl_flare.results.metrics import POOLED, POOLED_F1, of_training
from cfl_flare.results.remarks import IMPROVING, floor_in_run, listed, missed_rounds
from cfl_flare.results.schema import number as is_number
from cfl_flare.results.tables import ROWS
from cfl_flare.results.wording import (
    axis_title,
    cut,
    finite,
    interval,
    measure_name,
    number,
)

# Of a class with fewer test samples participants say that alone; see `cfl_flare.engine.observers.bootstrap`.
FEWEST = 10
# Participants without a measure that are named, and other measures that get a column.
NAMED, OTHERS = 20, 4
# The summary's parts that are settings, the most characters of a setting, and the most settings.
PARTS = (
    "method",
    "model",
    "data",
    "training",
    "run",
    "private",
    "seed",
    "initial_ckpt",
    "resumed_at",
    "name",
)
WIDTH, SETTINGS = 200, 300


def head(view: View) -> Section:
    """The run's facts, and its result in one sentence: with its interval, or that nothing can be claimed."""
    summary, name, text = view.run.summary, cut(view.run.name), []
    value, ends = (
        summary["final"].get(view.measure),
        summary.get("intervals", {}).get(view.measure),
    )
    count, everyone = view.run.defined(view.measure)
    over = f"{count} of {everyone}" if count < everyone else f"{everyone}"
    whose = (
        ", as their training script reports it"
        if view.run.script
        else "' own test splits"
    )
    result = (
        f"{name}: the served models' {view.measure_name} is {number(value)} on average over {over} participants"
        f"{whose}, weighted by {view.unit}"
    )
    if value is None:
        text.append(f"{name}: no {view.measure_name} was measured of the final models.")
    elif ends:
        text += [
            f"{result}; 95 % of the draws of the test splits lie from {interval(ends)}.",
            "The interval is of the test samples alone: it does not say how much another seed would change the models.",
        ]
    else:
        nothing = "so this describes one run and claims nothing beyond it."
        text.append(f"{result}. No interval was measured (see bootstrap), {nothing}")
    text += [cut(line, 500) for line in floor_in_run(summary, view.run.rounds)]
    text += [f"{cut(line, 500)}." for line in gate_lines(summary)]
    if summary.get(IMPROVING):
        text.append(f"The run is {cut(summary[IMPROVING], 300)}.")
    if summary.get("stopped"):
        text.append(f"The run ended early: {cut(summary['stopped'], 200)}.")
    return Section("Result", text, tables=[("The run", _facts(view))])


def _facts(view: View) -> Table:
    summary, final, metric = (
        view.run.summary,
        view.run.summary["final"],
        view.run.metric,
    )
    training, data, model = (
        part if isinstance(part := summary.get(key), dict) else {}
        for key in ("training", "data", "model")
    )
    weights = [
        weight
        for person in view.people
        if (weight := finite(view.weight(person))) is not None
    ]
    spread = (
        f"{number(sum(weights))} ({number(min(weights))} to {number(max(weights))} each)"
        if weights
        else None
    )
    clipped = [
        count
        for person in view.people
        if isinstance(count := person.get("clipped"), int)
    ]
    used, joined = [size for size in view.last_sizes if size], view.run.newcomers or {}
    tenth = tenth_of(view.run)
    end = (
        "nobody says which end is best" if metric.mode is None else f"{metric.mode}imum"
    )
    rows: list[tuple[str, Any]] = [
        ("method", view.run.name),
        (
            "task",
            training.get("task", "classification")
            if isinstance(summary.get("training"), dict)
            else None,
        ),
        ("judged by", f"{metric.name} ({end})"),
        ("classes by number", list_names(summary.get("classes", [])) or None),
        ("class 1, the positive one", summary.get("positive")),
        ("accuracy of naming the most frequent class", number(summary.get("majority"))),
        ("rounds", summary["rounds"]),
        ("participants", len(view.people)),
        ("sites", len({person.get("site") for person in view.people} - {None}) or None),
        ("training script", view.run.script),
        (f"{view.unit} of the last round" if view.run.script else view.unit, spread),
        ("numbers of tables that are clipped", sum(clipped) if clipped else None),
        ("dealt out by", _partition(data.get("partition"))),
        ("model", model.get("class_path")),
        (
            "clusters in use",
            f"{len(used)} (with {', '.join(map(str, used[:20]))} participants)"
            if used
            else None,
        ),
        (
            f"worst tenth, {view.measure_name}",
            tenth and f"{number(tenth[0])} (95 % interval {interval(tenth[1])})",
        ),
        ("AUROC over all samples", number(final.get(POOLED))),
        ("macro-F1 over all samples", number(final.get(POOLED_F1))),
        ("agreement with the true groups (ARI)", number(final.get("ari"))),
        (
            f"{view.measure_name} of participants that joined afterwards",
            number(joined.get(view.measure)),
        ),
    ]
    return pairs(rows)


def _partition(rule: Any) -> str | None:
    """A partition as the command line writes it."""
    if not isinstance(rule, dict) or not rule.get("partition"):
        return None
    settings = ",".join(
        f"{key}={value}" for key, value in rule.items() if key != "partition"
    )
    return f"{rule['partition']}:{settings}".rstrip(":")


def participants(view: View) -> Section | None:
    """A point for each participant, cluster by cluster, with its interval if the run has one.

    Of equal participants one is the worst by chance. So they stand in no order of what they measured.
    """
    key, people = (
        view.measure_at_site,
        {person["name"]: person for person in view.people},
    )
    name_of = measure_name(key)
    measured = {
        name: value
        for name in view.by_cluster
        if (value := finite(people[name].get(key))) is not None
    }
    if not measured:
        return None
    unmeasured = [name for name in people if name not in measured]
    intervals = {
        name: ends
        for name, p in people.items()
        if (ends := p.get("intervals", {}).get(key))
    }
    drawn, labels_of = (
        thinned([*measured], ROWS),
        {name: cluster_label(k) for name, k in view.clusters.items()},
    )
    points = [
        (view.shown[name], measured[name], labels_of[name], intervals.get(name))
        for name in drawn
    ]
    labels = [
        cluster_label(k)
        for k in sorted({k for k in view.clusters.values() if k is not None})
    ]
    labels += ["no cluster"] if None in view.clusters.values() else []
    text = f"Cluster by cluster, each measured {view.measured_on}. " + (
        f"The lines are 95 % intervals from draws of its test split. {_standing(view, measured, intervals)}"
        if intervals
        else "The run measured no intervals, so participants cannot be told apart."
    )
    notes = []
    if unmeasured:
        notes.append(
            f"Not defined or not measured for {len(unmeasured)} of {len(people)}: "
            f"{listed([view.shown[name] for name in unmeasured], NAMED)}. "
            "A test split with one class has no AUROC, for example; an absent participant measures nothing."
        )
    if any(ends and finite(ends[0]) == finite(ends[1]) for *_, ends in points):
        notes.append(
            "An interval without width is no certainty: all draws of a small test split gave the same, as where "
            "no sample of it is wrong."
        )
    counts = view.run.summary.get("test_classes") or {}
    if any(None in (counts.get(name) or ()) for name in people):
        notes.append(
            f"A class with fewer than {FEWEST} test samples of a participant is marked: a figure of it is chance. "
            "It is in no supported F1, unless the task's setting support is lower."
        )
    if len(drawn) < len(measured):
        notes.append(
            f"{len(drawn)} of {len(measured)} participants are drawn, evenly spaced in this order."
        )
    table = _measures_of(
        [people[name] for name in (*measured, *unmeasured)], intervals, view
    )
    plot = Plot(
        f"{name_of} of each participant",
        text,
        vega.by_participant(points, labels, axis_title(name_of)),
        table,
    )
    return Section("Participants", plots=[plot], notes=notes)


def _standing(
    view: View, measured: Mapping[str, float], intervals: Mapping[str, Any]
) -> str:
    """Who is told apart from all others, if anybody is."""
    worst, best = told_apart(
        measured,
        {name: tuple(ends) for name, ends in intervals.items()},
        view.run.metric,
    )
    apart = [
        f"{view.shown[name]} is the {end}"
        for name, end in ((worst, "worst"), (best, "best"))
        if name is not None
    ]
    beyond = (
        "Its interval lies beyond all others."
        if len(apart) == 1
        else "Their intervals lie beyond all others."
    )
    return (
        f"{' and '.join(apart)}. {beyond}"
        if apart
        else "Intervals overlap: nobody is told apart as worst or best."
    )


def _support(view: View, name: str) -> str:
    """A participant's test samples by class."""
    counts = (view.run.summary.get("test_classes") or {}).get(name)
    if not counts:
        return "-"
    return cut(
        ", ".join(
            f"{k}: {f'<{FEWEST} (!)' if n is None else n}" for k, n in enumerate(counts)
        ),
        WIDTH,
    )


def _measures_of(
    people: list[dict[str, Any]], intervals: Mapping[str, Any], view: View
) -> Table:
    key, counted = view.measure_at_site, bool(view.run.summary.get("test_classes"))
    keys = dict.fromkeys(
        k
        for person in people
        for k, v in person.items()
        if k.startswith("served_") and is_number(v)
    )
    less = {key, *(("served_macro_f1",) if SUPPORTED in keys else ())}
    others = [name for name in keys if name not in less and not of_training(name)][
        :OTHERS
    ]
    rows = []
    for person in people:
        name, value = person["name"], finite(person.get(key))
        row = [
            view.shown[name],
            cluster_label(view.clusters[name]),
            number(view.weight(person)),
        ]
        row.append("not defined" if value is None else number(value))
        row += [interval(intervals.get(name))] if intervals else []
        row += [_support(view, name)] if counted else []
        rows.append([*row, *(number(person.get(other)) for other in others)])
    columns = [
        "participant",
        "cluster",
        view.unit,
        measure_name(key),
        *(["95 % interval"] if intervals else []),
    ]
    columns += ["test samples by class"] if counted else []
    return Table([*columns, *map(measure_name, others)], rows)


def failures(view: View) -> Section:
    """Sites left out, missed rounds, refused answers."""
    summary, tables = view.run.summary, []
    if left_out := summary.get("sites_left_out"):
        rows = [[cut(site), cut(reason, WIDTH)] for site, reason in left_out.items()]
        tables.append(("Sites that took no part", Table(("site", "reason"), rows)))
    if missed := missed_rounds(view.run.rounds):
        whom = {name: view.shown.get(name, cut(name)) for name in missed}
        rows = [
            [whom[name], f"{m.rounds} of {m.asked}", cut(m.reason, WIDTH)]
            for name, m in missed.items()
        ]
        tables.append(
            (
                "Missed rounds",
                Table(("participant", "rounds missed", "most frequent reason"), rows),
            )
        )
    rejected = summary.get("rejected")
    if isinstance(rejected, Mapping) and rejected:
        rows = [[cut(code), cut(count)] for code, count in rejected.items()]
        tables.append(("Refused answers", Table(("reason", "answers"), rows)))
    nothing = "No answer was refused, and no participant that was asked missed a round."
    return Section("Failures", [] if tables else [nothing], tables=tables)


def settings(view: View) -> Section:
    summary = view.run.summary
    tables = [
        (
            "Settings",
            settings_table({part: summary[part] for part in PARTS if part in summary}),
        )
    ]
    versions = summary.get("versions")
    if isinstance(versions, Mapping):
        tables.append(
            (
                "Versions",
                Table(
                    ("software", "version"),
                    [[cut(n), cut(v)] for n, v in versions.items()],
                ),
            )
        )
    return Section("Settings and versions", tables=tables)


def settings_table(values: Mapping[str, Any]) -> Table:
    """Settings by their dotted names."""
    rows = [
        [cut(n, 100), cut(v, WIDTH)]
        for name, value in values.items()
        for n, v in flattened(name, value)
    ]
    return Table(("setting", "value"), rows, SETTINGS)


def flattened(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A setting's parts, three levels deep, without those that are not set.

    >>> list(flattened("run", {"a": 1, "b": {"c": None, "d": []}}))
    [('run.a', 1)]
    """
    if isinstance(value, Mapping) and value and name.count(".") < 3:
        for key, part in value.items():
            yield from flattened(f"{name}.{key}", part)
    elif value not in (None, [], {}, ""):
        yield name, value
