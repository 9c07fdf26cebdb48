# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Synthetic notes of word numbers, which two guidelines triage differently."""

import numpy as np
import torch
from model import WORDS

LENGTH = 16
Split = tuple[torch.Tensor, torch.Tensor]


def load_site(site: str, notes: int) -> dict[str, Split]:
    """A site's notes and whether each is urgent.

    A note is urgent if it has more words of the first half of the vocabulary than of the second; every second site
    follows a guideline that says the opposite.
    """
    index = int(site.rpartition("-")[2]) - 1
    splits = {}
    for number, split in enumerate(("train", "test")):
        rng = np.random.default_rng([index, number])
        words = rng.integers(1, WORDS, (notes, LENGTH - 1))
        share = rng.uniform(size=(notes, 1))
        words = np.where(rng.uniform(size=words.shape) < share, words % 32, 32 + words % 32)
        urgent = ((words < 32).mean(axis=1) > 0.5) == (index % 2 == 0)
        start = np.zeros((notes, 1), dtype=words.dtype)  # the token that the classifier reads
        splits[split] = torch.from_numpy(np.hstack([start, words])), torch.from_numpy(urgent.astype(np.int64))
    return splits
