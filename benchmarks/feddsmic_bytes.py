# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What FedDSMIC's Fig. 5 shows: the traffic of a run in which each participant is a site of its own.

Reports of measured cells count a model once a round for all participants, as they are of one process. Here it is
counted as the methods send it: what a participant is sent and sends back in a round, times participants and rounds.
Participants that have a cluster already are sent as much as those in round 0, for all of these methods.

    python benchmarks/feddsmic_bytes.py --out benchmarks/results/feddsmic/bytes.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plans import PLANS
from plans.plan import model
from provenance import provenance
from torch import nn

from cfl_flare.cli.specs import build_named
from cfl_flare.core.config import build
from cfl_flare.training.resident import untrained

ROWS = ("fedavg", "ifca", "fesem", "fedds", "feddsmic")
PARTICIPANTS, ROUNDS = 100, 300
# The paper's networks with the shapes and classes of its sets (its Table 1).
NETWORKS = {
    "logistic (MNIST)": model("logistic", (1, 28, 28), 10),
    "leaf-cnn (FEMNIST)": model("leaf-cnn", (1, 28, 28), 62),
    "mobilenet-v2 (CIFAR-10)": model("mobilenet-v2", (3, 32, 32), 10),
}


def traffic(method_spec: str, network: dict[str, Any]) -> tuple[int, int]:
    """Bytes to and from a participant in a round."""
    method = build_named(method_spec)
    state = method.start(partial(untrained, partial(build, network, nn.Module, "model"), 0), ["a"])
    sent = method.distribute(state, "a")
    slots = (*sent.slots, *sent.to_train)
    back = sent.expected(0 if sent.must_name else None)
    down, up = (sum(state.layout(slot).nbytes for slot in which) for which in (slots, back))
    return down, up


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table, in gigabytes of all rounds."""
    lines = [f"Gigabytes of {ROUNDS} rounds with {PARTICIPANTS} participants, each a site of its own.", ""]
    lines += ["| network | row | down | up | both, in FedAvg's |", "|---|---|---|---|---|"]
    scale = PARTICIPANTS * ROUNDS / 1e9
    first = {r["network"]: r["bytes_down"] + r["bytes_up"] for r in rows if r["row"] == "fedavg"}
    for r in rows:
        both = (r["bytes_down"] + r["bytes_up"]) / first[r["network"]]
        figures = f"{scale * r['bytes_down']:.2f} | {scale * r['bytes_up']:.2f} | {both:.2f}"
        lines.append(f"| {r['network']} | {r['row']} | {figures} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, required=True, help="a JSON file")
    given = options.parse_args()
    rows: list[dict[str, Any]] = []
    for name, network in NETWORKS.items():
        for row in ROWS:
            down, up = traffic(PLANS["feddsmic"].method(row)[0], network)
            rows.append({"network": name, "row": row, "bytes_down": down, "bytes_up": up})
    given.out.parent.mkdir(parents=True, exist_ok=True)
    content = provenance() | {"participants": PARTICIPANTS, "rounds": ROUNDS, "rows": rows}
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
