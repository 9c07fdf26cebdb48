# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command line."""

import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from cfl_flare.cli import main
from cfl_flare.cli.show import Screen
from cfl_flare.cli.specs import build_named
from cfl_flare.methods import FedDS
from cfl_flare.results.run_dir import load_run
from tests.tiny import rounds


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def cfl(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs a command in this process."""
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *words: Done(main(words), *capfd.readouterr())


def test_run_in_process_and_show(cfl, monkeypatch, tmp_path):
    out = tmp_path / "out"
    done = cfl(
        "run",
        "--loop",
        "--rounds",
        "3",
        "--method",
        "fesem:k=3",
        "--method",
        "ifca:k=2",
        "--method",
        "local",
        "--keep-features",
        "--out",
        str(out),
    )
    assert done.returncode == 0, done.stderr
    assert "fesem (K=3)" in done.stdout
    run = load_run(out / "fesem-k3")
    assert run.summary["rounds"] == 3 == len(run.feature_files)
    figures = {"accuracy.png", "cluster_sizes.png", "analysis.png", "flows.png"}
    assert {path.name for path in (out / "fesem-k3").glob("*.png")} == figures
    assert {path.name for path in (out / "local").glob("*.png")} == {"accuracy.png"}
    assert {path.name for path in out.glob("*.png")} == {"accuracy.png", "cluster_sizes.png"}
    for path in out.rglob("*.png"):
        path.unlink()
    monkeypatch.setenv("COLUMNS", "60")
    shown = cfl("show", str(out))
    assert shown.returncode == 0
    (line,) = [line.split() for line in shown.stdout.splitlines() if line.startswith("fesem (K=3)")]
    assert line[-2:] == [f"{run.summary['seconds']:.1f}", "fesem-k3"]  # a narrow terminal cuts nothing
    assert {path.name for path in out.glob("*.png")} == {"accuracy.png", "cluster_sizes.png"}
    assert {path.name for path in (out / "fesem-k3").glob("*.png")} == figures


def test_samples_that_were_never_scaled_are_noticed(cfl, tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"train": 80, "test": 40}
    images = {f"{k}_images": rng.integers(0, 256, (n, 8, 8)).astype(np.float32) for k, n in shapes.items()}
    np.savez(tmp_path / "raw.npz", **images, **{f"{k}_labels": np.arange(n) % 2 for k, n in shapes.items()})
    words = ["--data", str(tmp_path / "raw.npz"), "--participants", "2", "--partition", "iid", "--rounds", "1"]
    done = cfl("run", "--loop", "--method", "fedavg", *words, "--out", str(tmp_path / "out"))
    assert done.returncode == 0
    assert "look at the data: samples reach 255 where 0 to 1 is expected" in done.stdout


def test_indicator_samples_are_held_back_by_themselves_and_from_all_that_are_compared(cfl, tmp_path):
    words = ["run", "--loop", "--rounds", "1", "--out", str(tmp_path), "--method", "fedavg", "--method", "feddsmic:k=3"]
    done = cfl(*words)
    assert done.returncode == 0, done.stderr
    for run in (load_run(tmp_path / "fedavg"), load_run(tmp_path / "feddsmic-k3")):
        assert run.summary["data"]["indicator_samples"] == 10
        assert sum(p["samples"] for p in run.summary["participants"]) == 1347 - 10 * 10


def test_a_server_s_file_is_found_from_where_the_command_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.npz").touch()
    method = build_named("fedds:k=2,indicator_file=few.npz")
    assert isinstance(method, FedDS)
    assert method.indicator_file == str(tmp_path / "few.npz")


def test_methods_lists_everything(cfl):
    done = cfl("methods")
    assert done.returncode == 0
    for word in (
        "wecfl",
        "clustering_rounds (None)",
        "k (needed)",
        "label_permutation",
        "digits",
        "fashion-cnn",
        "Ghosh",
        "penalties (none)",
        "heterogeneity_tiers",
    ):
        assert word in done.stdout


def test_methods_lists_combinations_and_penalties_with_their_settings(cfl):
    done = cfl("methods")
    assert done.returncode == 0
    rows, name = {}, ""
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if len(cells) == 3:
            name = cells[0] or name
            rows.setdefault(name, []).append(cells[1])
    assert [s for s in rows["fedavg+"] if s.startswith(("k", "vote"))] == ["k (needed)", "vote (probabilities)"]
    assert {"vote (logits)", "k (needed)", "weighting (samples, uniform)"} <= set(rows["fedavg+fesem"])
    assert {"k (needed)", "warmup (10)", "weighting (samples)", "lam (0.01)"} <= set(rows["fesem-cam"])
    assert {"base (needed)", "updates (simultaneous)"} <= set(rows["cam"])
    assert {"parts (needed)", "vote (probabilities)"} <= set(rows["ensemble"])
    assert {"proximal", "contrastive", "knowledge_sharing"} <= rows.keys()
    assert "tau (1.0)" in rows["contrastive"]
    assert not [word for word in ("MISSING", "<class '", "dataclass", "()") if word in done.stdout]


def test_help_shows_how_to_choose(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["run", "--help"])
    printed = capsys.readouterr().out
    for option in ("--method", "--data", "--partition", "--participants", "--sites", "--rounds", "--out"):
        assert option in printed


@pytest.mark.parametrize("command", [("show", "nowhere"), ("run", "--method", "nope", "--out", "x")])
def test_bad_input_is_one_line_and_status_2(cfl, command):
    done = cfl(*command)
    assert done.returncode == 2
    assert done.stderr.startswith("cfl-flare: ")
    assert done.stderr.count("\n") == 1


def test_a_process_of_its_own_ends_with_that_status_and_line():
    command = [sys.executable, "-m", "cfl_flare.cli", "show", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cfl-flare: ") and done.stderr.count("\n") == 1


# ---- watch ----


def test_watch_shows_what_there_is_now(tmp_path, capsys):
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
def test_refusals_of_watch_are_one_line(tmp_path, capsys, options, reason):
    assert main(["watch", str(tmp_path), *options]) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1


def test_watch_of_a_folder_that_is_not_there(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "none")]) == 2
    assert "is not a folder; name that of a run" in capsys.readouterr().err


def test_ctrl_c_ends_watch_cleanly(tmp_path, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    assert main(["watch", str(tmp_path)]) == 0


def test_watch_finds_runs_that_begin_later_and_waits_for_one_alone(tmp_path):
    screen = Screen(tmp_path)
    screen.refresh()
    assert not screen.ended
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "rounds.jsonl").write_text("")
    screen.refresh()
    rounds(tmp_path / "two")
    screen.refresh()
    assert len(screen.runs) == 2 and not screen.ended
