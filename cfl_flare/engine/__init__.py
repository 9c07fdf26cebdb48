# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run without FLARE: the server, a site, the loop that joins them, and what is checked before a run."""
