# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a run leaves on disk, and how it is read."""

from cfl_flare.results.bootstrap import Difference, paired_difference
from cfl_flare.results.model_file import read_model
from cfl_flare.results.run_dir import Run, find_runs, load_run
from cfl_flare.results.served import load_arrays, load_model

__all__ = [
    "Difference",
    "Run",
    "find_runs",
    "load_arrays",
    "load_model",
    "load_run",
    "paired_difference",
    "read_model",
]
