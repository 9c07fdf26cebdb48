# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a measured figure needs beside it: the code, the command and the machine."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any


@cache
def commit() -> str:
    """The commit that is checked out where this file lies, when it is first asked for."""
    return git("describe", "--always", "--dirty", "--abbrev=10", "--exclude=*")


def provenance() -> dict[str, Any]:
    """Command, commit and machine."""
    from torch import __version__

    return {
        # Without the folders of this machine, and quoted, so that it can be typed.
        "command": shlex.join(["python", *(Path(one).name if Path(one).is_absolute() else one for one in sys.argv)]),
        "commit": git("rev-parse", "HEAD"),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "torch": str(__version__)},
    }


def git(*arguments: str) -> str:
    """What git says of the folder of this file."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def save_rows(out: Path, made_by: Mapping[str, Any], **tables: Sequence[Mapping[str, Any]]) -> None:
    """Writes what made the tables, and the tables, each row on a line of its own; the file is whole at any time."""
    parts = [f'"{key}": {json.dumps(value)}' for key, value in made_by.items()]
    for key, rows in tables.items():
        inner = ",\n  ".join(map(json.dumps, rows))
        parts.append(f'"{key}": [\n  {inner}\n ]')
    temporary = out.with_name(out.name + ".tmp")
    temporary.write_text("{\n " + ",\n ".join(parts) + "\n}\n")
    temporary.replace(out)
