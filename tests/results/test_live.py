# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run's files while they grow, shrink, vanish and break; and what a site keeps of a run for itself."""

import json
from pathlib import Path

import pytest

from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.results.job_record import READY, SILENT, Attempt, unfinished
from cfl_flare.results.live import LiveRun, LiveSite, find_live, live, numbers
from cfl_flare.results.recorder import Recorder
from cfl_flare.results.run_dir import HISTORY, Note, keep_notes, load_run, read_notes
from tests.tiny import rounds


def write(folder: Path, name: str, *lines: object, mode: str = "w") -> None:
    with (folder / name).open(mode) as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def line(number: int, **more: object) -> dict[str, object]:
    return {"round": number, "cluster_sizes": [2, 1], **more}


def test_lines_are_read_once_they_are_complete(tmp_path):
    run = LiveRun(tmp_path)
    run.refresh()
    assert run.rounds == [] and run.changed is None and not run.gone
    write(tmp_path, "rounds.jsonl", line(0))
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 1, "cluster_')
    run.refresh()
    assert [one["round"] for one in run.rounds] == [0]
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('sizes": [3]}\n')
    run.refresh()
    run.refresh()
    assert [one["round"] for one in run.rounds] == [0, 1] and run.damaged == 0


def test_a_file_that_shrinks_or_is_replaced_begins_anew(tmp_path):
    write(tmp_path, "rounds.jsonl", line(0), line(1), line(2))
    run = LiveRun(tmp_path)
    run.refresh()
    write(tmp_path, "rounds.jsonl", line(7))  # the same file, shorter
    run.refresh()
    assert [one["round"] for one in run.rounds] == [7]
    write(tmp_path, "new", line(8), line(9))
    (tmp_path / "new").replace(tmp_path / "rounds.jsonl")  # another file, longer
    run.refresh()
    assert [one["round"] for one in run.rounds] == [8, 9]


def test_files_that_vanish_leave_what_was_read(tmp_path):
    write(tmp_path, "rounds.jsonl", line(0))
    run = LiveRun(tmp_path)
    run.refresh()
    (tmp_path / "rounds.jsonl").unlink()
    run.refresh()
    assert run.gone and len(run.rounds) == 1


@pytest.mark.parametrize("bad", ["nonsense", "[]", '{"round": -1, "cluster_sizes": []}', '{"round": 1}', "\xff"])
def test_lines_that_cannot_be_read_are_counted_and_left_out(tmp_path, bad):
    (tmp_path / "rounds.jsonl").write_bytes(
        json.dumps(line(0)).encode() + b"\n" + bad.encode("latin-1") + b"\n" + json.dumps(line(2)).encode() + b"\n"
    )
    run = LiveRun(tmp_path)
    run.refresh()
    assert [one["round"] for one in run.rounds] == [0, 2] and run.damaged == 1


def test_a_folder_or_a_pipe_in_place_of_a_file_is_no_file(tmp_path):
    (tmp_path / "rounds.jsonl").mkdir()
    (tmp_path / "started.json").write_text("[1]")
    (tmp_path / "summary.json").write_text('{"label": 3}')
    run = LiveRun(tmp_path)
    run.refresh()
    assert (run.rounds, run.planned, run.finished, run.label) == ([], None, False, "")


def test_who_moved_last(tmp_path):
    def assigned(number: int, **clusters: object) -> list[dict[str, object]]:
        return [{"round": number, "participant": name, "cluster": k} for name, k in clusters.items()]

    run = LiveRun(tmp_path)
    write(tmp_path, "assignments.jsonl", *assigned(0, a=0, b=1, c=None), *assigned(1, a=1, b=0, c=0))
    run.refresh()
    assert (run.moved_in, run.moves) == (1, {"a": (0, 1), "b": (1, 0)})  # c had none before
    write(tmp_path, "assignments.jsonl", *assigned(2, a=1, b=0, c=0), *assigned(3, a=1, b=0, c=1), mode="a")
    run.refresh()
    assert (run.moved_in, run.moves) == (3, {"c": (0, 1)})


def test_the_metric_is_the_one_that_the_run_will_be_judged_by(tmp_path):
    named = [{"name": "loss", "mode": "min"}, {"name": "dice", "mode": "max"}]
    write(tmp_path, "started.json", {"label": "wecfl", "rounds": 4, "metrics": named})
    write(tmp_path, "rounds.jsonl", line(0, served_worst_dice=0.25, served_dice=0.5))
    run = LiveRun(tmp_path)
    run.refresh()
    assert (run.label, run.planned, run.metric.name, run.metric.mode) == ("wecfl", 4, "dice", "max")


def test_a_real_run_is_followed_to_its_end(tmp_path):
    rounds(tmp_path, count=3)
    run = live(tmp_path)
    run.refresh()
    assert run.finished and run.rounds == load_run(tmp_path).rounds
    named = [line["worst_participants"] for line in run.rounds]  # c does not answer in the second round
    assert named[0] == {"accuracy": dict.fromkeys("abd", 0.5)} and named[1] == {"accuracy": dict.fromkeys("abcd", 0.5)}


def test_a_run_lives_as_long_as_its_process(tmp_path):
    recorder = Recorder(tmp_path, {}, {})
    recorder.begin("wecfl", 5, [])
    run = LiveRun(tmp_path)
    run.refresh()
    assert run.failed is None and not run.finished
    del recorder
    run.refresh()
    assert run.failed == "its process is gone" and run.finished
    assert unfinished(tmp_path) == [f"{tmp_path.name}: no results after 0 of 5 rounds"]


def test_what_is_known_of_a_job_without_results(tmp_path):
    """FLARE ends a job from outside if a site's process dies: then there is what was written before."""
    folder = tmp_path / "workspace" / "cfl"
    attempt = Attempt(folder, "ward")
    attempt.note(dict.fromkeys(("a", "b", "c"), SILENT))
    attempt.hear("a")
    attempt.note({"b": "columns: its table's columns are not those"})
    told = unfinished(tmp_path)
    assert told[0] == "ward: no results in its check of the sites"
    assert told[1:4] == [
        "- a: it has not answered",
        "- b: columns: its table's columns are not those",
        f"- c: {SILENT}",
    ]
    assert told[4].endswith("does that: cfl-flare site check --kit KIT") and len(told) == 5
    attempt.note({"a": READY, "c": READY}, checked_in=True)
    write(folder, "rounds.jsonl", line(0, trained=["a"], failed={"c": "no result in time"}))
    attempt.end("too few\x1b[2J answers")
    detail = ["server: OK", "d: not authorized", 7]
    (tmp_path / "meta.json").write_text(json.dumps({"status": "FINISHED:ABNORMAL", "job_deploy_detail": detail}))
    refused = (
        "Component 'cfl_flare.flare.controller.ClusteredController' at config path 'workflows.#1' is not in allow_list"
    )
    (tmp_path / "workspace" / "error_log.txt").write_text(f"ComponentNotAuthorized: {refused}\n")
    told = unfinished(tmp_path)
    assert {"FLARE: FINISHED:ABNORMAL", "- d: not authorized"} < {*told}
    assert told[0].startswith("ward: no results; it ended after 1 rounds: too few") and told[0].isprintable()
    assert "- c: missed 1 of 1 rounds: no result in time" in told
    assert told[-1].startswith(
        "the server's kit does not allow cfl_flare.flare.controller.ClusteredController; let its"
    )
    (folder / "job.json").write_text("[]")
    assert any("is a list, not an object" in one for one in unfinished(tmp_path))
    attempt.done()
    assert unfinished(tmp_path / "workspace" / "cfl") == []


def test_numbers_are_finite_or_none():
    lines = [{"a": {"b": 1}}, {"a": {"b": float("nan")}}, {"a": {"b": "1"}}, {"a": 3}, {}, {"a": {"b": True}}]
    assert [*numbers(lines, "a", "b")] == [1.0, None, None, None, None, None]


def test_runs_and_sites_histories_are_found(tmp_path):
    for place, name in (("x/one", "started.json"), ("x/two", "summary.json"), ("site", "history.jsonl")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / name).write_text("")
    found = find_live(tmp_path)
    assert found == [tmp_path / "site", tmp_path / "x" / "one", tmp_path / "x" / "two"]
    assert [type(live(one)) for one in found] == [LiveSite, LiveRun, LiveRun]
    assert find_live(tmp_path / "x" / "one") == [tmp_path / "x" / "one"]
    with pytest.raises(ConfigError, match="not a folder; name that of a run"):
        find_live(tmp_path / "none")


def note(number: int, **more) -> Note:
    return Note(**{"round": number, "participant": "ward", "models": ["cluster-1"], "trained": True, "failed": None,
                   "metrics": {"served_accuracy": 0.5}, **more})  # fmt: skip


def test_what_is_kept_is_read_again(tmp_path):
    folder = tmp_path / "run" / "site-1"
    keep_notes(folder, 0, [note(0), note(0, participant="b", trained=False, failed="data", metrics={})], first=True)
    keep_notes(folder, 1, [note(1)], first=False)
    assert [(own.round, own.participant, own.failed) for own in read_notes(folder)] == [
        (0, "ward", None),
        (0, "b", "data"),
        (1, "ward", None),
    ]


def test_a_process_that_begins_again_replaces_its_rounds(tmp_path):
    for number in range(3):
        keep_notes(tmp_path, number, [note(number)], first=number == 0)
    keep_notes(tmp_path, 1, [note(1, models=["global"])], first=True)
    assert [(own.round, *own.models) for own in read_notes(tmp_path)] == [(0, "cluster-1"), (1, "global")]
    keep_notes(tmp_path, 0, [note(0)], first=True)  # another run of this name
    assert [own.round for own in read_notes(tmp_path)] == [0]


@pytest.mark.parametrize("change", [{"trained": 1}, {"metrics": {"x": "y"}}, {"models": "global"}, {"round": -1}])
def test_a_damaged_line_is_refused(tmp_path, change):
    line = {"round": 0, "participant": "a", "models": [], "trained": True, "failed": None, "metrics": {}}
    line |= {"last": False, **change}
    (tmp_path / HISTORY).write_text(json.dumps(line) + "\n")
    with pytest.raises(FileError, match=next(iter(change))):
        read_notes(tmp_path)
