# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a training script of FLARE's Client API imports: ``loss = loss + cfl_flare.client.penalty(model)``."""

from cfl_flare.flare.client_api.penalty import penalty

__all__ = ["penalty"]
