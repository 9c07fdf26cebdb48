# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Sites whose participant is a training script of FLARE's Client API: what it is sent, and what it must report.

A script sees what it sees under FLARE's FedAvgRecipe: one FLModel with one model. It answers with its own, FULL or
DIFF, with metrics of the model that it was sent, and with its number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from nvflare.apis.dxo import MetaKey
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants, AppConstants

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.params import Params
from cfl_flare.engine.job_settings import AssignSettings
from cfl_flare.engine.server import Server
from cfl_flare.engine.site import Result, Task
from cfl_flare.methods import Update, describe_method
from cfl_flare.methods.slots import cluster_slot, travelling, with_parts

TRAIN, EVALUATE = AppConstants.TASK_TRAIN, AppConstants.TASK_VALIDATION
STEPS = FLMetaKey.NUM_STEPS_CURRENT_ROUND
PENALTY_META = "cfl_penalty"
HOW_TO_EVALUATE = """
    input_model = flare.receive()
    model.load_state_dict(input_model.params)
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"loss": mean_loss_on_the_training_data(model)}))
        continue"""
HOW_TO_EVALUATE_IN_LIGHTNING = """
    only_evaluate = nvflare.client.is_evaluate()  # asked before validate(), which answers the task
    trainer.validate(model, datamodule=data)
    if not only_evaluate:
        trainer.fit(model, datamodule=data)"""

Exchange = Callable[[str, Mapping[str, FLModel], Callable[[FLModel], bool]], bool]


class Scripts:
    """Carries out a server's rounds with scripts, one a site.

    Args:
        server: whose tasks are carried out.
        assign: for methods in which participants choose.
        exchange: sends each site a task, and gives what comes back to a function.
        warn: given each remark, which is made once.
    """

    def __init__(self, server: Server, assign: AssignSettings, exchange: Exchange, warn: Callable[[str], None]):
        self._server, self._assign, self._exchange, self._warn = server, assign, exchange, warn
        self._said: set[str] = set()
        self._sent: dict[str, str] = {}
        self._silent: set[str] = set()
        self._loops_checked = not server.method.traits.assigns_on_site
        self._cross: dict[str, dict[str, dict[str, float]]] = {}

    def probe(self) -> bool:
        """Asks every script to evaluate, once, where the method needs that it can.

        Raises:
            ConfigError: one cannot, with the lines to add; or none answered.
        """
        if not self._server.method.traits.assigns_on_site:
            return True
        problems: dict[str, str] = {}
        answered: set[str] = set()

        def look(answer: FLModel) -> bool:
            site = answer.meta["client_name"]
            answered.add(site)
            if answer.params:
                problems[site] = "it trains when it is asked to evaluate"
            elif self._metric(answer) is None:
                problems[site] = (
                    f"it reports no {self._assign.metric!r} when it is asked to evaluate, but {_names(answer)}"
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
        require(
            bool(answered) or not went,
            f"run: method {self._server.method.label} has each model evaluated by the sites' script, and at no site "
            "did it answer; the sites' logs say why",
        )
        self._remark(f"participants choose by their script's {self._assign.metric!r}: measure it on training data")
        return went

    def round(self) -> bool:
        """One round of the server's, up to where it can be finished. False if the job was aborted.

        Raises:
            ConfigError: in the first round, a script's loop does not do for a method in which sites choose.
        """
        tasks = self._server.tasks()
        several = tasks if self._server.method.traits.assigns_on_site else {}
        self._sent = {name: task.slots[0] for name, task in tasks.items() if name not in several}
        if not self._measure_all(tasks):
            return False
        if several and not self._choose(several):
            return False
        for task, train in ((EVALUATE, False), (TRAIN, True)):
            asked = {n: slot for n, slot in self._sent.items() if tasks[n].train == train}
            models = {n: self._model(slot, tasks[n] if train else None) for n, slot in asked.items()}
            if models and not self._exchange(task, models, lambda answer: self._accept(answer, tasks)):
                return False
        return self._loops_checked or self._check_loops(tasks)

    def _check_loops(self, tasks: Mapping[str, Task]) -> bool:
        """Refuses, in the first round, scripts that train on models that they were only to evaluate.

        Under FLARE's Lightning patch ``trainer.fit()`` takes the next task where ``trainer.validate()`` has answered
        one, and trains on it even if it is another model to evaluate. It shows in what follows an evaluation: a
        training without metrics, since nothing was validated before it. Where a second training has them, it is this.
        A script that never reports metrics when it trains is asked for that second training as well, and passes.
        """
        self._loops_checked = any(task.train for task in tasks.values())
        again = {name: self._model(self._sent[name]) for name in self._silent}
        found: list[str] = []

        def look(answer: FLModel) -> bool:
            found.extend([answer.meta["client_name"]] if answer.metrics else [])
            return True

        if again and not self._exchange(TRAIN, again, look):
            return False
        if found:
            raise ConfigError(
                f"run: method {self._server.method.label} has several models evaluated in a row, and the script at "
                f"{min(found)} trains on them in between, as FLARE's Lightning patch does when trainer.fit() follows "
                f"each trainer.validate(). Make its loop:{HOW_TO_EVALUATE_IN_LIGHTNING}"
            )
        return True

    def _measure_all(self, tasks: Mapping[str, Task]) -> bool:
        """Has every site measure each of the run's models, where that is asked for."""
        self._cross = {name: {} for name in tasks}
        for model in next(iter(tasks.values())).cross if tasks else ():

            def note(answer: FLModel, name: str = model.name) -> bool:
                site, found = answer.meta["client_name"], answer.metrics or {}
                self._cross[site][name] = {key: float(value) for key, value in found.items() if _number(value)}
                return bool(found)

            if not self._exchange(EVALUATE, {name: self._model(model.slots[0]) for name in tasks}, note):
                return False
        return True

    def _choose(self, tasks: Mapping[str, Task]) -> bool:
        """Has each model evaluated by those who choose, and notes what they take."""
        state = self._server.state
        found: dict[str, dict[str, float]] = {name: {} for name in tasks}
        measured: dict[str, dict[str, dict[str, float]]] = {name: {} for name in tasks}
        due = state.round % self._assign.every == 0 or self._server.finished
        keep = {n: cluster_slot(state.assignment[n]) for n in tasks if n in state.assignment and not due}
        self._sent |= {name: slot for name, slot in keep.items() if slot in tasks[name].slots}
        choosing = {name: self._candidates(task) for name, task in tasks.items() if name not in self._sent}
        for slot in dict.fromkeys(slot for slots in choosing.values() for slot in slots):

            def note(answer: FLModel, slot: str = slot) -> bool:
                site, value = answer.meta["client_name"], self._metric(answer)
                if value is not None:
                    found[site][slot] = value
                    measured[site][slot] = self._metrics(answer)
                return value is not None

            asked = {name: self._model(slot) for name, slots in choosing.items() if slot in slots}
            if asked and not self._exchange(EVALUATE, asked, note):
                return False
        for name, slots in choosing.items():
            missing = [slot for slot in slots if slot not in found[name]]
            if missing:
                self._server.fail([name], f"no {self._assign.metric!r} of {', '.join(missing)}")
            elif tasks[name].train:
                self._sent[name] = self._assign.best(found[name])
            else:  # it has measured the model that it would be served already
                metrics = measured[name][self._assign.best(found[name])]
                self._server.accept(Result(name, None, metrics, cross=self._cross[name]), name)
        return True

    def _model(self, slot: str, task: Task | None = None) -> FLModel:
        """The task with one model; with a task to train, what the method's penalties need beside it."""
        server = self._server
        return FLModel(
            params_type=ParamsType.FULL,
            params=server.bank[slot].arrays(),
            current_round=server.state.round,
            total_rounds=server.settings.num_rounds,
            meta={} if task is None else self._for_loss(slot, task),
        )

    def _for_loss(self, own: str, task: Task) -> dict[str, Any]:
        """What a script adds to its loss, as FLARE's own metadata or as cfl_flare's."""
        if self._assign.fedprox_mu is not None:
            return {AlgorithmConstants.FEDPROX_MU: self._assign.fedprox_mu}
        return self._for_penalties(own, task) if self._assign.penalties else {}

    def _for_penalties(self, own: str, task: Task) -> dict[str, Any]:
        server = self._server
        ready = "weights" in task.scalars
        needed = [p.slots(server.method.clusters) for p in server.method.penalties if ready or not p.of_clusters]
        slots = list(dict.fromkeys(slot for slots in needed for slot in slots))
        others = with_parts(server.state.bank, [slot for slot in travelling([own, *slots]) if slot != own])
        content = {"own": own, "slots": [slot for slot in slots if slot != own], "scalars": dict(task.scalars)}
        models = {slot: model.arrays() for slot, model in others.items()}
        return {PENALTY_META: {**content, "models": models, "method": describe_method(server.method)}}

    def _candidates(self, task: Task) -> list[str]:
        """Of what is sent, the models to choose among; the rest is the penalties'."""
        return list(task.choices.values())

    def _accept(self, answer: FLModel, tasks: Mapping[str, Task]) -> bool:
        """Turns a script's answer into an update; what does not fit is left out, with its reason."""
        name, server = answer.meta["client_name"], self._server
        if tasks[name].train and not answer.metrics and not self._loops_checked:
            self._silent.add(name)
        try:
            try:
                update = self._update(name, answer) if tasks[name].train else None
            except PayloadError as error:
                server.refuse(name, error)
            metrics = self._metrics(answer) if tasks[name].evaluate else {}
            server.accept(Result(name, update, metrics, cross=self._cross[name]), name)
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
        return Update(name, samples, {slot: diff}, chosen if server.method.traits.assigns_on_site else None)

    def _diff(self, name: str, answer: FLModel, sent: Params) -> Params:
        """Its model less the one that it was sent. What it leaves out is unchanged; strange arrays are ignored.

        What a filter of the site's took away counts in no mean, as in the answers of cfl_flare's own executor.
        """
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
        history = answer.meta.get(MetaKey.FILTER_HISTORY) or ()
        filters = [name for name in history if "ExcludeVars" not in name]
        if whole and filters:
            reason = f"the site's filter {filters[0]} acts on differences, but the script sends whole models"
            raise PayloadError("filtered", f"{reason}: set params_transfer_type = 'DIFF' in the recipe")
        start = sent.arrays() if whole else {n: np.zeros_like(a) for n, a in sent.arrays().items()}
        model = sent.layout.pack({**start, **{n: a for n, a in given.items() if n in known}})
        diff = model - sent if whole else model
        if not diff.vector.any():
            self._remark(f"{name} sends the model back as it was: does the script train a copy of what it received?")
        present = np.array([e.name in given for e in sent.layout.entries]) if history and missing else None
        return replace(diff, present=present)

    def _metric(self, answer: FLModel) -> float | None:
        value: Any = (answer.metrics or {}).get(self._assign.metric)
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
