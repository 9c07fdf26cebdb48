# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Aftercare: use a run's models after training.

Adds: the commands ``predict`` (rows or images, by a run's model), ``onboard`` (a newcomer gets its cluster and its
model), ``drift`` (a test whether a hospital's new data still fits its model) and ``convert`` (ONNX).
Hooks: `commands`.
Requires: no other extension. ``convert`` needs the packages of ``cfl-flare[onnx]``.

Participants that a simulation holds back by ``unseen`` join by `cfl_flare.engine.newcomers`, which stays in the engine.
"""

from __future__ import annotations

from cfl_flare.extensions import Command, Extension

HERE = "cfl_flare.extensions.aftercare"


class Aftercare(Extension):
    """Commands for a finished run's models."""

    name = "aftercare"
    commands = {  # noqa: RUF012
        "onboard": Command(
            f"{HERE}.onboard",
            "give a participant that was not in training its cluster and its model",
        ),
        "predict": Command(
            f"{HERE}.predict", "predict with a run's model, at a site or at the server"
        ),
        "drift": Command(
            f"{HERE}.drift",
            "say whether a hospital's new data has left the cluster whose model it was given",
        ),
        "convert": Command(
            f"{HERE}.predict",
            "write a run's model as an ONNX graph, with a JSON file that describes it",
        ),
    }


EXTENSION = Aftercare()
