# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of jobs with a training script of FLARE's Client API, before they start."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from symtable import symtable
from typing import Any

from cfl_flare.core.config import require
from cfl_flare.methods import Method, Proximal

# Steps on the site: a script trains and measures the one model that it is sent, as `Method` does if none is overridden.
ON_SITE = ("local_update", "serve", "finetune_served")
HOW_TO_EVALUATE = """
    input_model = flare.receive()
    model.load_state_dict(input_model.params)
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics=metrics_of(model)))  # for ifca, clove with "loss", on the training data
        continue"""
# FLARE's patches of trainers, and which of the trainer's methods then answers a task to evaluate.
PATCHES = (("nvflare.client.lightning", "validate"), ("nvflare.client.hf", "evaluate"))
PENALTY_LINE = "loss = loss + cfl_flare.client.penalty(model)"


def check_method(method: Method) -> None:
    """Raises a ConfigError if a method's sites do more than train the model that they are sent, or choose by metric."""
    overridden = [
        step
        for step in ON_SITE
        if getattr(type(method), step) is not getattr(Method, step)
    ]
    unable = [] if method.traits.by_metric else overridden
    unable += ["finetune"] * method.finetune
    compared = [
        p.name
        for p in method.penalties
        if getattr(p, "on", "parameters") != "parameters"
    ]
    require(
        not compared,
        f"penalty {compared[:1]}: on = 'representations' needs the outputs of other models inside the script's step; "
        "use on = 'parameters'",
    )
    require(
        not method.traits.named_groups,
        f"method {method.label}: the sites of a training script name no group; give each site's label, {{site: label}}",
    )
    require(
        not unable,
        f"method {method.label}: a training script cannot do its {', '.join(unable)} on the site; use fedavg, fedprox, "
        "fesem, wecfl, cfl, fl-hc, fedgroup, groups, ifca or clove without it, or leave train_script out",
    )


def evaluates(script: str) -> bool:
    """Whether a script, or a module in its folder, is written to evaluate a model without training it.

    Such a script calls FLARE's ``is_evaluate()``, or its trainer answers under one of FLARE's patches.
    """
    for text, tree in _modules(script):
        functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        called = {
            getattr(function, "attr", getattr(function, "id", ""))
            for function in functions
        }
        if "is_evaluate" in called or any(
            patch in text and {"patch", call} <= called for patch, call in PATCHES
        ):
            return True
    return False


def check_evaluate(script: str, name: str) -> None:
    """Raises a ConfigError if there is no function ``"client.evaluate"``, or ``"evaluate"`` in the script itself."""
    where, path = f"recipe: evaluate = {name!r}", evaluate_module(script, name)
    module, _, function = name.rpartition(".")
    named = function.isidentifier() and (not module or module.isidentifier())
    require(
        named,
        f"{where} should be 'client.evaluate': a module in the script's folder, and a function in it",
    )
    require(
        path.is_file(),
        f"{where}: no {path.name} is in the folder of {script!r}; name a function of the script",
    )
    try:
        symbol = symtable(path.read_text(errors="replace"), str(path), "exec").lookup(
            function
        )
        defined = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    except (KeyError, SyntaxError):
        defined = False
    require(
        defined,
        f"{where}: {path.name} has no {function!r}; define it there, outside of other functions:\n"
        f"    def {function}(received):  # what flare.receive() returns\n"
        "        model.load_state_dict(received.params)\n"
        "        return {'accuracy': accuracy_of(model)}",
    )


def evaluate_module(script: str, name: str) -> Path:
    """The file of the module of a function that measures models."""
    module = name.rpartition(".")[0]
    return (
        Path(script)
        if module in ("", Path(script).stem)
        else Path(script).parent / f"{module}.py"
    )


def has_terms(method: Method) -> bool:
    """Whether the method adds to the loss, by penalties or by itself."""
    return bool(method.penalties) or type(method).list_terms is not Method.list_terms


def check_script(
    script: str,
    method: Method,
    settings: Mapping[str, Any],
    measures_all: bool = False,
    evaluate: str | None = None,
) -> None:
    """Checks a job with a training script.

    Args:
        settings: those that have no meaning with a script, by name; None where one is not set.
        measures_all: every model is measured in the end.
        evaluate: the function that measures models; None if the script does.

    Raises:
        ConfigError: there is no such script, or it does not fit the method or a setting.
    """
    require(
        Path(script).is_file(),
        f"recipe: train_script = {script!r} is not a file, seen from this folder; name one",
    )
    unused = [name for name, value in settings.items() if value is not None]
    require(
        not unused,
        f"recipe: {', '.join(unused)}: belongs to the script if there is a train_script; leave it out, or pass it in "
        "train_args",
    )
    check_method(method)
    if evaluate is not None:
        check_evaluate(script, evaluate)
    require(
        not measures_all or evaluates(script) or evaluate is not None,
        f"recipe: cross_site_evaluation: train_script = {script!r} does not evaluate a model without training it; add "
        f"to its loop:{HOW_TO_EVALUATE}",
    )
    require(
        not has_terms(method)
        or asks_for_penalties(script)
        or fedprox_mu(script, method) is not None,
        f"recipe: method {method.label} adds to the loss, but train_script = {script!r} does not: after 'import "
        f"cfl_flare.client' add the line '{PENALTY_LINE}'",
    )


def asks_for_penalties(script: str) -> bool:
    """Whether a script, or a module in its folder, calls `cfl_flare.client.penalty`."""
    return any(
        "cfl_flare" in text and "penalty(" in text for text, _ in _modules(script)
    )


def fedprox_mu(script: str, method: Method) -> float | None:
    """The coefficient to send as FLARE's own metadata, for a proximal term alone and a script that looks for it there.

    FLARE's Lightning patch applies it by itself.
    """
    by_itself = method.traits.proximal
    terms = len(method.penalties) + (by_itself is not None)
    pulls = [] if by_itself is None else [by_itself]
    pulls += [
        p.mu for p in method.penalties if isinstance(p, Proximal) and p.scope == "all"
    ]
    looks = any(
        "fedprox" in text.lower() or "nvflare.client.lightning" in text
        for text, _ in _modules(script)
    )
    return (
        pulls[0]
        if len(pulls) == terms == 1 and looks and not asks_for_penalties(script)
        else None
    )


def _modules(script: str) -> list[tuple[str, ast.Module]]:
    """Text and syntax tree of the script, and of the modules in its folder that it imports, directly or not.

    The file that makes the job is none of them.
    """
    modules: dict[Path, tuple[str, ast.Module]] = {}
    left = [Path(script).resolve()]
    while left:
        path = left.pop()
        text = path.read_text(errors="replace")
        try:
            tree = ast.parse(text)
        except SyntaxError:  # FLARE will say so when it runs the script
            tree = ast.Module([], [])
        modules[path] = (text, tree)
        imported = {path.parent / f"{name}.py" for name in _imported(tree)}
        left += sorted(
            module for module in imported - modules.keys() if module.is_file()
        )
    return list(modules.values())


def _imported(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    plain = {
        alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names = plain | {
        node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)
    }
    return {name.partition(".")[0] for name in names}
