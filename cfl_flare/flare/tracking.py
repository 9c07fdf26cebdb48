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
    """The name of a metric in experiment tracking: without ``served_``.

    >>> series("cluster-0/served_accuracy")
    'cluster-0/accuracy'
    """
    return re.sub(r"(^|/)served_", r"\1", name)


def track(component: FLComponent, scalars: Mapping[str, float], number: int) -> None:
    """Sends a round's numbers to the tracking components of this process.

    Args:
        component: the sender.
        scalars: by name.
        number: the round, counted from 0.
    """
    engine = component.engine
    with engine.new_context() as fl_ctx:
        for name, value in scalars.items():
            dxo = create_analytic_dxo(series(name), value, AnalyticsDataType.SCALAR, global_step=number)
            send_analytic_dxo(component, dxo, fl_ctx)
