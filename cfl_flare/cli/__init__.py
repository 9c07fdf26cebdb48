# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The command ``cfl-flare``."""

from cfl_flare.cli.main import main

__all__ = ["main"]
