# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Pages look as they should on the site (Python-Markdown) and on GitHub (GitHub-flavoured Markdown).

`tools/hooks.py` changes links to files of the repository for the site; `mkdocs build --strict` checks these there.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from cfl_flare.cli import parser
from cfl_flare.core.errors import ConfigError

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "ROADMAP.md", "CODE_OF_CONDUCT.md")
    ),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "contrib").rglob("*.md")),
]
CODE = re.compile(r"<pre.*?</pre>|<code[^>]*>.*?</code>|<!--.*?-->", re.DOTALL)
MARKER = re.compile(r"^\s*(?:[-*] |\d+\. )", re.MULTILINE)
MISTAKES = {
    "a raw backtick": re.compile("`"),
    "a raw link": re.compile(r"\]\([^)]+\)"),
    "raw bold text": re.compile(r"(?<!\d)\*\*"),
    "an attribute as text": re.compile(r"\{ ?(?:width|:|#|\.)"),
    "a raw directive": re.compile("^:::", re.MULTILINE),
    "a row of a table": re.compile(r"^\|", re.MULTILINE),
}


def name_rendered_page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def render_for_github(page: Path) -> str:
    return MarkdownIt("commonmark").enable("table").render(page.read_text())


@cache
def render_for_site(page: Path) -> str:
    """With the extensions of the site."""
    markdown = pytest.importorskip("markdown")
    pytest.importorskip("pymdownx")
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text().replace("!ENV", ""))["markdown_extensions"]
    settings = {name: options for entry in listed if isinstance(entry, dict) for name, options in entry.items()}
    names = [next(iter(entry)) if isinstance(entry, dict) else entry for entry in listed]
    return markdown.markdown(page.read_text(), extensions=names, extension_configs=settings)


RENDERERS = {"site": render_for_site, "github": render_for_github}


def find_mistakes(html: str) -> list[str]:
    """What a reader would see of the Markdown itself; a heading or a cell may begin with a number."""
    plain = CODE.sub("", html)
    paragraphs = re.findall("<p>(.*?)</p>", plain, re.DOTALL)
    everything = re.sub("<[^>]*>", "", plain).split("\n\n")
    found = [f"a list's marker in a paragraph: {text[:100]}" for text in paragraphs if MARKER.search(text)]
    return found + [
        f"{name}: {text[:100]}" for text in everything for name, sign in MISTAKES.items() if sign.search(text)
    ]


@pytest.mark.parametrize("where", RENDERERS)
@pytest.mark.parametrize("page", PAGES, ids=name_rendered_page)
def test_no_markdown_is_left_as_text(page: Path, where: str) -> None:
    assert find_mistakes(RENDERERS[where](page)) == []


def test_mistakes_are_found() -> None:
    broken = "Text <!--x-->1\n<!--/-->\n- **one**\n\n`a\n\n![x](y.png){ width=3 }\n"
    found = find_mistakes(MarkdownIt("commonmark").render(broken.replace("\n- **", "\n\\- **")))
    assert [mistake.partition(":")[0] for mistake in found] == [
        "a list's marker in a paragraph",
        "a raw backtick",
        "an attribute as text",
    ]


# ---- Links ----


def list_links(html: str) -> list[str]:
    found = re.findall(r'(?:href|src)="([^"]*)"', re.sub("<pre.*?</pre>", "", html, flags=re.DOTALL))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@cache
def tracked_files() -> set[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("no repository here")
    files = {ROOT / name for name in listed.stdout.splitlines()}
    return files | {folder for file in files for folder in file.parents}


@cache
def list_github_anchors(page: Path) -> set[str]:
    """GitHub's names of the headings: repeated ones are numbered."""
    anchors: list[str] = []
    for heading in re.findall(r"<h\d>(.*?)</h\d>", render_for_github(page), re.DOTALL):
        text = re.sub("<[^>]*>", "", heading).replace("&amp;", "&").replace("&quot;", '"')
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        repeated = sum(
            anchor == slug or re.fullmatch(re.escape(slug) + r"-\d+", anchor) is not None for anchor in anchors
        )
        anchors.append(f"{slug}-{repeated}" if repeated else slug)
    return set(anchors)


@cache
def list_site_anchors(page: Path) -> set[str]:
    return set(re.findall(r'<h\d id="([^"]*)"', render_for_site(page)))


ANCHORS = {"site": list_site_anchors, "github": list_github_anchors}


@pytest.mark.parametrize("where", RENDERERS)
@pytest.mark.parametrize("page", PAGES, ids=name_rendered_page)
def test_links_and_anchors_lead_somewhere(page: Path, where: str) -> None:
    dead = []
    for link in list_links(RENDERERS[where](page)):
        target, _, anchor = link.partition("#")
        there = (page.parent / target).resolve() if target else page
        if there not in tracked_files() or (anchor and anchor not in ANCHORS[where](there)):
            dead.append(link)
    assert dead == []


# ---- Commands ----


def list_inline_commands(page: Path) -> list[str]:
    """The commands that a page names inside a line."""
    text = re.sub("<pre.*?</pre>", "", render_for_github(page), flags=re.DOTALL)
    codes = [
        code.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
        for code in re.findall("<code>(.*?)</code>", text, re.DOTALL)
    ]
    spelt = [re.sub("^site ", "cfl-flare site ", " ".join(code.split())) for code in codes]
    return [code for code in spelt if re.match(r"cfl-flare [a-z]", code)]


@pytest.mark.parametrize("page", PAGES, ids=name_rendered_page)
def test_commands_inside_lines_are_understood(page: Path) -> None:
    """Options and their values are; what a sentence leaves out may be missing."""
    refused = []
    for command in list_inline_commands(page):
        try:
            parser().parse_args([word for word in shlex.split(command)[1:] if word != "..."])
        except ConfigError as error:
            if "arguments are required" not in str(error):
                refused.append(f"{command}: {error}")
        except SystemExit as end:
            assert not end.code, command
    assert refused == []


def test_there_are_commands_inside_lines() -> None:
    assert sum(len(list_inline_commands(page)) for page in PAGES) > 50
