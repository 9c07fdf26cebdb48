# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the operator of a site does beside FLARE: prepare its kit, check its data, use the models that it got."""
