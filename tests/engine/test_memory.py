# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The server's memory in a round, in units of one model; nothing here depends on time or on the machine."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import sklearn.cluster  # noqa: F401 - its import is no part of a round
import torch
from torch import nn

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.core.params import Layout, Params
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.engine.task import Result
from cfl_flare.methods import IFCA, FedAvg, Method, Participant, Update, WeCFL

SITES = 4


class Wide(nn.Module):
    """Several layers, of which none has most of the parameters; the one that is compared is small."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(256, 256, 1) for _ in range(8))
        self.head = nn.Linear(256, 2)


LAYOUT = Layout.of(Wide())
SIZE = LAYOUT.nbytes


def drawn(number: int) -> Params:
    rng = np.random.default_rng(number)
    return Params(LAYOUT, rng.normal(size=LAYOUT.size).astype(np.float32))


class Peak:
    """What was allocated at most, beyond what there was, in models."""

    def __enter__(self) -> "Peak":
        tracemalloc.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.models = tracemalloc.get_traced_memory()[1] / SIZE
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("method", "most"),
    [
        (FedAvg(), 5),  # a sum in float64, a trained model, the mean
        (IFCA(k=2), 9),  # the two means, and of one cluster at a time what the analysis sums
        (WeCFL(k=2), 10),  # and the common model
    ],
    ids=["fedavg", "ifca", "wecfl"],
)
def test_a_round_needs_few_models_beyond_its_updates(method: Method, most: float) -> None:
    people = [Participant(f"site-{i}", f"site-{i}", 1) for i in range(SITES)]
    server = Server(method, LAYOUT, people, ServerSettings(num_rounds=3), method.start(drawn))
    peaks = []
    for _ in range(3):
        for number, (name, task) in enumerate(server.tasks().items()):
            cluster = number % 2 if task.choices else None
            slot = task.choices[cluster] if cluster is not None else task.slots[0]
            server.accept(Result(name, Update(name, 1, {slot: drawn(number)}, cluster)), name)
        with Peak() as peak:
            server.finish_round()
        peaks.append(round(peak.models, 1))
    assert max(peaks) < most, peaks


def test_a_file_is_written_without_a_copy_of_what_is_in_it(tmp_path: Path) -> None:
    arrays = {f"{i}": drawn(i).vector for i in range(3)}
    with Peak() as peak:
        save_arrays(tmp_path / "models.safetensors", arrays, {})
    assert peak.models < 0.2
    assert all(np.array_equal(a, arrays[name]) for name, a in load_arrays(tmp_path / "models.safetensors")[0].items())


def test_a_file_is_as_other_programs_write_it(tmp_path: Path) -> None:
    from safetensors.numpy import save

    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(3),
        "half": np.ones((), np.float16),
        "none": np.zeros((0, 2)),
        "bits": np.array([True, False, True]),
        "turned": np.arange(6, dtype=np.uint8).reshape(2, 3).T,
        "swapped": np.arange(3, dtype=">i2"),
    }
    save_arrays(tmp_path / "ours", arrays, {"x": "é"})
    text = {"cfl_flare": '{"x": "\\u00e9"}'}
    plain = {name: np.ascontiguousarray(a, a.dtype.newbyteorder("=")).reshape(a.shape) for name, a in arrays.items()}
    (tmp_path / "theirs").write_bytes(save(plain, text))
    for name in ("ours", "theirs"):
        read, meta = load_arrays(tmp_path / name)
        assert meta == {"x": "é"} and read.keys() == arrays.keys()
        assert all(read[key].dtype == plain[key].dtype and np.array_equal(read[key], plain[key]) for key in arrays)


def test_one_vector_is_a_view_of_the_model_where_its_parts_lie_beside_each_other() -> None:
    model = drawn(0)
    for role in ("all", "fc", "backbone"):
        assert np.shares_memory(model.part(role), model.vector)
        np.testing.assert_array_equal(model.part(role), np.concatenate([model.vector[s] for s in LAYOUT.select(role)]))
    names = ["head.bias", "layers.0.bias"]
    np.testing.assert_array_equal(model.part(names), np.concatenate([model.vector[s] for s in LAYOUT.select(names)]))
    assert torch.from_numpy(model.part("all")).shape == (LAYOUT.parameter_size,)
