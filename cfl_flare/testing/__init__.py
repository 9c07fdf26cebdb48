# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Check a method of your own: ``check_method(MyMethod(k=2))`` plays every promise of the contract in seconds."""

from __future__ import annotations

from collections.abc import Sequence

from cfl_flare.core.config import require
from cfl_flare.core.text import shown
from cfl_flare.methods import Method
from cfl_flare.testing.promises import PROMISES, PromiseError

__all__ = ["PROMISES", "PromiseError", "check_method"]


def check_method(
    method: Method,
    promises: Sequence[str] = tuple(PROMISES),
) -> None:
    """Check that a method keeps the promises of the contract.

    Each promise is played with six participants that have unequal numbers of
    samples, on a network of 83 parameters. All promises together take seconds.

    Args:
        method: the method, with small settings: at most three clusters, and no
            more than three rounds before it clusters.
        promises: the names of the promises to check, by default all of `PROMISES`.

    Raises:
        PromiseError: the method breaks a promise. The message has the name of the
            promise, the reason, and the page that explains the promise.
        ConfigError: there is no promise of such a name.
    """
    unknown = [name for name in promises if name not in PROMISES]
    require(
        not unknown,
        f"check_method: promises = {shown(unknown)} are unknown: "
        f"expected some of {', '.join(PROMISES)}",
    )
    for name in promises:
        try:
            PROMISES[name](method)
        except PromiseError as error:
            raise PromiseError.of(name, method, str(error)) from error
        except Exception as error:  # the method may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise PromiseError.of(name, method, reason) from error
