# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Sites whose participant is a training script of FLARE's Client API: what it is sent, and what it must report.

A script sees what it sees under FLARE's FedAvgRecipe: one FLModel with one model. It sends its own back, FULL or DIFF,
with metrics of the model that it was sent, and with its number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

from cfl_flare.core.config import require
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.text import shown
from cfl_flare.engine.observers import CrossSite
from cfl_flare.engine.plan import AssignSettings
from cfl_flare.engine.server import Server
from cfl_flare.engine.site import Result, Task
from cfl_flare.flare.class_names import compare_classes
from cfl_flare.flare.client_api.messages import describe_loss, to_params
from cfl_flare.flare.client_api.results import (
    ScriptResults,
    metric_of,
    not_measured,
    usable,
)
from cfl_flare.flare.client_api.rules import HOW_TO_EVALUATE
from cfl_flare.methods import Update
from cfl_flare.methods.clove import LOSSES
from cfl_flare.methods.slots import (
    cluster_slot,
    sort_by_number,
)
from cfl_flare.results.metric_names import best_end

TRAIN, EVALUATE = AppConstants.TASK_TRAIN, AppConstants.TASK_VALIDATION
TRAINED = "it trains when it is asked to evaluate"
HOW_TO_CHOOSE = """
Or have participants choose by what it reports, if that is of training data:
    assign_metric={0!r}, assign_mode={1!r}"""
HOW_TO_EVALUATE_IN_LIGHTNING = """
    only_evaluate = nvflare.client.is_evaluate()  # asked before validate(), which answers the task
    trainer.validate(model, datamodule=data)
    if not only_evaluate:
        trainer.fit(model, datamodule=data)"""

Exchange = Callable[[str, Mapping[str, FLModel], Callable[[FLModel], bool]], bool]


class Scripts:
    """The transport to training scripts, one per site.

    Args:
        assign: how participants choose, for methods in which they do.
        exchange: sends each site a task, and calls a function with each result.
        warn: called with each remark, once.
        errors: why sites' results of the last exchange cannot be used; it changes with each.
    """

    def __init__(
        self,
        server: Server,
        assign: AssignSettings,
        exchange: Exchange,
        warn: Callable[[str], None],
        errors: Mapping[str, str],
    ):
        self._server, self._assign, self._send, self._warn = (
            server,
            assign,
            exchange,
            warn,
        )
        # A script may answer with tensors: undecoded, they would end the server's process.
        fobs.register(TensorDecomposer)
        self._results = ScriptResults(server, self._remark)
        self._said: set[str] = set()
        self._errors = errors
        self._sent: dict[str, str] = {}
        self._silent: set[str] = set()
        self._evaluating: dict[str, bool] = {}
        self._loops_checked = not server.method.traits.assigns_on_site
        self._cross: dict[str, dict[str, dict[str, float]]] = {}

    def probe(self) -> bool:
        """Asks every script to evaluate, once, if the method needs that.

        Raises:
            ConfigError: most scripts cannot; the message has the lines to add. Or there was no result at all.
        """
        if not self._server.method.traits.by_metric:
            return True
        problems: dict[str, str] = {}
        offered: list[str] = []
        answered: set[str] = set()

        def look(result: FLModel) -> bool:
            site = result.meta["client_name"]
            answered.add(site)
            if not self._evaluated(result):
                problems[site] = TRAINED
            elif (why := not_measured(result)) is not None:
                problems[site] = f"there is {why}"
            elif metric_of(result, self._assign.metric) is None:
                metrics = result.metrics or {}
                reported = ", ".join(map(shown, islice(metrics, 10))) or "nothing"
                problems[site] = (
                    f"it reports no {self._assign.metric!r} when it is asked to evaluate, but {reported}"
                )
                offered.extend(
                    sorted(usable(metrics), key=lambda name: name != "accuracy")[:1]
                )
            return True

        first = next(iter(self._server.state.bank))
        went = self._send(
            EVALUATE,
            {name: self._model(first) for name in self._server.participants},
            look,
        )
        site, problem = next(iter(problems.items()), ("", ""))
        if 2 * len(problems) > len(
            self._server.participants
        ):  # one site alone ends no job
            raise ConfigError(
                f"run: method {self._server.method.label} has each model evaluated by the sites' script, but at {site} "
                f"{problem}. Add to its loop, on training data, by which it chooses:{HOW_TO_EVALUATE}\n"
                f"Or, with FLARE's Lightning patch:{HOW_TO_EVALUATE_IN_LIGHTNING}"
                + "".join(
                    HOW_TO_CHOOSE.format(name, best_end(name) or "max or min")
                    for name in offered[:1]
                )
            )
        if problems:
            self._remark(
                f"{site}, asked to evaluate: {problem} ({len(problems)} sites in all): it cannot take part"
            )
        reasons = "".join(f"; {site}: {why}" for site, why in self._errors.items())
        require(
            bool(answered) or not went,
            f"run: method {self._server.method.label} has each model evaluated by the sites' script, but no site "
            f"sent a result; the sites' logs say why{reasons}",
        )
        compare = (
            "choose" if self._server.method.traits.assigns_on_site else "are compared"
        )
        self._remark(
            f"participants {compare} by their script's {self._assign.metric!r}: measure it on training data"
        )
        return went

    def only_train(self, server: Server) -> Collection[str]:
        return {name for name in server.participants if not self._evaluates(name)}

    def exchange(self, server: Server, tasks: Mapping[str, Task]) -> bool:
        """Has scripts measure, choose, train; a ConfigError if most scripts' loop does not suit in the first round."""
        unmeasured = self.only_train(server)
        if server.finished and unmeasured:
            self._remark(
                f"the last models are not measured at {', '.join(sorted(unmeasured)[:5])} "
                f"({len(unmeasured)} in all): the script is not seen to evaluate without training, and "
                "the table has the round before; name a function that measures a model (evaluate = "
                f"'client.evaluate'), or add to its loop:{HOW_TO_EVALUATE}"
            )
        chooses = server.method.traits.assigns_on_site
        several = {
            name: task for name, task in tasks.items() if chooses and task.choices
        }
        compared = {
            name: task
            for name, task in tasks.items()
            if LOSSES in task.scalars and len(task.slots) > 1
        }
        self._sent = {
            name: task.slots[0]
            for name, task in tasks.items()
            if name not in {*several, *compared}
        }
        if not self._measure_all(tasks):
            return False
        if (several and not self._choose(several)) or (
            compared and not self._compare(compared)
        ):
            return False
        for task, train in ((EVALUATE, False), (TRAIN, True)):
            receivers = {
                n: slot for n, slot in self._sent.items() if tasks[n].train == train
            }
            models = {
                n: self._model(slot, tasks[n] if train else None)
                for n, slot in receivers.items()
            }
            held: list[FLModel] = []
            take = (
                partial(self._hold, held)
                if train and server.state.round == 0
                else partial(self._accept, tasks)
            )
            if models and not self._send(task, models, take):
                return False
            self._accept_alike(held, tasks)
        if server.state.round == 0:
            self._results.check(sum(task.train for task in tasks.values()))
        return self._loops_checked or not several or self._check_loops(tasks)

    def _evaluates(self, name: str) -> bool:
        """Whether a site's script is known to evaluate a model without training it.

        Another script is not asked: it would train once more, and spend its own privacy budget once more.
        """
        return self._evaluating.get(name, self._assign.evaluates)

    def _evaluated(self, result: FLModel) -> bool:
        """Notes and returns whether the answer to an evaluation is one, rather than that of a training."""
        evaluated = (
            result.params is None
        )  # of one that trains, the parameters themselves stay at the site
        self._evaluating[result.meta["client_name"]] = evaluated
        return evaluated

    def _check_loops(self, tasks: Mapping[str, Task]) -> bool:
        """Refuses, in the first round, scripts that train on models that they should only evaluate.

        Under FLARE's Lightning patch ``trainer.fit()`` takes the next task if ``trainer.validate()`` has completed
        one, and trains on it even if it is another model to evaluate. The sign is a training without metrics after an
        evaluation, since nothing was validated before it, while a second training has them. A script that never
        reports metrics when it trains is asked for the second training as well, and passes.
        """
        self._loops_checked = any(task.train for task in tasks.values())
        again = {name: self._model(self._sent[name]) for name in self._silent}
        training: list[str] = []

        def look(result: FLModel) -> bool:
            training.extend([result.meta["client_name"]] if result.metrics else [])
            return True

        if again and not self._send(TRAIN, again, look):
            return False
        trained = sum(task.train for task in tasks.values())
        if 2 * len(training) > trained:  # one site alone ends no job
            raise ConfigError(
                f"run: method {self._server.method.label} has several models evaluated in a row, and the script at "
                f"{min(training)} trains on them in between, as FLARE's Lightning patch does when trainer.fit() "
                f"follows each trainer.validate(). Make its loop:{HOW_TO_EVALUATE_IN_LIGHTNING}"
            )
        if training:
            seems = (
                f"{min(training)} seems to train on models that it should only evaluate"
            )
            self._remark(f"{seems} ({len(training)} in all)")
        return True

    def _measure_all(self, tasks: Mapping[str, Task]) -> bool:
        """Has every site measure each of the run's models, if requested."""
        self._cross = {name: {} for name in tasks}
        models = (
            next(iter(tasks.values())).questions.get(CrossSite.key, ()) if tasks else ()
        )
        for model, slots, _, _ in models:

            def note(result: FLModel, name: str = model) -> bool:
                if self._evaluated(result):
                    self._cross[result.meta["client_name"]][name] = usable(
                        result.metrics or {}
                    )
                return bool(self._cross[result.meta["client_name"]].get(name))

            if not self._send(
                EVALUATE,
                {
                    name: self._model(slots[0])
                    for name in tasks
                    if self._evaluates(name)
                },
                note,
            ):
                return False
        return True

    def _choose(self, tasks: Mapping[str, Task]) -> bool:
        """Has each model evaluated by those who choose, and notes their choices."""
        state = self._server.state
        due = state.round % self._assign.every == 0 or self._server.finished
        keep = {
            n: cluster_slot(state.assignment[n])
            for n in tasks
            if n in state.assignment and not due
        }
        self._sent |= {
            name: slot for name, slot in keep.items() if slot in tasks[name].slots
        }
        choosing = {
            name: list(task.choices.values())
            for name, task in tasks.items()
            if name not in self._sent
        }

        def chosen(
            name: str,
            values: Mapping[str, float],
            metrics: Mapping[str, dict[str, float]],
        ) -> None:
            best = self._assign.best(values)
            if tasks[name].train:
                self._sent[name] = best
            else:  # it has already measured the model that it would be served
                self._server.accept(self._result(name, None, metrics[best]), name)

        return self._measure_each(choosing, chosen)

    def _compare(self, tasks: Mapping[str, Task]) -> bool:
        """Has all models evaluated: what they measure, as losses, are the participants' updates (CLoVE)."""

        def compared(
            name: str,
            values: Mapping[str, float],
            metrics: Mapping[str, dict[str, float]],
        ) -> None:
            task, samples = tasks[name], self._server.participants[name].samples
            losses = np.array(
                [self._assign.loss(values[slot]) for slot in sort_by_number(values)],
                np.float32,
            )
            served = (
                task.slots[0] if task.scalars[LOSSES] else self._assign.best(values)
            )
            update = (
                Update(name, samples, arrays={LOSSES: losses}) if task.train else None
            )
            self._server.accept(
                self._result(name, update, metrics[served] if task.evaluate else {}),
                name,
            )

        return self._measure_each(
            {name: list(task.slots) for name, task in tasks.items()}, compared
        )

    def _measure_each(
        self,
        slots_of: Mapping[str, Sequence[str]],
        on_measured: Callable[
            [str, Mapping[str, float], Mapping[str, dict[str, float]]], None
        ],
    ) -> bool:
        """Has scripts evaluate several models, one after the other.

        ``on_measured`` gets each participant that measured all of its models: the metric that compares them, and all
        metrics, by slot.
        """
        values: dict[str, dict[str, float]] = {name: {} for name in slots_of}
        measured: dict[str, dict[str, dict[str, float]]] = {
            name: {} for name in slots_of
        }
        for slot in dict.fromkeys(
            slot for slots in slots_of.values() for slot in slots
        ):

            def note(result: FLModel, slot: str = slot) -> bool:
                site, value = (
                    result.meta["client_name"],
                    metric_of(result, self._assign.metric),
                )
                if self._evaluated(result) and value is not None:
                    values[site][slot] = value
                    measured[site][slot] = self._results.metrics(result)
                return slot in values[site]

            able = [n for n in slots_of if self._evaluating.get(n, True)]
            models = {n: self._model(slot) for n in able if slot in slots_of[n]}
            if models and not self._send(EVALUATE, models, note):
                return False
        for name, slots in slots_of.items():
            missing = [slot for slot in slots if slot not in values[name]]
            if missing:
                unmeasured = f"no {self._assign.metric!r} of {', '.join(missing)}"
                self._server.round.fail(
                    [name], unmeasured if self._evaluating.get(name, True) else TRAINED
                )
            else:
                on_measured(name, values[name], measured[name])
        return True

    def _model(self, slot: str, task: Task | None = None) -> FLModel:
        """The message with one model; in a task to train, also what the method's penalties need."""
        server = self._server
        return FLModel(
            params_type=ParamsType.FULL,
            params=to_params(server.bank[slot].state(), self._assign.tensors),
            current_round=server.state.round,
            total_rounds=server.settings.num_rounds,
            meta={}
            if task is None
            else describe_loss(server, self._assign, slot, task),
        )

    @staticmethod
    def _hold(held: list[FLModel], result: FLModel) -> bool:
        """Keeps a result of the first round until all scripts have stated the names of their classes."""
        held.append(result)
        return True

    def _accept_alike(self, held: Sequence[FLModel], tasks: Mapping[str, Task]) -> None:
        """Accepts the first round's results of the scripts that number their classes as most do.

        Raises:
            ConfigError: no names are those of most scripts that state some.
        """
        stated: dict[str, tuple[str, ...]] = {}
        for result in held:
            with suppress(PayloadError):  # which `_accept` tells
                names = self._results.classes(result)
                stated |= {result.meta["client_name"]: names} if names else {}
        self._results.agreed, _ = compare_classes(stated, self._results.agreed)
        for result in held:
            self._accept(tasks, result)

    def _accept(self, tasks: Mapping[str, Task], result: FLModel) -> bool:
        """Turns a script's result into an update; what does not fit is left out, with its reason."""
        name, server = result.meta["client_name"], self._server
        chose = bool(tasks[name].choices)
        if not tasks[name].train:
            self._evaluated(result)
        elif chose and not result.metrics and not self._loops_checked:
            self._silent.add(name)
        try:
            try:
                update = (
                    self._results.update(result, self._sent[name], chose)
                    if tasks[name].train
                    else None
                )
            except PayloadError as error:
                server.refuse(name, error, name)
            if (why := not_measured(result)) is not None:
                self._remark(f"{name}: {why}; its own log has the traceback")
                if not tasks[name].train:
                    server.round.fail([name], why)
                    return False
            metrics = (
                self._results.metrics(result)
                if tasks[name].evaluate and why is None
                else {}
            )
            server.accept(self._result(name, update, metrics), name)
        except PayloadError as error:
            self._results.refused(name, error)
            self._warn(
                f"round {server.state.round}: {name}: result refused ({error.code}): {error}"
            )
            return False
        return True

    def _result(
        self, name: str, update: Update | None, metrics: Mapping[str, float]
    ) -> Result:
        cross = {CrossSite.key: self._cross[name]} if self._cross[name] else {}
        return Result(name, update, {"metrics": metrics, **cross})

    def _remark(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._warn(text)
