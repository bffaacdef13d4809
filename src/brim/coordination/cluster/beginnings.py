"""Select the jobs that may have workers, by the conditions that their owners gave them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from brim.domain.lifecycle import Phase
from brim.domain.quantities import format_duration
from brim.domain.scheduled_job import ScheduledJob

_SHOWN = 3  # jobs that a sentence names


def list_ready(
    jobs: Mapping[str, ScheduledJob], arrays: Collection[str], now: float
) -> list[ScheduledJob]:
    """List the jobs whose conditions hold, in their order.

    Of an array with too many of them, those that have had processes come first, then the earlier.

    Args:
        jobs: that have not ended, by id, in the order of submission.
        arrays: theirs.
    """
    ready = [
        job
        for job in jobs.values()
        if job.running
        or (job.submission.conditions.earliest <= now and not any(_pending(job, jobs, arrays)))
    ]
    with_processes = Counter(job.submission.conditions.array for job in ready if job.running)
    held_back = set[str]()
    for job in sorted(ready, key=lambda job: job.life.phase is not Phase.SUSPENDED):
        conditions = job.submission.conditions
        if conditions.limit and not job.running and job.life.may_run:
            with_processes[conditions.array] += 1
            if with_processes[conditions.array] > conditions.limit:
                held_back.add(job.id)
    return [job for job in ready if job.id not in held_back]


def describe_wait(
    job: ScheduledJob, jobs: Collection[str], arrays: Collection[str], now: float
) -> str:
    """Say what a job waits for before its first workers; empty: for nothing.

    Args:
        jobs: the ids of all that have not ended.
        arrays: theirs.
    """
    conditions = job.submission.conditions
    if job.running or job.life.ended:
        return ""
    if conditions.earliest > now:
        return f"it begins in {format_duration(float(round(conditions.earliest - now)))}"
    pending = list(_pending(job, jobs, arrays))
    if pending:
        more = len(pending) - _SHOWN
        names = ", ".join(pending[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return f"it begins after {names}"
    if conditions.limit and not job.workers:
        return f"its array runs {conditions.limit:,} at a time"
    return ""


def next_beginning(jobs: Iterable[ScheduledJob], decided: float) -> Iterator[float]:
    """Yield the moments behind the last decision before which jobs may not begin."""
    for job in jobs:
        moment = max(job.starts.not_before, job.submission.conditions.earliest)
        if not job.running and moment > decided:
            yield moment


def list_dependants(jobs: Iterable[ScheduledJob]) -> dict[str, list[ScheduledJob]]:
    """List the jobs that begin only if a job, or all of an array, is done, by its id."""
    dependants: dict[str, list[ScheduledJob]] = {}
    for job in jobs:
        for each in job.submission.conditions.predecessors:
            if each.success:
                dependants.setdefault(each.job, []).append(job)
    return dependants


def _pending(job: ScheduledJob, jobs: Collection[str], arrays: Collection[str]) -> Iterator[str]:
    """Yield the jobs and arrays that have to end first, in words."""
    for each in job.submission.conditions.predecessors:
        if each.job in arrays:
            yield f"the array of {each.job}"
        elif each.job in jobs:
            yield each.job
