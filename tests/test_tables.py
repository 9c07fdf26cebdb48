# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the report on measured tables, on cells made by hand, and the cost of a cell that was stopped."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cfl_flare.data import Digits

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


report = script("tables_report")
tables = script("tables")


def cell(folder: Path, row: str, seed: int, accuracy: list[float | None], **more: Any) -> None:
    """A finished cell with these accuracies; F1 is half of them, and the worst participant's a tenth."""
    path = folder / f"{row}-{seed}-{len(accuracy)}"
    path.mkdir(parents=True)
    facts = {"row": row, "method": row, "partition": "dirichlet", "seed": seed, "participants": 4, "commit": "abc"}
    facts |= {"rounds": len(accuracy), "cpu_seconds": 8.0, **more}
    (path / "cell.json").write_text(json.dumps(facts))
    rounds: list[dict[str, Any]] = []
    for i, a in enumerate(accuracy):
        measured = {"served_accuracy": a, "served_macro_f1": (a or 0) / 2, "served_worst_accuracy": (a or 0) / 10}
        rounds.append({"round": i, "ari": None, "clusters_in_use": 2, **(measured if a is not None else {})})
    (path / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rounds))
    summary = {"bytes_down": 2_000_000_000, "bytes_up": 500_000_000, "data": {"partition": {"partition": "dirichlet"}}}
    (path / "summary.json").write_text(json.dumps(summary | {"model": {}, "training": {"lr": 0.1}}))


def only_row(folder: Path) -> dict[str, Any]:
    (row,) = report.table_rows(report.finished(folder))
    return row


def test_means_are_over_the_last_three_measured_rounds_and_then_over_seeds(tmp_path: Path) -> None:
    cell(tmp_path, "wecfl", 0, [0.1, 0.8, None, 0.9, 1.0])
    cell(tmp_path, "wecfl", 1, [0.9, 0.7, None, 0.7, 0.7])
    row = only_row(tmp_path)
    assert row["seeds"] == [0, 1]
    assert row["accuracy"]["mean"] == pytest.approx(80)
    assert row["accuracy"]["std"] == pytest.approx(200**0.5)  # of 90 and 70
    assert row["macro_f1"]["mean"] == pytest.approx(40)
    assert row["worst_accuracy"]["mean"] == pytest.approx(8)
    assert row["ari"] == {"mean": None, "std": None}
    assert row["clusters_in_use"] == {"mean": 2, "std": 0}
    assert (row["gigabytes_down"], row["gigabytes_up"]) == (2, 0.5)
    assert row["cpu_seconds_a_round"] == pytest.approx(16 / 10)
    # Theirs is 94.21 +- 1.67 and 79.31 +- 11.02 (Table 3.3).
    assert row["units"]["accuracy"] == pytest.approx((80 - 94.21) / 200**0.5)
    assert row["units"]["macro_f1"] == pytest.approx((40 - 79.31) / 11.02)


def test_a_single_seed_is_measured_with_their_deviation(tmp_path: Path) -> None:
    cell(tmp_path, "wecfl", 0, [0.9, 0.9, 0.9])
    row = only_row(tmp_path)
    assert row["accuracy"] == {"mean": pytest.approx(90), "std": None}
    assert row["units"]["accuracy"] == pytest.approx((90 - 94.21) / 1.67)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({"mean": 90.0, "std": 4.0}, [94, 2], -1),
        ({"mean": 90.0, "std": 1.0}, [94, 2], -2),
        ({"mean": 90.0, "std": None}, [94, 2], -2),
        ({"mean": 90.0, "std": 2.0}, [88, None], 1),
        ({"mean": 90.0, "std": None}, [88, None], None),
        ({"mean": None, "std": None}, [88, 1], None),
    ],
)
def test_units_are_those_of_the_larger_deviation(ours: Any, theirs: Any, expected: float | None) -> None:
    assert report.units(ours, theirs) == expected


def test_rounds_that_were_done_twice_count_twice(tmp_path: Path) -> None:
    attempts = [{"commit": "b", "rounds": 4, "cpu_seconds": 6.0}, {"commit": "a", "rounds": 2, "cpu_seconds": 6.0}]
    cell(tmp_path, "fedavg", 0, [0.5] * 5, attempts=attempts)
    row = only_row(tmp_path)
    assert row["cpu_seconds_a_round"] == 2
    assert row["commits"] == ["a", "b"]


def test_other_rounds_are_another_row_and_the_order_is_the_papers(tmp_path: Path) -> None:
    for row, rounds in (("mine", 3), ("wecfl", 3), ("fedavg", 5), ("fedavg", 3)):
        cell(tmp_path, row, 0, [0.5] * rounds)
    rows = report.table_rows(report.finished(tmp_path))
    assert [(r["row"], r["rounds"]) for r in rows] == [("fedavg", 3), ("fedavg", 5), ("wecfl", 3), ("mine", 3)]
    assert rows[-1]["published"] == [] and rows[-1]["units"] == {}
    assert report.markdown_row(rows[-1]).endswith("| 2.000 / 0.500 | 2.7 | - | - | abc |")


def test_cells_that_were_trained_in_two_ways_make_no_table(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="0 finished cells"):
        report.finished(tmp_path)
    cell(tmp_path, "fedavg", 0, [0.5])
    cell(tmp_path, "wecfl", 0, [0.5])
    summary = tmp_path / "wecfl-0-1" / "summary.json"
    summary.write_text(summary.read_text().replace('"lr": 0.1', '"lr": 0.2'))
    with pytest.raises(SystemExit, match="trained in 2 ways"):
        report.finished(tmp_path)


def test_the_files_name_their_commands_and_what_is_contradictory(tmp_path: Path) -> None:
    cell(tmp_path / "cells", "ifca-con-para", 3, [0.5, 0.6])
    cell(tmp_path / "cells", "fedavg+", 3, [0.5, 0.6])
    report.write_report(tmp_path / "cells", tmp_path / "out" / "family")
    text = (tmp_path / "out" / "family.md").read_text()
    assert "--rows fedavg+ ifca-con-para --partitions dirichlet --seeds 3 --participants 4 --rounds 2" in text
    assert "91.33±3.61 / 58.47±4.35 (4.3)† |" in text
    assert "† ifca-con-para: another published figure is 86.36±5.41 / 51.50±3.25 (6.3)." in text
    assert "| 86.81 / 60.43 (3.3) | - / - | abc |" in text
    rows = json.loads((tmp_path / "out" / "family.json").read_text())["rows"]
    assert [r["row"] for r in rows] == ["fedavg+", "ifca-con-para"]
    assert (tmp_path / "out" / "family.png").stat().st_size > 0


def test_a_stopped_cell_goes_on_and_its_cost_is_that_of_all_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tables, "MODEL", {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
    )
    monkeypatch.setattr(tables, "Npz", lambda path: Digits())
    monkeypatch.setattr(tables, "commit", lambda: "abc")
    count = tables.Attempts.count

    def stopping(self: Any, measured: Any) -> None:
        count(self, measured)
        if measured.record["round"] == 10:
            raise KeyboardInterrupt

    monkeypatch.setattr(tables.Attempts, "count", stopping)
    with pytest.raises(KeyboardInterrupt):
        tables.run_cell(tmp_path, "fedavg", "dirichlet", 0, 4, 12)
    assert (tmp_path / "checkpoints").is_dir()
    monkeypatch.setattr(tables.Attempts, "count", count)
    tables.run_cell(tmp_path, "fedavg", "dirichlet", 0, 4, 12)
    facts = json.loads((tmp_path / "cell.json").read_text())
    assert [attempt["rounds"] for attempt in facts["attempts"]] == [11, 3]  # on from round 10, record 9 still open
    assert facts["cpu_seconds"] == pytest.approx(sum(a["cpu_seconds"] for a in facts["attempts"]))
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 12
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("assignments.jsonl", "cell.json", "clusters", "lock", "rounds.jsonl", "state", "summary.json")
    ]
    tables.run_cell(tmp_path, "fedavg", "dirichlet", 0, 4, 12)
    assert json.loads((tmp_path / "cell.json").read_text()) == facts
