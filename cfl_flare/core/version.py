# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Which cfl_flare this is, and where its code lies."""

from pathlib import Path

# Not read from the installed distribution: a copy that a job carries has none.
__version__ = "0.2.0"
PACKAGE = Path(__file__).resolve().parents[1]
