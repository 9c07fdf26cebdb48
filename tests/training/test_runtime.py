# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The resident model, the place where a process computes, and predictions in batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cfl_flare.core.params import Params
from cfl_flare.models import MLP, CifarCNN, FashionCNN, Logistic, Network, ResNet18
from cfl_flare.training.ensemble import Predictor, ignores_mode, list_chain
from cfl_flare.training.resident import ResidentModel, build_untrained
from cfl_flare.training.runtime import Place

torch.set_num_threads(1)  # as in a run: such small work only waits for a second thread


def make() -> nn.Module:
    return FashionCNN((1, 8, 8), 3)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 1, 8, 8, generator=generator), torch.arange(6) % 3


def some_params(resident: ResidentModel) -> Params:
    layout = resident.layout
    vector = np.random.default_rng(0).uniform(0.1, 1, layout.size).astype(np.float32)
    return Params(layout, vector, np.array([3, 2**40]))


def test_what_is_loaded_is_read_and_computed_with() -> None:
    resident = ResidentModel(make())
    params = some_params(resident)
    resident.load(params)
    read = resident.read()
    np.testing.assert_array_equal(read.vector, params.vector)
    assert read.counters.tolist() == [3, 2**40]
    reference = make()
    reference.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in params.arrays().items()})
    state = resident.module.state_dict()
    for name, tensor in reference.state_dict().items():
        assert torch.equal(state[name], tensor), name
    x, _ = batch()
    torch.testing.assert_close(resident.module.eval()(x), reference.eval()(x))


def test_taking_a_module_over_keeps_its_values() -> None:
    module, x = make().eval(), batch()[0]
    before, logits = {k: v.clone() for k, v in module.state_dict().items()}, module(x)
    resident = ResidentModel(module)
    assert all(torch.equal(v, before[k]) for k, v in resident.module.state_dict().items())
    torch.testing.assert_close(resident.module(x), logits)


def test_what_was_read_does_not_follow_the_model() -> None:
    resident = ResidentModel(make())
    read = resident.read()
    copy, counters = read.vector.copy(), read.counters.copy()
    resident.load(some_params(resident))
    np.testing.assert_array_equal(read.vector, copy)
    np.testing.assert_array_equal(read.counters, counters)


def test_batchnorms_statistics_and_counters_are_read() -> None:
    resident = ResidentModel(make())
    before = resident.read()
    resident.module.train()(batch()[0])
    after = resident.read()
    assert after.counters.tolist() == [1, 1]
    names = [e.name for e in after.layout.entries if e.kind == "buffer"]
    for name in names:
        assert not np.array_equal(before.arrays()[name], after.arrays()[name]), name
    np.testing.assert_array_equal(before.part("all"), after.part("all"))


def test_the_flat_gradient_is_that_of_the_module() -> None:
    resident, reference = ResidentModel(make()), make()
    params = build_untrained(make, 0, 0)
    resident.load(params)
    reference.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in params.arrays().items()})
    x, y = batch()
    for module in (resident.module, reference):
        nn.functional.cross_entropy(module.train()(x), y).backward()
    expected = {name: p.grad for name, p in reference.named_parameters()}
    for entry in resident.layout.entries:
        if entry.kind == "parameter":
            torch.testing.assert_close(entry.view(resident.gradient), expected[entry.name], msg=entry.name)


def test_views_hold_through_training() -> None:
    resident = ResidentModel(make())
    optimizer = torch.optim.SGD([resident.parameters], lr=0.1, momentum=0.9, fused=True)
    x, y = batch()
    for _ in range(3):
        resident.gradient.zero_()
        nn.functional.cross_entropy(resident.module.train()(x), y).backward()
        resident.parameters.square().sum().backward()
        optimizer.step()
        resident.load(resident.read())
    assert resident.parameters.grad is resident.gradient
    parameters, buffers = dict(resident.module.named_parameters()), dict(resident.module.named_buffers())
    for entry in resident.layout.entries:
        if entry.kind == "parameter":
            parameter = parameters[entry.name]
            assert parameter.grad is not None
            assert parameter.data_ptr() == resident.flat[entry.slice].data_ptr()
            assert parameter.grad.data_ptr() == resident.gradient[entry.slice].data_ptr()
            assert torch.equal(parameter.grad, entry.view(resident.gradient))
        elif entry.kind == "buffer":
            assert buffers[entry.name].data_ptr() == resident.flat[entry.slice].data_ptr()


def test_untrained_models_follow_from_seed_and_index_alone() -> None:
    torch.manual_seed(1)
    one = build_untrained(make, 5, 2)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    np.testing.assert_array_equal(one.vector, build_untrained(make, 5, 2).vector)
    assert torch.equal(torch.random.get_rng_state(), state)
    for seed, index in ((5, 1), (6, 2)):
        assert not np.array_equal(one.vector, build_untrained(make, seed, index).vector)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_precisions_become_float32(dtype: torch.dtype) -> None:
    resident = ResidentModel(MLP((4,), 2).to(dtype))
    assert resident.read().vector.dtype == np.float32
    assert resident.module(torch.zeros(1, 4)).dtype == torch.float32


@pytest.fixture
def gpus(monkeypatch):
    """Makes torch see a number of GPUs; returns the limits of memory that it is given."""
    limits = []

    def see(count: int) -> list:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {torch.device(device).index}")
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: limits.append(given))
        return limits

    return see


def test_sites_take_the_gpus_in_turn_and_share_their_memory(gpus):
    gpus(3)
    places = [Place.of("cuda", index=i, together=7) for i in range(7)]
    assert [place.device[-1] for place in places] == [*"012", *"012", "0"]
    assert [place.memory for place in places] == [1 / 3, 1 / 2, 1 / 2] * 2 + [1 / 3]
    alone = [Place.of("cuda", index=i, together=2) for i in range(2)]
    assert alone == [Place("cuda:0"), Place("cuda:1")]


def test_where_it_is_not_known_who_shares_a_machine_memory_is_only_limited_on_request(gpus):
    gpus(2)
    assert Place.of("cuda", index=3) == Place("cuda:1")
    assert Place.of("cuda", 0.3, index=3) == Place("cuda:1", 0.3)
    assert Place.of("cuda", 0.3, index=3, together=8) == Place("cuda:1", 0.3)


@pytest.mark.parametrize("device", ["cuda:1", "cpu", "mps"])
def test_a_named_device_is_taken_as_it_is(device, gpus):
    gpus(4)
    assert Place.of(device, index=2, together=8) == Place(device)


def test_a_machine_without_a_gpu_is_left_to_say_so(gpus):
    gpus(0)
    assert Place.of("cuda", index=2, together=8) == Place("cuda")


def test_the_limit_is_torch_s_and_the_line_says_it(gpus):
    limits = gpus(2)
    place = Place.of("cuda", index=1, together=4)
    place.limit()
    assert limits == [(0.5, torch.device("cuda:1"))]
    assert str(place) == "cuda:1 (GPU 1, at most 50% of its memory)"
    assert str(Place("cuda:0")) == "cuda:0 (GPU 0)"
    for free in (Place("cpu", 0.5), Place("cuda:0")):
        free.limit()
    assert len(limits) == 1 and str(Place("cpu", 0.5)) == "cpu"


# ---- Predictions in batches ----


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
    assert list_chain(resident.module) is not None
    models = [with_random_statistics(build_untrained(make, 0, i), i) for i in range(count)]
    x = torch.rand(25, *shape)
    together = Predictor(resident, models)(x)
    with torch.no_grad():
        for logits, model in zip(together, models):
            resident.load(model)
            torch.testing.assert_close(logits, resident.module.eval()(x), rtol=1e-4, atol=1e-5)


class Grouped(Network):
    """A second convolution whose channels are in groups."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2)]
        self.body = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(96, 5), nn.ReLU())
        self.head = nn.Linear(5, 2)


@pytest.mark.parametrize("layers", range(6))
def test_first_layers_that_all_models_share_are_computed_once(layers, monkeypatch):
    """``layers`` of them, in order, are those of the first model: none, ..., all."""
    resident = ResidentModel(Grouped())
    names = ["body.0", "body.1", "body.3", "body.5", "head"]
    models = [with_random_statistics(build_untrained(Grouped, 0, i), i) for i in range(3)]
    for entry in models[0].layout.entries:
        if entry.name.rpartition(".")[0] in names[:layers]:
            for model in models[1:]:
                model.vector[entry.slice] = models[0].vector[entry.slice]
    x, widths = torch.rand(25, 1, 6, 6), []
    convolve = F.conv2d
    monkeypatch.setattr(
        F, "conv2d", lambda h, kernel, *rest: (widths.append(len(kernel)), convolve(h, kernel, *rest))[1]
    )
    together = Predictor(resident, models)(x)
    assert together.shape == (3, 25, 2)
    assert set(widths) == {4 if layers > 1 else 12, 6 if layers > 2 else 18}  # a convolution with its BatchNorm
    monkeypatch.undo()
    with torch.no_grad():
        for logits, model in zip(together, models):
            resident.load(model)
            torch.testing.assert_close(logits, resident.module.eval()(x), rtol=1e-4, atol=1e-5)


class DoubledOutputs(MLP):
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
    "make", [lambda: DoubledOutputs((4,), 2), Odd, lambda: ResNet18((1, 8, 8), 2)], ids=["forward", "layer", "resnet"]
)
def test_other_modules_are_called_as_they_are(make):
    resident = ResidentModel(make())
    assert list_chain(resident.module) is None
    shape = (1, 8, 8) if isinstance(resident.module, ResNet18) else (4,)
    models = [build_untrained(make, 0, i) for i in range(2)]
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
    Predictor(resident, [build_untrained(make, 0, 0)])(x)
    assert torch.equal(x, before)


def test_a_module_that_trained_in_between_is_back_in_evaluation_mode():
    resident = ResidentModel(ResNet18((1, 8, 8), 2))
    assert list_chain(resident.module) is None
    predictor = Predictor(resident, [resident.read()])
    x = torch.rand(6, 1, 8, 8)
    before = predictor(x)
    resident.module.train()
    torch.testing.assert_close(predictor(x), before)
    torch.testing.assert_close(predictor(x[:3]), before[:, :3])  # BatchNorm by its running statistics, not the batch's


class DroppingChain(Network):
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
        (DroppingChain, False),
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
    models = [with_random_statistics(build_untrained(make, 0, i), i) for i in range(2)]
    x = torch.rand(70, *shape)  # more than are evaluated at once
    together = Predictor(resident, models, training=True)(x)
    with torch.no_grad():
        for logits, model in zip(together, models):
            resident.load(model)
            torch.testing.assert_close(logits, resident.module.train()(x))
