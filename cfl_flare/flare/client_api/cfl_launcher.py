# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a training script at a site, and tells the server of a script that has failed.

This file travels with the job and starts in the script's place, where cfl_flare need not be installed. The script sees
what it would see without it. If the script raises an error, or ends before the job does, each later task is answered
at once, with the error's type. The error's text and traceback stay in the site's own log.

A job may name a function that measures each model that the script is sent. Then the script sees no task to evaluate.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nvflare.client as flare
from nvflare.client import api
from nvflare.client.config import ConfigKey, ExchangeFormat

FAILED, NOT_MEASURED = "cfl_failed", "cfl_not_measured"


def find(name: str) -> Path:
    """The script in the job's folder, at the path that it had from the recipe's folder, or anywhere if it had none."""
    here = Path(__file__).resolve().parent
    return (
        here / name
        if (here / name).is_file()
        else min(here.rglob(name), key=lambda path: len(path.parts))
    )


def answer(failure: str) -> None:
    """Answers the tasks that are left with the failure's name, until the job ends."""
    context = api.default_context or flare.init()
    context.api = getattr(
        context.api, "inner", context.api
    )  # nothing is measured any more
    while flare.is_running():
        flare.receive()
        flare.send(flare.FLModel(metrics={}, meta={FAILED: failure}))


def module_of(name: str) -> Any:
    """The job's own module of that name, whatever is installed here; an ImportError if the job carries none."""
    try:
        path = find(f"{name}.py")
    except ValueError:
        raise ImportError(f"the job carries no module {name!r}") from None
    imported = sys.modules.get(name)
    if imported is not None and Path(imported.__file__ or "").resolve() == path:
        return imported  # by the script
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def function_of(name: str, script: Path) -> Any:
    """A function of the running script, or of a module that the job carries; a TypeError if it cannot be called."""
    module, _, function = name.rpartition(".")
    here = module in ("", script.stem)
    owner = (
        sys.modules["__main__"] if here else module_of(module)
    )  # runpy runs the script as __main__
    measure = getattr(owner, function)
    if not callable(measure):
        raise TypeError(f"evaluate = {name!r} is no function")
    return measure


class Measured:
    """FLARE's Client API, in which a function measures each model that the script is sent.

    Args:
        name: of the function, which gets what ``flare.receive()`` returns, and returns its metrics by name.
    """

    def __init__(self, inner: Any, name: str, script: Path):
        self.inner, self._name, self._script = inner, name, script
        self._function: Any = None
        self._model: Any = None
        self._metrics: dict[str, float] = {}
        self._meta: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def is_running(self) -> bool:
        """Whether there is a model to train; those to evaluate are answered meanwhile."""
        while self.inner.is_running():
            received = self.inner.receive()
            if received is None or self._trains(received):
                return received is not None
        return False

    def receive(self, timeout: float | None = None) -> Any:
        while (
            received := self.inner.receive(timeout)
        ) is not None and not self._trains(received):
            pass
        return received

    def send(self, model: Any, clear_cache: bool = True) -> None:
        """Sends what was trained, with what the function measured in place of the script's own metrics."""
        model.metrics, model.meta = (
            dict(self._metrics),
            {**(model.meta or {}), **self._meta},
        )
        self.inner.send(model, clear_cache)

    def _trains(self, received: Any) -> bool:
        """Measures a model, once; returns whether it is to be trained, and else answers."""
        if received is not self._model:
            self._model, (self._metrics, self._meta) = received, self._measure(received)
        if not self.inner.is_evaluate():
            return True
        self.inner.send(
            flare.FLModel(metrics=dict(self._metrics), meta=dict(self._meta))
        )
        return False

    def _measure(self, received: Any) -> tuple[dict[str, float], dict[str, str]]:
        """The metrics; none, and the type of the error, where there is one."""
        try:
            self._function = self._function or function_of(self._name, self._script)
            return numbers(self._function(received)), {}
        except (Exception, SystemExit) as error:
            print(traceback.format_exc())
            return {}, {NOT_MEASURED: type(error).__name__}


def numbers(metrics: Any) -> dict[str, float]:
    """What a function returns, if it is numbers by name; else a TypeError."""
    if not isinstance(metrics, dict) or not metrics:
        raise TypeError(
            f"evaluate should return a dictionary of numbers by name, not {metrics!r}"
        )
    values = {
        name: value.item() if hasattr(value, "item") else value
        for name, value in metrics.items()
    }
    for name, value in values.items():
        if (
            not isinstance(name, str)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
        ):
            raise TypeError(
                f"evaluate returns {name!r} = {value!r}, which should be a finite number with a name"
            )
    return values


def as_tensors(params: Any) -> Any:
    """A model's arrays and numbers as tensors. FLARE leaves out other values, and returns them with the next model."""
    import numpy as np
    import torch

    if not isinstance(params, dict):
        return params
    tensors = dict(params)
    for name, value in params.items():
        array = (
            np.asarray(value)
            if isinstance(value, (np.ndarray, np.generic, int, float))
            else np.asarray("")
        )
        if array.dtype.kind in "fiub":  # in this machine's order of bytes, without gaps
            wide = (
                np.float64
                if array.dtype == np.longdouble
                else array.dtype.newbyteorder("=")
            )
            tensors[name] = torch.from_numpy(array.astype(wide, order="C"))
    return tensors


def sends_tensors(inner: Any) -> None:
    """Lets the script of a PyTorch job send NumPy's arrays too."""
    send = inner.send

    def send_tensors(model: Any, clear_cache: bool = True) -> None:
        exchange = inner.get_config().get(ConfigKey.TASK_EXCHANGE, {})
        if exchange.get(ConfigKey.EXCHANGE_FORMAT) == ExchangeFormat.PYTORCH:
            model = (
                model if clear_cache else copy.copy(model)
            )  # which the script goes on with
            model.params = as_tensors(model.params)
        send(model, clear_cache)

    inner.send = send_tensors


def maker(name: str, script: Path) -> Any:
    """FLARE's maker of Client APIs, whose scripts may send arrays; a function of that name, if any, measures models."""
    make = api.APIContext

    def made(*args: Any, **settings: Any) -> Any:
        context = make(*args, **settings)
        if (
            str(context.rank or "0") == "0"
        ):  # only the first of several processes speaks with the server
            sends_tensors(context.api)
            context.api = Measured(context.api, name, script) if name else context.api
        return context

    return made


def main() -> None:
    """Runs the script that the first argument names, with the other arguments; after a colon, what measures."""
    name, _, evaluate = sys.argv[1].partition(":")
    script, of_flare = find(unquote(name)), api.APIContext
    api.APIContext = maker(evaluate, script)
    sys.argv[:] = [
        str(script),
        *sys.argv[2:],
    ]  # in place: FLARE puts its own list back later
    if str(script.parent) not in sys.path:
        sys.path.insert(0, str(script.parent))
    failure = SystemExit.__name__
    try:
        runpy.run_path(str(script), run_name="__main__")
    except (Exception, SystemExit) as error:
        if os.environ.get("RANK", "0") != "0":
            raise  # only the first of several processes speaks with the server; the others end with theirs
        failure = type(error).__name__
        print(
            traceback.format_exc()
        )  # FLARE may send lines of level error to the server, but not what a script prints
    finally:
        api.APIContext = of_flare
    answer(failure)


if __name__ == "__main__":
    main()
