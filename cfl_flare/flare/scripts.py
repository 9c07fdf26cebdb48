# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Sites whose participant is a training script of FLARE's Client API: what it is sent, and what it must report.

A script sees what it sees under FLARE's FedAvgRecipe: one FLModel with one model. It answers with its own, FULL or
DIFF, with metrics of the model that it was sent, and with its number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants

from cfl_flare.config import require
from cfl_flare.errors import ConfigError, PayloadError
from cfl_flare.methods import IFCA, Method, Update
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.params import Params
from cfl_flare.server import Server
from cfl_flare.site import Answer, Order

TRAIN, EVALUATE = AppConstants.TASK_TRAIN, AppConstants.TASK_VALIDATION
STEPS = FLMetaKey.NUM_STEPS_CURRENT_ROUND
# What a method's site does, where it is no more than what any script does: train the one model that it was sent.
ON_SITE = ("local_update", "trained_update", "terms", "serve", "finetuned", "compose", "moved_slots")
HOW_TO_EVALUATE = """
    input_model = flare.receive()
    model.load_state_dict(input_model.params)
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"loss": mean_loss_on_the_training_data(model)}))
        continue"""

Exchange = Callable[[str, Mapping[str, FLModel], Callable[[FLModel], bool]], bool]


@dataclass(frozen=True)
class Judge:
    """By what a script's models are compared, where participants choose among several (IFCA).

    Attributes:
        metric: the metric that it reports when it is asked to evaluate; on its training data.
        mode: ``min`` or ``max``.
        every: rounds between two choices; in between it trains its cluster's model.
    """

    metric: str = "loss"
    mode: str = "min"
    every: int = 1

    def __post_init__(self) -> None:
        require(self.mode in ("min", "max"), f"run: assign_mode = {self.mode!r} should be 'min' or 'max'")
        require(self.every >= 1, f"run: assign_every = {self.every} should be >= 1")

    def best(self, found: Mapping[str, float]) -> str:
        """The slot with the best metric; of equals the first."""
        return (min if self.mode == "min" else max)(found, key=lambda slot: found[slot])


def check_method(method: Method) -> None:
    """Whether a script can take part in it.

    Raises:
        ConfigError: the method's sites do more than to train the model that they are sent.
    """
    if isinstance(method, IFCA) and not (method.shared_backbone or method.penalties or method.finetune):
        return
    own = [step for step in ON_SITE if getattr(type(method), step) is not getattr(Method, step)]
    own += [name for name in ("penalties", "finetune") if getattr(method, name)]
    require(
        not own,
        f"method {method.label}: a training script cannot do its {', '.join(own)} on the site; take fedavg, fesem, "
        "wecfl, cfl, fl-hc, fedgroup or ifca as they are, or leave train_script out",
    )


def check_script(script: str, method: Method, given: Mapping[str, Any]) -> None:
    """What can be checked of a job with a script before it starts.

    Args:
        script: its path.
        method: the job's.
        given: settings that have no meaning beside a script.

    Raises:
        ConfigError: it is not there, or does not go with the method or with a setting.
    """
    require(Path(script).is_file(), f"recipe: train_script = {script!r} is no file; name one, seen from this folder")
    beside = [name for name, value in given.items() if value is not None]
    require(
        not beside, f"recipe: {', '.join(beside)}: belongs to the script where there is a train_script; leave it out"
    )
    check_method(method)


class Scripts:
    """Carries out a server's rounds with scripts, one a site.

    Args:
        server: whose orders are carried out.
        judge: for methods in which participants choose.
        exchange: sends each site a task, and gives what comes back to a function.
        warn: given each remark, which is made once.
    """

    def __init__(self, server: Server, judge: Judge, exchange: Exchange, warn: Callable[[str], None]):
        self._server, self._judge, self._exchange, self._warn = server, judge, exchange, warn
        self._said: set[str] = set()
        self._sent: dict[str, str] = {}
        self._cross: dict[str, dict[str, dict[str, float]]] = {}

    def probe(self) -> bool:
        """Asks every script to evaluate, once, where the method needs that it can.

        Raises:
            ConfigError: one cannot; with the lines to add.
        """
        if not self._server.method.assigns_on_site:
            return True
        problems: dict[str, str] = {}

        def look(answer: FLModel) -> bool:
            site = answer.meta["client_name"]
            if answer.params:
                problems[site] = "it trains when it is asked to evaluate"
            elif self._metric(answer) is None:
                problems[site] = (
                    f"it reports no {self._judge.metric!r} when it is asked to evaluate, but {_names(answer)}"
                )
            return True

        first = next(iter(self._server.state.bank))
        went = self._exchange(EVALUATE, {name: self._model(first) for name in self._server.participants}, look)
        if problems:
            site, problem = next(iter(problems.items()))
            raise ConfigError(
                f"run: method {self._server.method.label} has each model evaluated by the sites' script, but at {site} "
                f"{problem}. Add to its loop, with the training data as it is what decides:{HOW_TO_EVALUATE}"
            )
        return went

    def round(self) -> bool:
        """One round of the server's, up to where it can be finished. False if the job was aborted."""
        orders = self._server.orders()
        several = {name: order for name, order in orders.items() if len(order.slots) > 1}
        self._sent = {name: order.slots[0] for name, order in orders.items() if name not in several}
        if not self._measure_all(orders):
            return False
        if several and not self._choose(several):
            return False
        for task, train in ((EVALUATE, False), (TRAIN, True)):
            models = {n: self._model(slot) for n, slot in self._sent.items() if orders[n].train == train}
            if models and not self._exchange(task, models, lambda answer: self._accept(answer, orders)):
                return False
        return True

    def _measure_all(self, orders: Mapping[str, Order]) -> bool:
        """Has every site measure each of the run's models, where that is asked for."""
        self._cross = {name: {} for name in orders}
        for model in next(iter(orders.values())).cross if orders else ():

            def note(answer: FLModel, name: str = model.name) -> bool:
                site, found = answer.meta["client_name"], answer.metrics or {}
                self._cross[site][name] = {key: float(value) for key, value in found.items() if _number(value)}
                return bool(found)

            if not self._exchange(EVALUATE, {name: self._model(model.slots[0]) for name in orders}, note):
                return False
        return True

    def _choose(self, orders: Mapping[str, Order]) -> bool:
        """Has each model evaluated by those who choose, and notes what they take."""
        state = self._server.state
        found: dict[str, dict[str, float]] = {name: {} for name in orders}
        measured: dict[str, dict[str, dict[str, float]]] = {name: {} for name in orders}
        due = state.round % self._judge.every == 0 or self._server.finished
        keep = {n: cluster_slot(state.assignment[n]) for n in orders if n in state.assignment and not due}
        self._sent |= {name: slot for name, slot in keep.items() if slot in orders[name].slots}
        choosing = {name: order for name, order in orders.items() if name not in self._sent}
        for slot in dict.fromkeys(slot for order in choosing.values() for slot in order.slots):

            def note(answer: FLModel, slot: str = slot) -> bool:
                site, value = answer.meta["client_name"], self._metric(answer)
                if value is not None:
                    found[site][slot] = value
                    measured[site][slot] = self._metrics(answer)
                return value is not None

            asked = {name: self._model(slot) for name, order in choosing.items() if slot in order.slots}
            if asked and not self._exchange(EVALUATE, asked, note):
                return False
        for name, order in choosing.items():
            if len(found[name]) < len(order.slots):
                missing = [slot for slot in order.slots if slot not in found[name]]
                self._server.fail([name], f"no {self._judge.metric!r} of {', '.join(missing)}")
            elif order.train:
                self._sent[name] = self._judge.best(found[name])
            else:  # it has measured the model that it would be served already
                metrics = measured[name][self._judge.best(found[name])]
                self._server.accept(Answer(name, None, metrics, cross=self._cross[name]), name)
        return True

    def _model(self, slot: str) -> FLModel:
        server = self._server
        return FLModel(
            params_type=ParamsType.FULL,
            params=server.bank[slot].arrays(),
            current_round=server.state.round,
            total_rounds=server.settings.num_rounds,
        )

    def _accept(self, answer: FLModel, orders: Mapping[str, Order]) -> bool:
        """Turns a script's answer into an update; what does not fit is left out, with its reason."""
        name, server = answer.meta["client_name"], self._server
        try:
            try:
                update = self._update(name, answer) if orders[name].train else None
            except PayloadError as error:
                server.refuse(name, error)
            metrics = self._metrics(answer) if orders[name].evaluate else {}
            server.accept(Answer(name, update, metrics, cross=self._cross[name]), name)
        except PayloadError as error:
            self._warn(f"round {server.state.round}: {name}: answer refused ({error.code}): {error}")
            return False
        return True

    def _update(self, name: str, answer: FLModel) -> Update:
        server, slot = self._server, self._sent[name]
        if not isinstance(answer.params, dict) or not answer.params:
            raise PayloadError("no_update", "it sends no model: flare.send() an FLModel with params=model.state_dict()")
        steps = answer.meta.get(STEPS)
        if steps is None:
            self._remark(f"{name} reports no number of steps: it counts as 1; add meta={{{STEPS!r}: steps}}")
        samples = 1 if steps is None else steps
        if isinstance(samples, (float, np.integer)) and float(samples).is_integer():
            samples = int(samples)
        diff = self._diff(name, answer, server.state.bank[slot])
        chosen = next((k for k in range(server.method.clusters) if slot == cluster_slot(k)), None)
        if isinstance(samples, int) and not isinstance(samples, bool):
            server.participants[name] = replace(server.participants[name], samples=samples)
        return Update(name, samples, {slot: diff}, chosen if server.method.assigns_on_site else None)

    def _diff(self, name: str, answer: FLModel, sent: Params) -> Params:
        """Its model less the one that it was sent. What it leaves out is unchanged; strange arrays are ignored."""
        whole = answer.params_type != ParamsType.DIFF
        known, given = {e.name for e in sent.layout.entries}, dict(answer.params)
        strange, missing = sorted(given.keys() - known), sorted(known - given.keys())
        if not known & given.keys():
            raise PayloadError("names", f"it sends {strange[0]!r} and others, of which the job's model has none")
        if strange:
            self._remark(
                f"{name} sends {strange[0]!r}, which the job's model does not have: left out ({len(strange)} in all)"
            )
        if missing:
            self._remark(f"{name} does not send {missing[0]!r}: taken as unchanged ({len(missing)} in all)")
        kinds = sorted({str(np.asarray(a).dtype) for n, a in given.items() if n in known} - {"float32", "int64"})
        if kinds:
            self._remark(f"{name} sends {', '.join(kinds)}: kept as float32, whole counts as int64")
        start = sent.arrays() if whole else {n: np.zeros_like(a) for n, a in sent.arrays().items()}
        model = sent.layout.pack({**start, **{n: a for n, a in given.items() if n in known}})
        return model - sent if whole else model

    def _metric(self, answer: FLModel) -> float | None:
        value: Any = (answer.metrics or {}).get(self._judge.metric)
        return float(value) if _number(value) else None

    def _metrics(self, answer: FLModel) -> dict[str, float]:
        """What it reports of the model that it was sent."""
        name, given = answer.meta["client_name"], answer.metrics or {}
        if not given:
            self._remark(
                f"{name} reports no metrics of the model that it is sent: FLModel(..., metrics={{'accuracy': ...}})"
            )
        odd = sorted(key for key, value in given.items() if not _number(value))
        if odd:
            self._remark(f"{name} reports {odd[0]} = {given[odd[0]]!r}, which is no finite number: left out")
        return {f"served_{key}": float(value) for key, value in given.items() if _number(value)}

    def _remark(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._warn(text)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and bool(np.isfinite(value))


def _names(answer: FLModel) -> str:
    return ", ".join(map(repr, answer.metrics)) if answer.metrics else "nothing"
