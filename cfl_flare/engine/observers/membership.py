# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How well participants can tell, by a run's final models, which of their own samples those were trained on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, ClassVar

from cfl_flare.core.text import shown
from cfl_flare.engine.observers.cross_site import (
    Named,
    models_of,
    named_models,
    slots_of,
)
from cfl_flare.engine.observers.observer import Asked, Observer, Probe, Running
from cfl_flare.engine.task import MAX_SAMPLES, is_count
from cfl_flare.methods.slots import cluster_slot, is_cluster
from cfl_flare.training.membership import (
    ATTACKS,
    FEWEST_MEMBERS,
    PER_FALSE_POSITIVE,
    Counts,
    attacks,
)


class Membership(Observer):
    """Counts of membership attacks on the models that travel: each participant attacks those that it is a member of.

    A member site may object to a model's leaving for others. All that it says then is that it does.

    Args:
        shadow_models: how many each participant trains for comparison; 0 for no attack.
        bound: the server operator's, of the true positive rate at a false positive rate of 1 %; None for none.
        fewest: shadow models that the server's operator asks for.
        earlier: participants of the runs that this one goes on from. They count as members of each model.
    """

    key: ClassVar[str] = "membership"
    asks_untested: ClassVar[bool] = True

    def __init__(
        self,
        shadow_models: int = 0,
        bound: float | None = None,
        fewest: int = 0,
        earlier: Collection[str] = (),
    ):
        self._shadow_models = shadow_models
        self._bound = bound
        self._fewest = fewest
        self._earlier = earlier
        self._models: dict[str, Named] | None = None

    @property
    def _watches(self) -> bool:
        """Whether a run's results say what attacks reached."""
        return bool(self._shadow_models) or self._bound is not None

    def begin(self, server: Running) -> None:
        """Until attacks have measured something, the files of models say that nothing was measured."""
        if self._watches and server.recorder is not None:
            server.recorder.membership = self._describe({}, {})

    def question(self, server: Running, participant: str) -> dict[str, Any] | None:
        """After the last round, how many shadow models to train, and the models: see `Named`.

        Those are left out in which layers are untrained that each participant has trained for itself.
        """
        if not self._shadow_models or not server.finished:
            return None
        if self._models is None:
            left = server.travelling_models()
            self._models = named_models(
                server, {name: of for name, of in left.items() if not of.untrained}
            )
        cluster = server.state.assignment.get(participant)
        own = None if cluster is None else cluster_slot(cluster)
        models = [
            list(of)
            for name, of in self._models.items()
            if name == own or not is_cluster(name)
        ]
        return (
            {"shadow_models": self._shadow_models, "models": models} if models else None
        )

    def slots(self, question: Any) -> Sequence[str]:
        return slots_of(question["models"])

    @staticmethod
    def answer(question: Any, probe: Probe) -> dict[str, Any] | None:
        """The counts of each attack on each model, and whether the site objects.

        A small test split sends no counts. Then the answer is None, unless the site's operator accepts what the other
        members measure: the answer has no model then.
        """
        learner, count = (
            probe.learner,
            min(int(question["shadow_models"]), probe.settings.membership),
        )
        if not probe.sends_counts or learner.patients < FEWEST_MEMBERS or not count:
            return (
                {"models": {}, "objects": False}
                if probe.rule.accepts_unmeasured
                else None
            )
        counts = attacks(learner, models_of(question["models"], probe), count)
        objects = any(clearly_above(of, probe.rule.most_tpr) for of in counts.values())
        sent = {
            name: {attack: list(of.numbers) for attack, of in each.items()}
            for name, each in counts.items()
        }
        return {"models": sent, "objects": objects}

    def check(self, answer: Any, request: Asked) -> dict[str, Any]:
        """Four counts of each attack that are possible, of the samples that the participant said it has."""
        question: Any = request.task.questions.get(self.key)
        request.require(
            question is not None, "it was not asked to attack models with its samples"
        )
        counted = isinstance(answer, Mapping) and answer.keys() == {"models", "objects"}
        counted = counted and isinstance(answer["objects"], bool)
        request.require(
            counted,
            f"{shown(answer)} should be counts by model, and whether it objects",
        )
        models, known = answer["models"], [model for model, *_ in question["models"]]
        named = isinstance(models, Mapping) and models.keys() <= {*known}
        request.require(
            named, f"{shown(models)} should be counts of {', '.join(known)} alone"
        )
        possible = request.participant.tested or not models
        request.require(
            possible, "it measured attacks, and said before that it has no test samples"
        )
        counts = {model: self._of_model(of, request) for model, of in models.items()}
        return {"models": counts, "objects_to": known if answer["objects"] else []}

    @staticmethod
    def _of_model(by_attack: Any, request: Asked) -> dict[str, Counts]:
        complete = isinstance(by_attack, Mapping) and by_attack.keys() == {*ATTACKS}
        request.require(
            complete, f"{shown(by_attack)} should be counts of {', '.join(ATTACKS)}"
        )
        counts = {}
        for attack in ATTACKS:
            numbers = by_attack[attack]
            four = (
                isinstance(numbers, Sequence)
                and len(numbers) == 4
                and not isinstance(numbers, str)
            )
            four = four and all(is_count(number, 0, MAX_SAMPLES) for number in numbers)
            request.require(
                four, f"{shown(numbers)} should be four whole numbers of {attack}"
            )
            counts[attack] = of = Counts(*numbers)
            possible = (
                of.true_positives <= of.members
                and 0 < of.members <= request.participant.samples
            )
            possible = (
                possible
                and 0 < of.non_members >= PER_FALSE_POSITIVE * of.false_positives
            )
            limits = f"of at most {request.participant.samples} members, and of others at most 1 %"
            request.require(
                possible, f"{shown(numbers)} of {attack} should be {limits}"
            )
        return counts

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        """The rates by model, of all its members together; none of too few sites or samples."""
        if not self._watches:
            return
        answers = {
            name: answer
            for name, answer in server.round.answers(self.key).items()
            if answer is not None
        }
        models = dict.fromkeys(
            model for answer in answers.values() for model in answer["models"]
        )
        rates = {}
        for model in models:
            rate = self._pooled(model, answers, server)
            if rate is not None:
                rates[model] = {
                    **rate,
                    "unmeasured": self._count_unmeasured(model, answers, server),
                }
        facts[self.key] = self._describe(rates, answers)
        if server.recorder is not None:
            server.recorder.membership = facts[self.key]

    def _describe(
        self, rates: Mapping[str, Any], answers: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What a run's results say of the rates of its models."""
        single: set[str] = set()
        objections: set[str] = set()
        for answer in answers.values():
            objections.update(answer["objects_to"])
            single.update(
                m
                for m, counts in answer["models"].items()
                if clearly_above(counts, self._bound)
            )
        return {
            "bound": self._bound,
            "shadow_models": self._shadow_models,
            "fewest_shadow_models": self._fewest,
            "models": dict(rates),
            "objections": sorted(objections),
            "single": sorted(single),
        }

    def _count_unmeasured(
        self, model: str, answers: Mapping[str, Any], server: Running
    ) -> int:
        """Count a model's members that measured nothing on it, and did not accept what the other members measure.

        Participants of earlier runs are members of each model, as nobody knows into which models they have gone.
        """
        members = set(self._earlier)
        for name in server.participants:
            cluster = server.state.assignment.get(name)
            if not is_cluster(model) or (
                cluster is not None and cluster_slot(cluster) == model
            ):
                members.add(name)
        return len(members - answers.keys())

    @staticmethod
    def _pooled(
        model: str, answers: Mapping[str, Any], server: Running
    ) -> dict[str, Any] | None:
        """What all members' attacks on a model come to."""
        of_model = {
            name: answer["models"][model]
            for name, answer in answers.items()
            if model in answer["models"]
        }
        sites, floor = (
            {server.participants[name].site for name in of_model},
            server.settings.floor,
        )
        counts = {
            attack: reduce(add, (of[attack] for of in of_model.values()))
            for attack in ATTACKS
        }
        if len(sites) < floor.sites or counts[ATTACKS[0]].members < floor.samples:
            return None
        return {
            "sites": len(sites),
            "attacks": {attack: rates_of(of) for attack, of in counts.items()},
        }


def rates_of(counts: Counts) -> dict[str, Any]:
    """What a run's results hold of an attack."""
    of_samples = {"members": counts.members, "non_members": counts.non_members}
    return {"tpr": counts.rate, "interval": list(counts.interval), **of_samples}


def clearly_above(counts: Mapping[str, Counts], bound: float | None) -> bool:
    """Whether even the lower end of an attack's rate is above the bound: few samples alone make no rate high."""
    return bound is not None and any(of.interval[0] > bound for of in counts.values())
