# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of refused input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cfl_flare.core.errors import CFLError, ConfigError, DataError


def catch_refusal(
    make: Callable[[], Any],
    message: str | None = None,
    error: type[CFLError] | tuple[type[CFLError], ...] = (DataError, ConfigError),
) -> str:
    """Call a function that refuses its input, and return its message, which is one line.

    Args:
        make: the function.
        message: a regular expression that the message must contain.
        error: the classes of error of which the refusal must be one.
    """
    with pytest.raises(error, match=message) as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    return text
