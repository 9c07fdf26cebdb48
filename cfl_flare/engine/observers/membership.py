# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How well participants can tell, by a run's final models, which of their own samples those were trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, ClassVar

from cfl_flare.core.text import shown
from cfl_flare.engine.observers.cross_site import Named, models_of, named_models, slots_of
from cfl_flare.engine.observers.observer import Asked, Observer, Probe, Running
from cfl_flare.engine.task import MAX_SAMPLES, is_count
from cfl_flare.methods.slots import cluster_slot, is_cluster
from cfl_flare.training.membership import ATTACKS, FEWEST_MEMBERS, PER_FALSE_POSITIVE, Counts, attacks


class Membership(Observer):
    """Counts of membership attacks on the models that travel: each participant attacks those that it is a member of.

    A member site may object to a model's leaving for others. All that it says then is that it does.

    Args:
        shadow_models: how many each participant trains for comparison; 0 for no attack.
        bound: the server operator's, of the true positive rate at a false positive rate of 1 %; None for none.
    """

    key: ClassVar[str] = "membership"

    def __init__(self, shadow_models: int = 0, bound: float | None = None):
        self._shadow_models, self._bound = shadow_models, bound
        self._models: dict[str, Named] | None = None

    def question(self, server: Running, participant: str) -> dict[str, Any] | None:
        """After the last round, how many shadow models to train, and the models: see `Named`.

        Those are left out in which layers are untrained that each participant has trained for itself.
        """
        if not self._shadow_models or not server.finished:
            return None
        if self._models is None:
            left = server.travelling_models()
            self._models = named_models(server, {name: of for name, of in left.items() if not of.untrained})
        cluster = server.state.assignment.get(participant)
        own = None if cluster is None else cluster_slot(cluster)
        models = [list(of) for name, of in self._models.items() if name == own or not is_cluster(name)]
        return {"shadow_models": self._shadow_models, "models": models} if models else None

    def slots(self, question: Any) -> Sequence[str]:
        return slots_of(question["models"])

    @staticmethod
    def answer(question: Any, probe: Probe) -> dict[str, Any] | None:
        """The counts of each attack on each model, and whether the site objects; None from a small test split."""
        learner, count = probe.learner, min(int(question["shadow_models"]), probe.settings.membership)
        if not probe.sends_counts or learner.patients < FEWEST_MEMBERS or not count:
            return None
        counts = attacks(learner, models_of(question["models"], probe), count)
        objects = probe.most_tpr is not None and any(clearly_above(of, probe.most_tpr) for of in counts.values())
        sent = {name: {attack: list(of.numbers) for attack, of in each.items()} for name, each in counts.items()}
        return {"models": sent, "objects": objects}

    def check(self, answer: Any, request: Asked) -> dict[str, Any]:
        """Four counts of each attack that are possible, of the samples that the participant said it has."""
        question: Any = request.task.questions.get(self.key)
        wanted = question is not None and request.participant.tested
        request.require(wanted, "it was not asked to attack models with its samples")
        counted = isinstance(answer, Mapping) and answer.keys() == {"models", "objects"}
        counted = counted and isinstance(answer["objects"], bool)
        request.require(counted, f"{shown(answer)} should be counts by model, and whether it objects")
        models, known = answer["models"], [model for model, *_ in question["models"]]
        named = isinstance(models, Mapping) and models.keys() <= {*known}
        request.require(named, f"{shown(models)} should be counts of {', '.join(known)} alone")
        counts = {model: self._of_model(of, request) for model, of in models.items()}
        return {"models": counts, "objects_to": known if answer["objects"] else []}

    @staticmethod
    def _of_model(by_attack: Any, request: Asked) -> dict[str, Counts]:
        complete = isinstance(by_attack, Mapping) and by_attack.keys() == {*ATTACKS}
        request.require(complete, f"{shown(by_attack)} should be counts of {', '.join(ATTACKS)}")
        counts = {}
        for attack in ATTACKS:
            numbers = by_attack[attack]
            four = isinstance(numbers, Sequence) and len(numbers) == 4 and not isinstance(numbers, str)
            four = four and all(is_count(number, 0, MAX_SAMPLES) for number in numbers)
            request.require(four, f"{shown(numbers)} should be four whole numbers of {attack}")
            counts[attack] = of = Counts(*numbers)
            possible = of.true_positives <= of.members and 0 < of.members <= request.participant.samples
            possible = possible and 0 < of.non_members >= PER_FALSE_POSITIVE * of.false_positives
            limits = f"of at most {request.participant.samples} members, and of others at most 1 %"
            request.require(possible, f"{shown(numbers)} of {attack} should be {limits}")
        return counts

    def close(self, server: Running, facts: dict[str, Any]) -> None:
        """The rates by model, of all its members together; none of too few sites or samples."""
        if not self._shadow_models and self._bound is None:
            return
        answers = {name: answer for name, answer in server.round.answers(self.key).items() if answer is not None}
        models = dict.fromkeys(model for answer in answers.values() for model in answer["models"])
        rates = {model: self._pooled(model, answers, server) for model in models}
        single = {m for m in models for a in answers.values() if clearly_above(a["models"].get(m, {}), self._bound)}
        facts[self.key] = {
            "bound": self._bound,
            "models": {model: of for model, of in rates.items() if of is not None},
            "objections": sorted({model for answer in answers.values() for model in answer["objects_to"]}),
            "single": sorted(single),
        }

    @staticmethod
    def _pooled(model: str, answers: Mapping[str, Any], server: Running) -> dict[str, Any] | None:
        """What all members' attacks on a model come to."""
        of_model = {name: answer["models"][model] for name, answer in answers.items() if model in answer["models"]}
        sites, floor = {server.participants[name].site for name in of_model}, server.settings.floor
        counts = {attack: reduce(add, (of[attack] for of in of_model.values())) for attack in ATTACKS}
        if len(sites) < floor.sites or counts[ATTACKS[0]].members < floor.samples:
            return None
        return {"sites": len(sites), "attacks": {attack: rates_of(of) for attack, of in counts.items()}}


def rates_of(counts: Counts) -> dict[str, Any]:
    """What a run's results hold of an attack."""
    of_samples = {"members": counts.members, "non_members": counts.non_members}
    return {"tpr": counts.rate, "interval": list(counts.interval), **of_samples}


def clearly_above(counts: Mapping[str, Counts], bound: float | None) -> bool:
    """Whether even the lower end of an attack's rate is above the bound: few samples alone make no rate high."""
    return bound is not None and any(of.interval[0] > bound for of in counts.values())
