# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report in a browser: every plot is drawn, nothing is complained about, and no name does anything."""

import json
import shutil

import pytest

from cfl_flare.extensions.report.comparison import comparison_report
from cfl_flare.extensions.report.study import study_report
from cfl_flare.extensions.report.write import run_report, write
from cfl_flare.results.curves import Curve, Curves, save_curves
from cfl_flare.results.run_dir import load_run
from tests.extensions.report.test_study import write_hostile_study as hostile_study
from tests.helpers import made

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; apt-get install chromium")

NAMES = [f"ward {i}" for i in range(24)]
# The width that a page needs, each plot's number of marks, and the elements that a screen reader would not name.
LOOK = """() => ({
  width: document.documentElement.scrollWidth,
  marks: [...document.querySelectorAll('figure')].map(
    (figure) => figure.querySelectorAll('.plot svg .mark-group, .plot svg [class*="role-mark"] path').length),
  drawn: document.querySelectorAll('figure[data-drawn=yes]').length,
  figures: document.querySelectorAll('figure').length,
  unnamed: [...document.querySelectorAll('figure, .plot, .plot > svg, .plot > div > svg, .scroll, nav')].filter(
    (one) => !one.getAttribute('aria-label')).length,
  title: document.title,
  ink: getComputedStyle(document.body).color,
  paper: getComputedStyle(document.body).backgroundColor,
  label: getComputedStyle(document.querySelector('.plot svg text')).fill,
})"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        found = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    made.write_run(folder / "a", NAMES, rounds=12)
    made.write_features(folder / "a", NAMES)
    lines = (folder / "a" / "rounds.jsonl").read_text().splitlines()
    by_k = {str(k): {"gap": 0.1 * k, "deviations": 2.0, "stability": 1.0} for k in (1, 2, 3)}
    lines[3] = json.dumps(
        {
            **json.loads(lines[3]),
            "number_of_clusters": {"k": 3, "by_k": by_k, "draws": {"3": 100}, "set": [3, 3], "unsteady": {}},
        }
    )
    (folder / "a" / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    return write(run_report(load_run(folder / "a")), folder / "report.html")


@pytest.fixture
def opened(browser):
    """Opens a file; what the browser complains about, and what it wanted to load, fails the test."""
    pages, complaints = [], []

    def open_(path, **how):
        page = browser.new_page(**how)
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda asked: complaints.append(asked.url) if asked.url != path.as_uri() else None)
        page.goto(path.as_uri())
        page.evaluate("window.drawn")
        pages.append(page)
        return page

    yield open_
    for page in pages:
        page.close()
    assert complaints == []


def test_every_plot_is_drawn_and_named(opened, report):
    seen = opened(report, viewport={"width": 1100, "height": 800}).evaluate(LOOK)
    assert seen["drawn"] == seen["figures"] == 9
    assert all(marks > 0 for marks in seen["marks"])
    assert seen["unnamed"] == 0


def test_a_phone_shows_it_without_scrolling_sideways(opened, report):
    page = opened(report, viewport={"width": 400, "height": 800})
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate(LOOK)["width"] == 400


def test_light_and_dark(opened, report):
    light, dark = (opened(report, color_scheme=scheme).evaluate(LOOK) for scheme in ("light", "dark"))
    assert (light["ink"], light["paper"]) == ("rgb(28, 32, 38)", "rgb(255, 255, 255)")
    assert (dark["ink"], dark["paper"]) == ("rgb(230, 232, 235)", "rgb(20, 23, 27)")
    assert (light["label"], dark["label"]) == (light["ink"], dark["ink"])  # the plots' letters too


def test_on_paper_it_is_black_on_white_even_where_the_screen_is_dark(opened, report):
    page = opened(report, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    seen = page.evaluate(LOOK)
    assert (seen["ink"], seen["paper"], seen["label"]) == ("rgb(0, 0, 0)", "rgb(255, 255, 255)", "rgb(0, 0, 0)")
    assert page.pdf().startswith(b"%PDF")


def test_the_keyboard_reaches_plots_and_tables(opened, report):
    page, reached = opened(report), set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached |= {*page.evaluate("[document.activeElement.tagName, ...document.activeElement.classList]")}
    assert {"plot", "SUMMARY", "scroll", "A"} <= reached
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('details').open")


def test_the_pointer_shows_a_name_as_text(opened, tmp_path):
    """Names that would be a script's, an element's or an expression's, in every place that shows names."""
    made.write_run(tmp_path / "a", made.HOSTILE, label=made.HOSTILE[0], measure="</script><b>")
    made.write_features(tmp_path / "a", made.HOSTILE)
    page = opened(write(run_report(load_run(tmp_path / "a")), tmp_path / "report.html"))
    seen = page.evaluate(LOOK)
    assert seen["drawn"] == seen["figures"] == 7 and all(seen["marks"])
    assert "owned" not in page.evaluate("document.title").replace(made.HOSTILE[0][:60], "")
    points = page.locator("figure").first.locator("svg .role-mark.layer_1_marks path, svg .mark-symbol.role-mark path")
    shown = set()
    for i in range(points.count()):
        points.nth(i).hover(force=True)
        shown.add(page.locator("#vg-tooltip-element tr:first-child .value").inner_text())
    assert {"<!--<script>", "__proto__ #1", "constructor #1", "&lt;b&gt;", "{{7*7}}{% raw %}"} <= shown
    assert page.locator("#vg-tooltip-element img, #vg-tooltip-element script").count() == 0


def test_a_click_on_the_legend_leaves_one_line_in_full_colour(opened, report):
    page = opened(report)
    figure = page.locator("figure").filter(has_text="accuracy by round")
    before = figure.locator("svg path[opacity='0.12']").count()
    figure.locator(".role-legend-entry .role-legend-symbol path, .role-legend-symbol path").first.click(force=True)
    page.wait_for_timeout(300)
    assert before == 0 and figure.locator("svg path[opacity='0.12']").count() > 0


@pytest.fixture(scope="module")
def study_page(tmp_path_factory):
    folder = made.write_study(tmp_path_factory.mktemp("study") / "a", NAMES, ("one for all", "groups", "other groups"))
    searched = made.write_run(folder / "number-of-clusters", NAMES)
    lines = (searched / "rounds.jsonl").read_text().splitlines()
    by_k = {str(k): {"gap": 0.1 * k, "deviations": 2.0, "stability": 1.0} for k in (1, 2, 3)}
    lines[2] = json.dumps(
        {
            **json.loads(lines[2]),
            "number_of_clusters": {"k": 3, "by_k": by_k, "draws": {"3": 100}, "set": [3, 3], "unsteady": {}},
        }
    )
    (searched / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    made.write_run(folder / "c1", NAMES)
    return write(study_report(folder), folder / "report.html")


def test_a_study_is_drawn_named_and_fits_a_phone(opened, study_page):
    page = opened(study_page, viewport={"width": 400, "height": 800})
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    seen = page.evaluate(LOOK)
    assert seen["drawn"] == seen["figures"] == 6 and all(seen["marks"]) and seen["unnamed"] == 0
    assert seen["width"] == 400
    shapes = "[...document.querySelectorAll('figure .role-legend-symbol path')].map((one) => one.getAttribute('d'))"
    assert len({*page.evaluate(shapes)}) >= 3  # what is said of a hospital is a shape, too


def test_a_study_in_the_dark_and_on_paper(opened, study_page):
    page = opened(study_page, color_scheme="dark")
    seen = page.evaluate(LOOK)
    assert seen["ink"] == seen["label"] == "rgb(230, 232, 235)"
    page.emulate_media(media="print", color_scheme="dark")
    seen = page.evaluate(LOOK)
    assert (seen["ink"], seen["paper"], seen["label"]) == ("rgb(0, 0, 0)", "rgb(255, 255, 255)", "rgb(0, 0, 0)")
    assert page.pdf().startswith(b"%PDF")


def test_hostile_names_in_a_study_are_text(opened, tmp_path):
    page = opened(write(study_report(hostile_study(tmp_path / "a")), tmp_path / "report.html"))
    seen = page.evaluate(LOOK)
    assert seen["drawn"] == seen["figures"] == 4 and all(seen["marks"])
    assert page.evaluate("document.title") == "Should we cluster?"
    points = page.locator("figure").first.locator("svg .mark-symbol.role-mark path")
    shown = set()
    for i in range(points.count()):
        points.nth(i).hover(force=True)
        shown.add(page.locator("#vg-tooltip-element tr:first-child .value").inner_text())
    assert {"<!--<script>", "__proto__ #1", "constructor #1", "{{7*7}}{% raw %}"} <= shown
    assert page.locator("#vg-tooltip-element img, #vg-tooltip-element script").count() == 0


def test_curves_are_drawn(opened, tmp_path):
    folder = made.write_run(tmp_path / "a", NAMES)
    own = Curve(3, 3, 120, 1, 0.9, [(0.0, 0.0), (0.2, 0.9), (1.0, 1.0)], [(0.1, 0.2, 80), (0.7, 0.9, 40)])
    save_curves(folder, Curves(2, 1, 1, 1, {"all": own, "cluster-1": own}))
    page = opened(write(run_report(load_run(folder)), folder / "report.html"), viewport={"width": 400, "height": 800})
    seen = page.evaluate(LOOK)
    assert seen["drawn"] == seen["figures"] and all(seen["marks"]) and seen["width"] == 400
    for name in ("ROC curves", "Calibration"):
        figure = page.locator(f"figure[data-name='{name}']")
        assert figure.locator("svg .mark-line path").count() == 3  # two lines, and the diagonal


def test_a_comparison_is_drawn(opened, tmp_path):
    runs = [load_run(made.write_run(tmp_path / name, NAMES, label=name)) for name in ("a", "b", "</script>")[:2]]
    page = opened(write(comparison_report(runs, tmp_path), tmp_path / "report.html"))
    seen = page.evaluate(LOOK)
    assert seen["drawn"] == seen["figures"] == 5 and all(seen["marks"])
