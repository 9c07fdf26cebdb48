# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of the main house that go on into an extension are skipped if its folder is deleted."""

import pytest

from cfl_flare.extensions import list_extensions


def needs_extension(name: str) -> pytest.MarkDecorator:
    """Skips a test where this extension is not installed."""
    installed = {extension.name for extension in list_extensions()}
    return pytest.mark.skipif(name not in installed, reason=f"the extension {name} is not installed")
