# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Clustered federated learning for NVIDIA FLARE."""

__version__ = "0.2.0"
