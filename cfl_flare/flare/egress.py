# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Control of what leaves a site: a filter for the numbers sent with models, and a check of other filters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.task_utils import get_filters

from cfl_flare.core.config import require
from cfl_flare.core.errors import EncryptionError
from cfl_flare.engine.observers import list_answering
from cfl_flare.engine.task import is_metric_name, is_number
from cfl_flare.flare import wire
from cfl_flare.results.metrics import is_share

ENCRYPTION = "nvflare.app_opt.he"
EVERY, BOOTSTRAP = "*", "bootstrap"
# The answers to observers that are metrics, and the histograms from which metrics follow.
MEASURED, SCORES, MEMBERSHIP = (
    frozenset({"metrics", "cross", BOOTSTRAP}),
    "scores",
    "membership",
)
# The array of methods that holds the metric of this name, for several models.
LOSS = "loss"


def check_filters(fl_ctx: FLContext) -> None:
    """Raises an EncryptionError if a filter on a site's results, the job's or the site's own, encrypts models."""
    of_job = getattr(fl_ctx.get_prop(FLContextKey.RUNNER), "task_result_filters", {})
    check_readable(
        get_filters(
            "task_result_filters", fl_ctx, of_job, wire.TRAIN_TASK, FilterKey.OUT
        )
    )


def check_readable(filters: Iterable[Filter]) -> None:
    """Raises an EncryptionError if one of these filters encrypts models."""
    encrypting = [
        type(f).__name__
        for f in filters
        if any(c.__module__.startswith(ENCRYPTION) for c in type(f).__mro__)
    ]
    require(
        not encrypting,
        f"job: the filter {encrypting[:1]} encrypts models before they leave: the server could not check, compare or "
        "cluster them; remove it from the job, or from the site's privacy.json",
        EncryptionError,
    )


class EgressFilter(Filter):
    """Withholds or rounds the numbers that are sent with a site's models; for the models, FLARE has filters.

    It belongs in the ``task_result_filters`` of the site's ``local/privacy.json``, where no job can remove it. It does
    not change the models, the participants' names, and the cluster that a participant has chosen itself (IFCA). The
    server cannot average without that choice.

    Measures follow from the histograms of scores that a job may ask for. So these are sent only if no metric is
    withheld or rounded. Any other kind of answer passes only a filter that changes nothing. That a site
    objects to a model's leaving passes every filter.

    Args:
        withhold: metrics that are not sent: ``accuracy``, ``macro_f1``, ``loss``, or a training script's own names;
            ``*`` for all of them. Without ``loss`` a participant takes no part in CLoVE's rounds of losses.
            ``scores`` are the histograms from which the server computes an AUROC, with the
            counts of decisions, and ``bootstrap`` all metrics on the draws of the test split.
        round_to: the other metrics are rounded to multiples of this, such as 0.05, and no draws are sent; None sends
            them as they are.
        samples_step: counts of training samples, and of those that a study measures on, are rounded to multiples of
            this, at least one; averages weight the site by the rounded count.
    """

    def __init__(
        self,
        withhold: list[str] | None = None,
        round_to: float | None = None,
        samples_step: int = 1,
    ):
        super().__init__()
        self.withhold, self.round_to, self.samples_step = (
            withhold,
            round_to,
            samples_step,
        )
        odd = [
            name
            for name in withhold or ()
            if name != EVERY and not is_metric_name(name)
        ]
        names = "accuracy, macro_f1, loss, what scripts call theirs, or '*'"
        require(
            not odd,
            f"EgressFilter: withhold = {odd} should be names of metrics: {names}",
        )
        require(
            round_to is None or 0 < round_to <= 1,
            f"EgressFilter: round_to = {round_to} should be in (0, 1] or None",
        )
        require(
            samples_step >= 1,
            f"EgressFilter: samples_step = {samples_step} should be a whole number >= 1",
        )

    @property
    def _withheld_answers(self) -> set[str]:
        """The observers whose answers are not sent at all."""
        if self.withhold or self.round_to is not None:
            return list_answering().keys() - MEASURED
        return (
            list_answering().keys() - MEASURED - {SCORES}
            if self.samples_step > 1
            else set()
        )

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Changes a result of cfl_flare's executor or of a training script; anything else is returned unchanged."""
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
        for counts in content.get(
            "splits", {}
        ).values():  # of a study: how many samples it measures on
            counts.update(
                {
                    split: self._coarse(count) if count else 0
                    for split, count in counts.items()
                }
            )
        for result in content.get("results", {}).values():
            result["metrics"] = self._allowed(result["metrics"])
            if "cross" in result:
                result["cross"] = {
                    model: self._allowed(metrics)
                    for model, metrics in result["cross"].items()
                }
            if "bootstrap" in result:
                self._resample(result)
            if "samples" in result:
                result["samples"] = self._coarse(result["samples"])
            objects = result.get(MEMBERSHIP, {}).get("objects", False)
            for key in self._withheld_answers:
                result.pop(key, None)
            if (
                objects and MEMBERSHIP not in result
            ):  # the operator's bound holds, whatever the filter withholds
                result[MEMBERSHIP] = {"models": {}, "objects": True}
        dxo.data = {
            key: part
            for key, part in dxo.data.items()
            if key.rpartition("/#")[2] not in self._withheld_answers
        }
        for key, model in dxo.data.items():
            self._coarsen(model)
            if key.endswith(f"/{wire.ARRAYS}"):
                model.data = self._arrays(model.data)
        dxo.data = {key: model for key, model in dxo.data.items() if model.data}
        return dxo.update_shareable(shareable)

    def _of_script(self, dxo: DXO) -> None:
        if dxo.data_kind == DataKind.METRICS:
            dxo.data = self._allowed(dxo.data)
        if MetaKey.INITIAL_METRICS in dxo.meta:
            dxo.set_meta_prop(
                MetaKey.INITIAL_METRICS,
                self._allowed(dxo.get_meta_prop(MetaKey.INITIAL_METRICS)),
            )
        self._coarsen(dxo)

    def _allowed(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The metrics to send, rounded. ``withhold`` has the ends of names: of ``trained_loss``, ``val/loss``."""
        if EVERY in (self.withhold or ()):
            return {}
        ends = tuple(f"_{name}" for name in self.withhold or ())
        sent = {
            n: v
            for n, v in metrics.items()
            if not re.sub("[./-]", "_", f"_{n}").endswith(ends)
        }
        if self.round_to is None:
            return sent
        values = {
            n: v.item() if isinstance(v, np.generic) else v for n, v in sent.items()
        }
        return {
            n: self._rounded(n, v) for n, v in values.items() if is_number(v)
        }  # what is no number has no multiple

    def _arrays(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """The arrays that a method asked for; losses of several models are treated as the metric."""
        sent = dict(arrays)
        if LOSS not in sent:
            return sent
        if not self._allowed({LOSS: 0.0}):
            del sent[LOSS]
        elif self.round_to is not None:
            sent[LOSS] = np.round(sent[LOSS] / self.round_to) * self.round_to
        return sent

    def _resample(self, result: dict[str, Any]) -> None:
        """Leaves out the draws of a withheld metric, and all of them if metrics are rounded.

        The mean of many rounded draws would be finer than a rounded metric.
        """
        drawn = result.pop("bootstrap")
        if BOOTSTRAP in (self.withhold or ()) or self.round_to is not None:
            return
        sent = {
            name: values
            for name, values in drawn["values"].items()
            if self._allowed({name: 0.0})
        }
        if sent:
            result["bootstrap"] = {**drawn, "values": sent}

    def _rounded(self, name: str, value: float) -> float:
        """A multiple of the step; a share stays one."""
        assert self.round_to is not None
        rounded = round(round(value / self.round_to) * self.round_to, 10)
        return min(1.0, rounded) if is_share(name, value, value) else rounded

    def _coarse(self, samples: int) -> int:
        return max(1, round(samples / self.samples_step)) * self.samples_step

    def _coarsen(self, model: Any) -> None:
        key = MetaKey.NUM_STEPS_CURRENT_ROUND
        if isinstance(model, DXO) and key in (model.meta or {}):
            model.set_meta_prop(key, self._coarse(model.get_meta_prop(key)))
