# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The promises of a method, each played on a small stage. ``docs/add-a-method.md`` explains each of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cfl_flare.core.errors import CFLError, ConfigError
from cfl_flare.core.params import Params, WeightedMean
from cfl_flare.methods import Method, ServerState, build_method, describe_method
from cfl_flare.methods.slots import cluster_slot
from cfl_flare.results.store import Checkpoint, Store
from cfl_flare.testing.stage import Stage, WiredStage, make_logits, make_people

PAGE = "docs/add-a-method.md#the-promises"
# Rounds after which each method of the package has made its clusters.
ROUNDS = 3
# Sums of float32 numbers in another order differ by less.
TOLERANCE = 1e-4


class PromiseError(CFLError, AssertionError):
    """A method breaks a promise of the contract."""

    @classmethod
    def of(
        cls,
        promise: str,
        method: Method,
        reason: str,
    ) -> PromiseError:
        """Build the error of a broken promise.

        Args:
            promise: the name of the promise.
            method: the method that breaks it.
            reason: what happened.

        Returns:
            The error, whose message ends with a hint that names the page.
        """
        text = f"promise {promise!r}: method {method.name} breaks it: {reason}"
        return cls(f"{text}\nhint: read about {promise!r} in {PAGE}")


def expect(
    kept: bool,
    reason: str,
) -> None:
    """Raise a PromiseError with a reason unless a condition is true.

    Args:
        kept: the condition.
        reason: what is wrong, with the values.

    Raises:
        PromiseError: the condition is false.
    """
    if not kept:
        raise PromiseError(reason)


def differ(
    one: Params,
    other: Params,
    tolerance: float = 0.0,
) -> bool:
    """Compare two models.

    Args:
        one: a model.
        other: another model.
        tolerance: the largest difference that is allowed in a parameter.

    Returns:
        Whether the models differ.
    """
    if one.layout != other.layout:
        return True
    return not np.allclose(one.vector, other.vector, rtol=0, atol=tolerance)


def expect_same_state(
    found: ServerState,
    expected: ServerState,
    cause: str,
    tolerance: float = 0.0,
) -> None:
    """Raise a PromiseError if two states differ.

    Args:
        found: the state under test.
        expected: the state that it should be.
        cause: what the two runs differ in, for the message.
        tolerance: the largest difference that is allowed in a parameter.

    Raises:
        PromiseError: models, assignments or extras differ.
    """
    expect(
        found.bank.keys() == expected.bank.keys(),
        f"{cause}: the models are {sorted(found.bank)}: expected {sorted(expected.bank)}",
    )
    for slot, model in expected.bank.items():
        expect(
            not differ(found.bank[slot], model, tolerance),
            f"{cause}: model {slot!r} is another one",
        )
    expect(
        dict(found.assignment) == dict(expected.assignment),
        f"{cause}: the assignment is {dict(found.assignment)}: "
        f"expected {dict(expected.assignment)}",
    )
    if tolerance == 0.0:
        expect(
            found.extras == expected.extras,
            f"{cause}: the extras are {found.extras}: expected {expected.extras}",
        )


def list_groups(assignment: Mapping[str, int]) -> set[frozenset[str]]:
    """List the clusters as sets of participants, because numbers may differ.

    Args:
        assignment: the cluster of each participant.

    Returns:
        The members of each cluster.
    """
    members: dict[int, set[str]] = {}
    for name, cluster in assignment.items():
        members.setdefault(cluster, set()).add(name)
    return {frozenset(names) for names in members.values()}


# ---- The promises ----


def check_job_file(method: Method) -> None:
    """A job's file keeps the method: settings are JSON values, and the class can be imported by its path."""
    text = json.dumps(describe_method(method))
    again = build_method(json.loads(text))
    expect(again == method, f"read from a job's file it is {again}: expected {method}")


def check_weights(method: Method) -> None:
    """Numbers of samples are relative, and a mean weighs its models as `counts_in` states."""
    stage = Stage(method)
    doubled = Stage(method, weight=2)
    for _ in range(ROUNDS):
        before = stage.state
        stage.play_round()
        doubled.play_round()
        cause = "if each participant has twice as many samples"
        expect_same_state(doubled.state, stage.state, cause, TOLERANCE)
        if method.traits.averages_only:
            expect_stated_means(stage, before)


def expect_stated_means(
    stage: Stage,
    before: ServerState,
) -> None:
    """Raise a PromiseError if a round's means are not those that `counts_in` states.

    Args:
        stage: the stage after the round.
        before: the server's state before the round.

    Raises:
        PromiseError: a model of the bank is another one than the weighted mean.
    """
    means: dict[str, WeightedMean] = {}
    for update in stage.updates:
        counts = stage.method.counts_in(before, update, stage.state.assignment)
        for slot, (name, weight) in counts.items():
            start = before.bank[slot]
            mean = means.setdefault(name, WeightedMean(start.layout))
            mean.add(update.diffs[slot], weight, start=start)
    for name, mean in means.items():
        expected = mean.result(before.bank.get(name, stage.state.bank[name]))
        expect(
            not differ(stage.state.bank[name], expected, TOLERANCE),
            f"model {name!r} is not the mean with the weights that counts_in states, "
            "although the traits declare averages_only",
        )


def check_order(method: Method) -> None:
    """The order in which participants are hosted changes no group and no model, only numbers of clusters."""
    stage = Stage(method)
    reverse = Stage(method, make_people()[::-1])
    for _ in range(ROUNDS):
        stage.play_round()
        reverse.play_round()
        groups = list_groups(stage.state.assignment)
        others = list_groups(reverse.state.assignment)
        expect(
            groups == others,
            f"if participants are hosted in reverse order, the groups are {others}: "
            f"expected {groups}",
        )
        if not compare_renumbered(stage.state, reverse.state):
            return  # models that start by a cluster's number differ from here on


def compare_renumbered(
    one: ServerState,
    other: ServerState,
) -> bool:
    """Compare the models of two runs that may number their clusters differently.

    Args:
        one: the state of a run.
        other: the state of a run with the same groups.

    Returns:
        Whether each cluster has the same model in both runs. If not, the models of
        each number are the same, as after a start by numbers.

    Raises:
        PromiseError: models differ either way.
    """
    numbers: dict[str, str] = {}
    for name, cluster in one.assignment.items():
        numbers[cluster_slot(cluster)] = cluster_slot(other.assignment[name])
    differing = []
    for slot, model in one.bank.items():
        is_numbered = slot.rpartition("-")[2].isdigit()
        if is_numbered and slot not in numbers:
            continue  # a cluster without members, or a part of one
        if differ(model, other.bank[numbers.get(slot, slot)], TOLERANCE):
            differing.append(slot)
    if not differing:
        return True
    by_number = [
        slot
        for slot, model in one.bank.items()
        if differ(model, other.bank[slot], TOLERANCE)
    ]
    expect(
        not by_number,
        f"if participants are hosted in reverse order, models {differing} differ",
    )
    return False


def check_absent(method: Method) -> None:
    """A participant that a round does not sample keeps its cluster."""
    stage = Stage(method, sample=4)
    for _ in range(2 * ROUNDS):
        before = stage.state
        trained = stage.play_round()
        for name, cluster in before.assignment.items():
            lives_on = cluster_slot(cluster) in stage.state.bank
            if name in trained or not lives_on:
                continue
            now = stage.state.assignment.get(name)
            expect(
                now == cluster,
                f"{name} did not train in round {before.round} and moved from "
                f"cluster {cluster} to {now}",
            )


def check_nobody(method: Method) -> None:
    """A round in which nobody answers changes nothing, and the next round goes on."""
    stage = Stage(method)
    everyone = [data.name for data in make_people()]
    for _ in range(2):
        before = stage.state
        stage.play_round(absent=everyone)
        expected = replace(before, round=before.round + 1)
        expect_same_state(stage.state, expected, "after a round without an answer")
        stage.play_round()


def check_late(method: Method) -> None:
    """A participant that comes later takes part, and newcomers to the finished run change nothing for others."""
    people = make_people()
    stage = Stage(method, people[:4])
    stage.play_rounds(2)
    stage.admit(people[4:5])
    stage.play_rounds(ROUNDS)
    expect_valid_clusters(method, stage.state)

    newcomer = people[5]
    if method.traits.named_groups:
        labels = {**stage.state.labels, newcomer.name: method.traits.named_groups[0]}
        stage.server.state = replace(stage.state, labels=labels)
    before = replace(stage.state, logits=make_logits(method))
    update = stage.train_newcomer(newcomer)
    after = method.join(before, update)
    others = {name: after.assignment.get(name) for name in before.assignment}
    expect(
        others == dict(before.assignment),
        f"a newcomer's join moved others: {others}: expected {dict(before.assignment)}",
    )
    expect_same_bank(after, before, "a newcomer's join")
    expect_valid_clusters(method, after)


def expect_same_bank(
    found: ServerState,
    expected: ServerState,
    cause: str,
) -> None:
    """Raise a PromiseError if the models of two states differ.

    Args:
        found: the state under test.
        expected: the state whose models it should have.
        cause: what happened between the two, for the message.

    Raises:
        PromiseError: a model differs.
    """
    for slot, model in expected.bank.items():
        expect(
            slot in found.bank and not differ(found.bank[slot], model),
            f"{cause} changed model {slot!r}",
        )


def expect_valid_clusters(
    method: Method,
    state: ServerState,
) -> None:
    """Raise a PromiseError if a participant is in a cluster that was never given out.

    Args:
        method: the method, whose `count_clusters` has the number of clusters.
        state: a state of its run.

    Raises:
        PromiseError: a cluster does not exist.
    """
    count = method.count_clusters(state)
    for name, cluster in state.assignment.items():
        expect(
            isinstance(cluster, int) and 0 <= cluster < count,
            f"{name} is in cluster {cluster!r}: expected one of 0 to {count - 1}",
        )


def check_one_cluster(method: Method) -> None:
    """With k = 1 the run goes on with one cluster, or a ConfigError refuses k."""
    settings = {field.name for field in fields(method)}
    if not isinstance(getattr(method, "k", None), int) or "k" not in settings:
        return
    try:
        one_cluster: dict[str, Any] = {"k": 1}
        single: Method = replace(method, **one_cluster)
    except ConfigError as error:
        expect("k = 1" in str(error), f"k = 1 is refused without naming it: {error}")
        return
    stage = Stage(single)
    stage.play_rounds(ROUNDS)
    expect(
        len(list_groups(stage.state.assignment)) <= 1,
        f"with k = 1 the assignment is {dict(stage.state.assignment)}",
    )


def check_resume(method: Method) -> None:
    """A run that was stopped goes on as if it had not been: all state is in the checkpoint."""
    with TemporaryDirectory(prefix="cfl-check-") as folder:
        undisturbed = Stage(method)
        undisturbed.play_rounds(2 * ROUNDS)

        store = Store(Path(folder))
        stopped = Stage(method, archive=store.archive)
        stopped.play_rounds(ROUNDS)
        server = stopped.server
        saved = Checkpoint(server.state, server.progress, stopped.site.memory)
        reason = saved.save(store, {})
        expect(reason is None, f"its state cannot be saved: {reason}")

        # Another process builds the method again and reads the state.
        start = Checkpoint.latest(store, stopped.division.layout, {})
        assert start is not None
        again = build_method(json.loads(json.dumps(describe_method(method))))
        resumed = Stage(again, start=start, archive=store.archive)
        resumed.play_rounds(ROUNDS)
    cause = f"if the run is stopped after round {ROUNDS} and goes on"
    expect_same_state(resumed.state, undisturbed.state, cause)


def check_private_layers(method: Method) -> None:
    """Private layers never travel; a method that cannot have them declares ``no_private``."""
    if method.traits.no_private:
        return
    stage = Stage(method, private="body.1")
    stage.play_rounds(ROUNDS)
    private = set(stage.division.names)
    for slot, model in stage.state.bank.items():
        shared = sorted(private.intersection(model.arrays()))
        expect(not shared, f"model {slot!r} at the server holds the private {shared}")


def check_minimum_sizes(method: Method) -> None:
    """Each cluster has at least the minimum number of sites, if the traits declare ``mergeable``."""
    stage = Stage(method, min_sites_per_cluster=2, merge_small_clusters=True)
    for _ in range(ROUNDS):
        stage.play_round()
        sizes = Counter(stage.state.assignment.values())
        small = [cluster for cluster, size in sizes.items() if size < 2]
        expect(
            not small or not method.traits.mergeable,
            f"clusters {small} have fewer than min_sites_per_cluster = 2 sites",
        )


def check_sums(method: Method) -> None:
    """Models do not depend on the division over sites, nor on sums by site if the traits declare ``averages_only``."""
    stage = Stage(method)
    divided = Stage(method, sites=2)
    stage.play_rounds(ROUNDS)
    divided.play_rounds(ROUNDS)
    cause = "if the participants are divided over two sites and not six"
    expect_same_state(divided.state, stage.state, cause)
    if not method.traits.averages_only:
        return
    summed = Stage(method, sites=2, sums=True)
    summed.play_rounds(ROUNDS)
    cause = "if each site sends the sum of its participants, as averages_only allows"
    expect_same_state(summed.state, stage.state, cause, TOLERANCE)


def check_wire(method: Method) -> None:
    """Messages survive FLARE's serialization: a run through it has equal bits."""
    stage = Stage(method)
    wired = WiredStage(method)
    for _ in range(ROUNDS):
        stage.play_round()
        wired.play_round()
        cause = "if all messages go through FLARE's serialization"
        expect_same_state(wired.state, stage.state, cause)


PROMISES: dict[str, Callable[[Method], Any]] = {
    "job file": check_job_file,
    "weights": check_weights,
    "order": check_order,
    "absent": check_absent,
    "nobody": check_nobody,
    "late": check_late,
    "one cluster": check_one_cluster,
    "resume": check_resume,
    "private layers": check_private_layers,
    "minimum sizes": check_minimum_sizes,
    "sums": check_sums,
    "wire": check_wire,
}
