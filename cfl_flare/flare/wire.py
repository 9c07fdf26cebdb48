# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Messages between server and sites: a COLLECTION with one DXO per model both ways, everything else in its meta.

Down: ``{slot: WEIGHTS}`` and the tasks. Up: ``{"participant/slot": WEIGHT_DIFF}`` and the results. Values are numpy
arrays by parameter name, float32 (integer buffers int64). Arrays of a participant that are not a model come up as one
more WEIGHT_DIFF, ``"participant/#arrays"``, so that a site's filters see them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from cfl_flare.core.errors import PayloadError, failure_of
from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.site import CrossModel, Result, Task
from cfl_flare.methods import Update
from cfl_flare.methods.slots import with_parts

SCHEMA = 2
ARRAYS = "#arrays"
META = "cfl"
CHECK_TASK = "check"
TRAIN_TASK = "train"


def message(collection: Mapping[str, DXO], content: Mapping[str, Any], number: int, total: int) -> FLModel:
    """A message as FLARE's controllers and aggregators hold it."""
    return FLModel(
        params_type=ParamsType.FULL,
        params=dict(collection),
        meta={META: {"schema": SCHEMA, **content}},
        current_round=number,
        total_rounds=total,
    )


def to_shareable(collection: Mapping[str, DXO], content: Mapping[str, Any]) -> Shareable:
    """A message as a site sends it."""
    return DXO(DataKind.COLLECTION, data=dict(collection), meta={META: {"schema": SCHEMA, **content}}).to_shareable()


def content_of(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """The checked meta of a message.

    Raises:
        PayloadError: there is none, or of another schema.
    """
    content = (meta or {}).get(META)
    if not isinstance(content, dict):
        raise PayloadError("schema", "the message has no cfl_flare content; was it made by another executor?")
    if content.get("schema") != SCHEMA:
        raise PayloadError(
            "schema", f"schema {content.get('schema')!r}, expected {SCHEMA}: install the same cfl_flare everywhere"
        )
    return content


def encode_models(models: Mapping[str, Params]) -> dict[str, DXO]:
    """The models that a site needs."""
    return {slot: DXO(DataKind.WEIGHTS, data=model.arrays()) for slot, model in models.items()}


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
            "cross": [[model.name, list(model.slots), model.vote] for model in task.cross],
        }
        for name, task in tasks.items()
    }


def decode_task(shareable: Shareable, layout: Layout) -> tuple[dict[str, Task], dict[str, Params], dict[str, Any]]:
    """A round's message on the site: the task of each participant, the models, and the other content.

    Raises:
        PayloadError: the models do not fit this site's.
    """
    dxo = from_shareable(shareable)
    content = content_of(dxo.meta)
    models = {slot: layout.restricted(part.data.keys()).pack(part.data) for slot, part in dxo.data.items()}
    tasks = {
        name: Task(
            tuple(said["slots"]),
            bool(said["train"]),
            bool(said["evaluate"]),
            said["scalars"],
            {int(cluster): slot for cluster, slot in said["choices"]},
            said["joined"],
            tuple(CrossModel(model, tuple(slots), vote) for model, slots, vote in said["cross"]),
        )
        for name, said in content["tasks"].items()
    }
    needed = [slot for task in tasks.values() for slot in task.needed]
    return tasks, with_parts(models, needed), content


def encode_failure(error: BaseException) -> Shareable:
    """A site's answer to a task that it could not carry out: a code of `cfl_flare.core.errors.FAILURES`, no text."""
    return to_shareable({}, {"error": failure_of(error)})


def encode_results(results: Sequence[Result], content: Mapping[str, Any]) -> Shareable:
    """A site's results. Failing participants are left out of the collection, with their failure's code in the meta."""
    collection: dict[str, DXO] = {}
    described: dict[str, dict[str, Any]] = {}
    for r in results:
        cross = {model: dict(found) for model, found in r.cross.items()}
        said = {"metrics": dict(r.metrics), "error": r.error}
        described[r.participant] = {**said, "cross": cross} if cross else said
        if r.update is None:
            continue
        described[r.participant] |= {"samples": r.update.samples, "cluster": r.update.cluster}
        if r.update.carrier is not None:
            described[r.participant]["carrier"] = r.update.carrier
        sent = {slot: diff.arrays() for slot, diff in r.update.diffs.items()}
        sent |= {ARRAYS: dict(r.update.arrays)} if r.update.arrays else {}
        for slot, arrays in sent.items():
            meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: r.update.samples}
            collection[f"{r.participant}/{slot}"] = DXO(DataKind.WEIGHT_DIFF, data=arrays, meta=meta)
    return to_shareable(collection, {**content, "results": described})


def decode_results(
    message: FLModel, bank: Mapping[str, Params], number: int
) -> Iterator[Result | tuple[str, PayloadError]]:
    """A site's results, one at a time: a result, or the participant's name and why its arrays do not fit.

    Raises:
        PayloadError: the message as a whole is of another round or schema, or is malformed.
    """
    content = content_of(message.meta)
    if "error" in content:
        raise PayloadError("site_failed", str(content["error"]))
    if content.get("round") != number:
        raise PayloadError("round", f"the results are of round {content.get('round')!r}, the current one is {number}")
    described = content.get("results")
    collection = message.params if message.params is not None else {}
    if not isinstance(described, dict) or not isinstance(collection, dict):
        raise PayloadError("schema", "the message has no 'results' or no collection of models")
    strangers = sorted(key for key in collection if key.rpartition("/")[0] not in described)
    if strangers:
        raise PayloadError("unknown_participant", f"model {strangers[0]!r} belongs to no participant with a result")
    for name, said in described.items():
        own = {key.rpartition("/")[2]: dxo for key, dxo in collection.items() if key.rpartition("/")[0] == name}
        try:
            yield _result(name, said, own, bank)
        except PayloadError as error:
            yield name, error


def _result(name: str, said: Any, models: Mapping[str, Any], bank: Mapping[str, Params]) -> Result:
    if not isinstance(said, dict) or not isinstance(said.get("metrics", {}), dict):
        raise PayloadError("schema", f"{name}: its result is not a dictionary with metrics")
    cross = said.get("cross", {})
    if not isinstance(cross, dict) or not all(isinstance(found, dict) for found in cross.values()):
        raise PayloadError("schema", f"{name}: its result has no dictionary of metrics for each model")
    update = None
    if "samples" in said:
        arrays = _arrays(name, models[ARRAYS]) if ARRAYS in models else {}
        models = {slot: dxo for slot, dxo in models.items() if slot != ARRAYS}
        strange = [slot for slot in models if slot not in bank]
        if strange:
            raise PayloadError("slots", f"{name}: there is no model {strange[0]!r}; there are {', '.join(bank)}")
        diffs = {slot: _diff(name, slot, dxo, bank[slot].layout) for slot, dxo in models.items()}
        update = Update(name, said["samples"], diffs, said.get("cluster"), arrays, carrier=said.get("carrier"))
    error = said.get("error")
    return Result(name, update, said.get("metrics", {}), None if error is None else str(error), cross)


def _named(name: str, slot: str, dxo: Any) -> dict[str, Any]:
    """The named arrays of a DXO."""
    if not isinstance(dxo, DXO) or not isinstance(dxo.data, dict):
        raise PayloadError("kind", f"{name}/{slot}: not a DXO of named arrays but {type(dxo).__name__}")
    if dxo.data_kind != DataKind.WEIGHT_DIFF:
        raise PayloadError("kind", f"{name}/{slot}: kind {dxo.data_kind}, expected {DataKind.WEIGHT_DIFF}")
    return dict(dxo.data)


def _arrays(name: str, dxo: Any) -> dict[str, np.ndarray]:
    """Arrays that are not a model; `cfl_flare.engine.checks.check_arrays` says what they must be."""
    return {str(key): np.asarray(array) for key, array in _named(name, ARRAYS, dxo).items()}


def _diff(name: str, slot: str, dxo: Any, layout: Layout) -> Params:
    """One difference. A name that a site's filter removed counts as unchanged."""
    arrays = _named(name, slot, dxo)
    try:
        return layout.pack(arrays, allow_missing=bool(dxo.get_filter_history()))
    except PayloadError as error:
        raise PayloadError(error.code, f"{name}/{slot}: {error}") from error
