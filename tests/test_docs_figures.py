# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The figures in the documents are those of the results that are kept.

Every decimal number of a page is cited by a comment, and then `cited` checks it, or it is computed here from what is
kept, rounded as it is shown.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import cited
import counts
import kept
import pytest
import verdicts
from common import Cell, add_cells

ROOT = cited.ROOT
CLUSTERED = ("WeCFL", "IFCA", "FeSEM-CAM")
# Pages whose figures are of cells: each is cited by a comment, once the page has one.
OF_CELLS = (
    *(
        "penalties-and-cam.md",
        "personal-models.md",
        "blood-cells.md",
        "private.md",
        "calibration.md",
        "hospitals.md",
    ),
    "which-method.md",
)


# ---- What pages compute from what is kept ----


def main_job() -> list[float]:
    """The table of the README, which `tests/e2e/test_simulator.py` compares with a run; FedAvg is below one half."""
    rows = re.findall(r"^(?:local|fedavg|wecfl) .*", (ROOT / "README.md").read_text(), re.MULTILINE)
    local, fedavg, wecfl = (float(re.findall(r"0\.\d{3}", row)[0]) for row in rows)
    assert fedavg < 0.5
    return [local, wecfl, 0.5]


def speed() -> list[float]:
    """Sums and shares of the bare work."""
    bare = kept.measured("speed.json")["speed"]["bare"]
    whole = bare["ideal"] + bare["evaluation"]
    passes = 10 * bare["pass_320"] / whole  # of ten models
    ifca = kept.measured("flare-speed.json")["rows"]["ifca"]["ratio"]
    two_beside_frozen_ones = 2 * (1 + 1 / 3)
    return [whole, passes, ifca / (1 + passes), two_beside_frozen_ones + 1.1 * passes]


def attack_cells() -> list[dict[str, Any]]:
    return kept.measured("attacks/attacks.jsonl")


def attacks() -> dict[tuple[Any, ...], float]:
    """Accuracy in percent by method, attack, number of attackers and defence."""
    keys = ("method", "attack", "attackers", "defence")
    return {tuple(one[k] for k in keys): 100 * one["accuracy"] for one in attack_cells()}


def attacks_and_defences() -> list[float]:
    """What attacks reach at most, and what they and the defences cost at most."""
    of, cells = attacks(), attack_cells()
    flipped = [one for one in cells if one["attack"] == "label flip" and one["method"] in CLUSTERED]
    sturdy = ("median", "trimmed mean", "Krum", "outliers", "outliers and median")
    boosted = [one for one in cells if one["attack"] == "backdoor" and one["method"] in CLUSTERED]

    def lost(method: str, defence: str, attack: str = "none", beside: str = "none") -> float:
        count = 3 if attack != "none" else 0
        return of[method, "none", 0, beside] - of[method, attack, count, defence]

    cheap = ("clipping", "clipping at 2", "median", "outliers", "outliers and median")
    majorities = [100 * one["majority"] for one in cells]
    return [
        of["local", "none", 0, "none"],
        min(majorities),
        max(majorities),
        max(100 * one["success"] for one in boosted if one["method"] == "FeSEM-CAM"),
        max(100 * one["success"] for one in boosted if one["defence"] in sturdy),
        max(100 * one["success"] for one in flipped),
        min(100 * one["accuracy"] for one in flipped),
        max(lost(method, defence) for method in ("FedAvg", *CLUSTERED) for defence in cheap),
        *(lost(m, "Krum") for m in ("WeCFL", "FeSEM-CAM")),
        *(max(lost(m, d, "free rider", d) for m in CLUSTERED) for d in ("Krum", "outliers and median")),
    ]


COMPUTED: dict[str, Callable[[], list[float]]] = {
    "README.md": main_job,
    "docs/index.md": main_job,
    "docs/results/speed.md": speed,
    "docs/results/attacks.md": attacks_and_defences,
}


@cache
def compute_figures(page: str) -> list[float]:
    """What a page computes from what is kept."""
    return COMPUTED[page]() if page in COMPUTED else []


def unfounded(page: Path, text: str) -> list[str]:
    """The decimals of a page's text that no comment cites, and that are not computed here either."""
    known = compute_figures(page.relative_to(ROOT).as_posix())

    def founded(number: str) -> bool:
        half = 0.5 * 10.0 ** -len(number.partition(".")[2])
        return any(abs(abs(value) - float(number)) <= half * (1 + 1e-9) for value in known)

    return [number for number in cited.uncited(text) if not founded(number)]


PAGES = [path for path in cited.DOCUMENTS if path.name not in OF_CELLS]


def name_page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_decimals_are_cited_or_computed(page: Path) -> None:
    assert unfounded(page, page.read_text()) == []


CITING = [p for p in cited.DOCUMENTS if cited.CITED.search(p.read_text()) or cited.uncited(p.read_text())]
TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]{3,}")


def falsified(word: str) -> str:
    """Another number, or another word."""
    return word[:-1] + str((int(word[-1]) + 5) % 10) if word[-1].isdigit() else f"un{word}"


def problems_of(text: str) -> list[str]:
    """What `cited` says of a text."""
    problems: list[str] = []
    cited.renewed(text, problems)
    return problems


def falsified_marks(mark: re.Match[str]) -> Iterator[str]:
    """A comment and its text with one word or number changed."""
    opening, _, _, text, closing = mark.groups()
    tokens = list(TOKEN.finditer(text))
    for token in tokens[:: max(1, len(tokens) // 4)]:
        yield f"{opening}{text[: token.start()]}{falsified(token[0])}{text[token.end() :]}{closing}"


def falsified_outside(page: Path, text: str) -> Iterator[bool]:
    """Whether each decimal that no comment cites is noticed once it is another one."""
    for number in sorted(set(cited.uncited(text))):
        changed = falsified(number)
        yield changed in unfounded(page, re.sub(rf"(?<![\w.]){re.escape(number)}(?!\d)", changed, text))


@pytest.mark.parametrize("page", CITING, ids=name_page)
def test_what_is_falsified_is_noticed(page: Path) -> None:
    """Words and numbers of a page are changed in memory, one at a time."""
    text = page.read_text()
    marks = [changed for mark in cited.CITED.finditer(text) for changed in falsified_marks(mark)]
    noticed = [*(bool(problems_of(changed)) for changed in marks), *falsified_outside(page, text)]
    assert sum(noticed) >= 0.95 * len(noticed), f"{sum(noticed)} of {len(noticed)}"


@pytest.mark.parametrize("page", [p for p in cited.DOCUMENTS if p.name in OF_CELLS], ids=name_page)
def test_pages_of_cells_cite_all_their_decimals(page: Path) -> None:
    text = page.read_text()
    if not re.search("<!--(figure|table|which)", text):
        pytest.skip("it cites nothing yet")
    assert cited.uncited(text) == []


# ---- Comments that name kept cells ----


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


def test_a_table_says_what_made_it(tiny_results: Path) -> None:
    text = cited.table("tiny labels: local wecfl; accuracy ari")
    assert "| `wecfl` | 70.0 ± 17.3 | - |" in text
    assert "*4 participants, 2 rounds, seeds 0, 1, 2, mean ± standard deviation; commit c1;" in text


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


def test_a_document_is_renewed_and_what_was_wrong_is_said(tiny_results: Path) -> None:
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
    assert cited.uncited("FLARE\n2.9, Python 3.10, version 1.0.0 and Apache-2.0, but -7.25.") == ["7.25"]


def test_methods_are_laid_beside_the_better_one_without_clusters(tiny_results: Path) -> None:
    """WeCFL gains 10, 20 and 30 points over local, the better of the two; it wins all six runs."""
    (place,) = kept.places(["tiny"], "accuracy")
    assert (place.yardstick, place.differences("wecfl")) == ("local", pytest.approx([10, 20, 30]))
    assert kept.verdict([10, 20, 30]) == "+20.0"  # its interval has zero in it
    assert kept.verdict([10, 10.5, 11]) == "+10.5 **+**"
    assert kept.verdict([-10, -10.5, -11]) == "-10.5 **-**"
    lines = kept.which_table(["tiny"], "accuracy").splitlines()
    assert lines[2] == "| `wecfl` | +20.0 | 3 of 3 | 3 of 3 |"
    assert "| `local` | *local* | - | 3 of 3 |" in lines
    add_cells(tiny_results / "tiny", [make_digits_cell("majority", 0, 0.2)])
    kept.kept.cache_clear()
    assert cited.which("tiny; accuracy majority ifca").splitlines()[-2:] == [
        "| `fedavg` | -20.0 | 0 of 3 | - |",
        "| `majority` | -30.0 | 0 of 1 | 0 of 1 |",
    ]


def test_means_of_rows_are_laid_out_by_partition(tiny_results: Path) -> None:
    add_cells(tiny_results / "tiny", [make_digits_cell("wecfl", 0, 1.0, partition="scanners")])
    kept.kept.cache_clear()
    lines = cited.by_place("tiny: wecfl local; accuracy ari").splitlines()
    assert lines[2:] == [
        "| | tiny labels | tiny scanners |",
        "|---|---:|---:|",
        "| `wecfl` | 70.0 / - | 50.0 / - |",
        "| `local` | 50.0 / - |  |",
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
    assert counts.zeros("tiny labels: wecfl/local wecfl/fedavg; accuracy") == "1 of 2"


def test_deviations_are_compared_by_fishers_interval(tiny_results: Path) -> None:
    """WeCFL's 17.32 over local's 10; the quantile of two and two degrees is 39, its root 6.245."""
    assert verdicts.ratio("tiny labels wecfl local accuracy") == "1.73 (0.28 to 10.82)"
    assert verdicts.steadier("tiny labels wecfl local accuracy") == "cannot tell"


def test_entries_of_a_file_are_counted() -> None:
    assert counts.count("study-cells.json rows") == "9"
    assert counts.count("study-cells.json rows case=cells_by_labels; cluster=True") == "1 of 3"


def test_commits_that_pages_name_are_in_the_history() -> None:
    named = {c for page in cited.DOCUMENTS for c in re.findall(r"commits? ([0-9a-f]{7,40})", page.read_text())}
    if subprocess.run(["git", "cat-file", "-e", "3872ff82b6^{commit}"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("no whole history here")
    of_others = {"dc4fe3c"}  # FLamby's
    for commit in named - of_others:
        done = subprocess.run(["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=ROOT, capture_output=True)
        assert done.returncode == 0, commit


def test_documents_cite_what_the_cells_have() -> None:
    problems: list[str] = []
    for path in cited.DOCUMENTS:
        cited.renewed(path.read_text(), problems)
    assert problems == []


def test_the_table_of_libraries_has_the_cheapest_first_and_names_who_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def row(seconds: float) -> dict[str, Any]:
        took = {"wall_seconds": 2 * seconds, "cpu_seconds": seconds}
        figures = {"ratio": seconds / 4, "ratio_of_its_torch": seconds / 2, "peak_MB": 10.2, "accuracy": 0.5}
        return {"a_round": took, "start": took, "commit": "0123456789ab", **figures}

    content = {
        "setting": {"participants": 3, "rounds": [1, 2]},
        "rows": {"loop-ifca": row(9), "loop-fedavg": row(3), "pfl-fedavg": row(2)},
        "missing": {"flower-fedavg": "no ray"},
    }
    monkeypatch.setattr(kept, "measured", {"league.json": content}.get)
    lines = cited.league("league.json").strip().splitlines()
    assert lines[2] == "| `fedavg` | pfl | 2.0 | 0.50 | 1.00 | 4.0 | 4 / 2 | 10 | 50.0 |"
    assert [line.split("|")[2].strip() for line in lines[3:5]] == ["cfl_flare, in its loop"] * 2
    facts = "3 participants; runs of 1 and 2 rounds; commit 0123456789; flower-fedavg is missing: no ray"
    assert lines[-1] == f"*{facts}.*"
