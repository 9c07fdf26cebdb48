# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The figures of a run, from what it left on disk."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.image import imread

from cfl_flare.methods import IFCA, FedAvg, FeSEM, WeCFL
from cfl_flare.report.colours import COLOURS, palette
from cfl_flare.report.cross_site import cross_site
from cfl_flare.report.figures import _over_rounds, draw, draw_comparison
from cfl_flare.report.flows import _heights, chosen_rounds
from cfl_flare.results.run_dir import Run, load_run
from tests.tiny import rounds

OF_CLUSTERS = ["accuracy.png", "cluster_sizes.png", "flows.png", "analysis.png"]


def is_an_image(path: Path) -> bool:
    pixels = imread(path)
    return min(pixels.shape[:2]) > 300 and float(pixels.std()) > 0.01


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


def test_the_first_rounds_and_the_last_one_are_always_drawn():
    assert chosen_rounds(range(8)) == list(range(8))
    for count in (16, 50, 199):
        chosen = chosen_rounds(range(count))
        assert len(set(chosen)) == len(chosen) == 15
        assert chosen == sorted(chosen)
        assert (chosen[:5], chosen[-1]) == ([0, 1, 2, 3, 4], count - 1)


def test_lines_of_a_cluster_lie_beside_each_other_and_never_in_another_s_room():
    columns = [{"a": 0, "b": 0, "c": 1}, {"a": 0, "b": 1, "c": 1, "d": 1}]
    places, middle, height = _heights(columns, "abcd", [0, 1])
    # Two lines high is cluster 0 at most, three cluster 1, and a gap of one beside each.
    assert (middle, height) == ({0: 1, 1: 4.5}, 7)
    assert places == [{"a": 0.5, "b": 1.5, "c": 4.5}, {"a": 1.0, "b": 3.5, "c": 4.5, "d": 5.5}]


def test_colours_are_told_apart_up_to_twenty():
    assert palette(3) == list(COLOURS[:3])
    assert len(set(palette(20))) == 20
    assert len(palette(45)) == 45


def judged(folder: Path, values: list[float], name: str, mode: str = "max") -> Run:
    """A run of two rounds by another metric, whose worst participant is at half its value."""
    rounds(folder, FedAvg())
    run = load_run(folder)
    lines = [
        {**line, f"served_{name}": value, f"served_worst_{name}": value / 2} for line, value in zip(run.rounds, values)
    ]
    return replace(run, summary={**run.summary, "metric": {"name": name, "mode": mode}}, rounds=lines)


@pytest.mark.parametrize(
    ("name", "values", "ends"),
    [
        ("dice", [0.2, 0.8], (0, 1)),
        ("accuracy", [40.0, 80.0], (17, 83)),
        ("r2", [-4.0, -1.0], (-4.175, -0.325)),
        ("loss", [0.4, 0.8], (0.17, 0.83)),
    ],
)
def test_only_shares_have_an_axis_from_0_to_1(tmp_path, name, values, ends):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    _over_rounds(axes, name, [("red", judged(tmp_path, values, name, "min" if name == "loss" else "max"))])
    assert axes.get_ylim() == pytest.approx(ends)
    assert axes.get_ylabel() == f"{name} on own test split"
    mean, worst = (list(line.get_ydata()) for line in axes.lines)
    assert (mean, worst) == (values, [value / 2 for value in values])


def test_runs_of_two_metrics_are_compared_in_a_panel_each(tmp_path):
    runs = [judged(tmp_path / name, [0.2, 0.4], name) for name in ("dice", "r2")]
    assert [file.name for file in draw_comparison(runs, tmp_path)] == ["key_metric.png"]
    assert imread(tmp_path / "key_metric.png").shape[0] > 1.5 * imread(draw(runs[0])[0]).shape[0]


@pytest.mark.parametrize(("mode", "colours"), [("max", "viridis"), ("min", "viridis_r")])
def test_models_are_compared_by_the_metric_of_the_run(tmp_path, monkeypatch, mode, colours):
    """The best is yellow."""
    run, table = judged(tmp_path, [1.0], "gap", mode), tmp_path / "cross_site.csv"
    table.write_text("participant,site,group,cluster,model,accuracy,gap\na,s,,0,global,0.5,40.0\n")
    monkeypatch.setattr("cfl_flare.report.cross_site.save", lambda figure, path: figure)
    axes = cross_site(run, table, tmp_path / "x.png").axes[0]
    (image,) = axes.images
    assert image.get_array().tolist() == [[40.0]] and image.get_cmap().name == colours
    assert axes.get_title().endswith("gap on each participant's test split")


def test_a_run_without_measured_rounds_is_drawn(tmp_path):
    run = judged(tmp_path, [], "dice")
    assert [file.name for file in draw(run)] == ["key_metric.png"]


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
