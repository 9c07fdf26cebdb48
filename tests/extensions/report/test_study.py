# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a study: what it says, what it lacks, and that nothing in a study's file gets out of its place."""

import json
import re
from pathlib import Path

import pytest

from cfl_flare.cli import main
from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.gains import ROWS
from cfl_flare.extensions.report.study import (
    StudyView,
    candidates,
    cost,
    hospitals,
    search,
    settings,
    study_report,
    together,
    verdict,
)
from cfl_flare.extensions.report.write import LARGEST, REPORT, try_to_write
from cfl_flare.results.study import load_study
from tests.extensions.report.test_html import only_text
from tests.helpers import made

NAMES = [f"h{i}" for i in range(9)]
TITLES = ("one for all", "groups", "other groups")


def view_study(folder: Path) -> StudyView:
    return StudyView(load_study(folder), folder)


def change_verdict(folder: Path, **values) -> None:
    made.change(folder, "study.json", verdict={**load_study(folder)["verdict"], **values})


def test_the_verdict_s_sentences_are_on_top(tmp_path):
    text = study_report(made.write_study(tmp_path / "a", NAMES))
    first, second = re.findall(r"<h2[^>]*>Verdict</h2>\n<p class=\"result\">([^<]*)</p>\n<p>([^<]*)</p>", text)[0]
    assert (first, second) == ("Cluster into 3: train groups.", "Against one model for all: it is better.")
    assert "<h1>Should we cluster?</h1>" in text and "9 hospitals and 2 candidates, judged by accuracy" in text


def test_hospitals_are_in_no_order_of_their_gains_and_what_is_said_is_a_colour_a_shape_and_a_word(tmp_path):
    folder = made.write_study(tmp_path / "a", NAMES[::-1])
    people = load_study(folder)["verdict"]["hospitals"]
    change_verdict(folder, hospitals=people[::-1])
    section = hospitals(view_study(folder))
    (plot,) = section.plots
    rows = plot.spec["data"]["values"]
    assert [row["name"] for row in rows] == [person["name"] for person in people[::-1] if person["name"] != "h0"]
    rows.sort(key=lambda row: row["name"], reverse=True)
    assert [row["v"] for row in rows] == [0.1, 0.08, 0.06, 0.04, 0.02, 0.0, -0.02, -0.04]
    assert (rows[0]["lo"], rows[0]["hi"], rows[0]["c"], rows[3]["c"]) == (0.05, 0.15, "gains", "within chance")
    assert next(row for row in plot.table.rows if row[0] == "h8") == [
        "h8",
        "40",
        "0.900",
        "+0.100",
        "0.050 to 0.150",
        "gains",
        "-",
    ]
    assert plot.table.rows[-1] == ["h0", "48", "0.900", "-", "-", "cannot tell", "90"]
    colour, shape = (plot.spec["layer"][2]["encoding"][key]["scale"] for key in ("color", "shape"))
    assert colour["domain"] == shape["domain"] == ["gains", "within chance"]
    assert len({*shape["range"]}) == len({*colour["range"]}) == 2
    assert section.notes == [
        "No difference over one model could be measured at h0.",
        "There is no gain over training alone: that is what was chosen.",
    ]


def test_of_many_hospitals_some_are_drawn_and_all_are_counted(tmp_path):
    names = [f"{'hospital-' * 5}{i}" for i in range(600)]
    text = study_report(made.write_study(tmp_path / "a", names))
    (plot,) = hospitals(view_study(tmp_path / "a")).plots
    assert len(plot.spec["data"]["values"]) == ROWS and len(plot.table.rows) == 600 and "100 more rows" in text
    assert f"{ROWS} of 599 hospitals are drawn" in text and len(text.encode()) < LARGEST


def test_candidates_have_their_means_at_each_rung_and_why_they_were_dropped(tmp_path):
    (plot,) = candidates(view_study(made.write_study(tmp_path / "a", NAMES, TITLES))).plots
    assert plot.table.columns[1:4] == ["validation, 4 rounds", "validation, 8 rounds", "test"]
    assert plot.table.rows == [
        ["one for all", "0.500", "0.600", "0.580", "-"],
        ["groups", "0.600", "0.700", "0.690", "chosen"],
        ["other groups", "0.700", "-", "-", "dropped after 4 rounds: c1 is better by c2"],
    ]
    marks = {(row["c"], row["x"]): row["s"] for row in plot.spec["data"]["values"]}
    assert len(marks) == 3 + 2 + 2
    assert marks["other groups", "4 rounds"] == "validation, then dropped" and marks["groups", "test"] == "test"


def test_cost_is_beside_that_of_running_everything(tmp_path):
    section = cost(view_study(made.write_study(tmp_path / "a", NAMES, TITLES)))
    assert section.text == [
        "The study took 22 rounds, 26 if all candidates had trained to the end (85%), and 10 seconds."
    ]
    assert section.plots[0].table.rows[1:] == [
        ["one for all", "8", "0"],
        ["groups", "8", "0"],
        ["other groups", "4", "4"],
    ]
    assert section.plots[0].table.rows[0][1:] == ["2", "0"]


def with_runs(folder: Path) -> None:
    by_k = {
        "1": {"gap": 0.0, "deviations": 0.0, "stability": 1.0},
        "3": {"gap": 0.75, "deviations": 3.0, "stability": 0.97},
    }
    searched = made.write_run(folder / "number-of-clusters", NAMES)
    lines = [json.loads(text) for text in (searched / "rounds.jsonl").read_text().splitlines()]
    lines[1]["number_of_clusters"] = {"k": 3, "by_k": by_k, "draws": {"3": 100}, "set": [3, 3], "unsteady": {}}
    (searched / "rounds.jsonl").write_text("".join(json.dumps(own) + "\n" for own in lines))
    made.write_run(folder / "c1", NAMES)


def test_the_criterion_and_who_is_with_whom_come_from_the_runs_or_are_said_to_be_missing(tmp_path):
    folder = made.write_study(tmp_path / "a", NAMES)
    text = study_report(folder)
    assert "lacks the run number-of-clusters" in text and "lacks the run c1, which says who is with whom" in text
    with_runs(folder)
    section = search(view_study(folder))
    assert section.text == ["After 2 rounds, before the candidates trained: 3 clusters found (clear)."]
    assert section.plots[-1].table.rows[1] == ["2", "0.750", "0.500 to 1.000", "0.970"]
    assert together(view_study(folder)).text[0] == "In groups."
    assert "lacks the run" not in study_report(folder)
    change_verdict(folder, chosen={"name": "c0", "title": "one for all", "clusters": 0, "private": False})
    assert together(view_study(folder)) is None


@pytest.mark.parametrize("name", ["../elsewhere", "..", ".", "", "/etc", "linked", "c1/../../elsewhere"])
def test_a_candidate_s_name_leads_nowhere_else(tmp_path, name):
    folder = made.write_study(tmp_path / "a", NAMES)
    secret = made.write_run(tmp_path / "elsewhere", ["a secret patient", "another"])
    (folder / "linked").symlink_to(secret)
    made.write_run(folder / "c1", NAMES)
    change_verdict(folder, chosen={"name": name, "title": "x", "clusters": 3, "private": False})
    text = study_report(folder)
    assert "secret" not in text and "which says who is with whom" in text


def test_a_study_that_is_not_finished_says_so(tmp_path):
    folder = made.write_study(tmp_path / "a", NAMES, verdict=None)
    text = study_report(folder)
    assert "There is no verdict yet: 2 of its comparisons are made. The same command goes on" in text
    assert "do not allow this part" not in text
    made.change(folder, "study.json", rungs=[], titles={}, found=None)
    assert "no comparison is made yet" in study_report(folder)
    assert candidates(view_study(folder)) is None and search(view_study(folder)) is None


def test_a_verdict_about_fewer_rounds_says_so(tmp_path):
    folder = made.write_study(tmp_path / "a", NAMES)
    change_verdict(folder, rounds=4)
    assert verdict(view_study(folder)).notes == ["It is about 4 of 8 rounds."]


def test_settings_are_flat(tmp_path):
    ((_, table),) = settings(view_study(made.write_study(tmp_path / "a", NAMES))).tables
    assert ["training.lr", "0.1"] in table.rows and ["candidates.c0.method.method", "fedavg"] in table.rows


def write_hostile_study(folder: Path) -> Path:
    made.write_study(folder, made.HOSTILE, made.HOSTILE, settings={made.HOSTILE[0]: {made.HOSTILE[1]: made.HOSTILE[2]}})
    people = load_study(folder)["verdict"]["hospitals"]
    people[1]["to_one"]["says"] = made.HOSTILE[0]
    people[2]["to_alone"] = {**people[2]["to_one"], "says": made.HOSTILE[7]}
    chosen = {"name": made.HOSTILE[1], "title": made.HOSTILE[0], "clusters": 2, "private": False}
    values = {"hospitals": people, "metric": made.HOSTILE[0], "sentences": list(made.HOSTILE), "chosen": chosen}
    change_verdict(folder, **values)
    study = load_study(folder)
    dropped = dict.fromkeys((*study["rungs"][0]["dropped"], made.HOSTILE[7]), made.HOSTILE[1])
    made.change(folder, "study.json", rungs=[{**study["rungs"][0], "dropped": dropped}, study["rungs"][1]])
    return folder


def test_hostile_names_are_text_everywhere(tmp_path):
    only_text(study_report(write_hostile_study(tmp_path / "a")))
    rows = hospitals(view_study(tmp_path / "a")).plots[0].spec["data"]["values"]
    assert {row["c"] for row in rows} <= {"gains", "loses", "within chance", "cannot tell", "other"}


def test_the_command_writes_it_and_a_study_has_no_other_run_to_be_compared_with(tmp_path, capsys):
    folder = made.write_study(tmp_path / "a", NAMES)
    with_runs(folder)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.split() == [str(folder / REPORT)]
    assert sorted(path.name for path in folder.rglob("*.html")) == [REPORT]
    assert main(["report", str(folder), "--out", str(tmp_path / "b.html")]) == 0 and (tmp_path / "b.html").is_file()
    assert main(["report", str(folder), "--against", "c1"]) == 2
    assert "is for several runs" in capsys.readouterr().err
    (folder / "study.json").write_text("{}")
    assert main(["report", str(folder)]) == 2
    assert "has no 'version'" in capsys.readouterr().err


def test_a_report_that_cannot_be_made_fails_no_study(tmp_path, monkeypatch):
    monkeypatch.setattr(vega, "MAKE", "raise SystemExit('no engine here')")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    vega.script.cache_clear()
    why = try_to_write(made.write_study(tmp_path / "a", NAMES))
    assert "no engine here" in why and not (tmp_path / "a" / REPORT).exists()
