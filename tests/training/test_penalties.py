# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Terms of the loss: their values by hand, their gradients against finite differences, alone and in a local step."""

import math
from functools import partial
from types import MappingProxyType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cfl_flare.core.params import Layout, Params
from cfl_flare.methods import Contrastive, KnowledgeSharing, Proximal
from cfl_flare.methods.slots import add_parts, cluster_slot
from cfl_flare.methods.state import Download
from cfl_flare.models import MLP, FashionCNN
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import ParameterContrast, Pull, RepresentationContrast, Step
from cfl_flare.training.runtime import Split
from tests.helpers.tiny import draw_bank, make_learner, shift_statistics

torch.set_num_threads(1)

ALL = [slice(None)]
SOME = [slice(1, 2), slice(3, 4)]


def of(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def contrast(mu=1.0, tau=1.0, own=0, centres=((1, 0), (0, 2)), slices=ALL) -> ParameterContrast:
    return ParameterContrast(mu, tau, own, np.array(centres, np.float64), slices)


def contrast_features(mu=1.0, tau=1.0, own=0) -> RepresentationContrast:
    return RepresentationContrast(mu, tau, own, ())


# Values


def test_a_pull_is_half_the_squared_distance_times_its_strength():
    pull = Pull(3.0, np.array([0.0, 1.0]), ALL)
    assert pull(Step(of(2, 4))).item() == pytest.approx(3 / 2 * (4 + 9))


def test_a_pull_sees_its_places_alone():
    pull = Pull(3.0, np.array([0.0, 1.0]), SOME)
    assert pull(Step(of(100, 2, 100, 4))).item() == pytest.approx(19.5)
    parameters = of(100, 2, 100, 4, grad=True)
    pull(Step(parameters)).backward()
    assert parameters.grad.tolist() == [0, 6, 0, 9]


@pytest.mark.parametrize(("own", "sign"), [(0, 1), (1, -1)])
def test_a_contrast_of_parameters_by_hand(own, sign):
    """(3, 4) has the cosines 0.6 and 0.8 with the two axes; with tau = 1/2 they count as 1.2 and 1.6."""
    assert contrast(2.0, 0.5, own)(Step(of(3, 4))).item() == pytest.approx(2 * math.log(1 + math.exp(sign * 0.4)))


def test_a_contrast_sees_its_places_alone_and_no_lengths():
    term = contrast(2.0, 0.5, slices=SOME)
    expected = 2 * math.log(1 + math.exp(0.4))
    assert term(Step(of(100, 3, -100, 4))).item() == pytest.approx(expected)
    assert term(Step(of(0, 300, 0, 400))).item() == pytest.approx(expected)
    parameters = of(100, 3, -100, 4, grad=True)
    term(Step(parameters)).backward()
    assert parameters.grad[[0, 2]].tolist() == [0, 0]
    assert (parameters.grad[[1, 3]] != 0).all()
    assert parameters.grad @ parameters.detach() == pytest.approx(0, abs=1e-12)  # a cosine turns, it does not stretch


def test_a_contrast_of_representations_is_a_mean_over_the_samples():
    """The first sample has the cosines 0.6 and 0.8, the second 1 and 0."""
    step = Step(of(0), of(3, 4, 5, 0).view(2, 2), of(7, 0, 2, 0, 0, 1, 0, 9).view(2, 2, 2))
    each = [math.log(1 + math.exp(0.4)), math.log(1 + math.exp(-2))]
    assert contrast_features(2.0, 0.5)(step).item() == pytest.approx(2 * sum(each) / 2)


def test_one_cluster_has_nothing_to_contrast_with():
    assert contrast(centres=[(1, 0)])(Step(of(3, 4))).item() == 0
    assert contrast_features()(Step(of(0), of(3, 4).view(1, 2), of(1, 0).view(1, 1, 2))).item() == 0


@pytest.mark.parametrize("tau", [1e-30, 1e-6, 1e6])
@pytest.mark.parametrize("own", [0, 1])
def test_any_temperature_gives_finite_numbers_in_float32(tau, own):
    parameters = torch.tensor([3.0, 4.0], requires_grad=True)
    rows = torch.tensor([[3.0, 4.0]], requires_grad=True)
    centres = np.array([[1, 0], [0, 2]], np.float32)
    one = ParameterContrast(1.0, tau, own, centres, ALL)(Step(parameters))
    other = contrast_features(1.0, tau, own)(Step(parameters, rows, torch.from_numpy(centres)[:, None]))
    (one + other).backward()
    expected = {(True, 0): 0.2 / tau, (True, 1): 0.0}.get((tau < 1, own), math.log(2))
    for value in (one, other):
        assert value.item() == pytest.approx(expected, rel=1e-5)
    for gradient in (parameters.grad, rows.grad):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("term", [Pull(0.0, np.ones(2), ALL), contrast(0.0)])
def test_no_strength_is_no_term(term):
    parameters = of(3, 4, grad=True)
    term(Step(parameters)).backward()
    assert term(Step(parameters)).item() == 0
    assert parameters.grad.tolist() == [0, 0]


def test_no_strength_is_no_contrast_of_representations():
    rows = of(3, 4, grad=True)
    value = contrast_features(0.0)(Step(of(0), rows.view(1, 2), of(1, 0, 0, 1).view(2, 1, 2)))
    value.backward()
    assert value.item() == 0
    assert rows.grad.tolist() == [0, 0]


def test_what_a_term_holds_on_to_stays():
    anchor, centres = np.array([0.0, 1.0]), np.array([[1.0, 0.0], [0.0, 2.0]])
    compared = of(1, 0, 0, 1).view(2, 1, 2)
    rows = of(3, 4, grad=True)
    parameters = of(3, 4, grad=True)
    step = Step(parameters, rows.view(1, 2), compared)
    for term in (Pull(1.0, anchor, ALL), ParameterContrast(1.0, 1.0, 0, centres, ALL), contrast_features()):
        term(step).backward()
    assert anchor.tolist() == [0, 1]
    assert centres.tolist() == [[1, 0], [0, 2]]
    assert compared.flatten().tolist() == [1, 0, 0, 1]


# Gradients against finite differences, in float64


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "term",
    [
        Pull(0.7, normal(3), [slice(0, 2), slice(4, 5)]),
        ParameterContrast(0.7, 0.5, 1, normal(4, 3), [slice(0, 2), slice(4, 5)]),
        ParameterContrast(5.0, 0.1, 3, normal(4, 3, seed=1), [slice(0, 2), slice(4, 5)]),
    ],
    ids=["pull", "contrast", "sharp contrast"],
)
def test_gradients_by_the_parameters_are_true(term, seed):
    parameters = torch.from_numpy(normal(6, seed=10 + seed)).requires_grad_()
    assert torch.autograd.gradcheck(lambda p: term(Step(p)), (parameters,))
    term(Step(parameters)).backward()
    assert (parameters.grad[[0, 1, 4]] != 0).all()
    assert parameters.grad[[2, 3, 5]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("tau", [0.1, 1.0, 10.0])
def test_gradients_by_the_features_are_true(tau):
    rows = torch.from_numpy(normal(5, 3)).requires_grad_()
    compared = torch.from_numpy(normal(4, 5, 3, seed=1))
    term = contrast_features(0.5, tau, own=2)
    assert torch.autograd.gradcheck(lambda h: term(Step(of(0), h, compared)), (rows,))
    term(Step(of(0), rows, compared)).backward()
    assert (rows.grad != 0).all()


# The whole local step


class Curved(nn.Module):
    """A network that cannot be stacked with others."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(x)))


NETWORKS = {
    "stacked": (partial(MLP, (3,), 2, (4,)), lambda h: np.maximum(h, 0)),
    "one by one": (Curved, np.tanh),
}
X, Y = normal(7, 3).astype(np.float32), np.arange(7) % 2


def make_penalty_learner(make, x=X, y=Y, **settings) -> Learner:
    return make_learner(make, Split.of(x, y), number=1, **settings)


def unpacked(vector: np.ndarray, layout: Layout) -> list[np.ndarray]:
    """Hidden weights and biases, then those of the head."""
    return [vector[e.slice].reshape(e.shape) for e in layout.entries]


def hidden(vector, layout, activation) -> np.ndarray:
    w, b, _, _ = unpacked(vector, layout)
    return activation(X.astype(np.float64) @ w.T + b)


def cosine(a, b) -> np.ndarray:
    lengths = [np.maximum(np.linalg.norm(v, axis=-1), 1e-8) for v in (a, b)]  # of a sample that no unit sees: nothing
    return (a * b).sum(-1) / lengths[0] / lengths[1]


def loss_of_contrast(cosines: np.ndarray, tau: float, own: int) -> np.ndarray:
    scaled = cosines / tau
    return np.log(np.exp(scaled).sum(0)) - scaled[own]


WEIGHTS = [0.5, 0.2, 0.3]
PENALTIES = {
    "none": (),
    "representations": (Contrastive(mu=2.0, tau=0.5, on="representations"),),
    "representations in training mode": (Contrastive(mu=2.0, tau=0.5, on="representations", mode="training"),),
    "parameters": (Contrastive(mu=2.0, tau=0.5),),
    "head and backbone": (Contrastive(mu=2.0, tau=0.5, scope="head"), KnowledgeSharing(lam=0.3, scope="backbone")),
    "common": (KnowledgeSharing(lam=0.3),),
    "pairwise": (KnowledgeSharing(lam=0.3, pairwise=True, scope="head"),),
    "all at once": (
        Contrastive(mu=2.0, tau=0.5, on="representations"),
        Contrastive(mu=0.7, tau=0.2, scope="backbone"),
        KnowledgeSharing(lam=(9.0, 0.3, 9.0), pairwise=True),
    ),
}
OWN = 1


def compute_penalised_loss(vector, layout, bank, penalties, activation) -> float:
    """Loss and penalties, in plain float64 numpy."""
    _, _, w, b = unpacked(vector, layout)
    h = hidden(vector, layout, activation)
    logits = h @ w.T + b
    total = (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(Y)), Y]).mean()
    split = sum(e.size for e in layout.entries[:2])
    parts = {"all": slice(None), "backbone": slice(0, split), "head": slice(split, None)}
    centres = [bank[cluster_slot(k)].vector.astype(np.float64) for k in range(3)]
    for p in penalties:
        here = parts[p.scope]
        if isinstance(p, Contrastive) and p.on == "representations":
            cosines = np.stack([cosine(h, hidden(c, layout, activation)) for c in centres])
            total += p.mu * loss_of_contrast(cosines, p.tau, OWN).mean()
        elif isinstance(p, Contrastive):
            cosines = np.array([cosine(vector[here], c[here]) for c in centres])
            total += p.mu * loss_of_contrast(cosines, p.tau, OWN)
        elif p.pairwise:
            lam = p.lam[OWN] if isinstance(p.lam, tuple) else p.lam
            others = [(w_k, c) for k, (w_k, c) in enumerate(zip(WEIGHTS, centres)) if k != OWN]
            total += lam / 2 * sum(w_k * ((vector[here] - c[here]) ** 2).sum() for w_k, c in others)
        else:
            common = bank["global"].vector.astype(np.float64)
            total += p.lam / 2 * ((vector[here] - common[here]) ** 2).sum()
    return float(total)


def numerical_gradient(function, vector: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    gradient = np.zeros_like(vector)
    for i in range(len(vector)):
        step = np.zeros_like(vector)
        step[i] = eps
        gradient[i] = (function(vector + step) - function(vector - step)) / (2 * eps)
    return gradient


def make_download(bank, penalties, clusters=3) -> Download:
    own = cluster_slot(OWN)
    slots = tuple(dict.fromkeys((own, *(s for p in penalties for s in p.slots(clusters)))))
    models = add_parts(bank, slots)
    return Download(slots, tuple(models[s] for s in slots), {"has_centres": True, "cluster_weights": WEIGHTS})


@pytest.mark.parametrize("penalties", PENALTIES.values(), ids=PENALTIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_one_step_goes_down_the_numerical_gradient_of_loss_and_penalties(network, penalties):
    make, activation = NETWORKS[network]
    worker = make_penalty_learner(make, lr=0.5, momentum=0.0, local_steps=1, batch_size=len(X))
    bank = draw_bank(worker)
    before = {slot: model.vector.copy() for slot, model in bank.items()}
    start = bank[cluster_slot(OWN)]
    terms = [t for p in penalties for t in p.list_terms(make_download(bank, penalties), cluster_slot(OWN), 3)]
    moved = worker.train(start, terms).vector - start.vector
    expected = numerical_gradient(
        lambda v: compute_penalised_loss(v, start.layout, bank, penalties, activation), start.vector.astype(np.float64)
    )
    np.testing.assert_allclose(moved, -0.5 * expected, rtol=1e-4, atol=2e-6)
    for slot, model in bank.items():
        np.testing.assert_array_equal(model.vector, before[slot])


@pytest.mark.parametrize("network", NETWORKS)
def test_a_contrast_of_representations_moves_the_backbone_alone(network):
    make, _ = NETWORKS[network]
    worker = make_penalty_learner(make, lr=0.5, momentum=0.0, local_steps=1, batch_size=len(X))
    bank, penalty = draw_bank(worker), Contrastive(mu=2.0, on="representations")
    start = bank[cluster_slot(OWN)]
    plain = worker.train(start)
    held = worker.train(start, penalty.list_terms(make_download(bank, [penalty]), cluster_slot(OWN), 3))
    np.testing.assert_array_equal(held.part("head"), plain.part("head"))
    assert np.abs(held.part("backbone") - plain.part("backbone")).max() > 1e-3


def draw_labelled_images(n: int) -> tuple[np.ndarray, np.ndarray]:
    return normal(n, 1, 8, 8).astype(np.float32), np.arange(n) % 3


make_cnn = partial(FashionCNN, (1, 8, 8), 3)


def load_double_cnn(model: Params) -> nn.Module:
    module = make_cnn()
    module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in model.arrays().items()})
    return module.double()


class Unstacked(FashionCNN):
    """The same network, with a forward that nobody can look into."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


MODES = ("evaluation", "training")
both_modes = pytest.mark.parametrize("mode", MODES)


@both_modes
@pytest.mark.parametrize("cls", [FashionCNN, Unstacked])
def test_all_compared_networks_are_in_one_mode_and_the_loss_is_of_training_mode(cls, mode):
    x, y = draw_labelled_images(12)
    worker = make_penalty_learner(partial(cls, (1, 8, 8), 3), x, y, lr=0.1, momentum=0.0, local_steps=1, batch_size=12)
    bank = {slot: shift_statistics(model, 0.1 * i) for i, (slot, model) in enumerate(draw_bank(worker).items())}
    penalty = Contrastive(mu=3.0, tau=0.2, on="representations", mode=mode)
    start = bank[cluster_slot(OWN)]
    trained = worker.train(start, penalty.list_terms(make_download(bank, [penalty]), cluster_slot(OWN), 3))

    inputs, labels = torch.from_numpy(x).double(), torch.from_numpy(y)
    own = load_double_cnn(start)
    h = own.train(mode == "training").body(inputs)
    with torch.no_grad():
        others = [load_double_cnn(bank[cluster_slot(k)]).train(mode == "training").body(inputs) for k in range(3)]
    cosines = torch.stack([(h * o).sum(1) / h.norm(dim=1) / o.norm(dim=1) for o in others]) / 0.2
    (3.0 * (cosines.logsumexp(0) - cosines[OWN]).mean()).backward()
    F.cross_entropy(own.train()(inputs), labels).backward()
    arrays, old = trained.arrays(), start.arrays()
    for name, parameter in own.named_parameters():
        np.testing.assert_allclose(
            arrays[name] - old[name], -0.1 * parameter.grad.numpy(), rtol=2e-3, atol=2e-5, err_msg=name
        )


@pytest.mark.parametrize(
    "penalty",
    [
        Proximal(mu=0.5),
        Contrastive(),
        Contrastive(scope="backbone"),
        KnowledgeSharing(lam=0.5),
        KnowledgeSharing(lam=0.5, pairwise=True, scope="backbone"),
    ],
    ids=repr,
)
def test_penalties_of_parameters_never_see_buffers(penalty):
    x, y = draw_labelled_images(12)
    trained = []
    for shift in (0.0, 5.0):
        worker = make_penalty_learner(make_cnn, x, y, lr=0.1, momentum=0.0, local_steps=3, batch_size=12)
        bank = {slot: shift_statistics(model, shift) for slot, model in draw_bank(worker).items()}
        terms = penalty.list_terms(make_download(bank, [penalty]), cluster_slot(OWN), 3)
        trained.append(worker.train(bank[cluster_slot(OWN)], terms).part("all"))
    np.testing.assert_array_equal(*trained)


@pytest.mark.parametrize("network", NETWORKS)
def test_each_batch_is_compared_with_its_own_features(network):
    """With steps too short to move the model, its features are those of the compared model that it started from."""

    class Watching:
        def __init__(self, model, training):
            self.compares, self.training, self.sizes = (model,), training, []

        def __call__(self, step):
            self.sizes.append(len(step.features))
            np.testing.assert_allclose(step.features.detach().numpy(), step.compared[0].numpy(), atol=1e-6)
            return 0 * step.parameters.sum()

    worker = make_penalty_learner(NETWORKS[network][0], lr=1e-9, momentum=0.0, local_epochs=3, batch_size=4)
    start = worker.initial(0)
    pull = Pull(0.0, start.part("all"), start.layout.select("all"))
    terms = [Watching(start, False), pull, Watching(worker.initial(0), True)]
    worker.train(start, terms)
    assert terms[0].sizes == terms[2].sizes
    assert sum(terms[0].sizes) == 3 * len(X)
    assert len(set(terms[0].sizes)) > 1


def test_features_are_watched_only_where_a_term_compares_them():
    seen = []

    class Blind:
        compares, training = (), False

        def __call__(self, step):
            seen.append((step.features, step.compared))
            return 0 * step.parameters.sum()

    worker = make_penalty_learner(Curved, lr=0.1, local_steps=2)
    worker.train(worker.initial(0), [Blind()])
    assert seen == [(None, None)] * 2
    assert not worker._runtime.resident.module.out._forward_pre_hooks


def test_facts_may_be_read_only():
    bank = draw_bank(worker := make_penalty_learner(Curved, lr=0.1, local_steps=1))
    penalty = KnowledgeSharing(pairwise=True)
    download = make_download(bank, [penalty])
    frozen = Download(download.slots, download.models, MappingProxyType(dict(download.scalars)))
    terms = penalty.list_terms(frozen, cluster_slot(OWN), 3)
    assert len(terms) == 2
    assert np.isfinite(worker.train(bank[cluster_slot(OWN)], terms).vector).all()


# The mode of the compared networks


class NormedInputs(nn.Module):
    """BatchNorm and dropout, and nothing before them."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(2, eps=1e-9, momentum=0.5), nn.Dropout(drop)
        self.out = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(self.norm(x)))


class Recording:
    """A term that writes its values down."""

    def __init__(self, term):
        self.term, self.compares, self.training, self.values = term, term.compares, term.training, []

    def __call__(self, step):
        value = self.term(step)
        self.values.append(value.item())
        return value


def with_weights(model: Params, weights) -> Params:
    """The model with other weights of its BatchNorm, which come first."""
    return Params(model.layout, np.concatenate([weights, model.vector[2:]]).astype(np.float32), model.counters)


TWO = np.array([[1, 0], [3, 4]], np.float32)  # with the batch's statistics (-1, -1) and (1, 1)


@pytest.mark.parametrize(
    ("mode", "cosines"), [("evaluation", [1, 0.6]), ("training", [math.sqrt(0.5), math.sqrt(0.5)])]
)
def test_a_model_at_its_centre_has_the_centres_features(mode, cosines):
    """Its cosine with its own centre is 1; the other centre sees the first feature alone."""
    worker = make_penalty_learner(NormedInputs, TWO, Y[:2], lr=0.1, local_steps=1, batch_size=2)
    start = with_weights(worker.initial(0), (1, 1))
    bank = {"cluster-0": with_weights(start, (1, 0)), "cluster-1": start}
    penalty = Contrastive(mu=2.0, tau=0.5, on="representations", mode=mode)
    (term,) = map(Recording, penalty.list_terms(make_download(bank, [penalty], 2), cluster_slot(OWN), 2))
    worker.train(start, [term])
    each = [math.log(1 + math.exp((cosine - 1) / 0.5)) for cosine in cosines]
    assert term.values == [pytest.approx(2 * sum(each) / 2, rel=1e-5)]


@pytest.mark.parametrize("modes", [("evaluation",), ("training",), MODES], ids=" and ".join)
def test_one_step_through_batchnorm_goes_down_the_numerical_gradient(modes):
    x, y = normal(5, 2) * 2 + 1, np.arange(5) % 2
    worker = make_penalty_learner(NormedInputs, x, y, lr=0.5, momentum=0.0, local_steps=1, batch_size=5)
    layout = worker.initial(0).layout
    vectors = [np.abs(normal(layout.size, seed=k)) + 0.5 for k in range(3)]
    bank = {cluster_slot(k): Params(layout, v.astype(np.float32), np.zeros(1, np.int64)) for k, v in enumerate(vectors)}
    penalties = [Contrastive(mu=2.0, tau=0.5, on="representations", mode=mode) for mode in modes]
    start = bank[cluster_slot(OWN)]
    terms = [t for p in penalties for t in p.list_terms(make_download(bank, penalties), cluster_slot(OWN), 3)]
    moved = worker.train(start, terms).vector - start.vector

    def features(vector, mode) -> np.ndarray:
        scale, shift, _, _, mean, variance = unpacked(vector, layout)[:6]
        if mode == "training":
            mean, variance = x.mean(0), x.var(0)
        return (x - mean) / np.sqrt(variance) * scale + shift

    def objective(vector) -> float:
        _, _, w, b = unpacked(vector, layout)[:4]
        logits = features(vector, "training") @ w.T + b
        total = (np.log(np.exp(logits).sum(1)) - logits[np.arange(5), y]).mean()
        for mode in modes:
            h = features(vector, mode)
            cosines = np.stack([cosine(h, features(bank[cluster_slot(k)].vector, mode)) for k in range(3)])
            total += 2.0 * loss_of_contrast(cosines, 0.5, OWN).mean()
        return float(total)

    trained = layout.parameter_size
    expected = numerical_gradient(objective, start.vector.astype(np.float64))[:trained]
    np.testing.assert_allclose(moved[:trained], -0.5 * expected, rtol=1e-4, atol=2e-6)


@both_modes
@pytest.mark.parametrize("cls", [FashionCNN, Unstacked])
def test_a_comparison_leaves_all_running_statistics_as_they_are(cls, mode):
    x, y = draw_labelled_images(12)
    worker = make_penalty_learner(partial(cls, (1, 8, 8), 3), x, y, lr=0.1, local_steps=3, batch_size=5)
    bank = {slot: shift_statistics(model, 0.5) for slot, model in draw_bank(worker).items()}
    before = {slot: model.vector.copy() for slot, model in bank.items()}
    start, penalty = bank[cluster_slot(OWN)], Contrastive(mu=0.0, on="representations", mode=mode)
    plain = worker.train(start)
    held = worker.train(start, penalty.list_terms(make_download(bank, [penalty]), cluster_slot(OWN), 3))
    np.testing.assert_array_equal(held.vector, plain.vector)
    assert held.counters.tolist() == plain.counters.tolist() == [3, 3]
    for slot, model in bank.items():
        np.testing.assert_array_equal(model.vector, before[slot])
        assert not model.counters.any()


@pytest.mark.parametrize("network", NETWORKS)
def test_without_batchnorm_and_dropout_the_mode_says_nothing(network):
    worker = make_penalty_learner(NETWORKS[network][0], lr=0.1, local_steps=5, batch_size=3)
    bank = draw_bank(worker)
    start, ways = bank[cluster_slot(OWN)], []
    for mode in MODES:
        penalty = Contrastive(mu=5.0, tau=0.2, on="representations", mode=mode)
        ways.append(
            worker.train(start, penalty.list_terms(make_download(bank, [penalty]), cluster_slot(OWN), 3)).vector
        )
    np.testing.assert_allclose(*ways, rtol=1e-5, atol=1e-6)


@both_modes
def test_dropout_is_the_modes_and_its_draws_are_the_participants(mode):
    worker = make_penalty_learner(partial(NormedInputs, 0.5), normal(40, 2), np.arange(40) % 2, lr=0.1, local_steps=2)
    start = worker.initial(0)
    bank = {cluster_slot(k): with_weights(start, (1, k)) for k in range(3)}
    penalty = Contrastive(on="representations", mode=mode)
    zeros, ways = [], []

    class Counting(Recording):
        def __call__(self, step):
            zeros.extend((features == 0).double().mean().item() for features in (step.features, step.compared[1]))
            return super().__call__(step)

    for seed in (1, 2):
        torch.manual_seed(seed)
        (term,) = map(Counting, penalty.list_terms(make_download(bank, [penalty]), cluster_slot(OWN), 3))
        worker.train(start, [term])
        ways.append(term.values)
    assert ways[0] == ways[1]
    assert len(zeros) == 8
    assert all(0.3 < share < 0.7 if mode == "training" else share == 0 for share in zeros)
