# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What happens first in the processes of a deployment: Python imports this file if its folder is on the path.

A daemon of FLARE starts each job's process. It has that forked by the server of `tests.helpers.warm`, if there is one.

The file that ``CFL_FAULTS`` names makes a site's job process answer wrongly: ``{"3": "TASK_UNKNOWN"}`` by round, or
``{"version": "0.0.1"}``, or each round late: ``{"delay": 1}``, seconds. It is read when the process starts.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

WORKER = "nvflare.private.fed.app.client.worker_process"
DAEMONS = ("nvflare.private.fed.app.client.client_train", "nvflare.private.fed.app.server.server_train")


def not_here(*values: object, **named: object) -> int:
    """In place of ``os.posix_spawn``: FLARE falls back on `subprocess.Popen`."""
    raise TypeError("processes are forked")


def install(faults: dict[str, str]) -> None:
    """Changes what the executor answers, and which version it says it is."""
    from nvflare.apis.shareable import make_reply
    from nvflare.fuel.utils import fobs

    from cfl_flare.flare import policy
    from cfl_flare.flare.executor import ClusteredExecutor

    class Odd:
        """A type that only this process knows."""

    class OddDecomposer(fobs.Decomposer):
        def supported_type(self):
            return Odd

        def decompose(self, target, manager=None):
            return "odd"

        def recompose(self, data, manager=None):
            return Odd()

    fobs.register(OddDecomposer)
    policy.SOFTWARE["cfl_flare"] = faults.get("version", policy.SOFTWARE["cfl_flare"])
    execute = ClusteredExecutor.execute

    def wrong(self, task_name, shareable, fl_ctx, abort_signal):
        time.sleep(float(faults.get("delay", 0)))
        reply = execute(self, task_name, shareable, fl_ctx, abort_signal)
        fault = faults.get(str(shareable.get_header("current_round"))) if task_name == "train" else None
        if fault == "undecodable":
            reply["more"] = Odd()
        elif fault:
            reply = make_reply(fault)
        return reply

    ClusteredExecutor.execute = wrong


said = Path(os.environ.get("CFL_FAULTS", ""))
if WORKER in sys.orig_argv and said.is_file():
    install(json.loads(said.read_text()))

if os.environ.get("CFL_WARM") and any(daemon in sys.orig_argv for daemon in DAEMONS):
    from tests.helpers import warm

    subprocess.Popen = warm.Popen  # type: ignore[misc]
    os.posix_spawn = not_here  # type: ignore[assignment]
