# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The gate before a run's model leaves for others than its members, by what membership attacks reached there.

A model's file carries the facts by which it is judged, below the checksum of the file: the model is judged by the same
facts wherever its file is copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.config import require
from cfl_flare.core.errors import FileError, GateError, PayloadError
from cfl_flare.core.text import shown
from cfl_flare.results.ancestry import ANCESTRY, Ancestry
from cfl_flare.results.run_dir import MEMBERSHIP

# The false positive rate at which attacks are judged.
FPR = 0.01
# In the metadata of a model's file, beside its ancestry: what membership attacks reached.
ATTACKED = "membership"
WAY_OUT = "train longer on more samples or with dp, or let all members agree to another max_tpr_at_1pct_fpr"


def tpr_bound(epsilon: float, delta: float) -> float:
    """The largest true positive rate at 1 % false positives of any attack on a model that is differentially private.

    >>> round(tpr_bound(1.0, 1e-5), 4), tpr_bound(8.0, 1e-5)
    (0.0272, 1.0)
    """
    return (
        1.0 if epsilon > -math.log(FPR) else min(1.0, math.exp(epsilon) * FPR + delta)
    )


def why_not(facts: Mapping[str, Any], model: str) -> str | None:
    """Say why a run's model may go to nobody but its members.

    The upper end of an attack's interval counts, so that a model of few samples has to be measured on more. What
    is not known to be below the bound is above it.

    Args:
        facts: a run's summary, or the metadata of a model's file.
        model: the name of the model.

    Returns:
        The reason; None if the model may leave.
    """
    measured = facts.get(ATTACKED)
    if measured is None:  # nobody set a bound
        return None
    bound, of_model = measured["bound"], measured["models"].get(model)
    ancestry = Ancestry.of(facts.get(ANCESTRY))
    if model in measured["objections"]:
        return "one of its members objects, as its own bound is exceeded"
    if bound is None:
        return None
    if ancestry.privacy is not None:
        epsilon, delta = ancestry.privacy
        limit = tpr_bound(epsilon, delta)
        said = (
            f"epsilon = {epsilon:g} allows attacks a true positive rate of {limit:.3g}"
        )
        return f"{said}, and the bound is {bound:g}" if limit > bound else None
    if ancestry.objection is not None:
        return ancestry.objection
    if of_model is None or not of_model["attacks"]:
        return f"no attack was measured on it, and the server's bound is {bound:g}; set membership to 16 in the job"
    if measured["shadow_models"] < measured["fewest_shadow_models"]:
        fewest = f"the server's operator asks for {measured['fewest_shadow_models']}"
        return f"attacks were measured with {measured['shadow_models']} shadow models, and {fewest}"
    if of_model["unmeasured"]:
        members = f"{of_model['unmeasured']} of its members measured no attack, and did not accept the others'"
        return f"{members} (at a real site, measuring takes 30 test samples)"
    if model in measured["single"]:
        return f"of a single member, attacks tell more than the server's bound of {bound:g}"
    name, worst = max(
        of_model["attacks"].items(), key=lambda item: item[1]["interval"][1]
    )
    rate, (low, high) = worst["tpr"], worst["interval"]
    reached = f"the attack {name} tells {rate:.1%} of its training samples at 1 % false positives"
    return (
        f"{reached} (95 % interval {low:.1%} to {high:.1%}), above the bound of {bound:g}"
        if high > bound
        else None
    )


def read_facts(path: Path) -> dict[str, Any]:
    """Read the facts by which the model in a file is judged.

    Args:
        path: any file of a model; one that is not a safetensors file carries no facts.

    Returns:
        The slot, the ancestry and the membership facts, as far as the file has them.

    Raises:
        PayloadError: the file is damaged, or its facts are.
    """
    if path.suffix != ".safetensors":
        return {}
    _, meta = load_arrays(path)
    measured = meta.get(ATTACKED)
    try:
        Ancestry.of(meta.get(ANCESTRY), f"{path}: {ANCESTRY}")
    except FileError as error:
        raise PayloadError("damaged_file", str(error)) from error
    if measured is not None and not MEMBERSHIP(measured):
        raise PayloadError(
            "damaged_file",
            f"{path}: {ATTACKED} is not {MEMBERSHIP.__doc__}; copy it again",
        )
    return {name: meta[name] for name in ("slot", ANCESTRY, ATTACKED) if name in meta}


def check_file(path: Path) -> None:
    """Raise a GateError if the model in a file may go to nobody but its members."""
    facts = read_facts(path)
    model = str(facts.get("slot", path.stem))
    why = why_not(facts, model)
    require(
        why is None,
        f"{path}: {shown(model)} stays with its members: {why}; {WAY_OUT}",
        GateError,
    )


def weaker_bound(
    facts: Mapping[str, Any], bound: float | None, fewest: int
) -> str | None:
    """Say why an initial model that passed its own gate is not known to pass the server's.

    Args:
        facts: of the initial model's file.
        bound: the server's; None if its operator set none.
        fewest: shadow models that the server's operator asks for.

    Returns:
        The reason; None if the model is known to pass, or if nobody knows where the file comes from.
    """
    if (
        bound is None
        or ANCESTRY not in facts
        or Ancestry.of(facts[ANCESTRY]).privacy is not None
    ):
        return None
    measured = facts.get(ATTACKED)
    own = None if measured is None else measured["bound"]
    if own is None:
        return f"its initial model was held against no bound, and the server's is {bound:g}"
    if own > bound:
        return f"its initial model was held against a bound of {own:g}, and the server's is {bound:g}"
    if measured is not None and measured["shadow_models"] < fewest:
        return f"its initial model was attacked with fewer than {fewest} shadow models"
    return None


def gate_lines(summary: Mapping[str, Any]) -> list[str]:
    """The bound that a run promises, what attacks reached, a line for each model; and whether it may leave."""
    measured, ancestry = (
        summary.get(ATTACKED) or {"models": {}},
        Ancestry.of(summary.get(ANCESTRY)),
    )
    lines = []
    if ancestry.privacy is not None:
        epsilon, delta = ancestry.privacy
        unit = "each patient, or of each sample where a site names no patients"  # which only the site knows
        lines.append(
            f"differential privacy of {unit}: epsilon at most {epsilon:g}, with delta = {delta:g}"
        )
    elif any(ancestor.dp is not None for ancestor in ancestry.ancestors):
        reason = (
            ancestry.other_split
            or "not every run in which the models were trained had dp"
        )
        lines.append(f"no differential privacy is promised: {reason}")
    for model, of_model in measured["models"].items():
        rates = (
            f"{name} {of['tpr']:.1%} ({of['interval'][0]:.1%} to {of['interval'][1]:.1%})"
            for name, of in of_model["attacks"].items()
        )
        lines.append(
            f"{model}: training samples told by attacks at 1 % false positives: {', '.join(rates)}"
        )
    if (
        measured.get("bound") is not None
        and not measured["models"]
        and ancestry.privacy is None
    ):
        lines.append(
            "no attack was measured on any model, so none leaves for others than its members"
        )
    return lines + [
        f"{model} stays with its members: {why}"
        for model in dict.fromkeys(
            (*measured["models"], *measured.get("objections", []))
        )
        if (why := why_not(summary, model)) is not None
    ]
