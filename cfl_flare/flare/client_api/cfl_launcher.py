# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a training script at a site, and tells the server of a script that has failed.

It travels with the job and is started in the script's place, where cfl_flare need not be installed. The script sees
what it would see without it. If it raises an error, or ends before the job does, each task from then on is answered at
once, with the error's type. The error's text and traceback stay in the site's own log.
"""

import os
import runpy
import sys
import traceback
from pathlib import Path
from urllib.parse import unquote

import nvflare.client as flare
from nvflare.client import api

FAILED = "cfl_failed"


def find(name: str) -> Path:
    """The script in the job's folder, at the path that it had beside the recipe, or anywhere if it had none."""
    here = Path(__file__).resolve().parent
    return here / name if (here / name).is_file() else min(here.rglob(name), key=lambda path: len(path.parts))


def answer(failure: str) -> None:
    """Answers the tasks that are left with the failure's name, until the job ends."""
    if api.default_context is None:
        flare.init()
    while flare.is_running():
        flare.receive()
        flare.send(flare.FLModel(metrics={}, meta={FAILED: failure}))


def main() -> None:
    """Runs the script that the first argument names, with the other arguments."""
    script = find(unquote(sys.argv[1]))
    sys.argv[:] = [str(script), *sys.argv[2:]]  # in place: FLARE puts its own list back later
    if str(script.parent) not in sys.path:
        sys.path.insert(0, str(script.parent))
    failure = SystemExit.__name__
    try:
        runpy.run_path(str(script), run_name="__main__")
    except (Exception, SystemExit) as error:
        if os.environ.get("RANK", "0") != "0":
            raise  # only the first of several processes speaks with the server; the others end with theirs
        failure = type(error).__name__
        print(traceback.format_exc())  # FLARE may send lines of level error to the server, but not what a script prints
    answer(failure)


if __name__ == "__main__":
    main()
