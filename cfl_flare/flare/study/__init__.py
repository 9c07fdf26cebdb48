# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A study as one FLARE job: its candidates train one after the other at the sites of one check-in."""
