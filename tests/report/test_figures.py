# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The figures of a run, from what it left on disk."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from cfl_flare.data import DataConfig, Digits
from cfl_flare.methods import IFCA, FedAvg, FeSEM, WeCFL
from cfl_flare.report.clusters import SMALLER, moves, sizes
from cfl_flare.report.figures import FIGURES, draw, draw_comparison, draw_partition, figure, save
from cfl_flare.report.measures import convergence, cross_site
from cfl_flare.report.page import View
from cfl_flare.results.run_dir import Run, load_run
from tests.report import made
from tests.tiny import rounds

OF_CLUSTERS = ["accuracy.png", "cluster_sizes.png", "flows.png", "analysis.png"]


def is_an_image(path: Path) -> bool:
    pixels = np.asarray(Image.open(path).convert("L"))
    return min(pixels.shape) > 300 and float(pixels.std()) > 2.55


def drawn(folder: Path, *arguments, **more) -> list[str]:
    rounds(folder, *arguments, **more)
    files = draw(load_run(folder))
    assert all(file.parent == folder and is_an_image(file) for file in files)
    return [file.name for file in files]


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("method", [WeCFL(k=2), IFCA(k=3)], ids=lambda m: m.name)
def test_a_clustered_run_is_drawn(tmp_path, method, truth):
    assert drawn(tmp_path, method, truth=truth) == OF_CLUSTERS
    assert drawn(tmp_path, method, truth=truth, count=1) == OF_CLUSTERS


def test_more_clusters_than_lines_that_can_be_told_apart(tmp_path):
    """An empty cluster has no clusterability, and its centre no participants."""
    assert drawn(tmp_path, IFCA(k=14)) == OF_CLUSTERS


def test_one_cluster(tmp_path):
    assert drawn(tmp_path, FeSEM(k=1)) == OF_CLUSTERS


def test_a_run_without_clusters_has_its_accuracy_alone(tmp_path):
    assert drawn(tmp_path, FedAvg()) == ["accuracy.png"]


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
    (plot,) = sizes(View(load_run(made.run(tmp_path / "a", names, k=13)))).plots
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
    run = replace(load_run(made.run(tmp_path / "a", names, label=made.HOSTILE[0])))
    for name in (" ".join(made.HOSTILE[:3]), "y" * 500, "https://example.org/x"):
        plots = [plot for make in FIGURES.values() if (section := make(View(run))) for plot in section.plots]
        (path,) = save(name, {tmp_path / "a.svg": plots})
        text = path.read_text()
        assert "<script" not in text and "<img" not in text and "href" not in text and "y" * 61 not in text
        ElementTree.fromstring(text)
    assert all(is_an_image(path) for path in draw(run))


def test_names_from_anywhere_are_neither_markup_nor_formulas(tmp_path):
    from rich.console import Console

    from cfl_flare.report.table import print_whole, results_table

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
