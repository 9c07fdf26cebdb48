# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a site may send: one bounded schema for its check-in and its results, read in time linear in their size.

Fields and kinds are checked here, before anything is stored or logged. What is in them is checked once, by its owner:
an answer by its observer (`cfl_flare.engine.observers`), an update by `cfl_flare.engine.task`. What does not fit
costs the site, or the participant, its own part and nobody else anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.app_common.abstract.fl_model import FLModel

from cfl_flare.core.config import require
from cfl_flare.core.errors import PayloadError, failure_text
from cfl_flare.core.params import Layout, Params
from cfl_flare.core.text import shown
from cfl_flare.data.classes import LONGEST_NAME, MOST_NAMES, is_class_name
from cfl_flare.engine.observers import list_answering
from cfl_flare.engine.task import MAX_GROUPS, MAX_SAMPLES, Result, is_count
from cfl_flare.flare.wire import ARRAYS, COUNTS, content_of
from cfl_flare.methods import Participant, Update
from cfl_flare.methods.groups import LONGEST

CLASSES = "classes"  # the names of a site's classes, in the order of their numbers
KEYS = frozenset({"schema", "error", "participants", "round", "results", CLASSES})
OF_PARTICIPANT = frozenset({"name", "samples", "group", "tested"})
CLIPPED = "clipped"  # of a simulation's participants alone
LABEL = "label"  # of participants that name one of the job's groups
OF_RESULT = frozenset({"error", "samples", "cluster", "carrier"})
# Those of a participant; all but the samples may be None.
WHOLE_NUMBERS = {
    "samples": (1, MAX_SAMPLES),
    "group": (0, MAX_GROUPS),
    CLIPPED: (0, 10**12),
}
NUMBERS = (np.ndarray, np.generic, int, float)


def decode_check_in(
    message: FLModel,
    site: str,
    expected: Collection[str],
    most: int,
    labels: Mapping[str, str],
) -> list[Participant]:
    """Whom a site hosts.

    Args:
        expected: the names of those whom it hosts: itself, or in a simulation those that are dealt to it.
        most: how many participants the operator allows a site.
        labels: the groups that participants named in the run that is resumed.

    Raises:
        PayloadError: the site failed, names others or too few, what it says of one is malformed, or another group.
    """
    said = _content(message).get("participants")
    if not isinstance(said, list) or len(said) > most:
        count = (
            f"{len(said)} participants, of which the server takes {most}"
            if isinstance(said, list)
            else shown(said)
        )
        raise malformed(f"{site} should list its participants, not {count}")
    hosted: dict[str, Participant] = {}
    for entry in said:
        complete = (
            isinstance(entry, dict)
            and entry.keys() - {CLIPPED, LABEL} == OF_PARTICIPANT
        )
        fields = f"{', '.join(sorted(OF_PARTICIPANT))}, not {shown(entry)}"
        require(complete, f"{site}: a participant should have {fields}", malformed)
        name, tested = entry["name"], entry["tested"]
        new = isinstance(name, str) and name in expected and name not in hosted
        require(
            new,
            f"{site} hosts no participant {shown(name)}, or names it twice",
            malformed,
        )
        for key, (low, high) in WHOLE_NUMBERS.items():
            value, optional = entry.get(key), key != "samples"
            limits = f"should be {'None or ' * optional}a whole number in {low}..{high}"
            valid = is_count(value, low, high) or (optional and value is None)
            require(valid, f"{name}: {key} = {shown(value)} {limits}", malformed)
        require(
            isinstance(tested, bool),
            f"{name}: tested = {shown(tested)} should be true or false",
            malformed,
        )
        label, clipped = _label(name, entry.get(LABEL), labels), entry.get(CLIPPED)
        of_data = entry["samples"], entry["group"], tested
        hosted[name] = Participant(name, site, *of_data, clipped=clipped, label=label)
    missing = (
        f"{site} names {len(hosted)} of the {len(expected)} participants that it hosts"
    )
    require(len(hosted) >= len(expected), missing, malformed)
    return list(hosted.values())


def decode_classes(message: FLModel, site: str) -> tuple[str, ...]:
    """The names of a site's classes in the order of their numbers; none if it calls them by their numbers.

    Args:
        message: the site's check-in.
        site: who it is, for the error.

    Raises:
        PayloadError: there are too many names, or one is too long, has control characters, or comes twice.
    """
    return check_class_names(_content(message).get(CLASSES, []), site)


def check_class_names(names: Any, site: str) -> tuple[str, ...]:
    """The names of classes that a site or its script states; a PayloadError if they are no names."""
    if not isinstance(names, list) or len(names) > MOST_NAMES:
        many = f"{len(names):,} names" if isinstance(names, list) else shown(names)
        raise malformed(
            f"{site}: classes should be a list of at most {MOST_NAMES} names, not {many}"
        )
    for name in names:
        wanted = f"1 to {LONGEST_NAME} printable characters"
        require(
            is_class_name(name),
            f"{site}: the class {shown(name)} should have a name of {wanted}",
            malformed,
        )
    require(
        len({*names}) == len(names), f"{site}: two classes have one name", malformed
    )
    return tuple(names)


def decode_results(
    message: FLModel, bank: Mapping[str, Params], number: int, hosted: Collection[str]
) -> Iterator[Result | tuple[str, PayloadError]]:
    """A site's results, one at a time: a result, or the participant's name and why it is refused.

    Args:
        bank: the models that the differences refer to.
        number: the round.

    Raises:
        PayloadError: the message as a whole is of another round or schema, or is malformed.
    """
    content = _content(message)
    said = content.get("round")
    if not is_count(said, 0, number) or said != number:
        raise PayloadError(
            "round",
            f"the results are of round {shown(said)}, the current one is {number}",
        )
    described = content.get("results")
    collection = message.params if message.params is not None else {}
    if not isinstance(described, dict) or not isinstance(collection, dict):
        raise malformed(
            "the message has no results by participant, or no collection of models"
        )
    if len(described) > len(hosted):
        raise malformed(
            f"results of {len(described)} participants, but the site hosts {len(hosted)}"
        )
    models: dict[str, dict[str, Any]] = {name: {} for name in described}
    for key, dxo in collection.items():
        name, _, slot = key.rpartition("/") if isinstance(key, str) else (None, "", "")
        if name not in models:
            raise PayloadError(
                "unknown_participant",
                f"model {shown(key)} is of no participant with a result",
            )
        models[name][slot] = dxo
    for name, said in described.items():
        try:
            if name not in hosted:
                raise PayloadError(
                    "unknown_participant",
                    f"the site hosts no participant {shown(name)}",
                )
            yield _result(name, said, models[name], bank)
        except PayloadError as error:
            yield name, error


def _label(name: str, label: Any, earlier: Mapping[str, str]) -> str | None:
    """The group that a participant names, which is the one that it named before."""
    short = label is None or (
        isinstance(label, str) and 0 < len(label) <= LONGEST and label.isprintable()
    )
    limits = f"should be None or 1 to {LONGEST} printable characters"
    require(short, f"{name}: label = {shown(label)} {limits}", malformed)
    if earlier.get(name, label) != label:
        stays = f"the run that is resumed has it in group {shown(earlier[name])}; set CFL_GROUP there as it was"
        raise PayloadError("label", f"{name}: label = {shown(label)}, but {stays}")
    return label


def malformed(message: str) -> PayloadError:
    """The reason to refuse what no honest site sends."""
    return PayloadError("malformed", message)


def _content(message: FLModel) -> dict[str, Any]:
    """The message's content, which is no failure."""
    content = content_of(message.meta)
    unknown = [key for key in content if key not in KEYS]
    if unknown:
        raise malformed(f"the message has an unknown field {shown(unknown[0])}")
    if "error" in content:
        raise PayloadError("site_failed", failure_text(content["error"]))
    return content


def _result(
    name: str, said: Any, models: dict[str, Any], bank: Mapping[str, Params]
) -> Result:
    known = {*OF_RESULT, *list_answering()}
    if not isinstance(said, dict) or not said.keys() <= known:
        raise malformed(
            f"{name}: its result should have {', '.join(sorted(known))} alone, not {shown(said)}"
        )
    answers = {key: said[key] for key in list_answering() if key in said}
    if said.get("error") is not None:
        failure_text(said["error"])
        return Result(name, None, answers, said["error"])
    answers |= {
        key: _array(name, key, models.pop(f"#{key}"))
        for key in list_answering()
        if f"#{key}" in models
    }
    if "samples" not in said:
        if models:
            raise malformed(f"{name}: it sends models, but no number of samples")
        return Result(name, None, answers)
    samples, cluster, carrier = (
        said["samples"],
        said.get("cluster"),
        said.get("carrier"),
    )
    if not is_count(samples, 1, MAX_SAMPLES):
        wanted = f"should be a whole number in 1..{MAX_SAMPLES}"
        raise PayloadError("samples", f"{name}: samples = {shown(samples)} {wanted}")
    if not isinstance(carrier, (str, type(None))):
        raise malformed(
            f"{name}: carrier = {shown(carrier)} should be a participant's name"
        )
    arrays = models.pop(ARRAYS, None)
    others = (
        {}
        if arrays is None
        else {key: np.asarray(a) for key, a in _named(name, ARRAYS, arrays).items()}
    )
    strange = [slot for slot in models if slot not in bank]
    if strange:
        raise PayloadError(
            "slots",
            f"{name}: there is no model {shown(strange[0])}; there are {', '.join(bank)}",
        )
    diffs = {
        slot: _diff(name, slot, dxo, bank[slot].layout) for slot, dxo in models.items()
    }
    return Result(
        name, Update(name, samples, diffs, cluster, others, carrier=carrier), answers
    )


def _array(name: str, key: str, dxo: Any) -> np.ndarray:
    """An observer's array, which itself says what that must hold."""
    counted = (
        isinstance(dxo, DXO)
        and dxo.data_kind == DataKind.STATISTICS
        and isinstance(dxo.data, dict)
    )
    if (
        not counted
        or dxo.data.keys() != {COUNTS}
        or not isinstance(dxo.data[COUNTS], np.ndarray)
    ):
        raise PayloadError(
            key, f"{name}: its histograms of {key} should be one array of counts"
        )
    array: np.ndarray = dxo.data[COUNTS]
    return array


def _named(name: str, slot: str, dxo: Any) -> dict[str, Any]:
    """The named arrays of a DXO; `cfl_flare.core.params` and `cfl_flare.engine.task` say what they must hold."""
    if not isinstance(dxo, DXO) or not isinstance(dxo.data, dict):
        raise PayloadError(
            "kind", f"{name}/{slot}: not a DXO of named arrays but {type(dxo).__name__}"
        )
    if dxo.data_kind != DataKind.WEIGHT_DIFF:
        raise PayloadError(
            "kind",
            f"{name}/{slot}: kind {shown(dxo.data_kind)}, expected {DataKind.WEIGHT_DIFF}",
        )
    for key, array in dxo.data.items():
        if not isinstance(key, str) or not isinstance(array, NUMBERS):
            raise PayloadError(
                "kind",
                f"{name}/{slot}: {shown(key)} is no named array but {type(array).__name__}",
            )
    return dxo.data


def _diff(name: str, slot: str, dxo: Any, layout: Layout) -> Params:
    """One difference. A name that a site's filter removed counts as unchanged."""
    arrays = _named(name, slot, dxo)
    history = dxo.get_filter_history()
    try:
        return layout.pack(
            arrays, allow_missing=isinstance(history, list) and bool(history)
        )
    except PayloadError as error:
        raise PayloadError(error.code, f"{name}/{slot}: {error}") from error
