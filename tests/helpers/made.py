# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run's folder without a run: as large as is asked for, and with whatever names."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cfl_flare.core.arrays import save_arrays

# What a site might call itself, or answer.
HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "{{7*7}}{% raw %}",
    "\"]});document.title='owned'//",
    "a\u2028b\u2029c",
    "<!--<script>",
    "\x1b[31mred\x1b[0m\u202e",
    "__proto__",
    "constructor",
    "datum['x'] + event.view.alert(1)",
    "=cmd|' /C calc'!A0",
    "&lt;b&gt;",
)


def make_round_record(number: int, names: Sequence[str], k: int, measure: str = "accuracy") -> dict[str, object]:
    """A round's record: the mean is 0.5 + r / 1000, the worst participant 0.1 below it."""
    value = 0.5 + number / 1000
    sizes = [len(names[c::k]) for c in range(k)]
    return {
        "round": number,
        "trained": list(names),
        "failed": {names[0]: "training failed there"} if number == 0 else {},
        f"served_{measure}": value,
        f"served_worst_{measure}": value - 0.1,
        "cluster_sizes": sizes,
        "clusters_in_use": k,
        "clusters": {f"cluster-{c}": {f"served_{measure}": value + c / 100} for c in range(k)},
        "bytes_down": 1000,
        "bytes_up": 2000,
        "seconds": 1.5,
    }


def write_run(
    folder: Path, names: Sequence[str], rounds: int = 3, k: int = 2, measure: str = "accuracy", **more
) -> Path:
    """Writes the files of a run in which participant i is in cluster i % k, and the last one moves in each round."""
    folder.mkdir(parents=True)
    clusters = {name: i % k for i, name in enumerate(names)}
    people = [
        {"name": name, "site": f"at {name}", "samples": 10 + i, "group": None, "cluster": clusters[name],
         f"served_{measure}": 0.5 + i / (2 * len(names)),
         "intervals": {f"served_{measure}": [0.4, 0.5 + i / (2 * len(names)) + 0.1]}}
        for i, name in enumerate(names)
    ]  # fmt: skip
    records = [make_round_record(r, names, k, measure) for r in range(rounds)]
    summary = {
        "method": {"method": "wecfl", "k": k},
        "label": "wecfl",
        "clusters": k,
        "rounds": rounds,
        "final": {f"served_{measure}": 0.75, f"served_worst_{measure}": 0.5},
        "final_round": rounds - 1,
        "bytes_down": 1000 * rounds,
        "bytes_up": 2000 * rounds,
        "seconds": 1.5 * rounds,
        "metric": {"name": measure, "mode": "max"},
        "rejected": {},
        "participants": people,
        **more,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    moving = [
        {"round": r, "participant": n, "cluster": r % k if n == names[-1] else clusters[n]}
        for r in range(rounds)
        for n in names
    ]
    (folder / "assignments.jsonl").write_text("".join(json.dumps(own) + "\n" for own in moving))
    return folder


def change(folder: Path, file: str = "summary.json", **values) -> None:
    """Changes values of a JSON file of a run or study."""
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def write_features(folder: Path, names: Sequence[str], k: int = 2) -> None:
    """Adds a Gram matrix: each cluster has a direction of its own, and each participant a bit of another."""
    rng = np.random.default_rng(0)
    vectors = np.array([np.eye(k + 3)[i % k] + 0.05 * rng.normal(size=k + 3) for i in range(len(names))])
    whole = np.vstack([vectors, np.eye(k + 3)[:k]])
    (folder / "features").mkdir()
    meta = {"round": 2, "participants": list(names), "clusters": [i % k for i in range(len(names))]}
    save_arrays(folder / "features" / "round-0002.safetensors", {"gram": whole @ whole.T}, meta)


def write_study(
    folder: Path, hospitals: Sequence[str], titles: Sequence[str] = ("one for all", "groups"), **more
) -> Path:
    """Writes study.json alone: two rungs, the first of which drops all but the first two candidates, chosen c1.

    The i-th hospital gains 0.1 - 0.02 i over one model, within 0.05; it has lost, or is the last and has no number.
    """
    folder.mkdir(parents=True)
    names = [f"c{i}" for i in range(len(titles))]
    left = names[:2]

    def gain(i: int) -> dict[str, object]:
        value = 0.1 - 0.02 * i
        if i == len(hospitals) - 1:
            return {"gain": None, "low": None, "high": None, "says": "cannot tell", "needed": 90}
        says = "gains" if value > 0.05 else "loses" if value < -0.05 else "within chance"
        return {"gain": value, "low": value - 0.05, "high": value + 0.05, "says": says, "needed": None}

    people = [
        {"name": name, "tested": 40 + i, "value": 0.9, "to_one": gain(i), "to_alone": None}
        for i, name in enumerate(hospitals)
    ]
    content = {
        "version": 1,
        "settings": {"training": {"lr": 0.1}, "candidates": [{"name": "c0", "method": {"method": "fedavg"}}]},
        "rounds": 8,
        "titles": dict(zip(names, titles)),
        "found": 3,
        "words": "3 clusters found (clear)",
        "set": [3, 3],
        "assignment": {},
        "searched": 2,
        "search_seconds": 1.5,
        "judged": {},
        "rungs": [
            {"rounds": 4, "means": {n: 0.5 + 0.1 * i for i, n in enumerate(names)}, "seconds": 4.0,
             "dropped": {n: f"c1 is better by {n}" for n in names[2:]}},
            {"rounds": 8, "means": dict(zip(left, (0.6, 0.7))), "dropped": {}, "seconds": 4.0},
        ],
        "cost": {"rounds": 18 + 4 * len(names[2:]), "everything": 2 + 8 * len(names), "seconds": 9.5},
        "verdict": {
            "metric": "accuracy", "cluster": True, "rounds": 8,
            "hospitals": people, "tested": dict(zip(left, (0.58, 0.69))),
            "chosen": {"name": "c1", "title": titles[1], "clusters": 3, "private": False},
            "sentences": ["Cluster into 3: train groups.", "Against one model for all: it is better."],
        },
        **more,
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(content))
    return folder
