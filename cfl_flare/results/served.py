# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The models that a run leaves in files, and how its participants prepare their tables: written, found and read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cfl_flare.core.arrays import load_arrays as read_arrays
from cfl_flare.core.arrays import save_arrays
from cfl_flare.core.config import require, unmarked
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.files import atomic_write, make_folder
from cfl_flare.core.text import shown
from cfl_flare.data import ParticipantData
from cfl_flare.data.classes import as_names
from cfl_flare.data.columns import Columns
from cfl_flare.data.pixels import RANGE
from cfl_flare.data.preparation import Preparation
from cfl_flare.methods import GLOBAL
from cfl_flare.results import schema
from cfl_flare.results.model_file import BESIDE, CLASSES, model_path, read_model
from cfl_flare.results.remarks import listed
from cfl_flare.results.run_dir import MODELS, SERVED, SUMMARY, load_run, the_run
from cfl_flare.training.ensemble import Served

if TYPE_CHECKING:
    import torch

# In the folder of a simulation: how its participants filled up and scaled their tables.
PREPARATIONS = "preparations.json"
PREPARATIONS_FIELDS: schema.Fields = {
    "columns": schema.json_object,
    "participants": schema.dict_of(schema.json_object),
}


def save_served(
    folder: Path,
    name: str,
    served: Served,
    model: Mapping[str, Any],
    rounds: int,
    task: Mapping[str, Any] | str = CLASSES,
    preparation: Preparation | None = None,
    beside: Mapping[str, Served] | None = None,
    made_with: Mapping[str, Any] | None = None,
    gate: Mapping[str, Any] | None = None,
) -> None:
    """Writes a model or an ensemble, for `read_model`; into `SERVED`, for this user alone.

    Args:
        name: of the file, without its ending: a slot or a participant.
        model: the module's ``{"class_path", "args"}``.
        rounds: rounds completed.
        task: what the model predicts, as in the run's settings.
        preparation: how its participant fills up and scales a table; None for other data, and for models of several.
        beside: the models in the run's `MODELS`, whose arrays are not written again.
        made_with: the job's settings of data and training, for `cfl-flare site audit`; None for none.
        gate: the facts by which `cfl_flare.results.gate` judges the model; None for a participant's own model.
    """
    arrays = written = served.arrays()
    meta: dict[str, Any] = {"slot": name, "round": rounds, "model": unmarked(model)}
    meta["untrained"] = sorted(served.untrained)
    meta |= gate or {}
    if task != CLASSES:
        meta["task"] = task
    if made_with is not None:
        meta["made_with"] = unmarked(made_with)
    if preparation is not None:
        meta["preparation"] = preparation.to_dict()
    if len(served.models) > 1:
        meta["ensemble"] = {"parts": len(served.models), "vote": served.vote}
    for slot, other in (beside or {}).items():
        theirs = other.arrays()
        differing = {
            k: a
            for k, a in arrays.items()
            if k not in theirs or not np.array_equal(a, theirs[k])
        }
        if len(differing) < len(written):
            meta[BESIDE], written = slot, differing
    make_folder(folder, private=folder.name == SERVED)
    save_arrays(folder / f"{name}.safetensors", written, meta)


def load_model(
    run: str | Path,
    slot: str | None = None,
    model: torch.nn.Module | None = None,
    participant: str | None = None,
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
    require(
        slot is None,
        f"load_model: slot = {slot!r} and participant = {participant!r}: give one of the two",
    )
    return read_model(served_file(Path(run), participant), model, imported=True)


def load_arrays(run: str | Path, slot: str = GLOBAL) -> dict[str, np.ndarray]:
    """The arrays of a trained model of a run by name, float32, without a module; of any run, not only of arrays.

    Arguments are as for `load_model`.

    Raises:
        ConfigError: the run has no such model.
        PayloadError: its file is damaged.
    """
    return read_arrays(_model_file(run, slot))[0]


def _model_file(run: str | Path, slot: str) -> Path:
    return model_path(
        Path(run) if (Path(run) / MODELS).is_dir() else the_run(run), slot
    )


def find_model(run: Path, slot: str | None, participant: str | None = None) -> Path:
    """The file of a slot's model, or of the only one; without a slot, of what a participant predicted with.

    It is looked for in a run's folder or one above it, or in a site's folder of a run below the state root.
    """
    if run.is_file():
        return run
    require(
        run.is_dir(),
        f"predict: {str(run)!r} is neither a model's file nor a folder with models",
    )
    if slot is None and participant is not None:
        return served_file(run, participant)
    folder = next(
        (run / name for name in (MODELS, SERVED) if (run / name).is_dir()), None
    )
    paths = (
        sorted(folder.glob("*.safetensors"))
        if folder
        else sorted(run.glob(f"*/{SERVED}/*.safetensors"))
    )
    if not paths:
        paths = sorted((the_run(run) / MODELS).glob("*.safetensors"))
    chosen = [path for path in paths if slot in (None, path.stem)]
    if len(chosen) != 1:
        slots = ", ".join(path.stem for path in paths) or "none"
        wanted = (
            "several models; choose one with --slot"
            if slot is None
            else f"no single model {slot!r}"
        )
        people = sorted(
            path.stem
            for path in (paths[0].parents[1] if paths else run).glob(
                f"{SERVED}/*.safetensors"
            )
        )
        who = (
            f"; or choose who predicts with --participant: {listed(people)}"
            if people
            else ""
        )
        raise ConfigError(f"predict: {str(run)!r} has {wanted}; it has: {slots}{who}")
    return chosen[0]


def served_file(run: Path, participant: str) -> Path:
    """The file of what a participant predicted with at the end of a run.

    The run is its folder, or one with a single run below it; below a state root a site's folder of the run, or the
    folder above that. A `ConfigError` says who has such a file if that participant has none.
    """
    name = f"{SERVED}/{participant}.safetensors"
    require(
        Path(name).parent.name == SERVED,
        f"there is no participant {shown(participant)}",
    )
    places = [run, *(run.iterdir() if run.is_dir() else ())]
    if not any((place / SERVED).is_dir() for place in places):
        places = [the_run(run)]
    files = [place / name for place in places if (place / name).is_file()]
    if not files:
        raise ConfigError(_no_file_of(participant, run))
    require(
        len(files) == 1,
        f"{run} holds {shown(participant)} more than once: {listed(files)}; name one run",
    )
    return files[0]


def _no_file_of(participant: str, run: Path) -> str:
    there = sorted(
        path.stem
        for path in (
            *run.glob(f"{SERVED}/*.safetensors"),
            *run.glob(f"*/{SERVED}/*.safetensors"),
        )
    )
    if (run / SUMMARY).is_file():
        there = [person["name"] for person in load_run(run).summary["participants"]]
        if participant in there:
            reason = "it was not measured at the end, keep_served is off, or it is at its site, below the state root"
            way_out = "choose a model of the run with --slot"
            return f"{run} does not hold what {shown(participant)} predicted with: {reason}; {way_out}"
    return f"{run} has no participant {shown(participant)}; it has {listed(dict.fromkeys(there)) or 'none'}"


def save_preparations(folder: Path, people: Iterable[ParticipantData]) -> None:
    """Writes how a simulation's participants filled up and scaled their tables; nothing if its data is no table."""
    fitted = {
        person.name: person.preparation
        for person in people
        if person.preparation is not None
    }
    if fitted:
        columns = next(iter(fitted.values())).columns.to_dict()
        values = {
            n: {k: v for k, v in p.to_dict().items() if k != "columns"}
            for n, p in fitted.items()
        }
        atomic_write(
            folder / PREPARATIONS,
            json.dumps({"columns": columns, "participants": values}),
        )


def columns_of(folder: Path) -> Columns | None:
    content = _preparations(folder)
    return (
        None
        if content is None
        else Columns.of(content["columns"], str(folder / PREPARATIONS))
    )


def preparation_of(
    path: Path, meta: Mapping[str, Any], participant: str | None
) -> Preparation:
    """How a table is filled up and scaled for the model in a file: as the file says, or as the run's participant did.

    The participant is None if the run has only one.

    Raises:
        ConfigError: the run kept none, or none of this name, or the file is damaged.
    """
    if "preparation" in meta:
        return Preparation.of(meta["preparation"], f"{path}: preparation")
    folder = path.parent.parent
    content = _preparations(folder)
    if content is None:
        way_out = "use the model that the site itself keeps in served/, or a simulation's folder"
        raise ConfigError(
            f"predict: {folder} does not say how a table was filled up and scaled; {way_out}"
        )
    people = content["participants"]
    name = (
        next(iter(people)) if participant is None and len(people) == 1 else participant
    )
    some = (
        f"{len(people)}, such as {listed(people, 3)}; each filled up and scaled its own"
    )
    whose = f"predict: whose table is it? --participant {shown(participant)} is none of the run's {some}"
    require(name in people, whose)
    return Preparation.of(
        {**people[name], "columns": content["columns"]}, str(folder / PREPARATIONS)
    )


def classes_of(path: Path, meta: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes that the model in a file predicts: as the job or the run's folder says.

    Args:
        path: the model's file.
        meta: what the file says of itself.

    Returns:
        The names in the order of the outputs; none if classes are called by their numbers.
    """
    names = _data_fact(path, meta, "classes")
    return as_names(names) if isinstance(names, list) else ()


def pixels_of(path: Path, meta: Mapping[str, Any]) -> tuple[float, float] | None:
    """The range of pixels with which the model in a file was trained; None if they were bytes, or floats in [0, 1].

    Arguments are as for `classes_of`.
    """
    ends = _data_fact(path, meta, "range")
    return (float(ends[0]), float(ends[1])) if RANGE.hold(ends) else None


def _data_fact(path: Path, meta: Mapping[str, Any], name: str) -> Any:
    """What the job says of its data in a site's own copy of a model, or the run's folder of it."""
    made_with = meta.get("made_with")
    if isinstance(made_with, Mapping):
        source = made_with.get("source")
        arguments = source.get("args") if isinstance(source, Mapping) else None
        return arguments.get(name) if isinstance(arguments, Mapping) else None
    folder = path.parent.parent
    return load_run(folder).summary.get(name) if (folder / SUMMARY).is_file() else None


def _preparations(folder: Path) -> dict[str, Any] | None:
    path = folder / PREPARATIONS
    return schema.read(path, PREPARATIONS_FIELDS) if path.is_file() else None
