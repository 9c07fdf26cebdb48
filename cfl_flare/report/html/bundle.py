# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The library that draws: Vega, Vega-Lite and Vega-Embed in one script, as vl-convert holds them."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.metadata import version
from importlib.resources import files

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import ConfigError

# In a process of its own: what makes the script is an engine for JavaScript, which takes 120 MB and could end the run.
MAKE = """
import sys, vl_convert
script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
sys.stdout.buffer.write(script.encode())
"""
SECONDS = 120


@cache
def script() -> str:
    """The script, which defines ``vegaEmbed``; it takes a few seconds, once a process.

    Raises:
        ConfigError: vl-convert is not installed, or does not run here.
    """
    try:
        done = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
        raise ConfigError(
            f"the report's plots cannot be made: {said[-1] if said else one_line(error)}; pip install vl-convert-python"
        ) from error
    return done.stdout.decode()


def notice() -> str:
    """Whose the script is, and under which licences."""
    text = files("cfl_flare.report.html").joinpath("notice.txt").read_text(encoding="utf-8")
    return f"{text.strip()}\n\nFrom vl-convert-python {version('vl-convert-python')}."
