# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Documents say what the kept cells have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cited
import kept
import pytest
from common import Cell, add_cells

ROOT = Path(__file__).parents[1]


def cell(row: str, seed: int, accuracy: float, commit: str = "c1", partition: str = "labels", **facts: Any) -> Cell:
    """A cell of the plan ``digits`` after two measured rounds."""
    said: Mapping[str, Any] = {
        **{"plan": "digits", "row": row, "partition": partition, "seed": seed, "participants": 4, "rounds": 2},
        **{"settings": {}, "commit": commit, **facts},
    }
    rounds = [{"round": i, "served_accuracy": accuracy / 2**i, "ari": None} for i in (1, 0)][::-1]
    return Cell(f"{partition}/{row}-{seed}-{said['rounds']}{commit}", dict(said), {}, [*rounds], {})


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results, ``tiny``: accuracies after two rounds are halves of what is given here."""
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    kept.kept.cache_clear()
    accuracies = {"local": (0.8, 1.2, 1.0), "fedavg": (0.4, 0.6, 0.8), "wecfl": (1.0, 1.6, 1.6)}
    cells = [cell(row, seed, value) for row, values in accuracies.items() for seed, value in enumerate(values)]
    add_cells(tmp_path / "tiny", [*cells, cell("ifca", 0, 0.8)])
    yield tmp_path
    kept.kept.cache_clear()


def test_a_figure_is_the_mean_over_seeds_with_its_deviation(results: Path) -> None:
    assert cited.figure("tiny labels local accuracy") == "50.0 ± 10.0"
    assert cited.figure("tiny labels local accuracy@1") == "100.0 ± 20.0"
    assert cited.figure("tiny labels wecfl ari") == "-"


def test_a_difference_is_paired_and_has_an_interval(results: Path) -> None:
    """10, 20, 30 points: their standard error is 10 / sqrt(3), and Student's quantile for two degrees 4.303."""
    assert cited.difference("tiny labels wecfl local accuracy") == "+20.0 (-4.8 to +44.8)"
    with pytest.raises(cited.CitationError, match=r"seeds \[0\] and \[0, 1, 2\] are not the same"):
        cited.difference("tiny labels ifca local accuracy")
    with pytest.raises(cited.CitationError, match="the rows of tiny labels have different seeds"):
        cited.table("tiny labels: ifca local; accuracy")


def test_rows_of_two_commits_are_not_laid_beside_each_other(results: Path) -> None:
    add_cells(results / "tiny", [cell("fesem", seed, 1.0, commit="c2") for seed in range(3)])
    kept.kept.cache_clear()
    with pytest.raises(cited.CitationError, match="of different commits"):
        cited.difference("tiny labels fesem local accuracy")


def test_a_table_says_what_made_it(results: Path) -> None:
    text = cited.table("tiny labels: local wecfl; accuracy ari")
    assert "| `wecfl` | 70.0 ± 17.3 | - |" in text
    assert "*4 participants, 2 rounds, seeds 0, 1, 2, mean ± standard deviation; commit c1;" in text


def test_what_names_no_cell_or_several_is_refused(results: Path) -> None:
    with pytest.raises(cited.CitationError, match="tiny labels cfl: 0 kinds of cells"):
        cited.figure("tiny labels cfl accuracy")
    add_cells(results / "tiny", [cell("local", 0, 1.0, rounds=9)])
    kept.kept.cache_clear()
    with pytest.raises(cited.CitationError, match="2 kinds of cells"):
        cited.figure("tiny labels local accuracy")
    assert cited.figure("tiny labels local accuracy rounds=9") == "50.0"
    with pytest.raises(cited.CitationError, match="no such figure"):
        cited.figure("tiny labels local beauty rounds=9")


def test_a_document_is_renewed_and_what_was_wrong_is_said(results: Path) -> None:
    problems: list[str] = []
    old = "WeCFL has <!--figure tiny labels wecfl accuracy-->71.0 ± 17.3<!--/--> % there."
    new = cited.renewed(old, problems)
    assert new == "WeCFL has <!--figure tiny labels wecfl accuracy-->70.0 ± 17.3<!--/--> % there."
    assert "says '71.0 ± 17.3'; the cells have '70.0 ± 17.3'" in problems[0]
    again: list[str] = []
    assert cited.renewed(new, again) == new and not again


def test_numbers_that_no_comment_names_are_found() -> None:
    text = "At 94.7 %, <!--figure a b c d-->1.5<!--/-->, `lr=0.1`, Table 3.1 and 6.1, [x](y/2.5.md), FLARE 2.9 and 0.5."
    assert cited.uncited(text) == ["94.7", "0.5"]
    assert cited.uncited("FLARE\n2.9, Python 3.10, version 0.2.0 and Apache-2.0, but -7.25.") == ["7.25"]


def test_methods_are_laid_beside_the_better_one_without_clusters(results: Path) -> None:
    """WeCFL gains 10, 20 and 30 points over local, the better of the two; it wins all six runs."""
    (place,) = kept.places(["tiny"], "accuracy")
    assert (place.yardstick, place.differences("wecfl")) == ("local", pytest.approx([10, 20, 30]))
    assert kept.verdict([10, 20, 30]) == "+20.0"  # its interval has zero in it
    assert kept.verdict([10, 10.5, 11]) == "+10.5 **+**"
    assert kept.verdict([-10, -10.5, -11]) == "-10.5 **-**"
    lines = kept.which_table(["tiny"], "accuracy").splitlines()
    assert lines[2] == "| `wecfl` | +20.0 | 3 of 3 | 3 of 3 |"
    assert "| `local` | *local* | - | 3 of 3 |" in lines


def test_documents_cite_what_the_cells_have() -> None:
    problems: list[str] = []
    for path in cited.DOCUMENTS:
        cited.renewed(path.read_text(), problems)
    assert problems == []
