# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Every command of the user's and the operator's guide, as it is printed there, in the order in which it is."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cfl_flare.results.run_dir import find_runs, load_run
from tests import warm
from tests.e2e.deployment import ADMIN, ROOT, Deployment, until

pytestmark = pytest.mark.slow
JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")
SITE = "hospital-1"
TABLES = "Tables"  # a section of the operator's guide that has a test of its own: `test_hospital_walk`
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
        env["PATH"] = os.pathsep.join(filter(None, (warm.commands(), env["PATH"])))
        with said.open("w") as out:  # a pipe would stay open as long as a site that was started
            script = "\n".join(["set -e", *self._exports, line])
            done = subprocess.run(["bash", "-c", script], cwd=place, env=env, stdout=out, stderr=out, timeout=400)
        text = said.read_text()
        assert done.returncode == 0, f"{line}\n{text}"
        found = JOB_ID.findall(text)
        self._job_id = found[0] if " job submit " in line and found else self._job_id
        return text


def lines(name: str, only: str = "") -> list[str]:
    """The commands in ``sh`` blocks, of one section if named.

    Those in ``bash`` blocks have a test of their own (`test_ghost_job`).
    """
    found = [line.split("  #")[0].strip() for block in guide(name, "sh", only) for line in block.splitlines()]
    return [line for line in found if line and line != INSTALL]


def blood(path: Path, train: int = 480, test: int = 240) -> None:
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
    table.write_text("age,marker,diagnosis\n" + "".join(f"{40 + i},{i % 7},{i % 2}\n" for i in range(80)))
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
    for line in lines("operator-guide.md"):
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
    blood(reader.folder / "bloodmnist.npz")
    said = {line: reader.type(line) for line in lines("user-guide.md")}
    assert load_run(reader.folder / "runs" / "first" / "wecfl-k3").summary["final"]["ari"] == 1
    assert "wecfl (K=2)" in said["cfl-flare show results"]
    (run,) = find_runs(reader.folder / "results")
    assert (run.summary["rounds"], trial.rounds("ward")) == (5, 8)
    assert (reader.folder / "predictions.csv").is_file()
    script = "\n".join(guide("user-guide.md", "python")) + "\nprint(Ward('ward.npy').load()[0].x.shape)\n"
    np.save(reader.folder / "ward.npy", np.eye(10))
    (reader.folder / "script.py").write_text(script.replace("28, 28", "14, 14"))
    assert "(8, 9)" in reader.type(f"{shlex.quote(sys.executable)} script.py")
