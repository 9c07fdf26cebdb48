# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Filters at a site with a training script: private arrays stay there, and what leaves is in the ledger of privacy."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.recipe.spec import Recipe

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.config import check_run_name, require
from cfl_flare.core.errors import BudgetError, CFLError, DataError
from cfl_flare.core.files import make_folder, writing
from cfl_flare.core.private import bounded
from cfl_flare.core.text import shown
from cfl_flare.data import SiteData
from cfl_flare.data.sources import PATIENT
from cfl_flare.flare.allowed import Policy
from cfl_flare.flare.client_api.cfl_launcher import FAILED, as_tensors
from cfl_flare.flare.compat import config_of, simulated
from cfl_flare.flare.executor import ClusteredExecutor
from cfl_flare.flare.policy import ledger_for, store_for, study_of
from cfl_flare.flare.several import SeveralExecutor
from cfl_flare.flare.site_run import log_failure
from cfl_flare.flare.study.executor import StudyExecutor
from cfl_flare.results.balance import LedgerJob
from cfl_flare.results.ledger import SPENDS
from cfl_flare.results.schema import LONGEST
from cfl_flare.training.privacy import TRAIN as TRAINING
from cfl_flare.training.privacy import Spend

TRAIN, EVALUATE, SUBMIT = (
    AppConstants.TASK_TRAIN,
    AppConstants.TASK_VALIDATION,
    AppConstants.TASK_SUBMIT_MODEL,
)
KINDS = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]
FILE = "private.safetensors"
# In the folder of the job, which FLARE makes anew for each: the file is that of this job.
MARKER = "cfl_private"
# Of an FLModel's meta; the most mechanisms that one result may name; a script's job states no delta.
REPORT, MOST_SPENDS, DELTA = "privacy", 100, 1e-5


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
        self.private, self.run_name, self.resume_from, self.travels = (
            private,
            run_name,
            resume_from,
            travels,
        )
        check_run_name(run_name)
        self._check_pattern(())

    def _check_pattern(self, names: Collection[str]) -> None:
        """Raises a ConfigError if the names cannot be searched by a pattern in few steps."""
        if not isinstance(self.private, list):
            bounded(self.private, names, f"private = {self.private!r}")

    def process_dxo(
        self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext
    ) -> DXO | None:
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
        arrays = {
            name: as_array(array)
            for name, array in dxo.data.items()
            if self._is_private(name)
        }
        require(
            bool(arrays or stored),
            f"private = {self.private!r} matches none of {', '.join(map(str, dxo.data))}; name arrays of the model",
        )
        if (
            self.get_prop(FilterContextKey.CHAIN_TYPE)
            == FilterChainType.TASK_DATA_CHAIN
        ):
            return self._put_back(dxo, arrays, stored, fl_ctx)
        if arrays and fl_ctx.get_prop(FLContextKey.TASK_NAME) == TRAIN:
            odd = [
                name
                for name, a in arrays.items()
                if name not in stored or a.shape != stored[name].shape
            ]
            if odd:
                self.log_warning(
                    fl_ctx,
                    f"private array {odd[0]} is not as it arrived: what was kept before stays",
                )
            else:
                start = stored if dxo.data_kind == DataKind.WEIGHT_DIFF else {}
                self._store(
                    {
                        **stored,
                        **{n: start[n] + a if start else a for n, a in arrays.items()},
                    },
                    fl_ctx,
                )
        dxo.data = {
            name: array for name, array in dxo.data.items() if self._leaves(name, array)
        }
        return dxo

    def _leaves(self, name: str, value: Any) -> bool:
        """Whether it is an array of the model that is not private; other names may be wrappers' of private ones."""
        named = (
            not self._is_private(name) if self.travels is None else name in self.travels
        )
        return named and hasattr(value, "shape")

    def _put_back(
        self,
        dxo: DXO,
        arrays: Mapping[str, np.ndarray],
        stored: Mapping[str, np.ndarray],
        fl_ctx: FLContext,
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
        return (
            name in self.private
            if isinstance(self.private, list)
            else bool(re.search(self.private, name))
        )

    def _store(self, arrays: Mapping[str, np.ndarray], fl_ctx: FLContext) -> None:
        broken = [
            name for name, array in arrays.items() if not np.isfinite(array).all()
        ]
        if broken:
            self.log_warning(
                fl_ctx,
                f"private array {broken[0]} is not finite: those of the round before are kept",
            )
        else:
            save_arrays(self._path(fl_ctx), arrays, {}, durable=not simulated(fl_ctx))

    def _path(self, fl_ctx: FLContext) -> Path:
        """The site's file, which is empty or that of the resumed run when a job begins."""
        path = store_for(self.run_name, fl_ctx).folder / FILE
        marker = (
            Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
            / MARKER
        )
        if not marker.exists():
            make_folder(path.parent, private=True)
            resumed = (
                None
                if self.resume_from is None
                else store_for(self.resume_from, fl_ctx).folder / FILE
            )
            if path.exists() and resumed != path:
                with writing(path):
                    path.replace(path.with_name(f"previous-{FILE}"))
            if resumed is not None and resumed != path and resumed.exists():
                save_arrays(path, load_arrays(resumed)[0], {})
            with writing(marker):
                marker.touch()
        return path


class LedgerFilter(Filter):
    """Writes into the site's ledger what a training script says to have spent, before its result leaves.

    It belongs in the ``task_result_filters`` of each scope of the site's ``local/privacy.json``, where no job can
    remove it; ``cfl-flare site prepare KIT --epsilon-budget 8`` puts it there. In the meta of each `FLModel` a script
    says ``"privacy": [{"noise_multiplier": 1.1, "sample_rate": 0.01, "steps": 100}]``. That is taken out. At a site
    with an ``epsilon_budget``, a result without it does not leave, nor one that the budget does not pay for.

    Participants of cfl_flare's executors write into the ledger themselves.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The result without what it says on privacy; the code of the failure where it may not leave."""
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
        executor = (
            runner.find_executor(fl_ctx.get_prop(FLContextKey.TASK_NAME))
            if runner is not None
            else None
        )
        if simulated(fl_ctx) or type(executor) in (
            ClusteredExecutor,
            SeveralExecutor,
            StudyExecutor,
        ):
            return shareable
        try:
            return self._entered(shareable, fl_ctx)
        except CFLError as error:
            log_failure(
                self, "the script's result: privacy", error.failure, str(error), fl_ctx
            )
            return FLModelUtils.to_shareable(
                FLModel(metrics={}, meta={FAILED: error.failure})
            )

    def _entered(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        budget = Policy.of(fl_ctx).epsilon_budget
        try:
            dxo = from_shareable(shareable)
        except ValueError:  # such as the answer of a script that has failed
            code = str(shareable.get_return_code())
            return (
                shareable
                if budget is None
                else make_reply(code if code != ReturnCode.OK else ReturnCode.ERROR)
            )
        report = (dxo.meta or {}).pop(REPORT, None)
        if budget is None and report is None:
            return shareable
        example = "[{'noise_multiplier': 1.1, 'sample_rate': 0.01, 'steps': 100}]"
        spends = [spend_of(part) for part in report] if isinstance(report, list) else []
        valid = 0 < len(spends) <= MOST_SPENDS and SPENDS(spends)
        said = f"the script's meta: {REPORT} = {shown(report)}, and this site's epsilon_budget is {budget}"
        require(
            valid, f"{said}; let the script say what it spends: {example}", BudgetError
        )
        job, site = str(fl_ctx.get_job_id()), fl_ctx.get_identity_name()
        ledger = ledger_for(data_of(fl_ctx), fl_ctx)
        ledger.open()
        entries = [Spend(**spend) for spend in spends]
        patients = os.environ.get(
            PATIENT, ""
        )  # a script is told, as it is told where the data lies
        ledger.enter(
            LedgerJob(job, job, "", inf, DELTA, patients), site, entries, round=0
        )
        return dxo.update_shareable(shareable)


def spend_of(part: Any) -> dict[str, Any]:
    """One of a script's reports as a line of the ledger has it; numbers may be NumPy's."""
    said = part if isinstance(part, dict) else {}
    numbers = {
        name: said.get(name) for name in ("noise_multiplier", "sample_rate", "steps")
    }
    plain = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in numbers.items()
    }
    return {"what": "script", "split": TRAINING, **plain}


def data_of(fl_ctx: FLContext) -> str:
    """Where the data lies that the operator names for the job's study; empty if the operator names none."""
    try:
        return str(SiteData(study=study_of(fl_ctx)).located()[0].resolve())[-LONGEST:]
    except DataError:
        return ""


def keep_private(recipe: Recipe, private: str, run_name: str) -> None:
    """Has each site keep some layers for itself, in any of FLARE's recipes whose script uses the Client API.

    With `ClusteredRecipe`, use its setting ``private``.

    Args:
        recipe: such as FLARE's FedAvgRecipe.
        private: a regular expression that is searched in the names of the model's arrays.
        run_name: of the folder below a site's state root in which it keeps them.
    """
    job = config_of(recipe)
    job.set_app_packages(
        [*job.app_packages, "cfl_flare"]
    )  # it is installed at the sites, and not sent with the job
    for task in (TRAIN, EVALUATE, SUBMIT):
        recipe.add_client_input_filter(PrivateArrays(private, run_name), tasks=[task])
        recipe.add_client_output_filter(PrivateArrays(private, run_name), tasks=[task])


def as_array(array: Any) -> np.ndarray:
    """An array or a torch tensor as NumPy's."""
    if not hasattr(array, "detach"):
        return np.asarray(array)
    return np.asarray(
        (array.float() if array.is_floating_point() else array).detach().cpu().numpy()
    )
