# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What most rooms stand on: models as vectors, settings, errors, random streams, files. It imports no other room."""
