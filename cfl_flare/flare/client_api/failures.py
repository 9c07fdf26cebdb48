# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What the server learns of a script that has failed: the type of its error, from the launcher at the site."""

from __future__ import annotations

from nvflare.app_common.abstract.fl_model import FLModel

from cfl_flare.core.errors import PayloadError
from cfl_flare.flare.client_api.cfl_launcher import FAILED

LONGEST = 60


def check_failure(result: FLModel) -> None:
    """Raises a PayloadError if a result says that the site's script has failed."""
    if FAILED not in (result.meta or {}):
        return
    name = result.meta[FAILED]
    fits = isinstance(name, str) and len(name) <= LONGEST and name.isascii() and name.isidentifier()
    if name == SystemExit.__name__:
        raise PayloadError("site_failed", "its script ended before the job")
    raise PayloadError("site_failed", f"{name if fits else 'an error'} in its script")
