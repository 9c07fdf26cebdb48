# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The plans of the papers, the arithmetic of the report on cells made by hand, and the cost of a stopped cell."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import report
import reports
import tables
import torch
from common import FILE, Cell, add_cells, load_cell, read_cells
from kept import CELLS, MEASURED, RESULTS, folder_of
from kept import results as kept_results
from plans import PLANS
from plans.blood import stable
from plans.plan import FIGURES, model
from sources import JpegNpz

from cfl_flare.cli.specs import build_named
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.private import Division
from cfl_flare.data import Digits, Npz
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.site import check_private
from cfl_flare.results.run_dir import load_run

KEPT = kept_results()
PACKED = (CELLS.name, MEASURED)
FAMILY = PLANS["family"]
SMALL = replace(FAMILY, source=Digits(), model=model("mlp", (1, 8, 8), 10), participants=4, rounds=12)


def add_cell(
    folder: Path,
    row: str,
    seed: int,
    accuracy: list[float | None],
    lr: float = 0.1,
    after: Mapping[str, float] | None = None,
    **more: Any,
) -> None:
    """A finished cell with these accuracies; F1 is half of them, and the worst participant's a tenth."""
    facts = {"row": row, "method": row, "partition": "dirichlet", "seed": seed, "participants": 4, "commit": "abc"}
    facts |= {"rounds": len(accuracy), "cpu_seconds": 8.0, "wall_seconds": 4.0, **more}
    rounds: list[dict[str, Any]] = []
    for i, a in enumerate(accuracy):
        measured = {"served_accuracy": a, "served_macro_f1": (a or 0) / 2, "served_worst_accuracy": (a or 0) / 10}
        rounds.append({"round": i, "ari": None, "clusters_in_use": 2, **(measured if a is not None else {})})
    summary = {"bytes_down": 2_000_000_000, "bytes_up": 500_000_000, "data": {"partition": {"partition": "dirichlet"}}}
    summary |= {"model": {}, "training": {"lr": lr}}
    add_cells(folder, [Cell(f"dirichlet/{row}-{seed}-{len(accuracy)}", facts, summary, rounds, dict(after or {}))])


def only_row(folder: Path) -> dict[str, Any]:
    (row,) = report.table_rows(report.finished(folder))
    return row


def test_means_are_over_the_last_three_measured_rounds_and_then_over_seeds(tmp_path: Path) -> None:
    add_cell(tmp_path, "wecfl", 0, [0.1, 0.8, None, 0.9, 1.0])
    add_cell(tmp_path, "wecfl", 1, [0.9, 0.7, None, 0.7, 0.7])
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


def test_a_single_seed_is_not_measured_in_deviations(tmp_path: Path) -> None:
    add_cell(tmp_path, "wecfl", 0, [0.9, 0.9, 0.9])
    row = only_row(tmp_path)
    assert row["accuracy"] == {"mean": pytest.approx(90), "std": None}
    assert row["units"]["accuracy"] is None


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({"mean": 90.0, "std": 4.0}, [94, 2], -1),
        ({"mean": 90.0, "std": 1.0}, [94, 2], -2),
        ({"mean": 90.0, "std": None}, [94, 0.04], None),
        ({"mean": 90.0, "std": 0.0}, [94, None], None),
        ({"mean": 90.0, "std": 2.0}, [88, None], 1),
        ({"mean": 90.0, "std": None}, [88, None], None),
        ({"mean": None, "std": None}, [88, 1], None),
    ],
)
def test_units_are_those_of_the_larger_deviation(ours: Any, theirs: Any, expected: float | None) -> None:
    assert report.units(ours, theirs) == expected


def test_rounds_that_were_done_twice_count_twice(tmp_path: Path) -> None:
    attempts = [
        {"commit": "b", "rounds": 4, "cpu_seconds": 6.0, "wall_seconds": 9.0},
        {"commit": "a", "rounds": 2, "cpu_seconds": 6.0, "wall_seconds": 9.0},
    ]
    add_cell(tmp_path, "fedavg", 0, [0.5] * 5, attempts=attempts)
    row = only_row(tmp_path)
    assert (row["cpu_seconds_a_round"], row["wall_seconds_a_round"]) == (2, 3)
    assert row["commits"] == ["a", "b"]


def test_other_rounds_are_another_row_and_the_order_is_the_papers(tmp_path: Path) -> None:
    for row, rounds in (("mine", 3), ("wecfl", 3), ("fedavg", 5), ("fedavg", 3)):
        add_cell(tmp_path, row, 0, [0.5] * rounds)
    rows = report.table_rows(report.finished(tmp_path))
    assert [(r["row"], r["rounds"]) for r in rows] == [("fedavg", 3), ("fedavg", 5), ("wecfl", 3), ("mine", 3)]
    assert rows[-1]["published"] == [] and rows[-1]["units"] == {}
    assert report.markdown_row(rows[-1]).endswith("| 2.000 / 0.500 | 2.7 / 1.3 | - | - | abc |")


def test_cells_that_were_trained_in_two_ways_make_no_table(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="0 finished cells"):
        report.finished(tmp_path)
    add_cell(tmp_path, "fedavg", 0, [0.5])
    add_cell(tmp_path, "wecfl", 0, [0.5], lr=0.2)
    with pytest.raises(SystemExit, match="trained in 2 ways"):
        report.finished(tmp_path)
    add_cell(tmp_path, "wecfl", 0, [0.5], lr=0.2, settings={"lr": 0.2})
    add_cell(tmp_path, "fedavg", 0, [0.5], lr=0.001)
    assert len(report.finished(tmp_path)) == 2  # the one says so, and the other has the plan's


def test_the_files_name_their_commands_and_what_is_contradictory(tmp_path: Path) -> None:
    add_cell(tmp_path / "cells", "ifca-con-para", 3, [0.5, 0.6])
    add_cell(tmp_path / "cells", "fedavg+", 3, [0.5, 0.6])
    report.write_report(tmp_path / "cells", tmp_path / "out" / "family")
    text = (tmp_path / "out" / "family.md").read_text()
    assert "--rows fedavg+ ifca-con-para --partitions dirichlet --seeds 3 --participants 4 --rounds 2" in text
    assert "91.33±3.61 / 58.47±4.35 (4.3)† |" in text
    assert "† ifca-con-para: another published figure is 86.36±5.41 / 51.50±3.25 (6.3)." in text
    assert "| 86.81 / 60.43 (3.3) | - / - | abc |" in text
    rows = json.loads((tmp_path / "out" / "family.json").read_text())["rows"]
    assert [r["row"] for r in rows] == ["fedavg+", "ifca-con-para"]


def test_a_stopped_cell_goes_on_and_its_cost_is_that_of_all_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "commit", lambda: "abc")
    count = tables.Attempts.count

    def stopping(self: Any) -> None:
        count(self)
        if self.all[-1]["rounds"] == 11:
            raise KeyboardInterrupt

    monkeypatch.setattr(tables.Attempts, "count", stopping)
    with pytest.raises(KeyboardInterrupt):
        tables.run_cell(tmp_path, SMALL, "fedavg", "dirichlet", 0, {})
    assert (tmp_path / "checkpoints").is_dir()
    monkeypatch.setattr(tables.Attempts, "count", count)
    tables.run_cell(tmp_path, SMALL, "fedavg", "dirichlet", 0, {})
    facts = json.loads((tmp_path / "cell.json").read_text())
    assert [attempt["rounds"] for attempt in facts["attempts"]] == [11, 3]  # on from round 10, record 9 still open
    assert facts["cpu_seconds"] == pytest.approx(sum(a["cpu_seconds"] for a in facts["attempts"]))
    assert facts["torch"] == torch.__version__
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 12
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("assignments.jsonl", "cell.json", "clusters", "lock", "rounds.jsonl", "started.json"),
        *("state", "summary.json"),
    ]
    tables.run_cell(tmp_path, SMALL, "fedavg", "dirichlet", 0, {})
    assert json.loads((tmp_path / "cell.json").read_text()) == facts


@pytest.mark.parametrize("kept", KEPT)
def test_kept_cells_and_their_reports_have_the_bytes_of_which_the_checksums_are(kept: str) -> None:
    of = dict(line.split("  ")[::-1] for line in reports.SUMS.read_text().splitlines())
    assert set(of) == {*(f"{name}/{name}{ending}" for name in KEPT for ending in (".json", ".md")), *PACKED}
    made = {name: (RESULTS / name).read_bytes() for name in PACKED}
    texts = report.texts(report.finished(folder_of(kept)), kept)
    made |= {f"{kept}/{kept}{ending}": text.encode() for ending, text in texts.items()}
    for name, content in made.items():
        assert hashlib.sha256(content).hexdigest() == of[name], f"{name}: see reports.py --sums"


def test_cells_that_are_kept_once_more_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_cells(tmp_path / "digits", read_cells(folder_of("digits"))[:2])
    archive = tmp_path / "cells.zip"
    archive.write_bytes(CELLS.read_bytes())
    monkeypatch.setattr("kept.CELLS", archive)
    monkeypatch.setattr(reports, "CELLS", archive)
    reports.keep_cells([tmp_path / "digits"])
    assert archive.read_bytes() == CELLS.read_bytes()


def test_the_same_cells_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    found = read_cells(folder_of("shared-sets"))
    assert [c.name for c in found] == sorted((c.name for c in found), key=lambda name: name.split("/"))
    add_cells(tmp_path / "at once", found)
    for one in reversed(found):
        add_cells(tmp_path / "one by one", [one])
    assert read_cells(tmp_path / "one by one") == found
    assert len({(tmp_path / name / FILE).read_bytes() for name in ("at once", "one by one")}) == 1


def test_a_cell_takes_the_place_of_an_older_one_of_its_name(tmp_path: Path) -> None:
    for accuracy in (0.5, 0.6):
        add_cell(tmp_path, "fedavg", 0, [accuracy])
    add_cell(tmp_path, "wecfl", 0, [0.7])
    found = {one.facts["row"]: one.rounds[0]["served_accuracy"] for one in read_cells(tmp_path)}
    assert found == {"fedavg": 0.6, "wecfl": 0.7}


def test_a_process_that_is_killed_while_it_writes_leaves_the_cells_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_cell(tmp_path, "fedavg", 0, [0.5])
    before = (tmp_path / FILE).read_bytes()

    def killed(number: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        add_cell(tmp_path, "wecfl", 0, [0.5])
    assert (tmp_path / FILE).read_bytes() == before
    monkeypatch.undo()
    add_cell(tmp_path, "wecfl", 0, [0.5])
    assert [one.facts["row"] for one in read_cells(tmp_path)] == ["fedavg", "wecfl"]


def test_processes_that_finish_cells_at_once_lose_none(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        list(pool.map(partial(add_cell, tmp_path, "fedavg", accuracy=[0.5]), range(20)))
    assert sorted(one.facts["seed"] for one in read_cells(tmp_path)) == list(range(20))


def test_a_finished_cell_is_added_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "commit", lambda: "abc")
    monkeypatch.setitem(PLANS, "family", SMALL)
    out = tmp_path / "cells"
    command = ["tables.py", "run", "--out", str(out), "--partitions", "dirichlet", "--rounds", "2", "--rows", "fedavg"]
    monkeypatch.setattr(sys, "argv", command)
    add = tables.add_cells

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tables, "add_cells", killed)  # the cell is finished, and not yet among the others
    with pytest.raises(KeyboardInterrupt):
        tables.main()
    assert read_cells(out) == []
    monkeypatch.setattr(tables, "add_cells", add)
    monkeypatch.setattr(tables, "run_loop", killed)  # nothing is run any more
    tables.main()
    (found,) = read_cells(out)
    assert (found.name, len(found.rounds)) == ("dirichlet/fedavg-m4-r2-s0", 2)
    shutil.rmtree(out / "dirichlet")  # the file says enough
    tables.main()
    assert read_cells(out) == [found] and not (out / "dirichlet").exists()


def test_cells_of_another_plan_are_not_taken_for_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_cell(tmp_path, "fedavg", 0, [0.5], plan="family-cifar10")
    monkeypatch.setattr(sys, "argv", ["tables.py", "run", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="holds cells of another plan; give plan family a folder of its own"):
        tables.main()


@pytest.mark.parametrize(("plan", "row"), [(plan, row) for plan in PLANS.values() for row in plan.named_rows])
def test_every_row_can_be_built(plan: Any, row: str) -> None:
    plan = plan.of_row(row)
    (method, *penalties), private = plan.method(row), plan.private(row)
    division = Division.of(model_factory(plan.model)(), private)
    check_private(build_named(method, penalties), division, private, plan.rounds)


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_no_row_is_named_twice_and_what_is_published_is_of_partitions_that_are_there(plan: Any) -> None:
    names = [*plan.rows, *plan.sweeps, *(name for sweep in plan.sweeps.values() for name in sweep)]
    assert len(set(names)) == len(names)
    assert set(plan.published["figures"]) <= set(plan.partitions)
    shown = [k for rows in plan.published["figures"].values() for row in rows.values() for e in row for k in e]
    assert set(shown) <= {"tables", *FIGURES}
    assert set(plan.compared) <= set(plan.columns) <= set(FIGURES)


DEALT = [plan for plan in PLANS.values() if "natural" not in plan.partitions]  # the others' are as their owners have it


@pytest.mark.parametrize("plan", DEALT, ids=[plan.name for plan in DEALT])
def test_partitions_can_be_dealt(plan: Any) -> None:
    small = replace(plan, source=Digits(), participants=20, min_samples=1, indicator_samples=0)
    for name, rule in plan.partitions.items():
        sizes = {"lo": 5, "hi": 20} if rule["partition"] == "quantity" else {}
        data = replace(small, partitions={name: {**rule, **sizes}}).data(name, 0)
        dealt = [*data.host(small.source, "local", 0, 1), *data.newcomers(small.source)]
        assert len(dealt) == 20
        plan.data(name, 0)  # as many participants as the plan has


def test_a_table_is_its_rows_on_its_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(tables, "run_cell", lambda folder, *_: done.append(str(folder.relative_to(tmp_path))))
    for asked in (["--table", "7.6"], ["--table", "3.1", "7.1", "--rows", "warmup", "--partitions", "cluster_n_class"]):
        command = ["tables.py", "run", "--plan", "family-cifar10", "--out", str(tmp_path), *asked]
        monkeypatch.setattr(sys, "argv", command)
        tables.main()
    warmups = [f"ifca-cam-w{share}" for share in (0, 10, 20, 40, 50)]
    assert done == [
        *(f"dirichlet/{row}-m50-r60-s0" for row in ("ifca", "ifca-cam", *warmups)),
        *(f"cluster_n_class/{row}-m50-r60-s0" for row in warmups),
    ]
    monkeypatch.setattr(
        sys, "argv", ["tables.py", "run", "--plan", "shared-sets", "--out", str(tmp_path), "--table", "3.1"]
    )
    with pytest.raises(SystemExit, match=r"table '3\.1' is unknown; there are none"):
        tables.main()


@pytest.mark.parametrize(
    "plan", [p for p in PLANS.values() if p.tables and p.published["figures"]], ids=lambda p: p.name
)
def test_what_is_published_of_a_table_is_a_row_of_it(plan: Any) -> None:
    for number, (partitions, rows) in plan.tables.items():
        assert set(partitions) <= set(plan.partitions)
        published = {
            (partition, row)
            for partition, figures in plan.published["figures"].items()
            for row, entries in figures.items()
            if any(number in entry["tables"] for entry in entries)
        }
        expected = {(partition, row) for partition in partitions for row in plan.expanded(rows)}
        assert published <= expected
        assert number == "7.6" or published == expected


def test_outliers_are_spread_over_the_groups_and_have_random_labels() -> None:
    plan = replace(PLANS["blood"], source=Digits(), participants=8, outliers=2, data_seed=3)
    assert plan.random_labels == ("p2", "p6")
    mixed = plan.data("labels", 0).host(plan.source, "local", 0, 1)
    sound = replace(plan, outliers=0).data("labels", 3).host(plan.source, "local", 0, 1)
    for one, other in zip(mixed, sound):
        for a, b in ((one.train, other.train), (one.test, other.test)):
            assert (a.x == b.x).all()
            agree = (a.y == b.y).mean()
            assert agree < 0.4 if one.name in plan.random_labels else agree == 1


def test_an_assignment_is_stable_once_nobody_changes() -> None:
    def said(*clusters: int | None) -> list[dict[str, Any]]:
        return [{"round": i // 2, "participant": "ab"[i % 2], "cluster": c} for i, c in enumerate(clusters)]

    assert stable(said(0, 1, 0, 1)) == 1
    assert stable(said(0, None, 1, 1, 1, 1)) == 2
    assert stable(said(0, 1, 0, None, 1, 1)) == 3  # not being asked is no change
    assert stable(said(None, None)) is None


def test_settings_are_changed_by_their_names() -> None:
    plan = PLANS["feddsmic"].altered({"local_steps": 10, "sample": 0.2, "model": "leaf-cnn", "rounds": 3})
    assert (plan.training.local_steps, plan.training.lr) == (10, 0.01)
    assert (plan.scheduled(1).sample, plan.scheduled(1).num_rounds) == (0.2, 3)
    assert plan.model == model("leaf-cnn", (1, 28, 28), 10)
    with pytest.raises(ConfigError, match="unknown setting"):
        plan.altered({"local_step": 10})
    with pytest.raises(ConfigError, match="model = 'leaf' is unknown"):
        plan.altered({"model": "leaf"})


def test_names_of_cells() -> None:
    assert tables.cell_name(FAMILY, "ifca-cam", "dirichlet", 1, {}) == "dirichlet/ifca-cam-m50-r60-s1"
    name = tables.cell_name(FAMILY, "wecfl:k=3 + proximal:mu=0.1", "dirichlet", 0, {"lr": 0.1})
    assert name == "dirichlet/wecfl-k=3-+-proximal-mu=0.1-lr=0.1-m50-r60-s0"
    assert FAMILY.method("wecfl:k=3 + proximal:mu=0.1") == ("wecfl:k=3", "proximal:mu=0.1")
    assert FAMILY.method("ifca-cam-w20") == ("ifca-cam:k=10,assignment_samples=320,warmup=12",)  # of 60 rounds
    assert FAMILY.altered({"rounds": 30}).method("fesem-cam") == ("fesem-cam:k=10,warmup=9",)
    assert PLANS["feddsmic"].expanded(["fedavg", "indicator", "fedac:k=3"]) == [
        *("fedavg", "feddsmic-n1", "feddsmic-n100", "fedac:k=3"),
    ]


def test_a_row_without_a_name_and_with_settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "commit", lambda: "abc")
    monkeypatch.setitem(PLANS, "family", SMALL)
    command = ["tables.py", "run", "--out", str(tmp_path / "cells"), "--partitions", "dirichlet", "--rounds", "2"]
    for more in (["--rows", "fedavg"], ["--rows", "fedavg", "wecfl:k=2,seed=1", "--set", "lr=0.1", "local_steps=1"]):
        monkeypatch.setattr(sys, "argv", [*command, *more])
        tables.main()
    asked = ["report", "--cells", str(tmp_path / "cells"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["tables.py", *asked])
    tables.main()
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["training"]["lr"] == 0.001
    assert [(r["row"], r["settings"]) for r in content["rows"]] == [
        *(
            ("fedavg", {"lr": 0.1, "local_steps": 1}),
            ("fedavg", {}),
            ("wecfl:k=2,seed=1", {"lr": 0.1, "local_steps": 1}),
        )
    ]
    text = (tmp_path / "out.md").read_text()
    assert "--rows fedavg wecfl:k=2,seed=1 --partitions dirichlet" in text
    assert "--participants 4 --rounds 2 --set lr=0.1 local_steps=1" in text
    assert "| fedavg lr=0.1 local_steps=1 | 2 | 4 |" in text


def test_a_row_says_which_layers_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its place among the penalties; the cell, its folder, its report and the command there name it."""
    row = "wecfl:k=2 + private=head + proximal:mu=0.1"
    assert (SMALL.method(row), SMALL.private(row)) == (("wecfl:k=2", "proximal:mu=0.1"), "head")
    assert (SMALL.method("wecfl"), SMALL.private("wecfl")) == (("wecfl:k=10",), None)
    monkeypatch.setattr(tables, "commit", lambda: "abc")
    out = tmp_path / "cells"
    for said in ("fedavg", "fedavg + private=head", "fedper"):
        name = tables.cell_name(SMALL, said, "dirichlet", 0, {})
        tables.run_cell(out / name, SMALL.altered({"rounds": 1}), said, "dirichlet", 0, {})
        add_cells(out, [load_cell(out, name)])
    found = {one.facts["row"]: one for one in read_cells(out)}
    private = found["fedavg + private=head"]
    assert private.name == "dirichlet/fedavg-+-private=head-m4-r12-s0"
    assert private.facts["method"] == "fedavg + private=head"
    assert load_run(out / private.name).summary["private"] == "head"
    accuracies = {row: one.rounds[0]["served_accuracy"] for row, one in found.items()}
    assert accuracies["fedavg + private=head"] == accuracies["fedper"] != accuracies["fedavg"]
    report.write_report(out, tmp_path / "out")
    text = (tmp_path / "out.md").read_text()
    assert "| fedavg + private=head | 1 |" in text and "- fedavg + private=head: `fedavg + private=head`" in text
    assert "--rows fedavg 'fedavg + private=head' fedper --partitions" in text


def test_what_cannot_be_run_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong, message in (
        (["--partitions", "tiers"], "partition 'tiers' is unknown; there: cluster_dirichlet"),
        (["--rows", "fedawg"], "method 'fedawg' is unknown"),
        (["--rows", "private=norm"], "method 'private=norm' is unknown"),
        (["--rows", "fedavg + private=nrom"], "private = 'nrom': it matches nothing"),
        (["--rows", "fedavg", "fedper + private=head"], "method fedper the head stays at the participant anyway"),
        (["--set", "lrr=1"], "unknown setting"),
    ):
        monkeypatch.setattr(sys, "argv", ["tables.py", "run", "--out", str(tmp_path / "cells"), *wrong])
        with pytest.raises(SystemExit, match=message):
            tables.main()
    assert not (tmp_path / "cells").exists()


def test_figures_are_of_the_best_rounds_where_the_paper_says_so(tmp_path: Path) -> None:
    accuracies = [0.1, 0.9, 0.2, 0.8, 0.7, 0.6, 0.5, None]
    add_cell(tmp_path, "feddsmic", 0, accuracies, plan="feddsmic", partition="alpha0.5")
    row = only_row(tmp_path)
    assert row["accuracy"]["mean"] == pytest.approx(70)  # of 0.9, 0.8, 0.7, 0.6, 0.5
    assert row["bottom_accuracy"]["mean"] is None
    assert row["published"][0]["bottom_accuracy"] == [86.0, None]
    assert row["units"] == {}  # they are of other data


def test_what_was_measured_after_a_run_is_a_figure_of_its_row(tmp_path: Path) -> None:
    for seed, sound in ((0, 0.5), (1, 0.7)):
        add_cell(tmp_path, "fedavg", seed, [0.25], after={"sound": sound, "sound_ari": 0.25}, plan="blood")
    row = only_row(tmp_path)
    assert row["sound"]["mean"] == pytest.approx(60)
    assert row["sound_ari"] == {"mean": 0.25, "std": 0}
    assert report.markdown_row(row).startswith(
        "| fedavg | 1 | 4 | 0, 1 | 25.00±0.00 | 12.50±0.00 | 2.50±0.00 | 60.00±14.14 | 0.25±0.00 |"
    )


def test_cells_of_two_plans_make_no_table(tmp_path: Path) -> None:
    add_cell(tmp_path, "fedavg", 0, [0.5])
    add_cell(tmp_path, "fedavg", 1, [0.5], plan="digits")
    with pytest.raises(SystemExit, match="of the plans family, digits"):
        report.finished(tmp_path)


SMALLEST: dict[str, tuple[str, str, Mapping[str, Any]]] = {
    "family": ("wecfl:k=2", "cluster_dirichlet", {"participants": 10}),
    "family-cifar10": ("ifca-cam:k=2,assignment_samples=8,warmup=50%", "n_class", {"participants": 10, "rounds": 2}),
    "research": ("fedavg", "alpha-0.5", {"local_steps": 1, "evaluate_every": 1}),
    "feddsmic": ("feddsmic", "alpha0.5", {"participants": 4}),
    "blood": ("wecfl", "both", {"participants": 8, "outliers": 2, "model": "logistic"}),
    "paired": ("ifca:k=2,assignment_samples=8", "cluster_dirichlet", {"participants": 10}),
    "digits": ("majority", "labels_permuted", {"participants": 8}),
    "shared-sets": ("local", "shared", {"participants": 10, "sample": 2}),
    "blood-ten": ("wecfl:k=2", "scanners", {"participants": 4, "model": "logistic"}),
    "pneumonia": ("fedavg", "labels", {"participants": 4, "model": "logistic"}),
    "private": ("wecfl-norm", "scanners", {"participants": 4}),
    "stroke": ("fedavg-bias", "natural", {"measured_on": "validation"}),
    "heart": ("fedper", "natural", {}),
    "flamby-heart": ("fedadagrad", "natural", {}),
    "rotations": ("cfl-gp:k=2", "four", {"participants": 10, "unseen": 2, "local_epochs": None, "local_steps": 1}),
    "rotations-eight": ("fesem", "eight", {"participants": 10}),
    "later-digits": ("clove:k=2", "labels_permuted", {"participants": 8, "rounds": 2}),
    "later-blood": ("clove:k=2", "labels", {"participants": 8, "unseen": 2, "model": "logistic"}),
    "stroke-groups": ("countries", "natural", {}),
}


@pytest.fixture(scope="module")
def sets_that_are_read_once() -> Iterator[None]:
    """Several plans have the same 60,000 images."""
    with pytest.MonkeyPatch.context() as patch:
        for source in (JpegNpz, Npz):
            patch.setattr(source, "load", cache(source.load))
        yield


@pytest.mark.usefixtures("sets_that_are_read_once")
@pytest.mark.parametrize("name", PLANS)
def test_a_cell_of_each_plan_runs_on_its_own_data(name: str, data_root: Path, tmp_path: Path) -> None:
    row, partition, settings = SMALLEST[name]
    plan = PLANS[name].altered({"rounds": 1, **settings})
    tables.run_cell(tmp_path / "cells" / "one", plan, row, partition, 0, settings)
    add_cells(tmp_path / "cells", [load_cell(tmp_path / "cells", "one")])
    report.write_report(tmp_path / "cells", tmp_path / "out")
    (found,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert all(0 <= found[figure]["mean"] <= 100 for figure in plan.compared)
    assert f"| {row} " in (tmp_path / "out.md").read_text()
