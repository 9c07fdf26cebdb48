# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the server learns of a script that has failed: the type of its error, from the launcher at the site."""

from __future__ import annotations

from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel

from cfl_flare.core.errors import PayloadError
from cfl_flare.flare.client_api.cfl_launcher import FAILED, NOT_MEASURED

LONGEST = 60


def check_failure(result: FLModel) -> None:
    """Raises a PayloadError if a result says that the site's script has failed."""
    if FAILED not in (result.meta or {}):
        return
    name = result.meta[FAILED]
    if name == SystemExit.__name__:
        raise PayloadError("site_failed", "its script ended before the job")
    raise PayloadError("site_failed", f"{_type_of(name)} in its script")


def not_measured(result: FLModel) -> str | None:
    """Why the function that a job names has not measured a model; None if it has, or there is none."""
    meta = result.meta or {}
    return f"{_type_of(meta[NOT_MEASURED])} in its evaluate function" if NOT_MEASURED in meta else None


def _type_of(name: Any) -> str:
    """An error's type, if it is one."""
    fits = isinstance(name, str) and len(name) <= LONGEST and name.isascii() and name.isidentifier()
    return name if fits else "an error"
