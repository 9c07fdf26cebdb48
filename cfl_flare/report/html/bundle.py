# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What vl-convert makes: pictures of plots, and the script with Vega, Vega-Lite and Vega-Embed that draws on a page."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import NoPlotsError
from cfl_flare.report.html.text import as_json

# In a process of its own: vl-convert holds an engine for JavaScript, which takes 120 MB and could end the run.
MAKE = """
import base64, io, json, resource, sys, vl_convert

# The engine reserves more address space than it uses, so that a soft limit on it is lifted as far as one may.
most = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (most, most))

def picture(ending, spec):
    if ending == "png":
        from PIL import Image  # with a palette, the file is a fifth as large

        image = Image.open(io.BytesIO(vl_convert.vegalite_to_png(spec, scale=2, allowed_base_urls=[])))
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(written := io.BytesIO(), "png")
        return written.getvalue()
    content = getattr(vl_convert, "vegalite_to_" + ending)(spec, allowed_base_urls=[])
    return content.encode() if isinstance(content, str) else content

wanted = json.load(sys.stdin)
if wanted is None:
    made = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
else:
    made = [base64.b64encode(picture(*parts)).decode() for parts in wanted]
json.dump(made, sys.stdout)
"""
SECONDS = 120


@cache
def script() -> str:
    """The script, which defines ``vegaEmbed``; it takes a few seconds, once a process.

    Raises:
        NoPlotsError: vl-convert is not installed, or does not run here.
    """
    made: str = _made(None)
    return made


def pictures(specs: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes]:
    """The contents of picture files.

    Args:
        specs: the ending of each, ``png``, ``svg`` or ``pdf``, and its specification in Vega-Lite.

    Raises:
        NoPlotsError: vl-convert is not installed, or does not run here.
    """
    return [b64decode(content) for content in _made(specs)] if specs else []


def _made(wanted: Sequence[tuple[str, dict[str, Any]]] | None) -> Any:
    command = [sys.executable, "-c", MAKE]
    try:
        done = subprocess.run(command, input=as_json(wanted).encode(), capture_output=True, timeout=SECONDS, check=True)
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
        raise NoPlotsError(
            f"the report's plots cannot be made: {said[-1] if said else one_line(error)}; pip install vl-convert-python"
        ) from error


def notice() -> str:
    """Whose the script is, and under which licences."""
    text = files("cfl_flare.report.html").joinpath("notice.txt").read_text(encoding="utf-8")
    return f"{text.strip()}\n\nFrom vl-convert-python {version('vl-convert-python')}."
