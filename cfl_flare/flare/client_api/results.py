# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The results of training scripts of FLARE's Client API: how an FLModel becomes an update and metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import MetaKey
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from cfl_flare.core.errors import (
    BudgetError,
    ConfigError,
    LedgerError,
    PayloadError,
    failure_text,
)
from cfl_flare.core.params import Params
from cfl_flare.core.text import plain, shown
from cfl_flare.engine.server import Server
from cfl_flare.engine.task import (
    MAX_METRICS,
    MAX_SAMPLES,
    MIN_WEIGHT,
    is_metric_name,
    is_number,
)
from cfl_flare.flare.class_names import describe_difference
from cfl_flare.flare.client_api.cfl_launcher import FAILED, NOT_MEASURED
from cfl_flare.flare.schema import CLASSES, NUMBERS, check_class_names
from cfl_flare.methods import Update
from cfl_flare.methods.slots import cluster_slot

STEPS = FLMetaKey.NUM_STEPS_CURRENT_ROUND
# Of the name of an error's type.
LONGEST_TYPE = 60
# How many times more or fewer steps than in its first round a script may report.
MOST_TIMES = 10
# Filters that only leave arrays out.
REMOVING = ("ExcludeVars", "PrivateArrays")
BOOKKEEPING = re.compile(
    "((train|eval|test|predict)_)?(epoch|runtime|samples_per_second|steps_per_second|model_preparation_time|num_tokens|"
    "num_input_tokens_seen|tokens_per_second|jit_compilation_time|total_flos)"
)
# Why a result is refused, where that lies in the script or in the recipe and not in a round.
UNFIT = ("names", "no_update", "kind", "shape", "filtered")


class ScriptResults:
    """Reads what scripts send; ``remark`` is called with each remark on that, such as a missing number of steps.

    Attributes:
        agreed: the names of the classes in the order of their numbers; None until a script states some.
    """

    def __init__(self, server: Server, remark: Callable[[str], None]):
        self._server, self._remark = server, remark
        self._first: dict[str, float] = {}
        self._unfit: dict[str, str] = {}
        self._odd: set[tuple[str, str]] = set()
        self.agreed: tuple[str, ...] | None = None

    def classes(self, result: FLModel) -> tuple[str, ...]:
        """The names of classes that a script states, in the order of their numbers; none if it states none."""
        return check_class_names(
            (result.meta or {}).get(CLASSES, []), result.meta["client_name"]
        )

    def _check_classes(self, result: FLModel) -> None:
        """Raises a PayloadError if a script numbers its classes differently from most."""
        names = self.classes(result)
        if names and self.agreed is not None and names != self.agreed:
            raise PayloadError("classes", describe_difference(names, self.agreed))

    def refused(self, name: str, error: PayloadError) -> None:
        """Notes that a participant's result cannot be used."""
        if error.code in UNFIT:
            self._unfit[name] = str(error)

    def check(self, trained: int) -> None:
        """Checks the first round's results, of ``trained`` sites: no later one could use what most scripts send.

        Raises:
            ConfigError: the scripts, or the recipe, have to be changed; one site alone ends no job.
        """
        if 2 * len(self._unfit) > trained:
            site, reason = next(iter(self._unfit.items()))
            many = f"{len(self._unfit)} of {trained} sites"
            raise ConfigError(
                f"run: the script's results cannot be used, at {many}: {site}: {reason}"
            )

    def update(self, result: FLModel, slot: str, chosen: bool = False) -> Update:
        """A script's update of the ``slot`` it was sent; its steps are noted. A PayloadError if it does not fit."""
        server, name = self._server, result.meta["client_name"]
        if not isinstance(result.params, dict) or not result.params:
            raise PayloadError(
                "no_update",
                "it sends no model: flare.send() an FLModel with params=model.state_dict()",
            )
        self._check_classes(result)
        samples = self._steps(name, result.meta.get(STEPS))
        diff = self._diff(name, result, server.state.bank[slot])
        cluster = next(
            (
                k
                for k in range(server.method.clusters)
                if chosen and slot == cluster_slot(k)
            ),
            None,
        )
        if result.meta.get(STEPS) is not None:
            self._first.setdefault(name, samples)
        unit = "steps" if name in self._first else ""
        server.participants[name] = replace(
            server.participants[name], samples=samples, unit=unit
        )
        return Update(name, samples, {slot: diff}, cluster)

    def _steps(self, name: str, said: Any) -> float:
        """Its number of steps, by which it is weighted: about as many as in its first round.

        It need not be whole: a script may report its samples, or a share of them.
        """
        if said is None:
            self._remark(
                f"{name} reports no number of steps: it counts as 1; add meta={{{STEPS!r}: steps}}"
            )
        steps = (
            1 if said is None else said.item() if isinstance(said, np.generic) else said
        )
        if isinstance(steps, float) and steps.is_integer():
            steps = int(steps)
        if not is_number(steps, MIN_WEIGHT, MAX_SAMPLES):
            limits = f"{MIN_WEIGHT:g}..{MAX_SAMPLES}"
            raise PayloadError(
                "samples",
                f"{name}: {shown(steps)} steps should be a number in {limits}",
            )
        first = self._first.get(name, steps)
        if not first / MOST_TIMES <= steps <= first * MOST_TIMES:
            says = f"{steps} steps, but {first} in its first round; they may be up to {MOST_TIMES} times more or fewer"
            raise PayloadError("samples", f"{name} reports {says}")
        return steps

    def _diff(self, name: str, result: FLModel, sent: Params) -> Params:
        """Its model less the one that it was sent. Missing arrays are unchanged; unknown ones are ignored.

        Arrays that a filter of the site removed count in no mean, as in the results of cfl_flare's own executor.
        """
        processed = result.meta.get(MetaKey.PROCESSED_ALGORITHM)
        if processed is not None:
            undo = "encrypted or packed models cannot be checked, compared or clustered; remove that filter there"
            raise PayloadError(
                "encrypted",
                f"a filter of the site has changed its model by {shown(processed)}: {undo}",
            )
        sends_model = result.params_type != ParamsType.DIFF
        arrays = {key: _as_array(value) for key, value in result.params.items()}
        sent.layout.check_constants(
            {key: array for key, array in arrays.items() if isinstance(array, NUMBERS)}
        )
        known, given = {e.name for e in sent.layout.entries}, sent.layout.untied(arrays)
        history = result.meta.get(MetaKey.FILTER_HISTORY)
        history = history if isinstance(history, list) else []
        odd = [
            key
            for key, array in given.items()
            if not isinstance(key, str) or not isinstance(array, NUMBERS)
        ]
        if odd:
            raise PayloadError("kind", f"{name}: {shown(odd[0])} is no named array")
        strange, missing = sorted(given.keys() - known), sorted(known - given.keys())
        if not known & given.keys():
            theirs, ours = (
                ", ".join(map(shown, names[:3])) for names in (strange, sorted(known))
            )
            raise PayloadError(
                "names",
                f"it sends {theirs}, of which the job's model has none; it has {ours}. A script sends the model that "
                "it trained, by the names that it received; gradients, Hessians or other statistics are for recipes "
                "whose server computes with them",
            )
        if strange:
            left = f"left out ({len(strange)} in all)"
            self._remark(
                f"{name} sends {shown(strange[0])}, which the job's model does not have: {left}"
            )
        if (
            missing and not history
        ):  # what a filter took away, the job or the site wants to stay
            self._remark(
                f"{name} does not send {missing[0]!r}: taken as unchanged ({len(missing)} in all)"
            )
        kinds = sorted(
            {str(np.asarray(a).dtype) for n, a in given.items() if n in known}
            - {"float32", "int64"}
        )
        if kinds:
            self._remark(
                f"{name} sends {', '.join(kinds)}: kept as float32, whole counts as int64"
            )
        filters = [name for name in history if not str(name).startswith(REMOVING)]
        if sends_model and filters:
            reason = f"the site's filter {plain(str(filters[0]), 100)} acts on differences, but the script sends whole"
            raise PayloadError(
                "filtered",
                f"{reason} models: set params_transfer_type = 'DIFF' in the recipe",
            )
        start = (
            sent.arrays()
            if sends_model
            else {n: np.zeros_like(a) for n, a in sent.arrays().items()}
        )
        model = sent.layout.pack(
            {**start, **{n: a for n, a in given.items() if n in known}}
        )
        diff = model - sent if sends_model else model
        if not diff.vector.any():
            self._remark(
                f"{name} sends the model back as it was: does the script train a copy of what it received?"
            )
        present = (
            np.array([e.name in given for e in sent.layout.entries])
            if history and missing
            else None
        )
        return replace(diff, present=present)

    def metrics(self, result: FLModel) -> dict[str, float]:
        """What a script reports of the model that it was sent, as ``served_...``."""
        name, given = result.meta["client_name"], result.metrics or {}
        if not given:
            example = "FLModel(..., metrics={'accuracy': ...})"
            self._remark(
                f"{name} reports no metrics of the model that it is sent: {example}"
            )
        metrics = usable(given)
        for odd in islice(
            (key for key in given if key not in metrics and not is_bookkeeping(key)),
            MAX_METRICS,
        ):
            if (
                name,
                shown(odd),
            ) in self._odd:  # its value may be another one in each round
                continue
            self._odd.add((name, shown(odd)))
            what = f"{shown(odd)}, which is no name for a metric: letters, digits, _ . / -, and none of a run's own"
            if is_metric_name(odd):
                what = f"{odd} = {shown(given[odd])}, which is not a finite number"
            self._remark(f"{name} reports {what}: left out")
        return {f"served_{key}": value for key, value in metrics.items()}


def usable(metrics: Mapping[Any, Any]) -> dict[str, float]:
    """The finite numbers with names that metrics may have, of at most `MAX_METRICS`."""
    named = (
        (key, value)
        for key, value in metrics.items()
        if is_metric_name(key) and not is_bookkeeping(key)
    )
    return {
        key: float(value)
        for key, value in islice(named, MAX_METRICS)
        if is_finite(value)
    }


def is_bookkeeping(name: Any) -> bool:
    """Whether it is what Hugging Face's trainer notes of itself beside the metrics."""
    return isinstance(name, str) and BOOKKEEPING.fullmatch(name) is not None


def metric_of(result: FLModel, name: str) -> float | None:
    """One metric of a result; None if it is missing or not a finite number."""
    value: Any = (result.metrics or {}).get(name)
    return float(value) if is_finite(value) else None


def is_finite(value: Any) -> bool:
    """Whether a reported value is a finite number, within bounds; a tensor or an array of one value is its number."""
    single = isinstance(
        value, (np.number, np.ndarray, torch.Tensor)
    ) and value.shape in ((), (1,))
    return is_number(value.item() if single else value)


def _as_array(value: Any) -> Any:
    """One of a script's parameters as NumPy's array, where tensors travel."""
    if (
        not isinstance(value, torch.Tensor)
        or value.is_complex()
        or value.layout is not torch.strided
    ):
        return value
    value = value.detach().cpu()
    return (value.float() if value.is_floating_point() else value).numpy()


def check_failure(result: FLModel) -> None:
    """Raises a PayloadError if the launcher at the site says that the script has failed."""
    if FAILED not in (result.meta or {}):
        return
    name = result.meta[FAILED]
    if name == SystemExit.__name__:
        raise PayloadError("site_failed", "its script ended before the job")
    if name in (
        BudgetError.failure,
        LedgerError.failure,
    ):  # the site does not let its result leave
        raise PayloadError("site_failed", failure_text(name))
    raise PayloadError("site_failed", f"{_type_of(name)} in its script")


def not_measured(result: FLModel) -> str | None:
    """Why the function that a job names has not measured a model; None if it has, or there is none."""
    meta = result.meta or {}
    return (
        f"{_type_of(meta[NOT_MEASURED])} in its evaluate function"
        if NOT_MEASURED in meta
        else None
    )


def _type_of(name: Any) -> str:
    is_type = (
        isinstance(name, str)
        and len(name) <= LONGEST_TYPE
        and name.isascii()
        and name.isidentifier()
    )
    return name if is_type else "an error"
