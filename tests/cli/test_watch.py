# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``cfl-flare watch``."""

import pytest

from cfl_flare.cli import main
from cfl_flare.cli.watch import Screen
from tests.tiny import rounds


def test_what_there_is_now(tmp_path, capsys):
    for name in ("one", "two"):
        rounds(tmp_path / name)
    assert main(["watch", str(tmp_path / "one"), "--once"]) == 0
    assert "wecfl" in capsys.readouterr().out
    assert main(["watch", str(tmp_path)]) == 0  # all have ended: so does this
    shown = capsys.readouterr().out
    assert "one" in shown and "two" in shown and shown.count("ended") == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--once"], "holds no run yet; wait for its first round"),
        (["--every", "0"], "--every = 0.0 should be a number of seconds in 0.1..3600"),
        (["--every", "nan"], "--every = nan should be"),
    ],
)
def test_refusals_are_one_line(tmp_path, capsys, options, reason):
    assert main(["watch", str(tmp_path), *options]) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1


def test_a_folder_that_is_not_there(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "none")]) == 2
    assert "is not a folder; name that of a run" in capsys.readouterr().err


def test_ctrl_c_ends_it_cleanly(tmp_path, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    assert main(["watch", str(tmp_path)]) == 0


def test_runs_that_begin_later_are_found_and_one_alone_is_waited_for(tmp_path):
    screen = Screen(tmp_path)
    screen.refresh()
    assert not screen.ended
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "rounds.jsonl").write_text("")
    screen.refresh()
    rounds(tmp_path / "two")
    screen.refresh()
    assert len(screen.runs) == 2 and not screen.ended
