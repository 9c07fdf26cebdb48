# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""How a job's sites share the GPUs of one machine. The machine of the tests needs none."""

import pytest
import torch

from cfl_flare.training.runtime import Place


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
