# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from tests.e2e.deployment import Deployment

# Files whose slow tests share a running FLARE system, or may not run two at once.
DEPLOYMENTS = (
    "tests/e2e/test_ghost_job.py",
    "tests/e2e/test_faults.py",
    "tests/e2e/test_guides.py",
    "tests/e2e/test_hostile_author.py",
    "tests/e2e/test_provisioned.py",
)
torch.set_num_threads(1)
# A deadline is a timed assertion: on a busy machine, an example can take longer than Hypothesis's 200 ms.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def only_slow(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "slow")


def pytest_configure(config: pytest.Config) -> None:
    """The slow tests' processes of FLARE are forked from one that has imported PyTorch, which all workers share."""
    if only_slow(config):
        from tests.helpers import warm

        if not os.environ.get(warm.SOCKET):
            config.add_cleanup(warm.start_forking())
        subprocess.Popen = warm.Popen  # type: ignore[misc]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A worker for slow tests imports no file that has none."""
    if only_slow(config) and collection_path.suffix == ".py" and "mark.slow" not in collection_path.read_text():
        return True
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Fast tests of a file go to one worker, which makes their fixtures once; slow ones go to whoever is free.

    What has most tests goes first: the slow files that stay together are also the longest.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            together = file in DEPLOYMENTS or not only_slow(self.config)
            return file if together else nodeid

    return Scheduling(config, log)


@pytest.fixture
def data_root() -> Path:
    """The real image sets; tests that need them are skipped where they are not."""
    root = os.environ.get("CFL_DATA_ROOT")
    if not root or not Path(root).is_dir():
        pytest.skip("CFL_DATA_ROOT names no folder with the real image sets")
    return Path(root)


@pytest.fixture
def state_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a test under which jobs keep their state."""
    folder = tmp_path / "state"
    monkeypatch.setenv("CFL_STATE_ROOT", str(folder))
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Finished runs by the name of their method, each made once and not to be changed."""
    from tests.helpers.loop import METHOD_LIST, run_of

    done: dict[str, Path] = {}

    def finished(name: str) -> Path:
        if name not in done:
            done[name] = run_of(METHOD_LIST[name], tmp_path_factory.mktemp("run") / "cfl")
        return done[name]

    return finished


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A running deployment, which several files of tests use one after the other."""
    from tests.e2e.deployment import deployed, find_blood_images, write_hospitals

    source = find_blood_images()
    folder = tmp_path_factory.mktemp("trial")
    yield from deployed(folder, write_hospitals(source, folder / "data"), patients="pid")
