# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``cfl-flare drift``: whether a hospital's new data has left the cluster whose model it was given."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cfl_flare.cli.options import Parser
from cfl_flare.cli.specs import own_source, read_source, site_data
from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.config import from_dict, require
from cfl_flare.core.errors import DataError, UnfitError
from cfl_flare.core.seeds import stream
from cfl_flare.core.text import shown
from cfl_flare.data import DataConfig, Npz, ParticipantData, SiteData
from cfl_flare.data.loading import read
from cfl_flare.data.numbering import as_numbers, renumber
from cfl_flare.data.pixels import check_range
from cfl_flare.data.samples import Samples, check_values, normalised
from cfl_flare.data.table import Table
from cfl_flare.extensions.aftercare.predict import outputs_of
from cfl_flare.results.model_file import read_model, task_of
from cfl_flare.results.run_dir import MODELS, SUMMARY, load_run
from cfl_flare.results.served import find_model, pixels_of
from cfl_flare.training.runtime import Split
from cfl_flare.training.tasks import LearningTask

# Permutations of the test, and the fewest patients with which a mean says something.
PERMUTATIONS, FEWEST = 9999, 20
# Two rises that differ by less are equal.
ROUNDED = 1e-12


def add_drift_options(command: Parser) -> None:
    command.add_argument(
        "run",
        help="folder of a finished run, or of the site's own copy below its state root",
    )
    command.add_argument(
        "--participant",
        metavar="NAME",
        help="whose model and data it is; default: the only one's",
    )
    new = "its new samples with labels: a table, an .npz file, a folder of images by class, or a source as of a run"
    command.add_argument("--data", required=True, metavar="D", help=new)
    old = "in a simulation: the data of the run, as its --data was; at a site, where that lies now if it was moved"
    command.add_argument("--reference", metavar="D", help=old)
    level = "the probability of an alarm where nothing has changed (%(default)s)"
    command.add_argument("--level", type=float, default=0.05, metavar="A", help=level)


@dataclass(frozen=True)
class Rise:
    """How a mean loss has risen.

    Attributes:
        p: the share of random divisions of all losses into two such groups with as large a rise, or a larger one.
        bound: the rise that would have been an alarm.
    """

    before: float
    after: float
    p: float
    bound: float


def rise(before: np.ndarray, after: np.ndarray, level: float = 0.05) -> Rise:
    """A permutation test of whether the mean of losses ``(m,)`` is above that of earlier ones ``(n,)``.

    If both are draws of one distribution, whatever that is, p is at most the level with at most that probability.
    """
    pooled, rng = np.concatenate((before, after)), stream(0, "drift")
    drawn = np.array(
        [
            pooled[rng.permutation(len(pooled))[: len(after)]].mean()
            for _ in range(PERMUTATIONS)
        ]
    )
    rises = (
        (drawn - pooled.mean()) * len(pooled) / len(before)
    )  # the mean of those drawn, minus that of the others
    observed = float(after.mean() - before.mean())
    p = (1 + int((rises >= observed - ROUNDED).sum())) / (1 + PERMUTATIONS)
    bound = float(np.quantile(rises, 1 - level, method="higher"))
    return Rise(float(before.mean()), float(after.mean()), p, bound)


def drift(arguments: argparse.Namespace) -> None:
    """``cfl-flare drift`` compares the served model's losses on new data with those on the run's test samples.

    An UnfitError says that the losses have risen, by the test; the command's status is then 1.
    """
    level, name = arguments.level, arguments.participant
    require(0 < level < 0.5, f"--level = {level} should be in (0, 0.5)")
    path = find_model(Path(arguments.run), None, name)
    meta = load_arrays(path)[1]
    task, module, data = (
        task_of(meta, path),
        read_model(path),
        reference(path, meta, arguments.reference),
    )
    reason = f"task {task.name!r} compares samples with each other, so that none has a loss of its own"
    require(not task.relative, f"drift: {reason}; compare its measures by hand")
    new = new_samples(arguments.data, data, pixels_of(path, meta))
    old = data.test
    if not task.classes:
        old = as_numbers(old, data.name)
        new = as_numbers(new, f"drift: --data {arguments.data}")
    before, after = (losses(module, task, samples, data.name) for samples in (old, new))
    kept = f"the run's test samples of {shown(data.name)}"
    check_enough(before, kept, "these are fixed: train again with more data")
    check_enough(
        after, f"the new samples in --data = {arguments.data!r}", "wait for more"
    )
    test, who = rise(before, after, level), shown(data.name)
    print(
        f"{who}: mean loss {test.before:.3g} on {len(before)} test samples of the run, {test.after:.3g} on",
        end=" ",
    )
    print(
        f"{len(after)} new ones; p = {test.p:.2g}, and a rise of more than {test.bound:.2g} is an alarm"
    )
    best = smallest_loss(path.parent.parent, task, new, data.name)
    if best is not None:
        print(
            f"of the run's models, {best[0]} has the smallest loss on the new ones: {best[1]:.3g}"
        )
    if test.p <= level:
        way_out = "let it join the clusters anew by 'cfl-flare onboard', or train again"
        raise UnfitError(
            f"{who} has left its cluster: its model loses more on the new samples; {way_out}"
        )
    print(f"no sign that {who} has left its cluster")


def check_enough(losses: np.ndarray, what: str, hint: str) -> None:
    """Check that losses are of enough patients for a mean that says something.

    Args:
        losses: ``(patients,)``.
        what: the samples in words.
        hint: the way to more of them.

    Raises:
        DataError: they are of fewer than `FEWEST` patients.
    """
    require(
        len(losses) >= FEWEST,
        f"drift: {what} are of {len(losses)} patients: expected {FEWEST} or more\nhint: {hint}",
        DataError,
    )


def reference(
    path: Path, meta: Mapping[str, Any], named: str | None
) -> ParticipantData:
    """The data of the run's participant whose served model is in a file, as its models saw it."""
    if "made_with" in meta:
        return site_data(path, meta, named)[0]
    folder, name = path.parent.parent, path.stem
    reason = f"{path} is not in the folder of a run, and does not say how it was made"
    require((folder / SUMMARY).is_file(), f"drift: {reason}; name the folder of a run")
    named_by = "drift: the run's test samples are compared; name its data, as --data did, by --reference"
    require(named is not None, named_by)
    config = from_dict(DataConfig, load_run(folder).summary["data"], f"{folder}: data")
    people = {
        data.name: data for data in config.host(read_source(str(named)), "local", 0, 1)
    }
    others = f"drift: --reference = {named!r} has no participant {shown(name)}"
    require(name in people, f"{others}; name the data of the run")
    return people[name]


def new_samples(
    named: str, data: ParticipantData, pixel_range: Sequence[float] | None = None
) -> Samples:
    """All samples of a source, as the participant's models see them.

    Args:
        named: the source.
        data: the participant's data in the run.
        pixel_range: the range of the run's pixels; None if they were bytes, or floats in [0, 1].
    """
    source, preparation = own_source(named), data.preparation
    if preparation is not None:
        source = source.inner if isinstance(source, SiteData) else source
        if isinstance(source, Table) and source.columns is None:
            source = replace(source, columns=preparation.columns.to_dict())
    if isinstance(source, (Npz, SiteData)) and source.range is None:
        source = replace(source, range=pixel_range)
    train, test = read(source, f"drift: --data {named}", alone=True)
    samples = renumber(
        train.joined(test) if len(test) else train,
        data.train.classes,
        f"drift: --data {named}",
    )
    if preparation is None:
        check_range(
            samples.x,
            f"drift: --data {named}",
            "bring the samples to what the run's were",
        )
    x = (
        normalised(samples.x)
        if preparation is None
        else check_values(preparation.apply(samples.x), named)
    )
    return replace(samples, x=x)


def losses(
    module: torch.nn.Module, task: LearningTask, samples: Samples, name: str
) -> np.ndarray:
    """The loss of each sample, or each patient's mean, ``(n,)``."""
    if not len(samples):
        return np.zeros(0)
    outputs = outputs_of(module, samples.x, name, np.asarray).double()
    task.check(outputs[:1].float(), samples.y, name)
    split = Split(outputs, task.targets(samples.y))
    if samples.patient is not None:
        split = replace(
            split, patient=np.unique(samples.patient, return_inverse=True)[1]
        )
    return np.asarray(
        split.by_patient(task.sample_losses(outputs[None], split.y).numpy())[0]
    )


def smallest_loss(
    run: Path, task: LearningTask, samples: Samples, name: str
) -> tuple[str, float] | None:
    """The model of a run with the smallest mean loss, and that; None where there is none that can predict alone."""
    means = {}
    for path in sorted((run / MODELS).glob("*.safetensors")):
        if not load_arrays(path)[1].get("untrained"):
            means[path.stem] = float(
                losses(read_model(path), task, samples, name).mean()
            )
    return min(means.items(), key=lambda item: item[1], default=None)
