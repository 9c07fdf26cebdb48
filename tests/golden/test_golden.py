# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""No number moves: each run of the golden record gives what it gave when the record was written.

On the platform of the record (processor, torch, numpy) every model is compared bit by bit, by its hash. Elsewhere that
would fail for no fault: another processor adds up in another order, and torch picks other kernels for it. There,
assignments must be equal, and means, norms and losses within a thousandth: a few rounds of training do not carry
differences in the last digit of a float32 further than that, and a changed step of a method does.

These tests take a part of the cases; ``python tests/golden/record.py check`` takes all of them.
"""

from __future__ import annotations

import json
import lzma

import numpy as np
import pytest

from tests.golden.cases import CASES, METHODS
from tests.golden.record import RECORD as RECORD_FILE
from tests.golden.record import differences, platform_id, read_record, run_one, this_platform
from tests.golden.runner import fingerprint

RECORD = read_record()
FAST = {
    *(f"loop/{name}/full" for name in ("fedavg", "local", "fedbabu", "per-fedavg", "ifca", "fesem", "cgpfl", "cfl")),
    *(f"loop/{name}/sample" for name in ("ifca-shared", "wecfl-con-cks", "fedac", "fedds", "fl-hc", "ifca-cam")),
    *(f"loop/{name}/resumed" for name in ("ditto", "wecfl", "fedcuau", "fesem-cam", "ifca-con-rep", "fedgroup")),
    *(f"loop/{name}/unseen" for name in ("fedper", "feddsmic", "wecfl-cks-pairwise", "fedavg+ifca", "together")),
    *("loop/patience/schedule", "loop/batch-norm-wecfl/option"),
}


# Every method once in the loop; through FLARE what several sites alone show, where the rest is what the loop gives.
SLOW = {name for name in CASES if name.startswith("loop/") and name.endswith(("/full", "/schedule"))} - FAST
SLOW |= {
    f"flare/{name}/option" for name in ("site-sums-fedavg+ifca", "merged-wecfl", "merged-ifca-cam", "merged-fedds")
}
SLOW |= {"flare/together/resumed", "flare/fedcuau/resumed", "flare/ifca-cam/unseen"}


@pytest.mark.parametrize("name", [*sorted(FAST), *(pytest.param(n, marks=[pytest.mark.slow]) for n in sorted(SLOW))])
def test_a_run_gives_what_it_gave(name: str) -> None:
    kept = RECORD["cases"][name]
    _, found, _ = run_one(name)
    assert "error" not in found, found["error"]
    assert differences(kept, found, kept["platform"] == platform_id(this_platform())) == []


@pytest.mark.parametrize("part", ["loop", "flare"])
def test_a_kept_run_that_was_resumed_ends_as_the_one_that_was_not(part: str) -> None:
    resumed = [name for name, case in CASES.items() if case.part == part and name.endswith("/resumed")]
    assert resumed
    for name in resumed:
        whole, other = (RECORD["cases"][n] for n in (name.replace("/resumed", "/full"), name))
        assert (whole["models"], whole.get("memory")) == (other["models"], other.get("memory")), name
        assert len(other["loss"]) == (5 if part == "loop" else 3)  # a resumed job has its own rounds in its folder
        for key in ("assignments", "loss", "accuracy"):
            assert whole[key][-len(other[key]) :] == other[key], f"{name}: {key}"


def test_kept_runs_through_flare_are_those_of_the_loop() -> None:
    """All but those that need several sites, to the last bit."""
    both = [name for name in RECORD["cases"] if name.startswith("flare/") and name.replace("flare", "loop", 1) in CASES]
    both = [name for name in both if not name.endswith("/resumed")]
    assert len(both) > 40
    for name in both:
        flare, loop = RECORD["cases"][name], RECORD["cases"][name.replace("flare", "loop", 1)]
        for key in ("models", "assignments", "trained", "accuracy", "loss"):
            assert flare[key] == loop[key], f"{name}: {key}"


def test_every_method_is_recorded() -> None:
    from cfl_flare.methods import COMBINATIONS, PENALTIES
    from cfl_flare.methods import METHODS as KNOWN

    given = [pair for words in METHODS.values() for pair in zip(words[::2], words[1::2])]
    for option, known in (
        ("--method", {*KNOWN, *COMBINATIONS} - {"hypcluster", "auto-k"}),  # which goes on as one of these
        ("--penalty", set(PENALTIES)),
    ):
        assert {text.partition(":")[0] for name, text in given if name == option} == known


def test_the_record_is_of_these_cases() -> None:
    commands = {name: case.command for name, case in CASES.items()}
    assert [(name, one["command"]) for name, one in RECORD["cases"].items()] == list(commands.items())


def test_a_change_is_found() -> None:
    """On the record's platform the smallest one; elsewhere one of a thousandth."""
    arrays = {"w": np.linspace(0, 1, 9, dtype=np.float32)}
    moved, far = {"w": np.nextafter(arrays["w"], 2)}, {"w": arrays["w"] * np.float32(1.002)}
    kept, near, changed = ({"models": {"global": fingerprint(a)}, "loss": [1.0]} for a in (arrays, moved, far))
    assert differences(kept, kept, True) == []
    assert [line.partition(":")[0] for line in differences(kept, near, True)] == ["models"]
    assert differences(kept, near, False) == []
    assert [line.partition(":")[0] for line in differences(kept, changed, False)] == ["models"]
    assert differences({"assignments": [[0, 1]]}, {"assignments": [[1, 0]]}, False)
    assert differences({"loss": [None, 1.0]}, {"loss": [None, 1.01]}, False)
    assert differences({"newcomers": {"p": [0, 1, 0.5, 1.0]}}, {"newcomers": {"p": [1, 1, 0.5, 1.0]}}, False)
    assert differences(kept, {}, False) and differences({}, kept, True)


def test_the_record_is_one_line_a_case() -> None:
    text = lzma.decompress(RECORD_FILE.read_bytes()).decode()
    assert len(json.loads(text)["cases"]) == text.count("\n") - 3
