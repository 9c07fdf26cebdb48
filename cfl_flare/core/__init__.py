# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What most other rooms build on: models as vectors, settings, errors, random streams, files; and the version."""

from pathlib import Path

# Not read from the installed distribution: a copy that a job carries has none.
__version__ = "1.0.0.dev0"
PACKAGE = Path(__file__).resolve().parents[1]
