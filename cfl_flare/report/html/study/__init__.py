# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a study: whether to cluster, who gains, and how that was found. No torch here."""
