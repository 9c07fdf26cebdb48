# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What is shown of a run while it runs."""

import io
import json
import os
from pathlib import Path

from rich.console import Console

from cfl_flare.core.files import held
from cfl_flare.report.watch import BLOCKS, LETTERS, frame, overview
from cfl_flare.results.job_record import Attempt
from cfl_flare.results.live import LiveRun, LiveSite
from tests.report.made import HOSTILE


def text(what: object, width: int = 80) -> str:
    console = Console(width=width, no_color=True, file=io.StringIO(), record=True)
    console.print(what)
    return console.export_text()


def begun(folder: Path, worst: str = "a") -> LiveRun:
    """Two of five rounds of three participants, of whom one moved and one missed a round."""
    plan = {"label": "wecfl", "rounds": 5, "metrics": [{"name": "accuracy", "mode": "max"}]}
    (folder / "started.json").write_text(json.dumps(plan))
    alive = held(folder / "started.json")
    records = [
        {"round": r, "cluster_sizes": [1, 2], "seconds": 10.0, "bytes_down": 1000, "bytes_up": 2000,
         "trained": [worst] if r else [worst, "b"], "failed": {"b": "no result in time"} if r else {},
         "served_accuracy": value, "served_worst_accuracy": value - 0.25,
         "worst_participants": {"accuracy": {worst: value - 0.25, "b": value}},
         "clusters": {"cluster-0": {"served_accuracy": 0.5}, "cluster-1": {"served_accuracy": 1.0}}}
        for r, value in enumerate((0.75, 0.5))
    ]  # fmt: skip
    moves = [{"round": r, "participant": worst, "cluster": r} for r in range(2)]
    for name, lines in (("rounds.jsonl", records), ("assignments.jsonl", moves)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(folder / "rounds.jsonl", (1000, 1000))
    run = LiveRun(folder)
    run.refresh()
    run.alive = alive
    return run


def test_a_run_whose_process_is_gone_is_not_running(tmp_path):
    run = begun(tmp_path)
    run.alive.close()
    run.refresh()
    shown = text(frame(run, now=1005))
    assert "wecfl: ended without results: its process is gone" in shown and run.finished
    assert not any(word in shown for word in ("left", "running", "nothing for"))
    Attempt(tmp_path, "ward").end("3 rounds in a row had fewer than 2 valid results")
    run.refresh()
    assert "ended without results: 3 rounds in a row had fewer than 2" in text(frame(run, now=1005))


def test_a_run_that_runs(tmp_path):
    shown = text(frame(begun(tmp_path), now=1005))
    for part in (
        "wecfl: running",
        "2 of 5 measured",
        "0.500 now, best 0.750 after round 1",
        "a 0.250, b 0.500",
        "a 0 to 1 in round 2 (the last one)",
        "b: 1 of 2 rounds: no result in time",
        "2.0 kB down, 4.0 kB up",
        "10.0 s a round; about 15.0 s left",  # two rounds to train, 5 seconds after the last line
        "by round, 0.500 to 1.000",
    ):
        assert part in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["all", "3", "0.500", "▅▁"] in rows and ["1", "2", "1.000", "██"] in rows
    assert "nothing for 5 min 0 s" in text(frame(begun(tmp_path), now=1300))


def test_a_terminal_of_letters_only(tmp_path):
    shown = text(frame(begun(tmp_path), 1005, LETTERS))
    assert not {*BLOCKS} & {*shown} and "=_" in shown


def test_nothing_of_a_file_is_obeyed_or_wider_than_the_terminal(tmp_path):
    for i, name in enumerate((*HOSTILE, "[red]x[/red]", "x" * 900)):
        folder = tmp_path / str(i)
        folder.mkdir()
        run = begun(folder, worst=name)
        shown = text(frame(run, 1005)) + text(overview([run, run], [name, "b"], 1005))
        assert "\x1b" not in shown and "\u202e" not in shown and "\u2028" not in shown
        assert max(map(len, shown.splitlines())) <= 80
        if "red" in name and "\x1b" not in name:
            assert "[red]x[/red]" in shown


def test_an_empty_folder_and_one_that_is_gone(tmp_path):
    assert "no round recorded yet" in text(frame(LiveRun(tmp_path), 0))
    run = begun(tmp_path)
    (tmp_path / "rounds.jsonl").unlink()
    run.refresh()
    assert "the files are gone" in text(frame(run, 1005))


def test_a_site_s_own_history(tmp_path):
    notes = [
        {"round": r, "participant": name, "models": ["cluster-1"], "trained": name == "a", "failed": failed,
         "metrics": {"served_accuracy": value}, "last": r == 1}
        for r in range(2)
        for name, value, failed in (("a", 1.0, None), ("b", 0.5, "data"))
    ]  # fmt: skip
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    site = LiveSite(tmp_path)
    site.refresh()
    rows = [line.split() for line in text(frame(site, 0)).splitlines()]
    assert site.finished and rows[0][-3:] == ["1", "rounds,", "ended"]  # the last exchange only measures
    assert rows[2:4] == [["b", "0", "cluster-1", "0.500", "▁▁", "2:", "data"], ["a", "2", "cluster-1", "1.000", "██"]]
