# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a run: what it says, what it leaves out, and that nothing in a run's files gets out of its place."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfl_flare.cli import main
from cfl_flare.core.errors import ConfigError, FileError
from cfl_flare.methods import FedAvg, WeCFL
from cfl_flare.report import vega
from cfl_flare.report.clusters import moves, number_of_clusters
from cfl_flare.report.comparison import Runs, comparison_report, result
from cfl_flare.report.facts import failures, head, participants
from cfl_flare.report.measures import convergence
from cfl_flare.report.page import Section, Table, page, sections
from cfl_flare.report.table import results_table
from cfl_flare.report.text import told_apart
from cfl_flare.report.vega import as_json
from cfl_flare.report.view import View, thinned
from cfl_flare.report.who import cosines, plane, tree, who
from cfl_flare.report.write import LARGEST, REPORT, SECTIONS, run_report, try_to_write, write
from cfl_flare.results.run_dir import load_run
from tests.report import made
from tests.tiny import rounds

NAMES = [f"p{i}" for i in range(6)]


class Elements(HTMLParser):
    """The elements of a page, with their attributes and the text directly in them."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        self.found.append(("", {}, []))  # what follows is not in it

    def handle_data(self, data):
        if self.found:
            self.found[-1][2].append(data)

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attrs, "".join(text)) for name, attrs, text in self.found if name == tag]


def view(folder: Path) -> View:
    return View(load_run(folder))


def change(folder: Path, **values) -> None:
    """Changes a summary."""
    file = folder / "summary.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


# The parts.


def test_the_result_has_its_interval_or_claims_nothing(tmp_path):
    folder = made.run(tmp_path / "a", NAMES)
    (plain, *rest) = head(view(folder)).text
    assert "accuracy is 0.750 on average over 6 participants" in plain
    assert "No interval was measured" in plain and "claims nothing" in plain and not rest
    change(folder, intervals={"served_accuracy": [0.7, 0.8]})
    sure, caution = head(view(folder)).text
    assert "lie from 0.700 to 0.800" in sure and "claims nothing" not in sure and "another seed" in caution


def test_a_script_s_run_shows_its_steps_and_nothing_that_cfl_flare_did_not_do(tmp_path):
    folder = made.run(tmp_path / "run", NAMES, train_script="client.py")
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


def test_participants_are_sorted_from_the_worst_and_the_undefined_are_named(tmp_path):
    folder = made.run(tmp_path / "a", NAMES)
    summary = json.loads((folder / "summary.json").read_text())
    people = summary["participants"][::-1]
    del people[0]["served_accuracy"]  # p5
    change(folder, participants=people, metric={"name": "accuracy", "mode": "max"})
    (plot,) = participants(view(folder)).plots
    points = plot.spec["data"]["values"]
    assert [(p["name"], p["v"]) for p in points] == [(f"p{i}", float(f"{0.5 + i / 12:.4g}")) for i in range(5)]
    assert [row[0] for row in plot.table.rows] == ["p0", "p1", "p2", "p3", "p4", "p5"]
    assert plot.table.rows[5][3] == "not defined" and plot.table.rows[0][4] == "0.400 to 0.600"
    (note,) = participants(view(folder)).notes
    assert "1 of 6: p5." in note
    people[1]["intervals"]["served_accuracy"] = [0.8, 0.8]
    change(folder, participants=people)
    assert "without width is no certainty" in participants(view(folder)).notes[1]
    change(folder, metric={"name": "accuracy", "mode": "min"})
    assert participants(view(folder)).plots[0].spec["data"]["values"][0]["name"] == "p4"


def test_nobody_measured_is_no_section(tmp_path):
    folder = made.run(tmp_path / "a", NAMES)
    change(folder, metric={"name": "dice", "mode": "max"})
    assert participants(view(folder)) is None and convergence(view(folder)) is None


def test_convergence_has_the_mean_each_cluster_and_the_worst(tmp_path):
    (plot,) = convergence(view(made.run(tmp_path / "a", NAMES))).plots
    assert plot.table.columns == ("round", "all", "cluster-0", "cluster-1", "worst participant")
    assert plot.table.rows[2] == ["3", "0.502", "0.502", "0.512", "0.402"]
    dashes = plot.spec["encoding"]["strokeDash"]["scale"]
    assert dict(zip(dashes["domain"], dashes["range"]))["worst participant"] == [5, 4]


def test_moves_are_counted_over_all_rounds(tmp_path):
    names = [f"p{i}" for i in range(100)]
    section = moves(view(made.run(tmp_path / "a", names, rounds=60)))
    (plot,) = section.plots
    assert plot.text.startswith("1 of 100 participants changed")
    by_name = {row[0]: row[1:] for row in plot.table.rows}
    assert by_name["p99"] == ["cluster-0", "cluster-1", "59", "60"] and by_name["p0"][2:] == ["0", "-"]
    assert len({cell["name"] for cell in plot.spec["data"]["values"]}) == 80
    assert "80 of 100 participants and 50 of 60 rounds are drawn" in section.notes[0]


def test_similarities_come_from_the_last_features_that_were_kept(tmp_path):
    folder = made.run(tmp_path / "a", NAMES)
    section = who(view(folder))  # none yet: shares of rounds
    assert "same cluster" in section.text[0] and len(section.plots) == 1
    names = [n["name"] for n in section.plots[0].spec["datasets"]["names"]]
    assert names == ["p0", "p2", "p4", "p1", "p3", "p5"]  # by cluster
    cells = [row["v"] for row in section.plots[0].spec["data"]["values"]]
    assert cells[0][:4] == [1.0, 1.0, 1.0, 0.0] and cells[5] == [0.667, 0.667, 0.667, 0.333, 0.333, 1.0]
    made.features(folder, NAMES)
    section = who(view(folder))
    assert "of round 3" in section.text[0]
    matrix, points, branches = section.plots
    nearest = {row[0]: row[4] for row in matrix.table.rows}
    assert all(int(a[1]) % 2 == int(b[1]) % 2 for a, b in nearest.items())
    assert len(points.spec["data"]["values"]) == 6 and len(branches.spec["layer"][0]["data"]["values"]) == 5 * 4


def test_features_of_zeros_are_left_out_and_said(tmp_path):
    folder = made.run(tmp_path / "a", NAMES)
    made.features(folder, [*NAMES[:5], "a stranger"])
    section = who(view(folder))
    assert "1 participants are left out" in section.notes[0]


def test_the_number_of_clusters_is_shown_where_it_is_searched(tmp_path):
    folder = made.run(tmp_path / "a", NAMES)
    assert number_of_clusters(view(folder)) is None  # two in every round
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    by_k = {"1": {"gap": 0.0, "deviations": 0.0}, "2": {"gap": 0.75, "deviations": 3.0, "stability": 0.5}}
    lines[1]["number_of_clusters"] = {"k": 2, "by_k": by_k, "draws": {"2": 60, "5": 40}}
    lines[2]["dispersion"] = {"0": 0.5, "1": None}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(own) + "\n" for own in lines))
    in_use, inside, gap = number_of_clusters(view(folder)).plots
    assert [row[1] for row in in_use.table.rows] == ["2", "2", "2"]
    assert inside.table.columns == ("round", "cluster-0") and inside.table.rows == [["3", "0.500"]]
    assert gap.table.rows == [["1", "0.000", "0.000 to 0.000", "-"], ["2", "0.750", "0.500 to 1.000", "0.500"]]
    assert "about 2 clusters found (without a fifth of the participants 2 to 5, with other members)" in gap.text
    assert load_run(folder).name.endswith("(about K=2)")


@pytest.mark.parametrize(
    "draws", [{"2": -1}, {"two": 1}, {"2": 2.5}, {"9" * 5000: 1}, ["2"], {"2": 2**54}, {"-2": 1}, {"2": True}]
)
def test_draws_that_no_run_writes_are_refused(draws, tmp_path):
    folder = made.run(tmp_path / "a", NAMES)
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    lines[1]["number_of_clusters"] = {"k": 1, "by_k": {"1": {"gap": 0.0, "deviations": 0.0}}, "draws": draws}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match="is not a number of clusters, with what it was chosen by"):
        load_run(folder)


def test_failures_are_listed(tmp_path):
    folder = made.run(tmp_path / "a", NAMES, rejected={"norm": 2}, sites_left_out={"s1": "no result in time"})
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    lines[0]["trained"] = NAMES[1:]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(own) + "\n" for own in lines))
    tables = dict(failures(view(folder)).tables)
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


@given(st.integers(2, 8), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_plane_keeps_distances_that_fit_into_it(n, d, seed):
    points = np.random.default_rng(seed).normal(size=(n, min(d, 2)))
    found, shares = plane(points @ points.T)
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    assert np.allclose(np.linalg.norm(found[:, None] - found[None], axis=2), apart, atol=1e-6)
    assert math.isclose(sum(shares), 1.0, abs_tol=1e-9)


@given(st.lists(st.floats(0.01, 100), min_size=4, max_size=4))
def test_cosines_do_not_see_lengths(lengths):
    directions = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-1.0, 0.0]])
    vectors = directions * np.array(lengths)[:, None]
    assert np.allclose(cosines(vectors @ vectors.T), directions @ directions.T, atol=1e-9)


def test_a_vector_of_zeros_has_no_similarity():
    found = cosines(np.diag([1.0, 0.0]))
    assert found[0, 0] == 1 and np.isnan(found[1]).all() and np.isnan(found[:, 1]).all()


def test_the_tree_joins_by_mean_distance():
    similar = np.array([[1.0, 0.2, 0.9], [0.2, 1.0, 0.4], [0.9, 0.4, 1.0]])  # 0 and 2 at 0.1; 1 at (0.8 + 0.6) / 2
    leaves, joints, heights = tree(similar)
    assert sorted(leaves) == [0, 1, 2]
    assert {leaf: round(height, 9) for leaf, height in zip(leaves, heights)} == {0: 0.1, 2: 0.1, 1: 0.7}
    assert sorted(round(max(ys), 9) for _, ys in joints) == [0.1, 0.7]


@given(st.integers(2, 50), st.integers(0, 200))
def test_thinned_keeps_the_ends_and_the_order(most, count):
    found = thinned(range(count), most)
    assert len(found) == min(count, most) and found == sorted(set(found))
    assert not count or (found[0], found[-1]) == (0, count - 1)


# Text from anybody.


@given(st.text())
def test_json_in_a_script_stays_there_and_means_the_same(text):
    found = as_json({"v": text})
    assert not set("<>&\u2028\u2029") & set(found) and json.loads(found) == {"v": text}


def test_json_has_no_numbers_that_json_lacks():
    assert as_json([math.nan, [math.inf], {1: True}]) == '[null,[null],{"1":true}]'


def test_names_that_look_alike_are_told_apart():
    assert told_apart(["x" * 70, "x" * 71, "y"]) == ["x" * 57 + "...", "x" * 57 + "... #2", "y"]
    assert told_apart(["b", "b #2", "b", "b"]) == ["b", "b #2", "b #3", "b #4"]


@given(st.lists(st.sampled_from(["a", "a #2", "a #3", "a\n", "toString", "toString #1", "__proto__"])))
def test_each_name_is_shown_once_and_none_is_every_objects(names):
    found = told_apart(names)
    assert len(found) == len(names) == len({*found}) and not {"toString", "__proto__"} & {*found}


def hostile(folder: Path) -> Path:
    made.run(
        folder,
        made.HOSTILE,
        measure="</script><b>",
        sites_left_out={made.HOSTILE[0]: made.HOSTILE[1]},
        rejected={made.HOSTILE[0]: 1},
        versions={made.HOSTILE[1]: made.HOSTILE[0]},
        training={made.HOSTILE[0]: {made.HOSTILE[1]: made.HOSTILE[2]}},
        label=made.HOSTILE[0],
        stopped=made.HOSTILE[1],
    )
    made.features(folder, made.HOSTILE)
    return folder


def only_text(page: str) -> Elements:
    """The elements of a page in which hostile names are text: none runs, and none is an element or an attribute."""
    elements = Elements(page)
    assert not elements.of("img") and not elements.of("b")
    executable = [body for attrs, body in elements.of("script") if attrs.get("type") != "application/json"]
    assert len(executable) == 2 and not any("owned" in body for body in executable)
    for attrs, body in elements.of("script"):
        if attrs.get("type") == "application/json":
            json.loads(body)
    assert not any(name.startswith("on") for _, attrs, _ in elements.found for name in attrs)
    assert not any(body in page for body in ("\u2028", "\u202e", "\x1b"))
    assert "do not allow this part" not in page
    return elements


def test_hostile_names_are_text_everywhere(tmp_path):
    hostile(tmp_path / "a")
    text = run_report(load_run(tmp_path / "a"))
    elements = only_text(text)
    assert "49" not in "".join(body for _, body in elements.of("th"))  # {{7*7}} is no template


def test_the_policy_allows_the_two_scripts_and_nothing_else(tmp_path):
    text = run_report(load_run(made.run(tmp_path / "a", NAMES)))
    elements = Elements(text)
    (policy,) = [
        attrs["content"] for attrs, _ in elements.of("meta") if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split(";")}
    assert rules["default-src"] == ["'none'"] and "unsafe-eval" not in policy
    scripts = [body for attrs, body in elements.of("script") if "type" not in attrs]
    assert rules["script-src"] == [_hash(body) for body in scripts]
    assert rules["style-src"] == [_hash(body) for _, body in elements.of("style")]
    rest = text.replace(vega.script(), "")
    assert not re.search(r"(src|href)=\"(?!#)", rest)  # nothing is loaded


def _hash(body: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"


def test_numbers_that_are_none_do_not_stop_a_report(tmp_path):
    folder = made.run(tmp_path / "a", NAMES, rejected=[1], versions="x", training=3, data=[], model="m")
    summary = json.loads((folder / "summary.json").read_text())
    summary["participants"][0] |= {"served_accuracy": math.nan, "samples": "many", "cluster": "x"}
    summary["participants"][1] |= {"served_accuracy": "high", "cluster": -1}
    (folder / "summary.json").write_text(json.dumps(summary))
    text = run_report(load_run(folder))
    assert "do not allow this part" not in text
    assert "2 of 6: p0, p1." in text


# The file.


@pytest.mark.parametrize("method", [FedAvg(), WeCFL(k=2)], ids=lambda m: m.name)
def test_a_real_run_has_all_its_parts(tmp_path, method):
    rounds(tmp_path, method, keep_features=True)
    text = run_report(load_run(tmp_path))
    assert "do not allow this part" not in text
    text = text.replace(vega.script(), "")
    headings = re.findall(r"<h2[^>]*>([^<]*)", text)
    always = ["Result", "Participants", "Convergence", "Traffic and time", "Failures", "Settings and versions"]
    of_clusters = ["Who is with whom", "How assignments moved", "Sizes of the clusters", "Quality of the clustering"]
    of_clusters = of_clusters if method.name == "wecfl" else []
    assert sorted(headings) == sorted([*always, *of_clusters])
    assert text.count("<figure ") == text.count("as a table</summary>") == len(re.findall('class="plot"', text))


def test_a_run_of_500_participants_and_200_rounds_fits(tmp_path):
    names = [f"{'hospital-' * 5}{i}" for i in range(500)]
    folder = made.run(tmp_path / "a", names, rounds=200, k=12)
    made.features(folder, names, k=12)
    view_ = view(folder)
    notes = [note for make in SECTIONS if (section := make(view_)) is not None for note in section.notes]
    text = run_report(load_run(folder))
    assert len(text.encode()) < LARGEST and "do not allow this part" not in text
    assert any("60, the plane and the tree 200 of 500" in note for note in notes)
    assert any("100 of 200 rounds are drawn" in note for note in notes)
    assert any("10 largest clusters" in note for note in notes)


def test_more_rows_than_a_table_has_room_for_are_counted(monkeypatch):
    monkeypatch.setattr(vega, "script", lambda: pytest.fail("there is no plot"))
    table = Table(("a",), [[str(i)] for i in range(7)], most=5)
    text = page("t", "s", [Section("x", tables=[("y", table)])])
    assert text.count('<th scope="row">') == 5 and "2 more rows are left out" in text


def test_a_report_that_is_too_large_is_refused(tmp_path):
    with pytest.raises(FileError, match="more than 2,000,000"):
        write("x" * (LARGEST + 1), tmp_path / REPORT)
    assert not (tmp_path / REPORT).exists()


def test_a_report_that_cannot_be_made_fails_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(vega, "MAKE", "raise SystemExit('no engine here')")
    vega.script.cache_clear()
    why = try_to_write(made.run(tmp_path / "a", NAMES))
    assert "no engine here" in why and "cfl-flare report" in why and not (tmp_path / "a" / REPORT).exists()


# Several runs.


def several(folder: Path) -> Path:
    for name, gain in (("a", 0.0), ("b", 0.1)):
        made.run(folder / name, NAMES, label=name)
        summary = json.loads((folder / name / "summary.json").read_text())
        for own in summary["participants"]:
            own["served_accuracy"] += gain
        (folder / name / "summary.json").write_text(json.dumps(summary))
    return folder


def with_draws(folder: Path, low: float, high: float) -> None:
    """Draws of which b's are between so much above a's."""
    from cfl_flare.core.arrays import save_arrays
    from cfl_flare.results.bootstrap import BOOTSTRAP, FACTS

    for name, drawn in (("a", np.zeros((6, 101))), ("b", np.tile(np.linspace(low, high, 101), (6, 1)))):
        meta = dict(zip(FACTS, (NAMES, [10] * 6, [1] * 6)))
        save_arrays(folder / name / BOOTSTRAP, {"served_accuracy": drawn}, meta)


def test_runs_are_compared_with_the_first_and_without_draws_nothing_is_claimed(tmp_path):
    several(tmp_path)
    them = Runs([load_run(tmp_path / name) for name in "ab"], tmp_path)
    first, _ = result(them).text
    assert first.startswith("b (K=2) against a (K=2): no paired interval, so no claim")
    assert str(tmp_path) not in comparison_report(them.runs, tmp_path)
    with_draws(tmp_path, 0.05, 0.15)
    sure = Runs(them.runs, tmp_path)
    first, _ = result(sure).text
    assert ": better;" in first and "+0.100 on average (paired 95 % interval 0.053 to 0.148)" in first
    with_draws(tmp_path, -0.15, 0.25)
    assert ": not told apart;" in result(Runs(them.runs, tmp_path)).text[0]


def test_for_a_measure_whose_smallest_value_is_best_more_is_worse(tmp_path):
    several(tmp_path)
    with_draws(tmp_path, 0.05, 0.15)
    for name in "ab":
        change(tmp_path / name, metric={"name": "accuracy", "mode": "min"})
    them = Runs([load_run(tmp_path / name) for name in "ab"], tmp_path)
    assert ": worse;" in result(them).text[0]


# The command.


def test_the_command_writes_a_report_for_each_run_and_one_that_compares(tmp_path, capsys):
    several(tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    files = [tmp_path / "a" / REPORT, tmp_path / "b" / REPORT, tmp_path / REPORT]
    assert capsys.readouterr().out.split() == [str(file) for file in files] and all(file.is_file() for file in files)
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "one.html")]) == 0
    assert "on average over 6 participants" in (tmp_path / "one.html").read_text()
    assert main(["report", str(tmp_path), "--against", "b", "--out", str(tmp_path / "two.html")]) == 0
    assert "a (K=2) against b (K=2)" in (tmp_path / "two.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere holds no finished run"),
        (["{}", "--out", "report.pdf"], "--out = 'report.pdf' should be a .html file"),
        (["{}", "--out", "no/such/folder.html"], "make the folder first"),
        (["{}", "--against", "c"], "--against = 'c' is no run of"),
    ],
)
def test_what_cannot_be_reported_is_one_line(tmp_path, capsys, arguments, said):
    several(tmp_path)
    assert main(["report", *(own.format(tmp_path) for own in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_what_draws_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(vega, "MAKE", "import no_such_module_here")
    vega.script.cache_clear()
    with pytest.raises(ConfigError, match=r"no_such_module_here.*pip install vl-convert-python"):
        vega.script()
