# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a report consists of, a run as its sections look at it, and the page, which allows its own two scripts alone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from importlib.resources import files
from typing import Any, TypeVar, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cfl_flare.core import __version__
from cfl_flare.core.config import one_line
from cfl_flare.extensions.report import vega
from cfl_flare.results.run_dir import Run
from cfl_flare.results.tables import Table
from cfl_flare.results.wording import cut, finite, measure_name, number, unique

T = TypeVar("T")

# Rounds on an axis: more points than that are closer than a line is wide.
ROUNDS = 100
# Clusters that get a line of their own.
CLUSTERS = 10
# A measure of participants that leaves classes with few samples out.
SUPPORTED = "served_supported_f1"
# By line: its values by round.
Series = dict[str, dict[int, float]]


def pairs(rows: Iterable[tuple[Any, Any]]) -> Table:
    """A table of what is known."""
    known = [
        (cut(name), cut(value, 300))
        for name, value in rows
        if value not in (None, "", "-", {})
    ]
    return Table(("what", "value"), known)


@dataclass(frozen=True)
class Plot:
    """A plot in Vega-Lite, with how to read it, also for a screen reader, and its numbers as a table."""

    title: str
    text: str
    spec: dict[str, Any]
    table: Table


@dataclass(frozen=True)
class Section:
    """A part of the report: paragraphs, plots, tables that are shown openly, and notes on what was left out and why."""

    title: str
    text: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[tuple[str, Table]] = ()
    notes: Sequence[str] = ()


def thinned(items: Sequence[T], most: int) -> list[T]:
    """That many of them at most, evenly spaced, with the first and the last one.

    >>> thinned(range(100), 4)
    [0, 33, 66, 99]
    """
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def cluster_label(number: int | None) -> str:
    return "no cluster" if number is None else f"cluster-{number}"


@dataclass(frozen=True)
class View:
    """A run, with what several sections need of it."""

    run: Run

    @property
    def measure(self) -> str:
        """The name under which participants report the run's metric."""
        return f"served_{self.run.metric.name}"

    @property
    def measure_at_site(self) -> str:
        """That of a single participant: a macro-F1 is of classes with enough samples, if that was measured."""
        supported = self.run.metric.name == "macro_f1" and any(
            SUPPORTED in person for person in self.people
        )
        return SUPPORTED if supported else self.measure

    @property
    def measure_name(self) -> str:
        return measure_name(self.run.metric.name)

    @property
    def unit(self) -> str:
        """What a participant's weight counts."""
        return "steps" if self.run.script else "training samples"

    @property
    def measured_on(self) -> str:
        """On what each participant measures the model that it is served."""
        return (
            "as its training script does it"
            if self.run.script
            else "on its own test split"
        )

    def weight(self, person: dict[str, Any]) -> Any:
        """A participant's weight; None where its script reported none."""
        return person.get("steps" if self.run.script else "samples")

    @property
    def people(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", self.run.summary["participants"])

    @cached_property
    def shown(self) -> dict[str, str]:
        """Each participant's name as it is shown."""
        return unique([*dict.fromkeys(person["name"] for person in self.people)])

    @cached_property
    def clusters(self) -> dict[str, int | None]:
        """Each participant's last cluster."""
        last = {person["name"]: person.get("cluster") for person in self.people}
        return {
            name: k if isinstance(k, int) and k >= 0 else None
            for name, k in last.items()
        }

    @cached_property
    def by_cluster(self) -> list[str]:
        """The participants, cluster by cluster, those without one last."""
        return sorted(
            self.clusters,
            key=lambda name: (self.clusters[name] is None, self.clusters[name] or 0),
        )

    @cached_property
    def histories(self) -> dict[str, dict[int, int]]:
        """Each participant's cluster by round, where it had one."""
        history: dict[str, dict[int, int]] = {}
        for line in self.run.assignments:
            name, cluster = line["participant"], line["cluster"]
            if cluster is not None and name in self.shown:
                history.setdefault(name, {})[line["round"]] = cluster
        return history

    @property
    def last_sizes(self) -> list[int]:
        return (
            cast("list[int]", self.run.rounds[-1]["cluster_sizes"])
            if self.run.rounds
            else []
        )

    @cached_property
    def largest(self) -> list[int]:
        """The largest clusters of the last round, in the order of their numbers."""
        used = [k for k, size in enumerate(self.last_sizes) if size]
        return sorted(sorted(used, key=lambda k: -self.last_sizes[k])[:CLUSTERS])

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        return thinned(self.run.rounds, ROUNDS)

    @property
    def rounds_note(self) -> list[str]:
        """What is said where not all rounds are drawn."""
        total = len(self.run.rounds)
        return (
            []
            if total <= ROUNDS
            else [f"{ROUNDS} of {total} rounds are drawn, evenly spaced."]
        )

    def series(self, values: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Series:
        """The values of a round's record by line, of the rounds that are drawn; a line without any is left out."""
        lines: Series = {}
        for record in self.rounds:
            for label, value in values(record).items():
                line = lines.setdefault(label, {})
                if (value := finite(value)) is not None:
                    line[record["round"] + 1] = value
        return {label: line for label, line in lines.items() if line}

    def lines(self, keys: Mapping[str, str]) -> Series:
        """The numbers of a round's record under these keys, by line."""
        return self.series(
            lambda record: {label: record.get(key) for label, key in keys.items()}
        )

    def measured(self, name: str) -> Series:
        """A measure of a round's record: of all participants, and of the largest clusters."""

        def by_line(record: dict[str, Any]) -> dict[str, Any]:
            clusters = record.get("clusters")
            parts = (
                [(label, clusters.get(label)) for label in labels]
                if isinstance(clusters, dict)
                else []
            )
            return {"all": record.get(name)} | {
                label: p.get(name) for label, p in parts if isinstance(p, dict)
            }

        labels = [cluster_label(k) for k in self.largest]
        return self.series(by_line)


def line_plot(
    title: str,
    text: str,
    series: Series,
    axis: str,
    dashed: Sequence[str] = (),
    height: int = 260,
) -> Plot:
    """A line for each of the series over rounds, and a table with a column for each.

    The title of the axis of values is a fixed text; ``dashed`` are the labels of dashed lines.
    """
    labels = list(series)
    points = [
        {"r": r, "v": v, "c": label}
        for label, line in series.items()
        for r, v in line.items()
    ]
    rounds = sorted({r for line in series.values() for r in line})
    colour = vega.colour(labels, symbolType="stroke")
    dashes = {
        "domain": labels,
        "range": [[5, 4] if label in dashed else [1, 0] for label in labels],
    }
    dots = {"size": 22} if len(rounds) <= 40 else {"size": 60, "opacity": 0}
    spec = {
        "height": height,
        "data": {"values": points},
        "params": vega.CHOSEN,
        "mark": {"type": "line", "point": dots, "strokeWidth": 1.8},
        "encoding": {
            "x": vega.whole_axis("r", rounds, "round"),
            "y": vega.quantity("v", axis, zero=False),
            "color": colour,
            "strokeDash": {**colour, "scale": dashes},
            "opacity": vega.UNCHOSEN_FADES,
            "tooltip": vega.tips(c="line", r="round", v="value"),
        },
    }
    rows = [
        [str(r), *(number(line.get(r)) for line in series.values())] for r in rounds
    ]
    return Plot(title, text, spec, Table(("round", *series), rows))


def sections(
    subject: T, makers: Iterable[Callable[[T], Section | None]]
) -> list[Section]:
    """The sections of a run or study. Where its files hold what one cannot show, the others are shown all the same.

    There is a maker for each section; it returns None where there is nothing to show.
    """
    parts = []
    for make in makers:
        try:
            part = make(subject)
        except (
            Exception
        ) as error:  # whatever another program's numbers and names do to it
            reason = cut(one_line(error), 300)
            name = make.__name__.replace("_", " ").capitalize()
            part = Section(name, [f"The run's files do not allow this part: {reason}"])
        if part is not None:
            parts.append(part)
    return parts


def page(title: str, subtitle: str, parts: Sequence[Section]) -> str:
    """The HTML of a report; the first section's first paragraph is the result.

    Names and texts may be anybody's: the template escapes them, and the page's policy lets no other script run. A
    ConfigError says that there are plots, and what draws them is not installed.
    """
    plots = any(part.plots for part in parts)
    environment = Environment(
        loader=PackageLoader("cfl_flare.extensions.report", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    notice = (
        f"{file('notice.txt').strip()}\n\nFrom vl-convert-python {version('vl-convert-python')}."
        if plots
        else ""
    )
    environment.filters |= {
        "json": lambda value: Markup(vega.as_json(value)),
        "sha256": _sha256,
    }
    return environment.get_template("page.html.j2").render(
        title=title,
        subtitle=subtitle,
        sections=parts,
        style=Markup(file("style.css")),
        boot=Markup(file("boot.js")),
        library=Markup(vega.script() if plots else ""),
        notice=notice,
        config=vega.CONFIG,
        version=__version__,
    )


def file(name: str) -> str:
    return (
        files("cfl_flare.extensions.report")
        .joinpath(f"html/{name}")
        .read_text(encoding="utf-8")
    )


def _sha256(text: str) -> Markup:
    """The hash of a script or style, as the page's policy names it."""
    return Markup(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    )
