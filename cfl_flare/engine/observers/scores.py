# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Histograms of participants' scores: an AUROC and a macro-F1 over all of them, and the run's curves."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from cfl_flare.core.errors import PayloadError
from cfl_flare.engine.observers.observer import Asked, Observer, Probe, Running
from cfl_flare.engine.task import MAX_SAMPLES
from cfl_flare.results.curves import Scored, save_curves
from cfl_flare.results.metrics import RoundMetrics
from cfl_flare.results.pooled import with_pooled


class Scores(Observer):
    """Counts of test samples by the score of each class, with each measurement.

    Args:
        scored: what histograms are of, and what may be made of them; None where none are asked for.
    """

    key: ClassVar[str] = "scores"
    setting: ClassVar[str] = "score_bins"

    def __init__(self, scored: Scored | None):
        self._scored = scored

    @staticmethod
    def answer(question: Any, probe: Probe) -> np.ndarray | None:
        return probe.learner.score_counts(probe.outputs) if probe.sends_counts else None

    def check(self, answer: Any, request: Asked) -> np.ndarray:
        """Counts of one test split, and those of decisions in the same rows: ``(classes, 2, bins + 1)``."""
        scored = self._scored if request.task.evaluate else None
        if scored is None:
            raise PayloadError(
                "scores", f"{request.name}: it was not asked for histograms of scores"
            )
        request.require_tested()
        refuse_unless = partial(request.require, code="scores")
        refuse_unless(
            isinstance(answer, np.ndarray),
            "its histograms of scores should be one array of counts",
        )
        shape, sent = (
            (*scored.shape[:2], scored.shape[2] + 1),
            f"{answer.dtype} of shape {answer.shape}",
        )
        whole_numbers = answer.dtype.kind in "iu" and answer.shape == shape
        refuse_unless(
            whole_numbers, f"its histograms are {sent}, not whole numbers of {shape}"
        )
        ends = int(answer.min()), int(answer.max())
        refuse_unless(
            ends[0] >= 0 and ends[1] <= MAX_SAMPLES,
            f"its histograms hold {ends}, which is no count",
        )
        of_rows, decided = (
            answer[..., :-1].sum(axis=2, dtype=np.int64),
            answer[..., -1].astype(np.int64),
        )
        samples = of_rows.sum(axis=1)
        same = samples.min() == samples.max() and 1 <= samples[0] <= MAX_SAMPLES
        counts = f"{samples.min()} to {samples.max()} samples by class, not the same in 1..{MAX_SAMPLES}"
        refuse_unless(same, f"its histograms count {counts}")
        fewer = "its histograms have fewer samples than decisions about them"
        refuse_unless(not (decided > of_rows).any(), fewer)
        labels, decisions = of_rows[:, 1].sum(), decided.sum()
        sums = f"{labels} labels and {decisions} decisions, not one of each of {samples[0]} samples"
        refuse_unless(
            scored.link != "softmax" or samples[0] == labels == decisions,
            f"its histograms have {sums}",
        )
        return answer

    def collect(self, server: Running, measured: RoundMetrics) -> RoundMetrics:
        if self._scored is None:
            return measured
        counts = server.round.answers(self.key)
        share = server.settings.max_weight_share
        return with_pooled(
            measured, counts, server.participants, server.state.assignment, share
        )

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        """The curves of the last measurement."""
        if self._scored is None or server.recorder is None:
            return
        of_round = (
            server.round.answers(self.key),
            server.participants,
            server.state.assignment,
        )
        curves = self._scored.curves(
            *of_round, server.state.round - 1, server.settings.max_weight_share
        )
        save_curves(server.recorder.folder, curves)
