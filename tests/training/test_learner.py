# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A participant at work: steps by hand, random streams, memory, private layers, class weights."""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor, nn

from cfl_flare.core.errors import AbortedError
from cfl_flare.core.params import Params
from cfl_flare.methods import Contrastive, Download
from cfl_flare.models import FashionCNN, Logistic
from cfl_flare.training.dp_learner import DPLearner
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import Pull
from cfl_flare.training.resident import build_untrained
from cfl_flare.training.runtime import Runtime, Split
from cfl_flare.training.settings import TrainSettings
from tests.helpers.tiny import coin, make_coin_learner, shift_statistics

torch.set_num_threads(1)  # as in a run: such small work only waits for a second thread


class Scalar(nn.Module):
    """Two classes and one weight: logits ``(w x, 0)``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x * self.weight, torch.zeros_like(x)], dim=1)


class DroppingMLP(nn.Module):
    """A network whose training draws random numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def make_float_split(x: Any, y: Any) -> Split:
    return Split.of(np.asarray(x, np.float32), np.asarray(y))


def draw_image_split(n: int, seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    return make_float_split(rng.normal(size=(n, 1, 8, 8)), rng.integers(0, 3, n))


def rows(n: int, seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    return make_float_split(rng.normal(size=(n, 3)), rng.integers(0, 2, n))


def make_cnn() -> nn.Module:
    return FashionCNN((1, 8, 8), 3)


POINTS = make_float_split([[1.0], [2.0], [-0.5]], [0, 1, 0])


def test_features_of_a_linear_model_are_its_samples_whatever_their_number() -> None:
    data = rows(300)  # more than one batch of predictions
    worker = Learner(Runtime(lambda: Logistic((3,), 2), TrainSettings(), 0), "p", data, data, {})
    for index in (0, 1):
        features = worker._predict([worker.initial(index)], data.x, features=True)[0]
        np.testing.assert_array_equal(features.numpy(), data.x.numpy())


def scalar_learner(memory: dict[str, Params], round_number: int = 0, **settings: Any) -> Learner:
    work = Runtime(Scalar, TrainSettings(**settings), seed=0)
    return Learner(work, "p", POINTS, POINTS, memory, round_number)


def scalar(learner: Learner, value: float) -> Params:
    return Params(learner.initial(0).layout, np.array([value], np.float32))


def gradient(w: float) -> float:
    """Of the mean of log(1 + exp(-+ w x)) over `POINTS`."""
    terms = [(1.0, 0), (2.0, 1), (-0.5, 0)]
    return sum(-x / (1 + math.exp(w * x)) if y == 0 else x / (1 + math.exp(-w * x)) for x, y in terms) / len(terms)


def sgd(w: float, steps: int, lr: float, momentum: float = 0.0, decay: float = 0.0, kept: float = 0.0) -> tuple:
    """Full-batch SGD in plain numbers, and the momentum that it ends with."""
    for _ in range(steps):
        kept = momentum * kept + gradient(w) + decay * w
        w -= lr * kept
    return w, kept


def as_cross_entropy(params: Params, data: Split, reduction: str = "mean") -> Tensor:
    """Torch's cross-entropy of a plain module in eval mode."""
    module = make_cnn()
    module.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in params.arrays().items()})
    with torch.no_grad():
        return F.cross_entropy(module.eval()(data.x), data.y, reduction=reduction)


def test_one_step_by_hand() -> None:
    # At w = 0 each logistic is 1/2: the mean gradient is (-1/2 + 1 + 1/4) / 3 = 1/4.
    learner = scalar_learner({}, lr=0.2, momentum=0.9, local_steps=1)
    assert learner.train(scalar(learner, 0)).vector == pytest.approx([-0.05], abs=1e-7)


def test_momentum_over_two_steps() -> None:
    learner = scalar_learner({}, lr=0.2, momentum=0.9, local_steps=2)
    second = 0.9 * 0.25 + gradient(-0.05)
    assert learner.train(scalar(learner, 0)).vector == pytest.approx([-0.05 - 0.2 * second], abs=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_sgd_with_weight_decay(momentum: float, decay: float) -> None:
    learner = scalar_learner({}, lr=0.1, momentum=momentum, weight_decay=decay, local_steps=6)
    expected, _ = sgd(1.5, 6, 0.1, momentum, decay)
    assert learner.train(scalar(learner, 1.5)).vector == pytest.approx([expected], abs=1e-6)


def test_momentum_starts_afresh_in_each_round() -> None:
    memory: dict[str, Params] = {}
    work = Runtime(Scalar, TrainSettings(lr=0.1, momentum=0.9, local_steps=3), seed=0)
    for round_number in range(3):
        learner = Learner(work, "p", POINTS, POINTS, memory, round_number)
        expected, _ = sgd(1.0, 3, 0.1, 0.9)
        assert learner.train(scalar(learner, 1.0)).vector == pytest.approx([expected], abs=1e-6)
    assert memory == {}


def test_momentum_that_is_kept_goes_on_where_it_ended() -> None:
    work = Runtime(Scalar, TrainSettings(lr=0.1, momentum=0.9, local_steps=3, keep_momentum=True), seed=0)
    memories: dict[str, dict[str, Params]] = {"p": {}, "q": {}}
    kept = {"p": 0.0, "q": 0.0}
    for round_number, start in enumerate((1.0, -2.0, 0.5)):
        for name in memories:  # the two take turns on one optimizer
            if name == "q":
                start += 1
            learner = Learner(work, name, POINTS, POINTS, memories[name], round_number)
            expected, kept[name] = sgd(start, 3, 0.1, 0.9, kept=kept[name])
            assert learner.train(scalar(learner, start)).vector == pytest.approx([expected], abs=1e-6)
            assert memories[name]["momentum"].vector == pytest.approx([kept[name]], abs=1e-6)


def test_the_learning_rate_is_that_of_the_round() -> None:
    for round_number, lr in ((0, 0.4), (1, 0.4), (2, 0.2), (3, 0.1)):
        learner = scalar_learner({}, round_number, lr=0.4, lr_decay=0.5, lr_milestones=(2, 3), local_steps=1)
        assert learner.train(scalar(learner, 0)).vector == pytest.approx([-lr / 4], abs=1e-7)


def test_a_pass_reads_each_sample_once() -> None:
    # Steps so short that their sum is that of the gradients at w = 0, whatever the order.
    work = Runtime(Scalar, TrainSettings(lr=1e-4, momentum=0, batch_size=1, local_epochs=2), seed=0)
    learner = Learner(work, "p", POINTS, POINTS, {})
    assert learner.train(scalar(learner, 0)).vector == pytest.approx([-1e-4 * 2 * 0.75], rel=1e-3)


def test_the_start_is_not_changed_and_the_result_is_remembered_for_the_round() -> None:
    learner = scalar_learner({}, lr=0.1, local_steps=2)
    start = scalar(learner, 1.0)
    trained = learner.train(start)
    assert start.vector.tolist() == [1.0]
    assert learner.trained is trained


def test_training_does_not_depend_on_who_trained_before() -> None:
    def work() -> Runtime:
        return Runtime(DroppingMLP, TrainSettings(lr=0.1, batch_size=4, local_steps=7), seed=3)

    shared, ours, theirs = work(), rows(19), rows(11, seed=1)
    start = build_untrained(DroppingMLP, 3, 0)
    torch.manual_seed(1)
    alone = Learner(work(), "a", ours, ours, {}, 2).train(start)
    torch.manual_seed(2)
    for name in ("b", "c"):
        other = Learner(shared, name, theirs, theirs, {}, 2)
        other.evaluate(other.train(build_untrained(DroppingMLP, 9, 9)))
    state = torch.random.get_rng_state()
    again = Learner(shared, "a", ours, ours, {}, 2).train(start)
    np.testing.assert_array_equal(again.vector, alone.vector)
    assert again.counters.tolist() == alone.counters.tolist() == [7]
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("seed", "name", "number", "purpose"),
    [(4, "a", 2, "train"), (3, "b", 2, "train"), (3, "a", 1, "train"), (3, "a", 2, "finetune")],
)
def test_each_purpose_has_a_random_stream_of_its_own(seed: int, name: str, number: int, purpose: str) -> None:
    data, start = rows(19), build_untrained(DroppingMLP, 3, 0)
    settings = TrainSettings(lr=0.1, batch_size=4, local_steps=3)
    one = Learner(Runtime(DroppingMLP, settings, 3), "a", data, data, {}, 2).train(start)
    other = Learner(Runtime(DroppingMLP, settings, seed), name, data, data, {}, number).train(start, purpose=purpose)
    assert not np.array_equal(one.vector, other.vector)


def test_finetuning_leaves_the_memory_alone() -> None:
    memory: dict[str, Params] = {}
    learner = scalar_learner(memory, lr=0.1, momentum=0.9, local_steps=3, keep_momentum=True)
    learner.train(scalar(learner, 1.0), purpose="finetune")
    assert memory == {}
    learner.train(scalar(learner, 1.0))
    kept = memory["momentum"]
    value = kept.vector.copy()
    learner.train(scalar(learner, -3.0), purpose="finetune")
    assert memory == {"momentum": kept}
    assert kept.vector.tolist() == value.tolist()


@pytest.mark.parametrize("part", ["backbone", ["layers.3.bias", "layers.1.weight"]])
def test_a_frozen_part_stays_as_it_is_whatever_pulls_at_it(part: Any) -> None:
    """Gradients, momentum, weight decay and a penalty; the rest moves, and later trainings move everything."""
    settings = TrainSettings(lr=0.1, batch_size=4, local_steps=5, weight_decay=0.1, keep_momentum=True)
    memory: dict[str, Params] = {}
    learner = Learner(Runtime(DroppingMLP, settings, 3), "a", rows(19), rows(5), memory)
    start = learner.train(learner.initial(0))
    assert memory["momentum"].part(part).all()
    trained = learner.train(start, [Pull(0.5, start.part("all") + 1, start.layout.select("all"))], frozen=part)
    np.testing.assert_array_equal(trained.part(part), start.part(part))
    assert not memory["momentum"].part(part).any()
    still = [np.array_equal(trained.vector[s], start.vector[s]) for s in start.layout.select("all")]
    assert sum(still) == len(start.layout.select(part))
    free = learner.train(start)
    assert not any(np.array_equal(free.vector[s], start.vector[s]) for s in start.layout.select("all"))


def test_a_learner_s_labels_are_those_of_its_own_training_samples() -> None:
    data = Split.of(np.zeros((4, 1), np.float32), np.array([3, 0, 3, 1], np.int32))
    labels = Learner(Runtime(Scalar, TrainSettings(), 0), "a", data, rows(5), {}).labels
    assert labels.dtype == np.int64
    assert labels.tolist() == [3, 0, 3, 1]


def test_freezing_the_backbone_leaves_the_head_s_first_step_as_it_was() -> None:
    settings = TrainSettings(lr=0.1, batch_size=19, local_steps=1, momentum=0.9)
    learner = Learner(Runtime(DroppingMLP, settings, 3), "a", rows(19), rows(5), {})
    whole, head = learner.train(learner.initial(0)), learner.train(learner.initial(0), frozen="backbone")
    np.testing.assert_array_equal(head.part("head"), whole.part("head"))


def test_epochs_take_the_place_of_the_run_s_steps() -> None:
    """Two passes over 19 samples by 4 are 10 batches."""
    tenfold, epochwise = (
        Learner(Runtime(DroppingMLP, TrainSettings(lr=0.1, batch_size=4, **more), 3), "a", rows(19), rows(5), {})
        for more in ({"local_steps": 10}, {"local_epochs": 7})
    )
    start = tenfold.initial(0)
    one, two = tenfold.train(start), epochwise.train(start, epochs=2)
    np.testing.assert_array_equal(one.vector, two.vector)


def test_a_participant_in_another_round_trains_as_it_did_then() -> None:
    work = Runtime(DroppingMLP, TrainSettings(lr=0.1, batch_size=4, local_steps=3, lr_decay=0.5), 3)
    then, now = (Learner(work, "a", rows(19), rows(5), {}, number) for number in (1, 6))
    start = now.initial(0)
    np.testing.assert_array_equal(now.in_round(1).train(start).vector, then.train(start).vector)
    assert now.round == 6


@pytest.mark.parametrize("allowed", [0, 2])
def test_an_aborted_job_stops_between_two_steps(allowed: int) -> None:
    asked = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > allowed

    memory: dict[str, Params] = {}
    work = Runtime(Scalar, TrainSettings(lr=0.1, local_steps=9, keep_momentum=True), 0, should_stop=stop)
    learner = Learner(work, "p", POINTS, POINTS, memory)
    with pytest.raises(AbortedError, match="p was training"):
        learner.train(scalar(learner, 0))
    assert len(asked) == allowed + 1
    assert memory == {}
    for work_on in (learner.evaluate, lambda model: learner.losses([model])):
        with pytest.raises(AbortedError, match="p was evaluating"):
            work_on(scalar(learner, 0))


def pull(strength: float, anchor: Params) -> Pull:
    return Pull(strength, anchor.part("all"), anchor.layout.select("all"))


def test_a_penalty_adds_its_gradient_to_the_step() -> None:
    learner = scalar_learner({}, lr=0.1, momentum=0, local_steps=1)
    penalties = [pull(2.0, scalar(learner, 5.0)), pull(0.5, scalar(learner, -1.0))]
    expected = 1.0 - 0.1 * (gradient(1.0) + 2.0 * (1.0 - 5.0) + 0.5 * (1.0 + 1.0))
    assert learner.train(scalar(learner, 1.0), penalties).vector == pytest.approx([expected], abs=1e-6)


@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_steps_in_bfloat16_move_a_float32_model_nearly_as_far(mode: str) -> None:
    data, ways = draw_image_split(12), []
    compare = Contrastive(on="representations", mu=1.0, mode=mode)
    for precision in ("float32", "bfloat16"):
        work = Runtime(make_cnn, TrainSettings(lr=0.01, local_steps=5, precision=precision), 0)
        learner = Learner(work, "p", data, data, {})
        models = [learner.initial(i) for i in range(2)]
        backbones = {f"cluster-{i}:backbone": m.take(m.layout.backbone) for i, m in enumerate(models)}
        sent = Download(
            tuple(backbones), tuple(backbones.values()), {"has_centres": True, "cluster_weights": [0.5, 0.5]}
        )
        trained = learner.train(models[0], compare.list_terms(sent, "cluster-0", 2))
        assert trained.vector.dtype == np.float32
        ways.append((trained - models[0]).vector[: trained.layout.parameter_size])
    one, two = ways
    assert not np.array_equal(one, two)
    assert np.linalg.norm(two - one) < 0.1 * np.linalg.norm(one)


def test_a_stronger_proximal_term_holds_training_closer() -> None:
    data = rows(12)
    settings = TrainSettings(lr=0.05, momentum=0, local_steps=60)  # full batches on a convex loss: there it is a law
    distances = []
    for mu in (0.0, 0.3, 1.0, 3.0, 10.0):
        learner = Learner(Runtime(partial(Logistic, (3,), 2), settings, 0), "p", data, data, {})
        start = learner.initial(0)
        trained = learner.train(start, [pull(mu, start)])
        distances.append(float(np.linalg.norm((trained - start).vector)))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.5 * distances[0]


def test_a_proximal_term_of_no_strength_is_none() -> None:
    data = draw_image_split(12)
    vectors = []
    for strength in (None, 0.0):
        learner = Learner(Runtime(make_cnn, TrainSettings(lr=0.05, local_steps=5), 0), "p", data, data, {})
        penalties = [] if strength is None else [pull(strength, learner.initial(1))]
        vectors.append(learner.train(learner.initial(0), penalties).vector)
    np.testing.assert_array_equal(*vectors)


def test_losses_are_torchs_with_running_statistics() -> None:
    data = draw_image_split(70)  # more than are evaluated at once
    learner = Learner(Runtime(make_cnn, TrainSettings(), 0), "p", data, draw_image_split(3, 1), {})
    models = [shift_statistics(learner.initial(index), 0.5 + index) for index in range(3)]
    losses = learner.losses(models)
    assert losses.dtype == np.float64
    assert losses == pytest.approx([float(as_cross_entropy(model, data)) for model in models], rel=1e-5)
    assert learner.losses(models[::-1]).tolist() == losses[::-1].tolist()


def test_evaluating_does_not_change_a_model() -> None:
    data = draw_image_split(10)
    work = Runtime(make_cnn, TrainSettings(), 0)
    learner = Learner(work, "p", data, data, {})
    model = shift_statistics(learner.initial(0), 0.5)
    vector, counters = model.vector.copy(), model.counters.copy()
    learner.losses([model])
    learner.evaluate(model)
    np.testing.assert_array_equal(model.vector, vector)
    np.testing.assert_array_equal(model.counters, counters)


def test_losses_on_some_samples() -> None:
    data = draw_image_split(5)
    work = Runtime(make_cnn, TrainSettings(), 0)
    learner = Learner(work, "p", data, data, {}, 0)
    model = shift_statistics(learner.initial(0), 0.5)
    each = as_cross_entropy(model, data, "none").numpy()
    pairs = [float(each[list(pair)].mean()) for pair in combinations(range(5), 2)]
    seen = set()
    for round_number in range(12):
        by_round = [Learner(work, "p", data, data, {}, round_number) for _ in range(2)]
        (loss,) = by_round[0].losses([model], samples=2)
        assert by_round[1].losses([model], samples=2).tolist() == [loss]
        index = int(np.argmin(np.abs(np.array(pairs) - loss)))
        assert pairs[index] == pytest.approx(loss, rel=1e-5)
        seen.add(index)
    assert len(seen) > 2
    for samples in (5, 9, None):
        assert learner.losses([model], samples).tolist() == pytest.approx([each.mean()], rel=1e-5)


def test_losses_of_models_that_do_not_outlive_the_call() -> None:
    learner = scalar_learner({})
    losses = [float(learner.losses([scalar(learner, w)])[0]) for w in range(20)]
    assert len(set(losses)) == 20


def test_evaluate_measures_the_test_split() -> None:
    test = draw_image_split(70, seed=1)
    learner = Learner(Runtime(make_cnn, TrainSettings(), 0), "p", draw_image_split(5), test, {})
    model = shift_statistics(learner.initial(0), 0.5)
    module = make_cnn()
    module.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in model.arrays().items()})
    predictions = module.eval()(test.x).argmax(1).numpy()
    measured = learner.evaluate(model)
    assert set(measured) == {"accuracy", "macro_f1", "loss"}
    assert measured["accuracy"] == pytest.approx(accuracy_score(test.y.numpy(), predictions))
    assert measured["macro_f1"] == pytest.approx(f1_score(test.y.numpy(), predictions, average="macro"))
    assert measured["loss"] == pytest.approx(float(as_cross_entropy(model, test)), rel=1e-5)


def test_images_lie_channels_last() -> None:
    data = Split.of(np.zeros((2, 3, 4, 4), np.uint8), np.zeros(2, np.uint8))
    assert data.x.is_contiguous(memory_format=torch.channels_last)
    assert (data.x.dtype, data.y.dtype, len(data)) == (torch.float32, torch.int64, 2)


# Of four samples three are of class 0. At equal weights both probabilities are 1/2.
LABELS = [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("settings", "gradient"),
    [
        ({}, -0.25),  # 1/2 - 3/4
        ({"class_weights": "balanced"}, 0.0),  # each class is half of the loss
        ({"label_smoothing": 0.2}, -0.2),  # the targets are 0.9 and 0.1: 1/2 - (3/4 0.9 + 1/4 0.1)
    ],
)
def test_a_step_by_hand(settings, gradient) -> None:
    moved = make_coin_learner(LABELS, **settings).train(coin(0, 0)).vector
    assert moved == pytest.approx([-gradient, gradient], abs=1e-6)


def test_weights_are_of_the_participant_s_own_labels_and_hold_in_each_batch() -> None:
    # Weights 2/3 and 2. Batches of one sample: a weighted mean of one loss is that loss.
    one = make_coin_learner(LABELS, batch_size=1, class_weights="balanced").train(coin(0, 0)).vector
    assert abs(one) == pytest.approx([0.5, 0.5], abs=1e-6)
    # With (2/3) log 2 off, as if a class of another participant's counted, the zero gradient above would not be zero.
    assert make_coin_learner([0, 1, 1, 1, 1], class_weights="balanced").train(coin(0, 0)).vector == pytest.approx(
        [0, 0], abs=1e-6
    )


def test_a_class_that_does_not_occur_counts_once_in_smoothing() -> None:
    # Only class 0: its weight is 1, the other's 1; so it is plain smoothing, 1/2 - 0.9.
    moved = make_coin_learner([0, 0, 0], class_weights="balanced", label_smoothing=0.2).train(coin(0, 0)).vector
    assert moved == pytest.approx([0.4, -0.4], abs=1e-6)


def test_adapting_trains_with_the_same_loss() -> None:
    assert make_coin_learner(LABELS, class_weights="balanced").adapt_model(coin(0, 0), 1, 1.0).vector == pytest.approx(
        [0, 0], abs=1e-6
    )
    assert make_coin_learner(LABELS).adapt_model(coin(0, 0), 1, 1.0).vector == pytest.approx([0.25, -0.25], abs=1e-6)


def test_neither_what_is_measured_nor_what_a_cluster_is_chosen_by_has_them() -> None:
    odds = math.log(3)  # probabilities 3/4 and 1/4
    plain = (3 * math.log(4 / 3) + math.log(4)) / 4
    one = make_coin_learner(LABELS, class_weights="balanced", label_smoothing=0.2)
    # Balanced, the loss of (0, 0) would be smaller than that of the model that fits three samples of four.
    assert one.losses([coin(odds, 0), coin(0, 0)]) == pytest.approx([plain, math.log(2)])
    assert plain < math.log(2) < (math.log(4 / 3) + math.log(4)) / 2
    assert one.evaluate(coin(odds, 0))["loss"] == pytest.approx(plain)


def test_private_overrides_are_names_of_the_learner() -> None:
    """A method that is renamed in one of the two classes only would leave a site without its noise."""
    own = {"__init__", "refuse"}
    public = {name for name in vars(DPLearner) if not name.startswith("_")} - own
    assert public <= set(dir(Learner))
    assert {"_drawn", "_batches", "_backward"} <= vars(DPLearner).keys() & set(dir(Learner))
