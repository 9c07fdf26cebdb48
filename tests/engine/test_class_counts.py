# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A participant's figures stand beside its test samples of each class, where a class has enough of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cfl_flare.core.errors import PayloadError
from cfl_flare.data import Digits, Samples
from cfl_flare.engine.observers import ClassCounts
from cfl_flare.engine.observers.observer import Asked, Probe
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Result, Task
from cfl_flare.methods import FedAvg, Participant
from cfl_flare.results.run_dir import load_run
from cfl_flare.training.ensemble import Served
from cfl_flare.training.settings import TrainSettings
from tests.loop import run_loop
from tests.play import DATA, MODEL, people


def counts(labels, task="classification", fewest=1, outputs=3):
    """What a participant with these test labels answers."""
    model = torch.nn.Linear(2, outputs)
    settings = TrainSettings(local_steps=1, task=task)
    site = Site(FedAvg(), lambda: model, settings, 0, fewest_scored=fewest)
    y = np.array(labels)
    samples = Samples(np.zeros((len(y), 2), np.float32), y)
    site.add([replace(people()[0], name="a", train=samples, test=samples)])
    learner = site.learner("a", {}, 0)
    return ClassCounts.answer(
        {}, Probe(learner, Served.of(site.runtime.initial(0)), {}, settings, site.sends_counts("a"))
    )


def test_counts_by_hand():
    assert counts([0] * 12 + [2] * 2) == [12, 0, None]
    assert counts([0] * 11 + [1] * 10, "binary", outputs=1) == [11, 10]
    assert counts([[1, 0]] * 10 + [[1, 1]] * 9, "multilabel", outputs=2) == [19, None]
    assert counts(np.array([0.5] * 20, np.float32), "regression", outputs=1) is None


def test_a_small_test_split_sends_none():
    assert counts([0] * 29, fewest=30) is None
    assert counts([0] * 30, fewest=30) == [30, 0, 0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (5, "5 should be its number of test samples by class"),
        ([], r"\[\] should be its number"),
        ("12", "'12' should be its number"),
        ([12, 3], "3 test samples of a class should be 0, None, or a whole number in 10"),
        ([True], "True test samples"),
        ([10.0], "10.0 test samples"),
        ([10**12], "1000000000000 test samples"),
        ([0] * 10_001, "should be its number of test samples by class"),
    ],
)
def test_what_no_honest_participant_sends_is_refused(answer, message):
    asked = Task(("global",), train=False, evaluate=True, questions={"test_classes": {}})
    result = Result("a", answers={"test_classes": answer})
    with pytest.raises(PayloadError, match=message):
        ClassCounts(True).check(answer, Asked(Participant("a", "local", 20), asked, result))


def test_nobody_answers_who_was_not_asked():
    task = Task(("global",), train=False, evaluate=True)
    with pytest.raises(PayloadError, match="a was not asked for its test samples of each class"):
        ClassCounts(True).check([10], Asked(Participant("a", "local", 20), task, Result("a")))


@pytest.mark.parametrize("draws", [0, 50])
def test_a_run_with_intervals_says_on_what_they_rest(tmp_path, draws):
    training = TrainSettings(lr=0.1, local_steps=1, bootstrap=draws)
    plan = {"model": MODEL, "source": Digits(), "data": DATA, "settings": ServerSettings(1), "training": training}
    run_loop(method=FedAvg(), folder=tmp_path, **plan)
    summary = load_run(tmp_path).summary
    if not draws:
        assert "test_classes" not in summary
        return
    for person in people():
        exact = np.bincount(person.test.y, minlength=10)
        assert summary["test_classes"][person.name] == [n if n == 0 or n >= 10 else None for n in exact]
