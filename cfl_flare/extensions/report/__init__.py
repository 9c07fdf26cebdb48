# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Reports: HTML pages, figures, comparisons of runs, and model cards.

Adds: the commands ``report`` and ``card``, the option ``--figure`` of ``partition``, the figures of ``show``, and the
file ``report.html`` of a run, a study or several runs that have just ended.
Hooks: `commands`, `extend_command`, `present_results`.
Requires: no other extension. It reads what a run left on disk and imports no torch.

A section of a report is a function: it takes a view of the run or study and gives a
`cfl_flare.extensions.report.page.Section`, or None if there is nothing to show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cfl_flare.extensions import Command, Extension

if TYPE_CHECKING:
    from cfl_flare.cli.options import Parser
    from cfl_flare.results.run_dir import Run


class Report(Extension):
    """Presents results as pages and figures."""

    name = "report"
    commands = {  # noqa: RUF012
        "report": Command(
            "cfl_flare.extensions.report.commands",
            "write the report of a study or a run, or a comparison of runs, as one HTML file",
        ),
        "card": Command(
            "cfl_flare.extensions.report.card_command",
            "write a model card for each model of a run",
        ),
    }

    def extend_command(self, name: str, command: Parser) -> None:
        """Let ``show`` and ``partition`` draw figures, and ``study`` name its report."""
        if name not in ("show", "study", "partition"):
            return
        from cfl_flare.extensions.report import commands

        wrappers: dict[str, Callable[..., None]] = {
            "show": commands.show_figures,
            "study": commands.name_report,
            "partition": commands.draw_partition,
        }
        if name == "partition":
            commands.add_figure_option(command)
        execute = command.get_default("execute")
        command.set_defaults(execute=partial(wrappers[name], execute))

    def present_results(self, folder: Path, runs: Sequence[Run]) -> str | None:
        """Write the report and draw the figures."""
        try:
            from cfl_flare.extensions.report.write import try_to_write
        except ImportError as error:
            hint = "'cfl-flare report' writes it from the results"
            return f"no report: {error}; {hint}"
        return try_to_write(folder, runs)


EXTENSION = Report()
