# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The figures in the documents are those of the results that are kept."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cited
import kept
import pytest
import verdicts
from common import Cell, add_cells

ROOT = cited.ROOT
PAGES = cited.DOCUMENTS


def name_page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_tables_have_what_was_measured(page: Path) -> None:
    text = page.read_text()
    assert cited.fill_tables(text, page) == text, "run python benchmarks/cited.py"


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_sentences_have_what_was_measured(page: Path) -> None:
    text = " ".join(cited.GENERATED.sub(" ", page.read_text()).split())
    assert [sentence for sentence in cited.read_sentences(page) if sentence not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_decimals_stand_in_tables_or_sentences(page: Path) -> None:
    text = page.read_text()
    assert cited.uncited(text, cited.read_sentences(page)) == []
    assert re.findall(r"<!--\S.*", text) == [], "figures are named in templates"


def test_each_template_belongs_to_a_page() -> None:
    named = [name for page in PAGES for name in re.findall(r"^<!-- table: (\S+) -->$", page.read_text(), re.MULTILINE)]
    assert sorted(named) == sorted(path.stem for path in cited.TEMPLATES.glob("*.md"))
    pages = re.findall(r"^# (\S+)$", cited.SENTENCES.read_text(), re.MULTILINE)
    assert {ROOT / page for page in pages} <= set(PAGES)


# ---- Expressions ----


def make_digits_cell(
    row: str, seed: int, accuracy: float, commit: str = "c1", partition: str = "labels", **facts: Any
) -> Cell:
    """A cell of the plan ``digits`` after two measured rounds."""
    said: Mapping[str, Any] = {
        **{"plan": "digits", "row": row, "partition": partition, "seed": seed, "participants": 4, "rounds": 2},
        **{"settings": {}, "commit": commit, **facts},
    }
    rounds = [{"round": i, "served_accuracy": accuracy / 2**i, "ari": None} for i in (1, 0)][::-1]
    return Cell(f"{partition}/{row}-{seed}-{said['rounds']}{commit}", dict(said), {}, [*rounds], {})


@pytest.fixture
def tiny_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results, ``tiny``: accuracies after two rounds are halves of what is given here."""
    monkeypatch.setattr(kept, "folder_of", lambda result: tmp_path / result)
    kept.kept.cache_clear()
    accuracies = {"local": (0.8, 1.2, 1.0), "fedavg": (0.4, 0.6, 0.8), "wecfl": (1.0, 1.6, 1.6)}
    cells = [
        make_digits_cell(row, seed, value) for row, values in accuracies.items() for seed, value in enumerate(values)
    ]
    add_cells(tmp_path / "tiny", [*cells, make_digits_cell("ifca", 0, 0.8)])
    yield tmp_path
    kept.kept.cache_clear()


def test_a_figure_is_the_mean_over_seeds_with_its_deviation(tiny_results: Path) -> None:
    assert cited.figure("tiny labels local accuracy") == "50.0 ± 10.0"
    assert cited.figure("tiny labels local accuracy@1") == "100.0 ± 20.0"
    assert cited.figure("tiny labels wecfl ari") == "-"


def test_a_difference_is_paired_and_has_an_interval(tiny_results: Path) -> None:
    """10, 20, 30 points: their standard error is 10 / sqrt(3), and Student's quantile for two degrees 4.303."""
    assert cited.difference("tiny labels wecfl local accuracy") == "+20.0 (-4.8 to +44.8)"
    with pytest.raises(cited.CitationError, match=r"seeds \[0\] and \[0, 1, 2\] are not the same"):
        cited.difference("tiny labels ifca local accuracy")
    with pytest.raises(cited.CitationError, match="the rows of tiny labels have different seeds"):
        cited.table("tiny labels: ifca local; accuracy")


def test_rows_of_two_commits_are_not_laid_beside_each_other(tiny_results: Path) -> None:
    add_cells(tiny_results / "tiny", [make_digits_cell("fesem", seed, 1.0, commit="c2") for seed in range(3)])
    kept.kept.cache_clear()
    with pytest.raises(cited.CitationError, match="of different commits"):
        cited.difference("tiny labels fesem local accuracy")


def test_a_table_names_what_made_it(tiny_results: Path) -> None:
    template = "{table tiny labels: local wecfl; accuracy ari}"
    assert "| `wecfl` | 70.0 ± 17.3 | - |" in cited.fill(template)
    made = cited.name_sources(template, ROOT / "docs" / "results" / "page.md")
    facts = "`tables.py run --plan digits`, 4 participants, 2 rounds, seeds 0, 1, 2, commit c1"
    assert made == f"*[tiny](benchmarks.md): {facts}.*"
    assert "**one seed** (0)" in cited.name_sources("{figure tiny labels ifca accuracy}", ROOT / "README.md")


def test_a_line_is_repeated_for_each_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"data": "x", "loss": 0.256, "lost": [1, 2, 3]}, {"data": "blood cells", "loss": None, "lost": [0, 0]}]
    monkeypatch.setattr(kept, "measured", {"some.json": {"rows": entries, "command": "python some.py"}}.get)
    template = (
        "each some.json rows data=blood_cells,x\n| {.data} | {.loss .1f} | {.loss .1f*100} | {.lost interval +.1f} |\n"
    )
    assert cited.fill(template) == "| blood cells | - | - | 0 |\n| x | 0.3 | 25.6 | +1.0 (+2.0 to +3.0) |\n"
    assert cited.name_sources(template, ROOT / "README.md") == "*[some.json](docs/results/benchmarks.md): `some.py`.*"
    with pytest.raises(cited.CitationError, match="no such entries"):
        cited.fill("each some.json rows data=y\n| {.data} |\n")


def test_what_names_no_cell_or_several_is_refused(tiny_results: Path) -> None:
    with pytest.raises(cited.CitationError, match="tiny labels cfl: 0 kinds of cells"):
        cited.figure("tiny labels cfl accuracy")
    add_cells(tiny_results / "tiny", [make_digits_cell("local", 0, 1.0, rounds=9)])
    kept.kept.cache_clear()
    with pytest.raises(cited.CitationError, match="2 kinds of cells"):
        cited.figure("tiny labels local accuracy")
    assert cited.figure("tiny labels local accuracy rounds=9") == "50.0"
    with pytest.raises(cited.CitationError, match="no such figure"):
        cited.figure("tiny labels local beauty rounds=9")


def test_a_wrong_number_in_a_table_is_replaced(tiny_results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tiny_results / "small.md").write_text("| {figure tiny labels wecfl accuracy} |\n")
    monkeypatch.setattr(cited, "TEMPLATES", tiny_results)
    filled = cited.fill_tables("Before\n\n<!-- table: small -->\n\n| 71.0 |\n\n<!-- end -->\n", ROOT / "README.md")
    assert filled.startswith("Before\n\n<!-- table: small -->\n\n| 70.0 ± 17.3 |\n\n*[tiny](")
    assert cited.fill_tables(filled, ROOT / "README.md") == filled


def test_numbers_that_no_sentence_names_are_found() -> None:
    text = "At 94.7 %, it has 1.5\npoints, `lr=0.1`, Table 3.1 and 6.1, [x](y/2.5.md), FLARE 2.9 and 0.5."
    assert cited.uncited(text, ["it has 1.5 points"]) == ["94.7", "0.5"]
    assert cited.uncited("FLARE\n2.9, Python 3.10, version 1.0.0 and Apache-2.0, but -7.25.") == ["7.25"]


def test_methods_are_laid_beside_the_better_one_without_clusters(tiny_results: Path) -> None:
    """WeCFL gains 10, 20 and 30 points over local, the better of the two; it wins all six runs."""
    (place,) = kept.places(["tiny"], "accuracy")
    assert (place.yardstick, place.differences("wecfl")) == ("local", pytest.approx([10, 20, 30]))
    assert kept.verdict([10, 20, 30]) == "+20.0"  # its interval has zero in it
    assert kept.verdict([10, 10.5, 11]) == "+10.5 **+**"
    assert kept.verdict([-10, -10.5, -11]) == "-10.5 **-**"
    lines = kept.which_table("tiny; accuracy").splitlines()
    assert lines[2] == "| `wecfl` | +20.0 | 3 of 3 | 3 of 3 |"
    assert "| `local` | *local* | - | 3 of 3 |" in lines
    add_cells(tiny_results / "tiny", [make_digits_cell("majority", 0, 0.2)])
    kept.kept.cache_clear()
    assert kept.which_table("tiny; accuracy majority ifca").splitlines()[-2:] == [
        "| `fedavg` | -20.0 | 0 of 3 | - |",
        "| `majority` | -30.0 | 0 of 1 | 0 of 1 |",
    ]


@pytest.mark.parametrize(
    ("differences", "published", "said"),
    [
        ([9.0, 10.0, 11.0], None, "holds"),
        ([9.0, 10.0, 11.0], 12.4, "holds"),  # 10 with 4.303 / sqrt(3) = 2.48 to both sides
        ([9.0, 10.0, 11.0], 12.5, "holds, smaller"),
        ([9.0, 10.0, 11.0], 7.5, "holds, larger"),
        ([-9.0, -10.0, -11.0], -10.0, "holds"),
        ([-9.0, -10.0, -11.0], 1.0, "does not"),
        ([-1.0, 0.0, 1.0], 2.4, "cannot tell"),
        ([-1.0, 0.0, 1.0], 2.5, "does not"),
        ([-1.0, 0.0, 1.0], None, "cannot tell"),
        ([10.0, 10.1], 10.0, "cannot tell"),  # two seeds
        ([0.04, 0.01, -0.04], 9.0, "cannot tell"),  # rows that coincide
    ],
)
def test_one_rule_makes_verdicts(differences: list[float], published: float | None, said: str) -> None:
    assert verdicts.verdict_of(differences, published) == said


def test_words_follow_from_cells(tiny_results: Path) -> None:
    """WeCFL less local is 10, 20, 30; less FedAvg 30, 50, 40."""
    assert verdicts.verdict("tiny labels wecfl local accuracy") == "cannot tell"
    assert verdicts.verdict("tiny labels wecfl fedavg accuracy") == "holds"
    assert verdicts.told("tiny labels wecfl fedavg accuracy: above / level with / below") == "above"
    assert verdicts.told("tiny labels fedavg wecfl accuracy: above / level with / below") == "below"
    assert verdicts.told("tiny labels wecfl local accuracy: above / level with / below") == "level with"


def test_entries_of_a_file_are_counted() -> None:
    assert cited.count("study-cells.json rows") == "9"
    assert cited.count("study-cells.json rows case=cells_by_labels; cluster=True") == "1 of 3"


def test_commits_that_pages_name_are_in_the_history() -> None:
    lists = [found for page in PAGES for found in re.findall(r"commits? ([0-9a-f, ]{7,})", page.read_text())]
    named = {commit for found in lists for commit in re.findall(r"\b[0-9a-f]{7,40}\b", found)}
    if subprocess.run(["git", "cat-file", "-e", "3872ff82b6^{commit}"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("no whole history here")
    of_others = {"dc4fe3c"}  # FLamby's
    for commit in named - of_others:
        done = subprocess.run(["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=ROOT, capture_output=True)
        assert done.returncode == 0, commit
