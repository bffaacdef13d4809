"""Level 2: three changed lines make one's own loop elastic."""

from __future__ import annotations

import atexit
import sys
from typing import Any

import torch
from torch import nn

from brim.domain.job import JobSpec
from brim.errors import SpecError
from brim.train.context import WorkerContext, context_from_environment, spec_of_a_loner
from brim.train.failures import report
from brim.train.job import Job
from brim.train.membership import Members, Membership

__all__ = ["born_with", "check_over", "join"]

_born_with: WorkerContext | None = None
_joined: list[Members] = []


def born_with(context: WorkerContext) -> None:
    """Tell a process that was forked what one started anew finds in its environment."""
    global _born_with
    _born_with = context


def join(model: nn.Module, optimizer: torch.optim.Optimizer, *, scheduler: Any = None, seed: int = 0) -> Job:
    """Join the job that this process was started for, or train alone where nobody started it.

    Args:
        model: the network. The first worker's weights are everybody's: seed them where runs must agree.
        optimizer: over its parameters.
        scheduler: optional; its `step` is called after every epoch.
        seed: of the order of samples and of chance in micro-batches, where this process trains alone.

    Returns:
        The job; loop over `job.batches(...)` and call `job.step(loss)` for each.
    """
    context = _born_with or context_from_environment()
    if context is not None and _born_with is None:
        _report_failures(context)
    if context is not None:
        torch.set_num_threads(context.spec.threads)
    spec: JobSpec = context.spec if context else spec_of_a_loner(seed)
    job = Job(model, optimizer, spec=spec, context=context, scheduler=scheduler)
    _joined.append(job.members)
    return job


def check_over() -> None:
    """At the end of a script: raises SpecError where the job that it joined goes on."""
    if any(isinstance(members, Membership) and not members.is_over for members in _joined):
        raise SpecError(
            sys.argv[0],
            got="a script that ended without an error and left job.batches(...) early",
            need="a loop over job.batches(...), to its end",
            hint="for batch in job.batches(...): job.step(...), and no break",
        )


def _report_failures(context: WorkerContext) -> None:
    """What the script raises ends the job with its traceback first."""
    usual = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        usual(kind, error, trace)
        report(context, error)

    sys.excepthook = tell
    atexit.register(_report_early_end, context)


def _report_early_end(context: WorkerContext) -> None:
    try:
        check_over()
    except SpecError as error:
        report(context, error)
