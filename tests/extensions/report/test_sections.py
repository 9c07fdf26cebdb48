# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The parts and figures of a run's report: what each says and leaves out, and the mathematics behind them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cfl_flare.core.errors import ConfigError
from cfl_flare.data import DataConfig, Digits
from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.clusters import SMALLER, moves, number_of_clusters, sizes
from cfl_flare.extensions.report.facts import failures, head, participants
from cfl_flare.extensions.report.figures import FIGURES, draw, draw_comparison, draw_partition, figure, save
from cfl_flare.extensions.report.measures import convergence, cross_site, discrimination
from cfl_flare.extensions.report.page import Section, View, file, sections, thinned
from cfl_flare.extensions.report.who import cosines, who
from cfl_flare.extensions.report.write import run_report
from cfl_flare.methods import IFCA, FedAvg, FeSEM, WeCFL
from cfl_flare.results.bootstrap import interval
from cfl_flare.results.curves import CURVES, Curve, Curves, save_curves
from cfl_flare.results.run_dir import Run, load_run
from cfl_flare.results.tables import results_table
from cfl_flare.training.bootstrap import draw_rows, replicates
from cfl_flare.training.tasks import build_task
from tests.helpers import made
from tests.helpers.made import change
from tests.helpers.tiny import rounds

# ---- Parts ----


NAMES = [f"p{i}" for i in range(6)]


def view_run(folder: Path) -> View:
    return View(load_run(folder))


def test_the_result_has_its_interval_or_claims_nothing(tmp_path):
    folder = made.write_run(tmp_path / "a", NAMES)
    (plain, *rest) = head(view_run(folder)).text
    assert "accuracy is 0.750 on average over 6 participants" in plain
    assert "No interval was measured" in plain and "claims nothing" in plain and not rest
    change(folder, intervals={"served_accuracy": [0.7, 0.8]})
    sure, caution = head(view_run(folder)).text
    assert "lie from 0.700 to 0.800" in sure and "claims nothing" not in sure and "another seed" in caution


def test_whose_share_of_a_mean_was_lowered_is_said(tmp_path):
    run = load_run(made.write_run(tmp_path / "a", NAMES))
    lowered = {"lowered_shares": {"p0": [0.4, 0.3333], "p4": [0.517, 0.3333]}}
    shown = head(View(replace(run, rounds=[{**run.rounds[0], **lowered}, *run.rounds[1:]]))).text
    assert "lowered some in 1 of 3 rounds: p4 (51.7 % to 33.3 %), p0 (40.0 % to 33.3 %)." in shown[-1]
    rounds = tmp_path / "a" / "rounds.jsonl"
    rounds.write_text(rounds.read_text().replace('"round": 0', '"lowered_shares": {"p0": [7, 0.3]}, "round": 0'))
    with pytest.raises(ConfigError, match="lowered_shares"):
        load_run(tmp_path / "a")


def test_a_script_s_run_shows_its_steps_and_nothing_that_cfl_flare_did_not_do(tmp_path):
    folder = made.write_run(tmp_path / "run", NAMES, train_script="client.py")
    summary = json.loads((folder / "summary.json").read_text())
    people = [{**one, "steps": one.pop("samples") + 0.5} for one in summary["participants"]]
    del people[-1]["steps"]  # its script reports none
    (folder / "summary.json").write_text(json.dumps({**summary, "participants": people}))
    run = load_run(folder)
    facts = dict(head(View(run)).tables[0][1].rows)
    assert (
        facts["training script"] == "client.py" and facts["steps of the last round"] == "62.500 (10.500 to 14.500 each)"
    )
    assert not {"task", "training samples"} & facts.keys()
    page = run_report(run)
    assert "as their training script reports it, weighted by steps" in page
    assert not re.search("training samples|own test split", page)
    assert results_table([run]).title == "served models, as training scripts report"


def test_participants_stand_by_cluster_and_the_undefined_are_named(tmp_path):
    folder = made.write_run(tmp_path / "a", NAMES)
    summary = json.loads((folder / "summary.json").read_text())
    people = summary["participants"][::-1]
    del people[0]["served_accuracy"]  # p5
    change(folder, participants=people, metric={"name": "accuracy", "mode": "max"})
    (plot,) = participants(view_run(folder)).plots
    points = plot.spec["data"]["values"]
    order = [4, 2, 0, 3, 1]  # cluster 0, then cluster 1, as the summary has them
    assert [(p["name"], p["v"]) for p in points] == [(f"p{i}", float(f"{0.5 + i / 12:.4g}")) for i in order]
    assert [row[0] for row in plot.table.rows] == ["p4", "p2", "p0", "p3", "p1", "p5"]
    assert "Intervals overlap: nobody is told apart as worst or best." in plot.text
    assert plot.table.rows[5][3] == "not defined" and plot.table.rows[2][4] == "0.400 to 0.600"
    (note,) = participants(view_run(folder)).notes
    assert "1 of 6: p5." in note
    people[1]["intervals"]["served_accuracy"] = [0.8, 0.8]
    change(folder, participants=people)
    assert "without width is no certainty" in participants(view_run(folder)).notes[1]
    ends = {"p0": [0.4, 0.45], "p1": [0.5, 0.7], "p2": [0.6, 0.7], "p3": [0.7, 0.9], "p4": [0.8, 0.9]}
    for person in people[1:]:
        person["intervals"]["served_accuracy"] = ends[person["name"]]
    change(folder, participants=people)
    assert "p0 is the worst. Its interval lies beyond all others." in participants(view_run(folder)).plots[0].text
    change(folder, metric={"name": "accuracy", "mode": "min"})
    assert "p0 is the best. Its" in participants(view_run(folder)).plots[0].text


def test_few_benign_cases_make_no_hospital_the_worst(tmp_path):
    """Five hospitals with 0, 1, 2, 2 and 12 benign cases among 60, and one model that is as good at each of them."""
    names, people, counts = [f"p{i}" for i in range(5)], [], {}
    task = build_task("binary")
    for name, benign in zip(names, (0, 1, 2, 2, 12)):
        right = np.concatenate([np.arange(benign) % 4 > 0, np.arange(60 - benign) % 20 > 0])
        targets = torch.from_numpy(np.arange(60) >= benign).long()
        outputs = torch.from_numpy(np.where(right == targets.numpy(), 3.0, -3.0)).float()[:, None]
        measures = ["macro_f1", "supported_f1"]
        points, rows = task.measured(outputs, targets, measures), draw_rows(0, name, "", 60, 200)
        drawn = replicates(task, outputs, targets, measures, rows)
        ends = {m: interval(np.array(drawn[m], np.float64), points[m], m) for m in measures}
        served = {f"served_{m}": points[m] for m in measures}
        people.append({"name": name, "group": None, "samples": 60, "cluster": 0, **served})
        people[-1]["intervals"] = {f"served_{m}": pair for m, pair in ends.items()}
        counts[name] = [count if count >= 10 or not count else None for count in (benign, 60 - benign)]
    folder = made.write_run(tmp_path / "a", names, k=1, measure="macro_f1")
    change(folder, participants=people, test_classes=counts)
    raw = {person["name"]: person["served_macro_f1"] for person in people}
    assert min(raw.values()) < 0.5 < max(raw.values()) - 0.25  # by chance, as the model is the same
    section = participants(view_run(folder))
    (plot,) = section.plots
    assert "Intervals overlap: nobody is told apart as worst or best." in plot.text
    assert (
        plot.title == "supported F1 of each participant"
        and plot.spec["layer"][1]["encoding"]["y"]["title"] == "supported F1"
    )
    shown = {row[0]: row for row in plot.table.rows}
    supported = [float(shown[name][3]) for name in names]
    assert max(supported[:4]) - min(supported[:4]) < 0.01 and "served_macro_f1" not in plot.table.columns
    assert [shown[name][5] for name in names] == [
        "0: 0, 1: 60",
        *["0: <10 (!), 1: " + n for n in ("59", "58", "58")],
        "0: 12, 1: 48",
    ]
    assert any("fewer than 10 test samples of a participant is marked" in note for note in section.notes)
    assert "worst" not in run_report(load_run(folder)).replace("told apart as worst", "").replace("worst tenth", "")


def test_nobody_measured_is_no_section(tmp_path):
    folder = made.write_run(tmp_path / "a", NAMES)
    change(folder, metric={"name": "dice", "mode": "max"})
    assert participants(view_run(folder)) is None and convergence(view_run(folder)) is None


def test_convergence_has_the_mean_each_cluster_and_the_worst(tmp_path):
    (plot,) = convergence(view_run(made.write_run(tmp_path / "a", NAMES))).plots
    assert plot.table.columns == ("round", "all", "cluster-0", "cluster-1", "lowest of a participant")
    assert plot.table.rows[2] == ["3", "0.502", "0.502", "0.512", "0.402"]
    dashes = plot.spec["encoding"]["strokeDash"]["scale"]
    assert dict(zip(dashes["domain"], dashes["range"]))["lowest of a participant"] == [5, 4]
    assert plot.spec["encoding"]["y"]["title"] == "accuracy"


def test_moves_are_counted_over_all_rounds(tmp_path):
    names = [f"p{i}" for i in range(100)]
    section = moves(view_run(made.write_run(tmp_path / "a", names, rounds=60)))
    (plot,) = section.plots
    assert plot.text.startswith("1 of 100 participants changed")
    by_name = {row[0]: row[1:] for row in plot.table.rows}
    assert by_name["p99"] == ["cluster-0", "cluster-1", "59", "60"] and by_name["p0"][2:] == ["0", "-"]
    assert len({cell["name"] for cell in plot.spec["data"]["values"]}) == 80
    assert "80 of 100 participants and 50 of 60 rounds are drawn" in section.notes[0]


def test_similarities_come_from_the_last_features_that_were_kept(tmp_path):
    folder = made.write_run(tmp_path / "a", NAMES)
    section = who(view_run(folder))  # none yet: shares of rounds
    assert "same cluster" in section.text[0] and len(section.plots) == 1
    names = [n["name"] for n in section.plots[0].spec["datasets"]["names"]]
    assert names == ["p0", "p2", "p4", "p1", "p3", "p5"]  # by cluster
    cells = [row["v"] for row in section.plots[0].spec["data"]["values"]]
    assert cells[0][:4] == [1.0, 1.0, 1.0, 0.0] and cells[5] == [0.667, 0.667, 0.667, 0.333, 0.333, 1.0]
    made.write_features(folder, NAMES)
    section = who(view_run(folder))
    assert "of round 3" in section.text[0]
    (matrix,) = section.plots
    nearest = {row[0]: row[4] for row in matrix.table.rows}
    assert all(int(a[1]) % 2 == int(b[1]) % 2 for a, b in nearest.items())


def test_features_of_zeros_are_left_out_and_said(tmp_path):
    folder = made.write_run(tmp_path / "a", NAMES)
    made.write_features(folder, [*NAMES[:5], "a stranger"])
    section = who(view_run(folder))
    assert "1 participants are left out" in section.notes[0]


def test_the_number_of_clusters_is_shown_where_it_is_searched(tmp_path):
    folder = made.write_run(tmp_path / "a", NAMES)
    assert number_of_clusters(view_run(folder)) is None  # two in every round
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    by_k = {
        "1": {"gap": 0.0, "deviations": 0.0, "stability": 1.0},
        "2": {"gap": 0.75, "deviations": 3.0, "stability": 0.5},
    }
    lines[1]["number_of_clusters"] = {"k": 2, "by_k": by_k, "draws": {"2": 60, "5": 40}, "set": [2, 5], "unsteady": {}}
    lines[2]["dispersion"] = {"0": 0.5, "1": None}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(own) + "\n" for own in lines))
    in_use, inside, gap = number_of_clusters(view_run(folder)).plots
    assert [row[1] for row in in_use.table.rows] == ["2", "2", "2"]
    assert inside.table.columns == ("round", "cluster-0") and inside.table.rows == [["3", "0.500"]]
    assert gap.table.rows == [["1", "0.000", "0.000 to 0.000", "1.000"], ["2", "0.750", "0.500 to 1.000", "0.500"]]
    assert "about 2 clusters found (90 % set 2 to 5, with other members without a fifth" in gap.text
    made.change(folder, number_of_clusters=lines[1]["number_of_clusters"])
    assert load_run(folder).name.endswith("(about K=2)")


@pytest.mark.parametrize(
    "draws", [{"2": -1}, {"two": 1}, {"2": 2.5}, {"9" * 5000: 1}, ["2"], {"2": 2**54}, {"-2": 1}, {"2": True}]
)
def test_draws_that_no_run_writes_are_refused(draws, tmp_path):
    folder = made.write_run(tmp_path / "a", NAMES)
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    by_k = {"1": {"gap": 0.0, "deviations": 0.0, "stability": 1.0}}
    lines[1]["number_of_clusters"] = {"k": 1, "by_k": by_k, "draws": draws, "set": [1, 1], "unsteady": {}}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match="is not a number of clusters, with what it was chosen by"):
        load_run(folder)


def test_failures_are_listed(tmp_path):
    folder = made.write_run(tmp_path / "a", NAMES, rejected={"norm": 2}, sites_left_out={"s1": "no result in time"})
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    lines[0]["trained"] = NAMES[1:]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(own) + "\n" for own in lines))
    tables = dict(failures(view_run(folder)).tables)
    assert tables["Sites that took no part"].rows == [["s1", "no result in time"]]
    assert tables["Missed rounds"].rows == [["p0", "1 of 3", "training failed there"]]
    assert tables["Refused answers"].rows == [["norm", "2"]]


def test_a_part_that_fails_leaves_the_others():
    def broken_part(subject: object) -> Section | None:
        raise KeyError("<b>")

    def sound(subject: object) -> Section | None:
        return Section(str(subject))

    def empty(subject: object) -> Section | None:
        return None

    first, second = sections("subject", [broken_part, empty, sound])
    assert first == Section("Broken part", ["The run's files do not allow this part: KeyError: '<b>'"])
    assert second.title == "subject"


# The mathematics.


@given(st.lists(st.floats(0.01, 100), min_size=4, max_size=4))
def test_cosines_do_not_see_lengths(lengths):
    directions = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-1.0, 0.0]])
    vectors = directions * np.array(lengths)[:, None]
    assert np.allclose(cosines(vectors @ vectors.T), directions @ directions.T, atol=1e-9)


def test_a_vector_of_zeros_has_no_similarity():
    found = cosines(np.diag([1.0, 0.0]))
    assert found[0, 0] == 1 and np.isnan(found[1]).all() and np.isnan(found[:, 1]).all()


@given(st.integers(2, 50), st.integers(0, 200))
def test_thinned_keeps_the_ends_and_the_order(most, count):
    found = thinned(range(count), most)
    assert len(found) == min(count, most) and found == sorted(set(found))
    assert not count or (found[0], found[-1]) == (0, count - 1)


# ROC and calibration: whose they are, what is missing and why.

CURVE = Curve(3, 3, 120, 1, 0.9, [(0.0, 0.0), (0.0, 0.5), (0.2, 0.9), (1.0, 1.0)], [(0.1, 0.2, 80), (0.7, 0.9, 40)])


def with_curves(folder: Path, kept: Curves | None, **more) -> View:
    made.write_run(folder, NAMES, **more)
    if kept is not None:
        save_curves(folder, kept)
    return View(load_run(folder))


def test_curves_are_drawn_with_their_numbers_beside_them(tmp_path):
    section = discrimination(with_curves(tmp_path / "a", Curves(2, 1, 1, 1, {"all": CURVE, "cluster-1": CURVE})))
    roc, calibration = section.plots
    assert "of the positive class" in roc.text and "scores in one bin are ties" in roc.text
    # From (0, 0.5) to (0.2, 0.9), then to (1, 1).
    assert roc.table.rows[0] == ["all", "3", "120", "0.900", "0.600", "0.700", "0.900", "0.912", "0.938"]
    drawn = roc.spec["layer"][1]["data"]["values"]
    assert [(row["x"], row["y"]) for row in drawn if row["c"] == "cluster-1"] == CURVE.roc
    assert calibration.table.rows[:2] == [["all", "0.100", "0.200", "80"], ["all", "0.700", "0.900", "40"]]
    assert section.notes == []


def test_what_is_left_out_is_said_with_its_reason(tmp_path):
    reasons = {"all": "difference", "cluster-0": "few_sites", "cluster-2": "no_scores", "cluster-3": "few_samples"}
    section = discrimination(with_curves(tmp_path / "a", Curves(2, 3, 10, 4, {"cluster-1": CURVE}, reasons)))
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
    section = discrimination(with_curves(tmp_path / "a", Curves(2, 3, 10, 4, {}, {"all": "no_scores"})))
    assert section.plots == [] and "it was withheld" in section.notes[0]
    assert discrimination(with_curves(tmp_path / "b", None)) is None


def test_lines_are_of_the_largest_clusters(tmp_path):
    many = {f"cluster-{k}": CURVE for k in range(12)}
    names = [f"p{i}" for i in range(24)]
    folder = made.write_run(tmp_path / "a", names, k=12)
    save_curves(folder, Curves(2, 1, 1, 1, {"all": CURVE, **many}))
    section = discrimination(View(load_run(folder)))
    assert len(section.plots[0].table.rows) == 11
    assert section.notes == ["Curves are drawn of the 11 largest of 13."]


def test_a_damaged_file_costs_one_section(tmp_path):
    folder = made.write_run(tmp_path / "a", NAMES)
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
    assert mark in vega.script() and name in file("notice.txt")


# ---- Figures ----


OF_CLUSTERS = ["accuracy.png", "cluster_sizes.png", "flows.png", "analysis.png"]


def is_an_image(path: Path) -> bool:
    pixels = np.asarray(Image.open(path).convert("L"))
    return min(pixels.shape) > 300 and float(pixels.std()) > 2.55


def draw_figures(folder: Path, *arguments, **more) -> list[str]:
    rounds(folder, *arguments, **more)
    files = draw(load_run(folder))
    assert all(path.parent == folder and is_an_image(path) for path in files)
    return [path.name for path in files]


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("method", [WeCFL(k=2), IFCA(k=3)], ids=lambda m: m.name)
def test_a_clustered_run_is_drawn(tmp_path, method, truth):
    assert draw_figures(tmp_path, method, truth=truth) == OF_CLUSTERS
    assert draw_figures(tmp_path, method, truth=truth, count=1) == OF_CLUSTERS


def test_more_clusters_than_lines_that_can_be_told_apart(tmp_path):
    """An empty cluster has no clusterability, and its centre no participants."""
    assert draw_figures(tmp_path, IFCA(k=14)) == OF_CLUSTERS


def test_one_cluster(tmp_path):
    assert draw_figures(tmp_path, FeSEM(k=1)) == OF_CLUSTERS


def test_a_run_without_clusters_has_its_accuracy_alone(tmp_path):
    assert draw_figures(tmp_path, FedAvg()) == ["accuracy.png"]


def test_a_run_whose_rounds_were_not_analysed_is_drawn_without(tmp_path):
    rounds(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        for key in ("objective", "clusterability", "intra_cosine", "inter_cosine", "moved_share"):
            del line[key]
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [file.name for file in draw(load_run(tmp_path))] == OF_CLUSTERS[:-1]


def test_a_comparison_shows_the_sizes_where_two_methods_cluster(tmp_path):
    runs: dict[str, Run] = {}
    for method in (FedAvg(), WeCFL(k=2), IFCA(k=3)):
        rounds(tmp_path / method.name, method)
        runs[method.name] = load_run(tmp_path / method.name)
    assert [f.name for f in draw_comparison(list(runs.values()), tmp_path)] == ["accuracy.png", "cluster_sizes.png"]
    assert is_an_image(tmp_path / "cluster_sizes.png")
    (tmp_path / "cluster_sizes.png").unlink()
    assert [f.name for f in draw_comparison([runs["fedavg"], runs["ifca"]], tmp_path)] == ["accuracy.png"]
    four = [replace(runs["ifca"]) for _ in range(4)]  # one more than fit in a row
    draw_comparison(four, tmp_path)
    assert is_an_image(tmp_path / "cluster_sizes.png")


def judged(folder: Path, values: list[float], name: str, mode: str = "max") -> Run:
    """A run of two rounds by another metric, whose worst participant is at half its value."""
    rounds(folder, FedAvg())
    run = load_run(folder)
    lines = [
        {**line, f"served_{name}": value, f"served_worst_{name}": value / 2} for line, value in zip(run.rounds, values)
    ]
    return replace(run, summary={**run.summary, "metric": {"name": name, "mode": mode}}, rounds=lines)


def test_runs_of_two_metrics_are_compared_in_a_panel_each(tmp_path):
    runs = [judged(tmp_path / name, [0.2, 0.4], name) for name in ("dice", "r2")]
    assert [file.name for file in draw_comparison(runs, tmp_path)] == ["key_metric.png"]
    heights = [Image.open(path).height for path in (tmp_path / "key_metric.png", draw(runs[0])[0])]
    assert heights[0] > 1.5 * heights[1]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_models_are_compared_by_the_metric_of_the_run(tmp_path, mode):
    """The best is yellow, and the number in it black; the model of a participant's cluster is framed."""
    run = judged(tmp_path, [1.0], "gap", mode)
    head, lines = (
        "participant,site,group,cluster,model,accuracy,gap\n",
        ("a,s,,0,cluster-0,0.5,40.0", "a,s,,0,x,0.5,2.0"),
    )
    (tmp_path / "cross_site.csv").write_text(head + "\n".join(lines) + "\n")
    (plot,) = cross_site(View(run)).plots
    assert [(cell["v"], cell["served"]) for cell in plot.spec["data"]["values"]] == [(40.0, True), (2.0, False)]
    colour = plot.spec["layer"][0]["encoding"]["color"]["scale"]
    assert colour == {"scheme": "viridis", "reverse": mode == "min"}
    written = plot.spec["layer"][-1]["encoding"]["color"]["condition"]
    assert written == {"test": f"datum.v {'>' if mode == 'max' else '<'} 21.0", "value": "black"}
    assert plot.title == "gap of every model" and plot.table.rows == [["a", "40.000", "2.000"]]


def test_a_run_without_measured_rounds_has_nofigure(tmp_path):
    assert draw(judged(tmp_path, [], "dice")) == []


def test_true_groups_stand_beside_the_clusters(tmp_path):
    rounds(tmp_path, WeCFL(k=2), truth=True)
    run = load_run(tmp_path)
    (plot,) = moves(View(run)).plots
    truth = {person["name"]: f"group {person['group']}" for person in run.summary["participants"]}
    assert {row["name"]: row["g"] for row in plot.spec["data"]["values"]} == truth
    assert plot.spec["layer"][0]["encoding"]["x"]["scale"]["domain"][-1] == "truth"
    assert {row[0]: row[-1] for row in plot.table.rows} == truth


def test_every_participant_is_in_a_bar(tmp_path):
    """Of many clusters the largest have a colour each, and a bar is as high as there are participants."""
    names = [f"p{i}" for i in range(40)]
    (plot,) = sizes(View(load_run(made.write_run(tmp_path / "a", names, k=13)))).plots
    parts = [(point["r"], point["c"], point["v"]) for point in plot.spec["data"]["values"]]
    assert len({c for _, c, _ in parts}) == 11 and SMALLER in {c for _, c, _ in parts}
    assert {r: sum(v for at, _, v in parts if at == r) for r, *_ in parts} == {1: 40, 2: 40, 3: 40}


def test_a_picture_answers_to_no_pointer_and_names_no_file(tmp_path):
    rounds(tmp_path)
    text = json.dumps(figure("a run", convergence(View(load_run(tmp_path))).plots))
    assert not any(word in text for word in ("params", "tooltip", "condition", "http", "url"))


@pytest.mark.parametrize("ending", ["svg", "pdf"])
def test_a_partition_is_drawn_as_a_vector_graphic_too(tmp_path, ending):
    report = DataConfig(12, {"partition": "label_permutation", "groups": 3}).report(Digits())
    content = draw_partition(report, tmp_path / f"p.{ending}").read_bytes()
    assert content.startswith({"svg": b"<svg", "pdf": b"%PDF"}[ending])


def test_hostile_names_are_text_in_a_picture(tmp_path):
    """Drawn as an SVG: every name is escaped, in one line and cut, and nothing is an element or an address."""
    names = [*made.HOSTILE, "x" * 500, "currentColor", "$\\frac{$"]
    run = replace(load_run(made.write_run(tmp_path / "a", names, label=made.HOSTILE[0])))
    for name in (" ".join(made.HOSTILE[:3]), "y" * 500, "https://example.org/x"):
        plots = [plot for make in FIGURES.values() if (section := make(View(run))) for plot in section.plots]
        (path,) = save(name, {tmp_path / "a.svg": plots})
        text = path.read_text()
        assert "<script" not in text and "<img" not in text and "href" not in text and "y" * 61 not in text
        ElementTree.fromstring(text)
    assert all(is_an_image(path) for path in draw(run))


def test_names_from_anywhere_are_neither_markup_nor_formulas(tmp_path):
    from rich.console import Console

    from cfl_flare.results.tables import print_whole, results_table

    rounds(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary["label"] = "$\\frac{$ [red]x[/blue] \x1b[2J " + "y" * 50
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    hostile = load_run(tmp_path)
    (tmp_path / "cross_site.csv").write_text("participant,site,group,cluster,model,$^$\na$_$,s,,0,$m^$,0.5\n")
    assert "cross_site.png" in [file.name for file in draw(hostile)]
    with (tmp_path / "said").open("w") as said:
        print_whole(Console(file=said, width=100), results_table([hostile], ["[bold]folder"]))
    shown = (tmp_path / "said").read_text()
    assert "[red]x[/blue]" in shown and "[bold]folder" in shown and "\x1b" not in shown and "$" in shown
