# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Messages between server and sites: a COLLECTION with one DXO per model both ways, everything else in its meta.

Down: ``{slot: WEIGHTS}`` and the tasks. Up: ``{"participant/slot": WEIGHT_DIFF}`` and the results. Values are numpy
arrays by parameter name, float32 (integer buffers int64). Arrays of a participant that are not a model come up as one
more WEIGHT_DIFF, ``"participant/#arrays"``, so that a site's filters see them too. Histograms of its scores come up as
STATISTICS, ``"participant/#scores"``: a filter that adds noise to models would make of counts what no count can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods.slots import add_parts

SCHEMA = 1
ARRAYS = "#arrays"
COUNTS = "counts"
META = "cfl"
CHECK_TASK = "check"
TRAIN_TASK = "train"
# Of a task; no run has as many rounds.


def message(
    collection: Mapping[str, DXO], content: Mapping[str, Any], number: int, total: int
) -> FLModel:
    """A message as FLARE's controllers and aggregators hold it."""
    return FLModel(
        params_type=ParamsType.FULL,
        params=dict(collection),
        meta={META: {"schema": SCHEMA, **content}},
        current_round=number,
        total_rounds=total,
    )


def to_shareable(
    collection: Mapping[str, DXO], content: Mapping[str, Any]
) -> Shareable:
    """A message as a site sends it."""
    return DXO(
        DataKind.COLLECTION,
        data=dict(collection),
        meta={META: {"schema": SCHEMA, **content}},
    ).to_shareable()


def content_of(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """The checked meta of a message; a PayloadError if there is none, or of another schema."""
    content = (meta or {}).get(META)
    if not isinstance(content, dict):
        raise PayloadError(
            "schema",
            "the message has no cfl_flare content; was it made by another executor?",
        )
    if content.get("schema") != SCHEMA:
        raise PayloadError(
            "schema",
            f"schema {content.get('schema')!r}, expected {SCHEMA}: install the same cfl_flare everywhere",
        )
    return content


def encode_models(models: Mapping[str, Params]) -> dict[str, DXO]:
    """The models that sites need."""
    return {
        slot: DXO(DataKind.WEIGHTS, data=model.arrays())
        for slot, model in models.items()
    }


def encode_tasks(tasks: Mapping[str, Task]) -> dict[str, Any]:
    """The tasks as plain values."""
    return {
        name: {
            "slots": list(task.slots),
            "train": task.train,
            "evaluate": task.evaluate,
            "scalars": dict(task.scalars),
            "choices": [[cluster, slot] for cluster, slot in task.choices.items()],
            "joined": dict(task.joined),
            "questions": dict(task.questions),
            "models": list(task.models),
        }
        for name, task in tasks.items()
    }


def decode_task(
    shareable: Shareable, layout: Layout
) -> tuple[dict[str, Task], dict[str, Params], dict[str, Any]]:
    """A round's message on the site: the task of each participant, the models, and the other content.

    The models are taken out of the message, so that a site does not hold a bank twice.

    Raises:
        PayloadError: the models do not fit this site's.
    """
    dxo = from_shareable(shareable)
    content, models = content_of(dxo.meta), {}
    for slot in [*dxo.data]:
        arrays = dxo.data.pop(slot).data
        models[slot] = layout.restricted(arrays.keys()).pack(arrays)
    tasks = {
        name: Task(
            tuple(said["slots"]),
            bool(said["train"]),
            bool(said["evaluate"]),
            said["scalars"],
            {int(cluster): slot for cluster, slot in said["choices"]},
            said["joined"],
            said["questions"],
            tuple(said["models"]),
        )
        for name, said in content["tasks"].items()
    }
    needed = [slot for task in tasks.values() for slot in task.needed]
    return tasks, add_parts(models, needed), content


def encode_results(results: Sequence[Result], content: Mapping[str, Any]) -> Shareable:
    """A site's results. Failing participants are left out of the collection, with their failure's code in the meta."""
    collection: dict[str, DXO] = {}
    described: dict[str, dict[str, Any]] = {}
    for result in results:
        name, update = result.participant, result.update
        answers = {"metrics": {}, **result.answers}
        arrays = {
            f"#{key}": answer
            for key, answer in answers.items()
            if isinstance(answer, np.ndarray)
        }
        plain = {
            key: answer
            for key, answer in answers.items()
            if answer is not None and f"#{key}" not in arrays
        }
        described[name] = {
            **deepcopy(plain),
            "error": result.error,
        }  # a site's filters change it in place
        for key, array in arrays.items():
            collection[f"{name}/{key}"] = DXO(DataKind.STATISTICS, data={COUNTS: array})
        if update is None:
            continue
        described[name] |= {"samples": update.samples, "cluster": update.cluster}
        if update.carrier is not None:
            described[name]["carrier"] = update.carrier
        sent = {slot: diff.arrays() for slot, diff in update.diffs.items()}
        sent |= {ARRAYS: dict(update.arrays)} if update.arrays else {}
        for slot, arrays_of_slot in sent.items():
            meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: update.samples}
            collection[f"{name}/{slot}"] = DXO(
                DataKind.WEIGHT_DIFF, data=arrays_of_slot, meta=meta
            )
    return to_shareable(collection, {**content, "results": described})
