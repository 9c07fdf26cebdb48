# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Settings that `ClusteredRecipe` takes from FLARE's FedAvgRecipe, and what they mean for clustered models."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.job_config.api import FedJob
from torch import nn

from cfl_flare.core.arrays import save_arrays
from cfl_flare.core.config import build, require
from cfl_flare.core.params import Layout
from cfl_flare.core.private import matching
from cfl_flare.methods import Method

# What FedAvgRecipe takes and a job with several models cannot, and what there is in its place.
NOT_HERE = {
    "aggregation_weights": "a method's weighting is 'samples' or 'uniform'",
    "save_filename": "models are in clusters/, those of the best round in best/clusters/",
    "best_model_filename": "models are in clusters/, those of the best round in best/clusters/",
    "aggregator": "method says how models are clustered and averaged",
    "aggregator_data_kind": "method says how models are clustered and averaged",
    "model_persistor": "a bank of models is written after each round, and resume_from goes on from it",
    "model_locator": "a bank of models is written after each round, and resume_from goes on from it",
    "optimizer_args": "server_optimizer, server_lr and their like are for each cluster's model",
    "enable_tensor_disk_offload": "the server puts large answers on its disk by itself",
    "per_site_config": "use FLARE's function set_per_site_config(recipe, ...)",
}
INITIAL = "initial_model.safetensors"
# A pattern that is found in every name, an empty one as well.
EVERYTHING = "^"


def exclude(pattern: str, model: Mapping[str, Any], method: Method, scripted: bool = False) -> ExcludeVars:
    """FLARE's filter that keeps some of a model's arrays at the site; see `staying`.

    It gets their names, not the pattern: a compiled pattern cannot be written to a job. A script may send arrays under
    other names (``module.fc1.weight``): of a script's, all stays but what has the name of one that may leave.
    """
    out = staying("exclude_vars", pattern, model, method)
    if not scripted:
        return ExcludeVars(out)
    return _pattern(f"^(?!({'|'.join(map(re.escape, sorted(names_of(model) - {*out})))})$)")


def check_not_here(settings: Mapping[str, Any]) -> None:
    """Raises a ConfigError for a setting of FedAvgRecipe's that a job with several models cannot have."""
    for name in settings:
        require(name not in NOT_HERE, f"recipe: {name} is not there: {NOT_HERE.get(name)}; leave it out")


def names_of(model: Mapping[str, Any]) -> set[str]:
    """The names under which a model's arrays travel."""
    return set(Layout.of(build(model, nn.Module, "model")).shapes)


def _pattern(text: str) -> ExcludeVars:
    found = ExcludeVars(text)
    found.exclude_vars = text  # it keeps a compiled pattern, which cannot be written to a job
    return found


def staying(setting: str, pattern: str, model: Mapping[str, Any], method: Method) -> list[str]:
    """The names of those of a model's arrays that do not leave the sites.

    Args:
        setting: its name.
        pattern: its value, a regular expression that is searched in the names; for ``private`` also a word.
        model: ``{"class_path", "args"}``.
        method: the job's.

    Raises:
        ConfigError: it is not a regular expression, or matches none or all of the model, or all that is clustered on.
    """
    where, module = f"recipe: {setting} = {pattern!r}", build(model, nn.Module, "model")
    layout, names = Layout.of(module), matching(module, pattern, where, setting == "private")
    out = [e for e in layout.entries if e.name in names]
    left = [e for e in layout.entries if e not in out and e.kind == "parameter"]
    require(bool(out), f"{where} matches none of {', '.join(e.name for e in layout.entries)}")
    require(bool(left), f"{where} matches all parameters: nothing would be left to learn together")
    cluster_on = method.traits.cluster_on
    if cluster_on is not None:
        compared = {place.start for place in layout.select(layout.compared(cluster_on))}
        require(
            any(e.offset in compared for e in left),
            f"{where} matches all that method {method.label} clusters on ({cluster_on}); set its cluster_on to what "
            "the sites send",
        )
    return [name for name in layout.shapes if layout.untied({name: None}).keys() <= names]


def without_parameters() -> ExcludeVars:
    """A filter that takes all parameters out of an answer, for tasks that ask for none.

    A script that does not look whether it should only evaluate trains, and sends its model: past the filters of the
    task to train. FLARE's own filter does it, so that such a job's sites need not have cfl_flare.
    """
    return _pattern(EVERYTHING)


def place_checkpoint(path: str | None, job: FedJob) -> str | None:
    """As in FLARE's recipes: an absolute path is the server's; a local file is sent with the job.

    Returns:
        The path as the server finds it.

    Raises:
        ConfigError: a relative path that is not a file here.
    """
    if path is None or os.path.isabs(path):
        return path
    require(
        Path(path).is_file(),
        f"recipe: initial_ckpt = {path!r} is not a file, seen from this folder; a relative path is a file that is "
        "sent with the job, an absolute one is on the server",
    )
    job.add_file_to_server(str(Path(path).resolve()))
    return Path(path).name


def place_arrays(arrays: Mapping[str, np.ndarray], folder: Path, job: FedJob) -> str:
    """Sends the arrays of which a job's model was made with the job, as the checkpoint that it starts from.

    Args:
        arrays: by name.
        folder: where their file is until the job is made.
        job: the job.

    Returns:
        The path as the server finds it.
    """
    save_arrays(folder / INITIAL, arrays, {})
    job.add_file_to_server(str(folder / INITIAL))
    return INITIAL
