# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A round's numbers for FLARE's experiment tracking: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo


def series(name: str) -> str:
    """What a number of a round's record is called there: the served models' are simply the models'.

    >>> series("cluster-0/served_accuracy")
    'cluster-0/accuracy'
    """
    return re.sub(r"(^|/)served_", r"\1", name)


def track(component: FLComponent, scalars: Mapping[str, float], number: int) -> None:
    """Hands a round's numbers to whoever listens in this process.

    Args:
        component: who sends them.
        scalars: by name.
        number: the round, counted from 0.
    """
    engine = component.engine
    with engine.new_context() as fl_ctx:
        for name, value in scalars.items():
            dxo = create_analytic_dxo(series(name), value, AnalyticsDataType.SCALAR, global_step=number)
            send_analytic_dxo(component, dxo, fl_ctx)
