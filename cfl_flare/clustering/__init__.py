# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Server-side mathematics on ``(m, d)`` arrays, one row a participant."""
