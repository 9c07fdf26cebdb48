# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Which worker of pytest-xdist runs which test."""

from xdist.scheduler import LoadScopeScheduling

# Files whose slow tests share a running FLARE system, or may not run two at once.
DEPLOYMENTS = (
    "tests/e2e/test_ghost_job.py",
    "tests/e2e/test_faults.py",
    "tests/e2e/test_guides.py",
    "tests/e2e/test_hospital_walk.py",
    "tests/e2e/test_hostile_author.py",
    "tests/e2e/test_poc.py",
    "tests/e2e/test_provisioned.py",
)


class Scheduling(LoadScopeScheduling):
    """Fast tests of a file go to one worker, which makes their fixtures once; slow ones go to whoever is free.

    What has most tests goes first: the slow files that stay together are also the longest.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        together = file in DEPLOYMENTS or self.config.option.markexpr != "slow"
        return file if together else nodeid
