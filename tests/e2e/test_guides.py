# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Every command of the guides, as printed and in order; and four hospitals with raw tables, up to predictions."""

import csv
import gzip
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cfl_flare.cli import main
from cfl_flare.core.arrays import load_arrays
from cfl_flare.data.hospitals import FOLDER, HEART
from cfl_flare.results.model_file import read_model
from cfl_flare.results.run_dir import find_runs, load_run
from tests.e2e.deployment import ADMIN, ROOT, SERVER, TRUSTING, Deployment, until
from tests.helpers import warm

pytestmark = pytest.mark.slow
JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")
SITE = "hospital-1"
TABLES = "Tables"  # a section of the operator's guide that `Walk` types
INSTALL = "pip install ."  # what the README's first block does, which is run where everything is installed from


def guide(name: str, language: str, only: str = "") -> list[str]:
    """The blocks of one section, or of all but `TABLES`."""
    sections = re.split(r"^## ", (ROOT / "docs" / name).read_text(), flags=re.MULTILINE)
    chosen = [s for s in sections if (s.startswith(f"{only}\n") if only else not s.startswith(f"{TABLES}\n"))]
    return re.findall(rf"^```{language}\n(.*?)^```$", "".join(chosen), re.DOTALL | re.MULTILINE)


class Reader:
    """Someone who types what a guide says, in a folder where everything has the name that it has in the guide.

    Args:
        folder: where the reader works; it is made, and the startup kits are in it.
        trial: whose kits they are.
        own: names in the guide, and what they are here.
        site: whose operator the reader is; nobody's for a job's author.
    """

    def __init__(self, folder: Path, trial: Deployment, own: dict[str, str], site: str = ""):
        folder.mkdir()
        self.folder, self.trial, self._own, self._site = folder, trial, own, site
        for kit in (ADMIN, *trial.sites):
            (folder / kit).symlink_to(trial.kits / kit)
        self._exports: list[str] = []
        self._job_id = ""

    def type(self, line: str) -> str:
        """Runs one line and returns what it printed."""
        line = line.replace("<job id>", self._job_id)
        for theirs, ours in self._own.items():
            line = line.replace(theirs, ours)
        if line.startswith("export "):
            self._exports.append(line)
            return ""
        place = self.folder / self._site if "startup/s" in line else self.folder
        said = self.folder / "said.txt"
        env = self.trial.env(self._site)
        env["PATH"] = os.pathsep.join(filter(None, (warm.find_commands(), env["PATH"])))
        with said.open("w") as out:  # a pipe would stay open as long as a site that was started
            script = "\n".join(["set -e", *self._exports, line])
            done = subprocess.run(["bash", "-c", script], cwd=place, env=env, stdout=out, stderr=out, timeout=400)
        text = said.read_text()
        assert done.returncode == 0, f"{line}\n{text}"
        found = JOB_ID.findall(text)
        self._job_id = found[0] if " job submit " in line and found else self._job_id
        return text


def list_guide_lines(name: str, only: str = "") -> list[str]:
    """The commands in ``sh`` blocks, of one section if named.

    Those in ``bash`` blocks have a test of their own (`test_ghost_job`).
    """
    found = [line.split("  #")[0].strip() for block in guide(name, "sh", only) for line in block.splitlines()]
    return [line for line in found if line and line != INSTALL]


def write_blood_images(path: Path, train: int = 480, test: int = 240) -> None:
    """A small file in MedMNIST's layout."""
    rng = np.random.default_rng(0)
    means = rng.uniform(60, 190, (8, 14, 14, 3))
    arrays = {}
    for split, size in (("train", train), ("test", test)):
        labels = np.arange(size) % 8
        images = (means[labels] + rng.normal(0, 20, (size, 14, 14, 3))).clip(0, 255).astype(np.uint8)
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    np.savez(path, **arrays)


def test_what_installs_is_what_the_readme_says():
    assert INSTALL in (ROOT / "README.md").read_text().split("```sh\n")[1].splitlines()[0]


def test_the_operator_s_guide(trial):
    names = {"/srv/ward/cells.npz": shlex.quote(str(trial.data[SITE])), "/srv/cfl_state": str(trial.state_root(SITE))}
    table = trial.folder / "ward.csv"
    table.write_text("age,marker,diagnosis,pid\n" + "".join(f"{40 + i},{i % 7},{i % 2},p{i}\n" for i in range(80)))
    names["/srv/ward/ward.csv"] = shlex.quote(str(table))
    # The folder of a running job, which is in the job store by then, and the same files in what was downloaded.
    names["hospitals-server/5b1c2e5c-61f5-4b0f-9d0c-2f3f2a0b7c11"] = "results"
    reader = Reader(trial.folder / "operator", trial, {**names, "28,28": "14,14"}, SITE)
    (reader.folder / "new-images").mkdir()
    images = np.random.default_rng(1).integers(0, 256, (20, 14, 14, 3)).astype(np.uint8)
    np.savez(reader.folder / "new.npz", images=images)
    for i, image in enumerate(images[:3]):
        Image.fromarray(image).save(reader.folder / "new-images" / f"{i}.png")
    model = "logistic:input_shape=[3,14,14],num_classes=8"
    reader.type(f"cfl-flare export --name blood --method wecfl:k=2 --model {model} --rounds 2 --min-clients 3")
    trial.kill(SITE)
    (trial.kits / SITE / "local" / "resources.json").unlink()  # as it was provisioned
    said = {}
    for line in list_guide_lines("operator-guide.md"):
        before = trial.registrations(SITE)
        said[line] = reader.type(line)
        if line == "startup/start.sh":
            trial.until_registered(SITE, before)
        if "stop_fl" in line:
            until("the site to stop", lambda: not (trial.kits / SITE / "daemon_pid.fl").exists())
    assert "not written (--dry-run)" in said["cfl-flare site prepare hospital-1 --dry-run"]
    assert len((reader.folder / "predictions.csv").read_text().splitlines()) == 21
    reader.type("echo y | startup/stop_fl.sh")
    until("the site to stop", lambda: not (trial.kits / SITE / "daemon_pid.fl").exists())
    before = trial.registrations(SITE)
    trial.start(SITE)
    trial.until_registered(SITE, before)


def test_the_user_s_guide(trial):
    reader = Reader(trial.folder / "author", trial, {"28,28": "14,14", "28, 28": "14, 14"})
    write_blood_images(reader.folder / "bloodmnist.npz")
    said = {line: reader.type(line) for line in list_guide_lines("user-guide.md")}
    assert load_run(reader.folder / "runs" / "first" / "wecfl-k3").summary["final"]["ari"] == 1
    assert "wecfl (K=2)" in said["cfl-flare show results"]
    (run,) = find_runs(reader.folder / "results")
    assert (run.summary["rounds"], trial.rounds("ward")) == (5, 8)
    assert (reader.folder / "predictions.csv").is_file()
    script = "\n".join(guide("user-guide.md", "python")) + "\nprint(Ward('ward.npy').load()[0].x.shape)\n"
    np.save(reader.folder / "ward.npy", np.eye(10))
    (reader.folder / "script.py").write_text(script.replace("28, 28", "14, 14"))
    assert "(8, 9)" in reader.type(f"{shlex.quote(sys.executable)} script.py")


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
        self.said = list_guide_lines("operator-guide.md", TABLES)

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


def prepare_by_hand(row: dict[str, str], preparation: dict) -> np.ndarray:
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
        x = np.stack([prepare_by_hand(dict(zip(names, row)), kept) for row in raw]).astype(np.float32)
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
    # The site's own log names the category, so that its operator can correct it.
    assert f"restecg: 1 rows have a category that no other site named ('{STRAY}')" in log


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
