# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Makes a site's job process answer wrongly; Python imports this file before anything else if it is on its path.

The file that ``CFL_FAULTS`` names says how, when the process starts: ``{"3": "TASK_UNKNOWN"}`` by round, or
``{"version": "0.0.1"}``.
"""

import json
import os
import sys
from pathlib import Path

WORKER = "nvflare.private.fed.app.client.worker_process"


def install(faults: dict[str, str]) -> None:
    """Changes what the executor answers, and which version it says it is."""
    from nvflare.apis.shareable import make_reply
    from nvflare.fuel.utils import fobs

    from cfl_flare.flare import compatibility
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
    compatibility.SOFTWARE["cfl_flare"] = faults.get("version", compatibility.SOFTWARE["cfl_flare"])
    execute = ClusteredExecutor.execute

    def wrong(self, task_name, shareable, fl_ctx, abort_signal):
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
