# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Synthetic scans: lesions are bright and cysts dark with one scanner, and the other way round with the other."""

import numpy as np
import torch

SIZE = 48
Split = tuple[torch.Tensor, torch.Tensor]


def ellipse(rng: np.random.Generator) -> np.ndarray:
    """A mask of an ellipse somewhere in the image."""
    (x, y), (a, b) = rng.uniform(10, SIZE - 10, 2), rng.uniform(4, 9, 2)
    rows, columns = np.ogrid[:SIZE, :SIZE]
    return ((rows - x) / a) ** 2 + ((columns - y) / b) ** 2 <= 1


def scan(rng: np.random.Generator, lesion_is_bright: bool) -> tuple[np.ndarray, np.ndarray]:
    """An image with a lesion and a cyst, and the lesion's mask."""
    cyst, lesion = ellipse(rng), ellipse(rng)
    contrast = 0.4 if lesion_is_bright else -0.4
    image = 0.5 - contrast * cyst
    image[lesion] = 0.5 + contrast
    image += rng.normal(0, 0.15, image.shape)
    return image.astype(np.float32), lesion.astype(np.float32)


def load_site(site: str, samples: int) -> dict[str, Split]:
    """A site's scans and masks, of shape (scans, 1, 48, 48); every second site has the other scanner."""
    index = int(site.rpartition("-")[2]) - 1
    splits = {}
    for number, (split, count) in enumerate({"train": samples, "test": samples // 4}.items()):
        rng = np.random.default_rng([index, number])
        images, masks = zip(*(scan(rng, lesion_is_bright=index % 2 == 0) for _ in range(count)), strict=True)
        splits[split] = tuple(torch.from_numpy(np.stack(arrays))[:, None] for arrays in (images, masks))
    return splits
