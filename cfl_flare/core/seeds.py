# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Random streams, one per purpose, so that no draw depends on how many others came before it."""

from __future__ import annotations

import hashlib

import numpy as np


def derive(seed: int, *keys: str | int) -> int:
    """A 63-bit seed that depends only on the run's seed and the keys."""
    text = "\0".join([str(seed), *map(str, keys)])
    return (
        int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        >> 1
    )


def stream(seed: int, *keys: str | int) -> np.random.Generator:
    """A random generator that depends only on the run's seed and the keys, such as participant, round and purpose."""
    return np.random.default_rng(derive(seed, *keys))
