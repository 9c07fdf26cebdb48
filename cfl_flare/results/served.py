# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The models that a run leaves in files, and what its participants predict with: how they are written and read."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cfl_flare.core.arrays import load_arrays as read_arrays
from cfl_flare.core.arrays import save_arrays
from cfl_flare.core.config import build, require, unmarked
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.files import make_folder, read_json
from cfl_flare.core.params import Layout
from cfl_flare.core.text import plain, shown
from cfl_flare.methods import GLOBAL
from cfl_flare.results.model_file import (
    ARRAYS,
    CLASSES,
    check_weights,
    is_imported,
    is_ours,
    layout_of,
    model_of,
    parts_of,
    task_of,
)
from cfl_flare.results.run_dir import MODELS, SERVED, SUMMARY, load_run, the_run
from cfl_flare.training.ensemble import Ensemble, Served

if TYPE_CHECKING:
    import torch

    from cfl_flare.data.preparation import Preparation

# In the metadata of such a file: the model of the run whose arrays it has, but for those in the file itself.
BESIDE = "beside"


def save_served(
    folder: Path,
    name: str,
    served: Served,
    model: Mapping[str, Any],
    rounds: int,
    task: Mapping[str, Any] | str = CLASSES,
    preparation: Preparation | None = None,
    beside: Mapping[str, Served] | None = None,
) -> None:
    """Writes a model or an ensemble, for `read_model`; into `SERVED`, for this user alone.

    Args:
        folder: where to; created if it does not exist.
        name: of the file, without its ending: a slot or a participant.
        served: what to write.
        model: the module's ``{"class_path", "args"}``.
        rounds: rounds completed.
        task: what the model predicts, as in the run's settings.
        preparation: how its participant fills up and scales a table; None for other data, and for models of several.
        beside: the models in the run's `MODELS`, whose arrays are not written again.
    """
    meta: dict[str, Any] = {"slot": name, "round": rounds, "model": unmarked(model)}
    meta["untrained"] = sorted(served.untrained)
    if task != CLASSES:
        meta["task"] = task
    if preparation is not None:
        meta["preparation"] = preparation.to_dict()
    arrays = served.arrays()
    if len(served.models) > 1:
        meta["ensemble"] = {"parts": len(served.models), "vote": served.vote}
    for slot, other in (beside or {}).items():
        theirs = other.arrays()
        differing = {k: a for k, a in served.arrays().items() if k not in theirs or not np.array_equal(a, theirs[k])}
        if len(differing) < len(arrays):
            meta[BESIDE], arrays = slot, differing
    make_folder(folder, private=folder.name == SERVED)
    save_arrays(folder / f"{name}.safetensors", arrays, meta)


def load_model(
    run: str | Path, slot: str | None = None, model: torch.nn.Module | None = None, participant: str | None = None
) -> torch.nn.Module:
    """A trained model of a run, ready to predict.

    Args:
        run: the run's folder, or one with a single run below it, such as FLARE's own result folder; with a participant
            also a site's folder of the run below its state root, or the folder above that.
        slot: ``"global"`` (the default) or ``"cluster-0"``, ...
        model: a module of the run's class to load the weights into; needed if that is neither one of cfl_flare's
            own nor one of yours that this program has imported. No module is imported because a file names it, and no
            class of an installed package is called.
        participant: in place of a slot, whose model: what it predicted with at the end, with private layers, its own
            head or model, tuned as the method does.

    Raises:
        ConfigError: the run has no such model, it has layers that only participants have trained, or its class is not
            known here and no module was given.
    """
    if participant is None:
        return read_model(_model_file(run, slot or GLOBAL), model, imported=True)
    require(slot is None, f"load_model: slot = {slot!r} and participant = {participant!r}: give one of the two")
    return read_model(served_file(Path(run), participant), model, imported=True)


def served_file(run: Path, participant: str) -> Path:
    """The file of what a participant predicted with at the end of a run.

    Args:
        run: the run's folder, or one with a single run below it; below a state root a site's folder of the run, or the
            folder above that.
        participant: its name.

    Raises:
        ConfigError: there is none.
    """
    name = f"{SERVED}/{participant}.safetensors"
    require(Path(name).parent.name == SERVED, f"there is no participant {shown(participant)}")
    places = [run, *(run.iterdir() if run.is_dir() else ())]
    if not any((place / SERVED).is_dir() for place in places):
        places = [the_run(run)]
    files = [place / name for place in places if (place / name).is_file()]
    if not files:
        raise ConfigError(_no_file_of(participant, run))
    twice = named([*map(str, files)])
    require(len(files) == 1, f"{run} holds {shown(participant)} more than once: {twice}; name one run")
    return files[0]


def _no_file_of(participant: str, run: Path) -> str:
    """Why a run has no file of what a participant predicts with."""
    there = sorted(path.stem for path in (*run.glob(f"{SERVED}/*.safetensors"), *run.glob(f"*/{SERVED}/*.safetensors")))
    if (run / SUMMARY).is_file():
        everyone = {one["name"]: one for one in load_run(run).summary["participants"]}
        if participant in everyone:
            return (
                f"{run} does not hold what {shown(participant)} predicted with: it was not measured at the end, "
                "keep_served is off, or it is at its site, below the state root; choose a model of the run with --slot"
            )
        there = [*everyone]
    return f"{run} has no participant {shown(participant)}; it has {named([*dict.fromkeys(there)]) or 'none'}"


def named(names: Sequence[str], limit: int = 5) -> str:
    """The first few of some names, and how many there are, for a message."""
    return ", ".join(map(shown, names[:limit])) + (f", ... ({len(names)})" if len(names) > limit else "")


def load_arrays(run: str | Path, slot: str = GLOBAL) -> dict[str, np.ndarray]:
    """The arrays of a trained model of a run by name, float32, without a module; of any run, not only of arrays.

    Args:
        run: the run's folder, or one with a single run below it, such as FLARE's own result folder.
        slot: ``"global"`` or ``"cluster-0"``, ...

    Raises:
        ConfigError: the run has no such model.
        PayloadError: its file is damaged.
    """
    return read_arrays(_model_file(run, slot))[0]


def _model_file(run: str | Path, slot: str) -> Path:
    """The file of one of a run's models.

    Raises:
        ConfigError: it has no such model.
    """
    folder = Path(run) if (Path(run) / MODELS).is_dir() else the_run(run)
    path = folder / MODELS / f"{slot}.safetensors"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.safetensors"))) or "none"
        raise ConfigError(f"{run} has no model {slot!r}; it has: {there}")
    return path


def check_trained(meta: Mapping[str, Any], path: Path) -> None:
    """Refuses a model with layers that nobody has trained, as each participant has trained its own.

    Raises:
        ConfigError: it has some.
    """
    untrained, summary = meta.get("untrained"), path.parent.parent / SUMMARY
    if untrained is None and path.parent.name == MODELS and summary.is_file():  # of a version that did not write it
        run = read_json(summary)
        untrained = [run["private"]] if run.get("private") else []
    require(
        not untrained,
        f"{path} cannot predict: its {shown(untrained)} are untrained, as each participant has trained its own; name a "
        "participant, in a simulation's folder or with the state folder at its site (--participant NAME, or "
        "load_model(run, participant=NAME)); cfl_flare.load_arrays reads the file as it is",
    )


def read_model(path: Path, model: torch.nn.Module | None = None, imported: bool = False) -> torch.nn.Module:
    """A model from its file, ready to predict.

    Args:
        path: a file that `save_served` wrote.
        model: a module of its class to load the weights into; needed if it is not one of cfl_flare's own.
        imported: whether it may also be one that this program has imported, of no installed package.

    Raises:
        PayloadError: the file is damaged, or holds the weights of another model than it names.
        ConfigError: it has layers that only participants have trained, or the model's class is not cfl_flare's and no
            module was given.
    """
    from torch import nn

    from cfl_flare.training.resident import ResidentModel

    arrays, meta = read_arrays(path)
    check_trained(meta, path)
    if BESIDE in meta:
        others = _model_file(path.parent.parent, str(meta[BESIDE]))
        arrays = {**read_arrays(others)[0], **arrays}
    spec, ensemble = model_of(meta, path), meta.get("ensemble")
    parts, vote = (1, "") if ensemble is None else parts_of(ensemble, len(arrays), path)
    if model is None and spec["class_path"] == ARRAYS:
        raise ConfigError(f"{path} holds arrays, which no module computes with; read them with cfl_flare.load_arrays")
    if model is None and not (is_ours(spec) or (imported and is_imported(spec))):
        way_out = "import its module first, or build one and pass it as model= (a class of a package: always)"
        raise ConfigError(f"{path} holds a {plain(spec['class_path'], 100)}; {way_out}")
    check_weights(layout_of(spec) if model is None else Layout.of(model), arrays, parts, path)
    if model is None:
        model = build(spec, nn.Module, "model")
    if ensemble is not None:
        link = task_of(meta, path).link if vote == "probabilities" else "softmax"  # a sum is the same with any
        model = Ensemble([copy.deepcopy(model) for _ in range(parts)], vote, link)
    try:
        packed = Layout.of(model).pack(arrays)
    except PayloadError as error:
        raise PayloadError(error.code, f"{path}: {error}; name the file of a sound model") from error
    resident = ResidentModel(model)
    resident.load(packed)
    return resident.module.eval()
