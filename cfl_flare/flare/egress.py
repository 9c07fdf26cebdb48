# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What leaves a site: its say in the numbers beside models, and the filters that cannot work here."""

from __future__ import annotations

from typing import Any

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.task_utils import get_filters

from cfl_flare.core.config import require
from cfl_flare.flare import wire

METRICS = ("accuracy", "macro_f1", "loss")
ENCRYPTION = "nvflare.app_opt.he"


def check_filters(fl_ctx: FLContext) -> None:
    """Whether the filters on a site's answers, the job's and the site's own, leave the server models to work with.

    Raises:
        ConfigError: one of them encrypts.
    """
    runner = fl_ctx.get_prop(FLContextKey.RUNNER)
    filters = get_filters(
        "task_result_filters", fl_ctx, getattr(runner, "task_result_filters", {}), wire.TRAIN_TASK, FilterKey.OUT
    )
    encrypting = [
        type(f).__name__ for f in filters if any(c.__module__.startswith(ENCRYPTION) for c in type(f).__mro__)
    ]
    require(
        not encrypting,
        f"job: the filter {encrypting[:1]} encrypts the models that leave: the server could neither check nor compare "
        "nor cluster them; take it out of the job, or of the site's privacy.json",
    )


class EgressFilter(Filter):
    """Withholds or coarsens the numbers that go with a site's models; the models have FLARE's own filters.

    It belongs in the ``task_result_filters`` of the site's ``local/privacy.json``, where no job can leave it out. What
    it does not touch: the models, participants' names, and for a method whose participants choose their cluster
    themselves (IFCA) that choice, without which the server cannot average.

    Args:
        withhold: metrics of the own test split that are not sent: of ``accuracy``, ``macro_f1``, ``loss``.
        round_to: the others are rounded to multiples of this, as 0.05; None sends them as they are.
        samples_step: counts of training samples are rounded to multiples of this, and are at least one of it: averages
            weigh this site by what is sent.
    """

    def __init__(self, withhold: list[str] | None = None, round_to: float | None = None, samples_step: int = 1):
        super().__init__()
        self.withhold, self.round_to, self.samples_step = withhold, round_to, samples_step
        unknown = [name for name in withhold or () if name not in METRICS]
        require(not unknown, f"EgressFilter: withhold = {unknown} should be among {', '.join(METRICS)}")
        require(
            round_to is None or 0 < round_to <= 1, f"EgressFilter: round_to = {round_to} should be in (0, 1] or None"
        )
        require(samples_step >= 1, f"EgressFilter: samples_step = {samples_step} should be a whole number >= 1")

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Changes an answer of cfl_flare's executor, or of a training script; what is neither passes as it is."""
        try:
            dxo = from_shareable(shareable)
        except ValueError:  # a reply without content, such as an aborted task's
            return shareable
        if dxo.data_kind in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF, DataKind.METRICS):
            self._of_script(dxo)
            return dxo.update_shareable(shareable)
        content = (dxo.meta or {}).get(wire.META)
        if dxo.data_kind != DataKind.COLLECTION or not isinstance(content, dict):
            return shareable
        for participant in content.get("participants", []):
            participant["samples"] = self._coarse(participant["samples"])
        for said in content.get("answers", {}).values():
            said["metrics"] = self._allowed(said["metrics"])
            if "cross" in said:
                said["cross"] = {model: self._allowed(found) for model, found in said["cross"].items()}
            if "samples" in said:
                said["samples"] = self._coarse(said["samples"])
        for model in dxo.data.values():
            self._coarsen(model)
        return dxo.update_shareable(shareable)

    def _of_script(self, dxo: DXO) -> None:
        if dxo.data_kind == DataKind.METRICS:
            dxo.data = self._allowed(dxo.data)
        elif MetaKey.INITIAL_METRICS in dxo.meta:
            dxo.set_meta_prop(MetaKey.INITIAL_METRICS, self._allowed(dxo.get_meta_prop(MetaKey.INITIAL_METRICS)))
        self._coarsen(dxo)

    def _allowed(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """What may leave. They are called ``served_accuracy``, ``trained_loss``; in a script ``loss``, ``val_loss``."""
        held = self.withhold or ()
        free = {n: v for n, v in metrics.items() if n not in held and n.partition("_")[2] not in held}
        return {
            name: self._rounded(value) if isinstance(value, (int, float)) else value for name, value in free.items()
        }

    def _rounded(self, value: float) -> float:
        return value if self.round_to is None else round(round(value / self.round_to) * self.round_to, 10)

    def _coarse(self, samples: int) -> int:
        return max(1, round(samples / self.samples_step)) * self.samples_step

    def _coarsen(self, model: Any) -> None:
        if isinstance(model, DXO) and MetaKey.NUM_STEPS_CURRENT_ROUND in (model.meta or {}):
            model.set_meta_prop(
                MetaKey.NUM_STEPS_CURRENT_ROUND, self._coarse(model.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND))
            )
