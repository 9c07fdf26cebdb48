# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What commands build of their words ``name:setting=value``: methods with penalties, data sources, models, jobs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from cfl_flare.cli.options import (
    SIMULATED,
    TRAINED,
    given,
    given_to_extensions,
    say,
    write_config,
)
from cfl_flare.core.config import build, from_dict, parse_spec, require
from cfl_flare.core.errors import ConfigError, DataError
from cfl_flare.core.files import read_json
from cfl_flare.core.settings import pick
from cfl_flare.data import SOURCES, DataConfig, DataSource, ParticipantData, SiteData
from cfl_flare.data.files import expanded, from_here
from cfl_flare.data.frames import is_table
from cfl_flare.data.loading import read
from cfl_flare.data.numbering import as_numbers
from cfl_flare.data.samples import NamedSource
from cfl_flare.engine.indicator import samples_to_set_aside
from cfl_flare.engine.plan import CONCERNS
from cfl_flare.methods import Groups, Method, build_method
from cfl_flare.models import MODELS
from cfl_flare.results import schema
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import LearningTask

if TYPE_CHECKING:
    from cfl_flare.flare import ClusteredRecipe, StudyRecipe

# In place of a file: the groups that a simulation's data has.
BY_DATA = "data"
# How a user's own samples are dealt out in a simulation unless the user says it.
OF_OWN_DATA = "iid"

# How a site's own copy of a served model was made.
MADE_WITH: schema.Fields = {
    **dict.fromkeys(("source", "data", "training"), schema.json_object),
    "seed": schema.count,
}


def read_source(text: str, here: bool = True) -> DataSource:
    """The data source that the command line names. ``here``: sites run in other folders, so paths become absolute."""
    name, settings = parse_spec(text)
    if name.endswith(".npz"):
        name, settings = "npz", {"path": name, **settings}
    if name in SOURCES:
        if isinstance(settings.get("columns"), str):
            settings["columns"] = str(expanded(settings["columns"]))
        if here:
            from_here(settings)
        return from_dict(SOURCES[name], settings, f"data {name}")
    hint = f"there are {', '.join(SOURCES)}, a .npz file, or package.Class"
    if is_table(Path(name)):
        hint = f"write table:path={name},label=COLUMN"
    elif Path(name).is_dir():
        hint = f"write folder:path={name}"
    require(
        "." in name and "/" not in name and not is_table(Path(name)),
        f"data {name!r} is unknown; {hint}",
    )
    return build({"class_path": name, "args": settings}, DataSource, "data")  # type: ignore[type-abstract]


def own_source(text: str | None) -> DataSource:
    """The source that ``--data`` names, or of a path; without it, what a job finds."""
    if text is None:
        return SiteData()
    if expanded(text).exists() or "/" in parse_spec(text)[0]:
        return SiteData(str(expanded(text)))
    return read_source(text)


def dealt_out(source: DataSource, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a simulation's data: as given, else as `usual_partition` and `SIMULATED` say."""
    chosen = settings.get("partition") or usual_partition(source)
    name = chosen if isinstance(chosen, str) else chosen["partition"]
    participants = settings.get("participants")
    if participants is None and name.partition(":")[0] != "natural":
        participants = SIMULATED["participants"]
    return {**settings, "partition": chosen, "participants": participants}


def usual_partition(source: DataSource) -> Mapping[str, Any] | str:
    """How a simulation deals out a source unless the user says it.

    Samples with owners go to these. A public set is made heterogeneous, so that there is something to cluster. A user's
    own samples are dealt out as they are: nothing permutes their labels or alters their images.
    """
    if source.usual_partition is not None:
        return source.usual_partition
    if source.public:
        return str(SIMULATED["partition"])
    if not isinstance(source, NamedSource) and read(source)[0].key is not None:
        return "natural"
    return OF_OWN_DATA


def given_training(arguments: argparse.Namespace) -> dict[str, Any]:
    """Collect the settings of training, among them those of extensions that differ from their defaults."""
    settings = given(arguments, TrainSettings)
    of_extensions = given_to_extensions(arguments)
    if of_extensions:
        settings["extensions"] = of_extensions
    return settings


def training_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of `TrainSettings`, without those that follow from the task."""
    settings = given_training(arguments)
    return {
        name: value
        for name, value in settings.items()
        if value is not None or name not in TRAINED
    }


def simulated(
    arguments: argparse.Namespace, methods: Sequence[Method]
) -> dict[str, Any]:
    """The settings of `RunPlan.of` for a simulation in which these methods are compared."""
    source, settings = read_source(arguments.data), training_of(arguments)
    training = TrainSettings(**settings)
    shape, outputs, masks = shape_and_outputs(source, arguments.data, training)
    model = model_spec(arguments.model, shape, outputs, masks)
    usual = usual_measures(
        training.built_task(),
        outputs,
        scores=model["class_path"].startswith("cfl_flare.models."),
    )
    return {
        **dealt_out(source, given(arguments, *CONCERNS.values())),
        "model": model,
        "data": source,
        "training": replace(
            training,
            **{n: usual[n] for n in usual if n not in settings and training.dp is None},
        ),
        "indicator_samples": samples_to_set_aside(methods),
    }


def usual_measures(task: LearningTask, outputs: int, scores: bool) -> dict[str, Any]:
    """What a simulation measures unless the user says otherwise.

    These are intervals, and figures of classes with enough samples. Where there are two classes, they are
    discrimination and calibration, too, with histograms of ``scores`` where the model is one of `MODELS`. Draws of
    survival times and of masks are measured one by one: fewer take less than a tenth of a run.
    """
    two = task.key_metric(outputs) == "loss"
    names = ("supported_f1", *(("auroc", "ece", "brier") if two else ()))
    return {
        "measures": tuple(
            name for name in names if name in task.measures and name not in task.always
        ),
        "score_bins": 200 if two and task.scored and scores else 0,
        "bootstrap": 50 if task.form in ("time", "mask") else 200,
    }


def model_spec(
    text: str | None, shape: tuple[int, ...], outputs: int, masks: bool = False
) -> dict[str, Any]:
    """The ``{"class_path", "args"}`` of the model that the command line names, or of one that suits the data.

    Without a name, it is the U-Net for masks, the thesis's network for images, or the MLP for samples that are smaller
    or no images.
    """
    name, settings = parse_spec(text) if text else ("unet" if masks else "mlp", {})
    if not text and not masks and len(shape) == 3 and min(shape[1:]) >= 16:
        name = "fashion-cnn" if shape[0] == 1 else "cifar-cnn"
    if name in MODELS:
        args = {"input_shape": list(shape), "num_classes": outputs, **settings}
        return {"class_path": f"cfl_flare.models.{MODELS[name].__name__}", "args": args}
    require(
        "." in name,
        f"model {name!r} is unknown; there are {', '.join(MODELS)}, or package.Class",
    )
    return {"class_path": name, "args": settings}


def model_of_job(
    text: str | None, source: DataSource, data: str, training: TrainSettings
) -> dict[str, Any]:
    """The model of a job for other machines; shape and outputs are given, or read from the data if it is here."""
    name, settings = parse_spec(text) if text else ("mlp", {})
    if text and (
        name not in MODELS or {"input_shape", "num_classes"} <= settings.keys()
    ):
        return model_spec(text, (), 0)
    columns, task = source.agreed_columns, training.built_task()
    if columns is not None:
        outputs = 1 if columns.labels is None else task.outputs(columns.labels)
        counts = (
            columns.labels is not None
            or type(task).outputs is LearningTask.outputs
            or "num_classes" in settings
        )
        way_out = f"name its classes there, or give --model {name}:num_classes=2"
        require(
            counts,
            f"the model's num_classes is not given, and the columns of --data name no classes; {way_out}",
        )
        return model_spec(text, (len(columns.features),), outputs)
    try:
        return model_spec(text, *shape_and_outputs(source, data, training))
    except DataError as error:
        reason = f"input_shape and num_classes are not given, and cannot be read from the data here ({error})"
        named = (
            f"--model {name}:input_shape=[1,28,28],num_classes=10 with the sites' own"
        )
        raise ConfigError(
            f"the model's {reason}; give {named}, or a --data that is here"
        ) from error


def shape_and_outputs(
    source: DataSource, data: str, training: TrainSettings
) -> tuple[tuple[int, ...], int, bool]:
    """The shape of a sample, the number of outputs that a model of the run's task has, and whether labels are masks."""
    train, test = read(source, f"data {data}")
    task, labels = training.built_task(), np.concatenate((train.y, test.y))
    if train.classes and not task.classes and labels.ndim == 1:
        labels = np.concatenate(
            [as_numbers(part, f"data {data}").y for part in (train, test)]
        )
    elif train.classes and labels.ndim == 1:
        labels = np.append(
            labels, len(train.classes) - 1
        )  # a class without a sample has an output as well
    task.check_form(labels, f"data {data}")
    return tuple(train.x.shape[1:]), task.outputs(labels), task.form == "mask"


def groups_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The group of each participant of a simulation by the data itself: of its table's column, or of its partition."""
    source = read_source(arguments.data)
    config = pick(
        DataConfig, dealt_out(source, given(arguments, *CONCERNS.values())), "data"
    )
    report = config.report(source)
    return {
        name: str(group)
        for name, group in zip(report.names, report.truth)
        if group is not None
    }


def build_named(
    text: str,
    penalties: Sequence[str] = (),
    here: bool = True,
    groups: Callable[[], Any] | None = None,
) -> Method:
    """The method that the command line names, with its penalties.

    Args:
        here: as for `read_source`.
        groups: gives the groups that the data has, where those may be named.
    """
    name, settings = parse_spec(text)
    if name == Groups.name and isinstance(settings.get("groups"), str):
        file = settings["groups"]
        known = file != BY_DATA or groups is not None
        require(
            known, f"--method {text}: only a simulation knows them; name a JSON file"
        )
        settings["groups"] = (
            groups() if file == BY_DATA and groups else read_json(Path(file))
        )
    file = settings.get("indicator_file")
    if here and isinstance(file, str) and Path(file).exists():
        settings["indicator_file"] = str(Path(file).resolve())
    if penalties:
        require(
            "penalties" not in settings,
            f"--method {text}: give its penalties there or by --penalty, not both",
        )
        specs = [parse_spec(penalty) for penalty in penalties]
        settings["penalties"] = [
            {"penalty": penalty, **of_penalty} for penalty, of_penalty in specs
        ]
    return build_method({"method": name, **settings})


def site_names(text: str | None) -> list[str]:
    """The names in ``--sites``, none of which may be empty, or named twice."""
    if text is None:
        return []
    names = [name.strip() for name in text.split(",")]
    different = all(names) and len({*names}) == len(names)
    require(
        different,
        f"--sites = {text!r} should be different names, as hospital-1,hospital-2",
    )
    return names


def write_job(
    recipe: ClusteredRecipe | StudyRecipe, folder: Path, arguments: argparse.Namespace
) -> None:
    """Writes a job's folder and the settings file that repeats it, and says how the job is submitted."""
    recipe.export(str(folder.parent))
    write_config(arguments, folder.parent / f"{folder.name}.toml")
    submit = f"nvflare job submit -j {folder} --startup-kit <your admin kit>"
    say(Console(), f"job: {folder}; submit it with: {submit}")


def check_out(out: Path, option: str = "--out") -> None:
    """Raises a ConfigError if results cannot be written to a folder; it is not made yet."""
    require(
        is_unused(out),
        f"{option} = {str(out)!r} is not an empty folder; name a new one",
    )
    existing = nearest_folder(out)
    reason = (
        f"{option} = {str(out)!r} cannot be made: {str(existing)!r} cannot be written"
    )
    require(is_writable(existing), f"{reason}; name another folder")


def new_file(option: str, text: str, *suffixes: str) -> Path:
    """The path of a file to write. Its folder exists, and its ending is one of these, if there are any."""
    path, kind = Path(text), f"{' or '.join(suffixes)} file".strip()
    sound = path.parent.is_dir() and (not suffixes or path.suffix in suffixes)
    require(
        sound,
        f"{option} = {text!r} should be a {kind} in an existing folder; make the folder first",
    )
    return path


def is_unused(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def nearest_folder(path: Path) -> Path:
    """The path, or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def site_data(
    path: Path, meta: Mapping[str, Any], named: str | None
) -> tuple[ParticipantData, dict[str, Any]]:
    """A site's own data, on which a model was trained that it keeps, and the settings with which."""
    way_out = "name a file in served/ of a run on what this site named by $CFL_DATA"
    require("made_with" in meta, f"{path} does not say how it was trained; {way_out}")
    made_with = schema.checked(meta["made_with"], str(path), MADE_WITH)
    of_site = (
        made_with["source"].get("class_path")
        == f"{SiteData.__module__}.{SiteData.__name__}"
    )
    require(of_site, f"{path} was trained on other data; {way_out}")
    source = from_dict(SiteData, made_with["source"].get("args", {}), f"{path}: source")
    source = source if named is None else replace(source, path=named)
    (data,) = from_dict(DataConfig, made_with["data"], f"{path}: data").host(
        source, path.stem, 0, 1
    )
    return data, made_with
