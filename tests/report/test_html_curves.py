# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""ROC and calibration in a run's report: whose they are, what is missing and why."""

from pathlib import Path

import pytest

from cfl_flare.report import vega
from cfl_flare.report.measures import discrimination
from cfl_flare.report.view import View
from cfl_flare.report.write import run_report
from cfl_flare.results.curves import CURVES, Curve, Curves, save_curves
from cfl_flare.results.run_dir import load_run
from tests.report import made

NAMES = [f"p{i}" for i in range(6)]
OWN = Curve(3, 3, 120, 1, 0.9, [(0.0, 0.0), (0.0, 0.5), (0.2, 0.9), (1.0, 1.0)], [(0.1, 0.2, 80), (0.7, 0.9, 40)])


def view(folder: Path, kept: Curves | None, **more) -> View:
    made.run(folder, NAMES, **more)
    if kept is not None:
        save_curves(folder, kept)
    return View(load_run(folder))


def test_curves_are_drawn_with_their_numbers_beside_them(tmp_path):
    section = discrimination(view(tmp_path / "a", Curves(2, 1, 1, 1, {"all": OWN, "cluster-1": OWN})))
    roc, calibration = section.plots
    assert "of the positive class" in roc.text and "scores in one bin are ties" in roc.text
    # From (0, 0.5) to (0.2, 0.9), then to (1, 1).
    assert roc.table.rows[0] == ["all", "3", "120", "0.900", "0.600", "0.700", "0.900", "0.912", "0.938"]
    drawn = roc.spec["layer"][1]["data"]["values"]
    assert [(row["x"], row["y"]) for row in drawn if row["c"] == "cluster-1"] == OWN.roc
    assert calibration.table.rows[:2] == [["all", "0.100", "0.200", "80"], ["all", "0.700", "0.900", "40"]]
    assert section.notes == []


def test_what_is_left_out_is_said_with_its_reason(tmp_path):
    reasons = {"all": "difference", "cluster-0": "few_sites", "cluster-2": "no_scores", "cluster-3": "few_samples"}
    section = discrimination(view(tmp_path / "a", Curves(2, 3, 10, 4, {"cluster-1": OWN}, reasons)))
    roc, _ = section.plots
    assert "of each class against the rest, the mean over the classes" in roc.text
    assert "of at least 3 sites" in roc.text and "at least 10 samples" in roc.text
    assert section.notes == [
        (
            "No ROC or calibration curve of cluster-2: no histogram of scores came from there: it was withheld, or "
            "there are too few test samples."
        ),
        "No ROC or calibration curve of cluster-0: fewer than 3 sites sent histograms of scores.",
        "No ROC or calibration curve of cluster-3: no class has 10 samples of 3 sites with it, and as many without it.",
        "No ROC or calibration curve of all: without the clusters' curves, it would be one of few sites or samples.",
    ]


def test_without_histograms_the_section_says_so_and_without_score_bins_there_is_none(tmp_path):
    section = discrimination(view(tmp_path / "a", Curves(2, 3, 10, 4, {}, {"all": "no_scores"})))
    assert section.plots == [] and "it was withheld" in section.notes[0]
    assert discrimination(view(tmp_path / "b", None)) is None


def test_lines_are_of_the_largest_clusters(tmp_path):
    many = {f"cluster-{k}": OWN for k in range(12)}
    names = [f"p{i}" for i in range(24)]
    folder = made.run(tmp_path / "a", names, k=12)
    save_curves(folder, Curves(2, 1, 1, 1, {"all": OWN, **many}))
    section = discrimination(View(load_run(folder)))
    assert len(section.plots[0].table.rows) == 11
    assert section.notes == ["Curves are drawn of the 11 largest of 13."]


def test_a_damaged_file_costs_one_section(tmp_path):
    folder = made.run(tmp_path / "a", NAMES)
    (folder / CURVES).write_text('{"version": 1, "curves": "</script>"}')
    text = run_report(load_run(folder))
    assert text.count("do not allow this part") == 1 and "Convergence" in text


@pytest.mark.parametrize(
    ("mark", "name"),
    [
        ("JsonPatchError", "fast-json-patch"),
        ("SemVer", "semver"),
        ("archimedean", "d3-cloud"),
        ("mollweide", "-geo-projection"),
        ("loess", "science.js"),
        ("11102230246251565", "robust-predicates"),
        ("ggplot2", "Vega-Themes"),
        ("Unexpected end of input", "Esprima"),
    ],
)
def test_what_is_in_the_script_is_named_in_its_notice(mark, name):
    assert mark in vega.script() and name in vega.notice()
