"""Failures of a worker: the culprit of an exception, and the message for the agent."""

from __future__ import annotations

import contextlib
import sys

import torch

from brim.errors import BrimError, EnvironmentFault, SpecError, UserCodeError
from brim.host.shortage import words_of_shortage
from brim.train.context import WorkerContext
from brim.user_code.tracebacks import is_raised_by_brim, place_of, trace_of
from brim.wire.link import WorkerLink
from brim.wire.messages import JobFailed, Warn, failure_of

# Of a device that is gone or broken: no device, busy or lost, uncorrectable memory and link errors,
# not initialised. The others, a failed assertion of a kernel first of all, are mistakes that
# another device would repeat.
_LOST_DEVICE = frozenset({3, 46, 100, 101, 214, 220, 802, 803, 999})


def blame(error: BaseException) -> BrimError:
    """The error as one of brim's: others are the user's, unless their device is lost."""
    error = _cause_of(error)
    if isinstance(error, SpecError) and (place := place_of(error)) and place not in error.field:
        error.field = f"{error.field} ({place})"
    if isinstance(error, BrimError):
        return error
    if (
        isinstance(error, torch.AcceleratorError)
        and getattr(error, "error_code", None) in _LOST_DEVICE
    ):
        return EnvironmentFault(f"the device is lost: {str(error).splitlines()[0]}", retryable=True)
    if isinstance(error, RuntimeError) and is_raised_by_brim(error):
        words = words_of_shortage(error)  # of threads: of brim's own, not of the user's
        if words:
            return EnvironmentFault(words, retryable=True)
    blamed = UserCodeError(trace_of(error))
    blamed.__cause__ = error
    return blamed


def _cause_of(error: BaseException) -> BaseException:
    """Return the exception that an exit status stands for, or the error itself.

    Hydra and click print an exception of the script, and exit with a number.
    """
    if not isinstance(error, SystemExit) or not isinstance(error.code, int):
        return error
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return cause if isinstance(cause, Exception) else error


def report(context: WorkerContext, error: BaseException) -> None:
    """Tell the agent of a failure.

    Either the job must end, or this worker gives up where another may do better.
    """
    blamed = blame(error)
    with contextlib.suppress(EnvironmentFault):  # where the agent itself is gone
        for tell in context.before_failing:
            tell()
    if isinstance(blamed, EnvironmentFault):
        print(f"brim: {blamed}", file=sys.stderr)  # noqa: T201 - this is the worker's log
        with contextlib.suppress(EnvironmentFault):  # where the agent itself is gone
            WorkerLink(context.link).send(Warn(message=f"{context.worker} gives up: {blamed}"))
        return
    failure: JobFailed = failure_of(blamed)
    print(failure.trace or failure.message, file=sys.stderr)  # noqa: T201 - this is the worker's log
    WorkerLink(context.link).send(failure)
