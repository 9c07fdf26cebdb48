# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The errors that a user can see, whose messages name value, place and way out; codes by which a site reports them."""

from __future__ import annotations

import errno

from cfl_flare.core.text import plain

# All that a site says of a failure is one of these codes; its message and traceback stay in the site's own log. The
# sentences are the server's. Each completes "site-2: ".
FAILURES = {
    "config": "a setting of the job cannot be used there",
    "software": "versions of cfl_flare or FLARE there differ from the server's or the job's",
    "settings": "the job's settings there differ from the server's",
    "class": "its policy does not allow a class that the job names, or the class is not installed there",
    "path": "its policy does not allow the path that the job names",
    "floor": "its policy asks for tighter bounds than the job's: min_sites_per_cluster, membership and the like",
    "difference": "its earlier jobs had almost the same sites, so that models of few follow; its operator can allow it",
    "budget": "its privacy budget, or the job's, does not pay for that",
    "ledger": "its ledger of privacy cannot be trusted until its operator has looked",
    "withheld": "its privacy budget lets no reason leave that its data decides on",
    "encrypts": "a filter there encrypts models, which the server has to compare",
    "missing": "the data that it should read is not there",
    "columns": "its table's columns, or its classes, are not those that the job names or the sites agreed on",
    "model": "its samples or labels do not fit the job's model or task",
    "data": "its data cannot be read, or holds what the job does not take",
    "payload": "what the server sent does not fit there",
    "diverged": "its training ended with NaN or infinity, so that the learning rate lr should be lower",
    "training": "training or measuring failed there",
    "memory": "it is out of memory",
    "disk": "its disk is full",
    "file": "a file that it keeps cannot be read or written",
    "unexpected": "an unexpected error there",
}

# What a site with a privacy budget says in place of a code that its data decides on, and the codes that it does not.
WITHHELD = "withheld"
FREE_OF_DATA = frozenset(
    (
        *(
            "software",
            "settings",
            "class",
            "path",
            "floor",
            "difference",
            "budget",
            "ledger",
            "encrypts",
            "payload",
        ),
        *("disk", "file"),
    )
)


class CFLError(Exception):
    """Base class of all errors that cfl_flare raises on purpose.

    Attributes:
        failure: the code by which a site reports it, one of `FAILURES`.
    """

    failure = "unexpected"

    def __init_subclass__(cls, failure: str | None = None) -> None:
        cls.failure = failure or cls.failure


class ConfigError(CFLError, ValueError, failure="config"):
    """A setting is wrong; raised before anything starts."""


class SoftwareError(ConfigError, failure="software"):
    """Server, sites and job have software of different versions."""


class SettingsError(ConfigError, failure="settings"):
    """A site's settings in the job differ from the server's."""


class ClassError(ConfigError, failure="class"):
    """A class that a job names is not allowed here, or cannot be imported."""


class FloorError(ConfigError, failure="floor"):
    """A job's clusters may have fewer sites than this site's policy asks for."""


class GateError(ConfigError):
    """A model may tell who it was trained on, and so goes to nobody but its members."""


class DifferenceError(ConfigError, failure="difference"):
    """With earlier jobs of other sites, a job's models would give those of too few sites by subtraction."""


class BudgetError(ConfigError, failure="budget"):
    """Differential privacy: what is asked for would spend more than may be spent."""


class LedgerError(ConfigError, failure="ledger"):
    """A site's ledger of privacy is damaged, locked, older than its data, or older than it was."""


class EncryptionError(ConfigError, failure="encrypts"):
    """A filter encrypts what a server has to compare."""


class DataError(CFLError, ValueError, failure="data"):
    """A data set cannot be read or does not fit the job."""


class MissingDataError(DataError, failure="missing"):
    """There is no data where it should be."""


class ColumnsError(DataError, failure="columns"):
    """A table lacks a column or has a new one, or classes have names that the sites did not agree on."""


class FitError(DataError, failure="model"):
    """Samples or labels do not fit the model or the task."""


class PathError(DataError, failure="path"):
    """A job names a path that the operator's policy does not allow."""


class PayloadError(CFLError, ValueError, failure="payload"):
    """Something that was received, or read from a file, is refused; its message is one line of plain text.

    Its code is a short reason such as ``"non_finite"``, which the run's summary counts.
    """

    def __init__(self, code: str, message: str):
        super().__init__(plain(message))
        self.code = code


class FileError(CFLError, OSError, failure="file"):
    """A file cannot be read or written: its disk is full, it is no regular file, it is too large."""


class AbortedError(CFLError):
    """The job was aborted while a participant was working."""


class NoPlotsError(ConfigError):
    """The software that makes pictures is not installed, or does not run here, for instance for lack of memory."""


class RunFailedError(CFLError):
    """A run ended before its last round."""


class TooFewAnswersError(CFLError):
    """Too many rounds in a row had too few valid results."""


class DivergedError(TooFewAnswersError, failure="diverged"):
    """Training ended with numbers that are not finite."""


class UnfitError(CFLError):
    """A job would fail at this site."""


def failure_of(error: BaseException, otherwise: str = "unexpected") -> str:
    """The code by which a site reports an error; ``otherwise`` is that of an error that is none of cfl_flare's own.

    A full disk or memory counts as the cause of another error, too.

    >>> failure_of(DataError("ward.csv: no column 'diagnosis'"))
    'data'
    """
    cause: BaseException | None = error
    codes = set()
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            codes.add("disk")
        elif _is_out_of_memory(cause):
            codes.add("memory")
        cause = cause.__cause__
    code = error.failure if isinstance(error, CFLError) else otherwise
    return min(codes, default=code)  # a full disk before a full memory


def failure_text(code: str) -> str:
    """The server's sentence for a site's failure; a PayloadError if there is no such code.

    >>> failure_text("memory")
    'memory: it is out of memory; its own log says why'
    """
    if not isinstance(code, str) or code not in FAILURES:
        raise PayloadError(
            "malformed", f"an error that is not one of {', '.join(FAILURES)}"
        )
    return f"{code}: {FAILURES[code]}; its own log says why"


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: PyTorch raises a class of its own for a GPU, and a plain RuntimeError for the CPU."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )
