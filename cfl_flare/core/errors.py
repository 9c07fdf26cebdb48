# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The errors that a user can see. Each message names the value, the place and the way out."""


class CFLError(Exception):
    """Base class of all errors that cfl_flare raises on purpose."""


class ConfigError(CFLError, ValueError):
    """A setting is wrong; raised before anything starts."""


class DataError(CFLError, ValueError):
    """A data set cannot be read or does not fit the job."""


class PayloadError(CFLError, ValueError):
    """Something that was received, or read from a file, is refused.

    Args:
        code: short reason, counted in the run's summary, such as ``"non_finite"``.
        message: what was wrong, with both values where two differ.
    """

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class FileError(CFLError, OSError):
    """A file cannot be read or written: its disk is full, it is no regular file, it is too large."""


class AbortedError(CFLError):
    """The job was aborted while a participant was working."""


class RunFailedError(CFLError):
    """A run ended before its last round."""


class UnfitError(CFLError):
    """A job would fail at this site."""
