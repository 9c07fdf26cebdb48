# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cfl_flare.core.params import Params
from cfl_flare.models import MLP, CifarCNN, FashionCNN, Logistic, Network, ResNet18
from cfl_flare.training.ensemble import Predictor, chain, ignores_mode
from cfl_flare.training.resident import ResidentModel, untrained

torch.set_num_threads(1)

NETWORKS = {
    "fashion": (lambda: FashionCNN((1, 28, 28), 10), (1, 28, 28)),
    "fashion in colour": (lambda: FashionCNN((3, 12, 12), 4), (3, 12, 12)),
    "cifar": (lambda: CifarCNN((3, 32, 32), 10), (3, 32, 32)),
    "mlp": (lambda: MLP((1, 8, 8), 10, hidden=(6, 5)), (1, 8, 8)),
    "logistic": (lambda: Logistic((7,), 3), (7,)),
}


def with_random_statistics(model: Params, seed: int) -> Params:
    """BatchNorm's statistics and weights away from their start, so that folding them matters."""
    rng = np.random.default_rng(seed)
    vector = model.vector + rng.uniform(0.1, 0.5, model.vector.shape).astype(np.float32) * (
        model.vector == np.round(model.vector)
    )
    return Params(model.layout, vector.astype(np.float32), model.counters)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_stacked_models_predict_what_each_predicts_by_itself(name, count):
    make, shape = NETWORKS[name]
    resident = ResidentModel(make())
    assert chain(resident.module) is not None
    models = [with_random_statistics(untrained(make, 0, i), i) for i in range(count)]
    x = torch.rand(25, *shape)
    together = Predictor(resident, models)(x)
    with torch.no_grad():
        for logits, model in zip(together, models):
            resident.load(model)
            torch.testing.assert_close(logits, resident.module.eval()(x), rtol=1e-4, atol=1e-5)


class Doubled(MLP):
    """A chain's layers under another forward."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Odd(Network):
    """A chain with a layer that is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh())
        self.head = nn.Linear(3, 2)


@pytest.mark.parametrize(
    "make", [lambda: Doubled((4,), 2), Odd, lambda: ResNet18((1, 8, 8), 2)], ids=["forward", "layer", "resnet"]
)
def test_other_modules_are_called_as_they_are(make):
    resident = ResidentModel(make())
    assert chain(resident.module) is None
    shape = (1, 8, 8) if isinstance(resident.module, ResNet18) else (4,)
    models = [untrained(make, 0, i) for i in range(2)]
    x = torch.rand(3, *shape)
    together = Predictor(resident, models)(x)
    with torch.no_grad():
        for logits, model in zip(together, models):
            resident.load(model)
            torch.testing.assert_close(logits, resident.module.eval()(x))


def test_samples_are_not_changed():
    make, shape = NETWORKS["mlp"]
    resident = ResidentModel(make())
    x = torch.rand(5, *shape) - 0.5
    before = x.clone()
    Predictor(resident, [untrained(make, 0, 0)])(x)
    assert torch.equal(x, before)


def test_a_module_that_trained_in_between_is_back_in_evaluation_mode():
    resident = ResidentModel(ResNet18((1, 8, 8), 2))
    assert chain(resident.module) is None
    predictor = Predictor(resident, [resident.read()])
    x = torch.rand(6, 1, 8, 8)
    before = predictor(x)
    resident.module.train()
    torch.testing.assert_close(predictor(x), before)
    torch.testing.assert_close(predictor(x[:3]), before[:, :3])  # BatchNorm by its running statistics, not the batch's


class Dropping(Network):
    """A chain with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout(0.5))
        self.head = nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("make", "same"),
    [
        (NETWORKS["mlp"][0], True),
        (NETWORKS["cifar"][0], True),
        (NETWORKS["fashion"][0], False),
        (Dropping, False),
        (Odd, False),  # not known
    ],
    ids=["mlp", "cifar", "batchnorm", "dropout", "unknown"],
)
def test_which_networks_are_known_to_compute_the_same_in_both_modes(make, same):
    assert ignores_mode(make()) is same


@pytest.mark.parametrize("name", ["fashion", "fashion in colour"])
def test_in_training_mode_all_samples_are_one_batch(name):
    make, shape = NETWORKS[name]
    resident = ResidentModel(make())
    models = [with_random_statistics(untrained(make, 0, i), i) for i in range(2)]
    x = torch.rand(70, *shape)  # more than are evaluated at once
    together = Predictor(resident, models, training=True)(x)
    with torch.no_grad():
        for logits, model in zip(together, models):
            resident.load(model)
            torch.testing.assert_close(logits, resident.module.train()(x))
