# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What was run, and what came of it, in one sentence."""

from __future__ import annotations

from typing import Any

from cfl_flare.report.html.section import Section, Table
from cfl_flare.report.html.text import cut, finite, interval, number
from cfl_flare.report.html.view import View
from cfl_flare.results.convergence import IMPROVING
from cfl_flare.results.floor import of_run
from cfl_flare.results.key_metric import POOLED, POOLED_F1


def head(view: View) -> Section:
    """The run's facts, and its result."""
    return Section("Result", text=[_result(view), *_reservations(view)], tables=[("The run", _facts(view))])


def _result(view: View) -> str:
    """The result with its interval; without one it is said that nothing can be claimed."""
    summary, name = view.run.summary, view.measure_name
    value, ends = summary["final"].get(view.measure), summary.get("intervals", {}).get(view.measure)
    count, everyone = view.run.defined(view.measure)
    if value is None:
        return f"{cut(view.run.name)}: no {name} was measured of the final models."
    over = f"{count} of {everyone}" if count < everyone else f"{everyone}"
    found = f"the served models' {name} is {number(value)} on average over {over} participants"
    found += ", as their training script reports it" if view.run.script else "' own test splits"
    if ends:
        within = f"95 % of the draws of the test splits lie from {interval(ends)}"
        return f"{cut(view.run.name)}: {found}, weighted by {view.unit}; {within}."
    return (
        f"{cut(view.run.name)}: {found}, weighted by {view.unit}. No interval was measured (see bootstrap), so "
        "this describes one run and claims nothing beyond it."
    )


def _reservations(view: View) -> list[str]:
    """What a reader should know before using the result."""
    summary, found = view.run.summary, []
    if summary.get("intervals", {}).get(view.measure):
        found.append(
            "The interval is of the test samples alone: it does not say how much another seed would change the models."
        )
    found += [cut(sentence, 500) for sentence in of_run(summary, view.run.rounds)]
    if summary.get(IMPROVING):
        found.append(f"The run is {cut(summary[IMPROVING], 300)}.")
    if summary.get("stopped"):
        found.append(f"The run ended early: {cut(summary['stopped'], 200)}.")
    return found


def _facts(view: View) -> Table:
    summary, people = view.run.summary, view.people
    training, data = summary.get("training"), summary.get("data")
    weights = [weight for own in people if (weight := finite(view.weight(own))) is not None]
    spread = f"{number(sum(weights))} ({number(min(weights))} to {number(max(weights))} each)" if weights else None
    sites = {own.get("site") for own in people} - {None}
    clipped = [own["clipped"] for own in people if isinstance(own.get("clipped"), int)]
    rows: list[tuple[str, Any]] = [
        ("method", view.run.name),
        ("task", training.get("task", "classification") if isinstance(training, dict) else None),
        ("judged by", f"{view.metric.name} ({view.metric.mode}imum)"),
        ("class 1, the positive one", summary.get("positive")),
        ("accuracy of naming the most frequent class", _known(summary.get("majority"))),
        ("rounds", summary["rounds"]),
        ("participants", len(people)),
        ("sites", len(sites) or None),
        ("training script", view.run.script),
        (f"{view.unit} of the last round" if view.run.script else view.unit, spread),
        ("numbers of tables that are clipped", sum(clipped) if clipped else None),
        ("dealt out by", _partition(data.get("partition") if isinstance(data, dict) else None)),
        ("model", summary["model"].get("class_path") if isinstance(summary.get("model"), dict) else None),
        ("clusters in use", _sizes(view)),
        (f"worst {view.measure_name}", number(summary["final"].get(f"served_worst_{view.metric.name}"))),
        ("AUROC over all samples", _known(summary["final"].get(POOLED))),
        ("macro-F1 over all samples", _known(summary["final"].get(POOLED_F1))),
        ("agreement with the true groups (ARI)", _known(summary["final"].get("ari"))),
        *(_newcomers(view)),
    ]
    return Table(("what", "value"), [(name, cut(value, 200)) for name, value in rows if value not in (None, "-")])


def _known(value: Any) -> str | None:
    return None if value is None else number(value)


def _partition(rule: Any) -> str | None:
    """A partition as the command line writes it."""
    if not isinstance(rule, dict) or not rule.get("partition"):
        return None
    settings = ",".join(f"{key}={value}" for key, value in rule.items() if key != "partition")
    return f"{rule['partition']}:{settings}".rstrip(":")


def _sizes(view: View) -> str | None:
    sizes = view.run.rounds[-1]["cluster_sizes"] if view.run.rounds else []
    used = [size for size in sizes if size]
    return f"{len(used)} (with {', '.join(map(str, used[:20]))} participants)" if used else None


def _newcomers(view: View) -> list[tuple[str, str]]:
    """Of participants that were held back and joined afterwards."""
    value = (view.run.newcomers or {}).get(view.measure)
    return [] if value is None else [(f"{view.measure_name} of participants that joined afterwards", number(value))]
