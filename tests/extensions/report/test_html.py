# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The page of runs: nothing in their files gets out of its place, and the command writes it."""

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
from cfl_flare.core.errors import ConfigError, FileError, NoPlotsError
from cfl_flare.extensions.report import vega
from cfl_flare.extensions.report.comparison import Runs, comparison_report, result
from cfl_flare.extensions.report.page import Section, Table, View, page
from cfl_flare.extensions.report.vega import as_json
from cfl_flare.extensions.report.write import LARGEST, REPORT, SECTIONS, run_report, try_to_write, write
from cfl_flare.methods import FedAvg, WeCFL
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.wording import told_apart
from tests.helpers import made
from tests.helpers.made import change
from tests.helpers.tiny import rounds

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


def write_hostile_run(folder: Path) -> Path:
    made.write_run(
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
    made.write_features(folder, made.HOSTILE)
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
    write_hostile_run(tmp_path / "a")
    text = run_report(load_run(tmp_path / "a"))
    elements = only_text(text)
    assert "49" not in "".join(body for _, body in elements.of("th"))  # {{7*7}} is no template


def test_the_policy_allows_the_two_scripts_and_nothing_else(tmp_path):
    text = run_report(load_run(made.write_run(tmp_path / "a", NAMES)))
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
    folder = made.write_run(tmp_path / "a", NAMES, rejected=[1], versions="x", training=3, data=[], model="m")
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
    folder = made.write_run(tmp_path / "a", names, rounds=200, k=12)
    made.write_features(folder, names, k=12)
    view = View(load_run(folder))
    notes = [note for make in SECTIONS if (section := make(view)) is not None for note in section.notes]
    text = run_report(load_run(folder))
    assert len(text.encode()) < LARGEST and "do not allow this part" not in text
    assert any("The matrix has 60 of 500 participants." in note for note in notes)
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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    vega.script.cache_clear()
    why = try_to_write(made.write_run(tmp_path / "a", NAMES))
    assert "no engine here" in why and "cfl-flare report" in why and not (tmp_path / "a" / REPORT).exists()


# Several runs.


def several(folder: Path) -> Path:
    for name, gain in (("a", 0.0), ("b", 0.1)):
        made.write_run(folder / name, NAMES, label=name)
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
        (["{}", "--out", "report.pdf"], "--out = 'report.pdf' should be a .html or .htm file"),
        (["{}", "--out", "no/such/folder.html"], "make the folder first"),
        (["{}", "--against", "c"], "--against = 'c' is no run of"),
    ],
)
def test_what_cannot_be_reported_is_one_line(tmp_path, capsys, arguments, said):
    several(tmp_path)
    assert main(["report", *(own.format(tmp_path) for own in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_what_draws_is_asked_for_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(vega, "MAKE", "import no_such_module_here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    vega.script.cache_clear()
    with pytest.raises(ConfigError, match=r"no_such_module_here.*pip install vl-convert-python"):
        vega.script()


def test_the_script_is_made_once_and_kept_for_all_reports(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    vega.script.cache_clear()
    script = vega.script()
    (file,) = (tmp_path / "cfl_flare").iterdir()
    assert file.read_text() == script and file.parent.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(vega, "MAKE", "raise SystemExit('it would be made again')")
    vega.script.cache_clear()
    assert vega.script() == script
    file.write_bytes(b"\xff")
    vega.script.cache_clear()
    with pytest.raises(NoPlotsError, match="it would be made again"):
        vega.script()
    vega.script.cache_clear()
