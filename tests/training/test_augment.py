# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Augmentation: what it does to images and masks, whose draws it takes, and which transforms are refused."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.transforms import v2

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.seeds import stream
from cfl_flare.data import DataConfig, Digits, ParticipantData, Samples
from cfl_flare.data.samples import normalised
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.site import Site
from cfl_flare.methods import FedAvg, Method, build_method
from cfl_flare.models import MLP, FashionCNN
from cfl_flare.results.store import Store
from cfl_flare.training.augment import Augment
from cfl_flare.training.learner import Learner
from cfl_flare.training.losses import RepresentationContrast
from cfl_flare.training.runtime import Runtime, Split
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.transforms import ALLOWED, REQUIRED
from tests.helpers.loop import run_loop

torch.set_num_threads(1)

FLIP, MAYBE = "RandomHorizontalFlip:p=1", "RandomHorizontalFlip:p=0.5"
JITTER = "ColorJitter:brightness=0.4"
SHAPE = (1, 8, 8)


class DroppingConvolution(nn.Module):
    """A network whose training draws random numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten())
        self.head = nn.Linear(144, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


class Pixels(nn.Module):
    """Three classes of each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Conv2d(1, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def make_pixel_cnn() -> nn.Module:
    return FashionCNN(SHAPE, 3)


def draw_pixels(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return normalised(rng.integers(0, 256, (n, *SHAPE), np.uint8)), rng.integers(0, 3, n)


def tensors(n: int = 6) -> tuple[Tensor, Tensor]:
    x, y = draw_pixels(n)
    return torch.from_numpy(x), torch.from_numpy(y)


def make_image_learner(
    x: np.ndarray, y: np.ndarray, make: Any = make_pixel_cnn, number: int = 2, **settings: Any
) -> Learner:
    known = TrainSettings(**{"lr": 0.1, "batch_size": 8, "local_steps": 4, **settings})
    work = Runtime(make, known, seed=3)
    split = Split.of(x, y, task=work.task)
    return Learner(work, "p", split, split, {}, number)


def train_pixels(
    x: np.ndarray, y: np.ndarray, make: Any = make_pixel_cnn, how: dict[str, Any] | None = None, **settings: Any
):
    work = make_image_learner(x, y, make, **settings)
    return work.train(work.initial(0), **(how or {}))


def assert_equal(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.vector, other.vector)
    np.testing.assert_array_equal(one.counters, other.counters)


# What it does


def test_a_flip_is_the_flipped_batch_bit_for_bit() -> None:
    x, y = tensors()
    done, labels = Augment([FLIP])(x, y, 0)
    assert torch.equal(done, x.flip(-1))
    assert labels is y
    assert done.dtype == x.dtype and done.is_contiguous(memory_format=torch.channels_last)


def test_each_sample_has_draws_of_its_own() -> None:
    x, y = tensors(1)
    done, _ = Augment([MAYBE])(x.expand(200, -1, -1, -1), y.expand(200), 0)
    flipped = [torch.equal(one, x[0].flip(-1)) for one in done]
    assert 70 < sum(flipped) < 130
    assert all(known or torch.equal(one, x[0]) for known, one in zip(flipped, done))


def test_transforms_are_given_values_from_0_to_1() -> None:
    x, y = torch.tensor([-1.0, -0.5, 0.0, 1.0]).view(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64)
    assert torch.equal(Augment(["RandomInvert:p=1"])(x, y, 0)[0], -x)
    assert torch.equal(
        Augment(["RandomSolarize:threshold=0.5,p=1"])(x, y, 0)[0].flatten(), x.new_tensor([-1, -0.5, 0, -1])
    )
    padded = Augment(["Pad:padding=1,fill=0.25", "CenterCrop:size=4", "Resize:size=2,interpolation=nearest"])(x, y, 0)
    assert padded[0].shape == x.shape


def test_lists_can_be_written() -> None:
    x, y = tensors()
    turned, _ = Augment(["RandomRotation:degrees=[90,90]"])(x, y, 0)
    assert torch.equal(turned, torch.rot90(x, 1, (2, 3)))


def test_masks_move_with_their_images_and_keep_their_classes() -> None:
    mask = torch.from_numpy(np.random.default_rng(0).integers(0, 3, (20, 8, 8)))
    x = (mask[:, None].float() / 2 - 0.5) / 0.5  # so that image and mask show the same
    chain = [
        MAYBE,
        "RandomRotation:degrees=40",
        "RandomCrop:size=8,padding=2",
        "RandomAffine:degrees=0,scale=[0.7,1.2]",
    ]
    done, moved = Augment(chain, masks=True)(x, mask, 5)
    assert moved.dtype == torch.int64 and not torch.equal(moved, mask)
    assert torch.equal(done[:, 0] + 1, moved.float())
    assert type(done) is type(moved) is Tensor


def test_what_comes_in_from_outside_is_background_whatever_colour_it_has() -> None:
    x, mask = torch.zeros(1, 1, 4, 4), torch.full((1, 4, 4), 2)
    chain = ["Pad:padding=2,fill=1.0", "Resize:size=4,interpolation=nearest"]
    done, moved = Augment(chain, masks=True)(x, mask, 0)
    assert done[0, 0].tolist() == [[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]]
    assert moved[0].tolist() == [[0, 0, 0, 0], [0, 2, 2, 0], [0, 2, 2, 0], [0, 0, 0, 0]]
    smooth, moved = Augment(["RandomRotation:degrees=[30,30],interpolation=bilinear"], masks=True)(x, mask, 0)
    assert set(moved.unique().tolist()) == {0, 2} and len(smooth.unique()) > 2


# Random draws


@pytest.mark.parametrize(
    "text", [MAYBE, JITTER, "GaussianNoise", "RandomErasing", "RandAugment", "ElasticTransform:sigma=1"]
)
def test_draws_are_those_of_the_seed_and_of_nothing_else(text: str) -> None:
    (x, y), chain = tensors(16), Augment([text])
    torch.manual_seed(1)
    one, state = chain(x, y, 7)[0], torch.get_rng_state()
    torch.manual_seed(2)
    other = chain(x, y, 7)[0]
    torch.manual_seed(1)
    assert torch.equal(one, other) and torch.equal(state, torch.get_rng_state())
    assert not torch.equal(one, chain(x, y, 8)[0])


@pytest.mark.parametrize("make", [make_pixel_cnn, DroppingConvolution])
@pytest.mark.parametrize("how", [{}, {"inner_lr": 0.05}, {"epochs": 2, "purpose": "finetune"}])
def test_batches_and_dropout_are_those_without_it(make: Any, how: dict[str, Any]) -> None:
    x, y = draw_pixels(20)
    still = train_pixels(x, y, make, how, augment=["RandomHorizontalFlip:p=0"])
    assert_equal(train_pixels(x, y, make, how), still)


def test_participant_round_part_purpose_and_seed_have_draws_of_their_own() -> None:
    split = Split.of(*draw_pixels(8))
    images = []
    for seed, name, number, part, purpose in (
        (3, "a", 0, "", "train"),
        (4, "a", 0, "", "train"),
        (3, "b", 0, "", "train"),
        (3, "a", 1, "", "train"),
        (3, "a", 0, "local", "train"),
        (3, "a", 0, "", "finetune"),
    ):
        work = Runtime(make_pixel_cnn, TrainSettings(augment=[JITTER]), seed)
        one = Learner(work, name, split, split, {}, number)
        one = one.part(part) if part else one
        images += [batch.x for batch in (one._drawn([torch.arange(8)] * 2, purpose)[i] for i in range(2))]
    assert len({image.numpy().tobytes() for image in images}) == len(images)


def test_a_batch_is_the_same_each_time_and_whether_or_not_all_were_made() -> None:
    work = make_image_learner(*draw_pixels(20), augment=[JITTER])
    indices = [torch.tensor([3, 1, 4]), torch.tensor([0, 7])]
    made, again = work._drawn(indices, "train"), work._drawn(indices, "train")
    assert again.samples().is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(torch.cat([made[1].x, made[0].x, made[1].x]), torch.cat([again[1].x, again[0].x, again[1].x]))
    assert again.sizes == [3, 2]


# Training on flipped images is training on images that were flipped before


@pytest.mark.parametrize("make", [make_pixel_cnn, DroppingConvolution])
@pytest.mark.parametrize("how", [{}, {"inner_lr": 0.05}, {"epochs": 1}, {"frozen": "head"}])
@pytest.mark.parametrize("samples", [1, 5, 17, 24])
def test_training_sees_the_transformed_images(make: Any, how: dict[str, Any], samples: int) -> None:
    x, y = draw_pixels(samples)
    if samples == 1 and make is DroppingConvolution:
        x, y = np.concatenate((x, x)), np.concatenate((y, y))
    flipped = np.ascontiguousarray(x[..., ::-1])
    moved = train_pixels(x, y, make, how, augment=[FLIP])
    assert_equal(moved, train_pixels(flipped, y, make, how))
    assert not np.array_equal(moved.vector, train_pixels(x, y, make, how).vector)


def test_masks_are_transformed_in_training() -> None:
    rng = np.random.default_rng(1)
    x, y = draw_pixels(12)[0], rng.integers(0, 3, (12, 8, 8))
    own = {"make": Pixels, "task": "segmentation", "class_weights": "balanced"}
    moved = train_pixels(x, y, augment=[FLIP], **own)
    assert_equal(moved, train_pixels(x[..., ::-1], np.ascontiguousarray(y[..., ::-1]), **own))
    assert not np.array_equal(moved.vector, train_pixels(x[..., ::-1], y, **own).vector)


@pytest.mark.parametrize("make", [make_pixel_cnn, DroppingConvolution])
@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_compared_models_and_a_frozen_one_see_the_same_images(make: Any, mode: str) -> None:
    x, y = draw_pixels(20)

    def steps(images: np.ndarray, inner: float | None = None, **settings: Any) -> Any:
        work = make_image_learner(images, y, make, **settings)
        models = tuple(work.initial(i) for i in range(2))
        term = RepresentationContrast(5.0, 0.5, 0, models, training=mode == "training")
        return work.beside(work.initial(2)).train(work.initial(1), [term], inner_lr=inner)

    for inner in (None, 0.05):
        assert_equal(steps(x, inner, augment=[FLIP]), steps(x[..., ::-1].copy(), inner))


def test_a_step_of_adaptation_is_training_too() -> None:
    x, y = draw_pixels(20)
    for frozen in (False, True):
        one, other = (
            make_image_learner(x, y, DroppingConvolution, augment=[FLIP]),
            make_image_learner(x[..., ::-1].copy(), y, DroppingConvolution),
        )
        works = [work.beside(work.initial(2)) if frozen else work for work in (one, other)]
        assert_equal(*(work.adapt_model(work.initial(0), 3, 0.1) for work in works))


def test_one_step_with_a_term_against_torch() -> None:
    x, y = draw_pixels(8)
    make = partial(MLP, SHAPE, 3, hidden=[5])
    work = make_image_learner(x, y, make, lr=1.0, momentum=0.0, local_steps=1, augment=[MAYBE, JITTER])
    start, centre = work.initial(0), work.initial(1)
    moved = work.train(start, [RepresentationContrast(2.0, 0.5, 0, (centre, work.initial(2)))])

    order = stream(3, "p", 2, "train").permutation(8)
    (drawn,) = stream(3, "p", 2, "train augment").integers(2**62, size=1)
    batch, labels = Augment([MAYBE, JITTER])(torch.from_numpy(x[order]), torch.from_numpy(y[order]), int(drawn))
    modules = []
    for params in (start, centre, work.initial(2)):
        modules.append(make())
        modules[-1].load_state_dict({k: torch.from_numpy(v.copy()) for k, v in params.arrays().items()})
    seen = [module.body(batch) for module in modules]
    near, far = (F.cosine_similarity(seen[0], other.detach()) / 0.5 for other in seen[1:])
    loss = F.cross_entropy(modules[0](batch), labels) - 2.0 * (near - torch.stack((near, far)).logsumexp(0)).mean()
    loss.backward()
    for name, parameter in modules[0].named_parameters():
        wanted = (parameter - parameter.grad).detach().numpy()
        np.testing.assert_allclose(moved.arrays()[name], wanted, atol=1e-6)


def test_what_is_measured_and_compared_is_never_transformed() -> None:
    x, y = draw_pixels(20)
    one, other = make_image_learner(x, y, augment=[FLIP, JITTER]), make_image_learner(x, y)
    models = [one.initial(i) for i in range(3)]
    np.testing.assert_array_equal(one.losses(models), other.losses(models))
    np.testing.assert_array_equal(one.losses(models, samples=7), other.losses(models, samples=7))
    assert one.evaluate(models[0]) == other.evaluate(models[0])
    np.testing.assert_array_equal(one.labels, other.labels)


# Runs


def run_augmented_loop(
    method: Method, folder: Path | None = None, stop_at: int | None = None, **settings: Any
) -> Server:
    def on_round(measured: Any) -> None:
        if measured.record["round"] == stop_at:
            raise KeyboardInterrupt

    return run_loop(
        method=method,
        model={
            "class_path": "cfl_flare.models.MLP",
            "args": {"input_shape": [1, 8, 8], "num_classes": 10, "hidden": [8]},
        },
        source=Digits(),
        data=DataConfig(4, {"partition": "label_permutation", "groups": 2}),
        settings=ServerSettings(4, seed=1),
        training=TrainSettings(lr=0.1, local_steps=3, keep_momentum=True, **settings),
        on_round=on_round,
        checkpoints=None if folder is None else Store(folder),
        checkpoint_every=1,
    )


def join_model_bytes(server: Server) -> bytes:
    return b"".join(model.vector.tobytes() for _, model in sorted(server.state.bank.items()))


@pytest.mark.parametrize("known", [{"method": "wecfl"}, {"method": "ifca-cam", "warmup": 1}])
def test_a_run_is_repeated_and_resumed(known: dict[str, Any], tmp_path: Path) -> None:
    method = build_method({**known, "k": 2, "penalties": [{"penalty": "contrastive", "on": "representations"}]})
    chain = ["RandomCrop:size=8,padding=1", "RandomRotation:degrees=[-10,10]"]
    first = join_model_bytes(run_augmented_loop(method, augment=chain))
    assert join_model_bytes(run_augmented_loop(method)) != first
    with pytest.raises(KeyboardInterrupt):
        run_augmented_loop(method, tmp_path, stop_at=2, augment=chain)
    assert join_model_bytes(run_augmented_loop(method, tmp_path, augment=chain)) == first


# ---- Refusals ----


torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Lambda", "'Lambda' is none of the transforms that a job may name; there are RandomHorizontalFlip, "),
        ("RandomFlip", "'RandomFlip' is none of the transforms that a job may name; did you mean Random"),
        ("os.system", "'os.system' is none of the transforms that a job may name; there are "),
        ("RandomHorizontalFlip:q=1", "unknown setting 'q'; it has p"),
        ("RandomChannelPermutation:p=1", "unknown setting 'p'; it has none"),
        ("RandomHorizontalFlip:p=2", "p = 2 should be a number in [0, 1]"),
        ("RandomHorizontalFlip:p=True", "p = True should be a number in [0, 1]"),
        ("RandomHorizontalFlip:p=often", "p = 'often' should be a number in [0, 1]"),
        ("RandomRotation:degrees=1e999", "degrees = inf should be a number in [-10000, 10000], or a list of up to 4"),
        (
            "RandomRotation:degrees=9,expand=True",
            "unknown setting 'expand'; it has degrees, center, interpolation, fill",
        ),
        (
            "RandomRotation:degrees=9,interpolation=lanczos",
            "interpolation = 'lanczos' should be one of 'nearest', 'bil",
        ),
        ("RandomCrop", "'size' is missing; write RandomCrop:size=..."),
        ("RandomCrop:size=[8,8,8]", "size = [8, 8, 8] should be a whole number in [1, 4096], or a list of up to 2"),
        ("RandomCrop:size=8.5", "size = 8.5 should be a whole number in [1, 4096], or a list of up to 2"),
        ("Resize:size=100000", "size = 100000 should be a whole number in [1, 4096], or a list of up to 2"),
        ("RandomErasing:inplace=True", "unknown setting 'inplace'; it has p, scale, ratio, value"),
    ],
)
def test_a_transform_that_is_refused_when_it_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"training: augment = {text!r}: {says}")):
        TrainSettings(augment=[text])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (FLIP, "augment = 'RandomHorizontalFlip:p=1' should be a list of transforms: write ['Ran"),
        ([3], "augment = 3 should be text like 'RandomCrop:size=28,padding=2', of up to 200 characters"),
        (["x" * 201], "should be text like 'RandomCrop:size=28,padding=2', of up to 200 characters"),
        ([FLIP] * 17, "should be a list of transforms, of up to 16; leave some out"),
        (["RandomHorizontalFlip:p"], "'RandomHorizontalFlip:p': 'p' is not key=value; write name:key=value"),
    ],
)
def test_what_is_no_list_of_transforms(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        TrainSettings(augment=given)


def test_what_torchvision_refuses() -> None:
    with pytest.raises(ConfigError, match=r"'GaussianBlur:kernel_size=4': torchvision refuses it \(ValueError: .*odd"):
        Augment(["GaussianBlur:kernel_size=4"])
    with pytest.raises(
        ConfigError, match="'RandomErasing': RandomErasing cannot transform masks with their images; le"
    ):
        Runtime(Pixels, TrainSettings(augment=["RandomErasing"], task="segmentation"), seed=0)


def test_a_transform_that_this_torchvision_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torchvision.transforms.v2.GaussianNoise")
    with pytest.raises(
        ConfigError, match=r"'GaussianNoise': torchvision \S+ has no GaussianNoise; install a newer one"
    ):
        Augment(["GaussianNoise"])


def make_augmented_site(x: np.ndarray, augment: list[str]) -> Site:
    """A site to which these samples are added: bytes, or floats as they are."""
    x = normalised(x) if x.dtype == np.uint8 else x
    samples = Samples(x, np.arange(len(x)) % 2)
    made = Site(FedAvg(), partial(MLP, x.shape[1:], 2), TrainSettings(augment=augment), seed=0)
    made.add([ParticipantData("ward", samples, samples)])
    return made


REFUSED = [
    (
        [MAYBE],
        (4,),
        "takes images (channels, height, width), and samples have shape (4,); leave augment out",
    ),
    (
        ["Resize:size=4096"],
        SHAPE,
        "augment = 'Resize:size=4096': size = 4096 is too large for images of shape (1, 8, 8); it may be up to 24",
    ),
    (
        ["Pad:padding=[1,9]", "CenterCrop:size=8"],
        SHAPE,
        "padding = [1, 9] is too large for images of shape (1, 8, 8); it may be up to 8",
    ),
    (["GaussianBlur:kernel_size=4095"], SHAPE, "kernel_size = 4095 is too large for images of shape (1, 8, 8)"),
    (["ElasticTransform:sigma=10000"], SHAPE, "sigma = 10000 is too large for images of shape (1, 8, 8); it may"),
    (["Resize:size=24", "Pad:padding=8"], SHAPE, "'Pad:padding=8' makes images of 40 pixels a side; lower its set"),
    (
        [MAYBE, "Resize:size=9", MAYBE],
        SHAPE,
        "'Resize:size=9' makes images of shape (1, 9, 9) torch.float32 of (1, 8, 8) torch.float32; crop, pad or resize",
    ),
    (["RandomCrop:size=9"], SHAPE, "augment = 'RandomCrop:size=9' fails on images of shape (1, 8, 8) (ValueError: "),
    (["ColorJitter:hue=0.1"], (4, 8, 8), "'ColorJitter:hue=0.1' fails on images of shape (4, 8, 8) (TypeError: "),
    (["RandomGrayscale:p=0.001"], (4, 8, 8), "'RandomGrayscale:p=0.001' fails on images of shape (4, 8, 8) (V"),
]


@pytest.mark.parametrize(("augment", "shape", "says"), REFUSED)
def test_what_a_site_refuses_before_the_first_round(augment: list[str], shape: tuple[int, ...], says: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, (4, *shape), np.uint8)
    with pytest.raises(ConfigError, match=re.escape(says)):
        make_augmented_site(x, augment)


def test_colours_need_values_from_0_to_1() -> None:
    x = np.random.default_rng(0).normal(size=(40, *SHAPE)).astype(np.float32)
    make_augmented_site(x, [MAYBE])  # wherever pixels are moved, their values stay
    with pytest.raises(
        ConfigError, match=r"ward: .*'ColorJitter.* takes images in \[0, 1\], and these are in \[-.*, .*\]"
    ):
        make_augmented_site(x, [JITTER])


def test_a_result_that_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = tensors()
    chain = Augment([FLIP])
    monkeypatch.setattr("torchvision.transforms.v2.RandomHorizontalFlip.transform", lambda self, x, params: x / 0)
    with pytest.raises(
        ConfigError, match=r"RandomHorizontalFlip:p=1'.: a result is not finite; leave out what makes it"
    ):
        chain(x, y, 0)
    with pytest.raises(
        ConfigError, match=r"ward: training: augment = .'RandomHorizontalFlip:p=1'.: a result is not fin"
    ):
        chain.check(x.numpy(), y, "ward")


def test_no_transform_takes_a_function_or_a_file() -> None:
    assert not {"Lambda", "RandomApply", "RandomChoice", "Compose", "MixUp", "CutMix", "FiveCrop"} & ALLOWED.keys()
    assert not {"transforms", "lambd", "inplace", "expand", "path"} & {
        key for known in ALLOWED.values() for key in known
    }
    for name in REQUIRED:
        first = next(iter(ALLOWED[name]))
        assert inspect.signature(getattr(v2, name)).parameters[first].default is inspect.Parameter.empty


def test_settings_are_checked_without_torch() -> None:
    code = (
        "import sys; from cfl_flare.training.settings import TrainSettings\n"
        "TrainSettings(augment=['RandomCrop:size=28,padding=2']); print(*sys.modules)"
    )
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "cfl_flare.training.transforms" in names
    assert not {"torch", "torchvision"} & set(names)
