# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The results of training scripts of FLARE's Client API: how an FLModel becomes an update and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from nvflare.apis.dxo import MetaKey
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from cfl_flare.core.errors import PayloadError
from cfl_flare.core.params import Params
from cfl_flare.engine.server import Server
from cfl_flare.methods import Update
from cfl_flare.methods.slots import cluster_slot

STEPS = FLMetaKey.NUM_STEPS_CURRENT_ROUND


class ScriptResults:
    """Reads what scripts send.

    Args:
        server: the server that the results are for.
        remark: called with each remark on what a script sends, such as a missing number of steps.
    """

    def __init__(self, server: Server, remark: Callable[[str], None]):
        self._server, self._remark = server, remark

    def update(self, result: FLModel, slot: str) -> Update:
        """The update of a script that was sent the model of a slot; also notes its number of steps as its samples.

        Raises:
            PayloadError: it has no model, or one that does not fit.
        """
        server, name = self._server, result.meta["client_name"]
        if not isinstance(result.params, dict) or not result.params:
            raise PayloadError("no_update", "it sends no model: flare.send() an FLModel with params=model.state_dict()")
        steps = result.meta.get(STEPS)
        if steps is None:
            self._remark(f"{name} reports no number of steps: it counts as 1; add meta={{{STEPS!r}: steps}}")
        samples = 1 if steps is None else steps
        if isinstance(samples, (float, np.integer)) and float(samples).is_integer():
            samples = int(samples)
        diff = self._diff(name, result, server.state.bank[slot])
        chosen = next((k for k in range(server.method.clusters) if slot == cluster_slot(k)), None)
        if isinstance(samples, int) and not isinstance(samples, bool):
            server.participants[name] = replace(server.participants[name], samples=samples)
        return Update(name, samples, {slot: diff}, chosen if server.method.traits.assigns_on_site else None)

    def _diff(self, name: str, result: FLModel, sent: Params) -> Params:
        """Its model less the one that it was sent. Missing arrays are unchanged; unknown ones are ignored.

        Arrays that a filter of the site removed count in no mean, as in the results of cfl_flare's own executor.
        """
        whole = result.params_type != ParamsType.DIFF
        known, given = {e.name for e in sent.layout.entries}, dict(result.params)
        strange, missing = sorted(given.keys() - known), sorted(known - given.keys())
        if not known & given.keys():
            raise PayloadError("names", f"it sends {strange[0]!r} and others, of which the job's model has none")
        if strange:
            self._remark(
                f"{name} sends {strange[0]!r}, which the job's model does not have: left out ({len(strange)} in all)"
            )
        if missing:
            self._remark(f"{name} does not send {missing[0]!r}: taken as unchanged ({len(missing)} in all)")
        kinds = sorted({str(np.asarray(a).dtype) for n, a in given.items() if n in known} - {"float32", "int64"})
        if kinds:
            self._remark(f"{name} sends {', '.join(kinds)}: kept as float32, whole counts as int64")
        history = result.meta.get(MetaKey.FILTER_HISTORY) or ()
        filters = [name for name in history if "ExcludeVars" not in name]
        if whole and filters:
            reason = f"the site's filter {filters[0]} acts on differences, but the script sends whole models"
            raise PayloadError("filtered", f"{reason}: set params_transfer_type = 'DIFF' in the recipe")
        start = sent.arrays() if whole else {n: np.zeros_like(a) for n, a in sent.arrays().items()}
        model = sent.layout.pack({**start, **{n: a for n, a in given.items() if n in known}})
        diff = model - sent if whole else model
        if not diff.vector.any():
            self._remark(f"{name} sends the model back as it was: does the script train a copy of what it received?")
        present = np.array([e.name in given for e in sent.layout.entries]) if history and missing else None
        return replace(diff, present=present)

    def metrics(self, result: FLModel) -> dict[str, float]:
        """What a script reports of the model that it was sent, as ``served_...``."""
        name, given = result.meta["client_name"], result.metrics or {}
        if not given:
            self._remark(
                f"{name} reports no metrics of the model that it is sent: FLModel(..., metrics={{'accuracy': ...}})"
            )
        odd = sorted(key for key, value in given.items() if not is_finite(value))
        if odd:
            self._remark(f"{name} reports {odd[0]} = {given[odd[0]]!r}, which is not a finite number: left out")
        return {f"served_{key}": float(value) for key, value in given.items() if is_finite(value)}


def metric_of(result: FLModel, name: str) -> float | None:
    """One metric of a result; None if it is missing or not a finite number."""
    value: Any = (result.metrics or {}).get(name)
    return float(value) if is_finite(value) else None


def is_finite(value: Any) -> bool:
    """Whether a reported value is a finite number."""
    return isinstance(value, (int, float, np.number)) and bool(np.isfinite(value))
