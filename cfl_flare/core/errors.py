# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The errors that a user can meet. Each message names the value, the place and the way out."""


class CFLError(Exception):
    """Base of all errors that cfl_flare raises on purpose."""


class ConfigError(CFLError, ValueError):
    """A setting is wrong; raised before anything starts."""


class DataError(CFLError, ValueError):
    """A data set cannot be read or does not fit the job."""


class PayloadError(CFLError, ValueError):
    """An answer from a site is refused.

    Args:
        code: short reason code, counted in the run's summary, e.g. ``"non_finite"``.
        message: what was wrong, with both values where two disagree.
    """

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class AbortedError(CFLError):
    """The job was aborted while a participant was working."""


class RunFailedError(CFLError):
    """FLARE ended a run before its time."""


class UnfitError(CFLError):
    """A site would make a job fail."""
