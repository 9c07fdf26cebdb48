# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Models as vectors: layouts, differences, means, names of ``state_dict()``, and which arrays are private."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor, nn

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.core.params import Layout, Params, WeightedMean, weighted_mean
from cfl_flare.core.private import Division, bounded
from cfl_flare.models import MLP, FashionCNN
from cfl_flare.training.resident import ResidentModel

FLOATS = hnp.from_dtype(np.dtype(np.float32), allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6)


class NormedScale(nn.Module):
    """One number, one BatchNorm of one channel: the smallest model with every kind of entry."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.norm = nn.BatchNorm1d(1)
        self.register_buffer("fleeting", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) * self.scale


class HeadNotAtTheEnd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.last = nn.Linear(3, 4, bias=False)
        self.after = nn.Parameter(torch.zeros(5))


LAYOUT = Layout.of(NormedScale())  # scale 0-1, norm.weight 2, norm.bias 3, running_mean 4, running_var 5; one counter


def normed(vector: Any, counter: int = 0, missing: tuple[str, ...] = ()) -> Params:
    params = Params(LAYOUT, np.array(vector, np.float32), np.array([counter]))
    return LAYOUT.pack({k: v for k, v in params.arrays().items() if k not in missing}, allow_missing=True)


def make_plain_model(vector: Any) -> Params:
    """A model that is one vector."""
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(len(vector)))
    return Params(Layout.of(module), np.asarray(vector, np.float32))


def list_entry_names(layout: Layout, **having: Any) -> list[str]:
    return [e.name for e in layout.entries if all(getattr(e, k) == v for k, v in having.items())]


def test_the_layout_of_an_mlp() -> None:
    layout = Layout.of(MLP((2, 3), 4, hidden=(5,)))
    assert [(e.name, e.shape, e.offset) for e in layout.entries] == [
        ("body.1.weight", (5, 6), 0),
        ("body.1.bias", (5,), 30),
        ("head.weight", (4, 5), 35),
        ("head.bias", (4,), 55),
    ]
    assert (layout.size, layout.parameter_size, layout.counter_size, layout.nbytes) == (59, 59, 0, 236)
    assert list_entry_names(layout, head=True) == ["head.weight", "head.bias"]
    assert list_entry_names(layout, fc=True) == list_entry_names(layout)


def test_the_layout_of_a_network_with_batchnorm() -> None:
    layout = Layout.of(FashionCNN((1, 8, 8), 3))
    assert list_entry_names(layout, kind="buffer") == [
        "body.1.running_mean",
        "body.1.running_var",
        "body.5.running_mean",
        "body.5.running_var",
    ]
    assert list_entry_names(layout, kind="counter") == ["body.1.num_batches_tracked", "body.5.num_batches_tracked"]
    assert layout.parameter_size == sum(p.numel() for p in FashionCNN((1, 8, 8), 3).parameters())
    assert layout.size == layout.parameter_size + 2 * 16 + 2 * 32
    assert layout.counter_size == 2
    assert layout.nbytes == 4 * layout.size + 2 * 8
    covered = np.concatenate([np.arange(layout.size)[e.slice] for e in layout.entries if e.kind != "counter"])
    np.testing.assert_array_equal(covered, np.arange(layout.size))


def test_the_parts_of_a_network() -> None:
    layout = Layout.of(FashionCNN((1, 8, 8), 3))
    vector = np.arange(layout.size, dtype=np.float32)
    params = Params(layout, vector, np.zeros(2, np.int64))
    head = params.part("head")
    assert len(head) == 2 * 2 * 32 * 3 + 3
    np.testing.assert_array_equal(params.part("fc"), head)
    np.testing.assert_array_equal(np.concatenate([params.part("backbone"), head]), vector[: layout.parameter_size])
    np.testing.assert_array_equal(params.part("all"), vector[: layout.parameter_size])
    assert params.part(["head.bias", "body.0.bias"]).tolist() == [
        *params.arrays()["head.bias"],
        *params.arrays()["body.0.bias"],
    ]


def test_the_head_is_the_last_linear_layer_wherever_it_stands() -> None:
    layout = Layout.of(HeadNotAtTheEnd())
    assert list_entry_names(layout, head=True) == ["last.weight"]
    assert list_entry_names(layout, fc=True) == ["first.weight", "first.bias", "last.weight"]
    assert sum(s.stop - s.start for s in layout.select("backbone")) == 5 + 6 + 3
    assert sum(s.stop - s.start for s in layout.select("head")) == 12


def test_buffers_that_are_not_saved_are_no_part_of_a_model() -> None:
    assert list_entry_names(LAYOUT) == [
        "scale",
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]


@pytest.mark.parametrize("role", ["fc", "head", "backbone"])
def test_a_network_without_linear_layers_has_no_such_part(role: str) -> None:
    with pytest.raises(ConfigError, match=f"no '{role}' part"):
        LAYOUT.select(role)


@pytest.mark.parametrize("role", ["tail", ["nope"], ["norm.running_mean"], []])
def test_unknown_parts_are_refused(role: Any) -> None:
    with pytest.raises(ConfigError):
        LAYOUT.select(role)


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameters to train"):
        Layout.of(nn.BatchNorm1d(2, affine=False))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_pack_keeps_every_array(dtype: type) -> None:
    layout = Layout.of(FashionCNN((2, 8, 8), 3))
    rng = np.random.default_rng(0)
    arrays = {e.name: rng.normal(size=e.shape).astype(dtype) for e in layout.entries if e.kind != "counter"}
    arrays |= {e.name: np.array(7 + i) for i, e in enumerate(e for e in layout.entries if e.kind == "counter")}
    packed = layout.pack(arrays)
    assert packed.vector.dtype == np.float32
    assert packed.counters.tolist() == [7, 8]
    assert packed.present is None
    for name, array in packed.arrays().items():
        assert array.shape == arrays[name].shape
        np.testing.assert_array_equal(array, arrays[name].astype(array.dtype))
    again = layout.pack(packed.arrays())
    np.testing.assert_array_equal(again.vector, packed.vector)


def test_convolutions_lie_channels_last_in_the_vector() -> None:
    layout = Layout.of(nn.Conv2d(2, 1, (1, 3), bias=False))
    weight = np.array([[[[1, 2, 3]], [[10, 20, 30]]]])
    packed = layout.pack({"weight": weight})
    assert packed.vector.tolist() == [1, 10, 2, 20, 3, 30]
    np.testing.assert_array_equal(packed.arrays()["weight"], weight)
    np.testing.assert_array_equal(layout.entries[0].view(torch.from_numpy(packed.vector)).numpy(), weight)


def test_pack_does_not_keep_hold_of_what_it_is_given() -> None:
    arrays = {k: v.copy() for k, v in normed(range(6)).arrays().items()}
    packed = LAYOUT.pack(arrays)
    arrays["scale"][:] = 99
    assert packed.vector.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("name", "array", "code"),
    [
        ("other", np.zeros(1), "extra_parameter"),
        ("scale", None, "missing_parameter"),
        ("scale", np.zeros((1, 2)), "shape"),
        ("scale", np.zeros(3), "shape"),
        ("scale", 1.0, "shape"),
        ("norm.num_batches_tracked", np.zeros(1, np.int64), "shape"),
        ("scale", np.zeros(2, complex), "dtype"),
        ("scale", np.array(["a", "b"]), "dtype"),
        ("scale", np.array([None, 1.0]), "dtype"),
        ("scale", np.zeros(2, "datetime64[s]"), "dtype"),
        ("scale", np.array([np.nan, 0]), "non_finite"),
        ("scale", np.array([0, np.inf]), "non_finite"),
        ("norm.running_var", np.array([-np.inf]), "non_finite"),
        ("scale", np.array([1e300, 0]), "non_finite"),
        ("scale", np.array([0, -1e39]), "non_finite"),
        ("norm.num_batches_tracked", np.array(np.nan), "non_finite"),
    ],
)
def test_pack_refuses(name: str, array: Any, code: str) -> None:
    arrays = dict(normed(range(6)).arrays())
    arrays.pop(name, None)
    if array is not None:
        arrays[name] = array
    with pytest.raises(PayloadError, match=name) as caught:
        LAYOUT.pack(arrays)
    assert caught.value.code == code


@pytest.mark.parametrize("value", [1e30, -1e30, np.uint64(2**63)])
def test_pack_refuses_counters_that_no_int64_holds(value: Any) -> None:
    with pytest.raises(PayloadError):
        LAYOUT.pack({**normed(range(6)).arrays(), "norm.num_batches_tracked": np.array(value)})


def test_pack_marks_what_is_missing() -> None:
    packed = normed([1, 2, 3, 4, 5, 6], 7, missing=("scale", "norm.num_batches_tracked"))
    assert packed.present is not None
    assert packed.present.tolist() == [False, True, True, True, True, False]
    assert packed.vector.tolist() == [0, 0, 3, 4, 5, 6]
    assert packed.counters.tolist() == [0]


def test_a_difference_and_its_start_give_the_model_again() -> None:
    start, end = normed([1, 2, 3, 4, 5, 6], 10), normed([2, 2, 2, 2, 2, 2], 15)
    diff = end - start
    assert diff.vector.tolist() == [1, 0, -1, -2, -3, -4]
    assert diff.counters.tolist() == [5]
    again = start + diff
    assert again.vector.tolist() == end.vector.tolist()
    assert again.counters.tolist() == [15]


def test_a_sum_keeps_which_entries_are_there() -> None:
    diff = normed([1] * 6, missing=("scale",))
    for total in (normed([1] * 6) + diff, diff + normed([1] * 6)):
        assert total.present is not None
        assert total.present.tolist() == [False, True, True, True, True, True]


def test_the_weighted_mean_by_hand() -> None:
    mean = weighted_mean(
        [(normed([1, 0, 2, 0, 10, 4], 3), 1.0), (normed([5, 4, 2, 8, -2, 8], 9), 3.0)], normed([99] * 6, 5)
    )
    assert mean.vector.tolist() == [4, 3, 2, 6, 1, 7]
    assert mean.counters.tolist() == [9]
    assert mean.present is None


def test_counters_never_fall_below_the_model_that_was_there() -> None:
    assert weighted_mean([(normed([0] * 6, 3), 1.0)], normed([0] * 6, 5)).counters.tolist() == [5]


def test_a_running_variance_is_never_negative() -> None:
    mean = weighted_mean(
        [(normed([-1, -1, -1, -1, -1, -4]), 1.0), (normed([-1, -1, -1, -1, -1, 2]), 1.0)], normed([0] * 6)
    )
    assert mean.vector.tolist() == [-1, -1, -1, -1, -1, 0]


def test_each_entry_is_averaged_over_those_who_sent_it() -> None:
    mean = WeightedMean(LAYOUT)
    mean.add(normed([1, 1, 1, 1, 1, 1], 2), 1.0)
    mean.add(normed([9, 9, 5, 9, 9, 9], 8, missing=("scale", "norm.bias", "norm.num_batches_tracked")), 3.0)
    assert mean.result(normed([0] * 6)).vector.tolist() == [1, 1, 4, 1, 7, 7]
    assert mean.result(normed([0] * 6)).counters.tolist() == [2]


def test_an_entry_that_nobody_sent_keeps_its_old_value() -> None:
    mean = weighted_mean([(normed([1] * 6, missing=("scale",)), 2.0)], normed([7, 8, 0, 0, 0, 0]))
    assert mean.vector.tolist() == [7, 8, 1, 1, 1, 1]


def test_the_mean_of_no_models_is_the_other() -> None:
    other = normed([3] * 6)
    assert weighted_mean([], other) is other
    assert weighted_mean([(normed([1] * 6), 0.0)], other) is other


def test_averaging_leaves_the_models_as_they_were() -> None:
    model = normed([1, 2, 3, 4, 5, 6], 1)
    weighted_mean([(model, 2.0), (normed([0] * 6), 1.0)], normed([0] * 6))
    assert model.vector.tolist() == [1, 2, 3, 4, 5, 6]
    assert model.counters.tolist() == [1]


@settings(deadline=None)
@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=FLOATS), st.data())
def test_the_weighted_mean_is_numpys_in_any_order(rows: np.ndarray, data: st.DataObject) -> None:
    m = len(rows)
    weights = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=m, max_size=m))
    order = data.draw(st.permutations(range(m)))
    models = [make_plain_model(row) for row in rows]
    mean = weighted_mean(zip(models, weights), models[0]).vector
    shuffled = weighted_mean([(models[i], weights[i]) for i in order], models[0]).vector
    scale = max(1.0, float(np.abs(rows).max()))
    np.testing.assert_allclose(shuffled, mean, rtol=1e-6, atol=1e-6 * scale)
    expected = np.average(rows.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-6 * scale)


@settings(deadline=None)
@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=FLOATS), st.floats(1e-3, 1e3))
def test_equal_weights_give_the_plain_mean(rows: np.ndarray, weight: float) -> None:
    models = [make_plain_model(row) for row in rows]
    mean = weighted_mean([(model, weight) for model in models], models[0]).vector
    scale = max(1.0, float(np.abs(rows).max()))
    np.testing.assert_allclose(mean, rows.mean(axis=0, dtype=np.float64), rtol=1e-6, atol=1e-6 * scale)


@settings(deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 8), elements=FLOATS), st.floats(1e-3, 1e9))
def test_the_mean_of_one_model_is_that_model(row: np.ndarray, weight: float) -> None:
    np.testing.assert_array_equal(
        weighted_mean([(make_plain_model(row), weight)], make_plain_model(row * 0)).vector, row
    )


def test_files_keep_arrays_and_facts(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2).transpose(0, 3, 1, 2),
        "b|c": np.array([-1, 2**62]),
        "none": np.zeros((0, 3), np.float32),
    }
    meta = {"slot": "global", "round": 3, "nested": {"x": [1, None, "ü"]}}
    save_arrays(tmp_path / "file", arrays, meta)
    loaded, facts = load_arrays(tmp_path / "file")
    assert facts == meta
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_files_keep_a_model_with_batchnorm(tmp_path: Path) -> None:
    model = normed([1, 2, 3, 4, 5, 6], 7)
    save_arrays(tmp_path / "file", model.arrays(), {})
    loaded = LAYOUT.pack(load_arrays(tmp_path / "file")[0])
    assert loaded.vector.tolist() == [1, 2, 3, 4, 5, 6]
    assert loaded.counters.tolist() == [7]


def test_a_file_replaces_the_one_before(tmp_path: Path) -> None:
    for value in (1, 2):
        save_arrays(tmp_path / "file", {"a": np.array([value])}, {"value": value})
    arrays, meta = load_arrays(tmp_path / "file")
    assert (arrays["a"].tolist(), meta) == ([2], {"value": 2})


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_cut_off_file_is_damaged(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "file"
    save_arrays(path, {"a": np.arange(50.0)}, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(PayloadError, match="cannot be read") as caught:
        load_arrays(path)
    assert caught.value.code == "damaged_file"


def test_what_is_no_such_file_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not safetensors at all")
    for name in ("text", "absent"):
        with pytest.raises(PayloadError) as caught:
            load_arrays(tmp_path / name)
        assert caught.value.code == "damaged_file"


class Adapted(nn.Module):
    """Frozen but for an adapter, which alone is in its state, under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 3).requires_grad_(False)
        self.adapter = nn.ModuleDict({"default": nn.Linear(3, 2, bias=False)})

    def state_dict(self, *args, **kwargs):
        return {"model.adapter.weight": self.adapter["default"].weight.detach()}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Linear(3, 4, bias=False)
        self.out.weight = self.embed.weight


def test_only_what_the_state_names_travels():
    module = Adapted()
    layout = Layout.of(module)
    assert [(e.name, e.kind, e.head) for e in layout.entries] == [("model.adapter.weight", "parameter", True)]
    resident = ResidentModel(module)
    np.testing.assert_array_equal(
        resident.read().arrays()["model.adapter.weight"], module.adapter["default"].weight.detach().numpy()
    )
    resident.load(layout.pack({"model.adapter.weight": np.arange(6.0).reshape(2, 3)}))
    assert module.adapter["default"].weight.detach().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_state_of_copies_is_taken_as_parameters():
    class Copies(Adapted):
        def state_dict(self, *args, **kwargs):
            return {name: value.clone() for name, value in super().state_dict().items()}

    assert [e.kind for e in Layout.of(Copies()).entries] == ["parameter"]


def test_a_tied_weight_is_held_once_and_travels_under_both_names():
    module = Tied()
    model = ResidentModel(module).read()
    assert model.layout.tied == (("out.weight", "embed.weight"),)
    assert model.layout.parameter_size == 4 * 3 + 3 + 3
    assert model.arrays().keys() == module.state_dict().keys() == model.layout.shapes.keys()
    Tied().load_state_dict({name: torch.tensor(a) for name, a in model.arrays().items()}, strict=True)


@pytest.mark.parametrize("names", [("embed.weight",), ("out.weight",), ("embed.weight", "out.weight")])
def test_a_tied_weight_arrives_under_any_of_its_names(names):
    layout = Layout.of(Tied())
    new = np.arange(12.0).reshape(4, 3)
    arrays = {n: np.zeros(s) for n, s in layout.shapes.items() if n not in ("embed.weight", "out.weight")}
    packed = layout.pack({**arrays, **dict.fromkeys(names, new)})
    np.testing.assert_array_equal(packed.arrays()["out.weight"], new)
    with pytest.raises(PayloadError, match="is missing"):
        layout.pack(arrays)


def test_a_part_keeps_the_tied_names_of_its_entries():
    layout = Layout.of(Tied())
    assert layout.restricted(["norm.weight"]).tied == ()
    assert layout.restricted(["out.weight"]).tied == layout.tied


def test_a_volume_s_convolution_keeps_its_order():
    module = nn.Sequential(nn.Conv3d(2, 3, (1, 2, 3)), nn.ConvTranspose3d(3, 2, 2))
    before = {n: t.detach().clone() for n, t in module.state_dict().items()}
    model = ResidentModel(module).read()
    assert all(np.array_equal(before[n], a) for n, a in model.arrays().items())
    again = model.layout.pack(model.arrays())
    np.testing.assert_array_equal(again.vector, model.vector)


def test_weights_that_share_their_memory_are_tied():
    module = Tied()
    module.out.weight = nn.Parameter(torch.zeros(4, 3))
    assert not Layout.of(module).tied
    module.out.weight.data = module.embed.weight.data
    assert Layout.of(module).tied == (("out.weight", "embed.weight"),)


# ---- Private arrays ----


class OwnNorm(nn.Module):
    """A normalisation layer of somebody's own, around a network as its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inside = nn.Parameter(nn.Linear(1, 3).bias.data), nn.Linear(3, 3)


class NormedLayers(nn.Module):
    """Normalisation layers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3)
        self.own, self.group, self.head = OwnNorm(), nn.GroupNorm(1, 3), nn.Linear(3, 2)


class TiedLayers(nn.Module):
    """The last layer's weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight


BN = {f"bn.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}


@pytest.mark.parametrize(
    ("private", "names"),
    [
        ("norm", {*BN, "own.scale", "group.weight", "group.bias"}),
        ("bias", {"conv.bias", "bn.bias", "own.inside.bias", "group.bias", "head.bias"}),
        ("head", {"head.weight", "head.bias"}),
        ("^conv|tracked", {"conv.weight", "conv.bias", "bn.num_batches_tracked"}),
    ],
)
def test_words_and_patterns(private, names):
    module = NormedLayers()
    found = Division.of(module, private)
    assert set(found.names) == names
    assert {e.name for e in found.public.entries} | names == set(module.state_dict())
    whole = found.layout.pack({name: array.numpy() for name, array in module.state_dict().items()})
    parts = whole.take(found.private), whole.take(found.public)
    again = found.joined(parts[1], parts[0])
    np.testing.assert_array_equal(again.vector, whole.vector)
    np.testing.assert_array_equal(again.counters, whole.counters)


def test_without_the_setting_all_travels():
    found = Division.of(NormedLayers(), None)
    assert found.public is found.layout
    assert (found.private, found.names) == (None, [])


def test_a_tied_weight_stays_by_either_name():
    assert (
        Division.of(TiedLayers(), "last.weight").names
        == Division.of(TiedLayers(), "first.weight").names
        == ["first.weight"]
    )


def test_a_part_of_a_model_gets_its_private_layers_too():
    found = Division.of(NormedLayers(), "norm")
    backbone = found.public.backbone
    part = Params(backbone, np.ones(backbone.size, np.float32))
    own = Params(found.private, np.zeros(found.private.size, np.float32), np.zeros(1, np.int64))
    joined = found.joined(part, own)
    assert {e.name for e in joined.layout.entries} == {e.name for e in found.layout.entries if not e.head}
    assert joined.arrays()["bn.weight"].sum() == 0
    assert joined.arrays()["conv.bias"].sum() == 3


@pytest.mark.parametrize(
    ("module", "private", "says"),
    [
        (MLP((1, 2, 2), 2), "norm", "private = 'norm': there is no normalisation layer in the model; name arrays of "),
        (MLP((1, 2, 2), 2), "conv", "private = 'conv': it matches nothing in the model; name arrays of body"),
        (MLP((1, 2, 2), 2), ".", "matches all parameters: nothing would be left to learn together"),
        (nn.Sequential(nn.Linear(2, 2, bias=False)), "head", "matches all parameters"),
        (MLP((1, 2, 2), 2), "(", r"private = '\(' is not a regular expression"),
        (MLP((1, 2, 2), 2), 7, "private = 7 is not a regular expression"),
    ],
)
def test_refusals(module, private, says):
    with pytest.raises(ConfigError, match=says):
        Division.of(module, private)


BACKTRACK = [
    "(a+)+$", "(a|ab)*c", "(.*)*x", ".*.*.*.*.*x", "((ab?)*)*c", "(a?){60}a{60}", "a?" * 60 + "a" * 60, "(?=(a+)+)b",
    "(a*?)*?b", "((a{1,50}){1,50}){1,50}", "(?i:(a+)+)", "(x+x+)+y", r"(\w+\.?)+$", "(a)(?(1)b+|c+)(?(1)(d+)+|e)f",
    "(aa|aaa)" * 60, "a" * 10_000, "(" * 499,
]  # fmt: skip


@pytest.mark.parametrize("pattern", BACKTRACK)
@pytest.mark.parametrize("real_names", [True, False])
def test_a_pattern_that_could_be_searched_for_ever_is_refused_before_it_is_searched(pattern, real_names):
    """The names are an author's as well: of 60 times ``a`` they take ``(a+)+$`` more than a lifetime."""
    names = [f"layer{i}.0.conv1.weight" for i in range(62)] if real_names else ["a" * 60 + "b"] * 62
    with pytest.raises(ConfigError, match=r"^run: private .*(for ever|characters|no regular|not a regular)"):
        bounded(pattern, names, "run: private = 'x'")


@pytest.mark.parametrize("pattern", ["bn|norm", r"(^|\.)head\.", r"^layer.*\.(bn|norm)\d*\.(weight|bias)$", "(a{2}){3}",
                                     r"(?!fc)\w+\.bias", r"(\w+)\.(\w+)\.bn", "(?:layer1\\.)+"])  # fmt: skip
def test_usual_patterns_are_searched_as_they_are(pattern):
    names = [f"layer{i}.{j}.bn{k}.running_mean" for i in range(4) for j in range(4) for k in range(4)]
    assert bounded(pattern, names, "run").pattern == pattern
