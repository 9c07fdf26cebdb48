# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Should these hospitals be clustered, into how many groups, and who gains?"""
