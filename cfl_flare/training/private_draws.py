# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Random draws of private training: the draw of a sample depends on that sample, and on no other one.

Differential privacy compares two data sets that differ in one patient. The bound on a clipped gradient holds for the
difference of two sums only if all other patients contribute the same gradient to both. Augmentation, dropout and the
choice of a patient's rows change a gradient. So their draws must not depend on who else takes part.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from cfl_flare.training.runtime import Split


class SampleDraws:
    """Secret numbers for single samples, by a keyed hash of the sample itself.

    Args:
        secret: at most 64 bytes, which nobody outside the site can draw again at a real site.
        split: the training samples.
    """

    def __init__(self, secret: bytes, split: Split):
        self._secret = secret
        self._split = split

    def draw(
        self, purpose: str, step: int, rows: Sequence[int] | np.ndarray
    ) -> list[int]:
        """Draw one number for each of some samples.

        Args:
            purpose: what the numbers are for, such as ``augment``.
            step: the number of the local step.
            rows: ``(n,)`` the samples' places in the split.

        Returns:
            Numbers in [0, 2^62), one for each row.
        """
        context = f"{purpose}\0{step}\0".encode()
        return [self._hash(context + self._identities[row]) for row in rows]

    def _hash(self, text: bytes) -> int:
        digest = hashlib.blake2b(text, key=self._secret, digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 2

    @cached_property
    def _identities(self) -> list[bytes]:
        """A digest of each sample's features and label. Equal samples are numbered, because draws are independent."""
        features = self._split.x.cpu().numpy()
        labels = self._split.y.cpu().numpy()
        seen = Counter[bytes]()
        identities = []
        for x, y in zip(features, labels):
            content = hashlib.blake2b(
                x.tobytes() + y.tobytes(), digest_size=16
            ).digest()
            identities.append(content + seen[content].to_bytes(4, "big"))
            seen[content] += 1
        return identities
