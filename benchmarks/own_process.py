# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Measurements in processes of their own: a peak of memory never falls, and FLARE starts once a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

MARK = "FOUND "


def tell(found: Mapping[str, Any]) -> None:
    """What such a process says of its measurement."""
    print(MARK + json.dumps(found), flush=True)


def told(output: str, errors: str = "") -> dict[str, Any]:
    """What it said; other lines may stand around it.

    Raises:
        SystemExit: it told nothing; with the end of what it said instead.
    """
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    if not lines:
        sys.exit(f"a measurement failed: {output[-2000:]}{errors[-2000:]}")
    return json.loads(lines[0].removeprefix(MARK))


def in_own_process(script: str, *arguments: object, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs a script that measures one thing; see `told`."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    return told(done.stdout, done.stderr)
