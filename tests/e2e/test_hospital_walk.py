# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Four hospitals with their own raw tables, as the operator's guide walks them from a kit to predictions."""

import csv
import gzip
import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from cfl_flare.cli import main
from cfl_flare.core.arrays import load_arrays
from cfl_flare.data.hospitals import FOLDER, HEART
from cfl_flare.results.model_file import read_model
from cfl_flare.results.run_dir import load_run
from tests.e2e.deployment import SERVER, TRUSTING, Deployment
from tests.e2e.test_guides import TABLES, guide, lines

pytestmark = pytest.mark.slow
SITES = ("cleveland", "hungary", "switzerland", "long-beach")
STRAY = "ST-T of ward 7"  # a category of one patient, which the study does not know


def raw_files(folder: Path) -> dict[str, Path]:
    """Each hospital's file as it was published: no line of names, ? for a missing value."""
    rows: dict[str, list[list[str]]] = {site: [] for site in SITES}
    for hospital, *values in list(csv.reader(io.StringIO(gzip.decompress((FOLDER / HEART).read_bytes()).decode())))[1:]:
        rows[hospital].append([value or "?" for value in values])
    rows["long-beach"][0][6] = STRAY
    files = {site: folder / f"desk-{site}" / "ward" / f"processed.{site}.data" for site in SITES}
    for site, path in files.items():
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(map(",".join, rows[site])) + "\n")
    return files


class Walk:
    """Everybody's desk, and what the guide says is typed there."""

    def __init__(self, trial: Deployment, patch: pytest.MonkeyPatch):
        self.trial, self._patch = trial, patch
        self.author = trial.folder / "desk-author"
        self.author.mkdir()
        (self.study,) = [json.loads(block) for block in guide("operator-guide.md", "json", TABLES)]
        (self.author / "study.json").write_text(json.dumps(self.study))
        self.said = lines("operator-guide.md", TABLES)

    def desk(self, site: str) -> Path:
        return self.trial.folder / f"desk-{site}"

    def at(self, site: str, start: str) -> None:
        """The guide's line that begins so, as this site's operator types it."""
        (line,) = [line for line in self.said if line.startswith(start)]
        places = {"/srv/ward": self.desk(site) / "ward", "/srv/cfl_state": self.trial.state_root(site)}
        for theirs, ours in {**places, "cleveland": site}.items():
            line = line.replace(theirs, str(ours))
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.trial.settings.setdefault(site, {})[name] = value
        else:
            self._patch.chdir(self.desk(site))
            self.command(line, **self.trial.settings.get(site, {}))

    def command(self, line: str, **environment: str) -> None:
        with self._patch.context() as patch:
            for name in ("CFL_DATA", "CFL_COLUMNS", "CFL_DATA_ROOT"):
                patch.delenv(name, raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            first, *words = shlex.split(line)
            assert (first, main(words)) == ("cfl-flare", 0), line

    def by_author(self, start: str, **instead: str) -> None:
        """The guide's line that begins so, as the author types it, with other options if given."""
        (line,) = [line for line in self.said if line.startswith(start)]
        self._patch.chdir(self.author)
        # Of an option that is given twice, the later value counts.
        self.command(" ".join([line, *(f"--{name.replace('_', '-')} {value}" for name, value in instead.items())]))


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """The walk up to the job: all sites run, and the job is at the author's. Each worker of a test run has its own."""
    folder = tmp_path_factory.mktemp("walk")
    files = raw_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        trial = Deployment(folder, files, floor=3)
        try:
            walk = Walk(trial, patch)
            for site in SITES:
                (walk.desk(site) / site).symlink_to(trial.kits / site)
                (walk.desk(site) / "study.json").write_bytes((walk.author / "study.json").read_bytes())
                walk.at(site, "cfl-flare site prepare")
                walk.at(site, "cfl-flare site columns")
                (walk.author / f"{site}.json").write_bytes((walk.desk(site) / f"{site}.json").read_bytes())
            walk.by_author("cfl-flare columns")
            for site in SITES:
                (walk.desk(site) / "ward" / "columns.json").write_bytes((walk.author / "columns.json").read_bytes())
                walk.at(site, "export CFL_DATA")
                walk.at(site, "export CFL_COLUMNS")
                walk.at(site, "cfl-flare site check")
            walk.by_author("cfl-flare export")
            trial.start_all()
            yield walk
        finally:
            trial.stop()


def by_hand(row: dict[str, str], preparation: dict) -> np.ndarray:
    """A patient's features as the model takes them, from what the site kept."""
    found: list[float | None] = []
    for column in preparation["columns"]["columns"]:
        text = row[column["column"]]
        absent, categories = text == "?", column.get("categories")
        if not categories:
            found.append(None if absent else float(text))
        elif column["kind"] == "boolean":
            found.append(None if absent else float(text == categories[1]))
        else:
            found += [None if absent else float(text == one) for one in categories]
        if column.get("missing"):
            found.append(float(absent))
    filled = [fill if x is None else x for x, fill in zip(found, preparation["fill"], strict=True)]
    z = (np.array(filled) - preparation["mean"]) / preparation["deviation"]
    numbers = np.array(preparation["deviation"]) != 1  # the others are 0 or 1, and never clipped
    return np.where(numbers, z.clip(-preparation["clip"], preparation["clip"]), z)


def test_four_hospitals_from_their_files_to_predictions_and_nothing_of_a_table_reaches_the_server(walk: Walk) -> None:
    ended, results = walk.trial.run(walk.author / "jobs" / "heart")
    assert ended == "FINISHED:COMPLETED"
    run = load_run(results / "cfl")
    assert [p["name"] for p in run.summary["participants"]] == sorted(SITES)
    assert not run.summary["sites_left_out"]
    assert len({p["cluster"] for p in run.summary["participants"]}) == 1  # of four sites, with a floor of three
    assert run.summary["final"]["served_accuracy"] > 0.65
    for site in ("cleveland", "hungary"):
        names = walk.study["names"][:-1]
        raw = [line.split(",")[:-1] for line in walk.trial.data[site].read_text().splitlines()[:40]]
        new = walk.desk(site) / "ward" / "new-patients.csv"
        new.write_text("\n".join(map(",".join, [names, *raw])) + "\n")
        walk.at(site, "cfl-flare predict")
        model = walk.trial.state_root(site) / "heart" / site / "served" / f"{site}.safetensors"
        kept = load_arrays(model)[1]["preparation"]
        x = np.stack([by_hand(dict(zip(names, row)), kept) for row in raw]).astype(np.float32)
        with torch.no_grad():
            expected = torch.softmax(read_model(model)(torch.from_numpy(x)), 1).numpy()
        with (walk.desk(site) / "predictions.csv").open() as file:
            predicted = list(csv.DictReader(file))
        np.testing.assert_allclose(
            [[float(p["p(num<=0)"]), float(p["p(num>0)"])] for p in predicted], expected, atol=2e-6
        )
        assert [p["predicted num"] == ">0" for p in predicted] == expected.argmax(1).astype(bool).tolist()
        assert len({p["p(num>0)"] for p in predicted}) > 20
    nothing_reached_the_server(walk)


def nothing_reached_the_server(walk: Walk) -> None:
    """Nor the author; after a job."""
    trial = walk.trial
    at_server = [trial.kits / SERVER, trial.folder / "nvflare", trial.admin, walk.author, trial.state_root(SERVER)]
    files = [path for folder in at_server for path in folder.rglob("*") if path.is_file()]
    content = {path: path.read_bytes() for path in files}
    assert any(b"trestbps" in held for held in content.values())  # the agreed columns are there
    for site in SITES:
        rows = trial.data[site].read_text().splitlines()
        kept = load_arrays(trial.state_root(site) / "heart" / site / "served" / f"{site}.safetensors")[1]["preparation"]
        own = [mean for mean in kept["mean"] if mean != round(mean, 6)]
        assert len(own) >= 3
        # What a site fits to its training rows, its rows, its category, its path.
        secrets = [*map(repr, own), *rows[:20], STRAY, str(trial.data[site].parent), f"processed.{site}.data"]
        for path, held in content.items():
            assert not [secret for secret in secrets if secret.encode() in held], path
    log = "".join(path.read_text() for path in (trial.kits / "long-beach").glob("*/log.txt"))
    assert "processed.long-beach.data" in log and "restecg: category of 0, 1, 2" in log
    assert "restecg: 1 rows have a category that no other site named" in log and STRAY not in log


def test_a_site_without_a_column_and_one_that_agreed_on_other_columns_are_left_out(walk: Walk) -> None:
    """The others go on; which column it is stays in the site's own log."""
    trial = walk.trial
    path = trial.data["switzerland"]
    rows = [line.split(",") for line in path.read_text().splitlines()]
    names = walk.study["names"]
    path.write_text("\n".join(",".join([*row[:12], row[13]]) for row in [names, *rows]) + "\n")  # no thal
    pinned = walk.desk("hungary") / "ward" / "columns.json"
    other = json.loads(pinned.read_text())
    other["columns"][2]["categories"] = ["1", "2", "3"]
    pinned.write_text(json.dumps(other))
    for site in SITES:
        trial.ask_for(site, 1)
    trusting = {name: str(value) for name, value in TRUSTING.items()}
    walk.by_author("cfl-flare export", name="two", rounds="2", **trusting)
    ended, results = trial.run(walk.author / "jobs" / "two")
    assert ended == "FINISHED:COMPLETED"
    run = load_run(results / "cfl")
    left_out = run.summary["sites_left_out"]
    assert left_out.keys() == {"hungary", "switzerland"}
    assert all(reason.startswith("columns: ") and "thal" not in reason for reason in left_out.values())
    assert run.rounds[0]["trained"] == ["cleveland", "long-beach"]
    logs = {site: "".join(p.read_text() for p in (trial.kits / site).glob("*/log.txt")) for site in left_out}
    assert "no column 'thal', which the sites agreed on" in logs["switzerland"]
    assert "the job's columns are not those of CFL_COLUMNS here" in logs["hungary"]
