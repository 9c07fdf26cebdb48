# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What most other packages build on: models as vectors, settings, errors, random streams, files."""
