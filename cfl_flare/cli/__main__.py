# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m cfl_flare.cli``."""

import sys

from cfl_flare.cli import main

sys.exit(main())
