# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distributes the tests, however pytest-xdist is called."""
    from tests.scheduling import Scheduling

    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def warm_processes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The slow tests' processes of FLARE need not import PyTorch each."""
    from tests.warm import started

    if request.config.option.markexpr != "slow":
        yield
        return
    with started(tmp_path_factory.mktemp("warm")):
        yield


@pytest.fixture
def data_root() -> Path:
    """The real image sets; tests that need them are skipped where they are not."""
    root = os.environ.get("CFL_DATA_ROOT")
    if not root or not Path(root).is_dir():
        pytest.skip("CFL_DATA_ROOT names no folder with the real image sets")
    return Path(root)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Finished runs by the name of their method, each made once and not to be changed."""
    from tests.joining import METHOD_LIST, run_of

    done: dict[str, Path] = {}

    def finished(name: str) -> Path:
        if name not in done:
            done[name] = run_of(METHOD_LIST[name], tmp_path_factory.mktemp("run") / "cfl")
        return done[name]

    return finished
