# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Small files of data."""

import gzip
from pathlib import Path

import numpy as np


def write_file(folder: Path, content: str | bytes, name: str = "ward.csv") -> str:
    """Write a file of a folder, and return its path; text is compressed if the name ends in gz."""
    path = folder / name
    if isinstance(content, str):
        content = content.encode()
        if name.endswith(".gz"):
            content = gzip.compress(content)
    path.write_bytes(content)
    return str(path)


def write_npz(
    path: Path,
    images: np.ndarray,
    labels: np.ndarray,
    test_images: np.ndarray | None = None,
    test_labels: np.ndarray | None = None,
    **arrays: np.ndarray,
) -> Path:
    """Write a file in MedMNIST's layout, and return its path.

    Args:
        path: the file; its folder is made.
        images: training images, (n, h, w) or (n, h, w, c).
        labels: their labels, (n,).
        test_images: test images; the training images if None.
        test_labels: their labels; those of training if None.
        **arrays: what else it has.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tests = {
        "test_images": images if test_images is None else test_images,
        "test_labels": labels if test_labels is None else test_labels,
    }
    np.savez(path, **{"train_images": images, "train_labels": labels, **tests, **arrays})
    return path
