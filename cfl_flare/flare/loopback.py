# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Messages that go through FLARE's serialization and come back in the same process, for checks of a method."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs

from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.task import Result, Task
from cfl_flare.flare.schema import decode_results
from cfl_flare.flare.wire import (
    decode_task,
    encode_models,
    encode_results,
    encode_tasks,
    to_shareable,
)


def _serialize(message: Any) -> Any:
    """Serialize a message and read it again."""
    flare_decomposers.register()
    common_decomposers.register()
    return fobs.loads(fobs.dumps(message))


def send_tasks(
    tasks: Mapping[str, Task],
    models: Mapping[str, Params],
    number: int,
    layout: Layout,
) -> tuple[dict[str, Task], dict[str, Params]]:
    """Send a round's tasks and models as a server does.

    Args:
        tasks: the task of each participant.
        models: the models that the tasks name, by slot.
        number: the round.
        layout: the arrays of a model that travel.

    Returns:
        The tasks and the models as a site reads them.

    Raises:
        PayloadError: the models do not fit the layout.
    """
    content = {"round": number, "tasks": encode_tasks(tasks)}
    message = to_shareable(encode_models(models), content)
    read_tasks, read_models, _ = decode_task(_serialize(message), layout)
    return read_tasks, read_models


def send_results(
    results: Sequence[Result],
    models: Mapping[str, Params],
    number: int,
    hosted: Collection[str],
) -> list[Result]:
    """Send the results of a site as an executor does.

    Args:
        results: the results of the site's participants.
        models: the models that the differences refer to, by slot.
        number: the round.
        hosted: the names of the site's participants.

    Returns:
        The results as the server reads them.

    Raises:
        PayloadError: the server refuses a result.
    """
    reply = _serialize(encode_results(results, {"round": number}))
    read = []
    message = FLModelUtils.from_shareable(reply)
    for result in decode_results(message, models, number, hosted):
        if isinstance(result, tuple):
            _, error = result
            raise error
        read.append(result)
    return read
