# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""An executor for a real FLARE client that trains honestly and, at one site, sends something else."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cfl_flare.flare import wire
from cfl_flare.flare.executor import ClusteredExecutor

WHERE, MODE = "site-2", "CFL_TEST_HOSTILE"


def _each(change: Callable[[dict[str, Any]], Any]) -> Callable[[DXO, dict[str, Any]], Any]:
    """A change of each participant's result."""
    return lambda dxo, content: [change(said) for said in content["results"].values()]


def _parts(change: Callable[[DXO, str], Any]) -> Callable[[DXO, dict[str, Any]], Any]:
    """A change of one array of each model that is sent."""
    return lambda dxo, content: [change(part, sorted(part.data)[0]) for part in dxo.data.values()]


# In each round another: (what changes, what the server's reason begins with).
FORGED: list[tuple[Callable[[DXO, dict[str, Any]], Any], str]] = [
    (_each(lambda said: said.update(samples=10**9)), "samples: "),
    (_each(lambda said: said["metrics"].update(round=1.0)), "metric: "),
    (_each(lambda said: said["metrics"].update(served_accuracy=1e6)), "metric: "),
    (_each(lambda said: said["metrics"].update(served_loss=float("nan"))), "metric: "),
    (_each(lambda said: said.update(error="\x1b[2Jward 3\n[red]")), "malformed: "),
    (_each(lambda said: said.update(cross=[{"deep": [[[[]]]]}])), "malformed: "),
    (lambda dxo, content: content.update(round="0"), "round: "),
    (lambda dxo, content: content.update(results={f"x{i}": {} for i in range(3_000)}), "malformed: "),
    (lambda dxo, content: dxo.data.update({"p0/global": next(iter(dxo.data.values()))}), "unknown_participant: "),
    (_parts(lambda part, name: part.data.update({name: np.array(["x"])})), "dtype: "),
    (_parts(lambda part, name: part.data.update({name: part.data[name][..., None]})), "shape: "),
    (_parts(lambda part, name: part.data.update({name: np.full_like(part.data[name], np.inf)})), "non_finite: "),
    (_parts(lambda part, name: part.data.update({"x" * 10_000: part.data.pop(name)})), "extra_parameter: "),
    (_parts(lambda part, name: setattr(part, "data_kind", DataKind.WEIGHTS)), "kind: "),
    (_parts(lambda part, name: part.meta.update({MetaKey.FILTER_HISTORY: 7}) or part.data.pop(name)), "missing_"),
]


class Hostile(ClusteredExecutor):
    """Trains as any other site; at one of them, what it sends is forged, or says that all failed."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Carries out a task, then changes its result."""
        answer = super().execute(task_name, shareable, fl_ctx, abort_signal)
        if task_name != wire.TRAIN_TASK or fl_ctx.get_identity_name() != WHERE:
            return answer
        number = wire.content_of(from_shareable(shareable).meta)["round"]
        dxo = from_shareable(answer)
        content = dxo.meta[wire.META]
        if os.environ[MODE] == "fails" or number == len(FORGED):  # the last exchange measures only
            failed = {name: {"metrics": {}, "error": "training"} for name in content["results"]}
            return wire.to_shareable({}, {"round": number, "results": failed})
        FORGED[number][0](dxo, content)
        return dxo.update_shareable(answer) if number % 2 else dxo.to_shareable()
