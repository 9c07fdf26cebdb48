# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The documentation's pictures and pages in a browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.helpers.shared import make_once

ROOT = Path(__file__).parents[1]
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; apt-get install chromium")

# Each text of a drawing, and by how many pixels it leaves the smallest box that it begins in, or the drawing.
OVERFLOW = """(font) => {
  const svg = document.querySelector('svg');
  svg.setAttribute('font-family', font);
  const boxes = [...svg.querySelectorAll('rect')].map((rect) => rect.getBBox());
  boxes.push({x: 0, y: 0, width: svg.viewBox.baseVal.width, height: svg.viewBox.baseVal.height});
  return [...svg.querySelectorAll('text')].map((text) => {
    const at = text.getBBox();
    const around = boxes.filter((box) => box.x <= at.x && at.x <= box.x + box.width &&
      box.y <= at.y && at.y <= box.y + box.height);
    const ends = Math.min(...around.map((box) => box.x + box.width));
    return [text.textContent, at.x + at.width + 4 - ends];
  }).filter(([, beyond]) => beyond > 0);
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as engine:
        found = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize("font", ["DejaVu Sans", "Liberation Sans", "sans-serif"])
@pytest.mark.parametrize("name", ["sites.svg", "round.svg"])
def test_texts_stay_inside_their_boxes(chromium: Any, name: str, font: str) -> None:
    page = chromium.new_page()
    page.goto((ROOT / "docs" / "images" / name).as_uri())
    assert page.evaluate(OVERFLOW, font) == []
    page.close()


# ---- The site ----


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a line for each request."""

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def build_site(folder: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the documentation's site."""
    pytest.importorskip("mkdocs")
    folder = make_once(tmp_path_factory, "site", build_site)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("path", ["", "methods/ifca/", "benchmarks/results/stroke/stroke/", "study/"])
def test_pages_fit_the_screen_without_complaints(chromium: Any, site: str, path: str, width: int, scheme: str) -> None:
    complaints: list[str] = []
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(site + path)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page.close()


@pytest.mark.slow
def test_the_search_finds_a_method(chromium: Any, site: str) -> None:
    page = chromium.new_page(viewport={"width": 1440, "height": 900})
    page.goto(site)
    page.fill(".md-search__input", "IFCA")
    page.wait_for_selector(".md-search-result__item")
    assert "IFCA" in page.inner_text(".md-search-result__list")
    page.close()
