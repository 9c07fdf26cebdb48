# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Server-side mathematics on ``(m, d)`` arrays, one row per participant.

scikit-learn and scipy are imported inside the functions that need them: a site's process needs neither, and starts with
a quarter less processor time.
"""
