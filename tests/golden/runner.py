# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a case of the golden record by the command, and reads what it left in its folder.

A run folder is read here by itself, not by the package: what the package reads wrongly would else go unnoticed. The one
thing that the command cannot do, to stop a run half way and to schedule what it has no option for, is done by giving
its `run_loop` more arguments, wherever that function lies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from safetensors import safe_open
from threadpoolctl import threadpool_limits

from tests.golden.cases import METHODS, Case
from tests.helpers.resumed import Stopped

COMMAND = "import sys; from cfl_flare.cli import main; sys.exit(main())"
# Records are of what training leaves: traffic has no draws.
PLAIN = ("--bootstrap", "0", "--measures", "accuracy")
NVFLARE = "from nvflare.cli import main; main()"


def run_case(case: Case, folder: Path) -> dict[str, Any]:
    """Runs a case in an empty folder.

    Returns:
        What the record keeps of it.
    """
    if case.part == "loop":
        left = _run_in_process(case, folder)
    elif case.resumed or case.settings:
        left = _exported(case, folder)
    else:
        process(COMMAND, ["run", *case.options, *PLAIN, "--sites", "2", "--out", str(folder / "out")], folder)
        left = next((folder / "out").glob("*/summary.json")).parent
    found = read_run(left)
    memory = {path.name: _memory(path) for path in sorted((folder / "state").glob("*/site-*"))}
    return {"command": case.command, **found, **({"memory": memory} if memory else {})}


def _run_in_process(case: Case, folder: Path) -> Path:
    """Runs a case of the loop; returns its run folder."""
    if case.from_model:
        first = Case("loop/fedavg/start", (*METHODS["fedavg"], "--rounds", "1", "--seed", "9"))
        model = _run_in_process(first, folder / "start") / "clusters" / "global.safetensors"
        return in_process(case.options, folder, initial_ckpt=model)
    if not case.resumed:
        return in_process(case.options, folder, settings=case.settings)
    checkpoints, half = folder / "checkpoints", folder / "half"
    with contextlib.suppress(Stopped):
        in_process(case.options, half, checkpoints=checkpoints, stopped_at=2)
        raise RuntimeError(f"{case.name} was not stopped")
    begun = next((half / "out").glob("*/rounds.jsonl")).parent
    return in_process(case.options, folder, checkpoints=checkpoints, begun=begun)


def in_process(
    options: Sequence[str],
    folder: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    initial_ckpt: Path | None = None,
    checkpoints: Path | None = None,
    stopped_at: int | None = None,
    begun: Path | None = None,
) -> Path:
    """Runs the command with ``--loop`` in this process, without figures, which would take most of the time.

    Args:
        options: of the command.
        folder: where it writes.
        settings: of the server's schedule, those for which it has no option.
        initial_ckpt: the model to start from.
        checkpoints: where there are checkpoints, one every two rounds, or are to be.
        stopped_at: `Stopped` is raised when this round has been measured, which is while the next one is done.
        begun: the run folder that goes with the checkpoints.

    Returns:
        The run folder.
    """
    from cfl_flare.cli import main
    from cfl_flare.engine.drive import Checkpoints
    from cfl_flare.results.store import Store

    more: dict[str, Any] = {} if initial_ckpt is None else {"initial_ckpt": initial_ckpt}
    if checkpoints is not None:
        more["checkpoints"] = Checkpoints(Store(checkpoints), every=2)
    if stopped_at is not None:
        more["on_round"] = partial(_stop, stopped_at)
    with contextlib.ExitStack() as stack:
        if settings or more:
            _wrap_run_loop(stack, settings or {}, more, begun)
        for module in ("run", "simulate"):
            stack.enter_context(patch(f"cfl_flare.cli.{module}.present_results", lambda *where: []))
        stack.enter_context(threadpool_limits(1))
        stack.enter_context(output_to(folder / "said"))
        status = main(["run", "--loop", *options, *PLAIN, "--out", str(folder / "out")])
    if status:
        raise RuntimeError((folder / "said").read_text().strip())
    return next((folder / "out").glob("*/summary.json")).parent


def _wrap_run_loop(
    stack: contextlib.ExitStack, settings: Mapping[str, Any], more: Mapping[str, Any], begun: Path | None
) -> None:
    """Gives the command's `run_loop` more arguments, until the stack is closed."""
    modules = list(_modules_with("run_loop"))
    run_loop = modules[0].run_loop

    def run(plan: Any, folder: Path, on_round: Any = None, checkpoints: Any = None) -> Any:
        if begun is not None:
            shutil.copytree(begun, folder, dirs_exist_ok=True)
        plan = dataclasses.replace(plan, server=dataclasses.replace(plan.server, **settings))
        if "initial_ckpt" in more:
            plan = dataclasses.replace(plan, job=dataclasses.replace(plan.job, initial_ckpt=str(more["initial_ckpt"])))
        return run_loop(plan, folder, more.get("on_round", on_round), more.get("checkpoints", checkpoints))

    for module in modules:
        stack.enter_context(patch.object(module, "run_loop", run))


def _stop(number: int, measured: Any) -> None:
    """Ends a run while it does the round after this one."""
    if measured.record["round"] == number:
        raise Stopped


def _modules_with(name: str) -> Iterator[Any]:
    """The package's modules that have something of this name."""
    import cfl_flare

    package = Path(cfl_flare.__file__).parent
    for path in sorted(package.rglob("*.py")):
        if name in path.read_text():
            parts = path.relative_to(package.parent).with_suffix("").parts
            module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
            if hasattr(module, name):
                yield module


def _exported(case: Case, folder: Path) -> Path:
    """Runs a case as an exported job in FLARE's simulator, stopped after two rounds if it is resumed."""
    digits = ("--data", "digits", "--partition", "label_permutation:groups=3")
    words = [*case.options, *digits]
    if case.resumed:
        _job([*words, "--name", "begun", "--rounds", "2"], case, folder)
        words += ["--resume-from", "begun"]
    return _job([*words, "--name", "job"], case, folder)


def _job(words: list[str], case: Case, folder: Path) -> Path:
    """Exports a job and runs it; returns its run folder."""
    process(COMMAND, ["export", "--out", str(folder / "jobs"), *words], folder)
    name = words[words.index("--name") + 1]
    job = folder / "jobs" / name
    config = next(job.rglob("config_fed_server.json"))
    content = json.loads(config.read_text())
    content["workflows"][0]["args"].update(case.settings)
    config.write_text(json.dumps(content))
    return simulate_job(job, folder)


def simulate_job(job: Path, folder: Path) -> Path:
    """Runs an exported job of two sites in FLARE's simulator; returns its run folder."""
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    workspace = folder / "flare" / job.name
    (workspace / "local").mkdir(parents=True)
    allowed = {"class_allow_list": [*DEFAULT_CLASS_ALLOW_LIST, "cfl_flare."]}
    (workspace / "local" / "resources.json").write_text(json.dumps(allowed))
    process(NVFLARE, ["simulator", str(job), "-w", str(workspace), "-n", "2", "-t", "2"], folder)
    left = workspace / "server" / "simulate_job" / "cfl"
    if not (left / "summary.json").is_file():
        raise RuntimeError(f"{job}: no results; the log is below {workspace}")
    return left


def process(code: str, words: list[str], folder: Path) -> None:
    """Runs a command in a process of its own, with a state root in the case's folder."""
    env = {**os.environ, "PYTHONPATH": _package_root(), "CFL_STATE_ROOT": str(folder / "state"), "HOME": str(folder)}
    env.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # where the report's script is
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _package_root() -> str:
    """Where the package lies that this process has."""
    import cfl_flare

    return str(Path(cfl_flare.__file__).parents[1])


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Sends what this process prints to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(fd) for fd in (1, 2)]
    with path.open("w") as log:
        for fd in (1, 2):
            os.dup2(log.fileno(), fd)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, old in zip((1, 2), saved):
            os.dup2(old, fd)
            os.close(old)


def read_run(folder: Path) -> dict[str, Any]:
    """What a run left: its models, its assignments and measures by round, its newcomers."""
    summary = json.loads((folder / "summary.json").read_text())
    names = [person["name"] for person in summary["participants"]]
    rounds = _lines(folder / "rounds.jsonl")
    clusters: dict[int, dict[str, int | None]] = {one["round"]: {} for one in rounds}
    for line in _lines(folder / "assignments.jsonl"):
        clusters[line["round"]][line["participant"]] = line["cluster"]
    found: dict[str, Any] = {
        "trained": ["".join(str(int(name in one["trained"])) for name in names) for one in rounds],
        "assignments": [[one.get(name) for name in names] for one in clusters.values()],
        "models": fingerprint_models(folder / "clusters"),
        "best": {slot: one["sha256"] for slot, one in fingerprint_models(folder / "best" / "clusters").items()},
        "accuracy": [one.get("served_accuracy") for one in rounds],
        "loss": [one.get("served_loss") for one in rounds],
        "bytes": [[one["bytes_down"], one["bytes_up"]] for one in rounds],
    }
    for key in ("trained_accuracy", "trained_loss"):
        if any(key in one for one in rounds):
            found[key] = [one.get(key) for one in rounds]
    gram = fingerprint_models(folder / "features")
    if gram:
        found["features"] = gram
    if (folder / "cross_site.csv").is_file():
        found["cross_site"] = hashlib.sha256((folder / "cross_site.csv").read_bytes()).hexdigest()
    if (folder / "newcomers.json").is_file():
        joined = json.loads((folder / "newcomers.json").read_text())["participants"]
        found["newcomers"] = {
            one["name"]: [one["cluster"], one["rounds"], one["served_accuracy"], one["served_loss"]] for one in joined
        }
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fingerprint_models(folder: Path) -> dict[str, dict[str, Any]]:
    """The models in a folder, by slot: the hash of all their arrays, and their mean and norm."""
    return {path.stem: fingerprint(_arrays(path)) for path in sorted(folder.glob("*.safetensors"))}


def fingerprint(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The hash of all arrays with their names, and what can be compared between processors: rounded mean and norm."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}{array.shape}{array.dtype}".encode() + np.ascontiguousarray(array).tobytes())
    values = np.concatenate([np.ravel(a).astype(np.float64) for _, a in sorted(arrays.items())] or [np.zeros(0)])
    mean, norm = (values.mean() if values.size else 0.0), np.linalg.norm(values)
    return {"sha256": digest.hexdigest(), "mean": float(f"{mean:.6g}"), "norm": float(f"{norm:.6g}")}


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with safe_open(str(path), framework="numpy") as f:
        return {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - not a mapping


def _memory(site: Path) -> str:
    """The hash of all that a site remembers and predicts with in the end, whatever it is called."""
    newest = sorted(site.glob("round-*.safetensors"))[-1:]
    arrays = [a for path in (*newest, *sorted(site.glob("served/*.safetensors"))) for a in _arrays(path).values()]
    parts = sorted(hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() for a in arrays)
    return hashlib.sha256("".join(parts).encode()).hexdigest()
