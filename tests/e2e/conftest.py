# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.deployment import Deployment, deployed, hospitals


@pytest.fixture(scope="session")
def trial(tmp_path_factory) -> Iterator[Deployment]:
    """A running deployment, which several files of tests use one after the other."""
    source = Path(os.environ.get("CFL_DATA_ROOT", "")) / "bloodmnist28.npz"
    if not os.environ.get("CFL_DATA_ROOT") or not source.is_file():
        pytest.skip("CFL_DATA_ROOT holds no bloodmnist28.npz")
    folder = tmp_path_factory.mktemp("trial")
    yield from deployed(folder, hospitals(source, folder / "data"))
