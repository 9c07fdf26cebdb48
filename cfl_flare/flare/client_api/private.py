# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Private layers for training scripts: arrays that each site trains for itself, with the script unchanged."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.recipe.spec import Recipe

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.config import check_run_name, require
from cfl_flare.core.files import make_folder, writing
from cfl_flare.core.private import bounded
from cfl_flare.flare.client_api.cfl_launcher import as_tensors
from cfl_flare.flare.compat import config_of, simulated
from cfl_flare.flare.policy import store_for

TRAIN, EVALUATE, SUBMIT = AppConstants.TASK_TRAIN, AppConstants.TASK_VALIDATION, AppConstants.TASK_SUBMIT_MODEL
KINDS = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]
FILE = "private.safetensors"
# In the folder of the job, which FLARE makes anew for each: the file is that of this job.
MARKER = "cfl_private"


class PrivateArrays(DXOFilter):
    """Takes a site's private arrays out of all that leaves it, and puts them into the models that arrive.

    It filters tasks and results, at the site. The site keeps what its script sent when it trained last, or what arrived
    first. These arrays are in ``private.safetensors`` in the run's folder below the site's state root.

    Args:
        private: the arrays' names, or a regular expression that is searched in the names.
        run_name: the run's folder.
        resume_from: name of the run that a resumed one goes on with.
        travels: the names that may leave; None for all that are not private.
    """

    def __init__(
        self,
        private: str | list[str],
        run_name: str,
        resume_from: str | None = None,
        travels: list[str] | None = None,
    ):
        super().__init__(KINDS, KINDS)
        self.private, self.run_name, self.resume_from, self.travels = private, run_name, resume_from, travels
        check_run_name(run_name)
        self._check_pattern(())

    def _check_pattern(self, names: Collection[str]) -> None:
        """Raises a ConfigError if the names cannot be searched by a pattern in few steps."""
        if not isinstance(self.private, list):
            bounded(self.private, names, f"private = {self.private!r}")

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Changes a model that arrives or leaves."""
        self._check_pattern(dxo.data.keys())
        path = self._path(fl_ctx)
        stored = load_arrays(path)[0] if path.exists() else {}
        for name in stored:
            require(
                self._is_private(name),
                f"run {self.run_name!r}: this site has kept {name!r} for itself, and private = {self.private!r} would "
                "let it leave; name it there, or take another run_name without resume_from",
            )
        arrays = {name: as_array(array) for name, array in dxo.data.items() if self._is_private(name)}
        require(
            bool(arrays or stored),
            f"private = {self.private!r} matches none of {', '.join(map(str, dxo.data))}; name arrays of the model",
        )
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            return self._put_back(dxo, arrays, stored, fl_ctx)
        if arrays and fl_ctx.get_prop(FLContextKey.TASK_NAME) == TRAIN:
            odd = [name for name, a in arrays.items() if name not in stored or a.shape != stored[name].shape]
            if odd:
                self.log_warning(fl_ctx, f"private array {odd[0]} is not as it arrived: what was kept before stays")
            else:
                start = stored if dxo.data_kind == DataKind.WEIGHT_DIFF else {}
                self._store({**stored, **{n: start[n] + a if start else a for n, a in arrays.items()}}, fl_ctx)
        dxo.data = {name: array for name, array in dxo.data.items() if self._leaves(name, array)}
        return dxo

    def _leaves(self, name: str, value: Any) -> bool:
        """Whether it is an array of the model that is not private; other names may be wrappers' of private ones."""
        named = not self._is_private(name) if self.travels is None else name in self.travels
        return named and hasattr(value, "shape")

    def _put_back(
        self, dxo: DXO, arrays: Mapping[str, np.ndarray], stored: Mapping[str, np.ndarray], fl_ctx: FLContext
    ) -> DXO | None:
        """The model with the site's own arrays; those that arrive for the first time become the site's own."""
        if dxo.data_kind != DataKind.WEIGHTS:
            return None
        if arrays.keys() - stored.keys():
            self._store({**arrays, **stored}, fl_ctx)
        for name in arrays.keys() & stored.keys():
            require(
                arrays[name].shape == stored[name].shape,
                f"run {self.run_name!r}: {name} has shape {arrays[name].shape}, but this site keeps one of "
                f"{stored[name].shape}; resume a run of the same model",
            )
        tensors = any(hasattr(value, "detach") for value in dxo.data.values())
        dxo.data = {**dxo.data, **(as_tensors(stored) if tensors else stored)}
        return dxo

    def _is_private(self, name: str) -> bool:
        return name in self.private if isinstance(self.private, list) else bool(re.search(self.private, name))

    def _store(self, arrays: Mapping[str, np.ndarray], fl_ctx: FLContext) -> None:
        broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if broken:
            self.log_warning(fl_ctx, f"private array {broken[0]} is not finite: those of the round before are kept")
        else:
            save_arrays(self._path(fl_ctx), arrays, {}, durable=not simulated(fl_ctx))

    def _path(self, fl_ctx: FLContext) -> Path:
        """The site's file, which is empty or that of the resumed run when a job begins."""
        path = store_for(self.run_name, fl_ctx).folder / FILE
        marker = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())) / MARKER
        if not marker.exists():
            make_folder(path.parent, private=True)
            resumed = None if self.resume_from is None else store_for(self.resume_from, fl_ctx).folder / FILE
            if path.exists() and resumed != path:
                with writing(path):
                    path.replace(path.with_name(f"previous-{FILE}"))
            if resumed is not None and resumed != path and resumed.exists():
                save_arrays(path, load_arrays(resumed)[0], {})
            with writing(marker):
                marker.touch()
        return path


def keep_private(recipe: Recipe, private: str, run_name: str) -> None:
    """Has each site keep some layers for itself, in any of FLARE's recipes whose script uses the Client API.

    With `ClusteredRecipe`, use its setting ``private``.

    Args:
        recipe: such as FLARE's FedAvgRecipe.
        private: a regular expression that is searched in the names of the model's arrays.
        run_name: of the folder below a site's state root in which it keeps them.
    """
    job = config_of(recipe)
    job.set_app_packages([*job.app_packages, "cfl_flare"])  # it is installed at the sites, and not sent with the job
    for task in (TRAIN, EVALUATE, SUBMIT):
        recipe.add_client_input_filter(PrivateArrays(private, run_name), tasks=[task])
        recipe.add_client_output_filter(PrivateArrays(private, run_name), tasks=[task])


def as_array(array: Any) -> np.ndarray:
    """An array or a torch tensor as NumPy's."""
    if not hasattr(array, "detach"):
        return np.asarray(array)
    return np.asarray((array.float() if array.is_floating_point() else array).detach().cpu().numpy())
