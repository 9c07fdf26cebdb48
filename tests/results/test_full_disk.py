# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A disk that fills up: one line with path and way out, no partial file, and a run that goes on where it can."""

from pathlib import Path

import pytest

from tests.helpers.processes import can_mount, on_small_disk

FILES = """
import sys
from pathlib import Path
import numpy as np
from cfl_flare.core.errors import FileError, failure_of
from cfl_flare.core.files import append, atomic_write
from cfl_flare.core.arrays import save_arrays

disk = Path(sys.argv[1])
atomic_write(disk / "old", "old")
append(disk / "lines", "1\\n")
large = b"x" * 2**21
for write in (
    lambda: atomic_write(disk / "old", large),
    lambda: atomic_write(disk / "new", lambda file: [file.write(large[:2**16]) for _ in range(64)]),
    lambda: append(disk / "lines", large.decode()),
    lambda: append(disk / "more", large.decode()),
    lambda: save_arrays(disk / "model.safetensors", {"w": np.zeros(2**19, np.float32)}, {}),
):
    try:
        write()
    except FileError as error:
        print(error, failure_of(error))
print({path.name: path.read_text() for path in sorted(disk.iterdir())})
"""


def test_nothing_is_left_of_what_does_not_fit(tmp_path: Path) -> None:
    done = on_small_disk(tmp_path, FILES, 1024)
    *said, left = done.stdout.splitlines()
    assert left == str({"lines": "1\n", "old": "old"}), done.stdout + done.stderr
    names = ["old", "new", "lines", "more", "model.safetensors"]
    reason = "No space left on device" if can_mount() else "File too large"
    expected = [f"cannot write {tmp_path}/{n}: {reason}; free space on its disk, or use another one" for n in names]
    assert [line.rpartition(" ")[0] for line in said] == expected
    assert not can_mount() or {line.rpartition(" ")[2] for line in said} == {"disk"}


LOOP = """
import logging, sys
from pathlib import Path
from cfl_flare.core.errors import CFLError
from cfl_flare.data import DataConfig, Digits
from tests.helpers.loop import run_loop
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import {method}
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.store import Store
from cfl_flare.training.settings import TrainSettings

logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
disk, elsewhere = Path(sys.argv[1]), Path({elsewhere!r})
args = {{"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [{width}]}}
model = {{"class_path": "cfl_flare.models.MLP", "args": args}}
try:
    run_loop(
        method={method}(), model=model, source=Digits(), data=DataConfig(2, {{"partition": "iid"}}),
        settings=ServerSettings(4), training=TrainSettings(local_steps=1),
        folder={results}, checkpoints=Store({checkpoints}), checkpoint_every=1,
    )
except CFLError as error:
    print("ended:", error)
print("rounds:", len(load_run({results}).rounds) if ({results} / "summary.json").exists() else None)
print("versions:", Store({checkpoints}).versions())
print("left:", sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if path.is_file()))
"""


def run_on_full_disk(tmp_path: Path, results: str, checkpoints: str, kilobytes: int, width: int = 500) -> list[str]:
    (tmp_path / "disk").mkdir()
    values = {
        "method": "FedAvg",
        "elsewhere": str(tmp_path / "elsewhere"),
        "results": results,
        "checkpoints": checkpoints,
    }
    done = on_small_disk(tmp_path / "disk", LOOP.format(width=width, **values), kilobytes)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_run_goes_on_without_checkpoints(tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("this user may not mount a file system; the limit of files would hit the results, too")
    errors, (rounds, versions, left) = (
        (lines := run_on_full_disk(tmp_path, "elsewhere / 'run'", "disk / 'state' / 'run' / 'site'", 400))[:-3],
        lines[-3:],
    )  # room for two of the checkpoints, of 150 kB
    path = tmp_path / "disk" / "state" / "run" / "site"
    wanted = [
        f"ERROR no checkpoint after round {r}: cannot write {path}/round-{r:06d}.safetensors: No space left on device; "
        "free space on its disk, or use another one; meanwhile, a run would resume after round 2"
        for r in (3, 4)
    ]
    assert errors == wanted
    assert (rounds, versions) == ("rounds: 4", "versions: [1, 2]")
    assert ".tmp" not in left and "000003" not in left


def test_without_room_for_any_checkpoint_it_says_so(tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("this user may not mount a file system")
    lines = run_on_full_disk(tmp_path, "elsewhere / 'run'", "disk / 'state' / 'run' / 'site'", 100)
    assert sum("meanwhile, a run would resume after no round" in line for line in lines) == 4
    assert lines[-3:-1] == ["rounds: 4", "versions: []"]


def test_a_run_ends_that_cannot_write_its_results(tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("this user may not mount a file system")
    ended, rounds, versions, left = run_on_full_disk(
        tmp_path, "disk / 'run'", "elsewhere / 'state' / 'run' / 'site'", 100
    )
    path = tmp_path / "disk" / "run" / "best.tmp" / "clusters" / "global.safetensors"
    assert ended == f"ended: cannot write {path}: No space left on device; free space on its disk, or use another one"
    assert (rounds, versions) == ("rounds: None", "versions: [1]")  # from which it can be resumed
    assert left == "left: ['run/assignments.jsonl', 'run/rounds.jsonl', 'run/started.json']"


SPOOL = """
import sys, tempfile
from pathlib import Path
import numpy as np
tempfile.tempdir = sys.argv[1]
from cfl_flare.core.errors import PayloadError
import cfl_flare.engine.round as spool
from cfl_flare.core.params import Params
from cfl_flare.methods import Update
from tests.helpers.tiny import coin

spool.SPOOL_BYTES = 0
kept = spool.Spool(1)
def update(name, size):
    return Update(name, 1, {"global": Params(coin(0, 1).layout, np.zeros(size, np.float32))})
kept.put(update("a", 1000))
try:
    kept.put(update("b", 2**20))
except PayloadError as error:
    print(error.code, error)
kept.put(update("c", 1000))
print([u.participant for u in kept.ordered(["a", "b", "c"])], len(list(Path(sys.argv[1]).rglob("*.npy"))))
"""


def test_an_update_that_cannot_be_kept_is_left_out_of_its_round(tmp_path: Path) -> None:
    done = on_small_disk(tmp_path, SPOOL, 1024)
    refused, kept = done.stdout.splitlines()
    assert refused.startswith("server_disk the server cannot write ") and "TMPDIR" in refused, done.stderr
    assert kept == "['a', 'c'] 2"


COMMANDS = """
import sys
from pathlib import Path
disk = Path(sys.argv[1])
from cfl_flare.cli import main
status = main([word.format(disk=disk) for word in {words!r}])
print(status, sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if path.is_file()), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (
            ["run", "--loop", "--rounds", "2", "--participants", "3", "--method", "fedavg", "--out", "{disk}/runs"],
            "{disk}/runs/fedavg",
        ),
        (["partition", "--participants", "3", "--figure", "{disk}/deal.png"], "{disk}/deal.png"),
    ],
    ids=["run", "partition"],
)
def test_commands_say_one_line(tmp_path: Path, words: list[str], path: str) -> None:
    done = on_small_disk(tmp_path, COMMANDS.format(words=words), 8)
    said, left = done.stderr.splitlines()
    assert said.startswith(f"cfl-flare: cannot write {path.format(disk=tmp_path)}") and "; free space" in said
    assert left.startswith("2 [") and ".tmp" not in left and "png" not in left
