# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The gate before a run's model leaves for others than its members, by what membership attacks reached there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cfl_flare.core.config import require
from cfl_flare.core.errors import GateError
from cfl_flare.core.text import shown
from cfl_flare.results.run_dir import BEST, MODELS, SUMMARY, load_run

# The false positive rate at which attacks are judged.
FPR = 0.01


def tpr_bound(epsilon: float, delta: float) -> float:
    """The largest true positive rate at 1 % false positives of any attack on a model that is differentially private.

    >>> round(tpr_bound(1.0, 1e-5), 4), tpr_bound(8.0, 1e-5)
    (0.0272, 1.0)
    """
    return 1.0 if epsilon > -math.log(FPR) else min(1.0, math.exp(epsilon) * FPR + delta)


def _private(summary: Mapping[str, Any]) -> Any:
    """A run's settings of differential privacy, of a file that anybody may have written."""
    training = summary.get("training")
    return training.get("dp") if isinstance(training, Mapping) else None


def why_not(summary: Mapping[str, Any], model: str) -> str | None:
    """Why a run's final model may go to nobody but its members; None if it may.

    The upper end of an attack's interval counts, so that a model of few samples has to be measured on more. What
    is not known to be below the bound is above it.
    """
    measured = summary.get("membership")
    if measured is None:  # nobody set a bound
        return None
    bound, of_model = measured["bound"], measured["models"].get(model)
    private = _private(summary)
    if model in measured["objections"]:
        return "one of its members objects, as its own bound is exceeded"
    if bound is None:
        return None
    if isinstance(private, Mapping):
        limit = tpr_bound(*(float(private.get(name) or math.inf) for name in ("epsilon", "delta")))
        said = f"epsilon = {private.get('epsilon')} allows attacks a true positive rate of {limit:.3g}"
        return f"{said}, and the bound is {bound:g}" if limit > bound else None
    if of_model is None or not of_model["attacks"]:
        return f"no attack was measured on it, and the server's bound is {bound:g}; set membership to 16 in the job"
    if model in measured["single"]:
        return f"of a single member, attacks tell more than the server's bound of {bound:g}"
    name, worst = max(of_model["attacks"].items(), key=lambda item: item[1]["interval"][1])
    rate, (low, high) = worst["tpr"], worst["interval"]
    reached = f"the attack {name} tells {rate:.1%} of its training samples at 1 % false positives"
    return f"{reached} (95 % interval {low:.1%} to {high:.1%}), above the bound of {bound:g}" if high > bound else None


def check_gate(run: Path, summary: Mapping[str, Any], models: Iterable[str]) -> None:
    """Raises a GateError for the first of a run's models that may go to nobody but its members."""
    for model in models:
        why = why_not(summary, model)
        way_out = "train longer on more samples or with dp, or let all members agree to another max_tpr_at_1pct_fpr"
        require(why is None, f"{run}: {shown(model)} stays with its members: {why}; {way_out}", GateError)


def check_file(path: Path) -> None:
    """The same for the file of a run's model; of the best round's, the final model's attacks say nothing."""
    if path.parent.name != MODELS:
        return
    folder, best = path.parents[1], path.parents[1].name == BEST
    run = path.parents[2] if best and not (folder / SUMMARY).is_file() else folder
    if (run / SUMMARY).is_file():
        summary = load_run(run).summary
        measured = summary.get("membership")
        if best and run != folder and measured is not None:
            summary = {**summary, "membership": {**measured, "models": {}}}
        check_gate(folder, summary, [path.stem])


def gate_lines(summary: Mapping[str, Any]) -> list[str]:
    """The bound that a run promises, what attacks reached, a line for each model; and whether it may leave."""
    measured, private = summary.get("membership") or {"models": {}}, _private(summary)
    lines = []
    if isinstance(private, Mapping):
        epsilon, delta = (shown(private.get(name)) for name in ("epsilon", "delta"))
        unit = "each patient, or of each sample where a site names no patients"  # which only the site knows
        lines.append(f"differential privacy of {unit}: epsilon at most {epsilon}, with delta = {delta}")
    for model, of_model in measured["models"].items():
        rates = (
            f"{name} {of['tpr']:.1%} ({of['interval'][0]:.1%} to {of['interval'][1]:.1%})"
            for name, of in of_model["attacks"].items()
        )
        lines.append(f"{model}: training samples told by attacks at 1 % false positives: {', '.join(rates)}")
    if measured.get("bound") is not None and not measured["models"] and private is None:
        lines.append("no attack was measured on any model, so none leaves for others than its members")
    return lines + [
        f"{model} stays with its members: {why}"
        for model in dict.fromkeys((*measured["models"], *measured.get("objections", [])))
        if (why := why_not(summary, model)) is not None
    ]
