# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Differential privacy, checked from outside: by another accountant, an audit, differences, and counted samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import beta, binom, chisquare, norm
from torch import nn

from cfl_flare.core.params import Params
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import IFCA, FedAvg, Method
from cfl_flare.models import MODELS
from cfl_flare.training.dp_learner import DPLearner
from cfl_flare.training.privacy import (
    ORDERS,
    TEST,
    TRAIN,
    Account,
    Books,
    DPSettings,
    NoisePlan,
    Queries,
    RoundAccount,
    Spend,
    SystemRandomness,
    epsilon_of,
    rdp_of,
)
from cfl_flare.training.runtime import Runtime, Split
from cfl_flare.training.sample_gradients import SampleGradients
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import MODEL, run_loop

# ---- Another accountant ----


def make_audited_spend(noise: float, rate: float = 1.0, steps: int = 1) -> Spend:
    return Spend("training", TRAIN, noise, rate, steps)


def composed(accountant: Any, spends: list[Spend]) -> Any:
    for spend in spends:
        event = dp_accounting.GaussianDpEvent(spend.noise_multiplier)
        if spend.sample_rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(spend.sample_rate, event)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, spend.steps))
    return accountant


# Published ones have the epsilon that was published, which has the older conversion from Renyi's divergence: Mironov
# 2017, Prop. 3.
SETTINGS: list[tuple[list[Spend], float, float | None]] = [
    ([make_audited_spend(4, 0.01, 10_000)], 1e-5, 1.26),  # Abadi et al. 2016, sec. 3.2
    # The README of TensorFlow Privacy's tutorials: MNIST, batches of 256 of 60,000; 15, 60 and 45 epochs.
    ([make_audited_spend(1.3, 256 / 60_000, 15 * 60_000 // 256)], 1e-5, 1.19),
    ([make_audited_spend(1.1, 256 / 60_000, 60 * 60_000 // 256)], 1e-5, 3.01),
    ([make_audited_spend(0.7, 256 / 60_000, 45 * 60_000 // 256)], 1e-5, 7.10),
    # Single Gaussian mechanisms, a batch that is all samples, few samples, much and little noise.
    ([make_audited_spend(0.5)], 1e-5, None),
    ([make_audited_spend(1)], 1e-5, None),
    ([make_audited_spend(3)], 1e-3, None),
    ([make_audited_spend(10, 1, 100)], 1e-6, None),
    ([make_audited_spend(20, 1, 30)], 1e-8, None),
    ([make_audited_spend(6, 0.9, 200)], 1e-5, None),
    ([make_audited_spend(1.5, 0.5, 10)], 1e-5, None),
    ([make_audited_spend(1.5, 0.2, 50)], 1e-5, None),
    ([make_audited_spend(1.5, 0.01, 2000)], 1e-5, None),
    ([make_audited_spend(1, 64 / 60_000, 9375)], 1e-5, None),
    ([make_audited_spend(1, 5000 / 763_430, 4980)], 1e-9, None),
    ([make_audited_spend(2.5, 32 / 150, 400)], 1e-4, None),
    ([make_audited_spend(0.7, 0.001, 1000)], 1e-5, None),
    ([make_audited_spend(0.4, 0.001, 1000)], 1e-5, None),
    ([make_audited_spend(1, 0.5, 10)], 1e-5, None),
    # Steps of training, and answers on all samples.
    ([make_audited_spend(2, 0.1, 100), make_audited_spend(20, 1, 11), make_audited_spend(30)], 1e-5, None),
    ([make_audited_spend(1.2, 0.05, 200), make_audited_spend(8, 1, 5)], 1e-6, None),
    ([make_audited_spend(1.2, 0.05, 200), make_audited_spend(1.5, 0.02, 300), make_audited_spend(9)], 1e-5, None),
    ([make_audited_spend(5, 0.3, 100), make_audited_spend(40, 1, 200), make_audited_spend(4, 0.25, 50)], 1e-4, None),
]


@pytest.mark.parametrize(("spends", "delta", "published"), SETTINGS)
def test_epsilon_is_that_of_another_accountant(spends: list[Spend], delta: float, published: float | None) -> None:
    rdp = rdp_of(spends)
    epsilon = epsilon_of(rdp, delta)
    assert epsilon == pytest.approx(composed(RdpAccountant(), spends).get_epsilon(delta), rel=0.01)
    assert epsilon > composed(PLDAccountant(value_discretization_interval=1e-3), spends).get_epsilon(
        delta
    )  # the exact one
    if published is not None:
        older = rdp - np.log(delta) / (np.array(ORDERS) - 1)
        assert older.min() == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("method", [FedAvg(), IFCA(k=2)], ids=lambda method: method.label)
def test_what_a_run_enters_is_within_its_epsilon_and_near_it(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: dict[tuple[str, str], list[Spend]] = {}

    def enter(participant: str, spends: list[Spend]) -> None:
        for spend in spends:
            entered.setdefault((participant, spend.split), []).append(spend)

    monkeypatch.setattr(Books, "spend", lambda self, name, number, spends: enter(name, spends))
    monkeypatch.setattr(Books, "said", lambda self, name, counts, spends: enter(name, spends))
    run_loop(
        method=method,
        model=MODEL,
        source=Digits(),
        data=DataConfig(2, {"partition": "iid"}),
        settings=ServerSettings(4, evaluate_every=2),
        training=TrainSettings(dp={"epsilon": 3.0, "delta": 1e-4}),
    )
    assert {split for _, split in entered} == {TRAIN, TEST} and len(entered) == 4
    for spends in entered.values():
        assert 2.7 < composed(RdpAccountant(), spends).get_epsilon(1e-4) < 3.01


# ---- An audit in one run: Steinke, Nasr and Jagielski 2023 ----

CANARIES = 2048


class Dirac(nn.Module):
    """Two logits, and a feature for each canary: gradients of two canaries have no coordinate in common."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(CANARIES, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def make_dp_learner(
    make: Callable[[], nn.Module], split: Split, spend: Spend, seed: int = 0, clip: float = 1.0, lr: float = 1.0
) -> DPLearner:
    """A participant in its only round, whose training is one given spend."""
    dp = DPSettings(epsilon=1.0, max_grad_norm=clip)
    settings = TrainSettings(lr=lr, momentum=0.0, batch_size=256, local_steps=spend.steps, dp={"epsilon": 1.0})
    plan = NoisePlan(spend, spend, spend, 1)
    account = Account("p", dp, plan, {TRAIN: len(split), TEST: len(split)}, Queries(), Books())
    generator = np.random.default_rng(seed)
    return DPLearner(
        Runtime(make, settings, seed),
        "p",
        split,
        split,
        {},
        account=RoundAccount(account, 0),
        randomness=lambda _: generator,
    )


def canary_losses(spend: Spend, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which canaries a coin put into the training data, and the trained model's loss on each.

    Gradients are longer than the norm to which they are clipped, and stay so: a canary always counts as much as it may.
    """
    included = np.random.default_rng([seed, 1]).random(CANARIES) < 0.5
    samples, labels = 1000 * np.eye(CANARIES, dtype=np.float32), np.zeros(CANARIES, np.int64)
    learner = make_dp_learner(Dirac, Split.of(samples[included], labels[included]), spend, seed, lr=1e-3)
    start = learner.initial(0)
    zero = Params(start.layout, np.zeros_like(start.vector))
    learner.train(zero)
    with torch.no_grad():
        logits = learner._runtime.resident.module(torch.from_numpy(samples))
    return included, nn.functional.cross_entropy(logits.double(), torch.from_numpy(labels), reduction="none").numpy()


def p_value(guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The most probable that so many right guesses are if a mechanism is private: their Theorem 5.2, code of App. D."""
    rate = 1 / (1 + np.exp(-epsilon))
    below = np.cumsum(binom.pmf(right - np.arange(1, right + 1), guesses, rate))
    alpha = float(np.max(below / np.arange(1, right + 1), initial=0.0))
    return min(1.0, float(binom.sf(right - 1, guesses, rate)) + alpha * delta * 2 * CANARIES)


def audited(included: np.ndarray, losses: np.ndarray, delta: float, guesses: int) -> float:
    """An epsilon that the mechanism exceeds, with 95 % confidence: half of the guesses are for, half against."""
    order = np.argsort(losses)
    right = int(included[order[: guesses // 2]].sum() + (~included[order[-guesses // 2 :]]).sum())
    candidates = np.arange(0, 12, 0.01)
    refuted = [e for e in candidates if p_value(guesses, right, e, delta) < 0.05]
    return max(refuted, default=0.0)


def separated(included: np.ndarray, losses: np.ndarray, delta: float) -> float:
    """The same by how far the canaries' losses are apart, as these do not touch each other: each is a trial.

    The trade-off of errors bounds mu of Gaussian differential privacy (Nasr et al. 2023, sec. 4.3; Clopper-Pearson),
    and mu gives epsilon (Balle and Wang 2018, Thm. 8).
    """
    threshold = np.median(losses)
    missed, wrong = (losses[included] > threshold), (losses[~included] <= threshold)
    fnr, fpr = (beta.ppf(0.975, errors.sum() + 1, len(errors) - errors.sum()) for errors in (missed, wrong))
    mu = norm.isf(fpr) - norm.ppf(fnr)
    epsilons = np.arange(0, 30, 0.01)
    deltas = norm.cdf(mu / 2 - epsilons / mu) - np.exp(epsilons) * norm.cdf(-mu / 2 - epsilons / mu)
    return float(epsilons[deltas > delta].max(initial=0.0)) if mu > 0 else 0.0


DELTA = 1e-5
AUDITED = [
    make_audited_spend(0.5),
    make_audited_spend(1),
    make_audited_spend(2),
    make_audited_spend(3, 1, 4),
    make_audited_spend(0.6, 0.3, 4),
    make_audited_spend(1, 0.1, 8),
]


@pytest.mark.parametrize("spend", AUDITED, ids=str)
def test_no_audit_refutes_epsilon(spend: Spend) -> None:
    epsilon = epsilon_of(rdp_of([spend]), DELTA)
    included, losses = canary_losses(spend, seed=2)
    bounds = [audited(included, losses, DELTA, guesses) for guesses in (20, 50, 100, 200, 500)]
    assert 0.1 * epsilon < max(bounds) < epsilon


@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_canaries_that_do_not_touch_each_other_come_near_epsilon(noise: float) -> None:
    """So the audit can fail. What is missing is Renyi's conversion, a tenth, and the confidence."""
    epsilon = epsilon_of(rdp_of([make_audited_spend(noise)]), DELTA)
    runs = [canary_losses(make_audited_spend(noise), seed) for seed in range(10, 14)]
    included, losses = (np.concatenate(part) for part in zip(*runs))
    assert 0.75 * epsilon < separated(included, losses, DELTA) < epsilon


def less_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet:
        def __init__(self, generator: Any):
            self._generator = generator

        def standard_normal(self, size: int) -> np.ndarray:
            return np.asarray(self._generator.standard_normal(size) / 10)

    right = DPLearner._noise
    monkeypatch.setattr(DPLearner, "_noise", lambda self, what: Quiet(right(self, what)))


def no_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SampleGradients.add
    monkeypatch.setattr(SampleGradients, "add", lambda self, loss, norm, *rest: right(self, loss, 1e9, *rest))


def no_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = lambda self, rng, steps: [torch.arange(len(self._train))] * steps  # noqa: E731
    monkeypatch.setattr(DPLearner, "_batches", everyone)


@pytest.mark.parametrize(
    ("breaks", "spend"),
    [
        (less_noise, make_audited_spend(2)),
        (no_clipping, make_audited_spend(2)),
        (no_sampling, make_audited_spend(1, 0.05, 4)),
    ],
)
def test_the_audit_refutes_a_broken_mechanism(
    breaks: Callable[[pytest.MonkeyPatch], None], spend: Spend, monkeypatch: pytest.MonkeyPatch
) -> None:
    epsilon = epsilon_of(rdp_of([spend]), DELTA)
    assert audited(*canary_losses(spend, seed=5), DELTA, 100) < epsilon
    breaks(monkeypatch)
    assert audited(*canary_losses(spend, seed=5), DELTA, 100) > epsilon


# ---- Clipped gradients, by differences ----


class SmallConvolution(nn.Module):
    """A convolution, whose weights lie channels last in a model's vector, GroupNorm, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 2)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.norm(self.conv(x))).flatten(1))


def numerical(model: Params, x: torch.Tensor, y: torch.Tensor, step: float = 2**-8) -> np.ndarray:
    """The gradient of one sample's loss, by central differences in float64."""
    module = SmallConvolution().double()

    def loss(vector: np.ndarray) -> float:
        arrays = Params(model.layout, vector).arrays()
        module.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(a)).double() for name, a in arrays.items()})
        with torch.no_grad():
            return nn.functional.cross_entropy(module(x[None].double()), y[None]).item()

    gradient = np.zeros(len(model.vector))
    for i in range(len(gradient)):
        low, high = model.vector.copy(), model.vector.copy()
        low[i] -= step
        high[i] += step
        gradient[i] = (loss(high) - loss(low)) / (float(high[i]) - float(low[i]))
    return gradient


def test_a_step_is_the_mean_of_clipped_gradients_of_single_samples() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 2, 3, 3)).astype(np.float32), np.array([0, 1, 2, 2, 0, 1, 2])
    learner = make_dp_learner(SmallConvolution, Split.of(x, y), make_audited_spend(1e-12), clip=3.5)
    start = learner.initial(0)
    gradients = [numerical(start, *sample) for sample in zip(torch.from_numpy(x), torch.from_numpy(y))]
    norms = [float(np.linalg.norm(g)) for g in gradients]
    assert min(norms) < 3 and max(norms) > 4  # some are clipped, and some are not
    expected = np.sum([g / max(1.0, n / 3.5) for g, n in zip(gradients, norms)], axis=0) / 7
    np.testing.assert_allclose(start.vector - learner.train(start).vector, expected, atol=2e-4)


NETWORKS = {
    "cifar-cnn": {},
    "fashion-cnn": {"norm": "group"},
    "resnet18": {"norm": "group"},
    "mobilenet-v2": {"norm": "group"},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_without_clipping_a_step_of_a_built_in_network_is_that_of_torch(name: str) -> None:
    def make() -> nn.Module:
        module = MODELS[name](input_shape=(3, 16, 16), num_classes=4, **NETWORKS[name])
        for layer in module.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        return module

    rng = np.random.default_rng(1)
    split = Split.of(rng.normal(size=(5, 3, 16, 16)).astype(np.float32), np.array([0, 1, 2, 3, 0]))
    learner, module = make_dp_learner(make, split, make_audited_spend(1e-12), clip=1e6), make()
    start = learner.initial(0)
    module.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in start.arrays().items()})
    nn.functional.cross_entropy(module(split.x), split.y).backward()
    step = Params(start.layout, start.vector - learner.train(start).vector).arrays()
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max())
        np.testing.assert_allclose(step[key], parameter.grad.numpy(), atol=1e-6 + 1e-3 * scale, err_msg=key)


def test_a_sample_without_a_finite_gradient_counts_as_little_as_any() -> None:
    """Else a model that overflows on one sample would tell for certain whether it is there."""
    x, y = np.full((3, CANARIES), 0.5, np.float32), np.zeros(3, np.int64)
    x[1] = 1e30
    for bad in (1e30, np.inf, np.nan):
        x[1, 0] = bad
        learner = make_dp_learner(Dirac, Split.of(x, y), make_audited_spend(1e-3, 1.0, 2), lr=1e-3)
        start = learner.initial(0)
        change = start.vector - learner.train(start).vector
        assert np.isfinite(change).all() and np.linalg.norm(change) < 1e-3 * 2 * 1.1


# ---- Samples of batches ----


@pytest.mark.parametrize("source", ["seed", "operating system"])
def test_batches_are_poisson_samples(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, rate, steps = 40, 0.2, 4000
    split = Split.of(np.zeros((rows, CANARIES), np.float32), np.zeros(rows, np.int64))
    learner = make_dp_learner(Dirac, split, make_audited_spend(1.0, rate, steps))
    if source == "operating system":
        monkeypatch.setattr("os.urandom", np.random.default_rng(1).bytes)
        learner._randomness = lambda purpose: SystemRandomness()
    drawn = np.zeros((steps, rows), bool)
    for row, batch in zip(drawn, learner._batches(np.random.default_rng(0), steps), strict=True):
        row[batch.numpy()] = True
    variance = rate * (1 - rate)
    # Each sample is in a batch as often as it should be.
    counts = drawn.sum(axis=0)
    assert ((counts - steps * rate) ** 2 / (steps * variance)).sum() < 85  # chi-square of 40, 1 in 10,000 is above 83
    # Sizes are binomial; none is fixed.
    sizes, edges = drawn.sum(axis=1), np.arange(3, 14)
    observed = np.histogram(sizes, [-1, *edges, rows + 1])[0]
    expected = steps * np.diff(binom.cdf([-2, *(edges - 1), rows], rows, rate))
    assert chisquare(observed, expected).pvalue > 1e-4
    # No two samples, and no two steps of a sample, know of each other.
    centred = (drawn - rate) / variance**0.5
    pairs = (centred.T @ centred / steps**0.5)[np.triu_indices(rows, 1)]
    steps_of = (centred[1:] * centred[:-1]).sum(axis=0) / (steps - 1) ** 0.5
    assert abs(float((pairs**2).mean()) - 1) < 0.25 and float((steps_of**2).sum()) < 85


def test_a_choice_has_the_probabilities_of_the_exponential_mechanism() -> None:
    noise, times = 1.5, 4000
    split = Split.of(np.zeros((3, CANARIES), np.float32), np.array([0, 1, 1]))
    learner = make_dp_learner(Dirac, split, make_audited_spend(noise), seed=3)
    learner._account.account = replace(learner._account.account, queries=Queries(choices=times))
    models = [learner.initial(i) for i in range(3)]
    sums = np.array([0.0, 2.0, 5.0])
    learner._loss_sums = lambda models: sums  # type: ignore[method-assign]
    chosen = []
    for _ in range(times):
        learner._choices.clear()
        chosen.append(learner.choice(models))
    scores = np.exp(-sums / (DPSettings(epsilon=1.0).max_loss * noise / 2))
    assert chisquare(np.bincount(chosen, minlength=3), times * scores / scores.sum()).pvalue > 1e-4
