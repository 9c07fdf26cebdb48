# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A job through FLARE whose state root is a disk that fills up."""

from pathlib import Path

import pytest

from cfl_flare.results.run_dir import load_run
from tests.full_disk import can_mount, on_small_disk

pytestmark = pytest.mark.slow

RUN = """
import os, sys
os.environ["CFL_STATE_ROOT"] = sys.argv[1]
from cfl_flare.cli import main
words = "run --sites 2 --participants 3 --rounds 3 --method ditto --model mlp:hidden=[200]".split()
sys.exit(main([*words, "--out", {out!r}]))
"""


@pytest.mark.skipif(not can_mount(), reason="this user may not mount a file system")
def test_a_job_ends_well_without_room_for_checkpoints_and_memories(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    done = on_small_disk(tmp_path / "state", RUN.format(out=str(tmp_path / "out")), 40)  # a model has 60 kB
    assert done.returncode == 0, done.stdout + done.stderr
    run = load_run(tmp_path / "out" / "ditto")
    assert len(run.rounds) == 3 and not any(line["failed"] for line in run.rounds)
    assert (tmp_path / "out" / "ditto" / "accuracy.png").is_file()
    log = (tmp_path / "out" / "ditto" / "flare.log").read_text()
    path = tmp_path / "state" / "ditto" / "simulator_server"
    for number in (1, 2, 3):
        assert f"no checkpoint after round {number}: cannot write {path}/round-{number:06d}.safetensors: " in log
    assert log.count("writing what participants remember failed: disk") >= 4
    assert "No space left on device; free space on its disk, or use another one; meanwhile, a run would resume" in log
