# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What makes a FLARE job: the recipe, the apps of its sites, the code that is sent with it."""
