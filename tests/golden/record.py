# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The golden record: ``write`` runs the cases of `tests.golden.cases` and keeps what they gave, ``check`` compares.

    python tests/golden/record.py check --part loop
    python tests/golden/record.py write --only 'loop/wecfl*' --again

Both take ``-j 2`` for two processes. ``write`` skips what the record has already, ``check --resume`` what was equal
before under the same code, so that both can be interrupted.

On the processor and the versions on which the record was written, everything must be equal to the last bit. Elsewhere
sums are added up in another order, so that models differ in their last digits and training makes more of it: there,
assignments must be equal, and means, norms and losses within a thousandth.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import lzma
import math
import multiprocessing
import platform as machine
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:  # as a script
    sys.path.insert(0, str(ROOT))

from tests.golden.cases import CASES, Case  # noqa: E402
from tests.golden.runner import run_case  # noqa: E402

RECORD = Path(__file__).with_name("record.json.xz")
PASSED = Path(__file__).with_name("passed.json")
RELATIVE = 1e-3
# One sample of a few hundred may fall on the other side.
ACCURACY = 0.01


def this_platform() -> dict[str, str]:
    """What the last bits of a result depend on."""
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else [machine.processor()]
    told = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return {
        "machine": machine.machine(),
        "cpu": hashlib.sha256("\n".join(told).encode()).hexdigest()[:16],
        "capability": torch.backends.cpu.get_cpu_capability(),
        **{name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")},
    }


def platform_id(platform: Mapping[str, str]) -> str:
    """A short name for it."""
    return hashlib.sha256(json.dumps(platform, sort_keys=True).encode()).hexdigest()[:8]


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """The kept record: ``{"platforms": {id: ...}, "cases": {name: ...}}``."""
    return json.loads(lzma.decompress(path.read_bytes())) if path.is_file() else {"platforms": {}, "cases": {}}


def write_record(record: Mapping[str, Any], path: Path = RECORD) -> None:
    """Writes it compressed, with a line a case, in the order of `CASES`; ``xzcat`` shows it."""
    cases = record["cases"]
    ordered = [name for name in CASES if name in cases]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(cases[name])}" for name in ordered)
    temporary = path.with_suffix(".tmp")
    text = f'{{"platforms": {json.dumps(record["platforms"])},\n"cases": {{\n{lines}\n}}}}\n'
    temporary.write_bytes(lzma.compress(text.encode()))
    temporary.replace(path)


def differences(kept: Mapping[str, Any], found: Mapping[str, Any], same_platform: bool) -> list[str]:
    """In what a case is not as it was kept; empty where it is."""
    told = []
    for key in kept.keys() | found.keys():
        if key == "platform":
            continue
        one, other = kept.get(key), found.get(key)
        equal = one == other if same_platform else _near(key, one, other)
        if not equal:
            told.append(f"{key}: {_short(one, other)}")
    return sorted(told)


def _near(key: str, one: Any, other: Any) -> bool:
    """Whether two entries agree as far as two processors can."""
    if type(one) is not type(other):
        return False
    if key in ("memory", "best", "cross_site"):  # nothing but hashes
        return sorted(one) == sorted(other) if isinstance(one, Mapping) else True
    if key in ("models", "features"):
        return one.keys() == other.keys() and all(_near_models(one[slot], other[slot]) for slot in one)
    if key == "newcomers":
        return one.keys() == other.keys() and all(
            one[n][:2] == other[n][:2]
            and _near("accuracy", one[n][2], other[n][2])
            and _near("", one[n][3], other[n][3])
            for n in one
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_near(key, a, b) for a, b in zip(one, other))
    if isinstance(one, float) and isinstance(other, float):
        if key.endswith("accuracy"):
            return abs(one - other) <= ACCURACY
        return math.isclose(one, other, rel_tol=RELATIVE)
    return bool(one == other)


def _near_models(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """A mean of weights is nearly zero, so that it is measured by the norm."""
    near_norms = math.isclose(one["norm"], other["norm"], rel_tol=RELATIVE)
    return near_norms and abs(one["mean"] - other["mean"]) <= RELATIVE * max(abs(one["mean"]), one["norm"] / 10)


def _short(one: Any, other: Any) -> str:
    """The two values, or where in a long one they begin to differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = [k for k in {**one, **other} if one.get(k) != other.get(k)]
        return "; ".join(f"{k}: {_short(one.get(k), other.get(k))}" for k in keys)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        i = next(i for i, (a, b) in enumerate(zip(one, other)) if a != b)
        return f"[{i}] {_short(one[i], other[i])}"
    one, other = (value[:12] if isinstance(value, str) else value for value in (one, other))  # hashes, mostly
    return f"kept {one!r}, found {other!r}"


def run_one(name: str) -> tuple[str, dict[str, Any], float]:
    """Runs a case in a temporary folder; an error is what was found."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        try:
            found = run_case(CASES[name], Path(folder))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
    return name, found, time.monotonic() - started


def run_all(cases: Sequence[Case], jobs: int) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Runs cases, as they are done."""
    names = [case.name for case in cases]
    if jobs == 1:
        yield from map(run_one, names)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_one, names)


def chosen(only: str | None, part: str | None) -> list[Case]:
    """The cases of a part whose name fits a pattern."""
    return [
        case
        for case in CASES.values()
        if part in (None, case.part) and (only is None or fnmatch.fnmatchcase(case.name, only) or only in case.name)
    ]


def write_cases(cases: Sequence[Case], jobs: int, again: bool) -> int:
    """Runs cases and keeps what they gave; returns how many failed."""
    record, platform = read_record(), this_platform()
    identity = platform_id(platform)

    def kept(case: Case) -> bool:
        one = record["cases"].get(case.name, {})
        return (one.get("platform"), one.get("command")) == (identity, case.command)

    due = [case for case in cases if again or not kept(case)]
    failed = 0
    for name, found, seconds in run_all(due, jobs):
        if "error" in found:
            failed += 1
            print(f"{name}: {found['error']}", flush=True)
            continue
        record["cases"][name] = {"platform": identity, **found}
        used = {one["platform"] for one in record["cases"].values()} - {identity}
        record["platforms"] = {**{k: record["platforms"][k] for k in sorted(used)}, identity: platform}
        write_record(record)
        print(f"{name}: written ({seconds:.1f} s)", flush=True)
    print(f"{len(due) - failed} written, {len(cases) - len(due)} kept, {failed} failed")
    return failed


def check_cases(cases: Sequence[Case], jobs: int, resume: bool) -> int:
    """Runs cases and compares them with the record; returns how many differ."""
    record, started = read_record(), time.monotonic()
    identity, code = platform_id(this_platform()), code_hash()
    passed = json.loads(PASSED.read_text()) if resume and PASSED.is_file() else {}
    passed = passed if passed.get("code") == code else {"code": code, "cases": []}
    due = [case for case in cases if case.name not in passed["cases"]]
    failed = 0
    for name, found, _ in run_all(due, jobs):
        kept = record["cases"].get(name)
        told = ["is not in the record"] if kept is None else []
        if kept is not None:
            told = [found["error"]] if "error" in found else differences(kept, found, kept["platform"] == identity)
        failed += bool(told)
        for line in told:
            print(f"{name}: {line}", flush=True)
        if not told and resume:
            passed["cases"].append(name)
            PASSED.write_text(json.dumps(passed))
    exact = sum(one["platform"] == identity for name, one in record["cases"].items() if CASES.get(name) in cases)
    print(
        f"{len(due) - failed} equal, {failed} differ, {len(cases) - len(due)} were equal before; {exact} of them are "
        f"compared bit by bit; {time.monotonic() - started:.0f} s"
    )
    return failed


def code_hash() -> str:
    """Of the package's sources."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "cfl_flare").rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("write", "check"):
        one = commands.add_parser(command)
        one.add_argument("--only", metavar="PATTERN", help="cases whose name holds or fits this")
        one.add_argument("--part", choices=("loop", "flare"))
        one.add_argument("-j", type=int, default=1, metavar="N", help="processes (%(default)s)")
        if command == "write":
            one.add_argument("--again", action="store_true", help="also what the record has")
        else:
            one.add_argument("--resume", action="store_true", help="without what was equal before, under the same code")
    given = parser.parse_args(argv)
    cases = chosen(given.only, given.part)
    if not cases:
        parser.error(f"no case fits --only {given.only!r}")
    failed = (
        write_cases(cases, given.j, given.again)
        if given.command == "write"
        else check_cases(cases, given.j, given.resume)
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
