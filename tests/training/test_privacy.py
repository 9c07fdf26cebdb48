# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Differential privacy of a participant: plans, counts, and each mechanism by hand with noise of zero."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cfl_flare.core.errors import BudgetError, ConfigError
from cfl_flare.core.params import Params
from cfl_flare.data import ParticipantData, Samples
from cfl_flare.engine.site import Site
from cfl_flare.engine.task import Task
from cfl_flare.methods import CFLGP, IFCA, CLoVE, Ditto, FedAvg, Local, Method
from cfl_flare.methods.penalties import Proximal
from cfl_flare.training.dp_learner import DPLearner, at_most, pieces
from cfl_flare.training.privacy import (
    GRID,
    ORDERS,
    TEST,
    TRAIN,
    Books,
    DPSettings,
    NoisePlan,
    Queries,
    RoundAccount,
    Spend,
    SystemRandomness,
    count_spend,
    epsilon_of,
    rdp_of,
)
from cfl_flare.training.runtime import Split
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Binary

torch.set_num_threads(1)

X, Y = np.array([[1.0], [2.0], [-0.5], [8.0]], np.float32), np.array([0, 1, 0, 1])
TESTED = np.array([[1.0], [-1.0], [3.0]], np.float32), np.array([1, 1, 0])


class Line(nn.Module):
    """One finding and one weight: the logit ``w x``."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x)


class Still:
    """Randomness without noise: samples take part whose number in ``drawn`` is below their rate."""

    def __init__(self, drawn: Sequence[float] = (), normal: float = 0.0):
        self.drawn, self.normal = drawn, normal

    def random(self, size: int) -> np.ndarray:
        return np.array(self.drawn[:size]) if len(self.drawn) else np.full(size, math.exp(-1.0))  # Gumbel's 0

    def standard_normal(self, size: int) -> np.ndarray:
        return np.full(size, self.normal)


class Entered(Books):
    """What a participant entered, in order."""

    def __init__(self, counts: Mapping[str, int] | None = None):
        self.entered: list[tuple[int, Spend]] = []
        self._counts = counts

    def spend(self, participant: str, round_number: int, spends: Sequence[Spend]) -> None:
        self.entered += [(round_number, spend) for spend in spends]

    def counts(self, participant: str) -> Mapping[str, int] | None:
        return self._counts


def site_of(
    method: Method | None = None,
    books: Entered | None = None,
    tested: bool = True,
    patients: Sequence[int] | None = None,
    **changes: Any,
) -> tuple[Site, ParticipantData]:
    dp = {"epsilon": 3.0, "max_grad_norm": 1.0, "rounds": 2, "measured": 1, **changes.pop("dp", {})}
    training = {"lr": 0.1, "momentum": 0.0, "batch_size": 2, "local_steps": 1, "task": "binary", "dp": dp, **changes}
    books = books or Entered({TRAIN: 5, TEST: 4})
    test = TESTED if tested else (X[:0], Y[:0])
    site = Site(method or FedAvg(), Line, TrainSettings(**training), seed=0, books=books)
    data = ParticipantData("p", Samples(X, Y), Samples(*test))
    if patients is not None:  # of the training samples, and then of the test samples
        train, tests = np.split(np.array(patients), [len(X)])
        data = replace(data, train=replace(data.train, patient=train), test=replace(data.test, patient=tests))
    site.add([data])
    return site, data


def approx_on_grid(expected: Any, deviation: float = 5.0) -> Any:
    """A noisy sum is rounded to a grid of at most `GRID` deviations, and nothing multiplies it by more than 1 here."""
    return pytest.approx(expected, abs=deviation * GRID)


def get_dp_learner(site: Site, randomness: Still, round_number: int = 0) -> DPLearner:
    learner = site.learner("p", {}, round_number)
    assert isinstance(learner, DPLearner)
    learner._randomness = lambda purpose: randomness
    return learner


def test_another_run_on_the_same_data_has_privacy_too() -> None:
    site, _ = site_of()
    books = Entered({TRAIN: 5, TEST: 4})
    other = Site(FedAvg(), Line, site.runtime.settings, seed=0, books=books).with_data_of(site)
    get_dp_learner(other, Still([0.0] * 5)).train(make_line_model(other, 0.0))
    assert other.samples("p") == 5 and [spend.what for _, spend in books.entered] == ["training"]


def make_line_model(site: Site, weight: float) -> Params:
    return Params(site.runtime.initial(0).layout, np.array([weight], np.float32))


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_a_step_is_the_clipped_sum_over_the_expected_size_of_a_batch():
    """Samples 0, 1 and 3 take part; at w = 0 their gradients are 0.5, -1 and -4, and the last is scaled to -1."""
    site, _ = site_of()
    trained = get_dp_learner(site, Still([0.1, 0.2, 0.9, 0.3])).train(make_line_model(site, 0.0))
    # The participant says that it has 5 samples, so that the rate is 2 / 5 and the expected size 2.
    assert trained.vector == pytest.approx([-0.1 * (0.5 - 1 - 1) / 2])


def test_noise_has_the_planned_deviation():
    site, _ = site_of()
    learner = get_dp_learner(site, Still([0.9] * 4, normal=1.0))  # nobody takes part
    sigma = learner._plan.training.noise_multiplier
    assert learner.train(make_line_model(site, 0.0)).vector == pytest.approx([-0.1 * sigma / 2])


# Sample 1 is of a patient of its own, the other three are of one; so are the first two test samples.
PATIENTS = (7, 3, 7, 7, 12, 12, 5)


def test_a_patients_mean_gradient_is_clipped():
    """At w = 0 the samples' gradients are 0.5, -1, -0.25 and -4; the mean of patient 7 is -1.25, scaled to -1."""
    site, _ = site_of(patients=PATIENTS, batch_size=3, books=Entered({TRAIN: 4, TEST: 2}))
    assert get_dp_learner(site, Still([0.1, 0.1])).train(make_line_model(site, 0.0)).vector == approx_on_grid(
        [-0.1 * (-1 - 1) / 3]
    )
    alone = get_dp_learner(site, Still([0.9, 0.1]))  # numbers are drawn for the patients in order: 3, then 7
    assert alone.train(make_line_model(site, 0.0)).vector == approx_on_grid([-0.1 * -1 / 3])
    wide, _ = site_of(patients=PATIENTS, batch_size=3, books=Entered({TRAIN: 4, TEST: 2}), dp={"max_grad_norm": 9.0})
    trained = get_dp_learner(wide, Still([0.1, 0.1])).train(make_line_model(wide, 0.0))
    assert trained.vector == approx_on_grid([-0.1 * (-1 - 1.25) / 3])


def test_a_patient_with_more_samples_than_a_batch_takes_part_with_as_many():
    site, _ = site_of(patients=PATIENTS, batch_size=2, local_steps=40, books=Entered({TRAIN: 4, TEST: 2}))
    batches = get_dp_learner(site, Still([0.1, 0.1]))._batches(np.random.default_rng(0), 40)
    drawn = [tuple(batch.tolist()) for batch in batches]
    assert {len(batch) for batch in drawn} == {3} and {batch[0] for batch in drawn} == {1}
    assert {frozenset(batch[1:]) for batch in drawn} == {frozenset(two) for two in ((0, 2), (0, 3), (2, 3))}


def test_losses_and_measures_count_each_patient_once():
    """At w = 1: of patient 12 one of two test samples is right, of patient 5 none."""
    site, _ = site_of(CLoVE(k=1), patients=PATIENTS, books=Entered({TRAIN: 4, TEST: 2}))
    learner, log = get_dp_learner(site, Still()), lambda z: -math.log(sigmoid(z))
    of_7 = (log(-1.0) + log(0.5) + log(8.0)) / 3
    assert learner.losses([make_line_model(site, 1.0)]) == approx_on_grid([(of_7 + log(2.0)) / 4], deviation=20.0)
    measured = learner.measured(learner.tested(make_line_model(site, 1.0)))
    loss = ((log(1.0) + log(-1.0)) / 2 + log(-3.0)) / 2
    assert measured == pytest.approx({"accuracy": (1 / 2 + 0) / 2, "loss": loss}, rel=1e-5)


def test_patients_are_counted_and_not_samples():
    """The seed gives both sites the same noise."""
    sites = [site_of(books=Entered(), dp={"epsilon": 1000.0}, **of)[0] for of in ({}, {"patients": PATIENTS})]
    assert sites[0].samples("p") - sites[1].samples("p") == len(X) - 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 8), st.integers(1, 8))
def test_pieces_of_a_batch_hold_whole_patients(patients, most, size):
    numbers = np.array(patients, np.int64)
    rows = at_most(most, np.random.default_rng(0).permutation(len(numbers)), numbers)
    assert np.array_equal(np.unique(numbers[rows]), np.unique(numbers)) and len({*rows}) == len(rows)
    assert all((numbers[rows] == n).sum() == min(most, (numbers == n).sum()) for n in {*patients})
    batch = Split(torch.zeros(len(rows), 1), torch.zeros(len(rows)), numbers[rows])
    parts = [piece.numpy() for piece in pieces(batch, size)]
    assert np.array_equal(np.concatenate([[], *parts]), np.arange(len(rows)))
    of_parts = [set(numbers[rows][part]) for part in parts]
    assert all(not a & b for i, a in enumerate(of_parts) for b in of_parts[:i])
    assert all(len(part) <= size or len(of) == 1 for part, of in zip(parts, of_parts))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-50, 50, width=32), st.booleans()), min_size=1, max_size=12),
    st.lists(st.tuples(st.floats(-50, 50, width=32), st.booleans()), min_size=1, max_size=12),
)
def test_a_patient_more_moves_a_step_by_the_clipping_norm_at_most(others, samples):
    """However many samples the patient has: neighbouring data differ in all of them.

    A batch holds all samples of a patient here. From a patient with more, each step draws a part, and two runs that
    share a generator would draw other parts of the others.
    """
    rows = [*others, *((9, x, y) for x, y in samples)]
    steps = []
    for chosen in (others, rows):
        x, y = np.array([[x] for _, x, _ in chosen], np.float32), np.array([int(y) for *_, y in chosen])
        split = Split.of(x, y, task=Binary(), patient=np.array([n for n, *_ in chosen]))
        site, _ = site_of(batch_size=12, books=Entered({TRAIN: 24, TEST: 2}))
        site._splits["p"] = split, site._splits["p"][1]
        steps.append(get_dp_learner(site, Still([0.1] * split.patients)).train(make_line_model(site, 0.3)).vector[0])
    assert abs(steps[1] - steps[0]) <= 0.1 * 1.0 / 12 * (1 + 1e-5)


def test_a_proximal_term_is_added_to_the_noisy_gradient():
    """It says nothing of a sample, and no noise is needed for it: mu w = 3 * 0.5 at the second step."""
    site, _ = site_of(FedAvg(penalties=[Proximal(mu=3.0)]), local_steps=2)
    learner = get_dp_learner(site, Still([0.9] * 4, normal=0.0))
    from cfl_flare.methods import Download

    start = make_line_model(site, 0.0)
    (term,) = site.method.list_terms(Download(("global",), (start,)), "global")
    assert learner.train(make_line_model(site, 0.5), [term]).vector == pytest.approx([0.5 * (1 - 0.1 * 3) ** 2])


def test_what_a_network_writes_into_its_buffers_does_not_leave(monkeypatch):
    class Counting(Line):
        """It keeps the sum of all samples that it has seen, where an update would carry it."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.seen += x.sum()
            return super().forward(x)

    monkeypatch.setattr("tests.training.test_privacy.Line", Counting)
    site, _ = site_of()
    start = Params(site.runtime.initial(0).layout, np.array([0.0, 7.0], np.float32))
    assert get_dp_learner(site, Still([0.1, 0.2, 0.9, 0.3])).train(start).vector == pytest.approx([0.075, 7.0])


def test_losses_are_clipped_sums_over_the_count_that_was_said():
    """At w = 1 and w = -1; the last sample's loss at w = -1 is 8.0003, and counts as 4."""
    site, _ = site_of(CLoVE(k=2))
    losses = get_dp_learner(site, Still()).losses([make_line_model(site, 1.0), make_line_model(site, -1.0)])

    def summed(w: float) -> float:
        return sum(min(4.0, -math.log(sigmoid(w * x if y else -w * x))) for x, y in zip(X[:, 0].tolist(), Y.tolist()))

    assert losses == pytest.approx([summed(1.0) / 5, summed(-1.0) / 5], rel=1e-5)
    noisy = get_dp_learner(site, Still(normal=1.0)).losses([make_line_model(site, 1.0), make_line_model(site, -1.0)])
    deviation = site._accounts["p"].plan.answer.noise_multiplier * 4 * math.sqrt(2)
    assert noisy == pytest.approx(np.clip([(summed(w) + deviation) / 5 for w in (1.0, -1.0)], 0, 4))


def test_measures_are_hits_and_clipped_losses_over_the_count_that_was_said():
    """At w = 1 one of three is right; the losses are 0.313, 1.313 and 3.049; four test samples were said."""
    site, _ = site_of()
    learner = get_dp_learner(site, Still())
    measured = learner.measured(learner.tested(make_line_model(site, 1.0)))
    losses = [-math.log(sigmoid(1.0)), -math.log(sigmoid(-1.0)), -math.log(sigmoid(-3.0))]
    assert measured == pytest.approx({"accuracy": 1 / 4, "loss": sum(losses) / 4}, rel=1e-5)


def test_choices_are_as_frequent_as_the_exponential_mechanism_says():
    """P(k) is proportional to exp(-2 L_k / (s max_loss)) for sums of losses L_k and the noise multiplier s."""
    site, _ = site_of(IFCA(k=3), dp={"epsilon": 20.0, "max_loss": 2.0})
    models = [make_line_model(site, w) for w in (0.0, 1.0, -0.3)]
    plan, rng = site._accounts["p"].plan, np.random.default_rng(0)
    counts = np.zeros(3)
    for _ in range(4000):
        learner = get_dp_learner(site, rng)  # type: ignore[arg-type]
        counts[learner.choice(models)] += 1
        assert learner.choice(models) == learner.choice(models)  # asked again, it costs nothing and says the same
    sums = learner._loss_sums(models)
    weights = np.exp(-2 * (sums - sums.min()) / (plan.answer.noise_multiplier * 2.0))
    expected = 4000 * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 13.8  # chi-square of 2 degrees at 0.001
    assert expected.min() > 100


def test_counts_are_said_once():
    """A count that was written down is said again, and spends nothing more."""
    books = Entered({TRAIN: 7, TEST: 2})
    site, _ = site_of(books=books)
    assert site.samples("p") == 7 and site.learner("p", {}, 0).samples == 7
    assert not books.entered
    drawn = {Site.samples(site_of(books=Entered(), dp={"epsilon": e})[0], "p") for e in (0.5, 500.0)}
    assert len(drawn) == 2 and all(count >= 1 for count in drawn)


def test_what_is_spent_is_entered_before_noise_is_drawn():
    class Stops(Still):
        def standard_normal(self, size: int) -> np.ndarray:
            raise KeyboardInterrupt

    books = Entered({TRAIN: 5, TEST: 4})
    site, _ = site_of(IFCA(k=2), books=books)
    models = [make_line_model(site, 0.0), make_line_model(site, 1.0)]
    for work in (lambda it: it.train(models[0]), lambda it: it.measured(it.tested(models[0]))):
        with pytest.raises(KeyboardInterrupt):
            work(get_dp_learner(site, Stops([0.1] * 4)))
    get_dp_learner(site, Still()).choice(models)
    assert [spend.what for _, spend in books.entered] == ["training", "metrics", "choice"]


@pytest.mark.parametrize("method", [FedAvg(), IFCA(k=2), CLoVE(k=2), Ditto(), Local()], ids=lambda m: m.name)
def test_a_whole_run_spends_its_epsilon_and_no_more(method):
    """All that a round can enter, in all rounds, and once more what is measured and chosen after the last."""
    books, queries = Entered(), method.traits.queries
    site, _ = site_of(method, books=books, dp={"rounds": 5, "measured": 5})
    account = site._accounts["p"]
    for number in range(6):
        view = RoundAccount(account, number)
        for what, times in (("choice", queries.choices), ("losses", queries.losses)):
            for _ in range(times):
                view.enter(account.plan.answer, what)
        for _ in range(queries.trainings if number < 5 else 0):
            view.enter(account.plan.training, "training")
        if number:
            view.enter(account.plan.metrics, "metrics")
    spends = {split: [s for _, s in books.entered if s.split == split] for split in (TRAIN, TEST)}
    for split, of_split in spends.items():
        epsilon = epsilon_of(rdp_of([count_spend(account.dp, split), *of_split]), account.dp.delta)
        assert 0.99 * 3.0 < epsilon <= 3.0, (split, epsilon)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.2, 20), st.integers(1, 60), st.integers(5, 5000), st.integers(1, 64), st.integers(1, 20),
    st.integers(1, 2), st.integers(0, 1),
)  # fmt: skip
def test_no_plan_spends_more_than_its_epsilon(epsilon, rounds, samples, batch, steps, trainings, choices):
    dp, queries = DPSettings(epsilon).over(rounds), Queries(trainings, choices)
    plan = NoisePlan.of(dp, queries, samples, batch, steps)
    spends = [count_spend(dp, TRAIN), replace(plan.answer, steps=(rounds + 1) * choices)] if choices else []
    spends += [replace(plan.training, steps=plan.training.steps * rounds * trainings)]
    assert epsilon_of(rdp_of(spends), dp.delta) <= epsilon


def test_with_a_noise_multiplier_a_participant_stops_once_epsilon_is_spent():
    """The plan pays for as many rounds as fit, and the next training is refused with the number."""
    site, _ = site_of(dp={"noise_multiplier": 2.0, "rounds": 500, "epsilon": 6.0})
    account = site._accounts["p"]
    rounds = account.plan.rounds
    assert 0 < rounds < 500

    def epsilon(count: int) -> float:
        return epsilon_of(rdp_of([count_spend(account.dp, TRAIN), *[account.plan.training] * count]), account.dp.delta)

    assert epsilon(rounds) <= 6.0 < epsilon(rounds + 1)
    RoundAccount(account, rounds - 1).enter(account.plan.training, "training")
    with pytest.raises(BudgetError, match=rf"epsilon = 6.0 pays for 1 a round in {rounds} rounds of training"):
        RoundAccount(account, rounds).enter(account.plan.training, "training")


def test_a_method_that_asks_for_more_than_it_declares_is_refused():
    class Greedy(FedAvg):
        """Trains twice, and declares it once."""

        def local_update(self, learner, download):
            learner.train(download.models[0])
            return super().local_update(learner, download)

    site, _ = site_of(Greedy())
    task = Task(("global",), train=True, evaluate=False)
    result = site.carry_out("p", task, {"global": make_line_model(site, 0.0)}, 0)
    assert result.error == "budget" and result.update is None


def test_a_result_says_the_noisy_count_and_noisy_measures_alone():
    site, _ = site_of()
    task = Task(("global",), train=True, evaluate=True)
    result = site.carry_out("p", task, {"global": make_line_model(site, 0.0)}, 1)
    assert result.error is None and result.update is not None and result.update.samples == 5
    assert {*result.answers} == {"metrics"} and {*result.metrics} == {"served_accuracy", "served_loss"}


@pytest.mark.parametrize(
    "questions",
    [
        {"cross": {"models": [["global", ["global"], "probabilities", [""]]]}},
        {"bootstrap": {"times": 200, "measures": []}},
        {"membership": {"shadow_models": 4, "models": [["global", ["global"], "probabilities", [""]]]}},
        {"scores": {}, "test_classes": {}},
    ],
    ids=lambda questions: next(iter(questions)),
)
def test_a_server_that_asks_for_numbers_without_a_mechanism_gets_none(questions):
    site, _ = site_of(dp={"measured": 1})
    task = Task(("global",), train=False, evaluate=True, questions=questions)
    result = site.carry_out("p", task, {"global": make_line_model(site, 0.0)}, 1)
    assert {*result.answers} <= {"metrics"} and result.update is None


def test_secret_randomness_differs_and_seeded_does_not():
    def trained(secret: bool) -> np.ndarray:
        site, _ = site_of(books=Entered({TRAIN: 5, TEST: 4}))
        site._secret = secret
        return site.learner("p", {}, 0).train(make_line_model(site, 0.0)).vector

    assert trained(False) == trained(False)
    assert trained(True) != trained(True)


def test_the_operating_systems_normal_numbers_are_normal():
    """Five deviations of the mean and of the variance of a hundred thousand."""
    drawn = SystemRandomness().standard_normal(100_000)
    assert abs(drawn.mean()) < 5 / math.sqrt(1e5) and abs(drawn.var() - 1) < 5 * math.sqrt(2 / 1e5)
    uniform = SystemRandomness().random(100_000)
    assert 0 < uniform.min() < uniform.max() < 1 and abs(uniform.mean() - 0.5) < 5 / math.sqrt(12e5)


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        (CFLGP(k=2), {}, "method cfl-gp"),
        (FedAvg(finetune=True), {}, "fine-tuning"),
        (FedAvg(), {"score_bins": 200}, "score_bins = 200"),
        (FedAvg(), {"bootstrap": 200}, "bootstrap = 200"),
        (FedAvg(), {"measures": ("auroc",)}, "measures"),
        (FedAvg(), {"class_weights": "balanced"}, "class_weights"),
        (FedAvg(), {"task": "survival"}, "no mean over samples"),
        (FedAvg(), {"dp": {"epsilon": 0}}, "epsilon = 0"),
        (FedAvg(), {"dp": {"delta": 2}}, "delta = 2"),
        (FedAvg(), {"dp": {"noise": 2}}, "noise"),
    ],
)
def test_what_breaks_the_guarantee_is_refused(method, changes, words):
    with pytest.raises(ConfigError, match="dp") as error:
        site_of(method, **changes)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_network_that_mixes_samples_is_refused_with_the_way_out():
    from cfl_flare.models import FashionCNN

    dp = {"epsilon": 3.0, "rounds": 2, "measured": 1}
    with pytest.raises(ConfigError, match=r"BatchNorm2d mixes the samples of a batch; take .* norm=group,"):
        Site(FedAvg(), lambda: FashionCNN((1, 8, 8), 3), TrainSettings(dp=dp), seed=0)
    Site(FedAvg(), lambda: FashionCNN((1, 8, 8), 3, norm="group"), TrainSettings(dp=dp), seed=0)


def test_nothing_else_of_a_private_learner_answers():
    site, _ = site_of()
    learner, model = get_dp_learner(site, Still()), make_line_model(site, 0.0)
    for work in (
        lambda: learner.labels,
        lambda: learner.gradient(model),
        lambda: learner.adapt_model(model, 1, 0.1),
        lambda: learner.train(model, epochs=1),
        lambda: learner.train(model, inner_lr=0.1),
        lambda: learner.evaluate(model),
    ):
        with pytest.raises(ConfigError, match="have no mechanism here that protects single samples"):
            work()
    outputs = learner.tested(model)
    assert learner.score_counts(outputs) is learner.class_counts(outputs) is learner.resampled(outputs, [], 5) is None


def test_a_gaussian_is_what_the_literature_says():
    """The divergence at order alpha is alpha / (2 sigma^2), and several add up (Mironov 2017)."""
    rdp = rdp_of([Spend("", TRAIN, 2.0), Spend("", TRAIN, 1.0, steps=3)])
    assert rdp == pytest.approx(np.array(ORDERS) * (1 / 8 + 3 / 2))
    assert epsilon_of(rdp_of([]), 1e-5) == 0.0
