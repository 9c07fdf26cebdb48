# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Commands and figures of the extension, from the outside."""

import re
from pathlib import Path

import pytest

from cfl_flare import DataConfig, Digits, ServerSettings, TrainSettings
from cfl_flare.cli import main
from cfl_flare.cli.specs import build_named
from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.facts import head
from cfl_flare.extensions.report.figures import draw, draw_partition
from cfl_flare.extensions.report.page import View
from cfl_flare.results.remarks import IMPROVING
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.study import load_study
from tests.helpers.loop import MODEL, run_loop
from tests.helpers.made import write_run

STUDY = ["study", "--participants", "6", "--partition", "iid", "--rounds", "2", "--rungs", "1", "--bootstrap", "50"]
RUN = ["run", "--loop", "--rounds", "3", "--keep-features", "--method", "fesem:k=3", "--method", "local"]
OF_CLUSTERS = {"accuracy.png", "cluster_sizes.png", "analysis.png", "flows.png"}


def list_figures(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.png")}


def test_run_and_show_draw_figures(tmp_path, capfd):
    out = tmp_path / "out"
    assert main([*RUN, "--out", str(out)]) == 0, capfd.readouterr().err
    for command in (None, ["show", str(out)]):
        if command is not None:
            assert main(command) == 0
        assert list_figures(out / "fesem-k3") == OF_CLUSTERS
        assert list_figures(out / "local") == {"accuracy.png"}
        assert list_figures(out) == {"accuracy.png"}  # one of the two has clusters
        for path in out.rglob("*.png"):
            path.unlink()
    assert (out / "local" / "report.html").is_file() and (out / "report.html").is_file()


def test_a_study_names_its_report(tmp_path, capfd):
    out = tmp_path / "out"
    assert main([*STUDY, "--out", str(out)]) == 0
    assert f"report: {out / 'report.html'}" in capfd.readouterr().out.replace("\n", "")
    assert load_study(out)["verdict"]["sentences"][0] in (out / "report.html").read_text()


def test_an_unwritten_report_leaves_the_verdict(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(vega, "MAKE", "raise SystemExit('no engine here')")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    vega.script.cache_clear()
    status = main([*STUDY, "--out", str(tmp_path / "out")])
    printed, error = capfd.readouterr()
    assert status == 0, error
    assert "the report's plots cannot be made: no engine here" in printed and "report: /" not in printed
    assert load_study(tmp_path / "out")["verdict"]["sentences"][0] in printed


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        ("nowhere/a.png", r"--figure = 'nowhere/a\.png' should be a \.png .* in an existing folder;"),
        ("a.xyz", r"--figure = 'a\.xyz' should be a \.png or \.pdf or \.svg file"),
    ],
)
def test_a_figure_needs_a_picture_s_name(figure, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["partition", "--figure", figure]) == 2
    output = capsys.readouterr()
    assert output.out == "" and re.search(says, output.err)
    assert not list(tmp_path.iterdir())


def test_a_partition_is_drawn(tmp_path, capsys):
    figure = tmp_path / "p.png"
    assert main(["partition", "--participants", "4", "--partition", "iid", "--figure", str(figure)]) == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.strip().endswith("p.png")


@pytest.mark.parametrize("spec", [{"partition": "lda", "alpha": 0.5}, {"partition": "n_class", "n": 2}])
def test_each_rule_is_drawn(spec, tmp_path):
    report = DataConfig(12, spec, seed=3, min_samples=5).report(Digits())
    assert draw_partition(report, tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["cfl:eps1=1.0,eps2=1.9", "wecfl:k=auto,warmup=2", "fedac:k=2,low=0.01,high=0.9"])
def test_the_number_of_clusters_is_drawn(name, tmp_path):
    run_loop(
        method=build_named(name),
        model=MODEL,
        source=Digits(),
        data=DataConfig(8, {"partition": "label_permutation", "groups": 2}),
        settings=ServerSettings(5, keep_features=True, cross_site_evaluation=True),
        training=TrainSettings(lr=0.1, local_steps=10),
        folder=tmp_path,
    )
    drawn = {path.name for path in draw(load_run(tmp_path))}
    assert {"number_of_clusters.png", "cluster_sizes.png", "cross_site.png"} <= drawn
    assert (tmp_path / "cross_site.png").stat().st_size > 5000


@pytest.mark.parametrize("remark", [None, "not converged: accuracy still improved by 0.02"])
def test_a_run_that_still_improves_says_so(remark, tmp_path):
    facts = {} if remark is None else {IMPROVING: remark}
    text = " ".join(head(View(load_run(write_run(tmp_path / "run", ["a", "b", "c"], **facts)))).text)
    assert ("not converged: " in text) == (remark is not None)
