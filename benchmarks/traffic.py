# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The bytes that methods send.

``round``: what each method sends in a round, compared with the naive count, in which every participant sends and gets
whole models by itself. 24 participants share handwritten digits on two sites, and the server counts as it does under
FLARE: a model goes down once to a site, a part of a model as a part; with sums on the site one mean a cluster comes up.
Bytes are the mean of the last three of ten rounds, in which the last models are measured as well.

``run``: what FedDSMIC's Fig. 5 shows, the traffic of a run in which each participant is a site of its own. Reports of
measured cells count a model once a round for all participants, as they are of one process. Here it is counted as the
methods send it: what a participant is sent and sends back in a round, times participants and rounds. Participants that
have a cluster already are sent as much as those in round 0, for all of these methods.

    python benchmarks/traffic.py round --out benchmarks/results/traffic.json
    python benchmarks/traffic.py run --out benchmarks/results/feddsmic/bytes.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import provenance
from plans import PLANS
from plans.plan import model
from torch import nn

from cfl_flare.cli.specs import build_named
from cfl_flare.core.config import build, describe
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.indicator import logits_for
from cfl_flare.engine.loop import model_factory
from cfl_flare.engine.partial_sums import added_up
from cfl_flare.engine.server import Equipment, Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.methods import Participant
from cfl_flare.methods.slots import with_parts
from cfl_flare.models import MLP
from cfl_flare.training.resident import untrained
from cfl_flare.training.settings import TrainSettings

PARTICIPANTS, SITES, ROUNDS, MEASURED = 24, 2, 10, 3
HEAD = "contrastive:scope=head"
ROWS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("fedavg", "fedper", "fedbabu", "ditto", "per-fedavg")},
    "fedavg+": ("fedavg+:k=3",),
    "ifca": ("ifca:k=3",),
    "ifca, shared backbone": ("ifca:k=3,shared_backbone=True",),
    "ifca-cam": ("ifca-cam:k=3,warmup=2",),
    **{name: (f"{name}:k=3",) for name in ("fesem", "wecfl")},
    "wecfl-con": ("wecfl:k=3", "contrastive"),
    "wecfl-con on the head": ("wecfl:k=3", HEAD),
    "wecfl-cks": ("wecfl:k=3", "knowledge_sharing"),
    "wecfl-con-cks": ("wecfl:k=3", HEAD, "knowledge_sharing:scope=backbone"),
    "fesem-cam": ("fesem-cam:k=3,warmup=2",),
    "cgpfl": ("cgpfl:k=3",),
    "fedac": ("fedac:k=3,tuning=False",),
    "cfl": ("cfl:eps1=0.6,eps2=1.1",),
    "fl-hc": ("fl-hc:k=3,rounds_before=2",),
    "fedgroup": ("fedgroup:k=3",),
    "fedds": ("fedds:k=3",),
    "feddsmic": ("feddsmic:k=3",),
    "fedcuau": ("fedcuau:k=3",),
}


def measured(specs: tuple[str, ...], sums: bool) -> dict[str, float] | None:
    """Bytes of a round down and up, ours and naive; None for sums where the method has none."""
    method = build_named(specs[0], specs[1:])
    if sums and not method.traits.averages_only:
        return None
    make_model = model_factory(describe(MLP((1, 8, 8), 10), "model"))
    data = DataConfig(PARTICIPANTS, {"partition": "label_permutation", "groups": 3}, indicator_samples=10)
    sites = {f"site-{i + 1}": Site(method, make_model, TrainSettings(lr=0.05), 0) for i in range(SITES)}
    people: list[Participant] = []
    for i, (name, site) in enumerate(sites.items()):
        site.add(data.host(Digits(), name, i, SITES))
        people += [Participant(d.name, name, len(d.train), d.group) for d in site.hosted.values()]
    layout, start = site.runtime.resident.layout, method.start(partial(untrained, make_model, 0))
    logits = logits_for(method, make_model, data, Digits, 0)
    server = Server(method, layout, people, ServerSettings(ROUNDS, key_metric=""), start, Equipment(logits=logits))
    counts: list[dict[str, int]] = []
    for number in range(ROUNDS):
        orders = server.tasks()
        naive = {
            "naive_down": sum(len({s.partition(":")[0] for s in o.needed}) for o in orders.values()),
            "naive_up": 0,
        }
        models = with_parts(server.bank, [slot for order in orders.values() for slot in order.needed])
        for name, site in sites.items():
            answers = [site.carry_out(p, order, models, number) for p, order in orders.items() if p in site.hosted]
            naive["naive_up"] += sum(len(a.update.diffs) for a in answers if a.update is not None)
            for answer in added_up(answers, models, method) if sums else answers:
                server.accept(answer, name)
        server.finish_round()
        record: dict[str, Any] = server.progress.record or {}
        traffic = {"down": record["bytes_down"], "up": record["bytes_up"]}
        counts.append({**traffic, **{k: models * layout.nbytes for k, models in naive.items()}})
    return {k: sum(count[k] for count in counts[-MEASURED:]) / MEASURED for k in counts[0]}


def measure_rounds(out: Path) -> None:
    """Measures every row, and prints a Markdown table."""
    torch.set_num_threads(1)
    setting = {"participants": PARTICIPANTS, "sites": SITES, "rounds": ROUNDS, "rows": ROWS}
    result: dict[str, Any] = provenance() | {"setting": setting, "methods": {}}
    print("| method | down, kB | of the naive count | up, kB | of the naive count | up with sums on the site, kB |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, specs in ROWS.items():
        plain, sums = measured(specs, sums=False), measured(specs, sums=True)
        assert plain is not None
        result["methods"][name] = {"single": plain, "sums": sums}
        down, up = plain["down"] / plain["naive_down"], plain["up"] / plain["naive_up"]
        added = "" if sums is None else f"{sums['up'] / 1e3:.0f}"
        print(f"| {name} | {plain['down'] / 1e3:.0f} | {down:.2f} | {plain['up'] / 1e3:.0f} | {up:.2f} | {added} |")
        out.write_text(json.dumps(result, indent=1) + "\n")


# ---- FedDSMIC's Fig. 5 ----


RUN_ROWS = ("fedavg", "ifca", "fesem", "fedds", "feddsmic")
RUN_PARTICIPANTS, RUN_ROUNDS = 100, 300
# The paper's networks with the shapes and classes of its sets (its Table 1).
NETWORKS = {
    "logistic (MNIST)": model("logistic", (1, 28, 28), 10),
    "leaf-cnn (FEMNIST)": model("leaf-cnn", (1, 28, 28), 62),
    "mobilenet-v2 (CIFAR-10)": model("mobilenet-v2", (3, 32, 32), 10),
}


def bytes_of(method_spec: str, network: dict[str, Any]) -> tuple[int, int]:
    """Bytes to and from a participant in a round."""
    method = build_named(method_spec)
    state = method.start(partial(untrained, partial(build, network, nn.Module, "model"), 0), ["a"])
    sent = method.distribute(state, "a")
    slots = (*sent.slots, *sent.to_train)
    back = sent.expected(0 if sent.choices else None)
    down, up = (sum(m.layout.nbytes for m in with_parts(state.bank, which).values()) for which in (slots, back))
    return down, up


def run_table(rows: Sequence[dict[str, Any]]) -> str:
    """The table, in gigabytes of all rounds."""
    lines = [f"Gigabytes of {RUN_ROUNDS} rounds with {RUN_PARTICIPANTS} participants, each a site of its own.", ""]
    lines += ["| network | row | down | up | both, in FedAvg's |", "|---|---|---|---|---|"]
    scale = RUN_PARTICIPANTS * RUN_ROUNDS / 1e9
    first = {r["network"]: r["bytes_down"] + r["bytes_up"] for r in rows if r["row"] == "fedavg"}
    for r in rows:
        both = (r["bytes_down"] + r["bytes_up"]) / first[r["network"]]
        figures = f"{scale * r['bytes_down']:.2f} | {scale * r['bytes_up']:.2f} | {both:.2f}"
        lines.append(f"| {r['network']} | {r['row']} | {figures} |")
    return "\n".join(lines) + "\n"


def measure_run(out: Path) -> None:
    """All rows with all networks."""
    rows: list[dict[str, Any]] = []
    for name, network in NETWORKS.items():
        for row in RUN_ROWS:
            down, up = bytes_of(PLANS["feddsmic"].method(row)[0], network)
            rows.append({"network": name, "row": row, "bytes_down": down, "bytes_up": up})
    content = provenance() | {"participants": RUN_PARTICIPANTS, "rounds": RUN_ROUNDS, "rows": rows}
    out.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    """The command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("what", choices=("round", "run"))
    options.add_argument("--out", type=Path, required=True, help="a JSON file")
    given = options.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    (measure_run if given.what == "run" else measure_rounds)(given.out)


if __name__ == "__main__":
    main()
