# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The same rounds with cfl_flare and with other libraries, one after the other on one machine.

Participants of Fashion-MNIST, a quarter each with images turned by 0, 90, 180 and 270 degrees, train a small network
by SGD and are measured in every round. Shares, network and local training are those of ``peers/work.py``; a script a
peer does the rest as the peer's own tutorial does it.

A row is run twice, with few rounds and with several. Their difference is that of the rounds; what is left is the start.
Processor seconds are those of all its processes, memory is the peak of their sum, with shared pages counted once. The
bare work, the same steps and test samples in a plain torch loop, is measured before, between and after, both with the
torch of this environment and with that of the peer's.

Each peer has an environment below --envs, which is made at first. Finished rows are not run again. A peer that cannot
be installed, or fails, is in the file with the error's last line, and is tried again.

    CFL_DATA_ROOT=... python benchmarks/league.py --envs ~/.cache/cfl-league --out benchmarks/results/league.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from common import MARK, provenance, write_json

from cfl_flare.data import Npz

SCRIPTS = Path(__file__).parent / "peers"
sys.path.insert(0, str(SCRIPTS))

from work import bare, shares_of  # noqa: E402  # every peer's environment has it as a module of its own

HERE = "this one"
SHARING = ("flower", "pfl")  # environments with the torch of this one, which their libraries allow
OLD = "torch-2.0.1"
OLD_NUMPY = "numpy==1.26.4"
SHORT, LONG, PARTICIPANTS, SAMPLES, TURNS = 2, 10, 20, (320, 80), 4
LIMIT, PATIENCE, PAUSE = 1200.0, 20.0, 0.5  # seconds for a run, for what it leaves behind, and between looks
PR_SET_CHILD_SUBREAPER = 36


class Peer(NamedTuple):
    """A library.

    Attributes:
        script: in ``peers``.
        methods: that it has.
        environment: its name below --envs, or HERE.
        packages: what is installed there, pinned.
    """

    script: str
    methods: tuple[str, ...]
    environment: str = HERE
    packages: tuple[str, ...] = ()


PEERS = {
    "loop": Peer("with_flare.py", ("fedavg", "ifca", "fesem")),
    "simulator": Peer("with_flare.py", ("fedavg", "ifca", "fesem")),
    "recipe": Peer("with_flare.py", ("fedavg",)),
    "flower": Peer("with_flower.py", ("fedavg",), "flower", ("flwr[simulation]==1.42.0",)),
    "pfl": Peer("with_pfl.py", ("fedavg",), "pfl", ("pfl[pytorch]==0.6.0",)),
    "cfla": Peer("with_clustered.py", ("fedavg", "ifca", "fesem"), OLD, ("cfla==1.0.4", OLD_NUMPY)),
    # fedbase imports medmnist and does not ask for it. It does not run with the torch of today.
    "fedbase": Peer(
        "with_clustered.py",
        ("fedavg", "ifca", "fesem"),
        OLD,
        ("fedbase==0.10.3", "medmnist==2.2.3", "torch==2.0.1", "torchvision==0.15.2", OLD_NUMPY),
    ),
}
ROWS = [f"{peer}-{method}" for peer, about in PEERS.items() for method in about.methods]


class PeerError(Exception):
    """A peer could not be installed or did not run; says why in a line."""


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


# ---- Data and environments ----


def write_shares(path: Path, participants: int, samples: Sequence[int]) -> None:
    """Writes the shares of all, in MedMNIST's layout with the samples' owners.

    Args:
        samples: of a participant, for training and for testing.
    """
    arrays: dict[str, np.ndarray] = {}
    for split, count, part in zip(("train", "test"), samples, Npz("fashionmnist.npz").load(), strict=True):
        owner = np.arange(participants * count) // count
        images = part.x[: len(owner), 0]
        if len(images) < len(owner):
            raise SystemExit(f"league.py: {len(owner)} {split} samples are asked for; there are {len(images)}")
        turned = [np.rot90(image, i % TURNS) for image, i in zip(images, owner, strict=True)]
        arrays |= {f"{split}_images": np.stack(turned), f"{split}_labels": part.y[: len(owner)]}
        arrays[f"{split}_owner"] = owner
    np.savez(path, **arrays)  # type: ignore[arg-type]


def python_of(name: str, envs: Path) -> Path:
    """The interpreter of a peer's environment, which is made at first.

    Raises:
        PeerError: it cannot be made.
    """
    peer = PEERS[name]
    if peer.environment == HERE:
        return Path(sys.executable)
    folder = envs / peer.environment
    python, stamp = folder / "bin" / "python", folder / f"{name}.installed"
    wanted = "\n".join(peer.packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    steps = [] if python.exists() else [[sys.executable, "-m", "venv", str(folder)]]
    steps.append([str(python), "-m", "pip", "install", *peer.packages])
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            raise PeerError(last_line(done.stderr or done.stdout))
        if peer.environment in SHARING:
            (packages,) = (folder / "lib").glob("python*/site-packages")
            (packages / "shared.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    stamp.write_text(wanted)
    return python


# ---- Measuring ----


def look(stop: threading.Event, peak: list[float]) -> None:
    """Keeps the peak memory of all processes below this one, in MB."""
    while not stop.wait(PAUSE):
        total = 0
        for process in psutil.Process().children(recursive=True):
            try:
                total += process.memory_full_info().pss
            except psutil.Error:  # it has just ended
                continue
        peak[0] = max(peak[0], total / 2**20)


def end_all() -> None:
    """Waits for all processes below this one, so that their CPU seconds count; ends those that stay."""
    until = time.monotonic() + PATIENCE
    while children := psutil.Process().children(recursive=True):
        if time.monotonic() > until:
            for child in children:
                child.kill()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.1)


def children_seconds() -> float:
    """CPU seconds of all processes that have ended below this one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(python: Path, row: str, shares: Path, rounds: int) -> dict[str, Any]:
    """A run of a row: what it took, and what its script says.

    Raises:
        PeerError: it failed, or took too long.
    """
    peer = PEERS[row.split("-")[0]]
    return run_script(python, [peer.script, row, str(shares), str(rounds)], peer.environment == HERE)


def run_script(python: Path, script: Sequence[str], here: bool) -> dict[str, Any]:
    """A script of ``peers`` with its arguments; see `measure`."""
    paths = [str(SCRIPTS), *([str(SCRIPTS.parents[1])] if here else [])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
    stop, peak = threading.Event(), [0.0]
    with tempfile.TemporaryFile("w+") as output:
        before, start = children_seconds(), time.monotonic()
        command = [str(python), str(SCRIPTS / script[0]), *script[1:]]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env)
        watcher = threading.Thread(target=look, args=(stop, peak))
        watcher.start()
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        wall = time.monotonic() - start
        stop.set()
        watcher.join()
        end_all()
        output.seek(0)
        text = output.read()
    facts = [line for line in text.splitlines() if line.startswith(MARK)]
    if wall >= LIMIT:
        raise PeerError(f"{' '.join(script)} took over {LIMIT:.0f} s")
    if not facts:
        raise PeerError(last_line(text))
    took = {"wall_seconds": wall, "cpu_seconds": children_seconds() - before, "peak_MB": peak[0]}
    return {**took, **json.loads(facts[0].removeprefix(MARK))}


def measure_row(row: str, envs: Path, shares: Path, short: int, long: int) -> dict[str, Any]:
    """What a round and the start of a row take, beside the bare work."""
    python = python_of(row.split("-")[0], envs)
    people = shares_of(shares)
    bares: list[tuple[float, float]] = []
    runs = {}
    for rounds in (0, short, long):
        if rounds:
            runs[rounds] = measure(python, row, shares, rounds)
        its = run_script(python, ["work.py", str(shares)], python == Path(sys.executable))
        bares.append((bare(people), its["bare_cpu_seconds"]))
    a_round, start = {}, {}
    for kind in ("wall_seconds", "cpu_seconds"):
        a_round[kind] = (runs[long][kind] - runs[short][kind]) / (long - short)
        start[kind] = runs[short][kind] - short * a_round[kind]
    here, there = np.mean(bares, axis=0).tolist()
    return {
        **{key: runs[long][key] for key in ("accuracy", "versions", "peak_MB")},
        "a_round": a_round,
        "start": start,
        "bare_cpu_seconds": here,
        "ratio": a_round["cpu_seconds"] / here,
        "bare_cpu_seconds_of_its_torch": there,
        "ratio_of_its_torch": a_round["cpu_seconds"] / there,
        "runs": runs,
        **provenance(),
    }


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--envs", type=Path, default=Path.home() / ".cache" / "cfl-league", help="%(default)s")
    options.add_argument("--out", type=Path, default=Path("league.json"))
    options.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, metavar="ROW", help=", ".join(ROWS))
    options.add_argument("--rounds", type=int, nargs=2, default=[SHORT, LONG], help="of the short run and the long one")
    options.add_argument("--participants", type=int, default=PARTICIPANTS)
    options.add_argument("--samples", type=int, nargs=2, default=list(SAMPLES), help="of each, to train and to test")
    given = options.parse_args()
    short, long = given.rounds
    if not 1 <= short < long:
        raise SystemExit(f"league.py: --rounds {short} {long} should be at least 1 2, and the second larger")
    setting = {name: getattr(given, name) for name in ("rounds", "participants", "samples")}
    result: dict[str, Any] = {"setting": setting, "rows": {}, "missing": {}}
    if given.out.exists():
        result = json.loads(given.out.read_text())
        if result["setting"] != setting:
            raise SystemExit(f"league.py: {given.out} was measured with {result['setting']}; name another --out")
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what a run leaves behind becomes a child of this
    with tempfile.TemporaryDirectory() as folder:
        shares = Path(folder) / "shares.npz"
        write_shares(shares, given.participants, given.samples)
        for row in given.rows:
            if row in result["rows"]:
                continue
            result["missing"].pop(row, None)
            try:
                result["rows"][row] = measure_row(row, given.envs.resolve(), shares, short, long)
            except PeerError as error:
                result["missing"][row] = str(error)
                print(f"{row}: {error}", flush=True)
            else:
                print(row, result["rows"][row]["a_round"], flush=True)
            write_json(given.out, result, indent=1)


if __name__ == "__main__":
    main()
